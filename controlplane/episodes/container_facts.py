"""What a container episode's page shows of how it went: seconds by phase, checks beside the floor, what was delivered, the patch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from controlplane.episodes.models import Episode

PHASES = (
    ("admit", "Waiting for a slot"),
    ("env_setup", "Image and container"),
    ("healthcheck", "Health check"),
    ("agent_setup", "Agent's setup"),
    ("agent_execution", "Agent"),
    ("collect", "Collecting"),
    ("verifier", "Verifier"),
    ("parse_reward", "Reading the reward"),
    ("regrade", "Grading again"),
    ("teardown", "Teardown"),
    ("release", "Release"),
)
# Inside of another phase, so that it is not added once more.
WITHIN = ("parse_reward",)
NO_FLOORS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class PhaseShown:
    """Seconds of a phase, and its share of all phases in percent."""

    title: str
    seconds: float
    share: float


@dataclass(frozen=True)
class CheckShown:
    """A check's score. `floor` is what the unrepaired code scores there, or over all checks where only that is known."""

    name: str
    score: float
    floor: float | None

    @property
    def is_above(self) -> bool:
        return self.floor is None or self.score > self.floor

    @property
    def at(self) -> float:
        """Place on a line of 100."""
        return _place(self.score)

    @property
    def floor_at(self) -> float | None:
        return None if self.floor is None else _place(self.floor)


def _place(value: float) -> float:
    return round(100 * min(max(value, 0.0), 1.0), 1)


@dataclass(frozen=True)
class ContainerFacts:
    """`sentence` says whether and how it was graded; None of the parts is guessed where the runner told nothing."""

    phases: list[PhaseShown]
    checks: list[CheckShown]
    sentence: str
    rewards: dict[str, float] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)
    patch: list[tuple[str, str]] = field(default_factory=list)
    verifier_output: str = ""
    floor: float | None = None
    rows: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


def container_facts(episode: Episode, floors: Mapping[str, float] = NO_FLOORS) -> ContainerFacts | None:
    """None for an episode that ran in no container. `floors` are those of single checks, by name."""
    facts, evidence = episode.facts, episode.evidence
    if not isinstance(facts.get("phases"), dict):
        return None
    rewards = _numbers(evidence.get("rewards"))
    floor = rewards.get("floor", evidence.get("floor"))
    floor = floor if isinstance(floor, int | float) else None
    return ContainerFacts(
        phases=_phases(facts["phases"]),
        checks=[
            CheckShown(check, value, floors.get(check, floor))
            for name, value in rewards.items()
            if name.startswith("check_") and (check := name.removeprefix("check_"))
        ],
        sentence=_sentence(episode),
        rewards={name: value for name, value in rewards.items() if not name.startswith("check_")},
        delivered=[str(path) for path in evidence.get("delivered") or []],
        patch=_diff_lines(str(evidence.get("patch") or "")),
        verifier_output=str(evidence.get("verifier_output") or ""),
        floor=floor,
        rows=_rows(facts, evidence),
    )


def _numbers(found: Any) -> dict[str, float]:
    return {str(name): value for name, value in found.items() if isinstance(value, int | float)} if isinstance(found, dict) else {}


def _phases(told: dict[str, Any]) -> list[PhaseShown]:
    seconds = _numbers(told)
    named = [(key, title) for key, title in PHASES if key in seconds] + [(key, key) for key in seconds if key not in dict(PHASES)]
    total = sum(value for key, value in seconds.items() if key not in WITHIN) or 1.0
    return [PhaseShown(title, seconds[key], round(100 * seconds[key] / total, 1)) for key, title in named if key not in WITHIN]


def _sentence(episode: Episode) -> str:
    """Graded 0 and ungraded are different things, and are said differently."""
    again = " after it was graded again" if episode.evidence.get("regraded") or (episode.grade_ordinal or 0) > 0 else ""
    if episode.score is not None:
        return f"graded {episode.score:g}{again}"
    if episode.grade_ordinal is None:
        return "not graded: the verifier was never reached"
    return f"not graded{again}: {episode.evidence.get('sandbox_reason') or episode.grade_reason or 'the verifier gave no reward'}"


def _rows(facts: dict[str, Any], evidence: dict[str, Any]) -> list[tuple[str, Any]]:
    """What else is known, in words; what was not told is left out."""
    isolation = {"strong": "a container", "weak": "processes: weaker isolation"}.get(facts.get("isolation"), facts.get("isolation"))
    told = [
        ("Agent", facts.get("agent")),
        ("Node", facts.get("node")),
        ("Isolation", isolation),
        ("Hint", facts.get("hint_level")),
        ("Task files", (facts.get("task_digest") or "")[:12]),
        ("Unreadable replies", facts.get("parse_errors")),
        ("Fetched from the network", facts.get("fetches")),
        ("Canary seen", "yes" if facts.get("canary_seen") else None),
        ("Sequences", facts.get("forks")),
        ("Folder", facts.get("folder")),
        ("Artifacts", evidence.get("artifacts")),
    ]
    return [(title, value) for title, value in told if value]


def _diff_lines(patch: str) -> list[tuple[str, str]]:
    """(kind, line): head, add, remove or same."""
    kinds = {"+": "add", "-": "remove", "@": "head"}
    return [("head" if line[:3] in ("+++", "---") else kinds.get(line[:1], "same"), line) for line in patch.splitlines()]
