"""Where emitters deliver."""

from django.urls import path

from controlplane.telemetry.views import ingest

urlpatterns = [
    path("api/ingest/<int:attempt_id>/batches", ingest, name="ingest"),
]
