"""A model behind an address whose replies are a function of what it was asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture
def chat_server():
    """chat_server(reply) → its address; `reply` maps the request's body to the text of the reply. Every reply counts one token."""
    servers = []

    def start(reply):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                choice = {"message": {"content": reply(body)}, "finish_reason": "stop"}
                answer = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
