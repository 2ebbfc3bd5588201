"""A local HTTP server that speaks Ray's replies, as recorded from a real head, and can be told to fail."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NODE = {
    "node_id": "8e8d2d7a",
    "node_ip": "127.0.0.1",
    "is_head_node": True,
    "state": "ALIVE",
    "node_name": "local",
    "resources_total": {"node:__internal_head__": 1.0, "CPU": 2.0, "assay_node:local": 1.0, "node:127.0.0.1": 1.0, "memory": 8e9},
}
EXISTS = """Traceback (most recent call last):
  File "job_head.py", line 134, in _raise_error
RuntimeError: Request failed with status code 400: Traceback (most recent call last):
ValueError: Job with submission_id {id} already exists. Please use a different submission_id.
.
"""


@dataclass
class RayState:
    """What the stand-in knows, and how it misbehaves: `fail` is a status for every answer, `hang_s` delays it, `lose_submit` does the
    work and then drops the connection."""

    jobs: dict[str, dict] = field(default_factory=dict)
    nodes: list[dict] = field(default_factory=lambda: [dict(NODE)])
    groups: list[dict] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fail: int = 0
    hang_s: float = 0.0
    lose_submit: bool = False
    address: str = ""

    def add(self, body: dict, status: str = "RUNNING") -> None:
        self.jobs[body["submission_id"]] = {
            **{"type": "SUBMISSION", "job_id": f"{len(self.jobs) + 1:02x}000000", "status": status, "message": "", "driver_exit_code": None},
            **{key: body.get(key) for key in ("submission_id", "entrypoint", "metadata", "runtime_env", "entrypoint_resources")},
        }

    def end(self, submission_id: str, status: str, message: str = "", exit_code: int | None = None) -> None:
        self.jobs[submission_id].update(status=status, message=message, driver_exit_code=exit_code)

    @property
    def submissions(self) -> int:
        return self.calls.count("POST /api/jobs/")


def handler(state: RayState):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, status: int, body) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def handle_any(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            path = self.path.partition("?")[0]
            state.calls.append(f"{self.command} {path}")
            time.sleep(state.hang_s)
            if state.fail:
                return self.answer(state.fail, "Traceback (most recent call last):\nRuntimeError: injected")
            if path == "/api/jobs/" and self.command == "POST":
                return self.submit(body)
            if path == "/api/jobs/":
                return self.answer(200, list(state.jobs.values()))
            if path.startswith("/api/v0/"):
                rows = {"nodes": state.nodes, "placement_groups": state.groups}[path.removeprefix("/api/v0/")]
                return self.answer(200, {"result": True, "msg": "", "data": {"result": {"total": len(rows), "result": rows}}})
            return self.one_job(path.removeprefix("/api/jobs/"))

        def submit(self, body: dict) -> None:
            if body["submission_id"] in state.jobs:
                return self.answer(500, EXISTS.replace("{id}", body["submission_id"]))
            state.add(body)
            if state.lose_submit:
                return self.close_connection_now()
            self.answer(200, {"job_id": body["submission_id"], "submission_id": body["submission_id"]})

        def close_connection_now(self) -> None:
            self.close_connection = True
            self.connection.close()

        def one_job(self, rest: str) -> None:
            submission_id, _, verb = rest.partition("/")
            job = state.jobs.get(submission_id)
            if job is None:
                return self.answer(404, f"Job {submission_id} does not exist")
            if verb == "stop":
                was_running = job["status"] in ("PENDING", "RUNNING")
                if was_running:
                    state.end(submission_id, "STOPPED", "Job was intentionally stopped.")
                return self.answer(200, {"stopped": was_running})
            if verb == "logs":
                return self.answer(200, {"logs": "last words of the driver\n"})
            if self.command == "DELETE":
                del state.jobs[submission_id]
                return self.answer(200, {"deleted": True})
            self.answer(200, job)

        do_GET = do_POST = do_DELETE = handle_any

    return Handler


@contextmanager
def ray_stand_in():
    """A RayState served at `state.address` until the context ends."""
    state = RayState()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
