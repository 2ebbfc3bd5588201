"""python -m runner.importers quiz | sciknoweval | harbor | scienceworld: make a bank file, write it or send it to a control plane.

Lines on standard output tell the progress. Exit code 0: everything was written or sent; otherwise the last line of standard
error says why, and nothing was written.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Sequence

import httpx

from runner.contract.bank import Demonstration, Task, write_bank
from runner.importers.errors import ImportRefused
from runner.importers.report import Report

SEND_SECONDS = 300.0
# One request of files: whatever comes first.
SEND_FILES, SEND_BYTES = 50, 32 << 20
# What a bank without a source is read from.
BUNDLED = {"quiz": "the bundled facts", "scienceworld": "the simulator"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m runner.importers", description="Turn a source of questions into a task bank.")
    commands = parser.add_subparsers(dest="bank", required=True)
    quiz = commands.add_parser("quiz", help="the bundled science quiz, generated here")
    quiz.add_argument("--seed", type=int, default=0, help="which siblings stand beside an answer, and under which letters")
    sciknoweval = commands.add_parser("sciknoweval", help="SciKnowEval's multiple-choice questions")
    sciknoweval.add_argument("--source", required=True, help="Parquet file, or owner/name of a hub dataset")
    sciknoweval.add_argument("--split-column", default="split", help="split (recommended) or split_naive (parity: 17,870 / 800)")
    harbor = commands.add_parser("harbor", help="containerised repair tasks: authored, compiled, or plain Harbor")
    harbor.add_argument("--source", required=True, help="folder, archive (zip, tar), or with --ref a folder of a git checkout")
    harbor.add_argument("--ref", help="read this commit, branch or tag of the checkout instead of the files as they lie")
    harbor.add_argument("--compile", action="store_true", dest="is_sparse", help="the bank is authored (sparse): compile it first")
    harbor.add_argument("--apt-mirror", default="", help="package mirror baked into the Dockerfiles when compiling")
    harbor.add_argument("--blobs", type=Path, help="write the files that the bank names here, each under its SHA-256")
    scienceworld = commands.add_parser("scienceworld", help="ScienceWorld's variations, read from the simulator")
    scienceworld.add_argument("--simplification", default="easy", help="under which the gold is measured")
    scienceworld.add_argument("--cap", type=int, default=100, help="actions an episode may take: which gold fits in them")
    scienceworld.add_argument("--replays", type=int, default=1, help="gold paths of each kind of task that are played; 0 plays none")
    scienceworld.add_argument("--gold-tasks", default="", help="play gold of these kinds alone: task ids with commas, such as 4-2,7-1")
    scienceworld.add_argument("--hints", default="full", choices=["full", "objects", "none"], help="what the demonstrations' prompts list")
    thinks = "the thought in a demonstration's reply: a line made of task and action, or none, which is half as long"
    scienceworld.add_argument("--think", default="template", choices=["template", "empty"], help=thinks)
    for command in (quiz, sciknoweval, harbor, scienceworld):
        command.add_argument("--out", type=Path, help="write the bank file here")
        command.add_argument("--report", type=Path, help="write the report here")
        command.add_argument("--url", help="control plane to send the bank to, such as http://127.0.0.1:8000")
        command.add_argument("--token-file", type=Path, help="file holding an API token with the scope to import banks")
        command.add_argument("--bank-slug", default=command.prog.split()[-1], help="name of the bank in the control plane")
    options = parser.parse_args(arguments)
    if not options.out and not options.url:
        parser.error("give --out FILE to write the bank, or --url URL to send it")
    if options.url and not options.token_file:
        parser.error("--url needs --token-file: a file holding an API token")
    return options


@dataclass(frozen=True)
class Made:
    """A bank before it is written. `blobs` are the files that it names, by SHA-256."""

    tasks: list[Task]
    demonstrations: list[Demonstration]
    report: Report
    blobs: Mapping[str, Path | bytes] = field(default_factory=dict)


@contextmanager
def make(options: argparse.Namespace) -> Iterator[Made]:
    """The chosen bank; its blobs can be read until it is closed. Raises ImportRefused."""
    if options.bank == "quiz":
        from runner.importers.quiz.bank import quiz_bank

        yield Made(*quiz_bank(options.seed))
    elif options.bank == "sciknoweval":
        from runner.importers.sciknoweval import read_tasks

        tasks, report = read_tasks(options.source, options.split_column)
        yield Made(tasks, [], report)
    elif options.bank == "scienceworld":
        from runner.importers.scienceworld import Options
        from runner.importers.scienceworld import read_tasks as read_variations

        kinds = tuple(filter(None, options.gold_tasks.split(",")))
        about = (options.simplification, options.cap, options.replays, kinds, options.hints, options.think)
        yield Made(*read_variations(Options(*about), say))
    else:
        from runner.importers.harbor import opened

        with opened(options.source, options.bank_slug, options.ref, options.is_sparse, options.apt_mirror) as bank:
            yield Made(bank.tasks, bank.demonstrations, bank.report, bank.blobs)


# ---------------------------------------------------------------- sending
def send(options: argparse.Namespace, file: bytes, report: dict, blobs: Mapping[str, Path | bytes]) -> str:
    """Upload the bank, first the files it names; returns what became of it. Raises ImportRefused."""
    try:
        token = options.token_file.read_text().strip()
    except OSError as error:
        raise ImportRefused(f"--token-file {options.token_file}: {error.strerror}; `./assay token` makes one") from error
    base = f"{options.url.rstrip('/')}/api/v1"
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=SEND_SECONDS) as client:
        send_blobs(client, base, blobs)
        answer = post(
            client,
            f"{base}/banks/{options.bank_slug}/versions",
            files={"file": ("bank.jsonl.zst", file, "application/zstd")},
            data={"report": json.dumps(report), "environment": options.bank},
        )
    known = "this content is already version" if answer.status_code == 200 else "imported as version"
    return f"{known} {answer.json().get('number')} of bank {options.bank_slug}"


def send_blobs(client: httpx.Client, base: str, blobs: Mapping[str, Path | bytes]) -> None:
    """Upload those blobs that the control plane lacks."""
    names = sorted(blobs)
    for start in range(0, len(names), 1000):
        lacking = post(client, f"{base}/bank-files/missing", json={"digests": names[start : start + 1000]}).json()["missing"]
        for batch in batches(lacking, blobs):
            post(client, f"{base}/bank-files", files=[("files", (name, content_of(blobs[name]))) for name in batch])
            say(f"sent {len(batch)} files")


def batches(names: Sequence[str], blobs: Mapping[str, Path | bytes]) -> Iterator[list[str]]:
    """Names in lots of at most 50 files; a lot ends with the file that takes it over 32 MiB."""
    batch, size = [], 0
    for name in names:
        content = blobs[name]
        batch.append(name)
        size += len(content) if isinstance(content, bytes) else content.stat().st_size
        if len(batch) == SEND_FILES or size >= SEND_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def post(client: httpx.Client, address: str, **content) -> httpx.Response:
    """The answer when it is a success. Raises ImportRefused."""
    try:
        answer = client.post(address, **content)
    except httpx.HTTPError as error:
        raise ImportRefused(f"{address} cannot be reached ({type(error).__name__}: {error}); is the control plane up?") from error
    if answer.status_code not in (200, 201):
        raise ImportRefused(f"{address} refused the bank ({answer.status_code}): {answer.text[:2000]}")
    return answer


def content_of(blob: Path | bytes) -> bytes:
    return blob if isinstance(blob, bytes) else blob.read_bytes()


# ---------------------------------------------------------------- writing
def write(path: Path, data: bytes) -> None:
    """Whole or not at all. Raises ImportRefused."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        raise ImportRefused(f"cannot write {path}: {error.strerror}") from error


def write_blobs(folder: Path, blobs: Mapping[str, Path | bytes]) -> None:
    """Each blob as a file named by its SHA-256. Raises ImportRefused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ImportRefused(f"cannot write {folder}: {error.strerror}") from error
    for name, blob in blobs.items():
        write(folder / name, content_of(blob))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        say(f"reading {getattr(options, 'source', None) or BUNDLED[options.bank]}")
        with make(options) as made:
            deliver(options, made)
    except ImportRefused as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def deliver(options: argparse.Namespace, made: Made) -> None:
    """Write the bank where the options say, or send it. Raises ImportRefused."""
    document = made.report.document(made.tasks)
    say(summary(document, len(made.demonstrations)))
    file, digest = write_bank([*made.tasks, *made.demonstrations])
    if options.report:
        write(options.report, json.dumps(document, ensure_ascii=False, indent=1).encode())
    if blobs := getattr(options, "blobs", None):
        write_blobs(blobs, made.blobs)
    if options.out:
        write(options.out, file)
        say(f"wrote {options.out}: {len(file)} bytes, digest {digest[:12]}")
    if options.url:
        say(send(options, file, document, made.blobs))


def summary(document: dict, demonstrations: int) -> str:
    """The report in a few lines."""
    lines = [f"read {document['read']} rows, kept {document['kept']} tasks and {demonstrations} demonstrations"]
    lines += [f"dropped {item['count']}: {item['reason']}" for item in document["dropped"]]
    for split, found in document["splits"].items():
        base = "".join(f", {name.replace('_', ' ')} {value:.3f}" for name, value in found["baselines"].items() if value is not None)
        domains = ", ".join(f"{name} {count}" for name, count in found["domains"].items())
        lines.append(f"{split}: {found['tasks']} tasks ({domains}){base}")
    found = document.get("harbor", {}).get("findings", [])
    lines += [f"{item['code']} in {item['count']} tasks: {item['title']}; {item['remedy']}" for item in found]
    return "\n".join(lines + document["notes"])


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
