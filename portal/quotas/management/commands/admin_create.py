"""Make the first administrator. On the command line only: never by being first to log in."""

import os
import secrets
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from portal.accounts.models import User
from portal.commands import refusals
from portal.events.services import event_record


class Command(BaseCommand):
    """``manage.py admin_create NAME [--password-env VARIABLE]``."""

    help = "Make an administrator, or give an existing user that right and a new password."

    def add_arguments(self, parser: CommandParser) -> None:
        """The name, and where the password comes from."""
        parser.add_argument("username")
        parser.add_argument("--password-env", help="environment variable with the password; else one is made")

    @refusals
    def handle(self, *args: Any, **options: Any) -> None:
        """Print the password only when it was made here."""
        given = os.environ.get(options["password_env"] or "", "")
        password = given or secrets.token_urlsafe(12)
        user, made = User.objects.get_or_create(username=options["username"])
        user.is_superuser = user.is_staff = True
        user.set_password(password)
        user.save()
        event_record(subject=user, verb="admin_create", after=user.username, at=timezone.now(), actor="command line")
        what = "made" if made else "updated"
        self.stdout.write(f"Administrator {user.username} {what}." + ("" if given else f" Password: {password}"))
