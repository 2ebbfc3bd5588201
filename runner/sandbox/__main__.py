"""A node's containers by hand.

python -m runner.sandbox warm FOLDER…     run nop over every task below these folders, so that later episodes find a warm cache
python -m runner.sandbox health           what the engine of this node says of itself
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from runner.agents.anchors import Nop
from runner.contract.warming import CONCURRENCY
from runner.sandbox.base import Backend
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.labels import HOUSE, NODE
from runner.sandbox.node import Node
from runner.sandbox.process_backend import ProcessBackend
from runner.sandbox.reasons import SandboxFailure
from runner.sandbox.task import SandboxTask, load_task
from runner.sandbox.warming import WarmingRefused, warm

BACKENDS = {"docker": DockerBackend, "process": ProcessBackend}
LABELS = {HOUSE: "warming", NODE: "local"}


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    backend = BACKENDS[options.backend](LABELS)
    try:
        return asyncio.run(_warm(backend, options) if options.command == "warm" else _health(backend))
    except (SandboxFailure, WarmingRefused) as error:
        print(f"assay: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner.sandbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    warming, health = commands.add_parser("warm"), commands.add_parser("health")
    for command in (warming, health):
        command.add_argument("--backend", choices=BACKENDS, default="docker")
    warming.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    warming.add_argument("--concurrency", type=int, default=CONCURRENCY)
    warming.add_argument("--out", type=Path, help="where the episodes and warmth.json go; a new folder by default")
    return parser


def find_tasks(folders: list[Path]) -> list[SandboxTask]:
    """Every dense task below these folders, by path. Raises SandboxFailure for one that cannot be read."""
    manifests = sorted(path for folder in folders for path in folder.rglob("task.toml") if (path.parent / "environment").is_dir())
    return [load_task(path.parent) for path in manifests]


async def _warm(backend: Backend, options: argparse.Namespace) -> int:
    tasks = find_tasks(options.folders)
    if not tasks:
        print(f"assay: no compiled task below {', '.join(map(str, options.folders))}; compile the bank first", file=sys.stderr)
        return 1
    out = options.out or Path(tempfile.mkdtemp(prefix=f"assay-warm-{time.strftime('%Y-%m-%d__%H-%M-%S')}-"))
    shared = Path(tempfile.gettempdir()) / "assay-node-warming"
    async with Node(backend, shared, name=LABELS[NODE], slots=options.concurrency) as node:
        found = await warm(EpisodeRunner(node, out), tasks, Nop(), concurrency=options.concurrency)
    for task in found.tasks:
        state = f"cold: {task.why_cold}" if task.why_cold else "warm"
        print(f"{task.env_setup_seconds:8.1f} s  {task.task}  {state}")
    print(f"{len(found.tasks) - len(found.cold)} of {len(found.tasks)} tasks warm after {found.seconds:.0f} s; see {out / 'warmth.json'}")
    return 0 if found.warm else 1


async def _health(backend: Backend) -> int:
    found = await backend.health()
    await backend.close()
    print(json.dumps(asdict(found), indent=1))
    return 0 if found.reason is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
