from django.urls import path

from controlplane.telemetry import log_views

urlpatterns = [path("runs/<uuid:pk>/logs", log_views.logs, name="run-logs")]
