"""Run the scheduler."""

from typing import Any

from django.core.management.base import BaseCommand

from portal.dispatch.loop import Dispatcher, stop_on_signals


class Command(BaseCommand):
    """``manage.py dispatch``."""

    help = "Decide who gets which GPUs, for ever. Several may run: one decides, the others wait for its lease."

    def handle(self, *args: Any, **options: Any) -> None:
        """Until SIGTERM or Ctrl-C."""
        dispatcher = Dispatcher()
        stop_on_signals(dispatcher)
        dispatcher.run()
