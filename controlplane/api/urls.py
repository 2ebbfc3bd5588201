"""Mounts every app's router at the root of /api/v1; each writes its full paths."""

from importlib.util import find_spec

from django.urls import path

from controlplane.api.api import api

APPS = ("accounts", "banks", "runs", "telemetry", "episodes", "checkpoints", "evals", "cluster", "alerts")

for app in APPS:
    if find_spec(f"controlplane.{app}.api"):
        api.add_router("", f"controlplane.{app}.api.router")

urlpatterns = [path("api/v1/", api.urls)]
