"""Make a user."""

import os
import secrets
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.accounts.models import User
from portal.events.services import event_record


class Command(BaseCommand):
    """``manage.py user_create NAME [--password-env VARIABLE]``."""

    help = "Make a user without special rights."

    def add_arguments(self, parser: CommandParser) -> None:
        """The name, and where the password comes from."""
        parser.add_argument("username")
        parser.add_argument("--password-env", help="environment variable with the password; else one is made")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the password only when it was made here."""
        given = os.environ.get(options["password_env"] or "", "")
        password = given or secrets.token_urlsafe(12)
        if User.objects.filter(username=options["username"]).exists():
            raise CommandError(f"There is a user {options['username']!r} already.")
        user = User(username=options["username"])
        user.set_password(password)
        user.save()
        event_record(subject=user, verb="create", after=user.username, at=timezone.now(), actor="command line")
        self.stdout.write(f"User {user.username} made." + ("" if given else f" Password: {password}"))
