"""Take nodes over from an inventory file."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.bodies import yaml_load
from portal.cluster.services import inventory_read, inventory_sync
from portal.commands import refusals


class Command(BaseCommand):
    """``manage.py inventory_sync FILE``."""

    help = "Add and change nodes so that they match an inventory file (YAML or JSON)."

    def add_arguments(self, parser: CommandParser) -> None:
        """The file."""
        parser.add_argument("file", type=Path)

    @refusals
    def handle(self, *args: Any, **options: Any) -> None:
        """Everything or nothing of it."""
        path: Path = options["file"]
        if not path.is_file():
            raise CommandError(f"There is no inventory file {path}.")
        changed = inventory_sync(nodes=inventory_read(yaml_load(path.read_text())), now=timezone.now())
        self.stdout.write(f"{changed} nodes added or changed.")
