"""python -m runner.repair compile | lines | dataset | digest | canary | source: what a bank's author needs, without a control plane.

Exit code 0: done; 1: refused, and the last line of standard error says why.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.repair.apply_defect import Refused
from runner.repair.compile import CompileError, canary_of, commit_of, compile_bank
from runner.repair.env_file import InvalidEnvFile
from runner.repair.files import BadTaskFiles, read_files
from runner.repair.layouts import NoTasks, discover
from runner.repair.lines import write_lines
from runner.repair.sources import BadSource, env_source

REFUSALS = (CompileError, InvalidEnvFile, BadTaskFiles, BadSource, NoTasks, Refused)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; `act` of the result does the work."""
    parser = argparse.ArgumentParser(prog="python -m runner.repair", description="Compile and examine banks of repair tasks.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compile", help="sparse to dense: one Harbor folder a task")
    command.add_argument("bank", type=Path, help="root of an authored bank, the folder that holds envs/")
    command.add_argument("out", type=Path, help="folder to write; an earlier output is replaced")
    command.add_argument("--only", default="*", help="glob over task folders; other tasks and the index stay as they are")
    command.add_argument("--apt-mirror", default="", help="baked into the Dockerfiles as @APT_MIRROR@")
    command.set_defaults(act=run_compile)
    command = commands.add_parser("lines", help="find each defect's line; writes factory/DEFECT_LINES.json of every environment")
    command.add_argument("bank", type=Path)
    command.set_defaults(act=run_lines)
    command = commands.add_parser("dataset", help="Parquet datasets of a dense bank")
    command.add_argument("bank", type=Path, help="compiled or plain Harbor bank")
    command.add_argument("data", type=Path, help="folder to write below")
    command.add_argument("--env", action="append", help="environments; all by default")
    command.add_argument("--categories", default="repair", help="comma list")
    command.add_argument("--tier", default="easy")
    command.add_argument("--val-per-group", type=int, default=1)
    command.set_defaults(act=run_dataset)
    command = commands.add_parser("digest", help="the digest of a dense task's folder")
    command.add_argument("folder", type=Path)
    command.set_defaults(act=lambda options: print(read_files(options.folder).digest))
    command = commands.add_parser("canary", help="the canary GUID of a task's name")
    command.add_argument("name")
    command.set_defaults(act=lambda options: print(canary_of(options.name)))
    command = commands.add_parser("source", help="file name and SHA-256 of an environment's pinned source")
    command.add_argument("env", type=Path, help="folder that holds env.toml")
    command.set_defaults(act=run_source)
    return parser.parse_args(arguments)


def run_compile(options: argparse.Namespace) -> None:
    done = compile_bank(options.bank.resolve(), options.out.resolve(), options.only, options.apt_mirror)
    for task in done:
        print(f"{task.digest[:12]}  {task.path}")
    print(f"compiled {len(done)} tasks")


def run_lines(options: argparse.Namespace) -> None:
    for path, document in write_lines(discover(options.bank.resolve())):
        agree, offset = document["cross_check"]["agree"], document["cross_check"]["offset"]
        print(f"{path}: {len(document['resolved'])} of {len(document['statuses'])} lines; recorded ones: {agree} agree, {offset} are off")
        if document["resolved"] and not agree and offset:
            print("no recorded line agrees: spot-check some of them")


def run_dataset(options: argparse.Namespace) -> None:
    # Arrow is needed by this command alone.
    from runner.repair.bank import read_bank
    from runner.repair.dataset import DatasetRefused, write_dataset

    bank = read_bank(discover(options.bank.resolve()))
    envs = options.env or sorted({entry.payload.env for entry in bank.entries})
    commit = (commit_of(options.bank) or {}).get("commit", "")
    try:
        for env in envs:
            folder = write_dataset(
                bank, options.data, env, tuple(options.categories.split(",")), options.tier, options.val_per_group, commit
            )
            print(f"{folder}: {json.loads((folder / 'split.json').read_text())['val']} held out")
    except DatasetRefused as error:
        raise BadTaskFiles(str(error)) from None


def run_source(options: argparse.Namespace) -> None:
    source = env_source(options.env.resolve())
    if source is None:
        raise BadSource(f"{options.env}: no env.toml and no archive in env/source")
    print(f"{source.sha256}  {source.name}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        options.act(options)
    except REFUSALS as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
