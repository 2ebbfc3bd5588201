"""Which waiting gang runs where: a pure function over capacities, holdings and the queue.

All or nothing, in whole bundles; processor shares are decimals, so that 0.2 + 0.8 is 1. A gang that has waited
longer than AGING_S and still does not fit reserves its places: younger ones may use what it will not need.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

AGING_S = 300.0
MILLI = Decimal("0.001")


@dataclass(frozen=True)
class Bundle:
    """One process group of a gang: `name` is driver, learner, learner-i or worker-i. `node` is the only one that will do; empty takes any."""

    name: str
    cpus: Decimal
    gpus: int = 0
    node: str = ""

    def may_run_on(self, node: str) -> bool:
        return self.node in ("", node)


@dataclass(frozen=True)
class Amount:
    cpus: Decimal = Decimal(0)
    gpus: int = 0

    def __add__(self, other):
        return Amount(self.cpus + other.cpus, self.gpus + other.gpus)

    def __sub__(self, other):
        return Amount(self.cpus - other.cpus, self.gpus - other.gpus)

    def holds(self, other) -> bool:
        return other.cpus <= self.cpus and other.gpus <= self.gpus

    @property
    def positive(self) -> "Amount":
        return Amount(max(self.cpus, Decimal(0)), max(self.gpus, 0))


@dataclass(frozen=True)
class Holding:
    """What `label` holds of `node`. Only members of `team` are told the label."""

    node: str
    amount: Amount
    label: str
    team: int | None = None


@dataclass(frozen=True)
class Request:
    """A gang in the queue. `waited` is in seconds."""

    key: object
    bundles: tuple[Bundle, ...]
    priority: int = 0
    waited: float = 0.0
    label: str = ""
    team: int | None = None
    reserved: bool = False

    @property
    def total(self) -> Amount:
        return total(self.bundles)


@dataclass(frozen=True)
class Decision:
    """`places` maps bundle names to nodes when the gang starts now; else `why` says what it waits for."""

    request: Request
    places: dict[str, str] | None = None
    why: str = ""
    reserves: bool = False


@dataclass
class _Cluster:
    """Free amounts while a round of decisions is made."""

    capacity: dict[str, Amount]
    holdings: list[Holding]
    reserved: dict[str, Amount] = field(default_factory=dict)

    def free(self) -> dict[str, Amount]:
        held = _sum_by_node(self.holdings)
        return {node: (amount - held.get(node, Amount())).positive for node, amount in self.capacity.items()}

    def of(self, node: str) -> "_Cluster":
        """This cluster as if it had only `node`."""
        held = [holding for holding in self.holdings if holding.node == node]
        return _Cluster({node: self.capacity[node]}, held, {name: amount for name, amount in self.reserved.items() if name == node})

    def free_beside_reservations(self) -> dict[str, Amount]:
        return {node: (amount - self.reserved.get(node, Amount())).positive for node, amount in self.free().items()}


def total(bundles: Iterable[Bundle]) -> Amount:
    return sum((Amount(bundle.cpus, bundle.gpus) for bundle in bundles), Amount())


def gang(
    rollout_workers: int, worker_cpus: float, learner_cpus: float, driver_cpus: float, gpus: int, learner_processes: int = 1
) -> tuple[Bundle, ...]:
    """The bundles of a run. GPUs are dealt evenly, whole ones only; the learner's first process takes what is left over."""
    each = gpus // (rollout_workers + learner_processes)
    workers = [Bundle(f"worker-{index}", _share(worker_cpus), each) for index in range(rollout_workers)]
    others = [Bundle(f"learner-{rank}", _share(learner_cpus), each) for rank in range(1, learner_processes)]
    learner = Bundle("learner", _share(learner_cpus), gpus - each * len([*workers, *others]))
    return (Bundle("driver", _share(driver_cpus)), learner, *others, *workers)


def alone(cpus: float, node: str = "") -> tuple[Bundle, ...]:
    """The bundle of an evaluation: its driver does everything."""
    return (Bundle("driver", _share(cpus), node=node),)


def _share(cpus: float) -> Decimal:
    return Decimal(str(cpus)).quantize(MILLI)


def place(bundles: Sequence[Bundle], free: dict[str, Amount]) -> dict[str, str] | None:
    """Bundle name → node, or None when the gang does not fit whole.

    One node for all if one can hold it (the tightest such), else the largest bundles first, each on the tightest node
    that holds it.
    """
    whole = total(bundles)
    able = [node for node, amount in free.items() if amount.holds(whole) and all(bundle.may_run_on(node) for bundle in bundles)]
    if able:
        node = min(able, key=lambda name: _tightness(free, name))
        return {bundle.name: node for bundle in bundles}
    left, places = dict(free), {}
    for bundle in sorted(bundles, key=lambda bundle: (-bundle.gpus, -bundle.cpus, bundle.name)):
        need = Amount(bundle.cpus, bundle.gpus)
        able = [node for node, amount in left.items() if amount.holds(need) and bundle.may_run_on(node)]
        if not able:
            return None
        node = min(able, key=lambda name: _tightness(left, name))
        places[bundle.name], left[node] = node, left[node] - need
    return places


def _tightness(free: dict[str, Amount], node: str):
    return (free[node].gpus, free[node].cpus, node)


def decide(requests: Iterable[Request], capacity: dict[str, Amount], holdings: Iterable[Holding]) -> list[Decision]:
    """One decision a request: reserving gangs first, then by priority, then by age."""
    cluster = _Cluster(dict(capacity), list(holdings))
    queue = sorted(requests, key=lambda request: (not request.reserved, -request.priority, -request.waited, str(request.key)))
    return [_decide_one(request, cluster) for request in queue]


def _decide_one(request: Request, cluster: _Cluster) -> Decision:
    places = place(request.bundles, cluster.free_beside_reservations())
    if places is not None:
        cluster.holdings += _holdings(request, places)
        return Decision(request, places)
    why = explain(request, cluster)
    reserves = _reserve(request, cluster) if request.reserved or request.waited >= AGING_S else False
    return Decision(request, None, why, reserves)


def _reserve(request: Request, cluster: _Cluster) -> bool:
    """Hold back the places the gang will have once today's holders have gone; False when it never fits."""
    beside = {node: (amount - cluster.reserved.get(node, Amount())).positive for node, amount in cluster.capacity.items()}
    places = place(request.bundles, beside)
    if places is None:
        return False
    for holding in _holdings(request, places):
        cluster.reserved[holding.node] = cluster.reserved.get(holding.node, Amount()) + holding.amount
    return True


def _holdings(request: Request, places: dict[str, str]) -> list[Holding]:
    amounts = {bundle.name: Amount(bundle.cpus, bundle.gpus) for bundle in request.bundles}
    return [Holding(node, amounts[name], request.label, request.team) for name, node in places.items()]


def _sum_by_node(holdings: Iterable[Holding]) -> dict[str, Amount]:
    held: dict[str, Amount] = {}
    for holding in holdings:
        held[holding.node] = held.get(holding.node, Amount()) + holding.amount
    return held


# ---------------------------------------------------------------- the sentence
def explain(request: Request, cluster: _Cluster) -> str:
    """Why the gang waits: what it needs, what is free of what, who holds the rest."""
    if not cluster.capacity:
        return "no node is ready; Ray has not reported one"
    if (node := _pinned(request.bundles)) and node in cluster.capacity:
        return explain(_anywhere(request), cluster.of(node)) + f" on node {node}"
    if node:
        return f"waits for node {node}, which is not ready"
    need, everything = request.total, sum(cluster.capacity.values(), Amount())
    free = sum(cluster.free().values(), Amount())
    usable = sum(cluster.free_beside_reservations().values(), Amount())
    parts = [_lack(what, need, free, everything) for what in ("gpus", "cpus") if getattr(need, what) > getattr(free, what)]
    if parts:
        return "; ".join([*parts, *_holders(request, cluster.holdings)])
    if not usable.holds(need):
        return f"needs {_say(need)}, which is free, but kept for a gang that has waited longer"
    return f"needs {_say(need)}; {_say(free)} are free, but not in whole bundles on any node"


def explain_impossible(bundles: Sequence[Bundle], capacity: dict[str, Amount]) -> str | None:
    """The numbers when the gang cannot fit even an idle cluster, else None."""
    if place(bundles, capacity) is not None:
        return None
    if node := _pinned(bundles):
        if node not in capacity:
            return f"there is no node {node}; the cluster has {', '.join(sorted(capacity)) or 'none'}"
        return f"the run needs {_say(total(bundles))} on node {node}, which has {_say(capacity[node])}"
    need, everything = total(bundles), sum(capacity.values(), Amount())
    for what in ("gpus", "cpus"):
        if getattr(need, what) > getattr(everything, what):
            return f"the run needs {_one(what, need)}; the cluster has {_one(what, everything)}"
    for what in ("gpus", "cpus"):
        biggest = max(bundles, key=lambda bundle: getattr(bundle, what))
        largest = max(capacity, key=lambda node: getattr(capacity[node], what))
        if getattr(biggest, what) > getattr(capacity[largest], what):
            return f"{biggest.name} needs {_one(what, biggest)} on one node; the largest, {largest}, has {_one(what, capacity[largest])}"
    return f"the run needs {_say(need)} in {len(bundles)} bundles, which do not fit the nodes whole"


def _pinned(bundles: Iterable[Bundle]) -> str:
    """The node that the gang must have; empty when any will do."""
    return next((bundle.node for bundle in bundles if bundle.node), "")


def _anywhere(request: Request) -> Request:
    return replace(request, bundles=tuple(replace(bundle, node="") for bundle in request.bundles))


def _lack(what: str, need: Amount, free: Amount, everything: Amount) -> str:
    return f"needs {_one(what, need)}, {_number(getattr(free, what))} free of {_number(getattr(everything, what))}"


def _holders(request: Request, holdings: list[Holding]) -> list[str]:
    by_label: dict[str, Amount] = {}
    for holding in holdings:
        label = f"run {holding.label}" if holding.team == request.team else "another team"
        by_label[label] = by_label.get(label, Amount()) + holding.amount
    largest = sorted(by_label.items(), key=lambda item: (-item[1].gpus, -item[1].cpus, item[0]))
    told = [
        f"{label} holds {_number(amount.gpus) + ' GPUs' if request.total.gpus else _number(amount.cpus)}" for label, amount in largest[:3]
    ]
    return told + ([f"{len(largest) - 3} more hold the rest"] if len(largest) > 3 else [])


def _one(what: str, amount) -> str:
    number = _number(getattr(amount, what))
    unit = {"cpus": "CPU", "gpus": "GPU"}[what]
    return f"{number} {unit}" if number in ("1", "1.0") else f"{number} {unit}s"


def _say(amount: Amount) -> str:
    return " and ".join([_one("cpus", amount), *([_one("gpus", amount)] if amount.gpus else [])])


def _number(value: Decimal | int) -> str:
    return str(value) if isinstance(value, int) else f"{value.normalize():f}" if value % 1 else f"{value:.1f}"
