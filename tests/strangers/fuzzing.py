"""Schemathesis against a running server: its configuration, one run of it, and what it counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

from controlplane.env import CHECKOUT

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    *("negative_data_rejection", "positive_data_acceptance", "unsupported_method", "ignored_auth"),
    *("use_after_free", "ensure_resource_availability"),
)
# Rules that JSON Schema cannot say: a run document must fit its bank and the cluster, a name may be taken, a cursor must be one of ours.
SEMANTIC = {
    "POST /api/v1/runs": "run documents are checked against banks, nodes and each other's fields",
    "POST /api/v1/runs/adopt": "a run document like any other, and an end that a driver can have come to",
    "PATCH /api/v1/runs/{run_id}": "only ended runs are archived",
    "POST /api/v1/runs/{run_id}/clone": "so are changed ones",
    "POST /api/v1/runs/{run_id}/resume": "the checkpoint must be one of the run's",
    "POST /api/v1/projects": "slugs are unique in a team",
    "POST /api/v1/tokens": "the expiry must lie ahead",
    "POST /api/v1/teams/{team}/members": "a member cannot join twice",
    "PATCH /api/v1/teams/{team}/members/{member_id}": "a team keeps an admin",
    "DELETE /api/v1/teams/{team}/members/{member_id}": "a team keeps an admin",
    "POST /api/v1/banks/imports": "which source fits which environment",
    "POST /api/v1/banks/imports/upload": "the file must be Parquet",
    "POST /api/v1/banks/{slug}/versions": "the file must be a bank",
    "POST /api/v1/episodes/{episode_id}/labels": "a name, a comment, or both",
    "POST /api/v1/episodes/{episode_id}/regrade": "only what was delivered in a container is graded again",
    "POST /api/v1/episodes/{episode_id}/again": "only an evaluation's episode is run again",
    "POST /api/v1/bank-files": "a file is named by its SHA-256",
    "GET /api/v1/banks/{bank}/versions/{number}/task-files": "only repair banks have them",
    "GET /api/v1/banks/{bank}/versions/{number}/anchors": "only repair banks have them",
    "POST /api/v1/banks/{bank}/versions/{number}/anchors": "a result is of a task of the bank",
    "POST /api/v1/banks/{bank}/versions/{number}/anchors/start": "only repair banks have them",
    "GET /api/v1/banks/{bank}/versions/{number}/warmth": "only repair banks have it",
    "POST /api/v1/banks/{bank}/versions/{number}/warmth/start": "refused while one runs",
    "POST /api/v1/banks/{bank}/versions/{number}/quarantine": "the task must be one of the bank's",
    "POST /api/v1/banks/{bank}/versions/{number}/release": "the task must be one of the bank's",
    "PUT /api/v1/projects/{project_id}/alert-limits": "the rule must be one of ours, the limit one that it can have",
    "GET /api/v1/runs/differences": "two to ten runs that differ",
    "GET /api/v1/runs/{run_id}/points": "the range must not be empty",
}
ACCEPTED = ("2xx", 401, 403, 404, 409, 422)
KEEP = "ASSAY_FUZZ_KEEP"
KNOWN_SHARE = 0.7
"""How often a parameter is one that exists; else schemathesis makes it up."""


def configuration(token: str, world: dict, uncovered: tuple[str, ...] = ()) -> dict:
    """The sections of schemathesis.toml as JSON-compatible values. `uncovered` are operations that the coverage phase leaves out."""
    known = {
        **{
            f"path.{name}": [str(world[name])]
            for name in ("run_id", "episode_id", "evaluation_id", "checkpoint_id", "import_id", "slug", "bank", "protocol", "team")
        },
        **{f"path.{name}": [world[name]] for name in ("token_id", "member_id", "project_id", "number")},
        "path.other_id": [str(world["episodes/other_id"]), str(world["evaluations/other_id"])],
        "query.cursor": world["cursors"],
        "query.team": [world["team"]],
        "query.task": ["demo/a"],
        "body.task": ["demo/a"],
        **{f"query.{name}": [1] for name in ("before", "after")},
        "query.ids[*]": [str(world["run_id"]), str(world["second_run"])],
        "body.checkpoint": [str(world["checkpoint_id"])],
        "body.team": [world["team"]],
    }
    words = {key: key.replace(".", "_") for key in known}
    return {
        "headers": {"Authorization": f"Bearer {token}"},
        "dictionaries": {words[key]: {"values": values} for key, values in known.items()},
        "parameters": {key: {"dictionary": words[key], "probability": KNOWN_SHARE} for key in known},
        "operations": [
            *({"include-name": name, "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}} for name in SEMANTIC),
            *({"include-name": name, "phases": {"coverage": {"enabled": False}}} for name in uncovered),
        ],
    }


def fuzz(url: str, folder: Path, config: dict, examples: int, keep: dict, arguments: tuple[str, ...] = ()) -> dict:
    """Run schemathesis with `examples` cases an operation; returns its JSON report, with what it printed under `output`.

    `keep` are values of path parameters that it must leave alone.
    """
    toml, report, output = folder / "schemathesis.toml", folder / "report.json", folder / "output.txt"
    toml.write_text(_toml(config))
    argv = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(toml), "run", f"{url}/api/v1/openapi.json"),
        *("--checks", ",".join(CHECKS), "--max-examples", str(examples), "--continue-on-failure", "--request-timeout", "30"),
        *("--report", "json", "--report-json-path", str(report), "--generation-database", "none", "--no-color", *arguments),
    ]
    own = {"SCHEMATHESIS_HOOKS": "tests.strangers.hooks", "PYTHONPATH": str(CHECKOUT), KEEP: json.dumps(keep, default=str)}
    with output.open("w") as file:
        subprocess.run(argv, check=False, cwd=folder, env={**os.environ, **own}, stdout=file, stderr=subprocess.STDOUT)
    assert report.exists(), output.read_text()[-3000:]
    return {**json.loads(report.read_text()), "output": output.read_text()}


def _toml(config: dict) -> str:
    """JSON scalars and arrays are TOML too; tables are written out."""
    lines = [f"headers = {_inline(config['headers'])}"]
    for section in ("dictionaries", "parameters"):
        lines += [f"[{section}]", *(f"{json.dumps(key)} = {_inline(value)}" for key, value in config[section].items())]
    for operation in config["operations"]:
        lines += ["[[operations]]", *(f"{json.dumps(key)} = {_inline(value)}" for key, value in operation.items())]
    return "\n".join(lines) + "\n"


def _inline(value) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
