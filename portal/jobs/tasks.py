"""Chores about jobs."""

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from portal.jobs.models import Attempt, IdempotencyRecord
from portal.jobs.telemetry import RankWindow

KEEP_KEYS = timedelta(hours=48)
KEEP_WINDOWS = timedelta(days=7)


@shared_task(name="portal.jobs.tasks.retention")
def retention() -> dict[str, int]:
    """Drop idempotency records after 48 h, and windows a week after their attempt's books were closed."""
    now = timezone.now()
    keys, _ = IdempotencyRecord.objects.filter(created_at__lt=now - KEEP_KEYS).delete()
    closed = Attempt.objects.filter(ledger_closed=True, ended_at__lt=now - KEEP_WINDOWS)
    windows, _ = RankWindow.objects.filter(attempt__in=closed).delete()
    return {"keys": keys, "windows": windows}
