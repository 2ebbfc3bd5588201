"""A control plane small enough to refuse, fail and fence on command: real sockets, scripted answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from runner.contract.events import CONTENT_TYPE, decode_batch


class ControlPlane:
    """Answers each endpoint of an attempt from a table and remembers what was asked: (endpoint, body, authorization).

    An answer is (status, JSON or bytes), or a function of how often the endpoint was asked.
    """

    def __init__(self):
        self.seen, self.answers = [], {}
        plane = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(decode_batch(body) if self.headers["Content-Type"] == CONTENT_TYPE else json.loads(body))

            def do_GET(self):
                self._answer(None)

            def _answer(self, body):
                name = self.path.rsplit("/", 1)[-1]
                plane.seen.append((name, body, self.headers.get("Authorization")))
                answer = plane.answers.get(name, (200, {}))
                status, reply = answer(sum(seen[0] == name for seen in plane.seen)) if callable(answer) else answer
                payload = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def bodies(self, name):
        return [body for seen, body, _ in self.seen if seen == name]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
