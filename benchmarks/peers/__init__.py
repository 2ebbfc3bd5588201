"""The peers: each in an environment of its own under .assay/peers, installed by the benchmark that needs it.

The scripts beside this file run inside those environments and import nothing of ours.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from controlplane.env import CHECKOUT
from controlplane.services.ports import LOOPBACK, free_ports

REQUIREMENTS = {
    "mlflow": ("mlflow==3.17.2", "psycopg2-binary==2.9.10"),
    "aim": ("aim==3.29.1",),
    "trackio": ("trackio==0.43.0",),
    "cosmic-ray": ("cosmic-ray==8.7.0",),  # no peer, but what `prove mutation` mutates with
}
SCRIPT_S = 600
FOLDER = CHECKOUT / ".assay" / "peers"


def version(peer: str) -> str:
    return REQUIREMENTS[peer][0].replace("==", " ")


def install(peer: str) -> Path:
    """The Python of the peer's environment; made once, and again when the pins change."""
    environment = FOLDER / peer
    python, stamp = environment / "bin" / "python", environment / "installed"
    wanted = "\n".join(REQUIREMENTS[peer])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Installing {version(peer)} into .assay/peers/{peer} (once) …", file=sys.stderr, flush=True)
    uv = shutil.which("uv")
    make = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    fetch = [uv, "pip", "install", "--quiet", "--python", str(python)] if uv else [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*make, str(environment)], check=True, stdout=sys.stderr)
    subprocess.run([*fetch, *REQUIREMENTS[peer]], check=True, stdout=sys.stderr)
    stamp.write_text(wanted)
    return python


def run_script(peer: str, script: str, *arguments: str) -> dict:
    """Run a script of this folder in the peer's environment and an empty folder; its last line is its answer.

    Raises RuntimeError with what it said, TimeoutExpired after SCRIPT_S.
    """
    command = [str(install(peer)), str(Path(__file__).parent / script), *arguments]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, env=_plain_environment(), timeout=SCRIPT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{script} {' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _plain_environment() -> dict[str, str]:
    """Without our settings, and without the peers' telemetry."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ASSAY_", "PYTHON", "DJANGO"))}
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "TRACKIO_DISABLE_TELEMETRY": "1"}
    # Its job runner is not part of what is compared, and would only take processor time from it.
    return {**kept, **quiet, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextmanager
def mlflow_server(store: str, folder: Path, workers: int = 1) -> Iterator[httpx.Client]:
    """An MLflow server on `store`, a SQLAlchemy URL; yields a client with its address."""
    port = free_ports(1)[0]
    url = f"http://{LOOPBACK}:{port}"
    mlflow = install("mlflow").with_name("mlflow")
    command = [str(mlflow), "server", "--backend-store-uri", store, "--default-artifact-root", str(folder / "artifacts")]
    command += ["--host", LOOPBACK, "--port", str(port), "--workers", str(workers)]
    with open(folder / f"mlflow-{port}.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=_plain_environment(), start_new_session=True)
    try:
        with httpx.Client(base_url=url, timeout=120) as client:
            _wait_for(client, server, folder / f"mlflow-{port}.log")
            yield client
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_for(client: httpx.Client, server: subprocess.Popen, log: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.get("/health").raise_for_status()
            return
        except httpx.HTTPError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MLflow does not answer: {error}\n{log.read_text()[-2000:]}") from None
            time.sleep(0.3)


def mlflow_store(url: str) -> str:
    """Our libpq URL as MLflow's SQLAlchemy URL."""
    return url.replace("postgresql://", "postgresql+psycopg2://", 1)


def mlflow_run(client: httpx.Client, experiment: str = "0") -> str:
    """A new run's identifier."""
    body = {"experiment_id": experiment, "start_time": int(time.time() * 1000), "run_name": "bench"}
    answer = client.post("/api/2.0/mlflow/runs/create", json=body).raise_for_status()
    return answer.json()["run"]["info"]["run_id"]
