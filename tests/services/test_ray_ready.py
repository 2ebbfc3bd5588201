"""Ray is ready when a node of it is alive, not when its head answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from controlplane.services import ray_head
from controlplane.services.house import House, NotReady

TOKEN = "secret"


def listing(*states: str) -> bytes:
    """The state API's answer, in the shape of Ray 2."""
    return json.dumps(
        {"result": True, "data": {"result": {"total": len(states), "result": [{"state": state} for state in states]}}}
    ).encode()


@pytest.fixture
def head(tmp_path):
    """head(body) → the probe of a house whose Ray answers so to whoever knows the token."""
    (tmp_path / "ray-token").write_text(TOKEN)
    house, bodies = House(home=tmp_path, data=tmp_path, runtime=tmp_path), []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/api/v0/nodes"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(bodies[-1])

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def probe_of(body: bytes):
        bodies.append(body)
        return ray_head.probe(house, f"http://127.0.0.1:{server.server_port}")

    yield probe_of
    server.shutdown()
    server.server_close()


def test_a_living_node_is_enough(head):
    head(listing("DEAD", "ALIVE"))()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (listing(), "none has joined"),
        (listing("DEAD", "DEAD"), "no node of it is alive: DEAD, DEAD"),
        (b"starting", "cannot be read"),
        (b"[]", "cannot be read"),
    ],
)
def test_a_head_without_a_living_node_is_not_ready(head, body, words):
    with pytest.raises(NotReady, match=words):
        head(body)()


def test_a_head_that_does_not_take_our_token_is_not_ready(head, tmp_path):
    (tmp_path / "ray-token").write_text("another")
    with pytest.raises(NotReady, match="401"):
        head(listing("ALIVE"))()
