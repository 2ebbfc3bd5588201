import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.contract.termination import HANDLING, Termination
from runner.policies.base import Purpose, SamplingParams
from runner.rollouts.dispatcher import Dispatcher, WorkerLost, lost_outcome
from runner.rollouts.episodes import WorkerBatch
from runner.rollouts.groups import assign, environment_seed, evaluation_orders, replacement, training_orders
from runner.rollouts.queue import EpisodeQueue, staleness
from runner.rollouts.workflow import GroupWorkflow

SAMPLING = SamplingParams()


def orders_of(step=1, batch=12, group=3, tasks=("a", "b", "c", "d", "e"), seed=5):
    plans = GroupWorkflow(tasks, batch, group, seed, 1).episodes(step)
    return training_orders(plans, attempt="7", stage=0, run_seed=seed)


def outcome_of(order, version=0, termination=Termination.FINISHED):
    outcome = lost_outcome(order, 0, "", version)
    object.__setattr__(outcome.sample, "termination", termination)
    return outcome


# ---------------------------------------------------------------- queue
@given(st.integers(0, 5), st.integers(1, 50), st.integers(0, 50))
def test_nothing_staler_than_the_bound_gets_in_or_is_ordered(bound, step, version):
    queue = EpisodeQueue(bound)
    (order,) = orders_of(1, 3, 3)[:1]
    refused = queue.insert(step, [outcome_of(order, version)])
    too_old = step - 1 - version > bound
    assert bool(refused) == too_old and len(queue.take(step)) == (not too_old)
    assert queue.may_order(step, version) == (not too_old)


def test_bound_zero_alternates():
    queue = EpisodeQueue(0)
    assert queue.may_order(1, 0) and not queue.may_order(2, 0) and queue.may_order(2, 1)
    assert staleness(3, 5) == 0


def test_a_step_leaves_in_group_order_whatever_the_arrival():
    queue, orders = EpisodeQueue(0), orders_of(1)
    queue.insert(1, [outcome_of(order) for order in reversed(orders[6:])])
    queue.insert(1, [outcome_of(order) for order in reversed(orders[:6])])
    assert [outcome.order for outcome in queue.take(1)] == orders
    assert queue.take(1) == []


# ---------------------------------------------------------------- orders
def test_orders_are_a_function_of_their_coordinates():
    assert orders_of(3) == orders_of(3)
    assert {order.episode for order in orders_of(3)}.isdisjoint(order.episode for order in orders_of(4))
    other_seed = orders_of(3, seed=6)
    assert all(ours.seed != theirs.seed for ours, theirs in zip(orders_of(3), other_seed))


def test_a_group_shares_its_task_and_what_it_is_shown_but_not_its_tokens():
    for group in range(4):
        members = [order for order in orders_of(2) if order.group == group]
        assert len({order.task for order in members}) == len({order.environment_seed for order in members}) == 1
        assert len({order.seed for order in members}) == len(members) == 3


def test_environment_seeds_fit_a_database_integer_and_differ():
    seeds = {environment_seed(run, purpose, step, group) for run in range(3) for purpose in Purpose for step in range(5) for group in range(5)}
    assert len(seeds) == 150 and all(0 <= seed < 2**63 for seed in seeds)


def test_evaluations_of_two_steps_draw_alike():
    first, second = (evaluation_orders(["a", "b"], attempt="7", evaluation=name, stage=0, step=step, run_seed=1) for name, step in (("x", 0), ("y", 9)))
    assert [(order.seed, order.environment_seed) for order in first] == [(order.seed, order.environment_seed) for order in second]
    assert {order.episode for order in first}.isdisjoint(order.episode for order in second)


@given(st.integers(1, 7), st.integers(1, 9), st.integers(2, 5))
def test_groups_stay_whole_and_every_order_is_assigned_once(workers, groups, size):
    orders = orders_of(1, groups * size, size)
    shares = assign(orders, workers)
    assert sorted((order for share in shares for order in share), key=lambda order: (order.group, order.index)) == orders
    for group in range(groups):
        assert sum(any(order.group == group for order in share) for share in shares) == 1


# ---------------------------------------------------------------- dispatcher
class FakeWorkers:
    """Two workers in this process. `ends` scripts terminations by (group, index, trial); `deaths` lists calls that die."""

    count = 2

    def __init__(self, ends=None, deaths=()):
        self.ends, self.deaths = ends or {}, set(deaths)
        self.calls, self.replaced = [], []

    def call(self, worker, method, *arguments):
        self.calls.append((worker, method, arguments))
        return len(self.calls)

    def result(self, worker, reference):
        if reference in self.deaths:
            raise WorkerLost(f"worker-{worker} is gone")
        _, method, (job,) = self.calls[reference - 1]
        assert method == "run_episodes"
        ends = [self.ends.get((order.group, order.index, order.trial), Termination.FINISHED) for order in job.orders]
        return WorkerBatch([outcome_of(order, 3, end) for order, end in zip(job.orders, ends)], 1.0 + worker, 0.5)

    def replace(self, worker):
        self.replaced.append(worker)


def land(workers, orders):
    dispatcher = Dispatcher(workers, "7", version=3)
    return dispatcher.land(dispatcher.send(orders, SAMPLING, "1"))


def test_everything_comes_back_in_order_with_the_slowest_workers_seconds():
    orders = orders_of(1)
    landed = land(FakeWorkers(), orders)
    assert [outcome.order for outcome in landed.outcomes] == orders
    assert (landed.generate_seconds, landed.grade_seconds, landed.replaced) == (2.0, 0.5, 0)


@pytest.mark.parametrize("termination", list(Termination))
def test_only_failures_that_are_nobodys_fault_are_tried_again_and_once(termination):
    handling = HANDLING[termination]
    again = handling.refill or handling.retry == "episode_once"
    landed = land(FakeWorkers({(1, 2, 0): termination, (1, 2, 1): termination}), orders_of(1))
    assert landed.replaced == again and len(landed.outcomes) == 12 + again
    tries = [outcome.order for outcome in landed.outcomes if (outcome.order.group, outcome.order.index) == (1, 2)]
    assert [order.trial for order in tries] == ([0, 1] if again else [0])
    if again:
        assert tries[0].seed == tries[1].seed and tries[0].episode != tries[1].episode


def test_a_lost_worker_is_replaced_and_its_episodes_run_again_under_the_same_seeds():
    orders = orders_of(1)
    workers = FakeWorkers(deaths={2})
    landed = land(workers, orders)
    assert workers.replaced == [1]
    lost = [outcome for outcome in landed.outcomes if outcome.termination is Termination.INFRA_LOST]
    assert {outcome.order.group for outcome in lost} == {1, 3} and all(outcome.sample.reward is None for outcome in lost)
    good = [outcome for outcome in landed.outcomes if outcome.termination is Termination.FINISHED]
    assert sorted(outcome.order.seed for outcome in good) == sorted(order.seed for order in orders)
    assert all(order.group % 2 == worker for worker, _, (job,) in workers.calls for order in job.orders)


def test_a_worker_lost_twice_ends_the_step():
    with pytest.raises(WorkerLost):
        land(FakeWorkers(deaths={2, 3}), orders_of(1))


def test_a_replacement_is_named_by_attempt_and_occasion():
    (order, *_) = orders_of(1)
    first, again = replacement(order, "7", "1"), replacement(order, "7", "1")
    assert first == again and first.episode not in (order.episode, replacement(first, "7", "1").episode)


def test_a_lost_episode_is_counted_and_never_trained():
    from runner.learning.health import rollout_metrics

    samples = [lost_outcome(order, 0, "", 0).sample for order in orders_of(1)]
    metrics = rollout_metrics(samples, 4)
    assert metrics["termination/infra_lost/fraction"] == 1.0 and metrics["reward/missing_fraction"] == 1.0
    assert "critic/score/mean" not in metrics and not np.concatenate([sample.loss_mask for sample in samples]).any()
