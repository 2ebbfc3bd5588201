"""SciKnowEval's multiple-choice rows, from a prepared Parquet file or from a dataset of the hub that holds one.

The file carries its own split: `split` (rows with unreliable keys, repeats and near-copies of held-out questions are marked `drop`) or
`split_naive` (every row, 17,870 / 800, for parity with the published run). A row that contradicts itself is broken: it is left out and
listed with its number, and a file with many of them is refused whole.
"""

import hashlib
from pathlib import Path
from typing import Any, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from runner.contract.bank import Task
from runner.environments.choice import read_payload
from runner.importers.errors import ImportRefused
from runner.importers.report import Report

SPLIT_COLUMNS = ("split", "split_naive")
SPLITS = ("train", "eval", "drop")
COLUMNS = ("id", "domain", "level", "task", "question", "choices", "answer_key", "instruction", "flags", *SPLIT_COLUMNS)
# Carried by the prepared file for tracing a row back; not part of a task.
PROVENANCE = ("source_file", "source_line", "mcq_type", "n_choices", "subtask", "upstream_source", "extra_choice_texts", "dup_group")
# More than this share of broken rows means the wrong file, not a file with a few bad rows.
MOST_BROKEN = 0.05

#: Flags that made a row `drop`, strongest first, with what they mean.
DROPPING_FLAGS = {
    "question_text_in_choice": "the question's tail was parsed as an option; the key is unreliable",
    "meta_text_in_choice": "an option tells the answer or is a sourcing note",
    "choice_count_mismatch": "options and labels differ in number",
    "empty_choice": "an option is empty",
    "missing_context": "the data the question refers to is absent",
    "ambiguous_key": "another option has the same text as the keyed one",
    "conflicting_key": "the same question stands elsewhere with another key",
    "degenerate_text": "unreadable text",
    "duplicate": "repeats another row",
}
HELD_OUT_SIBLING = "shares its text with a held-out question"


def read_tasks(source: str, split_column: str = "split") -> tuple[list[Task], Report]:
    """Tasks of the file at path `source`, or of the hub dataset `owner/name`. Raises ImportRefused."""
    if split_column not in SPLIT_COLUMNS:
        raise ImportRefused(f"split column {split_column!r} is unknown; choose one of {', '.join(SPLIT_COLUMNS)}")
    path = Path(source)
    if not path.is_file():
        path = fetch_parquet(source)
    table = read_table(path)
    report = Report({"name": source, "file": path.name, "sha256": file_digest(path), "split_column": split_column})
    report.notes += [f"column {name!r} is unknown and was not read" for name in table.column_names if name not in COLUMNS + PROVENANCE]
    tasks = _tasks(table, split_column, report)
    if not tasks:
        raise ImportRefused(f"{source}: none of {report.read} rows can be used{_first(report)}")
    if len(report.broken) > MOST_BROKEN * report.read:
        raise ImportRefused(f"{source}: {len(report.broken)} of {report.read} rows are broken, so this is not the expected file{_first(report)}")
    return tasks, report


def _first(report: Report) -> str:
    return "".join(f"; row {item['row']}: {item['reason']}" for item in report.broken[:5])


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_table(path: Path) -> pa.Table:
    """The Parquet file with every column that is needed. Raises ImportRefused naming the missing ones."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ImportRefused(f"{path.name} is no Parquet file that can be read: {error}") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise ImportRefused(f"{path.name} lacks the columns {', '.join(missing)}; it has {', '.join(table.column_names) or 'none'}")
    return table


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.select(COLUMNS).to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def _tasks(table: pa.Table, split_column: str, report: Report) -> list[Task]:
    tasks, first_seen = [], {}
    for number, row in enumerate(_rows(table), 1):
        report.read += 1
        name = str(row["id"] or "")
        try:
            task = to_task(row, split_column)
            if (earlier := first_seen.setdefault(task.key, number)) != number:
                raise ValueError(f"id {task.key!r} was already used by row {earlier}")
        except ValueError as error:
            report.refuse(number, name, str(error))
            continue
        if task.split == "drop":
            report.drop(drop_reason(task.flags), task.key)
        else:
            tasks.append(task)
    return tasks


def drop_reason(flags: list[str]) -> str:
    """Why the file tells to drop a row with these flags."""
    flag = next((flag for flag in DROPPING_FLAGS if flag in flags), None)
    return f"{flag}: {DROPPING_FLAGS[flag]}" if flag else HELD_OUT_SIBLING


def to_task(row: dict[str, Any], split_column: str) -> Task:
    """One row as a task. Raises ValueError saying what is wrong with it."""
    for column in ("id", "domain", "level", "task", "question", "answer_key", split_column):
        if not isinstance(row[column], str) or not row[column].strip():
            raise ValueError(f"{column} is empty")
    if row[split_column] not in SPLITS:
        raise ValueError(f"{split_column} is {row[split_column]!r}; expected one of {', '.join(SPLITS)}")
    payload = {
        "instruction": row["instruction"] or "",
        "question": row["question"],
        "choices": [{"label": choice["label"] or "", "text": choice["text"] or ""} for choice in row["choices"] or []],
        "answer_key": row["answer_key"],
    }
    task = Task(
        key=row["id"], split=row[split_column], domain=row["domain"], level=row["level"], family=row["task"], payload=payload, flags=row["flags"] or []
    )
    read_payload(task)
    return task


def fetch_parquet(repository: str) -> Path:
    """The one Parquet file of the hub dataset `owner/name` that has the needed columns. Raises ImportRefused with the remedy."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if "/" not in repository or Path(repository).suffix:
        raise ImportRefused(f"{repository!r} is neither a file on this machine nor a hub id owner/name; correct the path")
    try:
        names = [name for name in HfApi().list_repo_files(repository, repo_type="dataset") if name.endswith(".parquet")]
        if len(names) != 1:
            raise ImportRefused(f"hub dataset {repository!r} holds {len(names)} Parquet files, one is expected; download the right one and give its path")
        return Path(hf_hub_download(repository, names[0], repo_type="dataset"))
    except HFValidationError as error:
        raise ImportRefused(f"{repository!r} is neither a file on this machine nor a hub id: {error}") from error
    except HfHubHTTPError as error:
        raise ImportRefused(f"the hub refused {repository!r}: {error}") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise ImportRefused(
            f"the hub cannot be reached for {repository!r} ({type(error).__name__}); connect this machine, or download the file elsewhere and give its path"
        ) from error
