"""Print docs/states.md."""

from typing import Any

from django.core.management.base import BaseCommand

from portal.jobs.drawing import states_text


class Command(BaseCommand):
    """``manage.py draw_states > docs/states.md``."""

    help = "Print the life cycles of jobs and attempts as drawn from their tables."

    def handle(self, *args: Any, **options: Any) -> None:
        """To standard output."""
        self.stdout.write(states_text(), ending="")
