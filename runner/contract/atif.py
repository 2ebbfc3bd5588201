"""ATIF: an agent's trajectory as other tools read it. Written as version 1.7, read from 1.0 to 1.8.

A step is what the system, the user or the agent said; an agent's step carries its tool calls, what was observed after them, and token
counts. Pure functions of documents; a broken document is refused with the step and the field.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

VERSION = "ATIF-v1.7"
READABLE = tuple(f"ATIF-v1.{minor}" for minor in range(9))
SOURCES = ("system", "user", "agent")
# Fields that only an agent's step may have.
AGENT_ONLY = ("model_name", "reasoning_content", "tool_calls", "metrics")


class InvalidTrajectory(ValueError):
    """The document is no trajectory; the message names the step and the field."""


@dataclass
class AgentTurn:
    """One reply: its text, its tool calls (function, arguments), what was shown afterwards, and its tokens where they are known."""

    message: str
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    observation: str = ""
    reasoning: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    at: float | None = None


@dataclass
class Trajectory:
    """A trajectory as read. `turns` are the agent's own; steps that were copied from another context are left out of them."""

    session: str
    agent: str
    version: str
    model: str
    prompt: str
    turns: list[AgentTurn] = field(default_factory=list)


def write_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """The document."""
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": trajectory.prompt}]
    for number, turn in enumerate(trajectory.turns, 1):
        steps.append(_step(number, turn, trajectory.model))
    spent = {
        f"total_{name}": sum(getattr(turn, name) or 0 for turn in trajectory.turns)
        for name in ("prompt_tokens", "completion_tokens")
        if any(getattr(turn, name) is not None for turn in trajectory.turns)
    }
    return {
        "schema_version": VERSION,
        "session_id": trajectory.session,
        "agent": {"name": trajectory.agent, "version": trajectory.version, "model_name": trajectory.model},
        "steps": steps,
        "final_metrics": {**spent, "total_steps": len(steps)},
    }


def _step(number: int, turn: AgentTurn, model: str) -> dict[str, Any]:
    step: dict[str, Any] = {"step_id": number + 1, "source": "agent", "message": turn.message, "model_name": model}
    if turn.at is not None:
        step["timestamp"] = datetime.fromtimestamp(turn.at, UTC).isoformat()
    if turn.reasoning:
        step["reasoning_content"] = turn.reasoning
    calls = [
        {"tool_call_id": _call_id(number, place, name), "function_name": name, "arguments": arguments}
        for place, (name, arguments) in enumerate(turn.calls, 1)
    ]
    if calls:
        step["tool_calls"] = calls
    if turn.observation:
        # Several calls share one screen, so it belongs to none of them.
        source = calls[0]["tool_call_id"] if len(calls) == 1 else None
        step["observation"] = {"results": [{"source_call_id": source, "content": turn.observation}]}
    counts = {name: value for name in ("prompt_tokens", "completion_tokens") if (value := getattr(turn, name)) is not None}
    if counts:
        step["metrics"] = counts
    return step


def _call_id(turn: int, place: int, name: str) -> str:
    return f"call_{turn}_task_complete" if name == "mark_task_complete" else f"call_{turn}_{place}"


def read_trajectory(document: Any) -> Trajectory:
    """Raises InvalidTrajectory."""
    if not isinstance(document, dict):
        raise InvalidTrajectory(f"a trajectory is an object, got {type(document).__name__}")
    version = document.get("schema_version")
    if version not in READABLE:
        raise InvalidTrajectory(f"schema_version: {version!r}; versions {READABLE[0]} to {READABLE[-1]} can be read")
    agent = document.get("agent") or {}
    steps = document.get("steps")
    if not isinstance(steps, list) or not isinstance(agent, dict):
        raise InvalidTrajectory("steps: must be a list, and agent an object")
    for number, step in enumerate(steps, 1):
        _check(number, step)
    said = [_text(step.get("message")) for step in steps if step["source"] == "user"]
    named = {key: str(agent.get(key) or "") for key in ("name", "version", "model_name")}
    turns = [_turn(step) for step in steps if step["source"] == "agent" and not step.get("is_copied_context")]
    session = str(document.get("session_id") or document.get("trajectory_id") or "")
    return Trajectory(session, named["name"], named["version"], named["model_name"], said[0] if said else "", turns)


def _check(number: int, step: Any) -> None:
    where = f"steps[{number - 1}]"
    if not isinstance(step, dict) or step.get("source") not in SOURCES:
        raise InvalidTrajectory(f"{where}.source: must be one of {', '.join(SOURCES)}")
    if step.get("step_id") != number:
        raise InvalidTrajectory(f"{where}.step_id: {step.get('step_id')!r}, expected {number}")
    foreign = [name for name in AGENT_ONLY if step.get(name) is not None]
    if step["source"] != "agent" and foreign:
        raise InvalidTrajectory(f"{where}.{foreign[0]}: only an agent's step may have it")
    known = {call.get("tool_call_id") for call in step.get("tool_calls") or ()}
    for result in (step.get("observation") or {}).get("results") or ():
        if result.get("source_call_id") not in (None, *known):
            raise InvalidTrajectory(f"{where}.observation: source_call_id {result['source_call_id']!r} is no call of this step")


def _turn(step: dict[str, Any]) -> AgentTurn:
    calls = [(str(call.get("function_name")), call.get("arguments") or {}) for call in step.get("tool_calls") or ()]
    seen = [_text(result.get("content")) for result in (step.get("observation") or {}).get("results") or ()]
    counts = step.get("metrics") or {}
    at = _moment(step.get("timestamp"))
    tokens = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return AgentTurn(_text(step.get("message")), calls, "\n".join(seen), step.get("reasoning_content") or "", *tokens, at)


def _text(content: Any) -> str:
    """A message is text, or a list of parts of which the text ones count."""
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _moment(stamp: Any) -> float | None:
    if not isinstance(stamp, str) or not re.match(r"\d{4}-", stamp):
        return None
    try:
        moment = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
