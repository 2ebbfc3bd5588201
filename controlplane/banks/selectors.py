"""What pages and REST read about task banks."""

from dataclasses import dataclass

from django.db import connection
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, TextField
from django.db.models.functions import Cast

from controlplane.accounts.models import User
from controlplane.banks import anchors
from controlplane.banks.models import Bank, BankImport, BankVersion, Task
from runner.contract.repair import RULES

CHANGED_KEYS_SHOWN = 1000


def banks(user: User) -> QuerySet[Bank]:
    """Banks of the user's teams, each with `version_count` and `newest` (number of its newest version)."""
    newest = BankVersion.objects.filter(bank=OuterRef("pk")).order_by("-number").values("number")[:1]
    return (
        Bank.objects.for_user(user).select_related("team").annotate(version_count=Count("versions", distinct=True), newest=Subquery(newest))
    )


def tasks(version: BankVersion, search: str = "", **exact: str) -> QuerySet[Task]:
    """Tasks of a version. `exact` may name split, domain, level, family, flag; `search` looks in key and payload text."""
    rows = Task.objects.filter(version=version)
    flag = exact.pop("flag", "")
    rows = rows.filter(**{name: value for name, value in exact.items() if value})
    if flag:
        rows = rows.filter(flags__contains=[flag])
    if search:
        rows = rows.annotate(text=Cast("payload", TextField())).filter(Q(key__icontains=search) | Q(text__icontains=search))
    return rows


def findings(version: BankVersion, code: str = "") -> list[dict]:
    """{task, code, severity, title, detail, remedy, blocks} of every finding, errors first, then by code and task; `code` keeps one.

    Those of the import, and what this installation adds: W06 and W11.
    """
    rows = Task.objects.filter(version=version).exclude(flags=[]).values_list("key", "payload__findings")
    told = [(key, item["code"], item["detail"]) for key, items in rows for item in items or ()] + anchors.found_here(version)
    kept = sorted(item for item in told if not code or item[1] == code)
    return sorted(({"task": key, **finding(number, detail)} for key, number, detail in kept), key=lambda item: item["code"])


def finding(code: str, detail: str) -> dict:
    """{code, severity, title, detail, remedy, blocks} of one finding."""
    rule = RULES[code]
    severity = "error" if code[0] == "E" else "warning"
    return {"code": code, "severity": severity, "title": rule.title, "detail": detail, "remedy": rule.remedy, "blocks": rule.blocks}


@dataclass(frozen=True)
class VersionDiff:
    """Task keys that only `after` has, that only `before` had, and (key, differing columns) of the rest; at most 1000 of each kind."""

    added: list[str]
    removed: list[str]
    changed: list[tuple[str, list[str]]]
    added_count: int
    removed_count: int
    changed_count: int


DIFF = """
SELECT coalesce(a.key, b.key), a.id IS NULL, b.id IS NULL,
       array_remove(ARRAY[
         CASE WHEN a.split <> b.split THEN 'split' END, CASE WHEN a.domain <> b.domain THEN 'domain' END,
         CASE WHEN a.level <> b.level THEN 'level' END, CASE WHEN a.family <> b.family THEN 'family' END,
         CASE WHEN a.payload <> b.payload THEN 'payload' END, CASE WHEN a.flags <> b.flags THEN 'flags' END], NULL)
FROM (SELECT * FROM banks_task WHERE version_id = %s) a
FULL JOIN (SELECT * FROM banks_task WHERE version_id = %s) b ON a.key = b.key
WHERE a.id IS NULL OR b.id IS NULL
   OR (a.split, a.domain, a.level, a.family, a.payload, a.flags) IS DISTINCT FROM (b.split, b.domain, b.level, b.family, b.payload, b.flags)
ORDER BY 1
"""


def diff(before: BankVersion, after: BankVersion) -> VersionDiff:
    """What changed between two versions, by task key."""
    with connection.cursor() as cursor:
        cursor.execute(DIFF, [before.pk, after.pk])
        rows = cursor.fetchall()
    added = [key for key, new, _, _ in rows if new]
    removed = [key for key, _, gone, _ in rows if gone]
    changed = [(key, columns) for key, new, gone, columns in rows if not new and not gone]
    shown = slice(CHANGED_KEYS_SHOWN)
    return VersionDiff(added[shown], removed[shown], changed[shown], len(added), len(removed), len(changed))


def imports(user: User) -> QuerySet[BankImport]:
    """Imports of the user's teams, newest first. Call imports.fail_lost_imports() before showing them."""
    return BankImport.objects.for_user(user).select_related("version__bank", "created_by", "team")
