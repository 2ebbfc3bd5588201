"""The instant preflight of runs on ScienceWorld: a cap that no gold fits in, tasks that the simplification forbids, memory for the simulators.

What only a node can tell (whether it has Java, how much memory is free) is asked of it before the first step.
"""

from controlplane.banks.models import BankVersion
from controlplane.cluster.models import Node, NodeState
from runner.contract.run_config import RunConfig
from runner.contract.scienceworld import SIMULATOR_BYTES, check_simplification, kind_of

GIB = 2**30
HEAP_MB = 256


def check(config: RunConfig, version: BankVersion, tasks, found) -> None:
    """`tasks` are the rows that the run's filters keep; `found` collects (preflight.Findings)."""
    kinds = sorted(set(tasks.values_list("level", flat=True)))
    check_kinds(config, kinds, found)
    check_cap(config, version.report.get("scienceworld") or {}, kinds, found)
    check_memory(config, found)


def check_kinds(config: RunConfig, kinds: list[str], found) -> None:
    simplification = config.environment.simplification
    for kind in kinds:
        try:
            check_simplification(simplification, kind_of(kind))
        except ValueError as error:
            return found.refuse("/environment/simplification", str(error), simplification)


def check_cap(config: RunConfig, measured: dict, kinds: list[str], found) -> None:
    """Against the gold that the import played; says nothing of kinds that it did not play."""
    cap = config.environment.max_actions
    played = {row["id"]: row["gold"] for row in measured.get("tasks", []) if row["id"] in kinds and row["gold"].get("shortest")}
    beyond = {kind: gold["shortest"] for kind, gold in played.items() if gold["shortest"] > cap}
    if beyond and len(beyond) == len(kinds):
        told = f"is smaller than the shortest gold of every task chosen ({_listed(beyond)}); raise it to {min(beyond.values())} or more"
        return found.refuse("/environment/max_actions", told, cap)
    if beyond:
        told = f"is smaller than the shortest gold of {len(beyond)} of {len(kinds)} kinds of task ({_listed(beyond)}): none of theirs can be imitated"
        found.warn("/environment/max_actions", told, cap)
    if played and measured.get("simplification") != config.environment.simplification:
        told = f"the bank's gold was measured under {measured.get('simplification') or 'none'!r}; lengths differ under another"
        found.warn("/environment/simplification", told, config.environment.simplification)


def _listed(shortest: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(shortest.items(), key=lambda item: item[1])[:6])


def check_memory(config: RunConfig, found) -> None:
    """A node that cannot hold one simulator refuses the run; where memory is short, fewer run at a time."""
    wanted, resources = config.environment, config.resources
    memory = max(Node.objects.filter(state=NodeState.READY).values_list("memory", flat=True), default=0)
    each = SIMULATOR_BYTES + (wanted.heap_mb - HEAP_MB << 20)
    count = wanted.max_concurrent_episodes * resources.rollout_workers
    if not memory or count * each <= memory:
        return
    told = f"{count} simulators need {count * each / GIB:.1f} GB at {each / GIB:.2f} GB each, the largest node has {memory / GIB:.1f} GB"
    path, value = "/environment/max_concurrent_episodes", wanted.max_concurrent_episodes
    if each > memory:
        return found.refuse(path, f"{told}: not even one fits; lower environment.heap_mb {wanted.heap_mb}", value)
    found.warn(path, f"{told}: about {int(memory // each)} will run at a time, the other episodes wait", value)
