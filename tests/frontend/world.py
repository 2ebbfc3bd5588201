"""A team with a year behind it and a team on its first day, as rows: what every page must show well.

Only what a person sees is filled in; no process stands behind any of it. `python -m tests.frontend.world` migrates the database of the
environment, fills it and prints the World as JSON: in a process of its own, because the browser tests keep no Django of theirs.
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import timedelta

import django
import msgpack
import numpy as np
import zstandard

django.setup()

from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from controlplane import storage
from controlplane.accounts import services as accounts
from controlplane.accounts.choices import Role, Scope
from controlplane.accounts.models import Team, User
from controlplane.alerts.models import Incident
from controlplane.banks.imports import ensure_quiz_bank
from controlplane.banks.models import BankImport, BankVersion
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster.models import Grant, Node, ReconcilerTick, Share
from controlplane.episodes.models import Episode, Label, Turn
from controlplane.evals.models import Evaluation, Result
from controlplane.evals.services import record_protocol
from controlplane.runs.models import Run, RunEvent
from controlplane.runs.services import do_launch
from controlplane.telemetry.models import LogLine
from controlplane.telemetry.points import write_points, write_samples
from runner.contract.episode import Author, write_trace
from runner.contract.metrics import DASHBOARD
from runner.contract.presets import find
from tests.controlplane.factories import make_attempt, make_points, make_samples
from tests.frontend.repair_world import repair
from tests.frontend.science_world import laboratory

STEPS, WARM = 200, 60
GROUP, GROUPS = 8, 6
DOMAINS = ("physics", "chemistry", "biology", "materials science and crystallography")
SWEEP = {"g4": 4, "g8": 8, "g16": 16}
SEEDS = (1, 2, 3)
LONG = "GRPO on the quiz with a warm start of statements, masked loss, no reference penalty, long name that no column holds"


@dataclass
class World:
    """Each person's session, and the identifiers of what there is to see."""

    sessions: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    episodes: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    sweep: list[str] = field(default_factory=list)
    fresh_link: str = ""


def build() -> World:
    physics = accounts.create_team("physics", "Physics of small models")
    chemistry = accounts.create_team("chemistry", "Chemistry")
    olga, vera, nora = (accounts.create_user(name) for name in ("olga", "vera", "nora"))
    for team, user, role in ((physics, olga, Role.ADMIN), (physics, vera, Role.VIEWER), (chemistry, nora, Role.ADMIN)):
        accounts.add_member(team, user, role)
    accounts.add_member(physics, accounts.create_user("tim"), Role.MEMBER)
    world = World({user.username: _session(user) for user in (olga, vera, nora)})
    world.fresh_link = accounts.create_login_link(nora).rpartition("/")[2]
    # A web process without its worker: the reconciler's word must not age during the tests.
    ReconcilerTick.objects.create(at=timezone.now() + timedelta(hours=6), seconds=0.02)
    _tokens(olga, physics)
    _banks(world, olga, physics)
    nodes = _nodes()
    _runs(world, olga, physics, nodes)
    for made in (repair(olga, physics), laboratory(olga, physics)):
        world.runs |= made["runs"]
        world.episodes |= made["episodes"]
    return world


def _session(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


def _tokens(olga: User, team: Team) -> None:
    accounts.create_token(olga, team, "notebook on the train", [Scope.READ])
    accounts.create_token(
        olga, team, "nightly evaluation of the released checkpoints", list(Scope.values), timezone.now() + timedelta(days=30)
    )
    accounts.revoke_token(olga, accounts.create_token(olga, team, "lost laptop", [Scope.SUBMIT])[1])


# ---------------------------------------------------------------- banks and nodes
def _banks(world: World, user: User, team: Team) -> None:
    version = ensure_quiz_bank(team)
    report = {"read": 18_944, "kept": 18_670, "notes": ["Split by split: no question stands on both sides."]}
    report["dropped"] = [
        {
            "reason": "the answer key names no option",
            "count": 203,
            "examples": ["biology-L3-00017", "chemistry-L4-01022", "physics-L1-00003"],
        },
        {"reason": "fewer than two options", "count": 71, "examples": ["materials-L2-00411"]},
    ]
    common = dict(team=team, environment="sciknoweval", created_by=user, touched_at=timezone.now() + timedelta(hours=6))
    told = "reading sciknoweval.parquet\n18 944 rows\nchecking options\n274 dropped\n"
    jobs = {
        "succeeded": dict(
            bank="sciknoweval", source="upload", location="sciknoweval.parquet", state="succeeded", report=report, log=told, version=version
        ),
        "failed": dict(
            bank="sciknoweval-bad",
            source="hub",
            location="owner/no-such-set",
            state="failed",
            reason="hub id 'owner/no-such-set': not found; check the name",
            log=told,
        ),
        "running": dict(
            bank="sciknoweval-naive", source="path", location="/data/sciknoweval.parquet", state="running", log=told, report={"read": 4096}
        ),
    }
    for name, values in jobs.items():
        job = BankImport.objects.create(**common, **values)
        BankImport.objects.filter(pk=job.pk).update(touched_at=timezone.now() + timedelta(hours=6))
        world.imports[name] = str(job.pk)
    BankVersion.objects.filter(pk=version.pk).update(report=report)


def _nodes() -> list[Node]:
    seen = timezone.now() + timedelta(hours=6)
    size = dict(disk_total=2 << 40, disk_free=90 << 30, last_seen_at=seen)
    local = Node.objects.create(name="local", address="127.0.0.1", resource="assay_node:local", cpus=2, memory=8 << 30, **size)
    eight = Node.objects.create(
        name="gpu-a.cluster.example.org", address="10.0.0.17", resource="assay_node:gpu-a", cpus=128, gpus=8, memory=1 << 40, **size
    )
    Node.objects.create(
        name="gpu-b", address="10.0.0.18", resource="assay_node:gpu-b", cpus=128, gpus=8, memory=1 << 40, state="cordoned", **size
    )
    Node.objects.create(
        name="gpu-c",
        address="10.0.0.19",
        resource="assay_node:gpu-c",
        cpus=128,
        gpus=8,
        memory=1 << 40,
        state="gone",
        last_seen_at=timezone.now(),
    )
    return [local, eight]


# ---------------------------------------------------------------- runs
def _runs(world: World, user: User, team: Team, nodes: list[Node]) -> None:
    for number in range(30):
        run = _launch(user, team, f"older run {number:02d}", seed=100 + number, experiment="archive of last year")
        _settle(run, ("succeeded", "failed", "stopped", "lost")[number % 4], hours=100 + number, reward=0.3 + number % 7 / 20)
    for name, size in SWEEP.items():
        for seed in SEEDS:
            run = _launch(user, team, f"group size {size}, seed {seed}", seed=seed, experiment="group size", group_size=size)
            _settle(run, "succeeded", hours=30 - seed, reward=0.55 + size / 100 + seed / 90)
            make_attempt(run, state="succeeded", first_step=0)
            _curves(run, seed=size + seed)
            _evaluations(run, gain=0.05 + size / 60 + seed / 200)
            world.sweep.append(str(run.pk))
    _featured(world, user, team)
    _others(world, user, team, nodes)


def _launch(user: User, team: Team, name: str, seed: int = 0, experiment: str | None = None, group_size: int = 8, parent=None) -> Run:
    document = find("sample").start() | {"name": name, "seed": seed, "experiment": experiment, "tags": ["paper", "sweep-2"][: seed % 3]}
    document["stages"][1] |= {"group_size": group_size, "batch_size": 64}
    return do_launch(user, team, document, parent)


def _settle(run: Run, state: str, hours: float = 2, reward: float | None = 0.7, **values) -> Run:
    """Moves a run to where it would be after its life; `reward` None: none was ever reported."""
    now = timezone.now()
    headline = {
        "reward": reward,
        "reward_finished": reward,
        "length": 9.3,
        "verifier_error": 0.07 if state == "failed" else 0.01,
        "accuracy": reward,
        "forced_choice": reward,
    }
    latest = {} if reward is None else {key: {"value": value, "step": STEPS, "attempt": 1} for key, value in headline.items()}
    moments = {
        "created_at": now - timedelta(hours=hours),
        "queued_at": now - timedelta(hours=hours),
        "started_at": now - timedelta(hours=hours - 0.02),
    }
    ended = {} if state in ("active", "queued") else {"ended_at": now - timedelta(hours=hours - 0.5)}
    defaults = dict(state=state, step=STEPS if state == "succeeded" else 77, total_steps=STEPS, latest=latest)
    Run.objects.filter(pk=run.pk).update(**{**defaults, **moments, **ended, **values})
    run.refresh_from_db()
    return run


def _curves(run: Run, seed: int = 0, steps: int = STEPS) -> None:
    random = np.random.default_rng(seed)
    x = np.arange(WARM, steps)
    series = {"sft/loss": [(step, float(3 * np.exp(-step / 15) + random.normal(0, 0.05)), _wall(step)) for step in range(WARM)]}
    for index, name in enumerate(name for _, names in DASHBOARD for name in names):
        rise = 1 / (1 + np.exp(-(x - 110) / (20 + index)))
        values = {0: rise, 1: 1 - rise, 2: 0.2 * rise + 0.05}[index % 3] * (1 + 9 * (index % 5 == 2)) + random.normal(0, 0.02, len(x))
        series[name] = [(int(step), float(value), _wall(int(step))) for step, value in zip(x, values, strict=True)]
    series["actor/grad_norm"][40] = (WARM + 40, float("nan"), _wall(WARM + 40))
    series |= {
        f"layer_{index // 4}/weight_norm_{index % 4}": [(int(step), float(index), _wall(int(step))) for step in x[::10]]
        for index in range(24)
    }
    write_points(run.pk, 1, make_points(series))
    write_samples(run.pk, make_samples({"host/memory": [(_wall(step), 2e9 + 1e6 * step) for step in range(0, steps, 5)]}))


def _wall(step: int) -> float:
    return timezone.now().timestamp() - 3600 + 3 * step


def _featured(world: World, user: User, team: Team) -> None:
    """One run that has everything, and its parent."""
    parent = _settle(_launch(user, team, "warm start alone", experiment="group size"), "succeeded", hours=40, reward=0.41)
    run = _launch(user, team, LONG, seed=2, experiment="group size", group_size=16, parent=parent)
    _settle(run, "succeeded", hours=3, reward=0.8123)
    make_attempt(run, 1, state="lost", reason="the driver's process is gone", first_step=0)
    make_attempt(run, 2, state="succeeded", first_step=120, points_accepted=48_211, exit_record={"outcome": "succeeded"})
    _curves(run)
    _evaluations(run, gain=0.3)
    _checkpoints(run, user)
    _history(run, user)
    _episodes(world, user, run)
    world.runs |= {"full": str(run.pk), "parent": str(parent.pk)}


def _checkpoints(run: Run, user: User) -> None:
    for step, state, kept in (
        (60, "deleted", []),
        (120, "complete", ["user", "best:val/accuracy"]),
        (160, "broken", []),
        (180, "complete", ["newest 2"]),
        (200, "complete", ["newest 2", "best: critic/score/mean"]),
    ):
        values = dict(
            size=38 << 20,
            manifest_hash="3fa9" * 16,
            metrics={"val/accuracy": 0.2 + step / 400, "critic/score/mean": 0.3 + step / 500},
            kept_because=kept,
        )
        pinned = {"pinned_by": user, "pinned_at": timezone.now()} if "user" in kept else {}
        reason = {"reason": "model.safetensors: 1048576 bytes, the manifest says 39845888"} if state == "broken" else {}
        Checkpoint.objects.create(
            run=run,
            attempt=1 if step < 121 else 2,
            step=step,
            stage=int(step > WARM),
            state=state,
            path=f"/runs/{run.pk}/step_{step}",
            **values,
            **pinned,
            **reason,
        )


def _evaluations(run: Run, gain: float) -> None:
    protocol = record_protocol({"split": "eval", "tasks": "all", "temperature": 0.0, "max_new_tokens": 2, "forced_choice": True})
    random = np.random.default_rng(7)
    ease = random.random(240)
    for label, step, stage, shift in (
        ("before stage 0", 0, 0, 0.0),
        ("after stage 0", WARM, 0, gain / 3),
        ("after stage 1", STEPS, 1, gain),
    ):
        one = Evaluation.objects.create(
            run=run,
            attempt=1,
            protocol=protocol,
            label=label,
            step=step,
            stage=stage,
            baselines={"chance": 0.25, "majority_letter": 0.262, "longest_option": 0.271},
        )
        right = ease < 0.3 + shift
        Result.objects.bulk_create(
            Result(
                evaluation=one,
                task=f"quiz-{index:03d}",
                domain=DOMAINS[index % 4],
                score=None if index % 40 == 0 else float(hit),
                forced=float(hit),
                parsed=index % 40 != 0,
            )
            for index, hit in enumerate(right)
        )


def _history(run: Run, user: User) -> None:
    at = timezone.now() - timedelta(hours=2)
    told = [
        ("run_state", None, {"from": "queued", "to": "active"}),
        ("stage_started", 0, {"stage": 0, "type": "sft"}),
        ("stage_started", WARM, {"stage": 1, "type": "grpo"}),
    ]
    told += [
        ("checkpoint", 120, {"state": "complete"}),
        ("evaluation", WARM, {"label": "after stage 0"}),
        ("contact_lost", 121, {"reason": "no heartbeat for 90 s"}),
        ("evaluation", STEPS, {"label": "after stage 1"}),
    ]
    RunEvent.objects.bulk_create(
        RunEvent(run=run, attempt=1, kind=kind, step=step, data=data, at=at + timedelta(minutes=n))
        for n, (kind, step, data) in enumerate(told)
    )
    Incident.objects.create(
        run=run,
        rule="actor/entropy ratio_below",
        metric="actor/entropy",
        severity="warning",
        value=0.11,
        limit=0.2,
        message="Entropy is 0.11, below 0.2 times its median",
        opened_step=150,
    )
    accounts.record(user, "run.stop", run, {"reason": "looked at it"})
    words = (
        "step finished in 1.83 s",
        "synced weights, probe difference 3.1e-07",
        "a line that is much longer than the window: " + "tokens " * 40,
    )
    levels = ("debug", "info", "info", "info", "warning", "error")
    LogLine.objects.bulk_create(
        LogLine(
            run=run,
            attempt=1 + n // 300,
            t=at.timestamp() + n,
            component=("driver", "learner", "worker-0", "worker-1")[n % 4],
            level=levels[n % 6],
            message=f"{words[n % 3]} ({n})",
        )
        for n in range(450)
    )


# ---------------------------------------------------------------- episodes
def _episodes(world: World, user: User, run: Run) -> None:
    endings = ("finished", "finished", "finished", "parse_failed", "finished", "max_response_length_exceeded", "verifier_error", "finished")
    for group in range(GROUPS):
        for sample in range(GROUP):
            score = None if endings[sample] == "verifier_error" else float((group + sample) % 3 == 0)
            episode = _episode(run, group, sample, endings[sample], score)
            name = "missing" if score is None else "good" if score else "failed"
            world.episodes.setdefault(name, str(episode.pk))
            if group == 1 and name == "failed":
                world.episodes["sibling"] = str(episode.pk)
    failed = Episode.objects.get(pk=world.episodes["failed"])
    Label.objects.create(episode=failed, user=user, name="format", comment="Answers with a word where a letter was asked for.")
    _long_episode(world, run)


def _episode(run: Run, group: int, sample: int, ending: str, score: float | None) -> Episode:
    texts = [
        "<|user|>",
        *("Which quantity is conserved in an elastic collision, and why does it matter here? ".split(" ")),
        "\n",
        "<|assistant|>",
        "B",
        "<|end|>",
    ]
    texts = [text if text.startswith("<") or text == "\n" else text + " " for text in texts]
    columns = _tokens_of(texts, seed=group * GROUP + sample)
    values = dict(
        termination=ending,
        score=score,
        parsed=ending == "finished",
        domain=DOMAINS[group % 4],
        worker=f"worker-{sample % 2}",
        policy_version=120 + group,
    )
    values |= dict(
        prompt_tokens=len(texts) - 2,
        response_tokens=2,
        seconds=0.41,
        grader="choice",
        grade_reason="the letter is not the key" if score == 0 else "",
    )
    learned = (
        {}
        if score is None
        else dict(
            advantage=round(score - 0.4, 3),
            trained_tokens=2,
            trained_step=120 + group,
            masked=ending == "max_response_length_exceeded",
            trained=columns["trained"],
        )
    )
    episode = Episode.objects.create(
        run=run, attempt=1, state="done", stage=1, step=120 + group, group=group, sample=sample, task=f"physics-conservation-{group:03d}", sampled=columns["sampled"], token_texts=columns["texts"],
        evidence={"read": "B", "key": "C"}, checks={"letter": score}, error="TimeoutError: the verifier took 30 s" if ending == "verifier_error" else "", **values, **learned,
    )  # fmt: skip
    question = "Answer with the letter of the right option.\n\nWhich quantity is conserved in an elastic collision?\nA. heat\nB. sound\nC. kinetic energy\nD. temperature"
    _turns(episode, [("user", "environment", question, len(texts) - 2), ("assistant", "student", "B" if not score else "C", 2)])
    return episode


def _tokens_of(texts: list[str], seed: int = 0) -> dict[str, str]:
    random, n = np.random.default_rng(seed), len(texts)
    # The policy's turns: the last two tokens of a short episode, every third stretch of a long one.
    student = np.arange(n) % 120 >= 80 if n > 100 else np.arange(n) >= n - 2
    author = np.where(student, Author.STUDENT, Author.ENVIRONMENT)
    author[0] = Author.TEMPLATE
    logprob = np.where(student, -random.exponential(0.7, n), np.nan)
    sampled = write_trace({"token_id": np.arange(n) + 40, "logprob": logprob, "author": author, "mask": student})
    learned = {
        "learner_logprob": logprob + random.normal(0, 0.01, n),
        "advantage": np.where(student, random.normal(0, 0.5, n), np.nan),
        "entropy": np.where(student, random.random(n), np.nan),
        "mask": student,
    }
    pieces = zstandard.compress(msgpack.packb(texts))
    return {"sampled": storage.put(sampled), "trained": storage.put(write_trace(learned)), "texts": storage.put(pieces)}


def _turns(episode: Episode, turns: list[tuple]) -> None:
    Turn.objects.bulk_create(
        Turn(episode=episode, index=index, role=role, author=author, text=text, tokens=tokens)
        for index, (role, author, text, tokens) in enumerate(turns)
    )


def _long_episode(world: World, run: Run) -> None:
    """Many turns with tool calls and a folded output; thousands of tokens."""
    columns = _tokens_of([f"word{n % 97} " if n % 23 else "\n" for n in range(6000)])
    episode = Episode.objects.create(
        run=run, attempt=2, state="done", stage=1, step=199, group=90, sample=0, task="physics-laboratory-with-tools-and-a-long-key", domain="physics", termination="max_turns_exceeded", score=0.0, parsed=True,
        worker="worker-1", policy_version=199, prompt_tokens=400, response_tokens=5600, seconds=61.7, advantage=-0.31, trained_tokens=2000, trained_step=199, masked=False, **columns_named(columns),
    )  # fmt: skip
    turns = [("system", "template", "You are in a laboratory. Use the tools; answer with a number and its unit.", 20)]
    for index in range(60):
        turns += [
            ("assistant", "student", f"I measure the pendulum again, length {index} cm.\n\n```python\nmeasure(length={index})\n```", 40)
        ]
        turns += [
            (
                "tool",
                "environment",
                "\n".join(f"t = {line * 0.01:.2f} s   x = {np.sin(line / 9):+.4f} m" for line in range(10 if index else 90)),
                300,
            )
        ]
    _turns(episode, turns)
    world.episodes["long"] = str(episode.pk)


def columns_named(columns: dict[str, str]) -> dict[str, str]:
    return {"sampled": columns["sampled"], "trained": columns["trained"], "token_texts": columns["texts"]}


def _devices() -> list[dict]:
    """A GPU that tells everything, and one that tells little."""
    card = {"host": "gpu-a", "name": "NVIDIA H200", "memory_total": 141 << 30}
    busy = {"utilisation": 97.0, "memory_used": 128 << 30, "temperature": 71.0, "power": 689.4, "memory_errors": 2}
    silent = {"utilisation": None, "memory_used": 3 << 30, "temperature": None, "power": None, "memory_errors": None}
    return [{"index": index, "uuid": f"GPU-{index}", **card, **told} for index, told in enumerate((busy, silent))]


# ---------------------------------------------------------------- runs in other states
def _others(world: World, user: User, team: Team, nodes: list[Node]) -> None:
    active = _settle(_launch(user, team, "active now", seed=5, experiment="group size"), "active", hours=0.4, reward=0.62)
    held = make_attempt(active, first_step=0, phase="grpo", last_heartbeat_at=timezone.now())
    _curves(active, seed=4, steps=140)
    grant = Grant.objects.create(attempt=held)
    for bundle, cpus in (("driver", 0.2), ("learner", 0.8), ("worker-0", 0.5)):
        Share.objects.create(grant=grant, node=nodes[0], bundle=bundle, cpus=cpus)
    failed = _settle(
        _launch(user, team, "ran out of memory", experiment="group size"),
        "failed",
        hours=5,
        reward=None,
        reason="learner: torch.OutOfMemoryError: tried to allocate 2.30 GiB at step 77; lower micro_batch_tokens",
    )
    stuck = make_attempt(failed, state="failed", devices=_devices())
    grant = Grant.objects.create(
        attempt=stuck, state="quarantined", reason="process 4711 (learner) is in uninterruptible sleep on gpu-a"
    )
    for bundle, cpus, gpus in (("driver", 0.2, 0), ("learner", 1, 2)):
        Share.objects.create(grant=grant, node=nodes[1], bundle=bundle, cpus=cpus, gpus=gpus)
    queued = _launch(user, team, "waits for eight GPUs", experiment="large")
    _settle(
        queued,
        "queued",
        hours=0.1,
        reward=None,
        step=0,
        waiting="needs 8 GPUs on one node; the largest free piece is 6, next release unknown",
        started_at=None,
    )
    draft = _launch(user, team, "queued a second ago")
    Run.objects.filter(pk=draft.pk).update(step=0)
    world.runs |= {"active": str(active.pk), "failed": str(failed.pk), "queued": str(queued.pk), "bare": str(draft.pk)}


if __name__ == "__main__":
    call_command("migrate", interactive=False, verbosity=0)
    print(json.dumps(asdict(build())))
