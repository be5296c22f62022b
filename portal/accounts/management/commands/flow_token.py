"""Give the flows their service token."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.tokens import token_create, token_find
from portal.commands import refusals


class Command(BaseCommand):
    """``manage.py flow_token --file PATH``."""

    help = "Write the flows' service token into a file that only its owner can read, unless a live one is there."

    def add_arguments(self, parser: CommandParser) -> None:
        """Where to."""
        parser.add_argument("--file", required=True, type=Path)

    @refusals
    def handle(self, *args: Any, **options: Any) -> None:
        """The file is whole or absent: written beside, then renamed."""
        path: Path = options["file"]
        now = timezone.now()
        old = token_find(path.read_text().strip(), now=now) if path.is_file() else None
        if old is not None and old.expires_at - now > timedelta(days=30):
            self.stdout.write(f"{path} holds a live token.")
            return
        user, _ = User.objects.get_or_create(username="flows", defaults={"is_service": True})
        _, text = token_create(user=user, name="flows", scopes=["flow"], lifetime=timedelta(days=365), now=now)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        new.replace(path)
        self.stdout.write(f"{path} written.")
