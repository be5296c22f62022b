"""Make an API token."""

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.tokens import DEFAULT_SCOPES, token_create
from portal.commands import refusals


class Command(BaseCommand):
    """``manage.py token_create USER --name NAME [--scope S]… [--days N]``."""

    help = "Make an API token for a user and print it. It is shown this once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose, what for, how long."""
        parser.add_argument("username")
        parser.add_argument("--name", default="command line")
        parser.add_argument("--scope", action="append", help="repeat for several; default: jobs and quota reading")
        parser.add_argument("--days", type=int, default=90)

    @refusals
    def handle(self, *args: Any, **options: Any) -> None:
        """Print the token alone, for use in scripts."""
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['username']!r}.")
        _, text = token_create(
            user=user,
            name=options["name"],
            scopes=options["scope"] or DEFAULT_SCOPES,
            lifetime=timedelta(days=options["days"]),
            now=timezone.now(),
        )
        self.stdout.write(text)
