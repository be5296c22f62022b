"""Check the books."""

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.dispatch.invariants import RULES, violations


class Command(BaseCommand):
    """``manage.py check_invariants [--json]``."""

    help = "Check that allocations, attempts, jobs, quotas and the ledger agree. Status 1 when they do not."

    def add_arguments(self, parser: CommandParser) -> None:
        """Only the form of the answer."""
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")

    def handle(self, *args: Any, **options: Any) -> None:
        """One line per contradiction."""
        found = violations()
        if options["json"]:
            self.stdout.write(json.dumps({"rules": len(RULES), "violations": [row.as_json() for row in found]}))
        else:
            for row in found:
                self.stdout.write(f"{row.subject}: {row.message} [{row.rule}]")
            self.stdout.write(f"{len(found)} contradictions to {len(RULES)} rules")
        if found:
            sys.exit(1)
