"""Business verbs over task banks. A version is imported whole or not at all, and never changes."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.utils import timezone

from controlplane import storage
from controlplane.accounts.models import Team, User
from controlplane.accounts.roles import require
from controlplane.accounts.services import record
from controlplane.banks import files
from controlplane.banks.checks import CHOICE_ENVIRONMENTS, REPAIR_ENVIRONMENT, SIMULATOR_ENVIRONMENT, record_check
from controlplane.banks.models import Bank, BankVersion, Task
from runner.contract import bank as contract
from runner.contract.baselines import choice_baselines
from runner.contract.repair_statistics import repair_statistics

ENVIRONMENTS = (*CHOICE_ENVIRONMENTS, REPAIR_ENVIRONMENT, SIMULATOR_ENVIRONMENT)
TASK_COLUMNS = ("key", "split", "domain", "level", "family", "flags")


def import_version(
    team: Team, slug: str, file: bytes, report: dict, user: User | None, environment: str | None = None, name: str = ""
) -> BankVersion:
    """The version that `file` is; the existing one when its content is known already, whatever the order of its lines.

    1. Read and check every line: raises InvalidBank naming each bad one.
    2. See that every file which a repair task names was sent; store the canonical bank file as a blob, before any row names it.
    3. Write bank, version, tasks and the names of their files in one transaction.

    `environment` is needed for a bank's first version. `user` None is the house itself. Raises ValidationError, PermissionDenied.
    """
    if user is not None:
        require(user, team, "bank.import")
    environment = _environment(team, slug, environment)
    tasks, demonstrations, _ = contract.read_bank(file, record_check(environment))
    named = files.named_by(tasks) if environment == REPAIR_ENVIRONMENT else set()
    data, digest = contract.write_bank([*tasks, *demonstrations])
    blob = storage.put(data)
    with transaction.atomic():
        bank = _locked_bank(team, slug, environment, name)
        known = bank.versions.filter(digest=digest).first()
        if known:
            return known
        newest = bank.versions.first()
        version = BankVersion.objects.create(
            bank=bank,
            number=newest.number + 1 if newest else 1,
            digest=digest,
            blob=blob,
            size=len(data),
            counts=count(tasks, demonstrations) | ({"repair": repair_statistics(tasks)} if named else {}),
            report=report,
            created_by=user,
        )
        _copy_tasks(version, tasks)
        files.name_files(version, named)
        record(user, "bank.import", version, {"bank": slug, "number": version.number, "digest": digest})
    version.is_new = True
    return version


def _environment(team: Team, slug: str, environment: str | None) -> str:
    bank = Bank.objects.filter(team=team, slug=slug).first()
    environment = environment or (bank.environment if bank else None)
    if environment not in ENVIRONMENTS:
        raise ValidationError({"environment": f"{environment!r} is unknown; choose one of {', '.join(ENVIRONMENTS)}"})
    if bank and bank.environment != environment:
        raise ValidationError({"environment": f"bank {slug} holds tasks of {bank.environment}; use another name for {environment}"})
    if bank and bank.archived_at:
        raise ValidationError({"slug": f"bank {slug} is archived; bring it back first or use another name"})
    return environment


def _locked_bank(team: Team, slug: str, environment: str, name: str) -> Bank:
    if not Bank.objects.filter(team=team, slug=slug).exists():
        bank = Bank(team=team, slug=slug, name=name or slug, environment=environment)
        bank.full_clean(validate_unique=False, validate_constraints=False)
        Bank.objects.bulk_create([bank], ignore_conflicts=True)
    # Two imports at once must not take the same number.
    return Bank.objects.select_for_update().get(team=team, slug=slug)


def _copy_tasks(version: BankVersion, tasks: Sequence[contract.Task]) -> None:
    # COPY: a bank of 20 k questions costs a fifth of what rows built by the ORM do.
    columns = ", ".join(("version_id", "payload", *TASK_COLUMNS))
    with connection.cursor() as cursor, cursor.copy(f"COPY {Task._meta.db_table} ({columns}) FROM STDIN") as copy:
        for task in tasks:
            copy.write_row((version.pk, json.dumps(task.payload, ensure_ascii=False), *(getattr(task, name) for name in TASK_COLUMNS)))


def count(tasks: Sequence[contract.Task], demonstrations: Sequence[contract.Demonstration]) -> dict:
    """{tasks, demonstrations, kinds: {kind: n}, splits: {split: {tasks, domains, levels, families: {name: n}, baselines}}}.

    `baselines` are {chance, majority_letter, longest_option} over the split's multiple-choice tasks, null where there are none.
    """
    by_split = defaultdict(list)
    for task in tasks:
        by_split[task.split].append(task)
    return {
        "tasks": len(tasks),
        "demonstrations": len(demonstrations),
        "kinds": dict(sorted(Counter(item.kind for item in demonstrations).items())),
        "splits": {split: _count_split(members) for split, members in sorted(by_split.items())},
    }


def _count_split(tasks: list[contract.Task]) -> dict:
    named = {"domains": "domain", "levels": "level", "families": "family"}
    counts = {plural: dict(sorted(Counter(getattr(task, one) for task in tasks).items())) for plural, one in named.items()}
    return {"tasks": len(tasks), **counts, "baselines": choice_baselines(tasks)}


@transaction.atomic
def set_archived(user: User, bank: Bank, archived: bool) -> Bank:
    """Hide a bank from new launches, or bring it back. Runs that used it keep it."""
    require(user, bank.team, "bank.archive")
    bank = Bank.objects.select_for_update().get(pk=bank.pk)
    if archived != (bank.archived_at is not None):
        bank.archived_at = timezone.now() if archived else None
        bank.save(update_fields=["archived_at"])
        record(user, "bank.archive" if archived else "bank.restore", bank)
    return bank
