"""Reading the quota tree."""

from collections.abc import Iterable
from dataclasses import dataclass

from portal.quotas.models import Cohort, Queue, Quota


@dataclass(frozen=True)
class Limits:
    """One limit row; None means no limit."""

    nominal: int
    borrow: int | None
    lend: int | None


def queue_potential(queue: Queue, gpu_type: str) -> int | None:
    """The most GPUs of the type that the queue could ever use with all others idle; None: not its type.

    ``potential`` of the rules: the queue's own, what its cohorts add, and what siblings lend, cut to the
    borrow limit at each level.
    """
    quotas = list(Quota.objects.filter(gpu_type=gpu_type))
    own = next((q for q in quotas if q.queue_id == queue.pk), None)
    if own is None:
        return None
    cohorts = {c.pk: c for c in Cohort.objects.all()}
    cohort_of: dict[str, str | None] = {q.pk: q.cohort_id for q in Queue.objects.all()}
    at_cohort = {str(q.cohort_id): _limits(q) for q in quotas if q.cohort_id}
    at_queue = {str(q.queue_id): _limits(q) for q in quotas if q.queue_id}
    tree = _Tree(cohorts, cohort_of, at_cohort, at_queue)
    return tree.queue_potential(queue.pk)


def _limits(quota: Quota) -> Limits:
    return Limits(quota.nominal, quota.borrow_limit, quota.lend_limit)


class _Tree:
    def __init__(
        self,
        cohorts: dict[str, Cohort],
        cohort_of: dict[str, str | None],
        at_cohort: dict[str, Limits],
        at_queue: dict[str, Limits],
    ) -> None:
        self.cohorts, self.cohort_of, self.at_cohort, self.at_queue = cohorts, cohort_of, at_cohort, at_queue

    def queue_potential(self, queue: str) -> int:
        limits = self.at_queue[queue]
        parent = self.cohort_of[queue]
        return self._potential(limits.nominal, limits, parent, frozenset())

    def _potential(self, subtree: int, limits: Limits | None, parent: str | None, seen: frozenset[str]) -> int:
        if parent is None or parent in seen:
            return subtree
        local = _local(subtree, limits)
        above = self._potential(
            self._subtree(parent, frozenset()),
            self.at_cohort.get(parent),
            self.cohorts[parent].parent_id,
            seen | {parent},
        )
        reach = local + above
        if limits is not None and limits.borrow is not None:
            reach = min(reach, subtree + limits.borrow)
        return reach

    def _subtree(self, cohort: str, seen: frozenset[str]) -> int:
        if cohort in seen:
            return 0
        own = self.at_cohort.get(cohort)
        total = own.nominal if own else 0
        queues: Iterable[str] = (q for q, c in self.cohort_of.items() if c == cohort)
        for queue in queues:
            limits = self.at_queue.get(queue)
            if limits:
                total += limits.nominal - _local(limits.nominal, limits)
        for child in self.cohorts.values():
            if child.parent_id == cohort:
                subtree = self._subtree(child.pk, seen | {cohort})
                total += subtree - _local(subtree, self.at_cohort.get(child.pk))
        return total


def _local(subtree: int, limits: Limits | None) -> int:
    """What the parent never sees."""
    return max(0, subtree - limits.lend) if limits is not None and limits.lend is not None else 0
