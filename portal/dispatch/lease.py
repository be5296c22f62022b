"""The scheduler's lease: at most one decides, and a late one is refused by the database."""

from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from portal.dispatch.models import Lease

NAME = "scheduler"


class LeaseLost(Exception):
    """Another scheduler has the lease: nothing of this batch was written."""


def lease_take(*, holder: str, now: datetime, length: timedelta) -> int | None:
    """This holder's epoch, when the lease was free, ran out, or was his; None when another has it."""
    until = now + length
    held = Lease.objects.filter(Q(expires_at__lte=now) | Q(holder=holder), name=NAME)
    row = held.first()
    if row is not None:
        epoch = row.epoch if row.holder == holder else row.epoch + 1
        # The update names the epoch that we read: of two that found the lease free, one gets it.
        changed = held.filter(epoch=row.epoch).update(holder=holder, epoch=epoch, expires_at=until)
        return epoch if changed else None
    if Lease.objects.filter(name=NAME).exists():
        return None
    try:
        with transaction.atomic():
            Lease.objects.create(name=NAME, holder=holder, epoch=1, expires_at=until)
    except IntegrityError:
        return None
    return 1


def lease_fence(*, epoch: int, now: datetime, length: timedelta) -> None:
    """Inside a writing transaction: hold the lease's row and prolong it, or refuse the whole batch.

    The row stays locked until the commit, so no other scheduler can take over in the middle of it.
    """
    if Lease.objects.filter(name=NAME, epoch=epoch).update(expires_at=now + length) != 1:
        raise LeaseLost(f"Epoch {epoch} is over.")


def lease_drop(*, epoch: int, now: datetime) -> None:
    """Give the lease back at a clean stop, so that the next scheduler need not wait."""
    Lease.objects.filter(name=NAME, epoch=epoch).update(expires_at=now)
