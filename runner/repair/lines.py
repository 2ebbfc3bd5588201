"""Where each defect stands in the pinned source: recorded lines are checked, missing ones looked for."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from runner.repair.bank import LINES_FILES, Sources
from runner.repair.layouts import Bank
from runner.repair.task import Task, load, section
from runner.repair.validate import defect_of, line_status, resolved_line


def write_lines(bank: Bank) -> Iterator[tuple[Path, dict]]:
    """Write factory/DEFECT_LINES.json of every environment; yields each with its content. A recorded line is not repeated there."""
    sources, envs = Sources(), defaultdict(list)
    for found in bank.tasks:
        if found.env_folder is not None:
            envs[found.env_folder].append(load(found))
    for folder, tasks in sorted(envs.items()):
        path = folder / LINES_FILES[0]
        path.unlink(missing_ok=True)  # what an earlier source said must not answer for this one
        document = lines_of(folder.name, tasks, sources)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        yield path, document


def lines_of(env: str, tasks: list[Task], sources: Sources) -> dict:
    """{env, source_sha256, resolved: {task: line}, statuses: {task: status}, cross_check: {agree, offset}}."""
    resolved, statuses, agree, offset, sha256 = {}, {}, 0, 0, None
    for task in tasks:
        context = sources.context(task.found)
        sha256 = context.source.sha256 if context.source else sha256
        name, line = task.folder.name, resolved_line(task, context)
        statuses[name] = line_status(task, context)
        recorded = section(task.provenance, "candidate", "meta").get("line")
        if not isinstance(recorded, int):
            resolved |= {name: line} if line is not None else {}
        elif line is not None:
            agrees = recorded in (line, line + _newlines(task))
            agree, offset = agree + agrees, offset + (not agrees)
    return {
        "env": env,
        "source_sha256": sha256,
        "resolved": resolved,
        "statuses": statuses,
        "cross_check": {"agree": agree, "offset": offset},
    }


def _newlines(task: Task) -> int:
    # Some recorders count to the end of the text that was replaced.
    return defect_of(task)["edits"][0]["old"].count("\n")
