"""REST: task banks, their versions, tasks, files, differences and imports."""

import json
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.http import FileResponse
from django.shortcuts import get_object_or_404
from ninja import Field, File, Form, Query, Router, Schema, Status, UploadedFile
from pydantic import Field as Limits
from pydantic import StrictBool, StrictInt

from controlplane import storage
from controlplane.accounts.selectors import team_for
from controlplane.api.idempotency import idempotent
from controlplane.api.pagination import Page, Paging
from controlplane.api.problems import Problem
from controlplane.api.rate_limit import limited
from controlplane.api.schemas import Input
from controlplane.banks import imports, selectors, services
from controlplane.banks.models import Bank, BankImport, BankVersion
from runner.contract.parse import FieldError

router = Router(tags=["banks"])

MAX_BANK_FILE = 64 << 20
SLUG = r"^[a-z0-9][a-z0-9._-]{0,79}$"


class BankOut(Schema):
    team: str = Field(alias="team.slug")
    slug: str
    name: str
    environment: str
    created_at: datetime
    archived_at: datetime | None
    versions: int = Field(alias="version_count")
    newest: int | None


class VersionOut(Schema):
    bank: str = Field(alias="bank.slug")
    number: int
    digest: str
    size: int
    counts: dict
    report: dict
    created_at: datetime


class TaskOut(Schema):
    key: str
    split: str
    domain: str
    level: str
    family: str
    payload: dict
    flags: list[str]


class TaskFilters(Schema):
    split: str = ""
    domain: str = ""
    level: str = ""
    family: str = ""
    flag: str = ""
    search: str = Field("", max_length=200, description="Text in the key or the payload.")


class BankChange(Input):
    archived: StrictBool


class ChangedTask(Schema):
    key: str
    columns: list[str]


class DiffOut(Schema):
    added: list[str]
    removed: list[str]
    changed: list[ChangedTask]
    added_count: int
    removed_count: int
    changed_count: int


class NewImport(Input):
    environment: Literal["quiz", "sciknoweval", "harbor", "scienceworld"]
    source: Literal["bundled", "path", "hub", "git"]
    location: str = Limits("", max_length=1000)
    bank: str = Limits("", max_length=80)
    split_column: Literal["split", "split_naive"] = "split"
    ref: str = Limits("", max_length=200, description="git: the commit, branch or tag to read.")
    is_sparse: StrictBool = Limits(False, alias="compile", description="harbor: the bank is authored; compile it first.")
    replays: StrictInt = Limits(1, ge=0, le=imports.MOST_REPLAYS, description="scienceworld: gold paths of each kind of task to play.")
    gold_tasks: str = Limits("", max_length=200, description="scienceworld: play gold of these task ids alone, with commas.")
    team: str | None = None


class ImportOut(Schema):
    id: UUID
    bank: str
    environment: str
    source: str
    location: str
    state: str
    log: str
    report: dict
    reason: str
    version: int | None = None
    created_at: datetime
    finished_at: datetime | None

    @staticmethod
    def resolve_version(job):
        return job.version and job.version.number


# ---------------------------------------------------------------- banks
def _bank(request, slug: str, team: str | None) -> Bank:
    return get_object_or_404(selectors.banks(request.user), team=team_for(request.user, team), slug=slug)


def version_of(request, slug: str, number: int, team: str | None) -> BankVersion:
    """The version that a path names, 404 when the caller may not see it."""
    versions = BankVersion.objects.for_user(request.user).select_related("bank")
    return get_object_or_404(versions, bank__team=team_for(request.user, team), bank__slug=slug, number=number)


@router.get("/banks", response=Page[BankOut])
def list_banks(request, paging: Query[Paging], archived: bool = False):
    """Task banks of the caller's teams."""
    return paging.page(selectors.banks(request.user).filter(archived_at__isnull=not archived), "slug", "id")


# Imports come before /banks/{slug}: "imports" would match it.
@router.get("/banks/imports", response=Page[ImportOut])
def list_imports(request, paging: Query[Paging]):
    """Imports, newest first: their progress, what they dropped and why."""
    imports.fail_lost_imports()
    return paging.page(selectors.imports(request.user), "-created_at", "-id")


@router.post("/banks/imports", response={202: ImportOut})
@idempotent
@limited("import")
def start_import(request, payload: NewImport):
    """Import tasks in the background: the bundled quiz, the simulator's tasks, a path or checkout of the server (admins), a hub id; watch /banks/imports/{id}."""
    team = team_for(request.user, payload.team)
    fields = payload.model_dump(include={"environment", "source", "location", "split_column", "ref", "is_sparse", "replays", "gold_tasks"})
    return Status(202, imports.start_import(request.user, team, slug=payload.bank, **fields))


@router.post("/banks/imports/upload", response={202: ImportOut})
@idempotent
@limited("import")
def start_import_of_upload(
    request,
    file: File[UploadedFile],
    bank: Form[str] = "",
    split_column: Form[Literal["split", "split_naive"]] = "split",
    team: Form[str | None] = None,
    environment: Form[Literal["sciknoweval", "harbor"]] = "sciknoweval",
    is_sparse: bool = Form(False, alias="compile"),
):
    """Import from an uploaded file: SciKnowEval questions as Parquet, repair tasks as an archive."""
    place = (request.user, team_for(request.user, team), environment, "upload", file.name or "", bank, split_column)
    return Status(202, imports.start_import(*place, upload=file.file, is_sparse=is_sparse))


@router.get("/banks/imports/{uuid:import_id}", response=ImportOut)
def get_import(request, import_id: UUID):
    imports.fail_lost_imports()
    return get_object_or_404(selectors.imports(request.user), pk=import_id)


@router.get("/banks/{slug}", response=BankOut)
def get_bank(request, slug: str, team: str | None = None):
    return _bank(request, slug, team)


@router.patch("/banks/{slug}", response=BankOut)
def change_bank(request, slug: str, payload: BankChange, team: str | None = None):
    """Archive a bank (no new run may use it) or bring it back."""
    services.set_archived(request.user, _bank(request, slug, team), payload.archived)
    return _bank(request, slug, team)


# ---------------------------------------------------------------- versions
@router.get("/banks/{slug}/versions", response=Page[VersionOut])
def list_versions(request, slug: str, paging: Query[Paging], team: str | None = None):
    return paging.page(_bank(request, slug, team).versions.select_related("bank"), "-number")


@router.post("/banks/{slug}/versions", response={200: VersionOut, 201: VersionOut})
@limited("import")
def upload_version(
    request,
    slug: str,
    file: File[UploadedFile],
    report: Form[str] = "{}",
    environment: Form[str | None] = None,
    name: Form[str] = "",
    team: Form[str | None] = None,
):
    """Upload a bank file (zstd of JSON lines). 201 with the new version; 200 with the existing one when its content is known."""
    if file.size > MAX_BANK_FILE:
        raise Problem(413, "File too large", f"{file.size} bytes; at most {MAX_BANK_FILE} are taken")
    version = services.import_version(
        team_for(request.user, team), _checked_slug(slug), file.read(), _read_report(report), request.user, environment or None, name
    )
    return Status(201 if version.is_new else 200, version)


def _checked_slug(slug: str) -> str:
    if not imports.SLUG.fullmatch(slug):
        raise Problem(
            422, "Invalid request", errors=[FieldError("/slug", "use small letters, digits, dots, dashes; at most 80", slug[:100])]
        )
    return slug


def _read_report(text: str) -> dict:
    try:
        report = json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, RecursionError, ZeroDivisionError):
        report = None
    if not isinstance(report, dict) or "\\u0000" in text:
        raise Problem(422, "Invalid request", errors=[FieldError("/report", "must be a JSON object", text[:100])])
    return report


@router.get("/banks/{slug}/versions/{int:number}", response=VersionOut)
def get_version(request, slug: str, number: int, team: str | None = None):
    return version_of(request, slug, number, team)


@router.get("/banks/{slug}/versions/{int:number}/tasks", response=Page[TaskOut])
def list_tasks(request, slug: str, number: int, paging: Query[Paging], filters: Query[TaskFilters], team: str | None = None):
    """Tasks of a version by key, filtered."""
    return paging.page(selectors.tasks(version_of(request, slug, number, team), **filters.dict()), "key")


_BANK_FILE = {"responses": {200: {"content": {"application/zstd": {"schema": {"type": "string", "format": "binary"}}}}}}


@router.get("/banks/{slug}/versions/{int:number}/file", response={200: None}, openapi_extra=_BANK_FILE)
def download_version(request, slug: str, number: int, team: str | None = None):
    """The bank file: zstd of canonical JSON lines."""
    version = version_of(request, slug, number, team)
    name = f"{version.bank.slug}-{version.number}.jsonl.zst"
    return FileResponse(storage.blob_path(version.blob).open("rb"), as_attachment=True, filename=name, content_type="application/zstd")


@router.get("/banks/{slug}/diff", response=DiffOut)
def diff_versions(request, slug: str, before: int, after: int, team: str | None = None):
    """Task keys added, removed and changed between two versions."""
    found = selectors.diff(version_of(request, slug, before, team), version_of(request, slug, after, team))
    return {**vars(found), "changed": [{"key": key, "columns": columns} for key, columns in found.changed]}
