"""The ASGI application: HTTP through Django, WebSockets through Channels."""

import gc
import os
from urllib.parse import urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from django.core.asgi import get_asgi_application

http = get_asgi_application()

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator
from django.conf import settings

from controlplane import urls as urls  # every view, which the first request would import
from controlplane.admission import BodyAdmission
from controlplane.static import StaticFiles
from controlplane.telemetry.routing import websocket_urlpatterns


def origins() -> list[str]:
    """Our own address and its other host names, each with scheme and port: cookies know no ports, and next door another program may serve."""
    own = urlsplit(settings.ASSAY_URL)
    port = f":{own.port}" if own.port else ""
    return [f"{own.scheme}://{host}{port}" for host in settings.ALLOWED_HOSTS]


application = ProtocolTypeRouter(
    {
        "http": StaticFiles(BodyAdmission(http)),
        "websocket": OriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)), origins()),
    }
)

# What is loaded by now stays. Left to the collector, it would be walked through every few dozen pages, and that page waits 100 ms for it.
gc.collect()
gc.freeze()
