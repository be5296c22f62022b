"""Changes to nodes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from django.db import transaction
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from portal.accounts.models import User
from portal.accounts.policy import require
from portal.cluster.models import Node, NodeState
from portal.errors import PortalError, VersionConflict
from portal.events.services import event_record

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]


class NodeSpec(BaseModel):
    """One node of an inventory."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Name
    gpu_type: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$")]
    gpus: Annotated[int, Field(ge=1, le=1024)]
    address: Annotated[str, StringConstraints(max_length=255)] = "127.0.0.1"
    labels: dict[
        Annotated[str, StringConstraints(max_length=60)], Annotated[str, StringConstraints(max_length=100)]
    ] = {}


class BadInventory(PortalError):
    """An inventory that cannot be used; nothing of it was taken over."""

    code = "bad-inventory"
    title = "The inventory cannot be used"


def inventory_read(data: Any) -> list[NodeSpec]:
    """The nodes of an inventory ``{"nodes": [{name, gpu_type, gpus, address, labels}]}``, checked."""
    rows = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(rows, list) or not rows:
        raise BadInventory("An inventory is an object with a list 'nodes' of at least one node.")
    nodes = []
    for index, row in enumerate(rows):
        try:
            nodes.append(NodeSpec.model_validate(row))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(p) for p in first["loc"]) or "the whole node"
            raise BadInventory(f"Node {index + 1} of the inventory: {place} is not valid ({first['msg']}).") from None
    names = [n.name for n in nodes]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise BadInventory(f"Node {twice[0]} stands twice in the inventory.")
    return nodes


@transaction.atomic
def inventory_sync(*, nodes: Sequence[NodeSpec], now: datetime, actor: str = "inventory") -> int:
    """The number of nodes that were added or changed. A node that is no longer listed goes down."""
    changed = 0
    known = {n.name: n for n in Node.objects.select_for_update()}
    for spec in nodes:
        values = {
            "gpu_type": spec.gpu_type,
            "num_gpus": spec.gpus,
            "address": spec.address,
            "labels": spec.labels,
        }
        node = known.pop(spec.name, None)
        if node is None:
            node = Node.objects.create(name=spec.name, state_since=now, **values)
            event_record(subject=node, verb="add", after=values, at=now, actor=actor)
            changed += 1
        elif any(getattr(node, k) != v for k, v in values.items()) or node.state_reason == GONE:
            before = {k: getattr(node, k) for k in values}
            back = {"state": NodeState.READY, "state_reason": ""} if node.state_reason == GONE else {}
            Node.objects.filter(pk=node.pk).update(**values, **back, version=node.version + 1)
            event_record(subject=node, verb="change", before=before, after=values, at=now, actor=actor)
            changed += 1
    for node in known.values():
        if node.state != NodeState.DOWN:
            Node.objects.filter(pk=node.pk).update(
                state=NodeState.DOWN, state_reason=GONE, state_since=now, version=node.version + 1
            )
            event_record(subject=node, verb="down", reason=GONE, at=now, actor=actor)
            changed += 1
    return changed


GONE = "no longer in the inventory"


@transaction.atomic
def node_state_set(*, node: Node, state: NodeState, reason: str, user: User, version: int, now: datetime) -> Node:
    """The node in its new state; refused when somebody else changed it since ``version``."""
    require(user, "node.edit")
    changed = Node.objects.filter(pk=node.pk, version=version).update(
        state=state, state_reason=reason[:500], state_since=now, version=version + 1
    )
    if changed != 1:
        raise VersionConflict(f"Node {node.name} was changed by somebody else. Look at it again.")
    event_record(
        subject=node,
        verb=f"set_{state.value}",
        before=node.state,
        after=state.value,
        reason=reason,
        at=now,
        actor=user.username,
    )
    node.refresh_from_db()
    return node
