"""Warming the nodes for a repair bank: a run a node, refused while one runs, judged by its set-ups, on the page and over REST."""

import json

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse
from django.utils import timezone

from controlplane.banks import anchors, warming
from controlplane.banks.models import WarmedTask as Row
from controlplane.cluster.models import Node
from controlplane.evals import launching
from controlplane.runs import attempts, scheduling
from controlplane.runs.models import Run
from controlplane.runs.services import request_stop
from runner.contract.parse import InvalidDocument
from runner.contract.states import AttemptState, RunState
from runner.contract.warming import WarmedTask
from tests.controlplane.banks.repair import repair_task, repair_version
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
def nodes():
    seen = {"address": "10.0.0.1", "cpus": 2, "last_seen_at": timezone.now()}
    return [Node.objects.create(name=name, resource=f"assay_node:{name}", **seen) for name in ("one", "two")]


def told(task, seconds=16.0, **more):
    return {
        "task": task,
        "env_setup_seconds": seconds,
        "verifier_seconds": 2.5,
        "termination": "finished",
        "score": 0.0,
        "passes": 1,
    } | more


def record(run, *items):
    warming.record_warmed(run, [WarmedTask.model_validate(item) for item in items])


def of(version, node):
    return next(found for found in warming.nodes(version) if found.node == node)


# ---------------------------------------------------------------- starting
def test_every_ready_node_gets_a_run_of_its_own_which_is_placed_there(owner, team, version, nodes):
    Node.objects.create(name="tired", address="10.0.0.3", cpus=64, state="cordoned", last_seen_at=timezone.now())
    runs = launching.start_warming(owner, version)
    assert [(run.method, run.total_steps, run.state) for run in runs] == [("warming", 2, RunState.QUEUED)] * 2
    config = json.loads(bytes(runs[0].config))
    assert (config["agent"], config["environment"]["max_concurrent_episodes"]) == ("warming", 4)
    placed = {attempt.run_id: attempt.grant.shares.get().node.name for attempt in scheduling.place_waiting()}
    assert placed == {runs[0].pk: "one", runs[1].pk: "two"}
    assert [(found.node, found.state) for found in warming.nodes(version)] == [("one", "warming"), ("two", "warming")]


def test_a_full_node_is_waited_for_and_no_other_takes_its_place(owner, team, version, nodes):
    Node.objects.filter(name="one").update(cpus=1)
    launching.launch(owner, team, {"name": "busy", "agent": "oracle", "resources": {"cpus": 1.0, "node": "one"}})
    assert len(scheduling.place_waiting()) == 1
    first, second = launching.start_warming(owner, version)
    assert [attempt.run_id for attempt in scheduling.place_waiting()] == [second.pk]
    first.refresh_from_db()
    assert first.waiting == "needs 1.0 CPU, 0.0 free of 1.0; run busy holds 1.0 on node one"
    Node.objects.filter(name="one").update(state="gone")
    scheduling.place_waiting()
    first.refresh_from_db()
    assert first.waiting == "waits for node one, which is not ready"


def test_a_second_warming_is_refused_while_one_runs(owner, team, version, nodes, other_team, outsider):
    first, second = launching.start_warming(owner, version)
    with pytest.raises(ValidationError, match=r"node (one|two) is being warmed for repair@1 since \d\d:\d\d; wait for it or stop it first"):
        launching.start_warming(owner, version)
    document = {"name": "w", "agent": "warming", "environment": {"type": "harbor", "bank": "repair"}, "resources": {"node": "one"}}
    with pytest.raises(InvalidDocument, match="node one is being warmed"):
        launching.launch(owner, team, document)
    theirs = repair_version(other_team, outsider)
    with pytest.raises(ValidationError) as refused:
        launching.start_warming(outsider, theirs)
    assert "is being warmed for another team since" in refused.value.messages[0] and "repair@1" not in refused.value.messages[0]
    assert Run.objects.filter(method="warming").count() == 2
    request_stop(owner, first)
    request_stop(owner, second)
    assert launching.start_warming(outsider, theirs)


def test_what_cannot_be_warmed(owner, viewer, team, version, nodes):
    with pytest.raises(PermissionDenied):
        launching.start_warming(viewer, version)
    with pytest.raises(ValidationError, match="no task can run"):
        launching.start_warming(owner, repair_version(team, owner, [repair_task("demo/a", codes=("E04",))], slug="blocked"))
    Node.objects.update(state="cordoned")
    with pytest.raises(ValidationError, match="no node is ready"):
        launching.start_warming(owner, version)
    wrong = {"name": "w", "agent": "warming", "environment": {"type": "harbor", "bank": "repair", "max_concurrent_episodes": 8}}
    found = {error.pointer: error.message for error in launching.check(owner, team, wrong).errors}
    assert "say which" in found["/resources/node"]
    wrong["resources"] = {"node": "three"}
    found = {error.pointer: error.message for error in launching.check(owner, team, wrong).errors}
    assert "look like broken tasks" in found["/environment/max_concurrent_episodes"]
    wrong["environment"]["max_concurrent_episodes"] = 4
    found = {error.pointer: error.message for error in launching.check(owner, team, wrong).errors}
    assert "there is no node three; the cluster has one, two" in found["/resources/node"]


def test_tasks_that_need_a_gpu_are_warmed_where_there_is_one(owner, team, nodes):
    version = repair_version(team, owner, [repair_task("demo/a", gpus=1), repair_task("demo/b")])
    Node.objects.filter(name="two").update(gpus=2)
    assert [run.total_steps for run in launching.start_warming(owner, version)] == [1, 2]


# ---------------------------------------------------------------- judging
def test_a_node_is_judged_by_its_set_ups_and_the_second_pass_mends(owner, version, nodes):
    one, two = launching.start_warming(owner, version)
    record(one, told("demo/a", 55.0), told("demo/b", 3.0, termination="verifier_error", score=None, reason="reward_missing: no file"))
    found = of(version, "one")
    assert (found.state, found.warm_count, len(found.cold)) == ("warming", 0, 2)
    record(one, told("demo/a", 12.0, passes=2), told("demo/b", 3.0, termination="verifier_error", score=None, passes=2))
    record(two, told("demo/a", 40.0), told("demo/b", 40.1))
    Run.objects.filter(pk__in=(one.pk, two.pk)).update(state=RunState.SUCCEEDED)
    found = of(version, "one")
    assert (found.state, found.warm_count, found.repaired, found.slowest.task.key) == ("cold", 1, 1, "demo/a")
    assert [(row.task.key, row.why_cold) for row in found.cold] == [("demo/b", "ended as verifier_error")]
    found = of(version, "two")
    assert [(row.task.key, row.why_cold) for row in found.cold] == [("demo/b", "set-up took 40.1 s, over 40 s")]
    record(two, told("demo/b", 20.0, passes=2))
    found = of(version, "two")
    assert (found.state, found.repaired) == ("warm", 1)
    assert Row.objects.count() == 4, "a later pass replaces an earlier one"


def test_the_newest_warming_of_each_node_counts(owner, version, nodes):
    for run in launching.start_warming(owner, version):
        record(run, told("demo/a", 90.0), told("demo/b", 90.0))
        Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED)
    assert [found.state for found in warming.nodes(version)] == ["cold", "cold"]
    Node.objects.filter(name="two").update(state="gone")
    [again] = launching.start_warming(owner, version)
    record(again, told("demo/a"), told("demo/b"))
    Run.objects.filter(pk=again.pk).update(state=RunState.SUCCEEDED)
    assert [(found.node, found.state) for found in warming.nodes(version)] == [("one", "warm"), ("two", "cold")]


def test_a_warming_whose_driver_is_gone_says_so(owner, version, nodes):
    Node.objects.filter(name="two").delete()
    [run] = launching.start_warming(owner, version)
    for _ in range(3):
        [attempt] = scheduling.place_waiting()
        attempts.end(attempt, AttemptState.LOST, "the driver is gone")
        attempt.grant.state = "released"
        attempt.grant.save()
    assert of(version, "one").state == "lost" and launching.start_warming(owner, version)


# ---------------------------------------------------------------- the nodes' door
def test_a_node_tells_whole_or_not_at_all(client, owner, team, version, nodes):
    run = launching.start_warming(owner, version)[0]
    attempt = make_attempt(run)
    path, bearer = f"/api/ingest/{attempt.pk}/warmed", {"HTTP_AUTHORIZATION": f"Bearer {attempt.token}"}

    def post(body, **more):
        return client.post(path, body, content_type="application/json", **more)

    assert post({"results": []}).status_code == 401
    digest = version.tasks.get(key="demo/a").payload["task_digest"]
    good = told("demo/a", task_digest=digest)
    for wrong in (
        told("demo/z"),
        told("demo/b", passes=3),
        told("demo/b", "1"),
        told("demo/b", task_digest="0" * 64),
        told("demo/b", termination="x"),
    ):
        assert post({"results": [good, wrong]}, **bearer).status_code == 400
    assert post({"results": 3}, **bearer).status_code == 400 and not Row.objects.exists()
    assert post({"results": [good]}, **bearer).json() == {"taken": 1}
    assert post({"results": [good]}, **bearer).status_code == 200 and Row.objects.count() == 1
    other = make_attempt(make_run(team, owner=owner, bank_version=version))
    refused = client.post(
        f"/api/ingest/{other.pk}/warmed", {"results": [good]}, content_type="application/json", HTTP_AUTHORIZATION=f"Bearer {other.token}"
    )
    assert refused.status_code == 400 and "warms no node" in refused.json()["detail"]


# ---------------------------------------------------------------- REST and pages
@pytest.fixture
def member(as_token, teammate):
    return as_token(teammate, "submit")


BASE = "/banks/repair/versions/1/warmth"


def test_warmth_over_rest(member, version, nodes, as_token, outsider, other_team):
    assert [(row["node"], row["state"], row["run"]) for row in member.get(f"/api/v1{BASE}").json()] == [
        ("one", "unknown", None),
        ("two", "unknown", None),
    ]
    first, second = (member.send("POST", f"{BASE}/start", headers={"Idempotency-Key": "k0"}) for _ in range(2))
    started = first.json()
    assert second.json() == started and Run.objects.filter(method="warming").count() == 2
    assert [(row["node"], row["state"]) for row in started] == [("one", "warming"), ("two", "warming")]
    keyed = [member.send("POST", f"{BASE}/start", headers={"Idempotency-Key": "k1"}).status_code for _ in range(2)]
    assert keyed == [422, 422], "a refusal is no answer to keep"
    again = member.send("POST", f"{BASE}/start")
    assert again.status_code == 422 and "is being warmed" in again.content.decode()
    run = Run.objects.get(pk=started[0]["run"])
    record(run, told("demo/a", 50.0), told("demo/b"))
    Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED)
    row = member.get(f"/api/v1{BASE}").json()[0]
    assert (row["state"], row["warm_count"], row["repaired"]) == ("cold", 1, 0)
    assert [(task["task"], task["why_cold"]) for task in row["rows"]] == [("demo/a", "set-up took 50.0 s, over 40 s"), ("demo/b", "")]
    assert as_token(outsider, "admin", team=other_team).get(f"/api/v1{BASE}").status_code == 404


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def test_the_nodes_are_warmed_and_stopped_on_the_page(browser, version, nodes, viewer, fresh_buckets):
    part, warm, stop = (reverse(name, args=["repair", 1]) for name in ("bank-warmth", "bank-warm", "bank-stop-warming"))
    whole = browser.get(reverse("bank", args=["repair"])).content.decode()
    assert "Warm nodes" in whole and "never warmed" in whole and "every 3s" not in browser.get(part).content.decode()
    started = browser.post(warm, form(), headers={"HX-Request": "true"}).content.decode()
    assert "every 3s" in started and "0 of 2" in started and "Stop warming" in started
    again = browser.post(warm, form(), headers={"HX-Request": "true"})
    assert again.status_code == 422 and "wait for it or stop it first" in again.content.decode()
    browser.force_login(viewer)
    assert "Stop warming" not in browser.get(part).content.decode()
    assert browser.post(warm, form()).status_code == 403 and browser.post(stop).status_code == 403


def test_a_form_that_is_sent_again_warms_and_proves_once(browser, owner, version, nodes, fresh_buckets):
    """Not even when what the first one started has ended meanwhile."""
    for name, method, count in (("bank-warm", "warming", 2), ("bank-prove", "anchors", 1)):
        path, sent = reverse(name, args=["repair", 1]), form()
        for _ in range(2):
            assert browser.post(path, sent).status_code == 302
            for run in Run.objects.filter(state=RunState.QUEUED):
                request_stop(owner, run)
        assert Run.objects.filter(method=method).count() == count
        assert browser.post(path).status_code == 400, "without a token"


def test_the_page_says_what_is_slow_what_failed_and_what_was_mended(browser, owner, version, nodes):
    one, two = launching.start_warming(owner, version)
    record(one, told("demo/a", 61.0, passes=2), told("demo/b", 7.25, passes=2))
    Run.objects.filter(pk=one.pk).update(state=RunState.SUCCEEDED)
    Run.objects.filter(pk=two.pk).update(state=RunState.FAILED, reason="the engine of node <b> does not answer; restart it")
    page = browser.get(reverse("bank-warmth", args=["repair", 1])).content.decode()
    assert "set-up took 61.0 s, over 40 s" in page and "1 of 2" in page and "61.0 s" in page and "every 3s" not in page
    assert "the engine of node &lt;b&gt; does not answer" in page
    assert browser.post(reverse("bank-stop-warming", args=["repair", 1])).status_code == 302, "there is nothing to stop"


def test_without_a_ready_node_the_page_says_what_to_do(browser, owner, version, nodes):
    path = reverse("bank-warmth", args=["repair", 1])
    assert "disabled" not in browser.get(path).content.decode()
    for run in launching.start_warming(owner, version):
        request_stop(owner, run)
    Node.objects.filter(name="two").update(state="cordoned")
    page = browser.get(path).content.decode()
    assert page.count("not ready") == 1 and "disabled" not in page and "No node is ready" not in page
    Node.objects.update(state="cordoned")
    page = browser.get(path).content.decode()
    assert page.count("not ready") == 2, "what they were found to be stays"
    assert "No node is ready" in page and reverse("cluster") in page and '<button class="small" disabled>' in page
    Run.objects.filter(method="warming").delete()
    page = browser.get(path).content.decode()
    assert "No node is ready" in page and "<table" not in page


def test_a_warming_is_among_no_evaluations(browser, owner, version, nodes):
    run = launching.start_warming(owner, version)[0]
    assert run.name not in browser.get(reverse("evaluate")).content.decode()
    shown = browser.get(reverse("run-evaluation", args=[run.pk])).content.decode()
    assert "This run warms node one for" in shown and "?again=" not in shown
    assert anchors.summary(version).state == "unproven"
