"""Where every page and endpoint hangs. Each app names its own paths in its urls.py."""

from django.urls import include, path

from controlplane import views
from controlplane.health import health

handler400 = views.bad_request
handler403 = views.forbidden
handler404 = views.not_found
handler500 = views.server_error

urlpatterns = [
    path("", views.home, name="home"),
    path("house", views.house_status, name="house-status"),
    path("healthz", health, name="health"),
    path("", include("controlplane.accounts.urls")),
    path("", include("controlplane.runs.urls")),
    path("", include("controlplane.telemetry.page_urls")),
    path("", include("controlplane.banks.urls")),
    path("", include("controlplane.episodes.urls")),
    path("", include("controlplane.checkpoints.urls")),
    path("", include("controlplane.evals.urls")),
    path("", include("controlplane.cluster.urls")),
    path("", include("controlplane.telemetry.urls")),
    path("", include("controlplane.api.urls")),
    path("api/ingest/", include("controlplane.runs.control_urls")),
]
