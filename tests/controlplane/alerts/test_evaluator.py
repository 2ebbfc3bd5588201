"""The evaluator and the health strip on rows: one incident a breach, opened and closed with its step, told as an event."""

import time
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils import timezone

from controlplane.alerts.models import Incident
from controlplane.alerts.rules import RULED
from controlplane.alerts.selectors import health_tiles, incidents, ruled
from controlplane.alerts.services import evaluate_all, evaluate_run, set_limit
from controlplane.runs.models import Run
from runner.contract.events import Samples
from tests.controlplane.factories import deliver, make_attempt, make_batch, make_run

VERIFIER = "verifier_error/fraction"


@pytest.fixture(autouse=True)
def storage_folder(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path


@pytest.fixture(autouse=True)
def roomy_disk(monkeypatch):
    usage = SimpleNamespace(total=100 << 30, free=80 << 30)
    monkeypatch.setattr("controlplane.alerts.conditions.shutil.disk_usage", lambda path: usage)
    return usage


@pytest.fixture
def run(team):
    return make_run(team)


@pytest.fixture
def attempt(run):
    return make_attempt(run, first_step=0, claimed_at=timezone.now(), last_heartbeat_at=timezone.now(), running_at=timezone.now())


@pytest.fixture
def report(client, attempt):
    """report({name: [(step, value)]}) delivers points as the runner does."""
    sent = iter(range(1000))

    def report(series, samples=None, at=None):
        batch = make_batch(next(sent), series)
        if samples:
            now = np.full(len(samples), at or time.time())
            batch.samples = Samples(list(samples), np.arange(len(samples), dtype="i4"), now, np.array(list(samples.values())))
        return deliver(client, attempt, batch)

    return report


def steps(first, *values):
    return [(first + index, value, timezone.now().timestamp()) for index, value in enumerate(values)]


def tile(run, metric="", title=""):
    return next(tile for tile in health_tiles(run) if tile.metric == metric and title in tile.title)


def test_a_broken_rule_opens_one_incident_and_closes_it_when_it_holds_again(run, report):
    report({VERIFIER: steps(0, 0.0, 0.5, 0.5, 0.5)})
    evaluate_run(run)
    evaluate_run(run)
    incident = Incident.objects.get()
    assert (incident.rule, incident.severity, incident.value, incident.limit, incident.opened_step) == (f"{VERIFIER} above", "critical", 0.5, 0.05, 1)
    assert incident.message and incident.advice and incident.closed_at is None
    report({VERIFIER: steps(4, 0.0, 0.0, 0.0)})
    evaluate_run(run)
    incident.refresh_from_db()
    assert incident.closed_at and incident.closed_step == 6
    assert list(run.events.order_by("id").values_list("kind", flat=True)) == ["incident_opened", "incident_closed"]


def test_no_tick_stands_beside_a_value_beyond_its_limit(run, report):
    report({VERIFIER: steps(0, 0.0, 0.01)})
    assert tile(run, VERIFIER).status == "ok"
    report({VERIFIER: steps(2, 0.5)})
    evaluate_run(run)
    assert not Incident.objects.exists() and tile(run, VERIFIER).status == "pending"
    report({VERIFIER: steps(3, 0.01)})
    assert tile(run, VERIFIER).status == "ok"


def test_a_new_breach_is_a_new_incident(run, report):
    report({VERIFIER: steps(0, 0.5, 0.5, 0.5)})
    evaluate_run(run)
    report({VERIFIER: steps(3, 0.0, 0.0, 0.0)})
    evaluate_run(run)
    report({VERIFIER: steps(6, 0.5, 0.5, 0.5)})
    evaluate_run(run)
    assert Incident.objects.count() == 2 and Incident.objects.filter(closed_at=None).count() == 1


def test_points_that_a_later_attempt_superseded_do_not_count(run, attempt, report, client):
    report({VERIFIER: steps(0, 0.5, 0.5, 0.5)})
    attempt.state = "lost"
    attempt.save()
    second = make_attempt(run, 2, first_step=0)
    deliver(client, second, make_batch(0, {VERIFIER: steps(0, 0.0)}))
    evaluate_run(run)
    assert not Incident.objects.exists()


def test_a_nan_is_an_incident_and_its_value_shows(run, report):
    report({"actor/grad_norm": steps(0, 1.0, float("nan"))})
    evaluate_run(run)
    assert Incident.objects.get().rule == "actor/grad_norm non_finite"
    shown = tile(run, "actor/grad_norm")
    assert (shown.status, shown.value, shown.limit) == ("critical", "NaN", "finite")


def test_no_step_for_too_long_is_an_incident(run, attempt):
    attempt.running_at = timezone.now() - timedelta(seconds=299)
    attempt.save()
    evaluate_run(run)
    assert not Incident.objects.exists()
    attempt.running_at = timezone.now() - timedelta(seconds=301)
    attempt.save()
    evaluate_run(run)
    assert Incident.objects.get().rule == "progress"


def test_slow_steps_earn_more_patience(run, attempt, report):
    long_ago = timezone.now().timestamp() - 400
    report({"timing_s/step": [(step, 100.0, long_ago) for step in range(5)]})
    attempt.running_at = timezone.now() - timedelta(seconds=2000)
    attempt.save()
    evaluate_run(run)
    assert not Incident.objects.exists()
    assert tile(run, title="Since the last").limit == "≤ 8 min"


def test_a_lost_contact_is_an_incident_until_it_is_regained(run, attempt):
    attempt.contact_lost_at = timezone.now()
    attempt.save()
    evaluate_run(run)
    assert Incident.objects.get().rule == "contact"
    attempt.contact_lost_at = None
    attempt.save()
    evaluate_run(run)
    assert Incident.objects.get().closed_at


def test_a_full_disk_is_an_incident(run, attempt, roomy_disk):
    roomy_disk.free = 5 << 30
    evaluate_run(run)
    incident = Incident.objects.get()
    assert (incident.rule, incident.severity) == ("disk", "warning") and "95% full" in incident.message
    assert tile(run, title="Storage").status == "warning"


def test_incidents_close_with_the_run_and_its_strip_keeps_them(run, report):
    report({VERIFIER: steps(0, 0.5, 0.5, 0.5)})
    evaluate_run(run)
    Run.objects.filter(pk=run.pk).update(state="failed", ended_at=timezone.now())
    evaluate_all()
    incident = Incident.objects.get()
    assert incident.closed_at and incident.closed_step is None
    run.refresh_from_db()
    assert tile(run, VERIFIER).status == "critical"


def test_one_run_that_cannot_be_evaluated_does_not_stop_the_others(team, run, report, monkeypatch, caplog):
    report({VERIFIER: steps(0, 0.5, 0.5, 0.5)})
    broken = make_run(team, name="broken")
    from controlplane.alerts import services

    honest = services.tail
    monkeypatch.setattr(services, "tail", lambda run, *rest: 1 / 0 if run.pk == broken.pk else honest(run, *rest))
    evaluate_all()
    assert Incident.objects.get().run == run and "could not be evaluated" in caplog.text


def test_the_strip_has_a_tile_for_every_ruled_metric_and_condition(run):
    tiles = health_tiles(run)
    assert len(tiles) == len(ruled(run)) + 3
    assert {tile.status for tile in tiles if tile.metric} == {"unknown"}
    assert tile(run, VERIFIER).value is None and tile(run, VERIFIER).limit == "≤ 0.05"


def test_a_container_run_has_tiles_of_its_own(run):
    run.environment = "harbor"
    tiles = health_tiles(run)
    assert len(tiles) == len(RULED) + 5
    assert {tile.title for tile in tiles if not tile.metric} >= {"Engine latency", "Shorter turns, more cut off"}


def test_an_engine_that_answers_slowly_is_an_incident(run, report):
    run.environment = "harbor"
    run.save()
    report({}, samples={"docker/ps_latency_s/node-1": 25.0, "docker/ps_latency_s/node-2": 0.1})
    evaluate_run(run)
    incident = Incident.objects.get()
    assert incident.rule == "container engine" and "node-1 takes 25.0 s" in incident.message
    report({}, samples={"docker/ps_latency_s/node-1": 0.2})
    evaluate_run(run)
    assert Incident.objects.get().closed_at


def test_a_gpu_that_does_nothing_for_five_minutes_is_an_incident(run, attempt, report):
    def report_busy(**busy):
        for age in range(310, -1, -30):
            told = {f"gpu/{gpu} node-1/utilisation": values[age < 150] for gpu, values in busy.items()}
            report({}, samples=told, at=time.time() - age)

    attempt.devices = [{"index": 0}, {"index": 1}]
    attempt.save()
    report_busy(a=(80.0, 0.0))
    evaluate_run(run)
    assert not Incident.objects.exists(), "busy within the window"
    report_busy(b=(1.0, 2.0))
    evaluate_run(run)
    incident = Incident.objects.get()
    assert incident.rule == "idle GPU" and "GPU b node-1 was busy 2 % at most in the last 5 min" in incident.message


def test_a_gpu_told_of_for_a_minute_is_not_judged(run, attempt, report):
    attempt.devices = [{"index": 0}]
    attempt.save()
    for age in (60, 30, 0):
        report({}, samples={"gpu/0 node-1/utilisation": 0.0}, at=time.time() - age)
    evaluate_run(run)
    assert not Incident.objects.exists() and tile(run, title="Idlest GPU").status == "unknown"


def test_the_collapse_of_an_unmasked_run_is_critical(run, report):
    run.environment = "harbor"
    run.save()
    report({"episode/tokens_per_turn": steps(0, *[1125] * 9, *[327] * 3), "termination/max_turns_exceeded/fraction": steps(0, *[0.29] * 9, *[0.39] * 3)})
    evaluate_run(run)
    assert Incident.objects.get(rule="collapse pattern").severity == "critical"


def test_a_warning_that_worsens_becomes_critical_and_stays_one_incident(run, report):
    report({VERIFIER: steps(0, 0.06, 0.06, 0.06)})
    evaluate_run(run)
    assert Incident.objects.get().severity == "warning"
    report({VERIFIER: steps(3, 0.3, 0.3, 0.3)})
    evaluate_run(run)
    assert Incident.objects.get().severity == "critical"


def test_a_project_moves_its_limits(run, report, owner, outsider):
    with pytest.raises(PermissionDenied):
        set_limit(outsider, run.project, "verifier_error/fraction above", 0.2)
    with pytest.raises(ValidationError, match="no rule"):
        set_limit(owner, run.project, "verifier_error above", 0.2)
    set_limit(owner, run.project, "verifier_error/fraction above", 0.2)
    run.refresh_from_db()
    report({VERIFIER: steps(0, 0.1, 0.1, 0.1)})
    evaluate_run(run)
    assert not Incident.objects.exists() and tile(run, VERIFIER).limit == "≤ 0.2"


# What each trap of container runs is told by: its rule, what breaks it, and a limit that it does not break.
FALL = {"episode/tokens_per_turn": [1000] * 9 + [500] * 3, "termination/max_turns_exceeded/fraction": [0.2] * 9 + [0.4] * 3}
TRAPS = {
    "verifier_error/fraction above": ({VERIFIER: [0.1] * 3}, 0.2),
    "container engine": ({"docker/ps_latency_s/node-1": 25.0}, 30.0),
    "episode/delivered_fraction below": ({"episode/delivered_fraction": [0.02] * 5}, 0.01),
    "collapse pattern": (FALL, 0.6),
    "reward/missing_fraction above": ({"reward/missing_fraction": [0.1] * 3}, 0.2),
    "rollout_corr/rollout_is_eff_sample_size below": ({"rollout_corr/rollout_is_eff_sample_size": [0.85] * 2}, 0.8),
    "rollout_corr/kl above": ({"rollout_corr/kl": [0.06] * 3}, 0.08),
    "group/zero_variance_fraction above": ({"group/zero_variance_fraction": [0.55] * 5}, 0.6),
}


@pytest.mark.parametrize("rule", TRAPS)
def test_each_trap_of_container_runs_is_told_and_each_project_has_its_own_limit(run, report, owner, rule):
    series, limit = TRAPS[rule]
    Run.objects.filter(pk=run.pk).update(environment="harbor")
    run.refresh_from_db()
    samples = {name: value for name, value in series.items() if isinstance(value, float)}
    report({name: steps(0, *values) for name, values in series.items() if name not in samples}, samples=samples)
    evaluate_run(run)
    assert [incident.rule for incident in Incident.objects.all()] == [rule]
    assert set_limit(owner, run.project, rule, limit) == {rule: limit}
    Incident.objects.all().delete()
    run.refresh_from_db()
    evaluate_run(run)
    assert not Incident.objects.exists()
    assert set_limit(owner, run.project, rule, None) == {}


def test_the_strip_costs_the_same_however_much_there_is(run, report, django_assert_max_num_queries):
    report({name: steps(0, *[0.5] * 40) for name in (VERIFIER, "actor/entropy", "reward/missing_fraction")})
    evaluate_run(run)
    with django_assert_max_num_queries(5):
        health_tiles(run)


def test_incidents_are_seen_by_the_team_only(run, report, owner, outsider):
    report({VERIFIER: steps(0, 0.5, 0.5, 0.5)})
    evaluate_run(run)
    assert incidents(owner).count() == 1 and incidents(outsider).count() == 0
