"""Fills a database to the size that the pages must bear, with the rows that the product itself would have written.

    python -m benchmarks.fill          into the database of DATABASE_URL, at full size; says what it took

Rows are made inside Postgres. Rollups are aggregated from the points, so that the two agree; blobs go through the product's storage.
`large` carries 2,000 metric names, ten of them over 100,000 steps, and still runs; the episodes belong to the eight runs before it.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import msgpack
import numpy as np
import zstandard

from runner.contract.canonical import canonical_bytes, digest
from runner.contract.metrics import DASHBOARD
from runner.contract.presets import as_config, find

LONG_SERIES = tuple(name for _, names in DASHBOARD for name in names)[:10]
SHORT_STEPS = 100
SPARK_STEPS = 100
EPISODE_RUNS = 8
GROUP = 8
EPISODES_A_STEP = 128
EVENT_KINDS = ("started", "turn", "finished", "graded", "trained")

_RUNS = """
    INSERT INTO runs_run (id, project_id, owner_id, state, reason, waiting, document, config, config_hash, name, experiment, tags, method,
                          model, environment, seed, priority, total_steps, seq, step, latest, check_failures, created_at, queued_at,
                          started_at, ended_at)
    SELECT gen_random_uuid(), %(project)s, %(owner)s,
        (ARRAY['succeeded', 'succeeded', 'succeeded', 'failed', 'stopped', 'lost'])[1 + n %% 6], '', '', %(document)s::jsonb, %(config)s,
        %(hash)s, 'run ' || n, 'experiment ' || n / 100, ARRAY['seed-' || n %% 10],
        (ARRAY['grpo', 'gigpo', 'sft', 'opd', 'tcod_b2f'])[1 + n %% 5], (ARRAY['assay-tiny', 'SmolLM2-135M', 'Qwen3-0.6B'])[1 + n %% 3],
        (ARRAY['quiz', 'sciknoweval'])[1 + n %% 2], n, 0, %(steps)s, 1, %(steps)s - 1,
        jsonb_build_object('reward', jsonb_build_object('value', random(), 'step', %(steps)s - 1, 'attempt', 1),
                           'length', jsonb_build_object('value', 40 + 20 * random(), 'step', %(steps)s - 1, 'attempt', 1),
                           'verifier_error', jsonb_build_object('value', random() / 20, 'step', %(steps)s - 1, 'attempt', 1)),
        0, now() - n * interval '7 minutes', now() - n * interval '7 minutes', now() - n * interval '7 minutes',
        now() - n * interval '7 minutes' + interval '1 hour'
    FROM generate_series(1, %(runs)s) AS n
"""
_ATTEMPTS = """
    INSERT INTO runs_attempt (run_id, number, state, reason, submission_id, claim_hash, token_hash, first_step, components, host, processes,
                              devices, phase, ray_status, points_accepted, points_repeated, points_conflicting, batches_refused,
                              writes_fenced, created_at, running_at, ended_at)
    SELECT id, 1, state, '', 'fill-' || id, '', '', 0, '{}', 'node', '[]', '[]', '', '', 0, 0, 0, 0, 0, started_at, started_at, ended_at
    FROM runs_run WHERE project_id = %s
"""
_SERIES = """
    INSERT INTO telemetry_series (run_id, name, axis) SELECT id, %s, 'step' FROM runs_run WHERE project_id = %s
"""
# A curve that rises and levels off under noise: charts of pure noise would compress like nothing in use.
_POINTS = """
    INSERT INTO telemetry_point (series_id, attempt, step, value, wall)
    SELECT id, 1, step, 1 - exp(-3.0 * step / %(steps)s) + random_normal(0, 0.05), 1.7e9 + step
    FROM unnest(%(series)s::bigint[]) AS id, generate_series(0, %(steps)s - 1) AS step
"""
_ROLLUPS = """
    INSERT INTO telemetry_rollup (series_id, attempt, bucket, count, nan, positive_infinite, negative_infinite, minimum, maximum, total,
                                  last_step, last_value, last_wall)
    SELECT series_id, attempt, step / 100, count(*), 0, 0, 0, min(value), max(value), sum(value), max(step),
           (array_agg(value ORDER BY step DESC))[1], max(wall)
    FROM telemetry_point WHERE series_id = ANY(%s) GROUP BY series_id, attempt, step / 100
"""
_EPISODES = """
    INSERT INTO episodes_episode (id, run_id, attempt, state, stage, step, "group", sample, purpose, task, domain, worker, policy_version,
        seed, started_at, termination, told_termination, graded_termination, graded_score, policy_version_end, prompt_tokens,
        response_tokens, turns, seconds, error, sampled, token_texts, finished_at, score, grade_reason, parsed, checks, evidence, grader,
        grade_ordinal, advantage, trained_step, trained_tokens, masked, filters, trained)
    SELECT gen_random_uuid(), %(run)s, 1, 'done', 0, n / %(a_step)s, n %% %(a_step)s / %(group)s, n %% %(group)s, 'train',
        'task-' || n %% 997, (ARRAY['biology', 'chemistry', 'materials', 'physics'])[1 + n %% 4], 'worker-' || n %% 2, n / %(a_step)s, n,
        now() - interval '1 hour' + n * interval '1 millisecond', ending, ending, '', score, n / %(a_step)s, 120, 40, 2, 1.5, '', '', '',
        now() - interval '1 hour' + n * interval '1 millisecond', score, '', score IS NOT NULL, '{}', '{}', 'exact', 0, 0.1,
        n / %(a_step)s, 40, false, '{}', ''
    FROM generate_series(0, %(episodes)s - 1) AS n,
        LATERAL (SELECT CASE WHEN n %% 50 = 0 THEN 'verifier_error' ELSE 'finished' END AS ending,
                        CASE WHEN n %% 50 <> 0 THEN (n %% 3 = 0)::int::float8 END AS score) AS graded
"""
_EVENTS = """
    INSERT INTO episodes_episodeevent (episode_id, kind, ordinal, at)
    SELECT id, kind, 0, finished_at FROM episodes_episode, unnest(%s::text[]) AS kind WHERE run_id = ANY(%s)
"""
_TURNS = """
    INSERT INTO episodes_turn (episode_id, index, role, author, text, tokens)
    SELECT id, 0, 'assistant', 'student', 'The ' || domain || ' answer to ' || task || ' is option ' || chr(65 + sample %% 4) ||
        ' because word' || hashtext(id::text) %% 5000 || ' outweighs word' || hashtext(task) %% 5000, 40
    FROM episodes_episode WHERE run_id = ANY(%s)
"""
# Two of 5,000 words and one of 500 files a turn; `reads` is in every turn, a domain in a quarter of them.
_CONVERSATIONS = """
    INSERT INTO episodes_turn (episode_id, index, role, author, text, tokens)
    SELECT id, n, (ARRAY['user', 'assistant'])[1 + n %% 2], (ARRAY['environment', 'student'])[1 + n %% 2],
        'The agent reads src/module' || abs(hashtext(n || id::text)) %% 500 || '.c for ' || domain || ' and sees word' ||
        abs(hashtext(id::text || n)) %% 5000 || ' beside word' || abs(hashtext(n || task || id::text)) %% 5000, 40
    FROM episodes_episode, generate_series(0, %(each)s - 1) AS n WHERE run_id = %(run)s
"""
_TRANSCRIPT = """
    INSERT INTO episodes_turn (episode_id, index, role, author, text, tokens)
    SELECT %(episode)s, n, (ARRAY['user', 'assistant'])[1 + n %% 2], (ARRAY['environment', 'student'])[1 + n %% 2],
        repeat('word' || n || ' piece of a long transcript. ', 4), 20
    FROM generate_series(0, %(turns)s - 1) AS n
"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the defaults are what the pages must bear."""

    runs: int = 10_000
    names: int = 2_000
    steps: int = 100_000
    episodes: int = 1_000_000
    tokens: int = 40_000
    turns: int = 2_000
    logs: int = 10_000


@dataclass(frozen=True)
class Filled:
    """Where to look: the large run, a run with many episodes, the long transcript; and the seconds each part took."""

    large: uuid.UUID
    episodes_run: uuid.UUID
    transcript: uuid.UUID
    compared: list[uuid.UUID]
    seconds: dict[str, float]


class _Filler:
    def __init__(self, project, owner, sizes: Sizes):
        self.project, self.owner, self.sizes = project, owner, sizes
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, part, *arguments):
        began = time.monotonic()
        found = part(*arguments)
        self.seconds[name] = round(time.monotonic() - began, 1)
        return found

    # ------------------------------------------------------------ runs and points
    def runs(self) -> list[uuid.UUID]:
        """All runs with an attempt and the curve that the list shows; newest first."""
        config, config_hash = _config()
        values = {"project": self.project.pk, "owner": self.owner.pk, "document": json.dumps({}), "config": config, "hash": config_hash}
        execute(_RUNS, {**values, "steps": SPARK_STEPS, "runs": self.sizes.runs})
        execute(_ATTEMPTS, [self.project.pk])
        execute(_SERIES, ["critic/score/mean", self.project.pk])
        self.points(
            column("SELECT s.id FROM telemetry_series s JOIN runs_run r ON r.id = s.run_id WHERE r.project_id = %s", self.project.pk),
            SPARK_STEPS,
        )
        return column("SELECT id FROM runs_run WHERE project_id = %s ORDER BY created_at DESC", self.project.pk)

    def points(self, series: list[int], steps: int) -> None:
        execute(_POINTS, {"series": series, "steps": steps})
        execute(_ROLLUPS, [series])

    def large(self) -> uuid.UUID:
        """A run that still trains."""
        from controlplane.runs.models import Attempt, Run

        config, config_hash = _config()
        columns = dict(
            document={}, config=config, config_hash=config_hash, experiment="large", method="sft+grpo", model="m", environment="quiz"
        )
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        progress = dict(step=self.sizes.steps - 1, total_steps=2 * self.sizes.steps, seq=1, started_at=now)
        run = Run.objects.create(project=self.project, owner=self.owner, name="large", state="active", **columns, **progress)
        Attempt.objects.create(
            run=run, number=1, state="running", submission_id=f"fill-{run.pk}", claim_hash="", token_hash="", first_step=0, running_at=now
        )
        self.points(_new_series(run, LONG_SERIES), self.sizes.steps)
        short = [f"group{index % 40}/metric_{index}" for index in range(self.sizes.names - len(LONG_SERIES))]
        self.points(_new_series(run, short), min(SHORT_STEPS, self.sizes.steps))
        self.around(run)
        return run.pk

    def around(self, run) -> None:
        """Log lines, checkpoints, incidents and events of the large run."""
        from django.utils import timezone

        from controlplane.alerts.models import Incident
        from controlplane.checkpoints.models import Checkpoint
        from controlplane.runs.models import RunEvent
        from controlplane.telemetry.models import LogLine

        LogLine.objects.bulk_create(
            (
                LogLine(run=run, attempt=1, t=1.7e9 + n, component="driver", level="info", message=f"line {n}")
                for n in range(self.sizes.logs)
            ),
            batch_size=5_000,
        )
        at = range(0, self.sizes.steps, max(1, self.sizes.steps // 100))
        Checkpoint.objects.bulk_create(Checkpoint(run=run, attempt=1, step=step, path="step", state="complete", size=1) for step in at)
        RunEvent.objects.bulk_create(
            RunEvent(run=run, attempt=1, kind="checkpoint", step=step, data={"state": "complete"}, at=timezone.now()) for step in at
        )
        Incident.objects.bulk_create(
            Incident(run=run, rule=f"rule {step}", metric="actor/grad_norm", severity="warning", message="large", opened_step=step)
            for step in at
        )

    # ------------------------------------------------------------ episodes
    def episodes(self, runs: list[uuid.UUID]) -> None:
        for run in runs:
            execute(
                _EPISODES,
                {"run": run, "episodes": self.sizes.episodes // len(runs), "a_step": EPISODES_A_STEP, "group": GROUP},
            )
            last = (self.sizes.episodes // len(runs) - 1) // EPISODES_A_STEP
            execute(
                "UPDATE runs_run SET step = greatest(step, %s), total_steps = greatest(total_steps, %s) WHERE id = %s",
                [last, last + 1, run],
            )

    def events(self, runs: list[uuid.UUID]) -> None:
        execute(_EVENTS, [list(EVENT_KINDS), runs])

    def turns(self, runs: list[uuid.UUID]) -> None:
        with text_index_made_afterwards():
            execute(_TURNS, [runs])

    def transcript(self, run: uuid.UUID) -> uuid.UUID:
        """One episode of `tokens` tokens with all five channels, its texts and its turns; through the product's own services."""
        from controlplane import storage
        from controlplane.episodes.services import record_events
        from controlplane.runs.models import Attempt

        episode, total = uuid.uuid4(), self.sizes.tokens
        sampled, trained = (storage.put(blob) for blob in _traces(total))
        texts = storage.put(zstandard.ZstdCompressor().compress(msgpack.packb([f" piece{index % 997}" for index in range(total)])))
        finished = {
            "termination": "finished",
            "sampled": sampled,
            "token_texts": texts,
            "response_tokens": total,
            "turns": self.sizes.turns,
        }
        events = [
            ("started", {"task": "long transcript", "step": 1}),
            ("finished", finished),
            ("graded", {"score": 1.0, "parsed": True}),
            ("trained", {"step": 1, "trained": trained, "trained_tokens": total // 2, "masked": False}),
        ]
        attempt = Attempt.objects.get(run=run, number=1)
        record_events(attempt, [{"episode": str(episode), "kind": kind, "ordinal": 0, "t": 1.7e9, "data": data} for kind, data in events])
        execute(_TRANSCRIPT, {"episode": episode, "turns": self.sizes.turns})
        return episode

    def evaluations(self, runs: list[uuid.UUID]) -> None:
        """Two evaluations of 200 tasks for each run that is compared."""
        from controlplane.evals.models import Evaluation, Protocol, Result

        protocol, _ = Protocol.objects.get_or_create(hash="f" * 64, defaults={"document": {"split": "eval"}})
        made = [
            Evaluation(run_id=run, attempt=1, protocol=protocol, label=label, step=step, baselines={"chance": 0.25})
            for run in runs
            for label, step in (("before stage 0", 0), ("after stage 0", SPARK_STEPS - 1))
        ]
        Evaluation.objects.bulk_create(made)
        random = np.random.default_rng(0)
        Result.objects.bulk_create(
            Result(evaluation=one, task=f"task-{n}", domain="physics", score=float(random.random() < 0.5), forced=1.0, parsed=True)
            for one in made
            for n in range(200)
        )


@contextmanager
def text_index_made_afterwards() -> Iterator[None]:
    """The text index is built once at the end, which takes a fraction of keeping it row by row."""
    definition = column("SELECT indexdef FROM pg_indexes WHERE indexname = %s", "turn_text")[0]
    execute("DROP INDEX turn_text")
    yield
    execute("SET CONSTRAINTS ALL IMMEDIATE")  # inside a caller's transaction, no index is made while checks are due
    execute(definition)


def fill_conversations(run: uuid.UUID, turns: int, each: int) -> None:
    """`turns` turns in episodes of `each`, all of the one run, which had none."""
    execute(_EPISODES, {"run": run, "episodes": turns // each, "a_step": EPISODES_A_STEP, "group": GROUP})
    with text_index_made_afterwards():
        execute(_CONVERSATIONS, {"run": run, "each": each})
    execute("ANALYZE")


def _config() -> tuple[bytes, str]:
    """The resolved sample document, as every run keeps one."""
    config = canonical_bytes(as_config(find("sample")).model_dump(mode="json"))
    return config, digest(config)


def _traces(total: int) -> tuple[bytes, bytes]:
    """Sampled and trained: a prompt of the environment, then student tokens in the loss."""
    from runner.contract.episode import SAMPLED_COLUMNS, TRAINED_COLUMNS, write_trace

    random, student = np.random.default_rng(0), np.arange(total) % 40 >= 20
    drawn = {name: -np.abs(random.normal(size=total)) for name in (*SAMPLED_COLUMNS, *TRAINED_COLUMNS)}
    drawn |= {"token_id": random.integers(0, 32_000, total), "author": 2 * student, "mask": student, "advantage": random.normal(size=total)}
    return tuple(write_trace({name: drawn[name] for name in columns}) for columns in (SAMPLED_COLUMNS, TRAINED_COLUMNS))


def _new_series(run, names) -> list[int]:
    from controlplane.telemetry.models import Series

    return [series.pk for series in Series.objects.bulk_create(Series(run=run, name=name) for name in names)]


def execute(statement: str, parameters=None) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def column(statement: str, *parameters) -> list:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [row[0] for row in cursor.fetchall()]


def fill(project, owner, sizes: Sizes = Sizes()) -> Filled:
    """Fill `project`, in which no run may be yet; takes minutes at full size."""
    filler = _Filler(project, owner, sizes)
    runs = filler.timed("runs", filler.runs)
    large = filler.timed("large", filler.large)
    many = runs[:EPISODE_RUNS]
    filler.timed("episodes", filler.episodes, many)
    filler.timed("events", filler.events, many)
    filler.timed("turns", filler.turns, many)
    transcript = filler.timed("transcript", filler.transcript, large)
    compared = runs[:10]
    filler.timed("evaluations", filler.evaluations, compared)
    filler.timed("analyze", execute, "ANALYZE")
    return Filled(large, many[0], transcript, compared, filler.seconds)


def fill_embedded(sizes: Sizes = Sizes()) -> Filled:
    """Fill a project of its own beside the embedded owner's."""
    from controlplane.accounts.models import Project
    from controlplane.accounts.services import ensure_embedded_owner

    owner = ensure_embedded_owner()
    project = Project.objects.create(team=owner.memberships.first().team, slug="filled", name="Filled")
    return fill(project, owner, sizes)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    django.setup()
    began, sizes = time.monotonic(), Sizes()
    found = fill_embedded(sizes)
    print(json.dumps({**asdict(sizes), "seconds": {**found.seconds, "all": round(time.monotonic() - began, 1)}}))


if __name__ == "__main__":
    main()
