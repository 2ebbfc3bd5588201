"""One document, three doors, the same bytes; and one run however often it is asked for."""

import json
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.http import QueryDict
from django.utils import timezone

from controlplane.accounts.models import AuditEntry
from controlplane.cluster.models import Node
from controlplane.runs.forms import build_form, read_post
from controlplane.runs.models import Run
from controlplane.runs.services import do_launch
from tests.controlplane.runs.conftest import make_bank
from tests.controlplane.runs.forms.browser import post

TOML = """
name = "three doors"
seed = 7
[environment]
type = "quiz"
[model]
max_length = 256
[[stages]]
type = "sft"
steps = 2
batch_size = 4
[[stages]]
type = "grpo"
steps = 3
batch_size = 8
group_size = 4
[stages.loss]
type = "clipped"
clip_high = 0.28
[stages.optimizer]
learning_rate = 1e-4
"""
DOCUMENT = tomllib.loads(TOML)


@pytest.fixture
def house(team, settings, tmp_path):
    """A bank and a node that such a run fits on."""
    settings.ASSAY_STORAGE = tmp_path
    make_bank(team)
    Node.objects.create(
        name="node-1", address="127.0.0.1", cpus=4, memory=16 << 30, disk_total=1 << 40, disk_free=1 << 39, last_seen_at=timezone.now()
    )


@pytest.fixture
def caller(as_token, teammate):
    return as_token(teammate, "submit")


def launch(caller, document=DOCUMENT, key=None):
    return caller.send("POST", "/runs", document, headers={"Idempotency-Key": key} if key else {})


def test_form_rest_and_service_give_the_same_bytes(house, caller, team, teammate):
    answer = launch(caller)
    assert answer.status_code == 201, answer.content
    by_rest = Run.objects.get(pk=answer.json()["id"])
    query = QueryDict(mutable=True)
    for name, texts in post(build_form(DOCUMENT)).items():
        query.setlist(name, texts)
    posted = read_post(query)
    assert posted.errors == ()
    by_form = do_launch(teammate, team, posted.document)
    assert bytes(by_rest.config) == bytes(by_form.config)
    assert by_rest.config_hash == by_form.config_hash == answer.json()["config_hash"]
    served = caller.send("GET", f"/runs/{by_rest.pk}/config")
    assert served.content == bytes(by_rest.config)


def test_a_bad_document_is_a_problem_with_the_fields_paths(house, caller):
    stages = [{"type": "grpo", "batch_size": 10, "group_size": 4, "optimizer": {"learning_rate": "fast"}}]
    answer = launch(caller, {"name": "x", "colour": 1, "stages": stages})
    assert answer.status_code == 422
    problem = answer.json()
    assert {error["pointer"] for error in problem["errors"]} == {"/colour", "/stages/0/group_size", "/stages/0/optimizer/learning_rate"}
    assert next(error for error in problem["errors"] if "learning_rate" in error["pointer"])["value"] == "fast"
    assert not Run.objects.exists()


def test_a_missing_bank_is_refused_before_anything_is_queued(caller, team):
    answer = launch(caller)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/environment/bank"]
    assert not Run.objects.exists() and not AuditEntry.objects.filter(verb="run.launch").exists()


@pytest.mark.django_db(transaction=True)
def test_a_hundred_parallel_launches_with_one_key_are_one_run(house, as_token, teammate):
    caller = as_token(teammate, "submit")

    def shoot(_):
        try:
            answer = launch(caller, key="once")
            return answer.status_code, answer.content
        finally:
            connection.close()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(shoot, range(100)))
    assert len(set(answers)) == 1 and answers[0][0] == 201, set(answers)
    (run,) = Run.objects.all()
    assert json.loads(answers[0][1])["id"] == str(run.pk)
    assert AuditEntry.objects.filter(verb="run.launch").count() == 1
    assert launch(caller, {**DOCUMENT, "seed": 8}, key="once").status_code == 409
    assert Run.objects.count() == 1


def test_a_clone_differs_in_the_changed_field_alone(house, caller):
    parent = launch(caller).json()
    answer = caller.send("POST", f"/runs/{parent['id']}/clone", {"changes": {"/stages/1/optimizer/learning_rate": 2e-4}})
    assert answer.status_code == 201, answer.content
    detail = caller.send("GET", f"/runs/{answer.json()['id']}").json()
    assert detail["parent"] == parent["id"]
    assert detail["changes"] == [{"pointer": "/stages/1/optimizer/learning_rate", "before": 1e-4, "after": 2e-4}]
