"""What an episode in containers came to, as it is told: the grade with its evidence, and the facts of how it went."""

from collections import defaultdict
from collections.abc import Iterable

from runner.contract.repair import RepairPayload
from runner.contract.termination import Termination
from runner.environments.base import Grade
from runner.sandbox.results import EpisodeResult, PhaseTime

OUTPUT_TAIL = 4000


def grade_of(result: EpisodeResult, payload: RepairPayload, patch: str = "") -> Grade:
    """The verifier's word on what was delivered, with everything that it rests on."""
    floor = result.rewards.get("floor", payload.floor)
    evidence = {
        "rewards": dict(result.rewards),
        "reward_key": payload.reward_key,
        "floor": floor,
        "floor_expected": payload.floor,
        "delivered": list(result.delivered),
        "artifacts": str(result.artifacts or ""),
        "verifier_output": result.verifier_output[-OUTPUT_TAIL:],
        "sandbox_reason": str(result.reason or ""),
        "regraded": result.regraded,
        "patch": patch,
    }
    checks = {name: value for name, value in result.rewards.items() if name.startswith("check_")}
    told = result.detail if result.score is None else f"{payload.reward_key} {result.score:g}, floor {floor:g}"
    ended = None if result.termination is Termination.FINISHED else result.termination
    return Grade(result.score, told, None, checks, evidence, f"verifier-{result.verifier_mode}", ended)


def seconds_by_phase(phases: Iterable[PhaseTime]) -> dict[str, float]:
    """Over all entries of each phase."""
    seconds: dict[str, float] = defaultdict(float)
    for item in phases:
        seconds[str(item.phase)] += item.seconds
    return dict(seconds)
