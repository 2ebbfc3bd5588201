"""Importing versions: whole or not at all, and the same content once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection

from controlplane import storage
from controlplane.accounts.models import AuditEntry
from controlplane.banks import services
from controlplane.banks.models import Bank, BankVersion, Task
from controlplane.banks.services import import_version
from runner.contract.bank import InvalidBank, read_bank
from runner.contract.bank import Task as ContractTask
from tests.controlplane.banks.conftest import TASKS, bank_file, payload, shuffled_file, task


def load(team, user, file=None, slug="elements", environment="quiz", report=None):
    return import_version(team, slug, file or bank_file(), report or {}, user, environment)


def test_a_version_has_its_tasks_its_file_and_an_audit_row(team, teammate):
    version = load(team, teammate, report={"dropped": [{"reason": "empty", "count": 2}]})
    assert (version.bank.slug, version.number, version.is_new) == ("elements", 1, True)
    assert version.tasks.count() == 10
    row = version.tasks.get(key="t7")
    assert (row.split, row.domain, row.level, row.family, row.payload) == ("eval", "chemistry", "L1", "elements", payload(7, "B"))
    tasks, demonstrations, digest = read_bank(storage.read(version.blob))
    assert (len(tasks), len(demonstrations), digest) == (10, 2, version.digest)
    assert version.report == {"dropped": [{"reason": "empty", "count": 2}]}
    entry = AuditEntry.objects.get(verb="bank.import")
    assert (entry.team, entry.actor, entry.object_id) == (team, teammate, str(version.pk))


def test_counts_are_by_split_domain_level_family_and_kind(team, teammate):
    counts = load(team, teammate).counts
    assert (counts["tasks"], counts["demonstrations"], counts["kinds"]) == (10, 2, {"format": 1, "statement": 1})
    held_out = counts["splits"]["eval"]
    assert held_out["tasks"] == 4
    assert held_out["domains"] == {"biology": 1, "chemistry": 2, "physics": 1}
    assert (held_out["levels"], held_out["families"]) == ({"L1": 4}, {"elements": 4})


def test_baselines_of_a_split_by_hand(team, teammate):
    # "oxygen" is the longest of the four options, and the key of two of four; B is the most frequent key.
    assert load(team, teammate).counts["splits"]["eval"]["baselines"] == {"chance": 0.25, "majority_letter": 0.5, "longest_option": 0.5}


def test_the_same_content_is_the_same_version_whatever_its_order(team, teammate):
    first = load(team, teammate)
    for file in (bank_file(), shuffled_file()):
        again = load(team, teammate, file)
        assert (again.pk, again.is_new) == (first.pk, False)
    assert (BankVersion.objects.count(), Task.objects.count()) == (1, 10)


def test_other_content_is_the_next_version_and_the_old_one_stays(team, teammate):
    first, second = load(team, teammate), load(team, teammate, bank_file(TASKS[:5]))
    assert (first.number, second.number) == (1, 2)
    assert (first.tasks.count(), second.tasks.count()) == (10, 5)


def broken(*lines: bytes) -> bytes:
    return zstandard.compress(zstandard.decompress(bank_file()) + b"\n".join(lines) + b"\n")


@pytest.mark.parametrize(
    "file, line, words",
    [
        (broken(b"nonsense"), 13, "Expecting value"),
        (broken(b'{"record":"task","key":"x","split":"train","payload":{}}'), 13, "payload.instruction: Field required"),
        (bank_file([task(1, payload=payload(key="E"))]), 3, "'E' is none of the labels A, B, C, D"),
        (bank_file([task(1, payload={**payload(), "choices": [{"label": "A", "text": "x"}] * 2})]), 3, "labels A, A are not distinct"),
        (bank_file([task(1, domain="x" * 81)]), 3, "domain: longer than 80"),
        (bank_file([task(1, flags=["x" * 61])]), 3, "is longer than 60"),
        (broken(b'{"record":"task","key":"x","split":"train","flags":["\\u0000"],"payload":{}}'), 13, "null character"),
        (broken(b'{"record":"task","key":"x","split":"train","payload":{"a":"\\ud800"}}'), 13, "surrogate"),
        (broken(b'{"record":"task","key":"x","split":"train","payload":{"a":NaN}}'), 13, "NaN is not a finite number"),
    ],
)
def test_a_broken_row_is_named_and_nothing_is_imported(team, teammate, file, line, words):
    with pytest.raises(InvalidBank) as caught:
        load(team, teammate, file)
    assert [number for number, _ in caught.value.problems] == [line]
    assert words in caught.value.problems[0][1]
    assert not Bank.objects.exists() and not Task.objects.exists()


def test_every_broken_row_is_named(team, teammate):
    with pytest.raises(InvalidBank) as caught:
        load(team, teammate, broken(b"{}", b"[]", b"1"))
    assert [line for line, _ in caught.value.problems] == [13, 14, 15]


def test_a_failure_while_writing_leaves_nothing(team, teammate, monkeypatch):
    monkeypatch.setattr(services, "record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(team, teammate)
    assert not Bank.objects.exists() and not BankVersion.objects.exists() and not Task.objects.exists()


def test_a_viewer_and_an_outsider_cannot_import(team, viewer, outsider):
    for user in (viewer, outsider):
        with pytest.raises(PermissionDenied):
            load(team, user)
    assert not Bank.objects.exists()


@pytest.mark.parametrize("environment", [None, "chess"])
def test_a_first_version_needs_a_known_environment(team, teammate, environment):
    with pytest.raises(ValidationError) as caught:
        load(team, teammate, environment=environment)
    assert "choose one of quiz, sciknoweval" in caught.value.message_dict["environment"][0]


def test_a_bank_keeps_its_environment(team, teammate):
    load(team, teammate)
    assert load(team, teammate, bank_file(TASKS[:3]), environment=None).number == 2
    with pytest.raises(ValidationError, match="holds tasks of quiz"):
        load(team, teammate, environment="sciknoweval")


def test_two_teams_have_banks_of_the_same_name(team, teammate, other_team, outsider):
    assert load(team, teammate).bank != load(other_team, outsider).bank


def test_archiving_hides_and_restoring_brings_back(team, teammate, viewer):
    bank = load(team, teammate).bank
    with pytest.raises(PermissionDenied):
        services.set_archived(viewer, bank, True)
    assert services.set_archived(teammate, bank, True).archived_at is not None
    with pytest.raises(ValidationError, match="archived"):
        load(team, teammate, bank_file(TASKS[:2]))
    services.set_archived(teammate, bank, True)
    assert services.set_archived(teammate, bank, False).archived_at is None
    assert list(AuditEntry.objects.filter(kind="bank").order_by("id").values_list("verb", flat=True)) == ["bank.archive", "bank.restore"]


@pytest.mark.django_db(transaction=True)
def test_imports_at_once_take_different_numbers_and_equal_ones_become_one(team, teammate):
    files = [bank_file([task(0), task(number)] if number else [task(0)]) for number in range(4)] * 3

    def load_one(file):
        try:
            return load(team, teammate, file).number
        finally:
            connection.close()

    with ThreadPoolExecutor(12) as pool:
        numbers = list(pool.map(load_one, files))
    assert sorted(BankVersion.objects.values_list("number", flat=True)) == [1, 2, 3, 4]
    assert all(len({numbers[index] for index in range(start, 12, 4)}) == 1 for start in range(4))


def test_a_bank_of_several_thousand_tasks_is_imported(team, teammate):
    many = [ContractTask(key=f"k{number}", split="train", payload=payload(number)) for number in range(4500)]
    assert load(team, teammate, bank_file(many)).tasks.count() == 4500
