"""Writing events."""

from datetime import datetime
from typing import Any

from django.db.models import Model

from portal.events.models import Event


def event_record(
    *,
    subject: Model,
    verb: str,
    at: datetime,
    actor: str = "portal",
    before: Any = None,
    after: Any = None,
    reason: str = "",
    team_id: str = "",
) -> Event:
    """The event's row. Call it inside the transaction that makes the change."""
    event = event_of(
        subject=subject,
        verb=verb,
        at=at,
        actor=actor,
        before=before,
        after=after,
        reason=reason,
        team_id=team_id,
    )
    event.save(force_insert=True)
    return event


def event_of(
    *,
    subject: Model,
    verb: str,
    at: datetime,
    actor: str = "portal",
    before: Any = None,
    after: Any = None,
    reason: str = "",
    team_id: str = "",
) -> Event:
    """The event, not yet written: for who writes many at once."""
    return Event(
        at=at,
        actor=actor,
        verb=verb,
        subject_kind=subject._meta.model_name or "",
        subject_id=str(subject.pk),
        team_id=team_id or getattr(subject, "team_id", "") or "",
        before=before,
        after=after,
        reason=reason[:500],
    )
