"""Where every page and endpoint hangs. Each app names its own paths in its urls.py."""

from django.urls import include, path

from controlplane.health import health

urlpatterns = [
    path("healthz", health, name="health"),
    path("", include("controlplane.telemetry.urls")),
]
