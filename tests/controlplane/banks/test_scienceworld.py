"""Banks of a simulator's tasks: what enters, what the page shows."""

import pytest
from django.urls import reverse

from controlplane.banks.models import BankImport
from controlplane.banks.services import import_version
from runner.contract.bank import InvalidBank, Task
from runner.contract.scienceworld import kind_of
from runner.importers.scienceworld import Health, ScienceWorldReport, to_task
from tests.controlplane.banks.conftest import bank_file
from tests.controlplane.pages import form

pytestmark = pytest.mark.django_db
SPLITS = {"train": [0, 1], "dev": [2, 2], "test": [3, 3]}


def tasks():
    kinds = [kind_of("4-2"), kind_of("10-1")]
    return [
        to_task(kind, variation, split, ["dev140"] if split == "dev" else [])
        for kind in kinds
        for split, (low, high) in SPLITS.items()
        for variation in range(low, high + 1)
    ]


def document(monkeypatch):
    monkeypatch.setattr("runner.importers.scienceworld.KINDS", [kind_of("4-2"), kind_of("10-1")])
    report = ScienceWorldReport({"kind": "simulator"}, read=8, ranges={"4-2": SPLITS, "10-1": SPLITS})
    report.health = {"4-2": Health([3, 11], 2, 1, 2, 1, 1), "10-1": Health([126], 1, 1, 1, failures=["10-1/1: env_crash: <b>gone</b>"])}
    report.notes = ["1 kinds of task need more than 100 actions even by the oracle: 10-1 (shortest 126)"]
    return report.document(tasks())


@pytest.fixture
def version(team, owner, monkeypatch):
    return import_version(team, "scienceworld", bank_file(tasks(), []), document(monkeypatch), owner, "scienceworld")


def test_the_page_tells_splits_gold_that_fits_and_replay_health(client, owner, version):
    client.force_login(owner)
    page = " ".join(client.get(reverse("bank", args=["scienceworld"])).content.decode().split())
    for told in (
        "Find a non-living thing",
        "3 to 11",
        "2 of 2 reach 100",
        "1 at once",
        "1 drifted",
        "0 of 1",
        "126",
        "Fit in 100",
        "even by the oracle",
    ):
        assert told in page, told
    assert "4-2/0" in page and "variation 0" in page and "<b>gone" not in page
    filtered = client.get(reverse("bank", args=["scienceworld"]), {"level": "10-1"}).content.decode()
    assert "<code>10-1/0</code>" in filtered and "<code>4-2/0</code>" not in filtered


def test_a_bank_without_a_report_shows_its_tasks_all_the_same(client, owner, team):
    import_version(team, "scienceworld", bank_file(tasks(), []), {}, owner, "scienceworld")
    client.force_login(owner)
    assert "variation 0" in client.get(reverse("bank", args=["scienceworld"])).content.decode()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"payload": {"task": "make-gold"}}, "'make-gold' is no task of ScienceWorld"),
        ({"payload": {"variation": -1}}, "payload.variation"),
        ({"payload": {"task_id": "7-1"}}, "find-non-living-thing is 4-2"),
        ({"level": "boil"}, "find-non-living-thing is 4-2"),
    ],
)
def test_a_task_that_nobody_could_play_is_refused_with_its_line(team, owner, changes, told):
    sound = tasks()[0].model_dump()
    payload = sound["payload"] | changes.get("payload", {})
    broken = Task.model_validate(sound | changes | {"payload": payload})
    with pytest.raises(InvalidBank, match=told):
        import_version(team, "scienceworld", bank_file([broken], []), {}, owner, "scienceworld")


def test_the_simulator_is_offered_for_import(client, owner, team):
    client.force_login(owner)
    assert "Import ScienceWorld" in client.get(reverse("banks")).content.decode()
    answer = client.post(reverse("banks"), form(environment="scienceworld", source="bundled", bank=""))
    job = BankImport.objects.get()
    assert answer.status_code == 302 and (job.environment, job.source, job.bank) == ("scienceworld", "bundled", "scienceworld")
    assert job.options == {"replays": 1, "gold_tasks": ""}
    for wrong in ({"source": "hub"}, {"replays": "many"}, {"replays": "201"}, {"gold_tasks": "4-2,4-9"}):
        assert client.post(reverse("banks"), form(environment="scienceworld", **{"source": "bundled", **wrong})).status_code == 422
