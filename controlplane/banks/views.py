"""Task banks: the list with its imports, one version with its counts and tasks, what an import dropped and why."""

from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.idempotency import once_per_form
from controlplane.accounts.roles import may
from controlplane.accounts.selectors import team_for
from controlplane.api.pagination import Paging
from controlplane.api.problems import Problem
from controlplane.api.rate_limit import limited_page
from controlplane.banks import imports, selectors
from controlplane.banks.checks import SIMULATOR_ENVIRONMENT
from controlplane.banks.models import Bank, BankImport, BankVersion, ImportState, Task
from controlplane.banks.repair_views import anchors_context, warming_context
from controlplane.page_errors import whole

IMPORTS_SHOWN = 10
ROWS = 50
FACETS = ("split", "domain", "level", "family", "flag")
MATRIX = (("domains", "Domain"), ("levels", "Level"), ("families", "Family"))
REPAIR_TABLES = (("env", "Code"), ("category", "Category"), ("family", "Family"), ("tier", "Tier"), ("tree", "Tree"))
UNFINISHED = (ImportState.QUEUED, ImportState.RUNNING)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@limited_page("import")
def banks(request: HttpRequest) -> HttpResponse:
    """The banks of the user's teams; posted, an import starts and its page opens."""
    wrong = {}
    if request.method == "POST":
        try:
            job, _ = once_per_form(request, lambda: str(_start(request).pk))
            return redirect("bank-import", pk=job)
        except ValidationError as error:
            wrong = error.message_dict
    team = team_for(request.user, request.GET.get("team"))
    imports.fail_lost_imports()
    context = {
        "banks": selectors.banks(request.user).filter(archived_at=None).order_by("slug"),
        "imports": selectors.imports(request.user)[:IMPORTS_SHOWN],
        "may_import": may(request.user, team, "bank.import"),
        "may_path": may(request.user, team, "bank.import-path"),
        "archives": ",".join(imports.FILE_KINDS["harbor"]),
        "wrong": wrong,
        "typed": request.POST,
    }
    return render(request, "banks/banks.html", context, status=422 if wrong else 200)


def _start(request: HttpRequest) -> BankImport:
    upload, given = request.FILES.get("file"), request.POST
    return imports.start_import(
        request.user,
        team_for(request.user, request.GET.get("team")),
        given.get("environment", "sciknoweval"),
        given.get("source", "upload"),
        location=upload.name if upload else given.get("location", "").strip(),
        slug=given.get("bank", "").strip(),
        split_column=given.get("split_column", "split"),
        upload=upload,
        ref=given.get("ref", "").strip(),
        is_sparse=given.get("compile") == "on",
        replays=_replays(given.get("replays", "1")),
        gold_tasks=given.get("gold_tasks", "").replace(" ", ""),
    )


def _replays(text: str) -> int:
    """Said at its field: the dialog keeps what was typed."""
    try:
        return whole("replays", text)
    except BadRequest as error:
        raise ValidationError({"replays": str(error)}) from None


@login_required
@require_GET
def bank_import(request: HttpRequest, pk) -> HttpResponse:
    """One import while it works and after: its words, what it kept, what it dropped and why."""
    imports.fail_lost_imports()
    job = get_object_or_404(selectors.imports(request.user), pk=pk)
    template = "banks/_import.html" if request.headers.get("HX-Request") else "banks/import.html"
    return render(request, template, {"job": job, "working": job.state in UNFINISHED})


@login_required
@require_GET
def bank(request: HttpRequest, slug: str, number: int | None = None) -> HttpResponse:
    """One version of a bank, the newest unless named: counts, baselines, tasks."""
    team = request.GET.get("team")
    found = get_object_or_404(
        Bank.objects.for_user(request.user).filter(**({"team__slug": team} if team else {})).select_related("team"), slug=slug
    )
    versions = list(found.versions.select_related("created_by"))
    version = next((item for item in versions if number in (None, item.number)), None)
    if version is None:
        return render(request, "banks/bank.html", {"bank": found, "versions": versions}, status=404 if number else 200)
    wanted = {name: request.GET.get(name, "") for name in FACETS}
    matching = selectors.tasks(version, request.GET.get("q", "").strip(), **wanted)
    try:
        page = Paging(cursor=request.GET.get("cursor") or None, limit=ROWS).page(matching, "key", "id")
    except Problem:
        raise BadRequest("cursor: not one of ours; start from the first page") from None
    context = {
        "bank": found,
        "versions": versions,
        "version": version,
        "rows": [_with_findings(task) for task in page["items"]],
        "next": page["next"],
        "total": matching.count(),
        "wanted": wanted,
        "laboratory": version.report.get("scienceworld") if found.environment == SIMULATOR_ENVIRONMENT else None,
    }
    if repair := version.counts.get("repair"):
        context |= {"repair": repair, "tables": _tables(repair), **anchors_context(request, version), **warming_context(request, version)}
    return render(request, "banks/bank.html", context | {"splits": _splits(version), "choices": _choices(version)})


def _with_findings(task: Task) -> Task:
    task.findings = [selectors.finding(item["code"], item["detail"]) for item in task.payload.get("findings", [])]
    return task


def _tables(repair: dict) -> list[tuple[str, dict]]:
    """What a bank of repair tasks is counted by, as (title, {value: tasks})."""
    return [(title, repair["counts"][name]) for name, title in REPAIR_TABLES]


def _splits(version: BankVersion) -> list[dict]:
    """Each split with its baselines and its counts by domain, level and family."""
    splits = version.counts.get("splits", {})
    return [
        {"name": name, **split, "tables": [(title, _largest_first(split.get(key, {}))) for key, title in MATRIX]}
        for name, split in splits.items()
    ]


def _largest_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _choices(version: BankVersion) -> dict[str, list[str]]:
    """The values that each facet of the task list offers."""
    splits = version.counts.get("splits", {})
    offered = {"split": list(splits)}
    for plural, name in (("domains", "domain"), ("levels", "level"), ("families", "family")):
        offered[name] = sorted({value for split in splits.values() for value in split.get(plural, {}) if value})
    offered["flag"] = [item["code"] for item in version.counts.get("repair", {}).get("findings", [])]
    return offered
