"""One trial of an evaluation: what it is about, what became of it, and its line in results.jsonl."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.contract.bank import Task
from runner.contract.evaluation_results import Record, error_class
from runner.contract.repair import RepairPayload
from runner.contract.termination import Termination
from runner.contract.warming import WarmedTask
from runner.environments.base import Grade
from runner.environments.verdict import grade_of, seconds_by_phase
from runner.rollouts.episodes import Outcome, Turn
from runner.sandbox.results import EpisodeResult


@dataclass(frozen=True)
class Trial:
    """Sample `sample` of `agent` on a task. `number` is the task's place in the selection."""

    task: Task
    payload: RepairPayload
    agent: str
    sample: int
    number: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task.key, self.agent, self.sample

    def episode(self, attempt: str) -> str:
        """The episode's name: of the attempt and the trial alone."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"assay:{attempt}/evaluation/{self.agent}/{self.task.key}/{self.sample}"))


@dataclass
class Ended:
    """What a trial came to, whoever acted. Characters and tokens are None where no model spoke."""

    episode: str
    termination: Termination
    error: str
    started: float
    finished: float
    grade: Grade | None
    facts: dict[str, Any]
    turns: Sequence[Turn] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def score(self) -> float | None:
        return self.grade.score if self.grade else None

    @property
    def evidence(self) -> dict[str, Any]:
        return self.grade.evidence if self.grade else {}


def of_result(result: EpisodeResult, trial: Trial, started: float, finished: float, error: str, **spoken) -> Ended:
    """Of an agent that the sandbox ran. `spoken` is what a model said: turns, prompt_tokens, output_tokens."""
    told = error or (f"{result.reason}: {result.detail}" if result.reason else "")
    facts = {
        "agent": trial.agent,
        "phases": seconds_by_phase(result.phases),
        "node": result.node,
        "isolation": result.isolation,
        "folder": str(result.folder or ""),
        "task_digest": trial.payload.task_digest,
        "delivered": bool(result.delivered),
        "regraded": result.regraded,
    }
    # Before anything could be delivered there was nothing to judge.
    grade = grade_of(result, trial.payload) if result.agent_termination or result.regraded else None
    return Ended(result.episode, result.termination, told, started, finished, grade, facts, **spoken)


def of_outcome(outcome: Outcome, trial: Trial) -> Ended:
    """Of a policy's episode. Its prompt tokens are those of every turn, as a server would count them."""
    grade = Grade(outcome.sample.reward, outcome.reason, None, outcome.checks, outcome.evidence, outcome.grader) if outcome.graded else None
    sample = outcome.sample
    return Ended(
        episode=outcome.order.episode,
        termination=outcome.termination,
        error=outcome.error,
        started=outcome.started,
        finished=outcome.finished,
        grade=grade,
        facts={"agent": trial.agent, **outcome.facts},
        turns=outcome.turns,
        prompt_tokens=sample.prompt_length,
        output_tokens=sum(turn.tokens or 0 for turn in outcome.turns),
    )


def record(trial: Trial, ended: Ended) -> Record:
    """The trial's line of results.jsonl. A score that was not given is null."""
    payload, phases, rewards = trial.payload, ended.facts.get("phases", {}), ended.evidence.get("rewards", {})
    graded = ended.score is not None
    return {
        "task_name": trial.task.key,
        "trial_name": f"{trial.task.key.rpartition('/')[2][:32]}__{ended.episode[:7]}",
        "episode": ended.episode,
        "agent": trial.agent,
        "sample": trial.sample,
        **{name: getattr(payload, name) for name in ("category", "family", "tree", "tier", "reward_key", "task_digest")},
        "score": ended.score,
        "raw_reward": rewards.get("reward"),
        "equivalence_pass": int(rewards.get("equivalence_pass") or 0) if graded else None,
        "success": bool(graded and rewards.get("equivalence_pass")),
        **_spoken(ended),
        "agent_seconds": phases.get("agent_execution"),
        "env_setup_seconds": phases.get("env_setup"),
        "verifier_seconds": phases.get("verifier"),
        "total_seconds": max(0.0, ended.finished - ended.started),
        "floor_reported": rewards.get("floor"),
        "floor_expected": payload.floor,
        "rewards": rewards,
        "delivered": ended.evidence.get("delivered", []),
        "trial_uri": f"file://{ended.facts.get('folder', '')}",
        "termination": str(ended.termination),
        "exception": ended.error or None,
        "exception_type": ended.evidence.get("sandbox_reason") or (ended.error.partition(":")[0][:80] or None),
        "error_class": error_class(ended.error, str(ended.termination), graded),
        "regraded": bool(ended.evidence.get("regraded")),
    }


def warmed(trial: Trial, ended: Ended) -> WarmedTask:
    """How the task came through on a node that is being warmed; its sample is the pass, from 0."""
    phases = ended.facts.get("phases", {})
    return WarmedTask(
        task=trial.task.key,
        task_digest=trial.payload.task_digest,
        env_setup_seconds=phases.get("env_setup", 0.0),
        verifier_seconds=phases.get("verifier", 0.0),
        termination=ended.termination,
        reason=ended.error[:2000],
        score=ended.score,
        passes=trial.sample + 1,
    )


def _spoken(ended: Ended) -> Record:
    """Turns, tokens and characters: of the first prompt, of the agent, and of everything that it was shown afterwards."""
    if not ended.turns:
        return dict.fromkeys(_SPOKEN)
    prompt = ended.turns[0].text
    said = sum(len(turn.text) for turn in ended.turns if turn.author == "student")
    shown = sum(len(turn.text) for turn in ended.turns[1:] if turn.author != "student")
    spent, written = ended.prompt_tokens, ended.output_tokens
    total = None if None in (spent, written) else spent + written
    turns = sum(turn.author == "student" for turn in ended.turns)
    return dict(zip(_SPOKEN, (turns, spent, written, total, len(prompt), said, shown, len(prompt) + said + shown), strict=True))


_SPOKEN = ("n_turns", "n_input_tokens", "n_output_tokens", "n_total_tokens", "prompt_chars", "agent_chars", "env_chars", "traj_chars")
