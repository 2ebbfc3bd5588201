"""`assay eval`: evaluate oracle, nop or a model on a bank of repair tasks; results.jsonl and summary.json as they are published."""

import argparse
import sys
from pathlib import Path
from typing import Any

from controlplane.cli.client import Client, ClientError, connect
from controlplane.cli.follow import follow_run
from runner.contract.evaluation_config import source_of

FAILED = 4
RESULTS, SUMMARY = "results.jsonl", "summary.json"


def arguments(sub: argparse.ArgumentParser) -> None:
    what = sub.add_mutually_exclusive_group(required=True)
    what.add_argument("--agent", choices=["oracle", "nop", "terminal", "menu"], help="who acts in the containers")
    what.add_argument("--resume", metavar="RUN", help="go on with an evaluation that was interrupted; finished episodes are not run again")
    sub.add_argument("--bank", default="repair", help="bank of repair tasks (default: repair)")
    sub.add_argument("--name", help="what it is called (default: made from agent and bank)")
    sub.add_argument("--model", help="terminal, menu: checkpoint:ID, path:/folder, hub:owner/name, builtin:NAME, or a served model's name")
    sub.add_argument("--url", help="address of a served model, ending in /v1")
    sub.add_argument(
        "--tokenizer", metavar="FOLDER", help="of a served model, on the nodes: token ids are sent, as in training, not messages"
    )
    sub.add_argument("--max-length", type=int, default=None, help="tokens of prompt and reply together")
    sub.add_argument("--max-new-tokens", type=int, default=None, help="response cap")
    sub.add_argument("--temperature", type=float, default=None, help="0 is greedy (default 1)")
    sub.add_argument("--max-turns", type=int, default=None, help="replies at most")
    sub.add_argument(
        "--hint", choices=["L1", "L2", "L3"], default=None, help="L1 names file and line of the defect, L2 the file, L3 nothing"
    )
    for name, words in (("split", "splits"), ("category", "categories"), ("family", "families"), ("level", "tiers"), ("domain", "codes")):
        sub.add_argument(f"--{name}", action="append", default=[], help=f"keep only these {words}; repeatable")
    sub.add_argument("--tasks", metavar="GLOB", help="keep the tasks whose names match")
    sub.add_argument("--per-family", type=int, metavar="N", help="the first N of each (category, family, tree)")
    sub.add_argument("--limit", type=int, metavar="N", help="the first N of what is left")
    sub.add_argument("--samples", type=int, default=None, metavar="N", help="episodes of each task (default 1)")
    sub.add_argument("--concurrency", type=int, default=None, help="episodes at once (default 4)")
    sub.add_argument("--backend", choices=["docker", "process"], default=None)
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--unproven", metavar="REASON", help="why a bank whose anchors are not proven may be used; stays on the result")
    sub.add_argument("--check", action="store_true", help="only say what is wrong with it, and which tasks would be run")
    sub.add_argument("--no-wait", action="store_true", help="queue it and leave")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="where results.jsonl and summary.json go (default: eval-<id>)")


def evaluate(options) -> int | None:
    client = connect()
    if options.resume:
        return _resumed(client, options)
    document = document_of(options)
    if options.check:
        return _check(client, document)
    return _followed(client, client.post("/evaluations", document), options)


# ---------------------------------------------------------------- the document
def document_of(options) -> dict[str, Any]:
    """What REST is sent. Raises ClientError for a model that cannot be meant."""
    by_model = options.agent in ("terminal", "menu")
    environment = {
        "type": "harbor",
        "bank": options.bank,
        **_given(
            hint_level=options.hint,
            domains=options.domain,
            levels=options.level,
            families=options.family,
            backend=options.backend,
            max_concurrent_episodes=options.concurrency,
            unproven_reason=options.unproven,
        ),
    }
    if by_model:
        environment["agent"] = {"type": options.agent, **_given(max_turns=options.max_turns)}
    selection = _given(
        splits=options.split,
        categories=options.category,
        task_glob=options.tasks,
        per_family=options.per_family,
        limit=options.limit,
        samples=options.samples,
    )
    document = {
        "kind": "evaluation",
        "name": options.name or f"{options.agent} on {options.bank}",
        "agent": "model" if by_model else options.agent,
        "seed": options.seed,
        "environment": environment,
        "selection": selection,
        "sampling": _given(temperature=options.temperature, max_new_tokens=options.max_new_tokens),
    }
    if options.model or by_model:
        document["model"] = {"source": _source(options.model, options.url, options.tokenizer), **_given(max_length=options.max_length)}
    return document


def _source(model: str | None, url: str | None, tokenizer: str | None) -> dict[str, str]:
    if tokenizer and not url:
        raise ClientError(f"assay: --tokenizer {tokenizer} goes with a served model; give its address as --url too")
    try:
        return source_of(model or "", url or "", tokenizer or "")
    except ValueError as error:
        raise ClientError(f"assay: --model {model or 'is missing'}: {error}") from None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [])}


# ---------------------------------------------------------------- what follows
def _check(client: Client, document: dict) -> int:
    found = client.post("/evaluations/check", document)
    for kind in ("errors", "warnings"):
        for error in found[kind]:
            print(f"{kind[:-1]}  {error['pointer']}: {error['message']}")
    for task in found["tasks"]:
        print(task)
    print(f"{len(found['tasks'])} tasks, {found['trials']} episodes")
    return 1 if found["errors"] else 0


def _resumed(client: Client, options) -> int | None:
    return _followed(client, client.post(f"/runs/{options.resume}/retry"), options)


def _followed(client: Client, run: dict, options) -> int | None:
    print(f"{run['id']}  {run['name']}\n{client.url}/runs/{run['id']}", flush=True)
    if options.no_wait:
        return None
    ended = follow_run(client, run["id"], sys.stdout)
    if ended["state"] != "succeeded":
        print(f"go on with: assay eval --resume {run['id']}", file=sys.stderr)
        return FAILED
    return write_results(client, run["id"], options.out or Path(f"eval-{run['id'][:8]}"))


def write_results(client: Client, run_id: str, folder: Path) -> int | None:
    """Both files of the run's evaluation into `folder`, and its figures on the screen."""
    found = client.get(f"/runs/{run_id}/evaluations")
    if not found:
        raise ClientError(f"assay: run {run_id} has no results yet; its last words may still be on their way")
    path = f"/evaluations/{found[-1]['id']}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULTS, SUMMARY):
        (folder / name).write_text(client.text(f"{path}/{name}"))
    summary = client.get(f"{path}/{SUMMARY}")
    for name, block in (("overall", summary["overall"]), *summary["by_category"].items(), *summary["by_family"].items()):
        print(line_of(name, block))
    for name, count in summary["errors"].items():
        print(f"{name}: {count}")
    print(f"{folder / RESULTS}\n{folder / SUMMARY}")
    return None


def line_of(name: str, block: dict[str, Any]) -> str:
    """`repair/sign/2d  score 0.731 [0.600, 0.850]  passed 5 of 7  graded 7 of 8`"""
    if block["mean_score"] is None:
        return f"{name:<40} no score  graded 0 of {block['n_trials']}"
    interval = " [{:.3f}, {:.3f}]".format(*block["mean_score_interval"]) if block["mean_score_interval"] else ""
    passed = f"passed {block['n_success']} of {block['n_graded']}"
    return f"{name:<40} score {block['mean_score']:.3f}{interval}  {passed}  graded {block['n_graded']} of {block['n_trials']}"
