"""What must be true of the rows at every moment, whoever was killed in the middle of what. Reads only."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, Sum

from portal.cluster.models import Node
from portal.dispatch.models import LaunchOrder, Lease
from portal.jobs.lifecycle import ATTEMPT_FINAL, JOB_FINAL, JOB_PENDING, AttemptState, JobState
from portal.jobs.models import Allocation, Attempt, Job, Restart
from portal.quotas.models import Quota
from portal.times import to_ns
from portal.usage.models import UsageEntry

FINAL = sorted(ATTEMPT_FINAL)
# While a job is in one of these states, exactly one of its attempts is live.
HOLDING = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)


@dataclass(frozen=True)
class Violation:
    """One row that contradicts others."""

    rule: str
    subject: str
    message: str

    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


@transaction.atomic
def violations() -> list[Violation]:
    """Everything that contradicts itself, by rule; empty when the books are sound."""
    return [Violation(rule.__name__.strip("_"), subject, message) for rule in RULES for subject, message in rule()]


def _nodes_hold_no_more_than_they_have() -> Iterator[tuple[str, str]]:
    held = Counter(Allocation.objects.filter(until__isnull=True).values_list("node_id", flat=True))
    for node in Node.objects.filter(name__in=list(held)):
        if held[node.pk] > node.num_gpus:
            yield node.pk, f"{held[node.pk]} GPUs of it are held, and it has {node.num_gpus}"
    # A GPU whose number is beyond the node's is none.
    beyond = Allocation.objects.filter(until__isnull=True, gpu_index__gte=F("node__num_gpus"))
    for row in beyond.select_related("node"):
        yield row.node_id, f"GPU {row.gpu_index} is held, and the node has GPUs 0 to {row.node.num_gpus - 1}"


def _no_gpu_is_held_twice() -> Iterator[tuple[str, str]]:
    doubled = (
        Allocation.objects.filter(until__isnull=True)
        .values("node_id", "gpu_index")
        .annotate(holders=Count("id"))
        .filter(holders__gt=1)
    )
    for row in doubled:
        yield row["node_id"], f"GPU {row['gpu_index']} is held {row['holders']} times"


def _live_attempts_hold_their_gang() -> Iterator[tuple[str, str]]:
    live = Attempt.objects.exclude(state__in=FINAL).select_related("job")
    for row in live.annotate(held=Count("allocations", filter=Q(allocations__until__isnull=True))):
        if row.held != row.job.num_gpus:
            yield row.pk, f"it holds {row.held} GPUs, and its job asks for {row.job.num_gpus}"


def _ended_attempts_hold_nothing() -> Iterator[tuple[str, str]]:
    ended = Attempt.objects.filter(state__in=FINAL, allocations__until__isnull=True, allocations__isnull=False)
    for row in ended.distinct():
        yield row.pk, f"it is {row.state} and still holds GPUs"
    for row in Attempt.objects.filter(state__in=FINAL, ended_at__isnull=True):
        yield row.pk, f"it is {row.state} and has no end"


def _jobs_agree_with_their_attempts() -> Iterator[tuple[str, str]]:
    live = Count("attempts", filter=~Q(attempts__state__in=FINAL))
    for job in Job.objects.annotate(live=live).only("id", "state"):
        if job.state in HOLDING and job.live != 1:
            yield job.pk, f"it is {job.state} and has {job.live} live attempts"
        if job.state in (*JOB_PENDING, JobState.HELD, *JOB_FINAL) and job.live:
            yield job.pk, f"it is {job.state} and has {job.live} live attempts"
    done = Attempt.objects.filter(state=AttemptState.SUCCEEDED).exclude(job__state=JobState.SUCCEEDED)
    for row in done.select_related("job"):
        yield row.job_id, f"attempt {row.number} succeeded, and the job is {row.job.state}"


def _attempt_numbers_have_no_gap() -> Iterator[tuple[str, str]]:
    for row in Attempt.objects.values("job_id").annotate(count=Count("id"), total=Sum("number")):
        if row["total"] != row["count"] * (row["count"] + 1) // 2:
            yield row["job_id"], "its attempts are not numbered one after the other"


def _every_live_attempt_has_its_restart_and_order() -> Iterator[tuple[str, str]]:
    live = list(Attempt.objects.exclude(state__in=FINAL).values_list("pk", "epoch", "restart"))
    orders = set(LaunchOrder.objects.filter(attempt__in=[a for a, _, _ in live]).values_list("attempt_id", "epoch"))
    restarts = set(Restart.objects.filter(attempt__in=[a for a, _, _ in live]).values_list("attempt_id", "number"))
    for attempt_id, epoch, restart in live:
        if (attempt_id, epoch) not in orders:
            yield attempt_id, f"no flow run was ordered for its epoch {epoch}"
        if (attempt_id, restart) not in restarts:
            yield attempt_id, f"it has no row of its restart {restart}"


def _quota_in_use_is_what_is_held() -> Iterator[tuple[str, str]]:
    held: Counter[tuple[str, str]] = Counter()
    rows = Allocation.objects.filter(until__isnull=True).values_list("attempt__job__queue_id", "attempt__job__gpu_type")
    held.update((queue, gpu_type) for queue, gpu_type in rows)
    for quota in Quota.objects.filter(queue__isnull=False).select_related("queue"):
        actual = held.pop((str(quota.queue_id), quota.gpu_type), 0)
        if quota.used != actual:
            yield quota.owner_name, f"{quota.used} {quota.gpu_type} are booked as used, and {actual} are held"
    for (queue, gpu_type), count in held.items():
        yield queue, f"{count} {gpu_type} are held without a quota"


def _closed_books_sum_to_the_time_held() -> Iterator[tuple[str, str]]:
    closed = Attempt.objects.filter(ledger_closed=True)
    booked = dict(UsageEntry.objects.filter(attempt__in=closed).values_list("attempt_id").annotate(total=Sum("gpu_ns")))
    held: Counter[str] = Counter()
    for row in Allocation.objects.filter(attempt__in=closed, until__isnull=False):
        assert row.until is not None
        held[row.attempt_id] += max(0, to_ns(row.until) - to_ns(row.since))
    for attempt_id, total in held.items():
        if booked.get(attempt_id, 0) != total:
            yield attempt_id, f"{booked.get(attempt_id, 0)} ns are booked, and {total} ns were held"


def _one_scheduler_at_most() -> Iterator[tuple[str, str]]:
    if Lease.objects.count() > 1:
        yield "lease", "there is more than one lease"


RULES: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (
    _nodes_hold_no_more_than_they_have,
    _no_gpu_is_held_twice,
    _live_attempts_hold_their_gang,
    _ended_attempts_hold_nothing,
    _jobs_agree_with_their_attempts,
    _attempt_numbers_have_no_gap,
    _every_live_attempt_has_its_restart_and_order,
    _quota_in_use_is_what_is_held,
    _closed_books_sum_to_the_time_held,
    _one_scheduler_at_most,
)
