"""Every operation of the OpenAPI document under schemathesis: valid and invalid data, missing credentials, wrong methods, linked calls.

ASSAY_EXAMPLES=200 searches further; `./assay prove fuzz` does, and keeps the figures.
"""

import json
import os

import pytest
from django.utils import timezone

from controlplane.accounts import services as accounts
from controlplane.cluster.models import Node
from tests.controlplane.callers import Caller
from tests.strangers.fuzzing import configuration, fuzz
from tests.strangers.serving import UNLIMITED, serving

SEARCH = os.environ.get("ASSAY_EXAMPLES")
EXAMPLES = int(SEARCH or 3)
# The same cases at each run, so that what they visit is certain; a search takes new ones.
ARGUMENTS = () if SEARCH else ("--seed", "1", "--no-shrink")
# Its schema alone makes as many cases as all others together; the form's own tests visit each of its fields.
UNCOVERED = () if SEARCH else ("POST /api/v1/runs",)
LEAST_TESTED = 60
LEAST_CASES_EACH = 2


@pytest.fixture
def token(transactional_db, owner, team):
    return accounts.create_token(owner, team, "fuzz", ["admin"])


@pytest.fixture
def world(world, team, owner):
    """With a node that runs fit on, and cursors of lists."""
    Node.objects.update(memory=16 << 30, disk_total=1 << 40, disk_free=1 << 39, last_seen_at=timezone.now())
    secret, _ = accounts.create_token(owner, team, "reader", ["read"])
    lists = ("runs", f"runs/{world['run_id']}/episodes", "tokens", "audit")
    pages = [Caller(secret).send("GET", f"/{path}?limit=1").json() for path in lists]
    return {**world, "cursors": [page["next"] for page in pages if page["next"]]}


@pytest.mark.slow
def test_the_api_keeps_its_own_document(token, world, owner, tmp_path):
    """0 failures, and no run that only ever saw 401 or 404."""
    secret, row = token
    keep = {"token_id": row.pk, "member_id": owner.memberships.get().pk}
    with serving(tmp_path / "web.log", tmp_path, UNLIMITED) as url:
        report = fuzz(url, tmp_path, configuration(secret, world, UNCOVERED), EXAMPLES, keep, ARGUMENTS)
    record(report)
    assert report["failures"] == [] and report["errors"] == [] and report["exit_code"] == 0, report["output"][-20_000:]
    assert report["operations"]["tested"] >= LEAST_TESTED, report["operations"]
    assert report["test_cases"]["generated"] >= report["operations"]["tested"] * LEAST_CASES_EACH
    assert Caller(secret).send("GET", "/me").status_code == 200, "it locked itself out, and what followed says nothing"
    assert "Traceback" not in (tmp_path / "web.log").read_text()


def record(report: dict) -> None:
    """For `./assay prove fuzz`: the figures, without the output."""
    if path := os.environ.get("ASSAY_FUZZ_RECORD"):
        kept = {
            name: report[name]
            for name in ("seed", "running_time", "operations", "phases", "test_cases", "failures", "errors", "valid_rates")
        }
        with open(path, "w") as file:
            json.dump(kept, file)
