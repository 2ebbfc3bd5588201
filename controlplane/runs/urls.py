from django.urls import path

from controlplane.runs import compare_views, launch_views, run_views, views

urlpatterns = [
    path("runs", views.run_list, name="runs"),
    path("runs/rows", views.run_rows, name="run-rows"),
    path("runs/bulk", views.bulk, name="runs-bulk"),
    path("runs/views", views.save_view, name="view-save"),
    path("runs/views/<int:pk>/delete", views.delete_view, name="view-delete"),
    path("compare", compare_views.compare, name="compare"),
    path("launch", launch_views.launch, name="launch"),
    path("launch/check", launch_views.check, name="launch-check"),
    path("launch/fields", launch_views.fields, name="launch-fields"),
    path("launch/union", launch_views.union, name="launch-union"),
    path("launch/stages", launch_views.stages, name="launch-stages"),
    path("launch/text", launch_views.text, name="launch-text"),
    path("runs/<uuid:pk>", run_views.overview, name="run"),
    path("runs/<uuid:pk>/header", run_views.header, name="run-header"),
    path("runs/<uuid:pk>/metrics", run_views.metrics, name="run-metrics"),
    path("runs/<uuid:pk>/config", run_views.config, name="run-config"),
    path("runs/<uuid:pk>/audit", run_views.audit, name="run-audit"),
    path("runs/<uuid:pk>/stop", run_views.stop, name="run-stop"),
    path("runs/<uuid:pk>/resume", run_views.resume, name="run-resume"),
    path("runs/<uuid:pk>/retry", run_views.retry, name="run-retry"),
    path("runs/<uuid:pk>/archive", run_views.archive, name="run-archive"),
]
