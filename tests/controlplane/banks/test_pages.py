"""The task bank pages: what is there, where it came from, what was dropped and why."""

import re

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from controlplane.banks.models import BankImport, ImportState
from controlplane.banks.services import import_version
from tests.controlplane.banks.conftest import bank_file
from tests.controlplane.pages import form

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


@pytest.fixture
def version(team, owner):
    report = {"read": 10, "kept": 8, "dropped": [{"reason": "empty <question>", "count": 2, "examples": ["row 3"]}]}
    return import_version(team, "quiz", bank_file(), report, owner, environment="quiz")


def test_an_empty_list_says_what_to_do(browser, team):
    assert "./assay import quiz" in browser.get(reverse("banks")).content.decode()


def test_a_version_shows_counts_baselines_tasks_and_what_was_dropped(browser, version):
    page = browser.get(reverse("bank", args=["quiz"])).content.decode()
    assert "empty &lt;question&gt;" in page and "<question>" not in page
    assert "chance" in page and version.digest[:12] in page
    assert version.tasks.first().key in page


def test_tasks_are_filtered(browser, version):
    first, last = version.tasks.order_by("key").first(), version.tasks.order_by("key").last()
    page = browser.get(reverse("bank", args=["quiz"]), {"q": first.key}).content.decode()
    assert f"<code>{first.key}</code>" in page and f"<code>{last.key}</code>" not in page


def test_a_number_that_is_not_there_is_not_found(browser, version):
    assert browser.get(reverse("bank-version", args=["quiz", 9])).status_code == 404


def test_another_team_sees_nothing(client, outsider, version):
    client.force_login(outsider)
    assert client.get(reverse("bank", args=["quiz"])).status_code == 404


def test_a_file_of_the_wrong_kind_is_refused_in_words(browser, team):
    answer = browser.post(reverse("banks"), form(source="upload", file=SimpleUploadedFile("x.exe", b"MZ")))
    page = answer.content.decode()
    assert answer.status_code == 422 and "ending in .parquet" in page
    assert not BankImport.objects.exists()


def test_an_upload_opens_the_page_of_its_import(browser, team, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    answer = browser.post(reverse("banks"), form(source="upload", file=SimpleUploadedFile("s.parquet", b"PAR1")))
    job = BankImport.objects.get()
    assert answer.url == reverse("bank-import", args=[job.pk])


def test_an_import_form_that_is_sent_twice_imports_once(browser, team, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    token = re.findall(r'name="token" value="(\w{32})"', browser.get(reverse("banks")).content.decode())
    assert len(set(token)) == 3, "each of the dialogs has its own"
    first, second = (browser.post(reverse("banks"), _upload(token[0])) for _ in range(2))
    assert first.url == second.url and BankImport.objects.count() == 1
    assert browser.post(reverse("banks"), _upload(token[0], b"PAR2")).status_code == 400, "another file under the same token"
    assert browser.post(reverse("banks"), _upload(token[1])).url != first.url and BankImport.objects.count() == 2


def _upload(token: str, content: bytes = b"PAR1") -> dict:
    return {"token": token, "source": "upload", "file": SimpleUploadedFile("s.parquet", content)}


@pytest.mark.parametrize(("state", "word"), [(ImportState.RUNNING, "every 2s"), (ImportState.FAILED, "row 7 has no key")])
def test_an_import_is_followed_and_its_failure_told(browser, team, owner, state, word):
    job = BankImport.objects.create(
        team=team, bank="s", environment="sciknoweval", source="upload", state=state, reason="row 7 has no key" if word[0] == "r" else ""
    )
    assert word in browser.get(reverse("bank-import", args=[job.pk])).content.decode()
