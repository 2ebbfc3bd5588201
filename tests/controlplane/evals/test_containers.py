"""Evaluations in containers as they are read: files in the published layout, intervals, comparison under one protocol, and the pages."""

import json
import re
from uuid import uuid4

import pytest
from django.urls import reverse
from django.utils import timezone

from controlplane.cluster.models import Node
from controlplane.evals import forms, launching, results
from controlplane.evals.models import Evaluation
from controlplane.evals.services import record_evaluation
from controlplane.runs.models import Run
from runner.contract.evaluation_config import parse_evaluation
from tests.controlplane.banks.repair import repair_version
from tests.controlplane.factories import make_attempt
from tests.runner.evaluation.test_results import line

pytestmark = pytest.mark.django_db
SCORES = {"demo/a": 1.0, "demo/b": 0.25, "demo/<i>c": None}


@pytest.fixture
def version(team, owner):
    return repair_version(team, owner)


@pytest.fixture
def evaluated(owner, team, version):
    """evaluated(scores, name=…) → the run of an oracle's evaluation whose event has come."""
    made = []

    def make(scores=SCORES, name="how good", protocol="same"):
        given = {"kind": "evaluation", "name": name, "agent": "oracle"}
        run = launching.launch(owner, team, given)
        lines = {task: _line(task, score) for task, score in scores.items()}
        made.append(run)
        record_evaluation(
            make_attempt(run),
            {
                "evaluation": f"{len(made):08}-0000-4000-8000-000000000000",
                "label": "oracle",
                "step": len(lines),
                "protocol": {"made": protocol},
                "summary": {"overall": {"n_graded": 2, "n_trials": 3, "n_success": 1}, "config": {"agent": "oracle", "model": None}},
                "results": [{"task": task, "domain": "heat", "score": lines[task]["score"], "records": [lines[task]]} for task in lines],
            },
        )
        return run

    return make


def _line(task, score):
    episode = "00000000-0000-4000-8000-00000000000a"
    more = {"episode": episode, "sample": 0, "termination": "finished" if score is not None else "verifier_error", "delivered": ["/logs/x"]}
    return line(task, score, error_class="ok" if score is not None else "no_reward", **more)


@pytest.fixture
def member(as_token, owner):
    return as_token(owner, "submit")


def test_both_files_come_in_the_published_layout_with_intervals(member, evaluated):
    evaluated()
    path = f"/api/v1/evaluations/{Evaluation.objects.get().pk}"
    answer = member.get(f"{path}/results.jsonl")
    found = [json.loads(text) for text in answer.content.decode().splitlines()]
    assert [(item["task_name"], item["score"]) for item in found] == [("demo/<i>c", None), ("demo/a", 1.0), ("demo/b", 0.25)]
    summary = member.get(f"{path}/summary.json").json()
    overall = summary["overall"]
    assert (overall["n_trials"], overall["n_graded"], overall["mean_score"]) == (3, 2, 0.625)
    low, high = overall["mean_score_interval"]
    assert low <= 0.625 <= high and overall["pass_rate_interval"][0] < 0.5 < overall["pass_rate_interval"][1]
    assert (
        set(summary["by_family"]) == {"repair/sign/2d"} and summary["errors"] == {"no_reward": 1} and summary["config"]["agent"] == "oracle"
    )


def test_several_samples_of_a_task_are_one_draw():
    records = [line("a", 1.0), line("a", 0.0), line("b", 0.5), line("b", 0.5)]
    found = results.intervals(records)
    assert found["mean_score_interval"] == [0.5, 0.5] and found["pass_rate_interval"] == [0.0, 0.5]
    assert results.intervals([line("a", None)]) == {"mean_score_interval": None, "pass_rate_interval": None}


def test_only_evaluations_of_one_protocol_stand_beside_each_other(owner, evaluated, client):
    first = evaluated({"demo/a": 0.0, "demo/b": 0.0}, name="first")
    evaluated({"demo/a": 1.0, "demo/b": 1.0}, name="second")
    evaluated({"demo/a": 1.0, "demo/b": 1.0}, name="third", protocol="other")
    [row] = results.standing(owner, Evaluation.objects.get(run=first))
    assert row.comparison.after.run.name == "second" and row.sentence.startswith("Mean score rose by 1.000")
    client.force_login(owner)
    page = client.get(reverse("run-evaluation", args=[first.pk])).content.decode()
    assert "second" in page and "third" not in page and "Mean score rose by 1.000" in page


def test_the_page_tells_ungraded_from_zero_and_shows_hostile_names_as_text(owner, client, evaluated):
    run = evaluated()
    client.force_login(owner)
    assert client.get(reverse("run", args=[run.pk])).url == reverse("run-evaluation", args=[run.pk])
    page = client.get(reverse("run-evaluation", args=[run.pk])).content.decode()
    assert "ungraded" in page and "demo/&lt;i&gt;c" in page and "<i>c" not in page
    assert "0.625" in page and "repair/sign/2d" in page and "results.jsonl" in page and "Checkpoints" not in page


@pytest.mark.parametrize("page", ["run-header", "run-config", "run-audit", "run-logs", "run-checkpoints", "episodes"])
def test_every_part_of_its_run_opens(owner, client, evaluated, page):
    run = evaluated()
    client.force_login(owner)
    assert client.get(reverse(page, args=[run.pk])).status_code == 200


def test_the_launch_page_takes_no_evaluation(owner, client, member, evaluated):
    run = evaluated()
    client.force_login(owner)
    assert client.get(reverse("launch"), {"clone": run.pk}).status_code == 404
    assert member.send("POST", f"/runs/{run.pk}/clone", {"changes": {}}).status_code == 409


def test_a_stated_reason_stays_on_the_result(owner, team, client, version):
    environment = {"type": "harbor", "agent": {"type": "terminal"}, "unproven_reason": "the <b>verifier</b> is being mended"}
    model = {"source": {"type": "served", "name": "m", "url": "http://127.0.0.1:1/v1"}, "max_length": 16384}
    given = {"name": "n", "agent": "model", "model": model, "environment": environment, "sampling": {"max_new_tokens": 512}}
    run = launching.launch(owner, team, given)
    client.force_login(owner)
    page = client.get(reverse("run-evaluation", args=[run.pk])).content.decode()
    assert "were not proven when this began: the &lt;b&gt;verifier&lt;/b&gt; is being mended" in page and "No result yet" in page


# ---------------------------------------------------------------- the form
def post_form(client, token="", **typed):
    return client.post(reverse("evaluate"), {"token": token or uuid4().hex, "bank": "repair", "agent": "oracle", **typed})


def test_the_form_launches_and_lists(owner, client, version, fresh_buckets):
    client.force_login(owner)
    assert "No evaluation yet" in client.get(reverse("evaluate")).content.decode()
    answer = post_form(client, per_family="1", split="eval", samples="3")
    run = Run.objects.get(kind="evaluation")
    assert answer.url == reverse("run-evaluation", args=[run.pk]) and run.total_steps == 3 and run.name == "oracle on repair"
    assert "oracle on repair" in client.get(reverse("evaluate")).content.decode()
    again = client.get(reverse("evaluate"), {"again": run.pk}).content.decode()
    assert (
        'name="per_family" value="1"' in again and '<option value="oracle" selected>' in again and '<option value="eval" selected>' in again
    )


def checked(client, **typed):
    return " ".join(client.post(reverse("evaluate-check"), {"bank": "repair", "agent": "oracle", **typed}).content.decode().split())


def test_the_form_says_what_it_comes_to_before_anything_is_queued(owner, client, version):
    client.force_login(owner)
    assert "3 episodes: 1 task × 3, 4 at once." in checked(client, per_family="1", split="eval", samples="3")
    assert "must be a whole number" in checked(client, samples="three")
    assert "no such bank" in checked(client, bank="other")
    unchosen = checked(client, agent="terminal")
    assert "Choose a model" in unchosen and "/model" not in unchosen
    assert "/model/source" in checked(client, agent="terminal", model="nothing:here")
    assert not Run.objects.exists()


def test_the_form_warns_of_nodes_that_are_cold(owner, client, version):
    client.force_login(owner)
    assert "warmed" not in checked(client)
    seen = {"address": "10.0.0.1", "cpus": 64, "memory": 64 << 30, "last_seen_at": timezone.now()}
    Node.objects.create(name="one", resource="assay_node:one", **seen)
    assert "node one was never warmed; there the first episode of a task builds its images" in checked(client)
    assert "warmed" not in checked(client, backend="process")


@pytest.mark.parametrize(
    "typed, pointer",
    [
        ({"agent": "oracle", "per_family": "many"}, "/selection/per_family"),
        ({"agent": "menu", "model": ""}, "/model/source"),
        ({"agent": "menu", "model": "latest"}, "/model/source"),
        ({"agent": "menu", "model": "checkpoint:nope"}, "/model/source/checkpoint"),
        ({"agent": "terminal", "model": "m", "url": "file:///etc"}, "/model/source/url"),
        ({"agent": "oracle", "bank": "other"}, "/environment/bank"),
    ],
)
def test_what_was_typed_wrong_is_named_and_kept(owner, client, version, fresh_buckets, typed, pointer):
    client.force_login(owner)
    answer = post_form(client, **typed)
    page = answer.content.decode()
    assert answer.status_code == 422 and f"<code>{pointer}</code>" in page and not Run.objects.filter(kind="evaluation").exists()


def test_a_form_and_its_document_say_the_same():
    model = {"source": {"type": "served", "name": "m", "url": "http://h/v1"}, "max_length": 8192}
    environment = {"type": "harbor", "agent": {"type": "terminal", "max_turns": 9}, "hint_level": "L3", "task_timeout_sec": 2700}
    selection = {"splits": ["eval"], "per_family": 2, "task_glob": "*x*"}
    given = {
        "name": "n",
        "agent": "model",
        "model": model,
        "environment": environment,
        "selection": selection,
        "sampling": {"temperature": 0.0},
    }
    config = parse_evaluation(given)
    from django.http import QueryDict

    typed = QueryDict(mutable=True)
    typed.update({name: str(value) for name, value in forms.typed_of(config.model_dump(mode="json")).items()})
    document, errors = forms.read(typed)
    assert not errors and parse_evaluation(document) == config


def test_a_viewer_sees_the_list_and_no_form(viewer, client, version, fresh_buckets):
    client.force_login(viewer)
    assert "Evaluate on repair tasks" not in client.get(reverse("evaluate")).content.decode()
    assert post_form(client).status_code == 403


def test_a_form_that_is_sent_twice_makes_one_evaluation(owner, client, version, fresh_buckets):
    client.force_login(owner)
    token = re.search(r'name="token" value="(\w{32})"', client.get(reverse("evaluate")).content.decode())[1]
    first, second = post_form(client, token), post_form(client, token)
    run = Run.objects.get(kind="evaluation")
    assert first.url == second.url == reverse("run-evaluation", args=[run.pk])
    assert "This form was already submitted" in client.get(second.url).content.decode()
    other = post_form(client, token, samples="2")
    assert other.status_code == 409 and "already started an evaluation with other values" in other.content.decode()
    assert client.post(reverse("evaluate"), {"bank": "repair", "agent": "oracle"}).status_code == 400, "without a token"
    assert Run.objects.filter(kind="evaluation").count() == 1
    assert post_form(client).status_code == 302 and Run.objects.filter(kind="evaluation").count() == 2


def test_a_refused_form_keeps_its_token_free_for_the_corrected_one(owner, client, version, fresh_buckets):
    client.force_login(owner)
    token = uuid4().hex
    assert post_form(client, token, bank="other").status_code == 422
    assert post_form(client, token).status_code == 302 and Run.objects.filter(kind="evaluation").count() == 1


def test_a_post_that_is_repeated_under_its_key_makes_one_evaluation(as_token, teammate, version):
    caller, document = as_token(teammate, "submit"), {"kind": "evaluation", "name": "n", "agent": "oracle"}
    answers = [caller.send("POST", "/evaluations", document, headers={"Idempotency-Key": "k1"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201] and answers[0].json() == answers[1].json()
    assert answers[1]["Idempotency-Replayed"] == "true" and Run.objects.filter(kind="evaluation").count() == 1
