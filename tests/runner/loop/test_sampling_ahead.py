"""Steps that are sampled ahead of the learner, and groups that are drawn again."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from runner.contract.termination import Termination
from runner.policies.base import SamplingParams
from runner.reporting.metrics import Clock
from runner.rollouts.dispatcher import Dispatcher, lost_outcome
from runner.rollouts.episodes import WorkerBatch
from runner.rollouts.sampler import Resampler, Sampler
from runner.rollouts.workflow import GroupWorkflow


class Recorder:
    def __init__(self):
        self.sent, self.cancelled_orders, self.reported = [], [], []

    count = 2
    emitter = SimpleNamespace(together=nullcontext)

    def started(self, order, worker, version):
        self.sent.append((order.step, version))

    def ended(self, outcome):
        self.reported.append(outcome)

    def cancelled(self, order, version):
        self.cancelled_orders.append(order)

    def call(self, worker, method, job):
        return WorkerBatch([lost_outcome(order, worker, "", self.version) for order in job.orders], 0.0, 0.0)

    def result(self, worker, batch):
        for outcome in batch.outcomes:
            object.__setattr__(outcome.sample, "termination", Termination.FINISHED)
        return batch


def sampler_of(bound, last=5):
    recorder = Recorder()
    recorder.version = 0
    dispatcher = Dispatcher(recorder, "7")
    workflow = GroupWorkflow(["a", "b"], 4, 2, 1, 1)
    return Sampler(workflow, dispatcher, recorder, 0, 1, bound, SamplingParams(), last), dispatcher, recorder


def drive(bound):
    sampler, dispatcher, recorder = sampler_of(bound)
    for step in range(1, 6):
        batch = sampler.batch(step, Clock())
        assert len(batch.outcomes) == 4 and {outcome.order.step for outcome in batch.outcomes} == {step}
        assert all(step - 1 - outcome.sample.policy_version <= bound for outcome in batch.outcomes)
        dispatcher.version = recorder.version = step
    return recorder.sent


def test_with_bound_zero_each_step_is_ordered_under_the_version_it_learns_from():
    assert sorted(set(drive(0))) == [(step, step - 1) for step in range(1, 6)]


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_with_a_bound_steps_are_ordered_ahead_and_never_beyond_it_or_the_stage(bound):
    ordered = dict(drive(bound))
    assert set(ordered) == {1, 2, 3, 4, 5}
    assert all(ordered[step] == max(0, step - 1 - bound) for step in ordered)


def test_what_was_ordered_ahead_is_cancelled_by_name_on_a_stop():
    sampler, _, recorder = sampler_of(2)
    sampler.batch(1, Clock())
    sampler.cancel()
    assert {order.step for order in recorder.cancelled_orders} == {2, 3} and len(recorder.cancelled_orders) == 8


def test_episodes_staler_than_the_bound_are_reported_and_not_learned_from():
    sampler, dispatcher, recorder = sampler_of(0)
    recorder.version, dispatcher.version = 0, 2
    with pytest.raises(RuntimeError, match="raise max_staleness"):
        sampler.batch(3, Clock())
    assert len(recorder.reported) == 4


def resampler_of(silent_draws, max_draws):
    """Groups of a step's first `silent_draws` draws have no signal, but for group 0."""
    recorder = Recorder()
    recorder.version = 0
    per_draw = 2
    workflow = GroupWorkflow(["a", "b", "c"], 4, 2, 1, 1)

    def silent(samples):
        return {sample.group for sample in samples if sample.group and sample.group // per_draw < silent_draws}

    return Resampler(
        workflow, Dispatcher(recorder, "7"), recorder, 0, 1, 0, SamplingParams(), 5, silent=silent, max_draws=max_draws
    ), recorder


def test_groups_without_signal_are_replaced_by_fresh_ones_and_reported():
    sampler, recorder = resampler_of(silent_draws=2, max_draws=10)
    batch = sampler.batch(1, Clock())
    assert [outcome.order.group for outcome in batch.outcomes] == [0, 0, 4, 4] and batch.draws == 3
    assert [outcome.order.group for outcome in recorder.reported] == [1, 1, 2, 2], "what was replaced is told, once"
    assert len({outcome.order.seed for outcome in batch.outcomes}) == 4
    again, _ = resampler_of(silent_draws=2, max_draws=10)
    assert [outcome.order for outcome in again.batch(1, Clock()).outcomes] == [outcome.order for outcome in batch.outcomes]


def test_the_last_draw_keeps_everything():
    sampler, recorder = resampler_of(silent_draws=99, max_draws=3)
    batch = sampler.batch(1, Clock())
    assert [outcome.order.group for outcome in batch.outcomes] == [0, 0, 4, 4] and batch.draws == 3 and len(recorder.reported) == 4
    with_signal, recorder = resampler_of(silent_draws=0, max_draws=3)
    assert with_signal.batch(1, Clock()).draws == 1 and not recorder.reported
