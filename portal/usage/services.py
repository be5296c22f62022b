"""Booking attempts into the ledger. Booking again gives the same rows."""

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db import transaction

from portal.jobs.lifecycle import ATTEMPT_FINAL
from portal.jobs.models import Allocation, Attempt, Rank
from portal.jobs.telemetry import RankWindow
from portal.times import to_ns
from portal.usage.ledger import DAY_NS, Mark, RestartSpan, Window, gpu_time, marks_of
from portal.usage.models import UsageEntry


@transaction.atomic
def ledger_book(*, attempt_id: str, now: datetime) -> bool:
    """Write the attempt's entries anew, up to its end or to now. True when they are final."""
    attempt = Attempt.objects.select_for_update(of=("self",)).select_related("job").get(pk=attempt_id)
    if attempt.ledger_closed:
        return True
    closed = attempt.state in ATTEMPT_FINAL
    totals: dict[tuple[int, str], int] = {}
    marks = _marks(attempt)
    windows = _windows_by_gpu(attempt)
    for allocation in attempt.allocations.all():
        end = allocation.until or now
        held = (to_ns(allocation.since), max(to_ns(allocation.since), to_ns(end)))
        key = (allocation.node_id, allocation.gpu_index)
        for slot, length in gpu_time(held, windows.get(key, ()), marks).items():
            totals[slot] = totals.get(slot, 0) + length
    UsageEntry.objects.filter(attempt=attempt).delete()
    UsageEntry.objects.bulk_create(
        [
            UsageEntry(
                attempt=attempt,
                job=attempt.job,
                team_id=attempt.job.team_id,
                user_id=attempt.job.user_id,
                gpu_type=attempt.job.gpu_type,
                day=datetime.fromtimestamp(day * DAY_NS // 10**9, tz=UTC).date(),
                cause=cause,
                gpu_ns=length,
            )
            for (day, cause), length in sorted(totals.items())
        ]
    )
    if closed:
        Attempt.objects.filter(pk=attempt.pk).update(ledger_closed=True)
    return closed


def _marks(attempt: Attempt) -> list[Mark]:
    spans = [
        RestartSpan(
            began_ns=to_ns(row.began_at),
            broke_ns=to_ns(row.broke_at) if row.broke_at else None,
            seen_ns=to_ns(row.seen_at) if row.seen_at else None,
            hung=(row.cause or {}).get("class") == "hang",
        )
        for row in attempt.restarts.order_by("number")
    ]
    stop = attempt.stop_requested_at or attempt.ended_at
    if attempt.outcome == "succeeded":
        # Nobody asked it to stop: teardown begins when the last rank has left.
        ends = Rank.objects.filter(attempt=attempt, restart=attempt.restart).values_list("ended_at", flat=True)
        stop = max((e for e in ends if e is not None), default=stop)
    return marks_of(spans, held_ns=to_ns(attempt.created_at), stop_ns=to_ns(stop) if stop else None)


def _windows_by_gpu(attempt: Attempt) -> dict[tuple[str, int], list[Window]]:
    """Each rank's windows under the GPU that it owns: local rank i has its node's i-th GPU."""
    indices: dict[str, list[int]] = {}
    for node, index in Allocation.objects.filter(attempt=attempt).values_list("node_id", "gpu_index"):
        indices.setdefault(node, []).append(index)
    for list_ in indices.values():
        list_.sort()
    parts = {p.node_rank: p.node_id for p in attempt.nodes.all()}
    per_node = attempt.job.gpus_per_node
    found: dict[tuple[str, int], list[Window]] = {}
    for row in RankWindow.objects.filter(attempt=attempt).order_by("from_ns"):
        owner = parts.get(row.rank // per_node)
        local = row.rank % per_node
        if owner is None or local >= len(indices.get(owner, ())):
            continue
        found.setdefault((owner, indices[owner][local]), []).append(Window(row.from_ns, row.to_ns, row.seconds))
    return found


def ledger_roll(*, now: datetime) -> int:
    """Book every attempt whose entries are not final yet; the number of attempts booked."""
    open_attempts: Iterable[str] = Attempt.objects.filter(ledger_closed=False).values_list("pk", flat=True)
    count = 0
    for attempt_id in list(open_attempts):
        ledger_book(attempt_id=attempt_id, now=now)
        count += 1
    return count
