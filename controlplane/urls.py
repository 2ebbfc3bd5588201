"""Where every page and endpoint hangs. Each app names its own paths in its urls.py."""

from django.urls import include, path

from controlplane.health import health

urlpatterns = [
    path("healthz", health, name="health"),
    path("", include("controlplane.telemetry.urls")),
    path("", include("controlplane.api.urls")),
    path("api/ingest/", include("controlplane.runs.control_urls")),
]
