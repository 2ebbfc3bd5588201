import json
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane import storage
from controlplane.banks.models import Bank, BankVersion, Task
from controlplane.cluster.models import Node, ReconcilerTick
from controlplane.runs.reconcile import reconcile_run, tick
from controlplane.runs.services import do_launch
from tests.controlplane.runs.ray_stand_in import ray_stand_in

DOMAINS = ("physics", "chemistry")


@pytest.fixture(autouse=True)
def storage_folder(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return tmp_path


@pytest.fixture(autouse=True)
def web_answers(monkeypatch):
    """No web process runs in these tests; those about silence switch it off themselves."""
    answering = {"web": True}
    monkeypatch.setattr("controlplane.runs.reconcile.web_answers", lambda: answering["web"])
    return answering


@pytest.fixture
def ray(settings):
    """A stand-in for the Ray head, known to the settings."""
    with ray_stand_in() as state:
        settings.RAY_ADDRESS = state.address
        yield state


@pytest.fixture
def bank(team):
    return make_bank(team)


def make_bank(team, slug="quiz", environment="quiz", digest="b" * 64):
    bank = Bank.objects.create(team=team, slug=slug, name=slug, environment=environment)
    version = BankVersion.objects.create(bank=bank, number=1, digest=digest, blob=storage.put(b"bank file"), size=9)
    Task.objects.bulk_create(
        Task(version=version, key=f"{split}-{domain}-{number}", split=split, domain=domain, level="L1", payload=payload(number))
        for split in ("train", "eval")
        for domain in DOMAINS
        for number in range(3)
    )
    return bank


def payload(number: int) -> dict:
    options = [{"label": label, "text": f"option {label}"} for label in "ABCD"]
    return {"instruction": "Answer.", "question": f"What is {number}?", "choices": options, "answer_key": "A"}


@pytest.fixture
def document():
    return {
        "name": "first",
        "model": {"max_length": 128},
        "sampling": {"max_new_tokens": 4},
        "stages": [{"type": "grpo", "steps": 10, "batch_size": 16, "group_size": 4}],
    }


@pytest.fixture
def node(db):
    return Node.objects.create(name="local", address="127.0.0.1", resource="assay_node:local", cpus=2, gpus=0, memory=8 << 30, last_seen_at=timezone.now())


@pytest.fixture
def launch(owner, team, bank, document):
    """launch(name=…, **other top-level keys) → a queued run."""
    return lambda **changes: do_launch(owner, team, {**document, **changes})


def run_due():
    """One tick with its due runs handled at once."""
    assert tick(lambda run_id: reconcile_run(run_id))


def make_due(run):
    """Let the reconciler look at the run in its next tick."""
    type(run).objects.filter(pk=run.pk).update(next_check_at=timezone.now() - timedelta(seconds=1))


def pass_time(seconds: float, *rows):
    """Move the moments stored in `rows` and the reconciler's tick into the past, as if `seconds` had gone by."""
    by = timedelta(seconds=seconds)
    for row in rows:
        row.refresh_from_db()
        names = [field.attname for field in row._meta.fields if field.get_internal_type() == "DateTimeField" and getattr(row, field.attname)]
        type(row)._base_manager.filter(pk=row.pk).update(**{name: getattr(row, name) - by for name in names})
        row.refresh_from_db()
    for answering in ReconcilerTick.objects.exclude(answering_since=None):
        ReconcilerTick.objects.filter(pk=1).update(answering_since=answering.answering_since - by)


class Driver:
    """A runner's side of the control endpoints, over Django's test client."""

    def __init__(self, client, attempt, code):
        self.client, self.attempt, self.code, self.token = client, attempt, code, ""

    def post(self, what, body):
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return self.client.post(f"/api/ingest/{self.attempt.pk}/{what}", json.dumps(body), content_type="application/json", headers=headers)

    def claim(self, host="elsewhere", pid=4242, started=1000.0, **changes):
        response = self.post("claim", {"code": self.code, "host": host, "pid": pid, "started": started, **changes})
        if response.status_code == 200:
            self.token = response.json()["token"]
        return response

    def run(self, first_step=0):
        return self.post("state", {"state": "running", "phase": "training", "first_step": first_step})

    def beat(self, **body):
        return self.post("heartbeat", {"phase": "training", "step": 1, "components": {}, "devices": [], **body})

    def exit(self, outcome="succeeded", **body):
        return self.post("exit", {"outcome": outcome, "reason": "", "step": 10, **body})


@pytest.fixture
def driver_of(client):
    """driver_of(attempt) → a Driver that knows the attempt's claim code."""
    from controlplane.runs.scheduling import claim_code

    return lambda attempt: Driver(client, attempt, claim_code(attempt))


def again(run):
    make_due(run)
    run_due()
    run.refresh_from_db()
    return run


def running(launch, driver_of, **claim):
    run = launch()
    run_due()
    driver = driver_of(run.attempts.get())
    driver.claim(**claim)
    driver.run()
    driver.beat()
    run.refresh_from_db()
    return run, driver


def kinds(run):
    return list(run.events.order_by("id").values_list("kind", flat=True))
