"""How far each queue could reach under the limits of now, or under changed ones."""

from collections.abc import Mapping

from portal.quotas.models import Cohort, Queue, Quota
from portal.quotas.queries import Limits, _Tree
from portal.quotas.services import LimitChange


def potentials(gpu_type: str, changes: Mapping[int, LimitChange] | None = None) -> dict[str, int]:
    """Queue id → the most GPUs of the type that it could ever use, all others idle, with these limits changed."""
    changes = changes or {}
    at_cohort: dict[str, Limits] = {}
    at_queue: dict[str, Limits] = {}
    for quota in Quota.objects.filter(gpu_type=gpu_type):
        new = changes.get(quota.pk)
        limits = (
            Limits(new.nominal, new.borrow_limit, new.lend_limit)
            if new
            else Limits(quota.nominal, quota.borrow_limit, quota.lend_limit)
        )
        if quota.queue_id:
            at_queue[quota.queue_id] = limits
        else:
            at_cohort[str(quota.cohort_id)] = limits
    cohorts = {c.pk: c for c in Cohort.objects.all()}
    tree = _Tree(cohorts, dict(Queue.objects.values_list("pk", "cohort_id")), at_cohort, at_queue)
    return {str(queue): tree.queue_potential(str(queue)) for queue in at_queue}
