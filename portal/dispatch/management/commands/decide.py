"""Decide scenarios offline."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.scenario import decide_lines, decide_text


class Command(BaseCommand):
    """``manage.py decide FILE`` · ``manage.py decide --batch FILE.jsonl``."""

    help = "Print the decision for a scenario as one line of JSON; with --batch one for each line of the file."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """The file, and whether it holds many."""
        parser.add_argument("file", type=Path)
        parser.add_argument("--batch", action="store_true", help="one scenario per line")

    def handle(self, *args: Any, **options: Any) -> None:
        """Decide and print. A single scenario that cannot be read ends with an error; a line gets its own."""
        try:
            text = options["file"].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{options['file']} cannot be read: {error}.") from error
        if options["batch"]:
            for line in decide_lines(text.splitlines()):
                self.stdout.write(line)
            return
        answer = decide_text(text)
        if "error" in json.loads(answer):
            raise CommandError(json.loads(answer)["error"])
        self.stdout.write(answer)
