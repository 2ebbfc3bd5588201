"""Importers run as processes of their own: they read formats, we read their canonical file.

The web process and the worker never import runner.importers; an import is a row that a page can watch.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils import timezone

from kombu.exceptions import OperationalError

from controlplane.accounts.models import Team, User
from controlplane.accounts.roles import require
from controlplane.accounts.services import ensure_embedded_owner, record
from controlplane.banks import files
from controlplane.banks.models import Bank, BankImport, BankVersion, ImportSource, ImportState
from controlplane.banks.services import ENVIRONMENTS, import_version
from controlplane.env import CHECKOUT
from runner.contract.bank import InvalidBank
from runner.contract.repair import ARCHIVE_SUFFIXES
from runner.contract.scienceworld import kind_of

IMPORTERS = "runner.importers"
SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
GIT_REF = re.compile(r"[A-Za-z0-9][\w./@{}^~-]{0,199}")
# environment → where its tasks may come from, and what a file of them may be called.
SOURCES = {
    "quiz": (ImportSource.BUNDLED,),
    "scienceworld": (ImportSource.BUNDLED,),
    "sciknoweval": (ImportSource.UPLOAD, ImportSource.PATH, ImportSource.HUB),
    "harbor": (ImportSource.BUNDLED, ImportSource.UPLOAD, ImportSource.PATH, ImportSource.GIT),
}
# Our own sample bank: authored, so it is compiled at import.
SAMPLE_BANK = CHECKOUT / "runner" / "environments" / "repair_bank"
DEFAULT_SLUG = {"harbor": "repair"}
FILE_KINDS = {"sciknoweval": (".parquet",), "harbor": ARCHIVE_SUFFIXES}
# Sources that name a place of the server: the reader sees what the server may read.
ON_THE_SERVER = (ImportSource.PATH, ImportSource.GIT)
ODD_IN_A_NAME = re.compile(r"[^\w. +@-]")
# Characters: a file's name holds 255 bytes.
LONGEST_NAME = 60
SPLIT_COLUMNS = ("split", "split_naive")
MAX_UPLOAD = 256 << 20
# Gold paths of each kind of task: seconds each.
MOST_REPLAYS = 200
# What an importer has no business knowing.
SECRETS = ("SECRET_KEY", "DATABASE_URL", "REDIS_URL")
TIME_LIMIT_S = 1800.0
BEAT_S = 2.0
LOST_AFTER = timedelta(seconds=60)
UNSTARTED_AFTER = timedelta(minutes=30)
LOG_KEPT = 20_000


class ImporterFailed(Exception):
    """The importer process gave up; the message is its own last line."""


# ---------------------------------------------------------------- the request
def start_import(
    user: User,
    team: Team,
    environment: str,
    source: str,
    location: str = "",
    slug: str = "",
    split_column: str = "split",
    upload: BinaryIO | None = None,
    ref: str = "",
    is_sparse: bool = False,
    replays: int = 1,
    gold_tasks: str = "",
) -> BankImport:
    """Queue an import and start it on commit; the row tells how it goes.

    `location`: a path of the server for `path` and `git` (admins only), owner/name for `hub`, the file's name for `upload`. For harbor,
    `ref` is the commit to read from a checkout, and `is_sparse` compiles an authored bank first. For scienceworld, `replays` gold paths of
    each kind of task are played, or only of the kinds in `gold_tasks` (ids with commas).
    Raises ValidationError naming the field, PermissionDenied.
    """
    require(user, team, "bank.import-path" if source in ON_THE_SERVER else "bank.import")
    slug = slug or DEFAULT_SLUG.get(environment, environment)
    options = {
        "sciknoweval": {"split_column": split_column},
        "harbor": {"ref": ref, "compile": is_sparse},
        "scienceworld": {"replays": replays, "gold_tasks": gold_tasks},
    }.get(environment, {})
    _check_request(environment, source, location, slug, options, upload)
    with transaction.atomic():
        job = BankImport.objects.create(
            team=team,
            bank=slug,
            environment=environment,
            source=source,
            location=location,
            options=options,
            created_by=user,
        )
        if upload is not None:
            _keep_upload(job, upload)
        record(user, "bank.import-start", job, {"bank": slug, "source": source, "location": location})
        transaction.on_commit(lambda: _send(job))
    return job


def _check_request(environment: str, source: str, location: str, slug: str, options: dict, upload: BinaryIO | None) -> None:
    wrong = {}
    if environment not in ENVIRONMENTS:
        wrong["environment"] = f"{environment!r} is unknown; choose one of {', '.join(ENVIRONMENTS)}"
    elif source not in SOURCES[environment]:
        wrong["source"] = f"{source!r} does not fit {environment}; choose one of {', '.join(SOURCES[environment])}"
    elif told := _wrong_location(environment, source, location, upload):
        wrong["location"] = told
    if not SLUG.fullmatch(slug):
        wrong["bank"] = f"{slug[:80]!r} is no bank name; use small letters, digits, dots, dashes"
    if (column := options.get("split_column", SPLIT_COLUMNS[0])) not in SPLIT_COLUMNS:
        wrong["split_column"] = f"{column!r} is unknown; choose one of {', '.join(SPLIT_COLUMNS)}"
    if not 0 <= (replays := options.get("replays", 0)) <= MOST_REPLAYS:
        wrong["replays"] = f"{replays} is not from 0 to {MOST_REPLAYS}"
    try:
        [kind_of(kind) for kind in filter(None, options.get("gold_tasks", "").split(","))]
    except ValueError as error:
        wrong["gold_tasks"] = str(error)
    if source == ImportSource.GIT and not GIT_REF.fullmatch(options.get("ref", "")):
        wrong["ref"] = f"{options.get('ref', '')[:80]!r} is no commit, branch or tag; write HEAD for the newest commit"
    if wrong:
        raise ValidationError(wrong)


def _wrong_location(environment: str, source: str, location: str, upload: BinaryIO | None) -> str | None:
    if source == ImportSource.HUB:
        return None if HUB_ID.fullmatch(location) and ".." not in location else f"{location[:200]!r} is no hub id; write owner/name"
    if source == ImportSource.BUNDLED:
        return None
    kinds = FILE_KINDS[environment]
    if environment == "harbor" and source in ON_THE_SERVER and _is_on_the_server(location, Path.is_dir):
        return None
    if source == ImportSource.GIT:
        return f"{location[:200]!r} is no folder of the server; give the absolute path of a checkout, or of a folder in it"
    if not location.endswith(kinds):
        return f"{location[-80:]!r} must be a file, its name ending in {', '.join(kinds)}" + (
            ", or a folder" if environment == "harbor" else ""
        )
    if source == ImportSource.UPLOAD:
        return None if upload is not None else "no file was sent"
    return None if _is_on_the_server(location, Path.is_file) else f"{location[:200]!r} is no file of the server; give its absolute path"


def _is_on_the_server(location: str, is_kind: Callable[[Path], bool]) -> bool:
    try:
        return Path(location).is_absolute() and is_kind(Path(location))
    except OSError:  # too long for a path, or in a folder that the server may not enter
        return False


def _folder(job: BankImport) -> Path:
    return Path(settings.ASSAY_STORAGE) / "imports" / str(job.pk)


def _upload_path(job: BankImport) -> Path:
    """Under the name that it was sent by, as far as that is a plain one: the importer's words name the file."""
    return _folder(job) / ODD_IN_A_NAME.sub("_", re.split(r"[/\\]", job.location)[-1])[-LONGEST_NAME:]


def _without_our_folder(job: BankImport, said: str) -> str:
    """What an importer said of an upload: people know the name they gave it, not where it waited."""
    return said.replace(f"{_folder(job)}/", "")


def _keep_upload(job: BankImport, upload: BinaryIO) -> None:
    # The worker may run on another machine: the file waits in the storage that both share.
    folder = _folder(job)
    folder.mkdir(parents=True)
    with _upload_path(job).open("xb") as file:
        shutil.copyfileobj(upload, file)
        if file.tell() > MAX_UPLOAD:
            shutil.rmtree(folder)
            raise ValidationError({"location": f"larger than {MAX_UPLOAD >> 20} MiB"})


def _send(job: BankImport) -> None:
    from controlplane.banks.tasks import run_import

    try:
        run_import.apply_async([str(job.pk)], retry=False)
    except OperationalError as error:
        _finish(job, {"state": ImportState.FAILED, "reason": f"the broker does not answer ({error}); start it again"})


# ---------------------------------------------------------------- the work
def perform_import(job: BankImport) -> BankImport:
    """Run the importer of `job` and import what it wrote; the row ends SUCCEEDED or FAILED with its reason.

    Repeating it after a lost worker is harmless: the same content is the same version.
    """
    if not BankImport.objects.filter(pk=job.pk, state__in=[ImportState.QUEUED, ImportState.RUNNING]).update(
        state=ImportState.RUNNING, touched_at=timezone.now(), log=""
    ):
        return BankImport.objects.get(pk=job.pk)
    try:
        file, report = run_importer(job.environment, _arguments(job), lambda log: _touch(job, log))
        report = json.loads(_without_our_folder(job, json.dumps(report)))
        report = {**report, "location": job.location, "source_kind": job.source}
        version = import_version(job.team, job.bank, file, report, job.created_by, job.environment)
        changes = {"state": ImportState.SUCCEEDED, "version": version, "report": report}
    except (ImporterFailed, InvalidBank, ValidationError, PermissionDenied) as error:
        reason = " ".join(getattr(error, "messages", [str(error)]))
        changes = {"state": ImportState.FAILED, "reason": _without_our_folder(job, reason)}
    except BaseException as error:
        _finish(job, {"state": ImportState.FAILED, "reason": f"internal error: {type(error).__name__}; the worker's log has more"})
        raise
    _finish(job, changes)
    job.refresh_from_db()
    return job


def _finish(job: BankImport, changes: dict) -> None:
    BankImport.objects.filter(pk=job.pk).update(finished_at=timezone.now(), touched_at=timezone.now(), **changes)
    shutil.rmtree(_folder(job), ignore_errors=True)


def _touch(job: BankImport, log: str) -> None:
    BankImport.objects.filter(pk=job.pk).update(log=_without_our_folder(job, log), touched_at=timezone.now())


def _arguments(job: BankImport) -> list[str]:
    if job.environment == "harbor":
        return [*_harbor_source(job), "--bank-slug", job.bank]
    if job.environment == "scienceworld":
        return ["--replays", str(job.options["replays"]), "--gold-tasks", job.options["gold_tasks"]]
    if job.source == ImportSource.BUNDLED:
        return []
    location = str(_upload_path(job)) if job.source == ImportSource.UPLOAD else job.location
    return ["--source", location, "--split-column", job.options["split_column"]]


def _harbor_source(job: BankImport) -> list[str]:
    if job.source == ImportSource.BUNDLED:
        return ["--source", str(SAMPLE_BANK), "--compile"]
    compiling = ["--compile"] if job.options["compile"] else []
    if job.source == ImportSource.GIT:
        return ["--source", job.location, "--ref", job.options["ref"], *compiling]
    return ["--source", str(_upload_path(job)) if job.source == ImportSource.UPLOAD else job.location, *compiling]


def run_importer(name: str, arguments: list[str], progress: Callable[[str], None] = lambda log: None) -> tuple[bytes, dict]:
    """The file and the report that `python -m runner.importers name …` writes; files that the bank names go to the store.

    Raises ImporterFailed. `progress` gets all output so far every few seconds, and so shows that the process lives.
    """
    with tempfile.TemporaryDirectory(prefix="assay-import-") as folder:
        file, report = Path(folder) / "bank.jsonl.zst", Path(folder) / "report.json"
        blobs = Path(folder) / "blobs"
        command = [sys.executable, "-m", IMPORTERS, name, *arguments, "--out", str(file), "--report", str(report)]
        command += ["--blobs", str(blobs)] if name == "harbor" else []
        environment = {key: value for key, value in os.environ.items() if key not in SECRETS}
        code, log = _watch(command, environment, progress)
        if code != 0 or not file.exists():
            last = log.strip().rpartition("\n")[2] or "it said nothing"
            raise ImporterFailed(f"the importer {name} ended with code {code}: {last}")
        if blobs.is_dir():
            files.put_all((path.name, path.read_bytes()) for path in blobs.iterdir())
        return file.read_bytes(), json.loads(report.read_text()) if report.exists() else {}


def _watch(command: list[str], environment: dict, progress: Callable[[str], None]) -> tuple[int, str]:
    process = subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    deadline = time.monotonic() + TIME_LIMIT_S
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                lines.append(f"ended after {TIME_LIMIT_S:.0f} s, the longest an import may take\n")
                return -1, _log(lines)
            progress(_log(lines))
            try:
                process.wait(BEAT_S)
            except subprocess.TimeoutExpired:
                pass
        reader.join(BEAT_S)
    finally:
        _end(process)
    progress(_log(lines))
    return process.returncode, _log(lines)


def _end(process: subprocess.Popen) -> None:
    # The whole group: an importer's own children must not outlive it.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _log(lines: list[str]) -> str:
    return "".join(lines)[-LOG_KEPT:].replace("\0", "")


def fail_lost_imports() -> int:
    """Imports whose worker or message was lost are told as such; returns how many. Cheap enough to call before every listing."""
    now = timezone.now()
    ended = 0
    for state, silence, told in (
        (ImportState.RUNNING, LOST_AFTER, "the worker that ran it was lost"),
        (ImportState.QUEUED, UNSTARTED_AFTER, "no worker took it"),
    ):
        silent = BankImport.objects.filter(state=state, touched_at__lt=now - silence)
        ended += silent.update(state=ImportState.FAILED, reason=f"{told}; start it again", finished_at=now)
    return ended


# ---------------------------------------------------------------- the bundled bank
def ensure_quiz_bank(team: Team | None = None) -> BankVersion:
    """The newest version of the team's bank `quiz`, generated and imported when there is none yet."""
    team = team or ensure_embedded_owner().memberships.get(team__slug="default").team
    bank = Bank.objects.filter(team=team, slug="quiz").first()
    version = bank and bank.versions.first()
    if version:
        return version
    file, report = run_importer("quiz", [])
    return import_version(team, "quiz", file, report, None, "quiz", "Science quiz")
