"""Runner-facing paths, below /api/ingest/. Batches are telemetry's."""

from django.urls import path

from controlplane.banks import node_views
from controlplane.evals import regrading
from controlplane.runs import control

urlpatterns = [
    path("<int:attempt_id>/claim", control.claim, name="attempt-claim"),
    path("<int:attempt_id>/heartbeat", control.heartbeat, name="attempt-heartbeat"),
    path("<int:attempt_id>/state", control.state, name="attempt-state"),
    path("<int:attempt_id>/exit", control.exit, name="attempt-exit"),
    path("<int:attempt_id>/checkpoints", control.checkpoint, name="attempt-checkpoints"),
    path("<int:attempt_id>/bank", control.bank, name="attempt-bank"),
    path("<int:attempt_id>/tasks/<str:digest>", node_views.task_files, name="attempt-task-files"),
    path("<int:attempt_id>/anchors", node_views.anchor_results, name="attempt-anchors"),
    path("<int:attempt_id>/warmed", node_views.warmed_results, name="attempt-warmed"),
    path("<int:attempt_id>/regrades", regrading.regrade_results, name="attempt-regrades"),
]
