"""One function a command; each returns its exit code, None for 0."""

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from controlplane.cli import documents
from controlplane.cli.client import Client, ClientError, connect, dotted
from controlplane.cli.follow import LIVE, follow_run, progress_line, values
from controlplane.env import write_private

RUN_FAILED = 4
POLL_S = 1.0
ID_LENGTH = 36


# ---------------------------------------------------------------- launching
def launch(options) -> int | None:
    name = options.file or f"--preset {options.preset}"
    document = documents.from_preset(options.preset) if options.preset else documents.read_file(options.file)
    document = documents.with_changes(document, documents.read_changes(options.changes))
    client = connect()
    if options.check:
        return _check(client, documents.sendable(document, name))
    return _launched(client, client.post("/runs", documents.sendable(document, name), options.key), options.wait)


def _check(client: Client, document: dict) -> int:
    found = client.post("/runs/check", document)
    for kind in ("errors", "warnings"):
        for error in found[kind]:
            print(f"{kind[:-1]}  {dotted(error['pointer'])}: {error['message']}")
    if found["config_hash"]:
        print(f"config {found['config_hash']}")
    for part in (found["forecast"] or {}).values():
        if isinstance(part, dict) and part.get("sentence"):
            print(part["sentence"])
    return 1 if found["errors"] else 0


def _launched(client: Client, run: dict, wait: bool) -> int | None:
    print(f"{run['id']}  {run['name']}\n{client.url}/runs/{run['id']}", flush=True)
    if not wait:
        return None
    return None if follow_run(client, run["id"], sys.stdout)["state"] == "succeeded" else RUN_FAILED


def clone(options) -> int | None:
    client = connect()
    changes = documents.read_changes(options.changes)
    run = client.post(f"/runs/{_run_id(client, options.run)}/clone", {"changes": changes}, options.key)
    return _launched(client, run, options.wait)


# ---------------------------------------------------------------- runs
def _run_id(client: Client, given: str) -> str:
    """The id that `given` means: itself, its only completion among the newest runs, or the newest run."""
    if len(given) == ID_LENGTH:
        return given
    if given == "latest":
        for run in client.pages("/runs", 1):
            return run["id"]
        raise ClientError("assay: there is no run yet")
    if len(given) < 4:
        raise ClientError(f"assay: {given!r} is too short for a run; give 4 characters of its id or more")
    found = [run["id"] for run in client.pages("/runs", 1000) if run["id"].startswith(given)]
    if len(found) != 1:
        raise ClientError(
            f"assay: {given!r} is the beginning of {len(found)} runs' ids" if found else f"assay: no run's id begins with {given!r}"
        )
    return found[0]


def runs(options) -> None:
    found = connect().pages("/runs", options.limit, state=options.state, search=options.search)
    for run in found:
        print(
            _json(run)
            if options.json
            else f"{run['id'][:8]}  {run['created_at'][:16].replace('T', ' ')}  {_cell(run['name'], 40)}  {progress_line(run)}"
        )


def _cell(text: str, width: int) -> str:
    return (text if len(text) <= width else text[: width - 1] + "…").ljust(width)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def show(options) -> None:
    client = connect()
    run = client.get(f"/runs/{_run_id(client, options.run)}")
    rows = {
        name: run[name]
        for name in ("id", "name", "state", "reason", "waiting", "method", "model", "environment", "owner", "parent", "config_hash")
    }
    rows |= {
        "step": f"{run['step']} of {run['total_steps']}",
        "created": run["created_at"],
        "started": run["started_at"],
        "ended": run["ended_at"],
    }
    for name, value in [*rows.items(), *values(run), ("page", f"{client.url}/runs/{run['id']}")]:
        if value not in (None, ""):
            print(f"{name:<24} {value}")


def stop(options) -> None:
    _act(options, "stop")


def retry(options) -> None:
    _act(options, "retry")


def _act(options, verb: str) -> None:
    client = connect()
    print(progress_line(client.post(f"/runs/{_run_id(client, options.run)}/{verb}")))


def resume(options) -> int | None:
    client = connect()
    return _launched(client, client.post(f"/runs/{_run_id(client, options.run)}/resume", {"checkpoint": options.checkpoint}), options.wait)


def logs(options) -> None:
    """The newest lines; with --follow then each new one until the run has ended and no more come."""
    client = connect()
    path = f"/runs/{_run_id(client, options.run)}"
    query = {"search": options.search, "level": options.level}
    lines = _print_lines(client.get(f"{path}/logs", limit=min(max(options.lines, 1), 2000), **query)["items"])
    last = lines[-1]["id"] if lines else 0
    while options.follow:
        is_live = client.get(path)["state"] in LIVE
        lines = _print_lines(client.get(f"{path}/logs", after=last, limit=2000, **query)["items"])
        last = lines[-1]["id"] if lines else last
        if not lines and not is_live:
            return
        time.sleep(0 if lines else POLL_S)


def _print_lines(items: list[dict]) -> list[dict]:
    items = sorted(items, key=lambda line: line["id"])
    for line in items:
        at = datetime.fromtimestamp(line["t"], timezone.utc)
        print(f"{at:%H:%M:%S}  {line['attempt']}  {line['component']:<10}  {line['level']:<7}  {_printable(line['message'])}", flush=True)
    return items


def _printable(text: str) -> str:
    # A log line comes from outside: it must not move the cursor, ring or recolour the terminal.
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def episodes(options) -> None:
    client = connect()
    query = {"failed": True} if options.failed else {}
    for episode in client.pages(f"/runs/{_run_id(client, options.run)}/episodes", options.limit, **query):
        score = "ungraded" if episode["score"] is None else f"{episode['score']:g}"
        fields = (
            episode["id"],
            f"step {episode['step']}",
            f"score {score}",
            episode["termination"] or episode["state"],
            _printable(episode["task"]),
        )
        print(_json(episode) if options.json else "  ".join(fields))


# ---------------------------------------------------------------- runs from elsewhere
def adopt(options) -> int:
    """The spools are copied, because a replay removes what it delivered; what was delivered before is not taken twice."""
    attempts = sorted((options.folder / "attempts").glob("[0-9]*/exit.json"))
    if len(attempts) != 1:
        raise ClientError(f"assay: {options.folder} holds {len(attempts)} ended attempts; a run is taken over that ended in its first")
    client = connect()
    run = options.run or _adopted(client, options.document or options.folder / "run.json", attempts[0])
    print(f"{run}\n{client.url}/runs/{run}", flush=True)
    delivery = client.post(f"/runs/{run}/delivery", {})
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(attempts[0].parent / "spool", Path(copy) / "spool")
        write_private(Path(copy) / "connection.json", json.dumps({"url": delivery["batches_url"], "token": delivery["token"]}))
        code = subprocess.run([sys.executable, "-m", "runner.reporting", "replay", copy], check=False).returncode
    if code:
        print(f"assay: not everything was sent; go on with: ./assay adopt {options.folder} --run {run}", file=sys.stderr)
    return code


def _adopted(client: Client, document: Path, exit_record: Path) -> str:
    told = {"document": documents.read_file(str(document)), "exit": json.loads(exit_record.read_text())}
    return client.post("/runs/adopt", told)["id"]


# ---------------------------------------------------------------- banks, tokens, benchmarks
def import_bank(options) -> int:
    client = connect()
    job = _start_import(client, options)
    shown = 0
    while True:
        for line in job["log"][shown:].splitlines():
            print(_printable(line), flush=True)
        shown = max(shown, len(job["log"]))
        if job["state"] in ("succeeded", "failed"):
            return _import_ended(job)
        time.sleep(POLL_S)
        job = client.get(f"/banks/imports/{job['id']}")


def _start_import(client: Client, options) -> dict:
    if options.environment == "quiz":
        return client.post("/banks/imports", {"environment": "quiz", "source": "bundled", "bank": options.bank})
    if options.environment == "scienceworld":
        played = {"replays": options.replays, "gold_tasks": options.gold_tasks}
        return client.post("/banks/imports", {"environment": "scienceworld", "source": "bundled", "bank": options.bank, **played})
    if options.environment == "harbor":
        return _start_harbor_import(client, options)
    if not options.source:
        raise ClientError("assay: name a file of SciKnowEval questions, or owner/name of the hub")
    if Path(options.source).is_file():
        return client.upload("/banks/imports/upload", Path(options.source), bank=options.bank, split_column=options.split_column)
    body = {
        "environment": "sciknoweval",
        "source": "hub",
        "location": options.source,
        "bank": options.bank,
        "split_column": options.split_column,
    }
    return client.post("/banks/imports", body)


def _start_harbor_import(client: Client, options) -> dict:
    if not options.source:
        return client.post("/banks/imports", {"environment": "harbor", "source": "bundled", "bank": options.bank})
    path = Path(options.source)
    if path.is_file():
        return client.upload("/banks/imports/upload", path, environment="harbor", bank=options.bank, compile=str(options.compile).lower())
    # A folder is read where it lies, by the server; elsewhere it has to be packed first.
    body = {"environment": "harbor", "location": str(path.resolve()), "bank": options.bank, "compile": options.compile}
    source = {"source": "git", "ref": options.ref} if options.ref else {"source": "path"}
    return client.post("/banks/imports", body | source)


def _import_ended(job: dict) -> int:
    if job["state"] == "failed":
        print(f"assay: nothing was imported: {job['reason']}", file=sys.stderr)
        return 1
    for dropped in job["report"].get("dropped", []):
        print(f"dropped {dropped['count']}: {dropped['reason']}")
    print(f"{job['bank']}@{job['version']}")
    return 0


def token(options) -> None:
    """The secret goes to stdout alone, so that it can be piped; the advice to stderr."""
    expires = options.days and (datetime.now(timezone.utc) + timedelta(days=options.days)).isoformat()
    fresh = connect().post("/tokens", {"name": options.name, "scopes": options.scopes or ["read"], "expires": expires})
    print(fresh["secret"])
    print("Shown once; pass it as ASSAY_TOKEN or Authorization: Bearer.", file=sys.stderr)


def bench(options) -> None:
    from benchmarks import NAMES

    if options.name is None:
        print("\n".join(NAMES))
        return
    if options.name not in NAMES:
        raise ClientError(f"assay: no benchmark {options.name!r}; known are {', '.join(NAMES)}")
    importlib.import_module(f"benchmarks.{options.name}").main()
