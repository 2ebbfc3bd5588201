"""Mounts every app's router at the root of /api/v1; each writes its full paths."""

from django.urls import path

from controlplane.api.api import api

APPS = ("accounts", "banks", "runs", "telemetry", "episodes", "checkpoints", "evals", "cluster", "alerts")

for app in APPS:
    api.add_router("", f"controlplane.{app}.api.router")
api.add_router("", "controlplane.banks.repair_api.router")
api.add_router("", "controlplane.runs.saved_views_api.router")

urlpatterns = [path("api/v1/", api.urls)]
