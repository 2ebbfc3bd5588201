"""WebSocket paths."""

websocket_urlpatterns: list = []
