"""The ledger's chore."""

from celery import shared_task
from django.utils import timezone

from portal.usage.services import ledger_roll as roll


@shared_task(name="portal.usage.tasks.ledger_roll")
def ledger_roll() -> int:
    """Book what live attempts have used until now, and close the books of ended ones."""
    return roll(now=timezone.now())
