"""An episode graded once more from what it delivered, and run again: what is asked of the nodes, and what of their word is believed."""

import json
import re

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse

from controlplane.episodes.models import Episode
from controlplane.episodes.services import record_events
from controlplane.evals import launching, regrading
from controlplane.evals.models import Evaluation
from controlplane.evals.services import record_evaluation
from controlplane.runs.models import Run
from controlplane.runs.paths import run_folder
from tests.controlplane.banks.repair import repair_version
from tests.controlplane.factories import make_attempt, make_event
from tests.controlplane.pages import form
from tests.runner.evaluation.test_results import line

pytestmark = pytest.mark.django_db
EPISODE, EVALUATION = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-0000000000e0"


@pytest.fixture
def ungraded(owner, team):
    """An evaluation's episode whose verifier failed, its deliveries kept; the evaluation's results are in."""
    repair_version(team, owner)
    run = launching.launch(owner, team, {"name": "n", "agent": "oracle", "selection": {"task_glob": "demo/a"}})
    attempt = make_attempt(run)
    evidence = {
        "rewards": {},
        "artifacts": f"{run_folder(run.pk)}/evaluation/jobs/a/artifacts",
        "delivered": ["/logs/artifacts/a.c"],
        "patch": "+ x",
    }
    facts = {"agent": "oracle", "phases": {"verifier": 2.0}, "node": "n1", "isolation": "strong"}
    record_events(
        attempt,
        [
            make_event(EPISODE, "started", task="demo/a", purpose="eval", evaluation=EVALUATION),
            make_event(EPISODE, "finished", termination="verifier_error", facts=facts),
            make_event(EPISODE, "graded", score=None, reason="reward_missing", evidence=evidence),
        ],
    )
    told = line(
        "demo/a", None, episode=EPISODE, sample=0, exception="reward_missing: no file", error_class="other", termination="verifier_error"
    )
    result = {"task": "demo/a", "score": None, "records": [told]}
    document = {"evaluation": EVALUATION, "label": "oracle", "step": 1, "protocol": {"a": 1}, "summary": {}, "results": [result]}
    record_evaluation(attempt, document)
    return Episode.objects.get(pk=EPISODE)


def graded(score=1.0, **more):
    evidence = {"rewards": {"reward": score, "equivalence_pass": 1, "floor": 0.35}, "artifacts": "/elsewhere", "delivered": []}
    return {
        "episode": EPISODE,
        "score": score,
        "reason": "reward 1",
        "checks": {"check_x": 1.0},
        "evidence": evidence,
        "grader": "verifier-separate",
        **more,
    }


def post(client, attempt, results):
    path = f"/api/ingest/{attempt.pk}/regrades"
    return client.post(path, {"results": results}, content_type="application/json", HTTP_AUTHORIZATION=f"Bearer {attempt.token}")


def test_a_new_grade_lifts_the_failure_and_reaches_the_evaluation(client, owner, ungraded):
    run = regrading.regrade(owner, ungraded)
    config = json.loads(bytes(run.config))
    assert (run.method, run.total_steps) == ("regrade", 1) and config["saved"][0]["artifacts"] == ungraded.evidence["artifacts"]
    answer = post(client, make_attempt(run), [graded()])
    assert answer.json() == {"taken": 1}
    found = Episode.objects.get(pk=EPISODE)
    assert (found.score, found.termination, found.grade_ordinal) == (1.0, "finished", 1)
    assert found.evidence["patch"] == "+ x" and found.evidence["artifacts"] == ungraded.evidence["artifacts"] and found.evidence["regraded"]
    [row] = Evaluation.objects.get().results.all()
    assert row.score == 1.0 and row.records[0]["success"] and row.records[0]["regraded"] and row.records[0]["error_class"] == "ok"
    assert Evaluation.objects.get().summary["overall"]["n_regraded"] == 1


def test_a_verifier_that_fails_again_says_nothing_new(client, owner, ungraded):
    run = regrading.regrade(owner, ungraded)
    assert post(client, make_attempt(run), [graded(None)]).json() == {"taken": 0}
    assert Episode.objects.get(pk=EPISODE).grade_ordinal == 0


def test_an_attempt_grades_only_what_it_was_asked_to(client, owner, team, ungraded):
    other = make_attempt(ungraded.run, number=2, state="succeeded")
    assert post(client, other, [graded()]).status_code == 400, "an evaluation is no regrade"
    asked = make_attempt(regrading.regrade(owner, ungraded))
    assert post(client, asked, [graded(episode="00000000-0000-4000-8000-00000000000b")]).status_code == 400
    assert post(client, asked, "none").status_code == 400
    assert Episode.objects.get(pk=EPISODE).score is None


@pytest.mark.parametrize("kept", ["", "/etc", "../../other"])
def test_what_was_not_kept_in_the_runs_folder_is_not_graded(owner, ungraded, kept):
    ungraded.evidence = {**ungraded.evidence, "artifacts": kept}
    with pytest.raises(ValidationError, match="cannot be graded again"):
        regrading.regrade(owner, ungraded)


def test_an_episode_runs_again_alone(owner, viewer, ungraded):
    with pytest.raises(PermissionDenied):
        regrading.run_again(viewer, ungraded)
    run = regrading.run_again(owner, ungraded)
    config = json.loads(bytes(run.config))
    assert (config["agent"], config["selection"]["task_glob"], run.total_steps) == ("oracle", "demo/a", 1)


def test_the_episodes_page_shows_how_it_went_and_has_both_buttons(client, owner, ungraded, fresh_buckets):
    client.force_login(owner)
    page = client.get(reverse("episode", args=[EPISODE])).content.decode()
    assert "Not graded: reward_missing" in page and "/logs/artifacts/a.c" in page and "Verifier" in page and "a container" in page
    for name in ("episode-regrade", "episode-again"):
        assert reverse(name, args=[EPISODE]) in page
        assert client.post(reverse(name, args=[EPISODE]), form()).url == reverse("episode", args=[EPISODE])
    assert Run.objects.count() == 3


@pytest.mark.parametrize("name", ["episode-regrade", "episode-again"])
def test_a_form_that_is_sent_twice_makes_one_run(client, owner, ungraded, fresh_buckets, name):
    """A double click, a slow network, the back button: each form acts once. The page that follows has a form of its own."""
    client.force_login(owner)
    path, here = reverse(name, args=[EPISODE]), reverse("episode", args=[EPISODE])

    def token():
        page = client.get(here).content.decode()
        return re.search(rf'action="{path}">.*?name="token" value="(\w{{32}})"', page)[1]

    first = token()
    assert [client.post(path, {"token": first}).url for _ in range(2)] == [here] * 2 and Run.objects.count() == 2
    assert "This was already asked for: demo/a is queued" in client.get(here).content.decode()
    assert client.post(path).status_code == 400 and Run.objects.count() == 2, "without a token"
    client.post(path, {"token": token()})
    assert Run.objects.count() == 3, "asked for once more on the page that followed"


def test_a_refused_regrade_leaves_its_token_free(client, owner, ungraded, fresh_buckets):
    client.force_login(owner)
    path, sent, kept = reverse("episode-regrade", args=[EPISODE]), form(), ungraded.evidence
    Episode.objects.filter(pk=EPISODE).update(evidence={**kept, "artifacts": ""})
    client.post(path, sent)
    assert "cannot be graded again" in client.get(reverse("episode", args=[EPISODE])).content.decode() and Run.objects.count() == 1
    Episode.objects.filter(pk=EPISODE).update(evidence=kept)
    client.post(path, sent)
    assert Run.objects.filter(method="regrade").count() == 1


@pytest.mark.parametrize(("verb", "method"), [("regrade", "regrade"), ("again", "evaluate oracle")])
def test_once_more_over_rest(as_token, owner, teammate, outsider, other_team, ungraded, verb, method, fresh_buckets):
    path, member = f"/episodes/{EPISODE}/{verb}", as_token(teammate, "submit")
    keyed = [member.send("POST", path, headers={"Idempotency-Key": "k1"}) for _ in range(2)]
    assert [answer.status_code for answer in keyed] == [201, 201] and keyed[0].json() == keyed[1].json()
    run = Run.objects.get(pk=keyed[0].json()["id"])
    assert (run.method, run.owner, run.total_steps, Run.objects.count()) == (method, teammate, 1, 2)
    assert member.send("POST", path).status_code == 201 and Run.objects.count() == 3
    assert as_token(owner, "read").send("POST", path).status_code == 403
    assert as_token(outsider, "admin", team=other_team).send("POST", path).status_code == 404
    Episode.objects.filter(pk=EPISODE).update(evidence={})
    if verb == "regrade":
        refused = member.send("POST", path)
        assert refused.status_code == 422 and "nothing that it delivered was kept; run it again" in refused.content.decode()
