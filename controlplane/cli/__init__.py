"""The command line: a client of the REST API and nothing more. It imports neither Django nor anything of the server."""

import argparse
import sys
from pathlib import Path

from controlplane.cli import commands, evaluations
from controlplane.cli.client import ClientError
from runner.contract.presets import PRESETS

OK, REFUSED, USAGE, UNREACHABLE, RUN_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130
EXIT_CODES = """exit codes: 0 done · 1 refused (one line a field) · 2 wrong usage · 3 Assay does not answer · 4 the run did not succeed · 130 interrupted

RUN is an id, the beginning of one (4 characters or more), or `latest`."""


def main(argv: list[str]) -> int:
    """Run one command; returns its exit code. Everything that goes wrong is a line on stderr, never a traceback."""
    options = parser().parse_args(argv)
    try:
        return options.command(options) or OK
    except ClientError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return error.code
    except BrokenPipeError:
        sys.stdout = None
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="assay", epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter)
    subs = top.add_subparsers(required=True, metavar="COMMAND")
    _launch(_command(subs, "launch", commands.launch, "launch a run from a TOML, YAML or JSON document, or from a preset"))
    _listing(_command(subs, "runs", commands.runs, "list runs, newest first"))
    for name, command, words in (
        ("show", commands.show, "one run: state, progress, newest values"),
        ("stop", commands.stop, "finish the step, write a checkpoint, end"),
        ("retry", commands.retry, "try an ended run again"),
    ):
        _run(_command(subs, name, command, words))
    _resume(_run(_command(subs, "resume", commands.resume, "continue an ended run from a checkpoint")))
    _clone(_run(_command(subs, "clone", commands.clone, "launch a copy with some keys changed")))
    _logs(_run(_command(subs, "logs", commands.logs, "print a run's log")))
    _episodes(_run(_command(subs, "episodes", commands.episodes, "list a run's episodes, newest first")))
    _adopt(_command(subs, "adopt", commands.adopt, "take over a run that was driven without a control plane, and replay what it told"))
    _import(_command(subs, "import", commands.import_bank, "import a task bank: quiz, SciKnowEval questions, repair tasks"))
    evaluations.arguments(
        _command(subs, "eval", evaluations.evaluate, "evaluate an agent or a model on a bank of repair tasks, in containers")
    )
    _token(_command(subs, "token", commands.token, "create an API token"))
    _bench(_command(subs, "bench", commands.bench, "measure one thing side by side, print one JSON line"))
    return top


def _command(subs, name: str, command, words: str) -> argparse.ArgumentParser:
    sub = subs.add_parser(name, help=words, description=words)
    sub.set_defaults(command=command)
    return sub


def _run(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
    sub.add_argument("run", metavar="RUN", help="id, the beginning of one (4 characters or more), or `latest`")
    return sub


def _set(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="stages[1].steps=20 or /stages/1/steps=20; the value is JSON or text",
    )


def _waiting(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--wait", "--follow", dest="wait", action="store_true", help="show progress until the run ends; exit 4 unless it succeeded"
    )


def _launch(sub: argparse.ArgumentParser) -> None:
    source = sub.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", metavar="FILE", help="run document; the format is told by .toml, .yaml, .yml or .json")
    source.add_argument("--preset", help=f"start from a preset instead of a file: {', '.join(PRESETS)}")
    sub.add_argument("--check", action="store_true", help="only say what is wrong with it and what it would cost")
    sub.add_argument("--key", help="idempotency key; the same key launches once (default: a fresh one)")
    _set(sub)
    _waiting(sub)


def _listing(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--state", help="draft, queued, active, succeeded, failed, stopped or lost")
    sub.add_argument("--search", help="in name, experiment and tags, or the beginning of an id")
    sub.add_argument("--limit", type=int, default=30, help="how many of the newest (default 30)")
    sub.add_argument("--json", action="store_true", help="one JSON object a line")


def _adopt(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("folder", type=Path, help="the run's folder, --out of `python -m runner.main --local`")
    sub.add_argument("--document", type=Path, help="its run document (default FOLDER/run.json)")
    sub.add_argument("--run", help="id of the run that an earlier call took over; what that one did not send is sent")


def _resume(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--checkpoint", help="id of a complete checkpoint of the run; default: its newest")
    _waiting(sub)


def _clone(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--key", help="idempotency key")
    _set(sub)
    _waiting(sub)


def _logs(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    sub.add_argument("--search", default="", help="only lines that hold this text")
    sub.add_argument("--level", choices=["debug", "info", "warning", "error"], action="append", default=[], help="repeatable")
    sub.add_argument("--lines", type=int, default=200, help="how many of the newest to begin with")


def _episodes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--failed", action="store_true", help="only those whose answer was wrong or missing")
    sub.add_argument("--limit", type=int, default=30, help="how many of the newest (default 30)")
    sub.add_argument("--json", action="store_true", help="one JSON object a line")


def _import(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("environment", choices=["quiz", "sciknoweval", "harbor", "scienceworld"])
    sub.add_argument(
        "source",
        nargs="?",
        help="sciknoweval: a .parquet file, or owner/name of the hub; harbor: a folder of the server or an archive (default: our sample bank)",
    )
    sub.add_argument("--compile", action="store_true", help="harbor: the bank is authored (sparse); compile it first")
    sub.add_argument("--ref", default="", help="harbor: read this commit, branch or tag of the checkout that holds the folder")
    sub.add_argument("--replays", type=int, default=1, help="scienceworld: gold paths of each kind of task that are played (default 1)")
    sub.add_argument("--gold-tasks", default="", help="scienceworld: play gold of these kinds alone, such as 4-2,7-1")
    sub.add_argument("--bank", default="", help="name of the bank (default: the environment's)")
    sub.add_argument("--split-column", choices=["split", "split_naive"], default="split")


def _token(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("action", choices=["create"])
    sub.add_argument("name")
    sub.add_argument("--scope", dest="scopes", choices=["read", "submit", "admin"], action="append", help="repeatable (default: read)")
    sub.add_argument("--days", type=int, help="days until it expires")


def _bench(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("name", nargs="?", help="which; without it, list them")
