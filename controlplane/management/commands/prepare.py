"""Brings database and static files up to date and prints a login link: all that stands between running services and serving."""

import hashlib
import sys

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import BaseCommand

from controlplane.accounts.choices import Scope
from controlplane.accounts.services import authenticate_token, create_login_link, create_token, ensure_embedded_owner
from controlplane.banks.imports import ensure_quiz_bank
from controlplane.env import write_private


class Command(BaseCommand):
    help = "Migrate, collect static files when they changed, and (embedded mode) make the first team and its quiz bank and print a login link."

    def handle(self, *args, **options):
        call_command("migrate", interactive=False, stdout=sys.stderr)
        collect_static()
        if settings.ASSAY_MODE == "embedded":
            owner = ensure_embedded_owner()
            ensure_client_token(owner)
            ensure_quiz_bank()
            self.stdout.write(create_login_link(owner))


def ensure_client_token(owner) -> None:
    """A token for the command line of this house, in a file that only its owner reads."""
    path = settings.ASSAY_HOME / "token"
    if path.exists() and authenticate_token(path.read_text()):
        return
    team = owner.memberships.first().team
    token, _ = create_token(owner, team, "command line of this house", Scope.values)
    write_private(path, token)


def collect_static() -> None:
    """Runs collectstatic unless the sources are those of last time: compressing them takes seconds."""
    stamp = settings.STATIC_ROOT / ".sources"
    sources = source_fingerprint()
    if stamp.exists() and stamp.read_text() == sources:
        return
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(sources)


def source_fingerprint() -> str:
    digest = hashlib.sha256(settings.STORAGES["staticfiles"]["BACKEND"].encode())
    for finder in get_finders():
        for path, storage in finder.list([]):
            digest.update(f"{path} {storage.size(path)} {storage.get_modified_time(path).timestamp()}\n".encode())
    return digest.hexdigest()
