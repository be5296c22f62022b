"""Make a team with its queue and quotas."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from portal.commands import refusals
from portal.quotas.services import LimitChange, member_set, team_create


class Command(BaseCommand):
    """``manage.py team_create NAME --quota TYPE=GPUS … [--cohort NAME] [--member USER:ROLE] …``."""

    help = "Make a team with one queue of the same name and its quotas."

    def add_arguments(self, parser: CommandParser) -> None:
        """The team, its limits, its people."""
        parser.add_argument("name")
        parser.add_argument("--quota", action="append", default=[], metavar="TYPE=GPUS")
        parser.add_argument("--cohort", help="queues of one cohort lend idle quota to each other")
        parser.add_argument("--member", action="append", default=[], metavar="USER:ROLE")

    @refusals
    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Everything or nothing of it."""
        limits = {}
        for text in options["quota"]:
            gpu_type, _, count = text.partition("=")
            if not gpu_type or not count.isdigit():
                raise CommandError(f"--quota {text!r} is not TYPE=GPUS, such as h100=8.")
            limits[gpu_type] = LimitChange(int(count), None, None)
        now = timezone.now()
        team = team_create(name=options["name"], limits=limits, cohort=options["cohort"], now=now, actor="command line")
        for text in options["member"]:
            username, _, role = text.partition(":")
            member_set(team=team, username=username, role=role or "member", now=now, actor="command line")
        self.stdout.write(f"Team {team.name} is there, with quota for {', '.join(limits) or 'nothing yet'}.")
