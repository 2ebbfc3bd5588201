"""The REST of runs as its callers see it. Who may call what is in the permission matrix; here is what it does."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.runs.models import Run
from runner.contract.canonical import digest
from tests.controlplane.factories import make_attempt, make_run


@pytest.fixture
def caller(as_token, owner):
    return as_token(owner, "submit")


def post(caller, path, body=None, **headers):
    return caller.send("POST", path, body, **headers)


@pytest.fixture
def launched(caller, bank, document):
    """launched(**changes) → the answer's run."""

    def launched(**changes):
        response = caller.send("POST", "/runs", {**document, **changes})
        assert response.status_code == 201, response.content
        return response.json()

    return launched


# ---------------------------------------------------------------- launch and check
def test_a_launch_answers_with_the_queued_run(launched):
    run = launched()
    assert (run["state"], run["team"], run["project"], run["owner"], run["attempt"], run["latest"]) == ("queued", "physics", "default", "olga", None, {})
    assert Run.objects.get(pk=run["id"]).config_hash == run["config_hash"]


def test_a_refused_document_is_a_problem_with_pointers(caller, bank, document):
    bad = {**document, "environment": {"type": "quiz", "domains": ["alchemy"]}, "model": {"max_length": 128, "source": {"type": "path", "path": "/nowhere"}}}
    response = caller.send("POST", "/runs", bad)
    assert response.status_code == 422 and response["Content-Type"] == "application/problem+json"
    assert {error["pointer"] for error in response.json()["errors"]} == {"/environment/domains/0", "/model/source/path"}
    assert not Run.objects.exists()


def test_the_same_document_gives_the_same_bytes_through_check_and_launch(caller, bank, document, launched):
    checked = caller.send("POST", "/runs/check", document).json()
    run = launched()
    config = caller.send("GET", f"/runs/{run['id']}/config").content
    assert digest(config) == checked["config_hash"] == run["config_hash"]
    assert json.loads(config) == checked["config"]


def test_a_check_says_errors_and_costs_without_writing(caller, bank, document, node):
    found = caller.send("POST", "/runs/check", {**document, "resources": {"gpus": 4}}).json()
    assert found["config"] is None and found["config_hash"] is None
    assert found["errors"][0]["pointer"] == "/resources/gpus" and found["errors"][0]["value"] == 4
    assert found["forecast"]["work"]["steps"] == 10
    assert not Run.objects.exists()


def test_a_schema_error_has_no_forecast(caller, bank, document):
    found = caller.send("POST", "/runs/check", {**document, "stages": []}).json()
    assert found["forecast"] is None and found["errors"][0]["pointer"] == "/stages"


def test_two_tabs_that_submit_once_make_one_run(caller, bank, document):
    first, second = (caller.send("POST", "/runs", document, headers={"Idempotency-Key": "once"}) for _ in range(2))
    assert first.json() == second.json() and Run.objects.count() == 1
    other = caller.send("POST", "/runs", {**document, "seed": 5}, headers={"Idempotency-Key": "once"})
    assert other.status_code == 409 and Run.objects.count() == 1


# ---------------------------------------------------------------- reading
def test_a_list_is_filtered_and_sorted(caller, launched):
    launched(name="alpha"), launched(name="beta", experiment="lr"), launched(name="gamma", experiment="lr")
    names = lambda query: [run["name"] for run in caller.send("GET", f"/runs?{query}").json()["items"]]
    assert names("") == ["gamma", "beta", "alpha"]
    assert names("sort=name") == ["alpha", "beta", "gamma"]
    assert names("experiment=lr&search=bet") == ["beta"]
    assert names("state=active") == [] and names("state=active&state=queued&sort=-name") == ["gamma", "beta", "alpha"]
    assert caller.send("GET", "/runs?sort=colour").status_code == 422
    assert caller.send("GET", "/runs?state=nonsense").status_code == 422


def test_a_list_is_paged_to_its_end(caller, launched):
    made = {launched()["id"] for _ in range(5)}
    seen, cursor = [], ""
    while cursor is not None:
        page = caller.send("GET", f"/runs?limit=2&cursor={cursor}" if cursor else "/runs?limit=2").json()
        seen += [run["id"] for run in page["items"]]
        cursor = page["next"]
    assert len(seen) == 5 and set(seen) == made


def test_a_list_costs_the_same_for_one_run_and_for_thirty(caller, team, owner):
    def cost():
        with CaptureQueriesContext(connection) as queries:
            assert caller.send("GET", "/runs").status_code == 200
        return len(queries)

    make_attempt(make_run(team, owner=owner))
    # The first call also notes that the token was used.
    cost()
    one = cost()
    for _ in range(29):
        run = make_run(team, owner=owner)
        make_attempt(run, 1, state="lost"), make_attempt(run, 2)
    assert cost() == one <= 12


def test_one_run_comes_with_attempts_document_and_what_it_changed(caller, launched, document):
    parent = launched()
    clone = caller.send("POST", f"/runs/{parent['id']}/clone", {"changes": {"/seed": 7}}).json()
    run = caller.send("GET", f"/runs/{clone['id']}").json()
    assert run["parent"] == parent["id"] and run["attempts"] == []
    assert run["changes"] == [{"pointer": "/seed", "before": 0, "after": 7}]
    attempt = make_attempt(Run.objects.get(pk=clone["id"]), state="lost", reason="head was replaced", claim_hash="c" * 64)
    run = caller.send("GET", f"/runs/{clone['id']}").json()
    assert run["attempts"][0]["reason"] == "head was replaced" and run["attempts"][0]["grant"] == "none"
    assert attempt.token_hash not in json.dumps(run) and attempt.claim_hash not in json.dumps(run)


def test_the_log_of_a_run_is_oldest_first(caller, launched):
    run = launched()
    caller.send("POST", f"/runs/{run['id']}/stop")
    events = caller.send("GET", f"/runs/{run['id']}/events").json()["items"]
    assert [(event["kind"], event["data"].get("to")) for event in events] == [("run_state", "queued"), ("run_state", "stopped")]
    assert events[1]["actor"] == "olga"


def test_differences_show_only_what_differs(caller, launched):
    first = launched()
    second = launched(name="second", checkpoints={"every_steps": 5})
    third = launched(name="third", model={"max_length": 128, "adapter": {"type": "lora", "rank": 4}})
    found = caller.send("GET", "/runs/differences?" + "&".join(f"ids={run['id']}" for run in (third, first, second))).json()
    assert [run["name"] for run in found["runs"]] == ["third", "first", "second"]
    fields = {field["pointer"]: field for field in found["fields"]}
    assert fields["/checkpoints/every_steps"]["values"] == [None, None, 5]
    assert fields["/model/adapter/rank"] == {"pointer": "/model/adapter/rank", "values": [4, None, None], "present": [True, False, False]}
    assert "/seed" not in fields


def test_differences_take_two_to_ten_runs_of_the_team(caller, launched, other_team):
    run = launched()
    assert caller.send("GET", f"/runs/differences?ids={run['id']}").status_code == 422
    assert caller.send("GET", f"/runs/differences?ids={run['id']}&ids={run['id']}").status_code == 422
    assert caller.send("GET", f"/runs/differences?ids={run['id']}&ids={make_run(other_team).pk}").status_code == 404


# ---------------------------------------------------------------- verbs
def test_stop_resume_and_retry_say_why_not(caller, launched):
    run = launched()
    assert caller.send("POST", f"/runs/{run['id']}/stop").json()["state"] == "stopped"
    again = caller.send("POST", f"/runs/{run['id']}/stop")
    assert again.status_code == 409 and "only a waiting or active run can be stopped" in again.json()["detail"]
    resumed = caller.send("POST", f"/runs/{run['id']}/resume", {"checkpoint": None})
    assert resumed.status_code == 409 and "retry it from the start" in resumed.json()["detail"]
    assert caller.send("POST", f"/runs/{run['id']}/retry").json()["state"] == "queued"
    assert caller.send("POST", f"/runs/{run['id']}/retry").status_code == 409


def test_a_finished_run_is_cloned_and_not_resumed(caller, launched):
    run = launched()
    Run.objects.filter(pk=run["id"]).update(state="succeeded")
    for verb in ("resume", "retry"):
        refused = caller.send("POST", f"/runs/{run['id']}/{verb}", {"checkpoint": None} if verb == "resume" else None)
        assert refused.status_code == 409 and "clone it with more steps" in refused.json()["detail"]


def test_a_clone_that_leads_nowhere_is_refused_at_its_field(caller, launched):
    run = launched()
    refused = caller.send("POST", f"/runs/{run['id']}/clone", {"changes": {"/stages/7/steps": 3}})
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/stages/7/steps"
    refused = caller.send("POST", f"/runs/{run['id']}/clone", {"changes": {"/stages/0/group_size": 3}})
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/stages/0/group_size"


def test_a_clone_keeps_pins_unless_their_subject_changed(caller, launched, team):
    from controlplane.runs.services import clone_document
    from tests.controlplane.runs.conftest import make_bank

    run = Run.objects.get(pk=launched()["id"])
    make_bank(team, slug="other", digest="f" * 64)
    kept = clone_document(run, {"/seed": 3})
    assert kept["environment"]["version"] == "b" * 64 and kept["model"]["source"]["revision"]
    moved = clone_document(run, {"/environment/bank": "other", "/model/source/name": "smollm2-135m-instruct"})
    assert moved["environment"]["version"] is None and moved["model"]["source"]["revision"] is None
    clone = caller.send("POST", f"/runs/{run.pk}/clone", {"changes": {"/environment/bank": "other"}})
    assert Run.objects.get(pk=clone.json()["id"]).bank_version.digest == "f" * 64


def test_priority_moves_a_waiting_run_and_only_that(caller, launched):
    run = launched()
    changed = caller.send("PATCH", f"/runs/{run['id']}", {"priority": 9}).json()
    assert changed["priority"] == 9 and changed["config_hash"] == run["config_hash"]
    assert caller.send("PATCH", f"/runs/{run['id']}", {"priority": 5000}).status_code == 422
    Run.objects.update(state="failed")
    assert caller.send("PATCH", f"/runs/{run['id']}", {"priority": 1}).status_code == 409


def test_tags_are_replaced_each_once(caller, launched):
    run = launched()
    changed = caller.send("PATCH", f"/runs/{run['id']}", {"tags": [" paper", "paper", "draft"]}).json()
    assert changed["tags"] == ["paper", "draft"] and changed["config_hash"] == run["config_hash"]
    assert [one["id"] for one in caller.send("GET", "/runs?tag=draft").json()["items"]] == [run["id"]]
    wrong = caller.send("PATCH", f"/runs/{run['id']}", {"tags": ["x" * 61]})
    assert wrong.status_code == 422 and "a tag has 1 to 60 characters" in wrong.json()["errors"][0]["message"]
    assert caller.send("PATCH", f"/runs/{run['id']}", {"tags": []}).json()["tags"] == []


def test_an_archived_run_leaves_the_list_and_comes_back(caller, launched):
    run = launched()
    assert caller.send("PATCH", f"/runs/{run['id']}", {"archived": True}).status_code == 409
    caller.send("POST", f"/runs/{run['id']}/stop")
    assert caller.send("PATCH", f"/runs/{run['id']}", {"archived": True}).json()["archived_at"]
    assert caller.send("GET", "/runs").json()["items"] == []
    assert caller.send("GET", "/runs?archived=true").json()["items"][0]["id"] == run["id"]
    assert caller.send("POST", f"/runs/{run['id']}/retry").status_code == 409
    assert caller.send("PATCH", f"/runs/{run['id']}", {"archived": False}).json()["archived_at"] is None


# ---------------------------------------------------------------- the cluster beside it
def test_the_queue_has_positions_over_all_teams_and_reasons(caller, launched, other_team, node):
    from django.utils import timezone

    make_run(other_team, state="queued", priority=50, queued_at=timezone.now())
    first, urgent = launched(name="first"), launched(name="urgent", priority=5)
    Run.objects.filter(pk=first["id"]).update(waiting="needs 2.0 CPUs, 0.0 free of 2.0")
    items = caller.send("GET", "/queue").json()["items"]
    assert [(item["name"], item["position"]) for item in items] == [("urgent", 2), ("first", 3)]
    assert items[1]["waiting"].startswith("needs 2.0 CPUs") and items[0]["run"] == urgent["id"]


def test_nodes_show_what_is_free_and_hide_other_teams_runs(caller, launched, node, ray, as_token, outsider, other_team):
    from tests.controlplane.runs.conftest import run_due

    run = launched()
    run_due()
    [shown] = caller.send("GET", "/nodes").json()["items"]
    assert (shown["cpus"], shown["free_cpus"]) == (2.0, 0.0)
    assert {share["run"] for share in shown["shares"]} == {run["id"]} and len(shown["shares"]) == 4
    [shown] = as_token(outsider, "read", team=other_team).send("GET", "/nodes").json()["items"]
    assert {share["run"] for share in shown["shares"]} == {None}
