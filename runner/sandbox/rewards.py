"""The verifier's word: reward.json, a flat map of numbers, or reward.txt, one number. Whatever else it is has a name and is no reward."""

import json
import math

from runner.sandbox.base import Container
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.streams import printable

FOLDER = "/logs/verifier"
LIMIT = 256 << 10
KEYS = 10_000


async def read_rewards(container: Container) -> dict[str, float]:
    """Rewards by name; reward.json wins over reward.txt. Raises SandboxFailure with a REWARD_… reason."""
    for name, parse in (("reward.json", parse_json), ("reward.txt", parse_text)):
        try:
            content = await container.read(f"{FOLDER}/{name}", LIMIT)
        except SandboxFailure as error:
            if error.reason is Reason.PATH_MISSING:
                continue
            raise _named(error, name) from None
        return parse(content)
    raise SandboxFailure(Reason.REWARD_MISSING, f"the verifier wrote neither {FOLDER}/reward.json nor reward.txt; see its output")


def _named(error: SandboxFailure, name: str) -> SandboxFailure:
    meaning = {Reason.ARCHIVE_TOO_LARGE: Reason.REWARD_TOO_LARGE, Reason.ARCHIVE_SPECIAL_FILE: Reason.REWARD_UNPARSABLE}
    return SandboxFailure(meaning.get(error.reason, error.reason), f"{name}: {error}; write a flat map of numbers")


def parse_json(content: bytes) -> dict[str, float]:
    """A flat JSON object of finite numbers. Python's reader takes NaN and Infinity, so that they are refused by name."""
    if not content.strip():
        raise SandboxFailure(Reason.REWARD_EMPTY, "reward.json is empty; the grader ended before it wrote")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SandboxFailure(Reason.REWARD_UNPARSABLE, f"reward.json is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise SandboxFailure(Reason.REWARD_UNPARSABLE, f"reward.json holds a {type(values).__name__}; write an object of numbers")
    if not values or len(values) > KEYS:
        reason = Reason.REWARD_TOO_LARGE if values else Reason.REWARD_EMPTY
        raise SandboxFailure(reason, f"reward.json has {len(values)} values; between 1 and {KEYS} are read")
    return {printable(name): _number(name, value) for name, value in values.items()}


def parse_text(content: bytes) -> dict[str, float]:
    """One number, named `reward`."""
    text = content.decode(errors="replace").strip()
    if not text:
        raise SandboxFailure(Reason.REWARD_EMPTY, "reward.txt is empty; the grader ended before it wrote")
    try:
        value = float(text)
    except ValueError:
        raise SandboxFailure(Reason.REWARD_NOT_NUMERIC, f"reward.txt: {text[:80]!r} is no number") from None
    return {"reward": _number("reward", value)}


def _number(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SandboxFailure(Reason.REWARD_NOT_NUMERIC, f"{name}: {str(value)[:80]!r} is no number; write numbers only")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SandboxFailure(Reason.REWARD_NOT_FINITE, f"{name}: {number}; a score that cannot be computed is no score, write none")
    return number


def score(rewards: dict[str, float], key: str) -> float:
    """The training reward. Raises for a grader that says of itself that it failed, and for a missing key: neither is a 0."""
    if rewards.get("grader_error"):
        raise SandboxFailure(Reason.GRADER_ERROR, "grader_error is set: the grader crashed and wrote its fallback")
    if key not in rewards:
        raise SandboxFailure(Reason.REWARD_KEY_MISSING, f"{key}: not among the rewards {sorted(rewards)[:20]}; check the task's reward key")
    return rewards[key]
