"""What a job would mean before it is submitted: its queue's quota after it, whether it fits now, what it costs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from portal.cluster.models import Node, NodeState
from portal.jobs.lifecycle import JobState
from portal.jobs.models import Allocation, Job
from portal.jobs.spec import JobSpec
from portal.quotas.models import Queue, Quota
from portal.quotas.queries import queue_potential
from portal.web.svg import Segment, Share, stacked


@dataclass(frozen=True)
class Preview:
    """Counts are GPUs. ``fitting`` of ``nodes`` nodes have ``gpus_per_node`` free GPUs now."""

    queue: str
    gpu_type: str
    asked: int
    nodes: int
    gpus_per_node: int
    nominal: int
    used: int
    potential: int
    fitting: int
    free: int
    waiting: int
    gpu_hours: float | None

    @property
    def after(self) -> int:
        """What the queue uses when the job runs."""
        return self.used + self.asked

    @property
    def borrowed(self) -> int:
        """What it then uses beyond its own quota."""
        return max(0, self.after - self.nominal)

    @property
    def in_quota(self) -> bool:
        """Whether own quota and everything that could be borrowed cover it."""
        return self.after <= self.potential

    @property
    def fits_now(self) -> bool:
        """Whether enough nodes have enough free GPUs at this moment."""
        return self.fitting >= self.nodes

    @property
    def bar(self) -> list[Segment]:
        """The queue's quota as a bar: used, asked, and what remains of the potential."""
        whole = max(self.potential, self.after, self.nominal, 1)
        own = max(0, min(self.asked, self.nominal - self.used))
        shares = [
            Share("used", "used", self.used),
            Share("asked", "asked", own),
            Share("borrowed", "borrowed", self.asked - own),
        ]
        return stacked(shares, whole)

    @property
    def nominal_percent(self) -> float:
        """Where the own quota ends in the bar."""
        return 100 * self.nominal / max(self.potential, self.after, self.nominal, 1)


def job_preview(spec: JobSpec, queue: Queue) -> Preview:
    """The preview of a spec that ``job_check`` let through."""
    quota = Quota.objects.get(queue=queue, gpu_type=spec.gpu_type)
    free = free_gpus(Node.objects.filter(gpu_type=spec.gpu_type))
    asked = spec.nodes * spec.gpus_per_node
    waiting = Job.objects.filter(queue=queue, state__in=(JobState.QUEUED, JobState.RECOVERING)).count()
    return Preview(
        queue=queue.name,
        gpu_type=spec.gpu_type,
        asked=asked,
        nodes=spec.nodes,
        gpus_per_node=spec.gpus_per_node,
        nominal=quota.nominal,
        used=quota.used,
        potential=queue_potential(queue, spec.gpu_type) or quota.nominal,
        fitting=sum(1 for count in free.values() if count >= spec.gpus_per_node),
        free=sum(free.values()),
        waiting=waiting,
        gpu_hours=asked * spec.time_limit_s / 3600 if spec.time_limit_s else None,
    )


def free_gpus(nodes: Iterable[Node]) -> dict[str, int]:
    """Free GPUs by node; a node that gets no new work has none."""
    held = Counter(Allocation.objects.filter(until__isnull=True).values_list("node_id", flat=True))
    return {n.pk: max(0, n.num_gpus - held[n.pk]) if n.state == NodeState.READY else 0 for n in nodes}
