"""The cluster page: nodes and their GPUs, and who holds which."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render

from portal.accounts.models import User
from portal.accounts.policy import may, require
from portal.cluster.models import Node, NodeState
from portal.jobs.page_queries import gpu_holders
from portal.web.access import PageRequest, page
from portal.web.live import digest, unchanged


@dataclass(frozen=True)
class NodeView:
    """A node with one entry a GPU: None when it is free."""

    node: Node
    gpus: list[dict[str, Any] | None]

    @property
    def num_held(self) -> int:
        """GPUs that an attempt holds."""
        return sum(1 for gpu in self.gpus if gpu)

    @property
    def takes_work(self) -> bool:
        """Whether the scheduler may place new jobs here."""
        return bool(self.node.state == NodeState.READY)

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """Who holds something here, each once, with how many GPUs."""
        by_job = {gpu["job_id"]: gpu for gpu in self.gpus if gpu}
        counts = Counter(gpu["job_id"] for gpu in self.gpus if gpu)
        return [{**gpu, "count": counts[key]} for key, gpu in by_job.items()]


@page()
def cluster_page(request: PageRequest) -> HttpResponse:
    """The page, or its part that renews itself."""
    require(request.user, "node.read")
    nodes = node_views(request.user)
    fingerprint = digest([(v.node.pk, v.node.version, v.node.state, v.gpus) for v in nodes])
    if request.htmx:
        same = unchanged(request, fingerprint)
        if same is not None:
            return same
    total = sum(len(v.gpus) for v in nodes)
    held = sum(v.num_held for v in nodes)
    out = sum(len(v.gpus) - v.num_held for v in nodes if not v.takes_work)
    context = {
        "nodes": nodes,
        "total": total,
        "held": held,
        "out": out,
        "free": total - held - out,
        "may_edit": may(request.user, "node.edit"),
    }
    response = render(request, "web/cluster_part.html" if request.htmx else "web/cluster.html", context)
    response["ETag"] = f'"{fingerprint}"'
    return response


def node_views(user: User) -> list[NodeView]:
    """All nodes by name."""
    holders = gpu_holders(user)
    return [NodeView(n, [holders.get((n.pk, i)) for i in range(n.num_gpus)]) for n in Node.objects.all()]
