import json
import re
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.accounts.models import AuditEntry
from controlplane.checkpoints.models import Checkpoint
from controlplane.evals.models import Evaluation, Protocol, Result
from controlplane.runs import listing
from controlplane.runs.models import Run, RunEvent
from controlplane.telemetry.models import LogLine
from controlplane.telemetry.points import write_points
from runner.contract.metrics import DASHBOARD
from runner.contract.states import CheckpointState, RunState
from tests.controlplane.factories import make_attempt, make_points, make_run
from tests.controlplane.pages import form, queries_of, read, signed_in

HOSTILE = "<script>alert('x')</script>"
CONFIG = json.dumps({"name": "run", "seed": 1, "stages": [{"type": "grpo", "optimizer": {"learning_rate": 1e-5}}]}).encode()


def headline(value, step=3):
    return {"value": value, "step": step, "attempt": 1}


def lived(team, **values) -> Run:
    """A run with an attempt, points, a log line, a checkpoint, events and two evaluations."""
    run = make_run(team, **{"config": CONFIG, "step": 3, "latest": {"reward": headline(0.5)}, **values})
    make_attempt(run, first_step=0)
    write_points(run.pk, 1, make_points({"critic/score/mean": [(0, 0.1), (1, 0.2718281), (2, float("nan")), (3, 0.5)], "own/metric": [(0, 1.0)]}))
    LogLine.objects.create(run=run, attempt=1, t=1000.0, component="driver", level="info", message=HOSTILE)
    Checkpoint.objects.create(run=run, attempt=1, step=3, path="/x", state=CheckpointState.COMPLETE, size=2048, metrics={"val/accuracy": 0.4})
    RunEvent.objects.create(run=run, kind="stage_started", step=0, data={"stage": 0, "type": HOSTILE}, at=timezone.now())
    protocol, _ = Protocol.objects.get_or_create(hash="a" * 64, defaults={"document": {"split": "eval"}})
    for label, step, score in (("before stage 0", 0, 0.0), ("after stage 0", 3, 1.0)):
        one = Evaluation.objects.create(run=run, attempt=1, protocol=protocol, label=label, step=step, baselines={"chance": 0.25})
        Result.objects.bulk_create(Result(evaluation=one, task=f"t{i}", domain="physics", score=score, forced=score, parsed=True) for i in range(12))
    return run


# ---------------------------------------------------------------- the list
def test_an_empty_list_says_what_belongs_there_and_how_to_begin(owner):
    html = read(owner, "/runs")
    assert "No runs yet" in html and "./assay launch" in html


def test_the_list_takes_the_same_queries_for_one_run_and_for_fifty(owner, team):
    lived(team)
    one = queries_of(owner, "/runs")
    for _ in range(51):
        make_run(team, latest={"reward": headline(0.5)})
    assert queries_of(owner, "/runs") == one <= 12


def test_a_row_shows_the_newest_values_and_the_curve(owner, team):
    lived(team, name="quiz", latest={"reward": headline(0.8123), "verifier_error": headline(0.091), "length": headline(9.04)}, experiment="group size")
    html = read(owner, "/runs")
    assert "0.812" in html and "9.1 %" in html and "9.0" in html and 'class="spark" viewBox' in html and "group size" in html


def test_a_missing_reward_is_a_dash_and_never_a_zero(owner, team):
    make_run(team)
    row = re.search(r"<tr id=\"run-.*?</tr>", read(owner, "/runs"), re.S).group()
    assert row.count('<td class="num">–</td>') == 3


def test_a_nan_in_the_newest_values_is_spelled(owner, team):
    make_run(team, latest={"reward": headline("NaN")})
    assert ">NaN<" in read(owner, "/runs")


def test_hostile_names_are_text(owner, team):
    make_run(team, name=HOSTILE, experiment=HOSTILE, tags=[HOSTILE], method=HOSTILE, model=HOSTILE)
    assert "<script>alert" not in read(owner, "/runs")


def test_gpu_hours_are_those_of_all_attempts_and_unsaid_without_gpus(owner, team):
    run, now = make_run(team, config=b'{"resources": {"gpus": 4}}'), timezone.now()
    for number, (began, ended) in enumerate([(5.0, 3.5), (2.0, 1.0)], 1):
        told = {"submitted_at": now - timedelta(hours=began), "ended_at": now - timedelta(hours=ended)}
        make_attempt(run, number=number, state="lost", **told)
    assert re.search(r"GPU-hours</dt><dd>10.00<", read(owner, f"/runs/{run.pk}"))
    assert "GPU-hours" not in read(owner, f"/runs/{lived(team).pk}")


def test_other_teams_see_nothing(outsider, team):
    run = lived(team, name="unseen")
    assert "unseen" not in read(outsider, "/runs")
    for path in ("", "/header", "/metrics", "/logs", "/config", "/checkpoints", "/evaluation", "/audit"):
        assert signed_in(outsider).get(f"/runs/{run.pk}{path}").status_code == 404
    for path in ("/stop", "/resume", "/retry", "/archive"):
        assert signed_in(outsider).post(f"/runs/{run.pk}{path}").status_code == 404


def names_on(html: str) -> list[str]:
    return re.findall(r'data-open[^>]*title="([^"]*)"', html)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=failed", {"b"}),
        ("state=failed&state=queued", {"b", "c"}),
        ("state=failed&method=grpo", set()),
        ("q=alp", {"a"}),
        ("q=tagged", {"c"}),
        ("tag=tagged", {"c"}),
        ("experiment=one", {"a", "b"}),
        ("owner=olga", {"a"}),
    ],
)
def test_filters_narrow_the_list(owner, team, query, expected):
    make_run(team, name="a", experiment="one", owner=owner, model="alpha")
    make_run(team, name="b", experiment="one", state=RunState.FAILED, method="sft")
    make_run(team, name="c", tags=["tagged"], state=RunState.QUEUED)
    Run.objects.filter(name="a").update(name="alpha")
    assert {name[0] for name in names_on(read(owner, f"/runs?{query}"))} == expected


def test_a_run_is_found_by_the_start_of_its_id(owner, team):
    run = make_run(team, name="found")
    make_run(team, name="other")
    assert names_on(read(owner, f"/runs?q={str(run.pk)[:10]}")) == ["found"]


def test_each_facet_counts_under_the_choices_of_the_others(owner, team):
    make_run(team, state=RunState.FAILED, method="sft")
    make_run(team, state=RunState.FAILED, method="grpo")
    make_run(team, state=RunState.QUEUED, method="grpo")
    html = read(owner, "/runs?state=failed")
    counts = dict(re.findall(r'name="state" value="(\w+)".*?count">(\d+)<', html, re.S))
    assert counts == {"failed": "2", "queued": "1"}
    assert dict(re.findall(r'name="method" value="(\w+)".*?count">(\d+)<', html, re.S)) == {"sft": "1", "grpo": "1"}


def test_a_run_without_an_owner_counts_in_all_facets_but_that_one(owner, team):
    Run.objects.filter(pk=make_run(team, method="sft").pk).update(owner=None)
    Run.objects.filter(pk=make_run(team, method="sft").pk).update(owner=owner)
    total, facets = listing.facets(owner, listing.RunFilters())
    values = {facet.name: facet.values for facet in facets}
    assert total == 2 and values["method"] == [("sft", 2, False)] and values["owner"] == [(owner.username, 1, False)]


@pytest.mark.parametrize("sort", ["created", "-created", "name", "-name", "step", "-step", "reward", "-reward"])
def test_paging_visits_every_run_once_under_every_sort(owner, team, sort):
    for index in range(103):
        reward = {} if index % 5 == 0 else {"reward": headline(index % 7 / 7)}
        make_run(team, name=f"run-{index:03d}", step=index % 4, latest=reward)
    seen, path = [], f"/runs?sort={sort}"
    while path:
        html = read(owner, path)
        seen += names_on(html)
        following = re.search(r'rel="next" href="(\?[^"]*)"', html)
        path = following and "/runs" + following.group(1).replace("&amp;", "&")
    assert sorted(seen) == [f"run-{index:03d}" for index in range(103)]


def test_runs_sort_by_reward_with_unrewarded_ones_last(owner, team):
    for name, reward in (("low", 0.1), ("none", None), ("high", 0.9), ("nan", "NaN")):
        make_run(team, name=name, latest={} if reward is None else {"reward": headline(reward)})
    assert names_on(read(owner, "/runs?sort=-reward"))[1:] == ["high", "low", "none"]


def headings(html: str) -> list[str]:
    return [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<th scope=\"col\".*?</th>", html, re.S)]


def test_the_address_chooses_the_columns(owner, team):
    run = make_run(team, seed=7, tags=["paper"], latest={"accuracy": headline(0.4123), "kl": headline(0.00012)})
    query = "column=seed&column=accuracy&column=kl&column=tags"
    html = read(owner, f"/runs?{query}")
    assert headings(html) == ["State", "Run", "Accuracy", "KL", "Seed", "Tags"], "in our order, however they were asked for"
    row = re.search(r"<tr id=\"run-.*?</tr>", html, re.S).group()
    assert "0.412" in row and "0.00012" in row and ">7<" in row and "#paper" in row and "progress" not in row
    fresh = signed_in(owner).get(f"/runs/rows?{query}&ids={run.pk}").content.decode()
    assert fresh.strip() == row.strip(), "a row that changes keeps its columns"


def test_the_usual_columns_are_those_of_an_address_without_any(owner, team):
    make_run(team)
    usual = ["State", "Run", "Step", "Reward", "Reward over steps", "Verifier err.", "Length", "Method", "Environment", "Model", "Owner", "Age"]
    assert headings(read(owner, "/runs")) == usual


def test_a_view_keeps_its_columns_and_refuses_unknown_ones(owner, team):
    browser = signed_in(owner)
    browser.post("/runs/views", {"name": "mine", "query": "column=seed&column=reward"})
    assert "column=reward&amp;column=seed" in browser.get("/runs").content.decode()
    browser.post("/runs/views", {"name": "bad", "query": "column=password"})
    assert "is none of accuracy, age" in browser.get("/runs").content.decode()


@pytest.mark.parametrize("query", ["sort=password", "column=password", "cursor=rubbish", "cursor=WyJ4IiwgMV0", "cursor=WzEsIDJd"])
def test_a_query_that_cannot_be_read_is_refused(owner, team, query):
    make_run(team)
    read(owner, f"/runs?{query}", status=400)


def test_archived_runs_are_apart(owner, team):
    make_run(team, name="old", archived_at=timezone.now())
    make_run(team, name="new")
    assert names_on(read(owner, "/runs")) == ["new"] and names_on(read(owner, "/runs?archived=1")) == ["old"]


def test_htmx_gets_the_table_and_fresh_facets_without_the_frame(owner, team):
    make_run(team)
    html = signed_in(owner).get("/runs?q=run", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in html and 'hx-swap-oob="innerHTML"' in html and names_on(html) == ["run"]


def test_fresh_rows_are_those_that_were_asked_for(owner, outsider, team):
    run, _ = make_run(team, name="a"), make_run(team, name="b")
    path = f"/runs/rows?ids={run.pk}"
    assert names_on(signed_in(owner).get(path).content.decode()) == ["a"]
    assert names_on(signed_in(outsider).get(path).content.decode()) == []
    assert signed_in(owner).get("/runs/rows?ids=x").status_code == 400


def test_several_runs_are_archived_and_those_that_cannot_be_are_named(owner, team):
    done, running = make_run(team, name="done", state=RunState.FAILED), make_run(team, name="running")
    browser = signed_in(owner)
    browser.post("/runs/bulk", {"action": "archive", "ids": f"{done.pk},{running.pk}", "next": "/runs?state=failed"})
    done.refresh_from_db()
    running.refresh_from_db()
    assert done.archived_at and not running.archived_at
    html = browser.get("/runs").content.decode()
    assert "1 run archived" in html and "running is active; stop it before archiving" in html


def test_several_runs_are_tagged_and_freed_of_a_tag(owner, team):
    first, second = make_run(team, name="first", tags=["old"]), make_run(team, name="second", tags=["old", "paper"])
    browser, ids = signed_in(owner), f"{first.pk},{second.pk}"
    browser.post("/runs/bulk", {"action": "tag", "tag": " paper ", "ids": ids})
    browser.post("/runs/bulk", {"action": "untag", "tag": "old", "ids": ids})
    assert [list(run.tags) for run in Run.objects.order_by("name")] == [["paper"], ["paper"]]
    assert AuditEntry.objects.filter(verb="run.tag", object_id=str(second.pk)).count() == 1, "what changes nothing is no deed"
    assert browser.post("/runs/bulk", {"action": "tag", "tag": " ", "ids": ids}).status_code == 400


def test_a_tag_that_cannot_be_is_said_and_the_others_stay(owner, team):
    run, browser = make_run(team, tags=[f"tag-{n}" for n in range(20)]), signed_in(owner)
    browser.post("/runs/bulk", {"action": "tag", "tag": "one more", "ids": run.pk})
    assert "21 tags; a run has at most 20" in browser.get("/runs").content.decode()
    browser.post("/runs/bulk", {"action": "tag", "tag": "x" * 61, "ids": run.pk})
    assert "a tag has 1 to 60 characters" in browser.get("/runs").content.decode()
    run.refresh_from_db()
    assert len(run.tags) == 20


def test_bulk_leads_back_to_the_list_and_nowhere_else(owner, team):
    answer = signed_in(owner).post("/runs/bulk", {"action": "archive", "ids": "", "next": "https://elsewhere.example"})
    assert answer.url == "/runs"
    assert signed_in(owner).post("/runs/bulk", {"action": "delete", "ids": ""}).status_code == 400


# ---------------------------------------------------------------- one run
def test_the_run_page_shows_the_default_charts_and_its_health(owner, team):
    run = lived(team)
    html = read(owner, f"/runs/{run.pk}", queries=32)
    for title, names in DASHBOARD:
        assert f'title="{title}"' in html and all(name in html for name in names)
    assert "Verifier errors" in html and 'id="dashboard"' in html and "<script>alert" not in html


def test_the_run_page_loads_no_point(owner, team):
    run = lived(team)
    # A number that no duration on the page is.
    assert "0.2718281" not in re.search(r'id="dashboard".*?</script>', read(owner, f"/runs/{run.pk}"), re.S).group()


def test_the_header_alone_is_read_again(owner, team):
    run = lived(team, state=RunState.FAILED, reason=f"ran out of memory {HOSTILE}")
    html = read(owner, f"/runs/{run.pk}/header?tab=logs")
    assert "<html" not in html and "ran out of memory &lt;script&gt;" in html and "Resume" in html


def test_every_metric_is_found_by_words_of_its_path(owner, team):
    run = lived(team)
    assert "own/metric" in read(owner, f"/runs/{run.pk}/metrics?q=metric+own")
    assert "own/metric" in read(owner, f"/runs/{run.pk}/metrics?group=own")
    assert "No metric of this run holds" in read(owner, f"/runs/{run.pk}/metrics?q=absent")
    assert "figure" not in read(owner, f"/runs/{run.pk}/metrics")


def test_a_group_of_metrics_is_no_pattern(owner, team):
    run = lived(team)
    assert "own/metric" not in read(owner, f"/runs/{run.pk}/metrics?group=.*")


def test_two_thousand_metrics_stay_groups_until_one_is_opened(owner, team):
    run = lived(team)
    write_points(run.pk, 1, make_points({f"layer_{index // 50}/norm_{index}": [(0, 1.0)] for index in range(2000)}))
    html = read(owner, f"/runs/{run.pk}", queries=32)
    assert html.count("<figure") == len(DASHBOARD) and "layer_39" in html and len(html) < 200_000
    assert read(owner, f"/runs/{run.pk}/metrics?q=norm").count("<figure") == 120


def test_a_warm_start_has_its_own_chart(owner, team):
    assert "sft/loss" in read(owner, f"/runs/{lived(team, method='sft+grpo').pk}").split('class="charts"')[1]


def test_the_log_is_filtered_and_paged(owner, team):
    run = lived(team)
    LogLine.objects.bulk_create(
        LogLine(run=run, attempt=1, t=1000.0 + i, component=f"worker-{i % 2}", level="error" if i == 7 else "info", message=f"line {i}.") for i in range(450)
    )
    html = read(owner, f"/runs/{run.pk}/logs", queries=16)
    assert "line 449." in html and "line 249." not in html and "Older lines" in html
    before = re.search(r"before=(\d+)", html).group(1)
    older = read(owner, f"/runs/{run.pk}/logs?before={before}")
    assert "line 249." in older and "line 250." not in older and "<html" not in older
    assert "line 7." in (errors := read(owner, f"/runs/{run.pk}/logs?level=error")) and "line 8." not in errors
    assert "line 8." not in read(owner, f"/runs/{run.pk}/logs?component=worker-1&q=line")
    assert signed_in(owner).get(f"/runs/{run.pk}/logs?before=x").status_code == 400


def test_a_filter_left_at_all_filters_nothing(owner, team):
    run = lived(team)
    assert "alert(&#x27;x&#x27;)" in read(owner, f"/runs/{run.pk}/logs?component=&attempt=&q=")


def test_hostile_log_lines_are_text(owner, team):
    html = read(owner, f"/runs/{lived(team).pk}/logs")
    assert "&lt;script&gt;alert" in html and "<script>alert" not in html


def test_the_config_tab_shows_the_difference_from_the_parent(owner, team):
    parent = make_run(team, config=CONFIG, name="parent")
    child = make_run(team, config=CONFIG.replace(b"1e-05", b"3e-05"), parent=parent)
    html = read(owner, f"/runs/{child.pk}/config", queries=16)
    assert "/stages/0/optimizer/learning_rate" in html and "3e-05" in html and "/seed" not in html
    assert "Differs from" not in read(owner, f"/runs/{parent.pk}/config")


def test_the_audit_tab_tells_events_and_deeds(owner, team):
    run = lived(team)
    AuditEntry.objects.create(team=team, actor=owner, verb="run.stop", kind="run", object_id=str(run.pk))
    html = read(owner, f"/runs/{run.pk}/audit", queries=16)
    assert "Stage started" in html and "run.stop" in html and "<script>alert" not in html
    assert signed_in(owner).get(f"/runs/{run.pk}/audit?before=x").status_code == 400


def test_why_a_guard_was_overridden_stays_visible_on_the_run(owner, team):
    reasons = {"unproven_reason": "checked by hand <b>", "unmasked_reason": "a control beside the masked run"}
    run = lived(team, document={"environment": {"type": "harbor", **reasons}})
    for path in (f"/runs/{run.pk}", f"/runs/{run.pk}/header"):
        html = read(owner, path) if path.count("/") == 2 else signed_in(owner).get(path).content.decode()
        assert "anchors are not proven: checked by hand &lt;b&gt;" in html and "cut off: a control beside the masked run" in html
    assert "are not proven" not in read(owner, f"/runs/{lived(team, name='plain').pk}")


# ---------------------------------------------------------------- actions
def test_a_member_stops_a_run_and_a_viewer_may_not(teammate, viewer, team):
    run = lived(team)
    assert signed_in(viewer).post(f"/runs/{run.pk}/stop").status_code == 403
    assert "#stop-run" not in read(viewer, f"/runs/{run.pk}").split("</header>")[1]
    assert signed_in(teammate).post(f"/runs/{run.pk}/stop").url == f"/runs/{run.pk}"
    run.refresh_from_db()
    assert run.stop_requested_at


def test_actions_only_take_posts(owner, team):
    run = lived(team)
    assert {signed_in(owner).get(f"/runs/{run.pk}/{verb}").status_code for verb in ("stop", "resume", "retry", "archive")} == {405}


def test_what_the_state_forbids_is_said_and_nothing_changes(owner, team):
    run = lived(team)
    browser = signed_in(owner)
    browser.post(f"/runs/{run.pk}/resume", form())
    assert "only an ended run can be resumed" in browser.get(f"/runs/{run.pk}").content.decode()
    run.refresh_from_db()
    assert run.state == RunState.ACTIVE


def test_a_stopped_run_resumes_from_the_chosen_checkpoint(owner, team):
    run = lived(team, state=RunState.STOPPED)
    run.attempts.update(state="stopped")
    checkpoint = run.checkpoints.get()
    signed_in(owner).post(f"/runs/{run.pk}/resume", form(checkpoint=str(checkpoint.pk)))
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert run.events.filter(kind="requeued").last().data["checkpoint"] == str(checkpoint.pk)


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_form_that_is_sent_again_after_its_attempt_ended_makes_no_second_one(owner, team, verb):
    run, browser, sent = lived(team, state=RunState.STOPPED), signed_in(owner), form()
    run.attempts.update(state="stopped")
    for _ in range(2):
        assert browser.post(f"/runs/{run.pk}/{verb}", sent).url == f"/runs/{run.pk}"
        Run.objects.filter(pk=run.pk).update(state=RunState.STOPPED)
    assert run.events.filter(kind="requeued").count() == 1
    assert browser.post(f"/runs/{run.pk}/{verb}", {**sent, "checkpoint": str(run.checkpoints.get().pk)}).status_code == 400
    browser.post(f"/runs/{run.pk}/{verb}", form())
    assert run.events.filter(kind="requeued").count() == 2


def test_a_checkpoint_of_another_run_is_not_found(owner, team):
    run, other = lived(team, state=RunState.STOPPED), lived(team)
    assert signed_in(owner).post(f"/runs/{run.pk}/resume", form(checkpoint=str(other.checkpoints.get().pk))).status_code == 404


# ---------------------------------------------------------------- comparison
def test_nothing_to_compare_says_how_to_pick(owner):
    assert "Pick runs to compare" in read(owner, "/compare")


def test_runs_are_compared_by_what_differs(owner, team):
    first = lived(team, name="first")
    second = lived(team, name="second", config=CONFIG.replace(b"1e-05", b"3e-05"))
    html = read(owner, f"/compare?runs={first.pk},{second.pk}", queries=24)
    assert "/stages/0/optimizer/learning_rate" in html and "/seed" not in html
    assert "n = 12" in html and "not resolved" in html


def test_ten_runs_take_as_many_queries_as_the_pairs_need(owner, team):
    runs = [lived(team, name=f"run {index}") for index in range(10)]
    assert queries_of(owner, "/compare?runs=" + ",".join(str(run.pk) for run in runs)) <= 60


def test_colours_differ_and_stay_whatever_the_order_of_the_url(owner, team):
    runs = [make_run(team, name=f"run-{index}", config=CONFIG, created_at=timezone.now() - timedelta(days=index)) for index in range(10)]

    def colours(order):
        html = read(owner, "/compare?runs=" + ",".join(str(run.pk) for run in order))
        return dict(re.findall(r'href="/runs/([\w-]+)"[^>]*><span class="swatch c(\d)"', html.split('<nav class="tabs"')[0]))

    assert colours(runs) == colours(runs[::-1]) and len(set(colours(runs).values())) == 10


def test_runs_of_other_teams_are_left_out_of_a_comparison(owner, team, other_team):
    mine, theirs = lived(team), lived(other_team, name="theirs")
    assert "theirs" not in read(owner, f"/compare?runs={mine.pk},{theirs.pk}")


@pytest.mark.parametrize("runs", ["x", ",".join(str(uuid.uuid4()) for _ in range(11))])
def test_a_comparison_that_cannot_be_read_is_refused(owner, runs):
    read(owner, f"/compare?runs={runs}", status=400)
