"""The allocator against its promises: whole gangs, no double booking, no starvation, a sentence with the numbers."""

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cluster.allocator import AGING_S, Amount, Bundle, Holding, Request, decide, explain_impossible, gang, place, total

LAPTOP = {"local": Amount(Decimal(2), 0)}


def amount(cpus, gpus=0):
    return Amount(Decimal(str(cpus)), gpus)


def request(key, cpus, gpus=0, **more):
    return Request(key, (Bundle("learner", Decimal(str(cpus)), gpus),), label=key, **more)


def test_the_default_gang_fits_two_cores_exactly():
    bundles = gang(2, 0.5, 0.8, 0.2, 0)
    assert [bundle.name for bundle in bundles] == ["driver", "learner", "worker-0", "worker-1"]
    assert total(bundles) == amount(2)
    assert place(bundles, LAPTOP) == {name: "local" for name in ("driver", "learner", "worker-0", "worker-1")}


def test_gpus_are_dealt_whole_and_the_learner_takes_the_rest():
    assert [bundle.gpus for bundle in gang(2, 1, 1, 0.2, 8)] == [0, 4, 2, 2]
    assert [bundle.gpus for bundle in gang(2, 1, 1, 0.2, 1)] == [0, 1, 0, 0]


def test_every_process_of_the_learner_is_a_bundle():
    bundles = gang(1, 0.5, 0.8, 0.2, 5, learner_processes=3)
    assert [(bundle.name, bundle.gpus) for bundle in bundles] == [("driver", 0), ("learner", 2), ("learner-1", 1), ("learner-2", 1), ("worker-0", 1)]
    assert {bundle.cpus for bundle in bundles if bundle.name.startswith("learner")} == {Decimal("0.8")}


def test_a_gang_prefers_the_tightest_single_node():
    bundles = gang(1, 1, 1, 0.5, 0)
    assert set(place(bundles, {"big": amount(16), "small": amount(3)}).values()) == {"small"}


def test_a_gang_spreads_when_no_node_holds_it():
    places = place([Bundle("learner", Decimal(3)), Bundle("worker-0", Decimal(3))], {"a": amount(4), "b": amount(4)})
    assert sorted(places.values()) == ["a", "b"]


def test_nothing_is_granted_by_halves():
    assert place([Bundle("learner", Decimal(3)), Bundle("worker-0", Decimal(2))], {"a": amount(4)}) is None


def test_waiting_names_the_need_the_free_and_the_holder():
    holder = Holding("local", amount("1.5"), "warm-up", team=1)
    [decision] = decide([request("mine", 2, team=1)], LAPTOP, [holder])
    assert decision.places is None
    assert decision.why == "needs 2.0 CPUs, 0.5 free of 2.0; run warm-up holds 1.5"


def test_another_teams_run_is_not_named():
    holder = Holding("local", amount("1.5"), "secret", team=2)
    [decision] = decide([request("mine", 2, team=1)], LAPTOP, [holder])
    assert "secret" not in decision.why and "another team holds 1.5" in decision.why


def test_waiting_says_when_the_free_capacity_is_in_pieces():
    [decision] = decide([request("wide", 3)], {"a": amount(2), "b": amount(2)}, [])
    assert "not in whole bundles on any node" in decision.why


def test_waiting_says_when_no_node_is_known():
    [decision] = decide([request("mine", 1)], {}, [])
    assert decision.why == "no node is ready; Ray has not reported one"


def test_higher_priority_goes_first_then_the_older():
    queue = [request("young", 2, waited=1), request("old", 2, waited=9), request("urgent", 2, priority=5)]
    assert [decision.request.key for decision in decide(queue, LAPTOP, []) if decision.places] == ["urgent"]
    assert [decision.request.key for decision in decide(queue[:2], LAPTOP, []) if decision.places] == ["old"]


def test_an_aged_gang_keeps_younger_ones_off_its_places():
    holder = Holding("a", amount(4, 4), "first")
    queue = [request("gang", 8, 8, waited=AGING_S), request("small", 1, 1, waited=5)]
    decisions = {decision.request.key: decision for decision in decide(queue, {"a": amount(8, 8)}, [holder])}
    assert decisions["gang"].reserves and decisions["small"].places is None
    assert "kept for a gang that has waited longer" in decisions["small"].why


def test_a_gang_that_has_not_aged_reserves_nothing():
    holder = Holding("a", amount(4, 4), "first")
    queue = [request("gang", 8, 8, waited=AGING_S - 1), request("small", 1, 1, waited=5)]
    assert [decision.request.key for decision in decide(queue, {"a": amount(8, 8)}, [holder]) if decision.places] == ["small"]


def test_younger_gangs_may_use_what_a_reservation_will_not_need():
    holder = Holding("a", amount(8), "first")
    queue = [request("gang", 8, waited=AGING_S), request("small", 1, waited=5)]
    decisions = {decision.request.key: decision for decision in decide(queue, {"a": amount(8), "b": amount(2)}, [holder])}
    assert decisions["gang"].places is None
    assert decisions["small"].places == {"learner": "b"}


def test_a_reserved_gang_starts_before_a_more_urgent_one_once_it_fits():
    queue = [request("urgent", 2, priority=100), request("gang", 2, waited=AGING_S, reserved=True)]
    assert [decision.request.key for decision in decide(queue, LAPTOP, []) if decision.places] == ["gang"]


def test_impossible_is_said_with_numbers():
    assert explain_impossible(gang(2, 0.5, 0.8, 0.2, 0), LAPTOP) is None
    assert explain_impossible(gang(2, 0.5, 0.8, 0.2, 4), LAPTOP) == "the run needs 4 GPUs; the cluster has 0 GPUs"
    assert explain_impossible(gang(4, 0.5, 0.8, 0.2, 0), LAPTOP) == "the run needs 3.0 CPUs; the cluster has 2.0 CPUs"
    nodes = {"a": amount(8, 2), "b": amount(8, 2)}
    assert explain_impossible(gang(1, 1, 1, 0.2, 3), nodes) is None
    assert explain_impossible([Bundle("learner", Decimal(1), 3)], nodes) == "learner needs 3 GPUs on one node; the largest, a, has 2 GPUs"


shares = st.decimals("0.001", 4, places=3)
bundle_lists = st.lists(st.tuples(shares, st.integers(0, 3)), min_size=1, max_size=5).map(
    lambda items: tuple(Bundle(f"b{index}", cpus, gpus) for index, (cpus, gpus) in enumerate(items))
)
clusters = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=4).map(
    lambda nodes: {name: Amount(Decimal(cpus), gpus) for name, (cpus, gpus) in nodes.items()}
)
queues = st.lists(st.tuples(bundle_lists, st.integers(-3, 3), st.floats(0, 2 * AGING_S)), max_size=6)


@settings(max_examples=100, deadline=None)
@given(clusters, queues)
def test_nothing_is_double_booked_and_every_grant_is_whole(capacity, queue):
    requests = [Request(index, bundles, priority, waited) for index, (bundles, priority, waited) in enumerate(queue)]
    decisions = decide(requests, capacity, [])
    assert sorted(decision.request.key for decision in decisions) == list(range(len(requests)))
    used = {}
    for decision in decisions:
        if decision.places is None:
            assert decision.why
            continue
        assert set(decision.places) == {bundle.name for bundle in decision.request.bundles}
        for bundle in decision.request.bundles:
            node = decision.places[bundle.name]
            used[node] = used.get(node, Amount()) + Amount(bundle.cpus, bundle.gpus)
    assert all(capacity[node].holds(held) for node, held in used.items())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_a_big_gang_starts_once_those_before_it_end_however_many_small_ones_arrive(sizes, durations):
    """Simulated minutes: eight GPUs, a stream of small runs, one run that needs all eight."""
    capacity, running, waiting = {"a": amount(8, 8)}, [(2, "first", amount(1, 1))], [("gang", 8, 0.0)]
    for minute in range(200):
        running = [item for item in running if item[0] > minute]
        waiting.append((f"small-{minute}", sizes[minute % len(sizes)], 0.0))
        requests = [request(name, size, size, waited=waited, reserved=waited >= AGING_S) for name, size, waited in waiting]
        for decision in decide(requests, capacity, [Holding("a", held, name) for _, name, held in running]):
            if decision.places:
                size = decision.request.total.gpus
                running.append((minute + durations[minute % len(durations)], decision.request.key, amount(size, size)))
        started = {name for _, name, _ in running}
        waiting = [(name, size, waited + 60) for name, size, waited in waiting if name not in started]
        if "gang" in started:
            break
    # Reserves after five minutes; whoever runs then needs at most five more.
    assert "gang" in started and minute <= AGING_S / 60 + max(durations) + 1
