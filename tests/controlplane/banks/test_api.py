"""Banks over REST."""

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from controlplane.banks import imports, tasks
from controlplane.banks.models import Bank, BankImport, BankVersion
from controlplane.banks.services import import_version
from runner.contract.bank import read_bank
from tests.controlplane.banks.conftest import TASKS, bank_file, shuffled_file, task


@pytest.fixture
def caller(as_token, teammate):
    return as_token(teammate, "submit")


@pytest.fixture
def version(team, teammate):
    return import_version(team, "elements", bank_file(), {}, teammate, "quiz")


def upload(caller, file=None, slug="elements", **fields):
    fields = {"environment": "quiz", **fields}
    return caller.post(f"/api/v1/banks/{slug}/versions", {"file": SimpleUploadedFile("bank.zst", file or bank_file()), **fields})


def items(answer):
    assert answer.status_code == 200, answer.content
    return answer.json()["items"]


def test_a_file_is_uploaded_once(caller):
    first = upload(caller, report=json.dumps({"dropped": []}))
    assert first.status_code == 201, first.content
    body = first.json()
    row = BankVersion.objects.get()
    assert (body["bank"], body["number"], body["digest"], body["report"]) == ("elements", 1, row.digest, {"dropped": []})
    assert body["counts"]["splits"]["eval"]["baselines"]["chance"] == 0.25
    again = upload(caller, shuffled_file())
    assert (again.status_code, again.json()["number"]) == (200, 1)
    assert BankVersion.objects.count() == 1


def test_a_broken_file_names_its_lines(caller):
    answer = upload(caller, bank_file([task(1, payload={}), task(2, domain="x" * 99)]))
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/file/3", "/file/4"]
    assert not Bank.objects.exists()


@pytest.mark.parametrize(
    "change, pointer",
    [
        ({"report": "[]"}, "/report"),
        ({"report": "{"}, "/report"),
        ({"report": '{"a":NaN}'}, "/report"),
        ({"environment": "chess"}, "/environment"),
        ({"slug": "Bad"}, "/slug"),
    ],
)
def test_wrong_fields_are_named(caller, change, pointer):
    answer = upload(caller, **change)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert not Bank.objects.exists()


def test_no_file_is_a_problem_of_the_file(caller):
    answer = caller.post("/api/v1/banks/elements/versions", {"environment": "quiz"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/file")


def test_too_large_a_file_is_refused_before_it_is_read(caller, monkeypatch):
    monkeypatch.setattr("controlplane.banks.api.MAX_BANK_FILE", 10)
    assert upload(caller).status_code == 413


def test_banks_are_listed_with_their_newest_version(caller, version, team, teammate):
    import_version(team, "elements", bank_file(TASKS[:4]), {}, teammate)
    (bank,) = items(caller.send("GET", "/banks"))
    assert (bank["team"], bank["slug"], bank["environment"], bank["versions"], bank["newest"]) == ("physics", "elements", "quiz", 2, 2)
    assert [item["number"] for item in items(caller.send("GET", "/banks/elements/versions"))] == [2, 1]
    assert caller.send("GET", "/banks/elements/versions/1").json()["digest"] == version.digest


def test_an_outsider_finds_nothing(as_token, version, outsider, other_team):
    stranger = as_token(outsider, "admin", team=other_team)
    assert items(stranger.send("GET", "/banks")) == []
    for path in ("/banks/elements", "/banks/elements/versions/1", "/banks/elements/versions/1/tasks", "/banks/elements/versions/1/file"):
        assert stranger.send("GET", path).status_code == 404, path
    assert stranger.send("PATCH", "/banks/elements", {"archived": True}).status_code == 404


@pytest.mark.parametrize(
    "query, keys",
    [
        ("split=eval", ["t6", "t7", "t8", "t9"]),
        ("split=eval&domain=chemistry", ["t7", "t8"]),
        ("domain=biology", ["t9"]),
        ("level=L9", []),
        ("family=elements&split=eval&domain=physics", ["t6"]),
        ("flag=odd", []),
        ("search=number+7", ["t7"]),
        ("search=T9", ["t9"]),
        ("search=%25", []),
    ],
)
def test_tasks_are_filtered(caller, version, query, keys):
    assert [item["key"] for item in items(caller.send("GET", f"/banks/elements/versions/1/tasks?{query}"))] == keys


def test_tasks_are_paged(caller, version):
    seen, cursor = [], ""
    while cursor is not None:
        page = caller.send("GET", f"/banks/elements/versions/1/tasks?limit=3{cursor and '&cursor=' + cursor}").json()
        seen += [item["key"] for item in page["items"]]
        cursor = page["next"]
    assert seen == [f"t{number}" for number in range(10)]


def test_the_file_comes_back_as_it_is_stored(caller, version):
    answer = caller.send("GET", "/banks/elements/versions/1/file")
    assert answer["Content-Disposition"] == 'attachment; filename="elements-1.jsonl.zst"'
    assert read_bank(b"".join(answer.streaming_content))[2] == version.digest


def test_a_diff_names_added_removed_and_changed_tasks(caller, version, team, teammate):
    other = [*TASKS[1:9], task(9, "eval", "chemistry", "C"), task(10)]
    other[0] = other[0].model_copy(update={"payload": TASKS[3].payload, "flags": ["odd"]})
    import_version(team, "elements", bank_file(other), {}, teammate)
    assert caller.send("GET", "/banks/elements/diff?before=1&after=2").json() == {
        "added": ["t10"],
        "removed": ["t0"],
        "changed": [{"key": "t1", "columns": ["payload", "flags"]}, {"key": "t9", "columns": ["domain"]}],
        **{"added_count": 1, "removed_count": 1, "changed_count": 2},
    }
    assert caller.send("GET", "/banks/elements/diff?before=1&after=9").status_code == 404


def test_a_bank_is_archived_and_restored(caller, version):
    assert caller.send("PATCH", "/banks/elements", {"archived": True}).json()["archived_at"]
    assert items(caller.send("GET", "/banks")) == []
    assert [item["slug"] for item in items(caller.send("GET", "/banks?archived=true"))] == ["elements"]
    assert caller.send("PATCH", "/banks/elements", {"archived": False}).json()["archived_at"] is None


# ---------------------------------------------------------------- imports
def test_an_import_is_started_and_watched(caller, monkeypatch, django_capture_on_commit_callbacks):
    monkeypatch.setattr(imports, "IMPORTERS", "tests.controlplane.banks.fake_importers")
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda args, **_: tasks.run_import(*args))
    with django_capture_on_commit_callbacks(execute=True):
        answer = caller.send("POST", "/banks/imports", {"environment": "quiz", "source": "bundled"})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    job = caller.send("GET", f"/banks/imports/{answer.json()['id']}").json()
    assert (job["state"], job["version"], job["report"]["kept"]) == ("succeeded", 1, 10)
    assert [item["id"] for item in items(caller.send("GET", "/banks/imports"))] == [job["id"]]
    assert items(caller.send("GET", "/banks"))[0]["slug"] == "quiz"


def test_a_file_of_questions_is_uploaded_for_import(caller, monkeypatch):
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda *_, **__: None)
    file = SimpleUploadedFile("questions.parquet", b"PAR1")
    answer = caller.post("/api/v1/banks/imports/upload", {"file": file, "split_column": "split_naive", "bank": "ske"})
    assert answer.status_code == 202, answer.content
    job = BankImport.objects.get()
    assert (job.bank, job.location, job.options, str(job.pk)) == (
        "ske",
        "questions.parquet",
        {"split_column": "split_naive"},
        answer.json()["id"],
    )
    assert (imports._folder(job) / "questions.parquet").read_bytes() == b"PAR1"


@pytest.mark.parametrize("path", ["/banks/imports", "/banks/imports/upload"])
def test_an_import_under_one_key_is_made_once(caller, monkeypatch, settings, tmp_path, path):
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda *_, **__: None)
    settings.ASSAY_STORAGE = tmp_path

    def start(key, content):
        headers = {"Idempotency-Key": key}
        if path == "/banks/imports":
            return caller.send("POST", path, {"environment": "quiz", "source": "bundled", "bank": content}, headers=headers)
        file = SimpleUploadedFile("questions.parquet", content.encode())
        return caller.post(f"/api/v1{path}", {"file": file, "bank": "ske"}, headers=headers)

    first, second = start("k1", "one"), start("k1", "one")
    assert (first.status_code, second.json()) == (202, first.json()) and BankImport.objects.count() == 1
    assert start("k1", "two").status_code == 409
    assert start("k2", "two").status_code == 202 and BankImport.objects.count() == 2
    kept = [file.read_bytes() for file in (tmp_path / "imports").rglob("*.parquet")] if "upload" in path else [b"one", b"two"]
    assert sorted(kept) == [b"one", b"two"], "what was hashed is kept whole"


def test_a_member_may_not_name_a_file_of_the_server(caller):
    body = {"environment": "sciknoweval", "source": "path", "location": "/etc/questions.parquet"}
    assert caller.send("POST", "/banks/imports", body).status_code == 403
    assert not BankImport.objects.exists()


def test_anothers_import_is_not_found(caller, as_token, outsider, other_team, monkeypatch):
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda *_, **__: None)
    job = caller.send("POST", "/banks/imports", {"environment": "quiz", "source": "bundled"}).json()
    assert as_token(outsider, "admin", team=other_team).send("GET", f"/banks/imports/{job['id']}").status_code == 404
