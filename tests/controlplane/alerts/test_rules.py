"""The rules on synthetic curves: every bad one is found, clean ones are left in peace, one incident each."""

import numpy as np
import pytest

from controlplane.alerts.rules import RULED, TAIL, bound, collapse, examine, limit_text, sentence, severity, with_limit
from runner.contract.metrics import Rule

ABOVE = Rule("above", 0.05, for_steps=3)
COLLAPSE = Rule("ratio_below", 0.2, for_steps=3, window=20)
SPIKE = Rule("ratio_above", 10.0, for_steps=1, window=20)
FINITE = Rule("non_finite", for_steps=1)


def found(rule, values, **more):
    values = np.asarray(values, float)
    return examine(rule, np.arange(len(values)), values, **more)


def test_a_fixed_limit_needs_all_of_the_newest_values():
    assert not found(ABOVE, [0.1, 0.1]).broken
    assert not found(ABOVE, [0.1, 0.0, 0.1, 0.1]).broken
    finding = found(ABOVE, [0.0, 0.1, 0.2, 0.3])
    assert finding.broken and (finding.value, finding.limit, finding.step) == (0.3, 0.05, 1)
    assert not found(ABOVE, [0.05, 0.05, 0.05]).broken


def test_a_ratio_is_held_against_the_median_before_the_newest():
    assert bound(COLLAPSE, np.array([1.0] * 5 + [0.1] * 3)) == pytest.approx(0.2)
    assert found(COLLAPSE, [1.0] * 5 + [0.1] * 3).broken
    assert not found(COLLAPSE, [1.0] * 4 + [0.1] * 3).broken
    assert not found(COLLAPSE, [1.0] * 20 + [0.1, 0.1, 0.3]).broken


def test_three_times_nothing_is_still_nothing():
    assert not found(Rule("ratio_above", 3.0, for_steps=1), [1e-9] * 20 + [9e-9]).broken


def test_gaps_of_nan_do_not_hide_a_collapse_nor_make_one():
    assert found(COLLAPSE, [1.0, np.nan] * 10 + [0.1] * 3).broken
    assert not found(COLLAPSE, [1.0] * 20 + [np.nan] * 3).broken


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_any_non_finite_value_is_found(value):
    assert found(FINITE, [1.0, value]).broken
    assert not found(FINITE, [value, 1.0]).broken


def test_beyond_the_critical_bound_a_warning_is_critical():
    rule = Rule("above", 0.05, for_steps=3, critical=0.15)
    assert severity(rule, found(rule, [0.1, 0.2, 0.2])) == "warning"
    assert severity(rule, found(rule, [0.2, 0.2, 0.2])) == "critical"
    below = Rule("below", 0.9, for_steps=2, critical=0.7)
    assert [severity(below, found(below, values)) for values in ([0.8, 0.8], [0.6, 0.6])] == ["warning", "critical"]


def test_a_project_may_move_a_limit():
    metric = RULED["verifier_error/fraction"]
    moved = with_limit(metric, metric.rules[0], {"verifier_error/fraction above": 0.1})
    assert (moved.limit, moved.critical) == (0.1, pytest.approx(0.3))
    assert with_limit(metric, metric.rules[0], {"actor/entropy ratio_below": 0.1}) is metric.rules[0]


SPEC = [
    ("verifier_error/fraction", [0.06] * 3, "warning"),
    ("verifier_error/fraction", [0.16] * 3, "critical"),
    ("episode/delivered_fraction", [0.02] * 5, "warning"),
    ("reward/missing_fraction", [0.1] * 3, "warning"),
    ("rollout_corr/rollout_is_eff_sample_size", [0.85] * 2, "warning"),
    ("rollout_corr/rollout_is_eff_sample_size", [0.6] * 2, "critical"),
    ("rollout_corr/kl", [0.06] * 3, "warning"),
    ("group/zero_variance_fraction", [0.55] * 5, "warning"),
]


@pytest.mark.parametrize(("name", "values", "expected"), SPEC)
def test_the_published_thresholds_hold(name, values, expected):
    rule = RULED[name].rules[0]
    assert found(rule, values).broken and severity(rule, found(rule, values)) == expected
    shy = [rule.limit * (0.99 if rule.kind == "above" else 1.01)] * len(values)
    assert not found(rule, shy).broken


def test_shorter_turns_alone_are_no_collapse_and_neither_are_more_cut_ones():
    steady, falling = np.full(12, 1000.0), np.array([1125.0] * 9 + [327.0] * 3)
    rare, often = np.full(12, 0.29), np.array([0.29] * 9 + [0.39] * 3)
    assert collapse(falling, often).broken and collapse(falling, often).value == pytest.approx(1 - 327 / 1125)
    assert not collapse(falling, rare).broken and not collapse(steady, often).broken
    assert collapse(falling[-4:], often[-4:]).value is None


def test_no_value_is_no_finding():
    finding = found(ABOVE, [])
    assert (finding.broken, finding.value) == (False, None)


def test_a_collapsed_curve_does_not_become_its_own_baseline():
    collapsed = [1.0] * 20 + [0.1] * 40
    assert not found(COLLAPSE, collapsed).broken
    assert found(COLLAPSE, collapsed, open_limit=0.2).broken


def test_an_incident_closes_once_all_newest_values_are_back():
    assert found(COLLAPSE, [0.1] * 20 + [0.5, 0.5], open_limit=0.2).broken
    assert not found(COLLAPSE, [0.1] * 20 + [0.5, 0.5, 0.5], open_limit=0.2).broken


def test_the_sentence_has_the_numbers():
    metric, rule = RULED["verifier_error/fraction"], RULED["verifier_error/fraction"].rules[0]
    assert sentence(metric, rule, found(rule, [0.2] * 3)) == "Verifier errors is 0.2, above 0.05 for 3 steps"
    entropy = RULED["actor/entropy"]
    assert "0.2 times its median, for 3 steps" in sentence(entropy, entropy.rules[0], found(entropy.rules[0], [1.0] * 20 + [0.1] * 3))
    assert limit_text(rule, 0.05) == "≤ 0.05" and limit_text(FINITE, None) == "finite" and limit_text(COLLAPSE, None) == "≥ 0.2 × median"


# ---------------------------------------------------------------- recall and precision on whole runs
LENGTH = 120
CLEAN = {
    "critic/score/mean": lambda rng, t: 0.3 + 0.4 * t + rng.normal(0, 0.03, LENGTH),
    "reward/missing_fraction": lambda rng, t: rng.binomial(64, 0.004, LENGTH) / 64,
    "group/zero_variance_fraction": lambda rng, t: np.clip(0.1 + 0.25 * t + rng.normal(0, 0.05, LENGTH), 0, 1),
    "response_length/clip_ratio": lambda rng, t: np.clip(0.05 + rng.normal(0, 0.02, LENGTH), 0, 1),
    "actor/entropy": lambda rng, t: 1.2 * np.exp(-0.8 * t) + rng.normal(0, 0.03, LENGTH),
    "actor/pg_loss": lambda rng, t: rng.normal(0, 0.02, LENGTH),
    "actor/grad_norm": lambda rng, t: np.exp(rng.normal(-1, 0.4, LENGTH)),
    "sft/loss": lambda rng, t: 2 * np.exp(-3 * t) + rng.normal(0, 0.02, LENGTH),
    "rollout_corr/kl": lambda rng, t: rng.normal(0, 0.002, LENGTH),
    "rollout_corr/k3_kl": lambda rng, t: np.exp(rng.normal(-7, 0.3, LENGTH)),
    "rollout_corr/rollout_is_eff_sample_size": lambda rng, t: np.clip(0.96 + rng.normal(0, 0.015, LENGTH), 0, 1),
    "verifier_error/fraction": lambda rng, t: rng.binomial(64, 0.003, LENGTH) / 64,
}


def clean_run(rng):
    t = np.linspace(0, 1, LENGTH)
    return {name: make(rng, t) for name, make in CLEAN.items()}


def incidents_of(run):
    """Rule by rule over the run's life, as the evaluator sees it: the names of the metrics that opened an incident, once each time."""
    opened = []
    for name in run:
        for rule in RULED[name].rules:
            limit = None
            for end in range(1, len(run[name]) + 1):
                values = run[name][max(0, end - TAIL) : end]
                finding = examine(rule, np.arange(len(values)), values, limit)
                if finding.broken and limit is None:
                    opened.append(name)
                    limit = finding.limit if finding.limit is not None else np.inf
                elif not finding.broken:
                    limit = None
    return opened


def spoil(run, name, how, at, rng):
    run[name][at:] = how(run[name][at:], rng)


BAD = {
    "entropy collapse": ("actor/entropy", lambda v, rng: v * 0.05),
    "entropy explosion": ("actor/entropy", lambda v, rng: v * 4),
    "gradient spike": ("actor/grad_norm", lambda v, rng: np.concatenate([[50.0], v[1:]])),
    "nan loss": ("actor/pg_loss", lambda v, rng: np.concatenate([[np.nan], v[1:]])),
    "verifier down": ("verifier_error/fraction", lambda v, rng: rng.binomial(64, 0.4, len(v)) / 64),
    "rewards missing": ("reward/missing_fraction", lambda v, rng: rng.binomial(64, 0.3, len(v)) / 64),
    "mismatch grows": ("rollout_corr/k3_kl", lambda v, rng: v * 8),
    "samples degenerate": ("rollout_corr/rollout_is_eff_sample_size", lambda v, rng: v * 0.25),
    "all solved": ("group/zero_variance_fraction", lambda v, rng: np.full(len(v), 0.95)),
    "at the cap": ("response_length/clip_ratio", lambda v, rng: np.full(len(v), 0.5)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", BAD)
def test_every_bad_curve_opens_an_incident_of_its_metric(kind, seed):
    rng = np.random.default_rng(seed)
    run, (name, how) = clean_run(rng), BAD[kind]
    spoil(run, name, how, 60, rng)
    assert name in incidents_of(run)


def test_a_collapse_is_one_incident():
    rng = np.random.default_rng(0)
    run = clean_run(rng)
    spoil(run, "actor/entropy", BAD["entropy collapse"][1], 60, rng)
    assert incidents_of(run).count("actor/entropy") == 1


def test_clean_runs_are_left_in_peace():
    alarms = [name for seed in range(200) for name in set(incidents_of(clean_run(np.random.default_rng(1000 + seed))))]
    assert len(alarms) <= 1, alarms
