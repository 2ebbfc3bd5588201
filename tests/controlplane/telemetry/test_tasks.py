"""The sweep keeps every blob that a row names, whichever column names it."""

import os
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane import storage
from controlplane.banks.models import Bank, BankVersion
from controlplane.cluster.models import Grant
from controlplane.episodes.models import Episode
from controlplane.runs.paths import attempt_folder
from controlplane.telemetry import tasks
from controlplane.telemetry.models import Pack
from tests.controlplane.factories import make_attempt

pytestmark = pytest.mark.django_db


def old(content: bytes) -> str:
    name = storage.put(content)
    os.utime(storage.blob_path(name), (1, 1))
    return name


def test_named_blobs_stay_and_the_rest_goes(run, team):
    named = {column: old(column.encode()) for column in ("sampled", "trained", "token_texts")}
    Episode.objects.create(id=uuid.uuid4(), run=run, attempt=1, task="t", **named)
    bank = old(b"bank")
    BankVersion.objects.create(
        bank=Bank.objects.create(team=team, slug="quiz", name="Quiz", environment="quiz"), number=1, digest="d", blob=bank, size=4
    )
    pack = old(b"pack")
    Pack.objects.create(run=run, name=pack)
    orphan = old(b"orphan")
    assert sum(storage.sweep(prefix, tasks.named_blobs) for prefix in storage.PREFIXES) == 1
    assert all(storage.exists(name) for name in [*named.values(), bank, pack]) and not storage.exists(orphan)


def test_every_folder_has_its_minute(monkeypatch):
    swept = []
    monkeypatch.setattr(storage, "sweep", lambda prefix, named: swept.append(prefix) or 0)
    for minute in range(256):
        monkeypatch.setattr(tasks, "time", lambda minute=minute: minute * 60.0 + 1)
        tasks.sweep()
    assert sorted(swept) == storage.PREFIXES


@pytest.mark.parametrize(("ended", "state", "left", "asked"), [
    (1, "released", True, 1),
    (1, "released", False, 0),
    (1, "releasing", True, 0),
    (25, "released", True, 0),
])
def test_what_an_outage_left_on_disk_is_asked_for_again_while_it_is_welcome(run, monkeypatch, ended, state, left, asked):
    sent = []
    monkeypatch.setattr(tasks.deliver_leftovers, "apply_async", lambda arguments, **_: sent.extend(arguments))
    attempt = make_attempt(run, 7, state="lost", ended_at=timezone.now() - timedelta(hours=ended))
    Grant.objects.create(attempt=attempt, state=state)
    folder = attempt_folder(attempt)
    folder.mkdir(parents=True)
    if left:
        (folder / "connection.json").write_text("{}")
    assert tasks.find_leftovers() == asked
    assert sent == [str(folder)] * asked
