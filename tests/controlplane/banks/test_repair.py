"""Repair banks in the control plane: files, findings, the anchor gate, quarantine, and every door to them."""

import io
import json
import re
import tarfile

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from controlplane import storage
from controlplane.accounts.models import AuditEntry
from controlplane.banks import anchors, files, selectors
from controlplane.banks.models import AnchorCheck, Bank, BankFile, Task
from controlplane.banks.services import import_version
from controlplane.cluster.models import Node
from controlplane.evals.launching import start_proving
from controlplane.telemetry.tasks import named_blobs
from runner.contract.anchors import AnchorResult, AnchorState
from runner.contract.bank import InvalidBank, write_bank
from runner.contract.canonical import digest
from tests.controlplane.banks.repair import repair_task, repair_version, three_tasks
from tests.controlplane.factories import make_attempt, make_run
from tests.controlplane.pages import form

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path


@pytest.fixture
def version(team, owner):
    return repair_version(team, owner)


@pytest.fixture
def member(as_token, teammate):
    return as_token(teammate, "submit")


def good(agent="oracle", **fields):
    earned = {"oracle": 1.0, "nop": 0.0}[agent]
    return AnchorResult(**{"score": earned, "raw_reward": earned, "floor": 0.35, **fields})


def prove(version, *keys):
    for key in keys or ("demo/a", "demo/b"):
        for agent in ("oracle", "nop"):
            anchors.record_anchor(version, key, agent, good(agent))


# ---------------------------------------------------------------- import
def test_a_version_counts_what_it_holds_and_names_its_files(version):
    counts = version.counts["repair"]
    assert (counts["tasks"], counts["runnable"], counts["blocked"]) == (3, 2, 1)
    assert counts["counts"]["family"] == {"coef": 1, "sign": 2} and counts["floors"]["n"] == 3
    assert [(item["code"], item["count"]) for item in counts["findings"]] == [("E04", 1), ("W01", 1)]
    named = set(BankFile.objects.filter(version=version).values_list("digest", flat=True))
    listings = {task.payload["task_digest"] for task in version.tasks.all()}
    assert listings < named and len(named) == 3 + 3 + 3, "three listings, three files that all share, three that each has"
    assert named_blobs(list(named)) == named, "the sweeper must leave them"


def test_files_that_were_not_sent_are_named_and_nothing_is_imported(team, owner, tmp_path):
    task = repair_task("demo/a", files={"big": b"lost on the way"})
    storage.blob_path(digest(b"lost on the way")).unlink()
    with pytest.raises(InvalidBank, match=f"file {digest(b'lost on the way')} was not sent"):
        repair_version(team, owner, [task])
    storage.blob_path(task.payload["task_digest"]).unlink()
    with pytest.raises(InvalidBank, match="task demo/a: blob .*not in the store"):
        repair_version(team, owner, [task])
    assert not Bank.objects.exists() and not BankFile.objects.exists()


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a//b", "a/./b"])
def test_a_listing_that_leads_out_of_its_folder_is_refused(team, owner, path):
    with pytest.raises(InvalidBank, match="leads out of the task's folder"):
        repair_version(team, owner, [repair_task("demo/a", files={path: b"x"})])


@pytest.mark.parametrize(
    "change, words",
    [
        ({"payload": {"name": "x"}}, "payload.task_digest"),
        ({"split": "blocked"}, "exactly when a finding blocks it"),
        ({"flags": ["x" * 61]}, "flags"),
    ],
)
def test_a_record_that_is_wrong_is_named(team, owner, change, words):
    with pytest.raises(InvalidBank, match=words):
        repair_version(team, owner, [repair_task("demo/a").model_copy(update=change)])


def test_a_long_hint_and_an_unknown_code_are_refused(team, owner):
    with pytest.raises(InvalidBank, match="payload.hints.L1: 401 characters"):
        repair_version(team, owner, [repair_task("demo/a", hints={"L1": "x" * 401})])
    task = repair_task("demo/a", codes=("E04",))
    task.payload["findings"][0]["code"] = "E99"
    with pytest.raises(InvalidBank, match="E99 is no code of ours"):
        repair_version(team, owner, [task.model_copy(update={"split": "blocked"})])


def test_the_same_tasks_are_the_same_version(team, owner, version):
    again = repair_version(team, owner)
    assert again.pk == version.pk and BankFile.objects.filter(version=version).count() == 9


def test_a_task_comes_back_as_a_tar(version):
    task = version.tasks.get(key="demo/a")
    with files.task_tar(task.payload["task_digest"]) as packed, tarfile.open(fileobj=packed) as tar:
        found = {item.name: (tar.extractfile(item).read(), item.mode) for item in tar}
    assert found["tests/test.sh"] == (b"#!/bin/sh\n", 0o755) and found["name"] == (b"demo/a", 0o644)


# ---------------------------------------------------------------- the gate
def test_a_version_is_proven_when_every_task_that_can_run_has_both(version):
    assert anchors.summary(version).state == AnchorState.UNPROVEN
    prove(version, "demo/a")
    found = anchors.summary(version)
    assert (found.state, found.missing) == (AnchorState.UNPROVEN, [("demo/b", "oracle"), ("demo/b", "nop")])
    prove(version)
    assert anchors.summary(version).state == AnchorState.PROVEN
    assert anchors.gate(version.bank, version) is None


@pytest.mark.parametrize(
    "agent, result, words",
    [
        ("oracle", {"score": 0.9}, "oracle scored 0.9"),
        ("oracle", {"score": None, "reason": "verifier_timeout"}, "verifier_timeout"),
        ("nop", {"score": 0.1}, "nop scored 0.1"),
        ("nop", {"raw_reward": 0.2}, "raw reward 0.2"),
        ("nop", {"floor": 0.0}, "the bank says 0.35"),
    ],
)
def test_one_wrong_result_breaks_the_version_and_says_which(version, agent, result, words):
    prove(version)
    anchors.record_anchor(version, "demo/b", agent, good(agent, **result))
    found = anchors.summary(version)
    assert found.state == AnchorState.BROKEN and list(found.broken) == ["demo/b"] and words in found.broken["demo/b"][0]
    assert "broken" in anchors.gate(version.bank, version)
    assert anchors.rows(version)[0].task.key == "demo/b", "broken ones first"
    anchors.record_anchor(version, "demo/b", agent, good(agent))
    assert anchors.summary(version).state == AnchorState.PROVEN, "the newest result counts"
    assert AnchorCheck.objects.filter(task__key="demo/b", agent=agent).count() == 3, "older ones stay"


def test_the_container_floor_is_the_expected_one_where_it_is_known(team, owner):
    version = repair_version(team, owner, [repair_task("demo/a", floor_container=0.0, floor=0.0)])
    assert anchors.record_anchor(version, "demo/a", "nop", good("nop", floor=0.0)).problems == []


def test_a_quarantined_task_neither_breaks_nor_is_missed(version, owner, viewer):
    prove(version, "demo/a")
    anchors.record_anchor(version, "demo/b", "oracle", good(score=0.0))
    with pytest.raises(PermissionDenied):
        anchors.quarantine(viewer, version, "demo/b", "broken")
    with pytest.raises(ValidationError, match="say why"):
        anchors.quarantine(owner, version, "demo/b", " ")
    anchors.quarantine(owner, version, "demo/b", "the verifier needs a licence")
    assert anchors.summary(version).state == AnchorState.PROVEN
    assert anchors.quarantined_keys(version) == ["demo/b"]
    anchors.release(owner, version, "demo/b")
    assert anchors.summary(version).state == AnchorState.BROKEN
    assert list(AuditEntry.objects.filter(verb__in=["bank.quarantine", "bank.release"]).values_list("verb", flat=True).order_by("id")) == [
        "bank.quarantine",
        "bank.release",
    ]


def test_a_new_version_proves_only_what_changed(version, team, owner):
    prove(version)
    second = repair_version(team, owner, [*three_tasks()[:2], repair_task("demo/d")])
    assert second.number == 2
    assert anchors.summary(second).missing == [("demo/d", "oracle"), ("demo/d", "nop")]
    changed = repair_version(team, owner, [repair_task("demo/a", files={"x": b"changed"}), three_tasks()[1]])
    assert {key for key, _ in anchors.summary(changed).missing} == {"demo/a"}


def test_another_banks_results_do_not_count(version, team, owner):
    prove(version)
    assert anchors.summary(repair_version(team, owner, slug="copy")).state == AnchorState.UNPROVEN


def test_what_has_no_anchors_needs_none(team, owner):
    from tests.controlplane.banks.conftest import bank_file

    quiz = import_version(team, "quiz", bank_file(), {}, owner, "quiz")
    with pytest.raises(ValidationError, match="have no anchors"):
        start_proving(owner, quiz)
    assert anchors.gate(quiz.bank, quiz) is None


def test_results_of_other_files_agents_or_tasks_are_refused(version):
    with pytest.raises(ValidationError, match="E13"):
        anchors.record_anchor(version, "demo/a", "oracle", good(task_digest="0" * 64))
    with pytest.raises(ValidationError, match="has no task"):
        anchors.record_anchor(version, "demo/z", "oracle", good())
    with pytest.raises(ValidationError, match="no anchor agent"):
        anchors.record_anchor(version, "demo/a", "terminal", good())


# ---------------------------------------------------------------- the nodes' door
@pytest.fixture
def attempt(team, owner, version):
    return make_attempt(make_run(team, owner=owner, bank_version=version))


def bearer(attempt):
    return {"HTTP_AUTHORIZATION": f"Bearer {attempt.token}"}


def test_a_node_fetches_a_tasks_files_with_its_attempts_token(client, attempt, version):
    found = version.tasks.get(key="demo/a").payload["task_digest"]
    path = f"/api/ingest/{attempt.pk}/tasks/{found}"
    assert client.get(path).status_code == 401
    answer = client.get(path, **bearer(attempt))
    assert answer.status_code == 200 and answer["ETag"] == f'"{found}"'
    with tarfile.open(fileobj=io.BytesIO(answer.getvalue())) as tar:
        assert "task.toml" in tar.getnames()
    assert client.get(f"/api/ingest/{attempt.pk}/tasks/{'0' * 64}", **bearer(attempt)).status_code == 404
    storage.blob_path(found).unlink()
    gone = client.get(path, **bearer(attempt))
    assert gone.status_code == 410 and "import the bank again" in gone.json()["detail"]


def test_a_node_reports_anchors_whole_or_not_at_all(client, attempt, version):
    path = f"/api/ingest/{attempt.pk}/anchors"
    results = [
        {"task": key, "agent": agent, "score": score, "raw_reward": 0.0, "floor": 0.35, "node": "n1", "timings": {"build": 3.5}}
        for key in ("demo/a", "demo/b")
        for agent, score in (("oracle", 1.0), ("nop", 0))
    ]
    assert client.post(path, {"results": results}, content_type="application/json").status_code == 401
    bad = client.post(path, {"results": [*results, {"task": "demo/z", "agent": "nop"}]}, content_type="application/json", **bearer(attempt))
    assert bad.status_code == 400 and "has no task" in bad.json()["detail"] and not AnchorCheck.objects.exists()
    for wrong in ({"results": [{"task": "demo/a", "agent": "nop", "score": "0"}]}, {"results": 3}):
        assert client.post(path, wrong, content_type="application/json", **bearer(attempt)).status_code == 400
    version = start_proving(attempt.run.owner, version)
    answer = client.post(path, {"results": results, "finished": True}, content_type="application/json", **bearer(attempt))
    assert answer.json() == {"state": "proven", "sentence": "oracle and nop came out right on all 2 tasks"}
    version.refresh_from_db()
    assert version.proving_since is None
    check = AnchorCheck.objects.filter(task__key="demo/a", agent="oracle").get()
    assert (check.node, check.timings, check.expected_floor) == ("n1", {"build": 3.5}, 0.35)


# ---------------------------------------------------------------- REST
PATH = "/banks/repair/versions/1"
BASE = f"/api/v1{PATH}"


def test_findings_come_with_remedies(member, version):
    prove(version)
    found = member.get(f"{BASE}/findings").json()
    assert [(item["task"], item["code"], item["severity"], item["blocks"]) for item in found] == [
        ("demo/c", "E04", "error", "task"),
        ("demo/c", "W01", "warning", ""),
    ]
    assert "--compile" in found[0]["remedy"] and found[0]["detail"] == "detail of E04 <b>"
    assert [item["code"] for item in member.get(f"{BASE}/findings?code=W01").json()] == ["W01"]
    assert selectors.findings(version, "W09") == []


def test_what_only_this_installation_knows_is_found_too(team, owner):
    version = repair_version(team, owner, [repair_task("demo/a", gpus=1), repair_task("demo/b")])
    prove(version, "demo/b")
    anchors.record_anchor(version, "demo/a", "nop", good("nop"))
    told = [(item["task"], item["code"], item["detail"]) for item in selectors.findings(version)]
    assert told == [("demo/a", "W06", "needs 1"), ("demo/a", "W11", "no result of oracle")]
    Node.objects.create(name="n", address="10.0.0.1", cpus=8, gpus=1)
    assert [item["code"] for item in selectors.findings(version)] == ["W11"]


def test_files_are_sent_before_the_bank_that_names_them(member, team, tmp_path, settings):
    record = repair_task("demo/a")
    names = sorted(path.parent.name + path.name for path in (tmp_path / "blobs").glob("*/*"))
    contents = {name: storage.read(name) for name in names}
    settings.ASSAY_STORAGE = tmp_path / "other"
    bank = {"file": SimpleUploadedFile("bank.zst", write_bank([record])[0]), "environment": "harbor"}
    refused = member.post("/api/v1/banks/repair/versions", bank)
    assert refused.status_code == 422 and "not in the store" in refused.content.decode()
    assert member.send("POST", "/bank-files/missing", {"digests": names}).json() == {"missing": names}
    sent = {"files": [SimpleUploadedFile(name, content) for name, content in contents.items()]}
    assert member.post("/api/v1/bank-files", sent).json() == {"stored": 5}
    bank["file"].seek(0)
    assert member.post("/api/v1/banks/repair/versions", bank).status_code == 201
    assert member.send("POST", "/bank-files/missing", {"digests": names}).json() == {"missing": []}
    lie = {"files": [SimpleUploadedFile("0" * 64, b"x")]}
    assert member.post("/api/v1/bank-files", lie).status_code == 422


def test_another_teams_files_are_not_told_of(as_token, outsider, other_team, version):
    stranger = as_token(outsider, "admin", team=other_team)
    names = list(BankFile.objects.values_list("digest", flat=True))
    assert sorted(stranger.send("POST", "/bank-files/missing", {"digests": names}).json()["missing"]) == sorted(names)
    for path in ("anchors", "findings", "task-files?task=demo/a"):
        assert stranger.get(f"{BASE}/{path}").status_code == 404


def test_anchors_over_rest(member, version, as_token, viewer):
    assert member.get(f"{BASE}/anchors").json()["state"] == "unproven"
    assert member.send("POST", f"{PATH}/anchors/start").json()["state"] == "proving"
    keys, agents = ("demo/a", "demo/b"), ("oracle", "nop")
    results = [{"task": key, "agent": agent, "score": float(agent == "oracle"), "floor": 0.35} for key in keys for agent in agents]
    assert as_token(viewer, "read").send("POST", f"{PATH}/anchors", {"results": results}).status_code == 403
    found = member.send("POST", f"{PATH}/anchors", {"results": results, "finished": True}).json()
    assert (found["state"], found["missing"], found["proving_since"]) == ("proven", 0, None)
    assert [row["task"] for row in found["rows"]] == ["demo/a", "demo/b"]
    assert found["rows"][0]["oracle"]["score"] == 1.0
    bad = member.send("POST", f"{PATH}/anchors", {"results": [{"task": "demo/a", "agent": "oracle", "score": "1"}]})
    assert bad.status_code == 422 and bad.json()["errors"][0]["pointer"] == "/results/score"
    taken = member.send("POST", f"{PATH}/quarantine", {"task": "demo/b", "reason": "flaky"}).json()
    assert [row["quarantine_reason"] for row in taken["rows"]] == ["", "flaky"]
    assert member.send("POST", f"{PATH}/release", {"task": "demo/b"}).json()["rows"][1]["quarantined_at"] is None


def test_a_task_is_downloaded(member, version):
    answer = member.get(f"{BASE}/task-files?task=demo/a")
    assert answer.status_code == 200 and 'filename="a.tar"' in answer["Content-Disposition"]
    assert member.get(f"{BASE}/task-files?task=demo/z").status_code == 404


# ---------------------------------------------------------------- pages
@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def test_the_page_shows_counts_floors_hints_findings_and_remedies(browser, version):
    page = browser.get(reverse("bank", args=["repair"])).content.decode()
    assert "2 of 3 tasks" in page and "1 blocked" in page
    assert "over 3 tasks with a recorded floor" in page and "0 of 3 tasks have one" in page
    assert "Import with --compile, or compile the bank first" in page
    assert "detail of E04 &lt;b&gt;" in page and "detail of E04 <b>" not in page
    assert 'class="state state-unproven"' in page and "Training and a model" in page
    only = browser.get(reverse("bank", args=["repair"]), {"flag": "E04"}).content.decode()
    assert "<code>demo/c</code> <span" in only and "<code>demo/a</code> <span" not in only


def cells(page: str, key: str) -> list[str]:
    """Floor, straw, nop and oracle in a task's row of the anchors; what breaks the gate has a "!" before it."""
    row = re.search(rf'<th scope="row"><code>{key}</code>.*?</tr>', page, re.DOTALL).group()
    found = [cell.replace('<span class="problem-word"', "!<span") for cell in re.findall(r'<td class="num">(.*?)</td>', row, re.DOTALL)]
    return [" ".join(re.sub("<[^>]*>", "", cell).split()) for cell in found]


def test_each_task_has_its_floor_and_beside_it_what_was_proven(browser, team, owner):
    native = {"floor_native": 0.35, "floor_container": 0.0, "floor": 0.0}
    tasks = [repair_task("demo/a"), repair_task("demo/b", floor_native=None), repair_task("demo/d", codes=("W03",), **native)]
    version = repair_version(team, owner, tasks)
    path = reverse("bank", args=["repair"])
    page = browser.get(path).content.decode()
    assert [cells(page, key) for key in ("demo/a", "demo/b", "demo/d")] == [
        ["0.350", "–", "–", "–"],
        ["–", "–", "–", "–"],
        ["W03 0.000", "–", "–", "–"],
    ]
    prove(version)
    anchors.record_anchor(version, "demo/d", "nop", good("nop", floor=0.0))
    page = browser.get(path).content.decode()
    assert cells(page, "demo/a") == ["0.350", "0.350", "0.000", "1.000"]
    assert cells(page, "demo/b") == ["–", "0.350", "0.000", "1.000"], "a floor that the bank does not know is not compared"
    assert cells(page, "demo/d") == ["W03 0.000", "0.000", "0.000", "–"] and "problem-word" not in page


def test_what_breaks_the_gate_is_marked_where_it_stands(browser, version, as_token, owner):
    anchors.record_anchor(version, "demo/a", "nop", good("nop", floor=0.36))
    anchors.record_anchor(version, "demo/a", "oracle", good(score=None, raw_reward=None, floor=None, reason="verifier died"))
    anchors.record_anchor(version, "demo/b", "oracle", good(score=0.5))
    anchors.record_anchor(version, "demo/b", "nop", good("nop", score=0.1))
    page = browser.get(reverse("bank-anchors", args=["repair", 1])).content.decode()
    assert cells(page, "demo/a") == ["0.350", "! 0.360", "0.000", "! –"]
    assert cells(page, "demo/b") == ["0.350", "0.350", "! 0.100", "! 0.500"]
    assert page.count("the verifier reports a floor of 0.36, the bank says 0.35") == 1 and "verifier died" in page
    rows = as_token(owner, "read").get("/api/v1/banks/repair/versions/1/anchors").json()["rows"]
    assert {row["task"]: (row["floor"], row["straw"]) for row in rows} == {"demo/a": (0.35, 0.36), "demo/b": (0.35, 0.35)}


def test_the_anchors_part_asks_again_only_while_they_run(browser, version, owner):
    path = reverse("bank-anchors", args=["repair", 1])
    assert "every 3s" not in browser.get(path).content.decode()
    start_proving(owner, version)
    assert "every 3s" in browser.get(path).content.decode()


def test_the_anchors_are_proven_and_stopped_on_the_page(browser, version, viewer, fresh_buckets):
    part, prove = reverse("bank-anchors", args=["repair", 1]), reverse("bank-prove", args=["repair", 1])
    assert "Prove anchors" in browser.get(part).content.decode()
    started = browser.post(prove, form(), headers={"HX-Request": "true"}).content.decode()
    assert "every 3s" in started and "0 of 4 episodes ended" in started and "Prove anchors" not in started
    again = browser.post(prove, form(), headers={"HX-Request": "true"})
    assert again.status_code == 422 and "its anchors run since" in again.content.decode()
    stopped = browser.post(reverse("bank-stop-proving", args=["repair", 1]), headers={"HX-Request": "true"}).content.decode()
    assert "every 3s" not in stopped and "was stopped" in stopped and "Prove anchors" in stopped
    assert browser.post(reverse("bank-stop-proving", args=["repair", 1])).status_code == 302, "there is nothing to stop"
    browser.force_login(viewer)
    assert "Prove anchors" not in browser.get(part).content.decode() and browser.post(prove, form()).status_code == 403


def test_why_a_proof_did_not_come_to_its_end_is_said(browser, version, owner):
    start_proving(owner, version)
    anchors.proofs(version).update(state="failed", reason="the engine of node <b> does not answer; restart it")
    page = browser.get(reverse("bank-anchors", args=["repair", 1])).content.decode()
    assert "the engine of node &lt;b&gt; does not answer; restart it" in page and "every 3s" not in page


def test_a_broken_task_is_quarantined_on_the_page(browser, version):
    anchors.record_anchor(version, "demo/b", "oracle", good(score=0.5))
    path = reverse("bank-quarantine", args=["repair", 1])
    answer = browser.post(path, {"task": "demo/b", "reason": " "}, headers={"HX-Request": "true"})
    assert answer.status_code == 422 and "say why" in answer.content.decode()
    assert browser.post(path, {"task": "demo/b", "reason": "<i>flaky</i>"}).status_code == 302
    page = browser.get(reverse("bank-anchors", args=["repair", 1])).content.decode()
    assert "&lt;i&gt;flaky&lt;/i&gt;" in page and "oracle scored 0.5" in page
    browser.post(path, {"task": "demo/b", "release": "1"})
    assert Task.objects.get(key="demo/b").quarantined_at is None


def test_another_team_sees_neither_part_nor_verb(client, outsider, version):
    client.force_login(outsider)
    assert client.get(reverse("bank-anchors", args=["repair", 1])).status_code == 404
    assert client.post(reverse("bank-quarantine", args=["repair", 1]), {"task": "demo/a", "reason": "x"}).status_code == 404


def test_the_claim_says_where_files_are_and_what_is_quarantined(client, attempt, version, owner):
    from controlplane.runs.control import _bank

    anchors.quarantine(owner, version, "demo/b", "flaky")
    found = _bank(attempt)
    assert found["tasks_url"].endswith(f"/api/ingest/{attempt.pk}/tasks") and found["quarantined"] == ["demo/b"]
    assert json.dumps(found)
