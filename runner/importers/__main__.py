"""python -m runner.importers quiz | sciknoweval: make a bank file, write it or send it to a control plane.

Lines on standard output tell the progress. Exit code 0: everything was written or sent; otherwise the last line of standard
error says why, and nothing was written.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Sequence

import httpx

from runner.contract.bank import Demonstration, Task, write_bank
from runner.importers.errors import ImportRefused
from runner.importers.report import Report

SEND_SECONDS = 300.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m runner.importers", description="Turn a source of questions into a task bank.")
    commands = parser.add_subparsers(dest="bank", required=True)
    quiz = commands.add_parser("quiz", help="the bundled science quiz, generated here")
    quiz.add_argument("--seed", type=int, default=0, help="which siblings stand beside an answer, and under which letters")
    sciknoweval = commands.add_parser("sciknoweval", help="SciKnowEval's multiple-choice questions")
    sciknoweval.add_argument("--source", required=True, help="Parquet file, or owner/name of a hub dataset")
    sciknoweval.add_argument("--split-column", default="split", help="split (recommended) or split_naive (parity: 17,870 / 800)")
    for command in (quiz, sciknoweval):
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


def make(options: argparse.Namespace) -> tuple[list[Task], list[Demonstration], Report]:
    """Tasks, demonstrations and report of the chosen bank. Raises ImportRefused."""
    if options.bank == "quiz":
        from runner.importers.quiz.bank import quiz_bank

        return quiz_bank(options.seed)
    from runner.importers.sciknoweval import read_tasks

    tasks, report = read_tasks(options.source, options.split_column)
    return tasks, [], report


def send(options: argparse.Namespace, file: bytes, report: dict) -> str:
    """Upload the bank; returns what became of it. Raises ImportRefused."""
    try:
        token = options.token_file.read_text().strip()
    except OSError as error:
        raise ImportRefused(f"--token-file {options.token_file}: {error.strerror}; `./assay token` makes one") from error
    address = f"{options.url.rstrip('/')}/api/v1/banks/{options.bank_slug}/versions"
    try:
        answer = httpx.post(
            address,
            headers={"Authorization": f"Bearer {token}"},
            files={"file": ("bank.jsonl.zst", file, "application/zstd")},
            data={"report": json.dumps(report), "environment": options.bank},
            timeout=SEND_SECONDS,
        )
    except httpx.HTTPError as error:
        raise ImportRefused(f"{address} cannot be reached ({type(error).__name__}: {error}); is the control plane up?") from error
    if answer.status_code not in (200, 201):
        raise ImportRefused(f"{address} refused the bank ({answer.status_code}): {answer.text[:2000]}")
    known = "this content is already version" if answer.status_code == 200 else "imported as version"
    return f"{known} {answer.json().get('number')} of bank {options.bank_slug}"


def write(path: Path, data: bytes) -> None:
    """Whole or not at all. Raises ImportRefused."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        raise ImportRefused(f"cannot write {path}: {error.strerror}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        say(f"reading {getattr(options, 'source', 'the bundled facts')}")
        tasks, demonstrations, report = make(options)
        document = report.document(tasks)
        say(summary(document, len(demonstrations)))
        file, digest = write_bank([*tasks, *demonstrations])
        if options.report:
            write(options.report, json.dumps(document, ensure_ascii=False, indent=1).encode())
        if options.out:
            write(options.out, file)
            say(f"wrote {options.out}: {len(file)} bytes, digest {digest[:12]}")
        if options.url:
            say(send(options, file, document))
    except ImportRefused as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def summary(document: dict, demonstrations: int) -> str:
    """The report in a few lines."""
    lines = [f"read {document['read']} rows, kept {document['kept']} tasks and {demonstrations} demonstrations"]
    lines += [f"dropped {item['count']}: {item['reason']}" for item in document["dropped"]]
    for split, found in document["splits"].items():
        base = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in found["baselines"].items() if value is not None)
        lines.append(f"{split}: {found['tasks']} tasks ({', '.join(f'{name} {count}' for name, count in found['domains'].items())}); {base}")
    return "\n".join(lines + document["notes"])


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
