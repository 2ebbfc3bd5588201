"""A bank of repair tasks and its anchors, an evaluation and its results, episodes that ran in containers: rows behind their pages."""

from django.utils import timezone

from controlplane.accounts.models import Team, User
from controlplane.banks import anchors, warming
from controlplane.episodes.services import record_events
from controlplane.evals import launching
from controlplane.evals.services import record_evaluation
from controlplane.runs.models import Run
from controlplane.runs.paths import run_folder
from runner.contract.anchors import AnchorResult
from runner.contract.evaluation_results import summarise
from runner.contract.warming import WarmedTask
from tests.controlplane.banks.repair import repair_task, repair_version
from tests.controlplane.factories import make_attempt, make_event

FAMILIES = ("sign", "coef", "bounds")
PATCH = """--- a/src/flux.c
+++ b/src/flux.c
@@ -12,3 +12,3 @@
   for (int i = 0; i < n; i++)
-    f[i] = a[i] - b[i];
+    f[i] = a[i] + b[i];
"""
PHASES = {"admit": 0.01, "env_setup": 6.1, "agent_setup": 0.4, "agent_execution": 2.2, "collect": 0.6, "verifier": 8.4, "teardown": 0.5}


def repair(user: User, team: Team) -> dict[str, dict[str, str]]:
    """Identifiers of what was made: {"runs": …, "episodes": …}."""
    tasks = [repair_task(f"demo/heat-repair-{FAMILIES[n % 3]}-line-{n}", family=FAMILIES[n % 3], floor_container=0.35) for n in range(8)]
    version = repair_version(team, user, [*tasks, repair_task("demo/heat-repair-blocked", codes=("E04", "W01"))])
    _prove(user, version, [task.key for task in tasks])
    native = {"floor_native": 0.35, "floor_container": 0.0, "floor": 0.0}
    fresh = [repair_task(f"demo/wave-repair-{family}", family=family) for family in FAMILIES[:2]]
    fresh.append(repair_task("demo/wave-repair-bounds", family="bounds", codes=("W03",), **native))
    repair_version(team, user, fresh, slug="repair-fresh")
    evaluated = launching.launch(user, team, {"name": "Oracle on heat", "agent": "oracle"})
    episodes = _evaluate(evaluated, [task.key for task in tasks])
    waiting = launching.launch(user, team, {"name": "Nop on heat", "agent": "nop"})
    proof = anchors.proofs(version).get()
    warmed = _warm(user, version, [task.key for task in tasks])
    runs = {"evaluated": evaluated, "evaluating": waiting, "proof": proof, "warmed": warmed}
    return {"runs": {name: str(run.pk) for name, run in runs.items()}, "episodes": episodes}


def _warm(user: User, version, keys: list[str]) -> Run:
    """`local` is cold for one task and was mended for another; the rest are under way."""
    for run in launching.start_warming(user, version):
        done = keys if run.document["resources"]["node"] == "local" else keys[:3]
        told = {"verifier_seconds": 8.4, "termination": "finished", "score": 0.0}
        slow = {keys[1]: {"env_setup_seconds": 18.5, "passes": 2}, keys[5]: {"env_setup_seconds": 75.2, "passes": 2}}
        items = [{"task": key, "env_setup_seconds": 6.1 + place, **told, **slow.get(key, {})} for place, key in enumerate(done)]
        warming.record_warmed(run, [WarmedTask.model_validate(item) for item in items])
        ended = {"state": "succeeded", "ended_at": timezone.now()} if done is keys else {"state": "active"}
        Run.objects.filter(pk=run.pk).update(step=len(done), started_at=timezone.now(), **ended)
    return warming.warmings(version).filter(state="succeeded").get()


def _prove(user: User, version, keys: list[str]) -> None:
    """Seven tasks are done, one of them is broken; the last is under way."""
    version = launching.start_proving(user, version)
    for place, key in enumerate(keys[:-1]):
        for agent, score in (("oracle", 0.5 if place == 3 else 1.0), ("nop", 0.0)):
            # One verifier's image scores the unrepaired code otherwise than the bank says.
            more = {"floor": 0.42 if place == 5 else 0.35, "node": "local", "backend": "docker", "timings": PHASES}
            anchors.record_anchor(version, key, agent, AnchorResult(score=score, raw_reward=score, **more))
    Run.objects.filter(pk=anchors.proofs(version).get().pk).update(state="active", step=2 * len(keys) - 2, started_at=timezone.now())


def _evaluate(run: Run, keys: list[str]) -> dict[str, str]:
    attempt, lines, names = make_attempt(run), [], {"repaired": 0, "ungraded": 6}
    evaluation = "00000000-0000-4000-8000-0000000000e0"
    for place, key in enumerate(keys):
        score = None if place == 6 else (1.0, 1.0, 0.62)[place % 3]
        lines.append(_episode(attempt, evaluation, place, key, score))
    results = [{"task": line["task_name"], "domain": "heat", "score": line["score"], "records": [line]} for line in lines]
    told = {"evaluation": evaluation, "label": "oracle", "step": len(keys), "protocol": {"agent": "oracle", "bank": "repair"}}
    record_evaluation(attempt, {**told, "summary": summarise(lines, {"agent": "oracle", "model": None}), "results": results})
    Run.objects.filter(pk=run.pk).update(state="succeeded", step=len(keys), started_at=timezone.now(), ended_at=timezone.now())
    return {name: lines[place]["episode"] for name, place in names.items()}


def _episode(attempt, evaluation: str, place: int, key: str, score: float | None) -> dict:
    episode = f"00000000-0000-4000-8000-0000000000a{place}"
    rewards = (
        {}
        if score is None
        else {"reward": score, "floor": 0.35, "equivalence_pass": score == 1.0, "check_heat_32": 1.0, "check_heat_64": score}
    )
    delivered = ["/logs/artifacts/source/src/flux.c", "/logs/artifacts/source/src/time.c"]
    evidence = {
        "rewards": rewards,
        "floor": 0.35,
        "delivered": delivered,
        "patch": PATCH,
        "artifacts": f"{run_folder(attempt.run_id)}/jobs/{place}",
    }
    evidence |= {
        "verifier_output": "building the tree\nheat-32: 10 of 10 frames\nheat-64: 10 of 10 frames\n",
        "sandbox_reason": "" if rewards else "reward_missing",
    }
    ended = "finished" if score is not None else "verifier_error"
    facts = {
        "agent": "oracle",
        "phases": PHASES,
        "node": "local",
        "isolation": "strong",
        "folder": f"{run_folder(attempt.run_id)}/jobs/{place}",
    }
    record_events(
        attempt,
        [
            make_event(
                episode, "started", task=key, domain="heat", purpose="eval", evaluation=evaluation, group=place, worker="oracle on local"
            ),
            make_event(episode, "finished", termination=ended, seconds=18.2, facts={**facts, "task_digest": "a" * 64, "hint_level": "L1"}),
            make_event(
                episode, "graded", score=score, reason=f"reward_repair {score}", checks={}, evidence=evidence, grader="verifier-separate"
            ),
        ],
    )
    graded = score is not None
    empty = dict.fromkeys(("n_turns", "n_total_tokens", "n_output_tokens", "traj_chars", "prompt_chars", "agent_chars", "env_chars"))
    line = {
        "task_name": key,
        "episode": episode,
        "agent": "oracle",
        "sample": 0,
        "category": "repair",
        "family": key.split("-")[2],
        "tree": "2d",
    }
    line |= {
        "score": score,
        "raw_reward": score,
        "success": score == 1.0,
        "rewards": rewards,
        "floor_reported": 0.35,
        "floor_expected": 0.35,
    }
    line |= {"error_class": "ok" if graded else "other", "exception": None if graded else "reward_missing: no file", "termination": ended}
    return {**empty, **line, "agent_seconds": 2.2, "total_seconds": 18.2, "regraded": False, "delivered": delivered}
