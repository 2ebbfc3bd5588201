"""Runs that differ only in their seed are one row with an interval; a view is a query under a name."""

import json
import re
from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.utils import timezone
from scipy import stats

from controlplane.accounts import services as accounts
from controlplane.accounts.choices import Role
from controlplane.runs import recipes, saved_views
from controlplane.runs.listing import RunFilters
from controlplane.runs.models import Run, SavedView
from tests.controlplane.factories import make_run
from tests.controlplane.pages import queries_of, read, signed_in

DOCUMENT = {"name": "a", "seed": 1, "experiment": None, "tags": [], "priority": 0, "stages": [{"type": "grpo", "group_size": 8}]}


def seeded(team, seed: int, reward=None, group_size: int = 8, **values) -> Run:
    document = {**DOCUMENT, "name": f"size {group_size}, seed {seed}", "seed": seed, "stages": [{"type": "grpo", "group_size": group_size}]}
    latest = {} if reward is None else {"reward": {"value": reward, "step": 9, "attempt": 1}}
    defaults = {
        "name": document["name"],
        "seed": seed,
        "config": json.dumps(document).encode(),
        "recipe": recipes.recipe_of(document),
        "latest": latest,
        "step": 9,
    }
    return make_run(team, **{**defaults, **values})


def groups(user, **filters) -> dict[str, recipes.SeedGroup]:
    found, _ = recipes.groups(user, RunFilters(**filters))
    return {group.name: group for group in found}


@pytest.mark.parametrize("changes", [{"seed": 9}, {"name": "b"}, {"experiment": "x"}, {"tags": ["y"]}, {"priority": 5}])
def test_luck_and_names_are_no_part_of_a_recipe(changes):
    assert recipes.recipe_of({**DOCUMENT, **changes}) == recipes.recipe_of(DOCUMENT)


def test_what_is_trained_is():
    assert recipes.recipe_of({**DOCUMENT, "stages": [{"type": "grpo", "group_size": 16}]}) != recipes.recipe_of(DOCUMENT)


def test_a_launched_run_knows_its_recipe(launch):
    first, second, third = launch(name="one", seed=1), launch(name="two", seed=2), launch(sampling={"max_new_tokens": 8})
    assert first.recipe == second.recipe != third.recipe
    assert first.recipe == recipes.recipe_of_bytes(bytes(first.config))


def test_the_migration_gives_old_runs_the_recipe_that_new_ones_get(team):
    run = seeded(team, 1, recipe="")
    import_module("controlplane.runs.migrations.0003_recipe_and_saved_views").fill_recipes(apps, None)
    run.refresh_from_db()
    assert run.recipe == recipes.recipe_of_bytes(bytes(run.config))


def test_a_group_has_the_mean_and_the_t_interval_of_its_seeds(owner, team):
    rewards = [0.5, 0.6, 0.8]
    for seed, reward in enumerate(rewards):
        seeded(team, seed, reward)
    seeded(team, 7, 0.9, group_size=16)
    group = groups(owner)["size 8"]
    found = group.measured["reward"]
    low, high = stats.t.interval(0.95, 2, loc=sum(rewards) / 3, scale=stats.sem(rewards))
    assert (found.n, found.estimate) == (3, pytest.approx(sum(rewards) / 3))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert (group.runs, group.seeds) == (3, [0, 1, 2])


@pytest.mark.parametrize("odd", [None, "NaN", "Infinity", "-Infinity"])
def test_a_run_without_a_finite_reward_enters_no_mean_and_is_not_counted_in_it(owner, team, odd):
    seeded(team, 1, 0.4)
    seeded(team, 2, 0.6)
    seeded(team, 3, odd)
    group = groups(owner)["size 8"]
    assert group.runs == 3 and group.measured["reward"].n == 2
    assert group.measured["reward"].estimate == pytest.approx(0.5)


def test_one_run_has_no_interval_and_none_no_mean(owner, team):
    seeded(team, 1, 0.4)
    seeded(team, 1, None, group_size=16)
    found = groups(owner)
    alone = found["size 8, seed 1"].measured["reward"]
    assert (alone.estimate, alone.low, alone.n) == (pytest.approx(0.4), None, 1)
    assert found["size 16, seed 1"].measured["reward"] == recipes.Interval(None, None, None, 0)


def test_runs_that_got_to_different_steps_are_told(owner, team):
    seeded(team, 1, 0.4)
    seeded(team, 2, 0.4, step=3)
    assert groups(owner)["size 8"].uneven and groups(owner)["size 8"].steps == (3, 9)
    assert "different steps" in read(owner, "/runs?group=seed")


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (["group 4, seed 1", "group 4, seed 2"], "group 4"),
        (["quiz-s1", "quiz-s2", "quiz-s10"], "quiz"),
        (["lr 1e-5 (seed=0)", "lr 1e-5 (seed=1)"], "lr 1e-5"),
        (["one"], "one"),
        (["alpha", "beta"], "alpha"),
        (["same", "same again"], "same"),
        (["seeds of doubt 1", "seeds of doubt 2"], "seeds of doubt"),
    ],
)
def test_a_group_is_called_by_what_its_names_share(names, shared):
    assert recipes.shared_name(names) == shared


def test_filters_hold_inside_the_groups(owner, team):
    seeded(team, 1, 0.4, state="succeeded")
    seeded(team, 2, 0.8, state="failed")
    assert groups(owner, facets={"state": ("failed",)})["size 8, seed 2"].measured["reward"].estimate == pytest.approx(0.8)


def test_best_mean_first_and_the_unrewarded_last(owner, team):
    for size, reward in ((4, 0.2), (8, None), (16, 0.7)):
        seeded(team, 1, reward, group_size=size)
    for sort, expected in (("-reward", [16, 4, 8]), ("reward", [4, 16, 8])):
        html = read(owner, f"/runs?group=seed&sort={sort}")
        assert [int(size) for size in re.findall(r'data-open[^>]*title="size (\d+)', html)] == expected


def test_other_teams_form_no_part_of_a_group(owner, outsider, team, other_team):
    seeded(team, 1, 0.4)
    seeded(other_team, 2, 0.9)
    assert groups(owner)["size 8, seed 1"].runs == 1
    assert list(groups(outsider)) == ["size 8, seed 2"]


def test_the_folded_page_shows_the_figures_and_leads_to_the_runs(owner, team):
    runs = [seeded(team, seed, reward) for seed, reward in ((1, 0.5), (2, 0.6), (3, 0.8))]
    html = read(owner, "/runs?group=seed", queries=12)
    assert '0.633 <span class="interval">± 0.379</span>' in html
    assert "mean over 3 runs of the newest value, graded episodes" in html
    assert f"/runs?recipe={runs[0].recipe}" in html and f"/compare?runs={runs[0].pk},{runs[1].pk},{runs[2].pk}" in html
    members = read(owner, f"/runs?recipe={runs[0].recipe}")
    assert all(f"run-{run.pk}" in members for run in runs)


def test_folded_pages_visit_every_recipe_once(owner, team):
    for size in range(2, 107):
        seeded(team, 1, size / 200, group_size=size, created_at=timezone.now() - timedelta(minutes=size))
    seen, path = [], "/runs?group=seed"
    while path:
        html = read(owner, path)
        seen += re.findall(r'data-open[^>]*title="size (\d+)', html)
        following = re.search(r'rel="next" href="(\?[^"]*)"', html)
        path = following and "/runs" + following.group(1).replace("&amp;", "&")
    assert sorted(map(int, seen)) == list(range(2, 107))
    read(owner, "/runs?group=seed&cursor=rubbish", status=400)


def test_folding_takes_the_same_queries_for_one_recipe_and_for_fifty(owner, team):
    seeded(team, 1, 0.5)
    one = queries_of(owner, "/runs?group=seed")
    for size in range(16, 66):
        seeded(team, 1, 0.5, group_size=size)
    assert queries_of(owner, "/runs?group=seed") == one <= 12


# ---------------------------------------------------------------- saved views
def test_a_view_is_saved_offered_and_recognised(owner, team):
    browser = signed_in(owner)
    answer = browser.post("/runs/views", {"name": "failed ones", "query": "state=failed&cursor=abc&q=&selected=1&sort=-reward"})
    assert answer.url == "/runs?sort=-reward&state=failed"
    html = browser.get(answer.url).content.decode()
    assert 'href="/runs?sort=-reward&amp;state=failed" aria-current="true"' in html
    assert 'aria-current="true"' not in browser.get("/runs?state=failed").content.decode().split('id="views"')[1].split("</details>")[0]


def test_the_order_of_an_address_does_not_matter():
    assert saved_views.kept("state=b&state=a&q=x") == saved_views.kept("q=x&state=a&state=b") == "q=x&state=a&state=b"


def test_a_name_is_used_again_for_the_newer_query(owner, team):
    for query in ("state=failed", "state=lost"):
        saved_views.save(owner, "mine", query)
    assert [view.query for view in SavedView.objects.all()] == ["state=lost"]


def test_a_view_is_its_owners_until_it_is_shared(owner, teammate, outsider, team):
    saved_views.save(owner, "private", "state=failed")
    saved_views.save(owner, "public", "state=lost", team)
    assert [view.name for view in saved_views.visible(owner)] == ["private", "public"]
    assert [view.name for view in saved_views.visible(teammate)] == ["public"]
    assert list(saved_views.visible(outsider)) == []


def test_a_viewer_keeps_views_and_shares_none(viewer, team):
    browser = signed_in(viewer)
    assert browser.post("/runs/views", {"name": "mine", "query": "state=failed"}).status_code == 302
    assert browser.post("/runs/views", {"name": "ours", "query": "state=failed", "team": team.pk}).status_code == 403
    assert "Everybody in" not in browser.get("/runs").content.decode()


def test_nobody_shares_with_a_team_that_is_not_theirs(owner, other_team):
    assert signed_in(owner).post("/runs/views", {"name": "x", "query": "", "team": other_team.pk}).status_code == 404


@pytest.mark.parametrize(
    "posted", [{"name": ""}, {"name": "x" * 81}, {"name": "x", "query": "sort=password"}, {"name": "x", "query": "q=" + "y" * 2000}]
)
def test_what_is_no_view_is_refused_and_said(owner, team, posted):
    browser = signed_in(owner)
    assert browser.post("/runs/views", posted).url == "/runs"
    assert not SavedView.objects.exists()
    assert 'class="toast error"' in browser.get("/runs").content.decode()


def test_the_owner_and_an_admin_delete_a_shared_view_and_others_do_not(owner, teammate, viewer, outsider, team):
    mine = saved_views.save(teammate, "ours", "state=lost", team)
    assert signed_in(viewer).post(f"/runs/views/{mine.pk}/delete").status_code == 403
    assert signed_in(outsider).post(f"/runs/views/{mine.pk}/delete").status_code == 404
    assert signed_in(owner).get(f"/runs/views/{mine.pk}/delete").status_code == 405
    assert signed_in(owner).post(f"/runs/views/{mine.pk}/delete").status_code == 302
    assert not SavedView.objects.exists()


def test_hostile_names_of_views_are_text(owner, team):
    saved_views.save(owner, "<script>alert(1)</script>", "q=%3Cscript%3E")
    assert "<script>alert" not in read(owner, "/runs?q=%3Cscript%3E")


# ---------------------------------------------------------------- REST
def test_seeds_are_folded_with_mean_interval_and_n(as_token, owner, team):
    for seed, reward in ((1, 0.5), (2, 0.7), (3, None)):
        seeded(team, seed, reward)
    seeded(team, 1, 0.9, group_size=16)
    caller = as_token(owner, "read")
    single, folded = caller.send("GET", "/runs/seeds?sort=-reward").json()["items"]
    assert single["measured"]["reward"] == {"mean": 0.9, "low": None, "high": None, "n": 1}
    assert (folded["name"], folded["runs"], folded["seeds"], folded["states"]) == ("size 8", 3, [1, 2, 3], {"active": 3})
    assert (folded["first_step"], folded["last_step"], len(folded["ids"]), folded["method"]) == (9, 9, 3, "grpo")
    low, high = stats.t.interval(0.95, 1, 0.6, stats.sem([0.5, 0.7]))
    assert folded["measured"]["reward"] == {"mean": pytest.approx(0.6), "low": pytest.approx(low), "high": pytest.approx(high), "n": 2}
    assert folded["measured"]["accuracy"] == {"mean": None, "low": None, "high": None, "n": 0}


def test_the_pages_of_folded_seeds_visit_every_recipe_once(as_token, owner, team):
    for size in range(5):
        seeded(team, 1, group_size=size)
    caller, found, cursor = as_token(owner, "read"), [], ""
    while cursor is not None:
        page = caller.send("GET", f"/runs/seeds?limit=2{cursor and f'&cursor={cursor}'}").json()
        found += [group["recipe"] for group in page["items"]]
        cursor = page["next"]
    assert len(found) == len(set(found)) == 5
    assert caller.send("GET", "/runs/seeds?cursor=x").status_code == 422


def test_a_filter_narrows_the_folded_seeds(as_token, owner, team):
    seeded(team, 1, state="failed")
    seeded(team, 2)
    [group] = as_token(owner, "read").send("GET", "/runs/seeds?state=failed").json()["items"]
    assert group["seeds"] == [1]


def test_views_are_kept_listed_and_deleted_by_rest(as_token, owner, teammate, outsider, team, other_team):
    caller, mate = as_token(owner, "submit"), as_token(teammate, "submit")
    made = caller.send("POST", "/runs/views", {"name": "lost ones", "query": "state=lost&cursor=x", "team": "physics"})
    assert made.status_code == 201
    assert made.json() == {**made.json(), "name": "lost ones", "query": "state=lost", "team": "physics", "owner": "olga"}
    caller.send("POST", "/runs/views", {"name": "mine"})
    assert [view["name"] for view in caller.send("GET", "/runs/views").json()["items"]] == ["lost ones", "mine"]
    assert [view["name"] for view in mate.send("GET", "/runs/views").json()["items"]] == ["lost ones"]
    assert as_token(outsider, "read", team=other_team).send("GET", "/runs/views").json()["items"] == []
    assert mate.send("DELETE", f"/runs/views/{made.json()['id']}").status_code == 403
    assert caller.send("DELETE", f"/runs/views/{made.json()['id']}").status_code == 204
    wrong = caller.send("POST", "/runs/views", {"name": "bad", "query": "sort=password"})
    assert wrong.status_code == 422 and wrong.json()["errors"][0]["pointer"] == "/query"


def test_a_token_sees_the_shared_views_of_its_own_team_alone(as_token, owner, team, other_team):
    accounts.add_member(other_team, owner, Role.MEMBER)
    for one in (team, other_team):
        saved_views.save(owner, f"of {one.slug}", "", one)
    assert [view["name"] for view in as_token(owner, "read").send("GET", "/runs/views").json()["items"]] == ["of physics"]
