"""WebSocket paths."""

from django.urls import path

from controlplane.telemetry.consumers import LiveConsumer

websocket_urlpatterns = [path("ws/live", LiveConsumer.as_asgi())]
