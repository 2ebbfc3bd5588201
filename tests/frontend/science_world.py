"""A bank of the ScienceWorld simulator, a run that learns on it turn by turn, and one of its groups: rows behind their pages."""

from controlplane.accounts.models import Team, User
from controlplane.banks.services import import_version
from controlplane.episodes.services import record_events
from controlplane.runs.models import Run
from controlplane.runs.services import do_launch
from controlplane.telemetry.points import write_points
from runner.contract.bank import Demonstration, write_bank
from runner.contract.metrics import DASHBOARD
from runner.contract.presets import find
from runner.contract.scienceworld import KINDS
from runner.importers.scienceworld import Health, ScienceWorldReport, to_task
from tests.controlplane.factories import make_attempt, make_event, make_points

SPLITS = {"train": [0, 3], "dev": [4, 5], "test": [6, 7]}
ROOMS = ("kitchen", "hallway", "living room", "art studio")
STEPS = 12


def laboratory(user: User, team: Team) -> dict[str, dict[str, str]]:
    """Identifiers of what was made: {"runs": …, "episodes": …}."""
    _bank(user, team)
    run = do_launch(user, team, find("scienceworld-tiny").start() | {"name": "GiGPO on three short tasks"})
    total = run.total_steps
    Run.objects.filter(pk=run.pk).update(state="active", step=total - STEPS, started_at=run.queued_at)
    attempt = make_attempt(run, first_step=0)
    names = [name for _, names in DASHBOARD for name in names]
    points = {
        name: [(total - 2 * STEPS + step, (place + 1) * (0.1 + step / 40)) for step in range(STEPS)] for place, name in enumerate(names)
    }
    write_points(run.pk, 1, make_points(points | {"gigpo/anchor_group_size/mean": [(step, 2.0 + step / 9) for step in range(STEPS)]}))
    return {"runs": {"gigpo": str(run.pk)}, "episodes": {"steps": [_episode(attempt, total - STEPS, sample) for sample in range(8)][1]}}


def _bank(user: User, team: Team) -> None:
    tasks = [
        to_task(kind, variation, split, ["dev140"] if split == "dev" else [])
        for kind in KINDS
        for split, (low, high) in SPLITS.items()
        for variation in range(low, high + 1)
    ]
    report = ScienceWorldReport({"kind": "simulator"}, read=len(tasks), ranges={kind.id: SPLITS for kind in KINDS})
    report.health = {
        "4-2": Health([3, 11, 4, 7], 4, 4, 4, 2, 1),
        "7-1": Health([5, 6, 6, 5], 4, 4, 4, 1, 0),
        "7-2": Health([5, 9], 4, 1, 2, 1, 0, failures=["7-2/1: the score stayed at 83", "7-2/3: env_crash: the simulator ended"]),
        "10-1": Health([126], 1, 1, 1),
    }
    report.notes = ["1 kinds of task need more than 100 actions even by the oracle: 10-1 (shortest 126)"]
    gold = [
        Demonstration(key=f"4-2/0/{turn}", kind="gold", task="4-2/0", prompt=f"Turn {turn}", completion="<action>look around</action>")
        for turn in range(3)
    ]
    import_version(team, "scienceworld", write_bank([*tasks, *gold])[0], report.document(tasks), user, "scienceworld")


def _episode(attempt, step: int, sample: int) -> str:
    """Four turns through the rooms; the second is not understood."""
    episode = f"00000000-0000-4000-8000-0000000000b{sample}"
    solved = sample % 3 == 1
    turns, credit = [], []
    for number, room in enumerate(ROOMS):
        asked = {
            "score": 25.0 * number,
            "inventory": "In your inventory, you see:\n\tan orange\n\ta thermometer, currently reading 21 degrees",
        }
        seen = (
            f"This room is called the {room}. In it, you see:\n\ta table. On the table is: a glass jar (containing nothing).\n\tthe agent"
        )
        turns.append({"index": 2 * number, "role": "user", "author": "environment", "text": seen, "tokens": 214, "facts": asked})
        understood = number != 1
        did = {"action": f"go to {room}", "room": room, "score": 25.0 * (number + 1), "ticks": number + 1}
        did |= {"understood": understood, "format_ok": understood, "listed": understood, "ambiguous": False, "blocked": False}
        said = {"index": 2 * number + 1, "role": "assistant", "author": "student", "text": f"<action>go to {room}</action>", "tokens": 11}
        turns.append(said | {"reward": 2.5 if understood else 0.0, "facts": did})
        parts = {"episode_advantage": 0.75 if solved else -0.25, "step_advantage": 0.5 - number / 4}
        state = {"anchor": f"{number}0c3d5e7f9a1b2d4", "group_size": 8 - number, "group_episodes": 6 - number, "valid": understood}
        credit.append({"turn": number, "index": said["index"], "return": 1.0, "advantage": sum(parts.values()), **parts, **state})
    ended = "finished" if solved else "max_turns_exceeded"
    score = 10.0 if solved else 2.5 * sample % 10
    evidence = {"initial_score": 0.0, "final_score": 10 * score, "best_score": 100.0 if solved else 75.0, "success": solved, "actions": 4}
    started = {"task": "4-2/17", "domain": "Classification", "level": "4-2", "purpose": "train", "stage": 1, "step": step}
    learned = {"step": step, "advantage": credit[0]["advantage"], "trained_tokens": 44, "masked": False, "filters": [], "turns": credit}
    tokens = {"prompt_tokens": 856, "response_tokens": 44}
    record_events(
        attempt,
        [
            make_event(episode, "started", group=4, sample=sample, worker="worker-0", **started),
            *(make_event(episode, "turn", turn["index"], **turn) for turn in turns),
            make_event(episode, "finished", termination=ended, seconds=9.4, **tokens),
            make_event(
                episode, "graded", score=score, reason="", checks={"success": float(solved)}, evidence=evidence, grader="scienceworld"
            ),
            make_event(episode, "trained", **learned),
        ],
    )
    return episode
