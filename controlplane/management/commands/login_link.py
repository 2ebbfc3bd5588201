"""Prints a link that signs the first administrator in once: the way into a fresh installation, and back in after a lost session."""

from typing import ClassVar

from django.core.management.base import BaseCommand

from controlplane.accounts.services import create_login_link, ensure_embedded_owner


class Command(BaseCommand):
    help = "Print a one-time login link for the first administrator, who is made when absent."
    # Asked for beside a house that serves: the checks ran when it started, and cost seconds.
    requires_system_checks: ClassVar = []

    def handle(self, *args, **options):
        self.stdout.write(create_login_link(ensure_embedded_owner()))
