"""Scenarios as JSON: in to a snapshot, and the plan out again. The formats are the corpus's.

`python -m scheduler.scenario FILE` decides one, `--batch FILE` one per line.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from scheduler.plan import Plan
from scheduler.planner import decide
from scheduler.snapshot import (
    Borrow,
    Cohort,
    Fungibility,
    Limit,
    Node,
    NodeFailure,
    NodeState,
    Ordering,
    PendingJob,
    PlacementRule,
    Policy,
    PreemptionPolicy,
    Queue,
    QuotaLowered,
    Reclaim,
    Reservation,
    RunningJob,
    ShareNode,
    ShareStrategy,
    Slice,
    Snapshot,
    Subqueue,
    TopologyWish,
    WithinQueue,
)

Json = Mapping[str, Any]


class BadScenario(ValueError):
    """The text is no scenario; the message says what is wrong and where."""


def snapshot_read(data: Json) -> Snapshot:
    """The snapshot of a scenario. Raises BadScenario."""
    try:
        return _snapshot(data)
    except KeyError as error:
        raise BadScenario(f"A field is missing: {error.args[0]}.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BadScenario(f"A field has a wrong value: {error}.") from error


def _snapshot(data: Json) -> Snapshot:
    return Snapshot(
        now_s=data["now_s"],
        policy=_policy(data.get("policy") or {}),
        cohorts=tuple(_cohort(c) for c in data.get("cohorts") or ()),
        queues=tuple(_queue(q) for q in data.get("queues") or ()),
        topology=tuple(data.get("topology") or ()),
        nodes=tuple(_node(n) for n in data.get("nodes") or ()),
        running=tuple(_running(j) for j in data.get("running") or ()),
        pending=tuple(_pending(j) for j in data.get("pending") or ()),
        reservations=tuple(_reservation(r) for r in data.get("reservations") or ()),
        licences=dict(data.get("licences") or {}),
        subqueues=tuple(_subqueue(s) for s in data.get("subqueues") or ()),
        share_tree=tuple(_share_node(n) for n in data.get("share_tree") or ()),
    )


def _policy(data: Json) -> Policy:
    default = Policy()
    strategies = data.get("fair_sharing_strategies")
    return Policy(
        ordering=Ordering(data.get("ordering", default.ordering)),
        fair_sharing_strategies=default.fair_sharing_strategies
        if strategies is None
        else tuple(ShareStrategy(s) for s in strategies),
        backfill=bool(data.get("backfill", False)),
        placement=PlacementRule(data.get("placement") or default.placement),
        min_runtime_s=data.get("min_runtime_s") or 0,
        node_failure=NodeFailure(data.get("node_failure") or default.node_failure),
        gang_broken_grace_s=data.get("gang_broken_grace_s"),
        on_quota_lowered=QuotaLowered(data.get("on_quota_lowered") or default.on_quota_lowered),
        order_in_queue=data.get("order_in_queue") or "",
        division=data.get("division") or "",
    )


def _quota(data: Json | None) -> dict[str, Limit]:
    return {
        gpu_type: Limit(limit["nominal"], limit.get("borrow_limit"), limit.get("lend_limit"))
        for gpu_type, limit in (data or {}).items()
    }


def _weight(data: Json) -> int | Fraction:
    weight = data.get("weight")
    if weight is None:
        return 1
    return weight if isinstance(weight, int) else Fraction(str(weight))


def _cohort(data: Json) -> Cohort:
    return Cohort(data["name"], data.get("parent"), _weight(data), _quota(data.get("quota")))


def _queue(data: Json) -> Queue:
    rights = data.get("preemption") or {}
    borrow = rights.get("borrow_within_cohort") or {}
    fungible = data.get("fungibility") or {}
    guaranteed = data.get("guaranteed") or {}
    default = Fungibility()
    return Queue(
        name=data["name"],
        cohort=data.get("cohort"),
        weight=_weight(data),
        quota=_quota(data.get("quota")),
        preemption=PreemptionPolicy(
            within_queue=WithinQueue(rights.get("within_queue") or WithinQueue.NEVER),
            reclaim_within_cohort=Reclaim(rights.get("reclaim_within_cohort") or Reclaim.NEVER),
            borrow_within_cohort=Borrow(borrow.get("policy") or Borrow.NEVER),
            max_priority_threshold=borrow.get("max_priority_threshold"),
        ),
        fungibility=Fungibility(
            when_can_borrow=fungible.get("when_can_borrow") or default.when_can_borrow,
            when_can_preempt=fungible.get("when_can_preempt") or default.when_can_preempt,
            preference=fungible.get("preference") or default.preference,
        ),
        priority=data.get("priority") or 0,
        created_s=data.get("created_s") or 0,
        guaranteed=dict(guaranteed),
    )


def _node(data: Json) -> Node:
    labels = {str(k): str(v) for k, v in (data.get("labels") or {}).items()}
    return Node(data["name"], data["gpu_type"], data["gpus"], labels, NodeState(data.get("state") or NodeState.READY))


def _wish(data: Json | None) -> TopologyWish | None:
    if not data:
        return None
    slices = tuple(Slice(s["level"], s["size"]) for s in data.get("slices") or ())
    return TopologyWish(data.get("required"), data.get("preferred"), slices)


def _running(data: Json) -> RunningJob:
    return RunningJob(
        id=data["id"],
        queue=data["queue"],
        gpu_type=data["gpu_type"],
        num_gpus=data.get("gpus"),
        num_nodes=data.get("nodes"),
        gpus_per_node=data.get("gpus_per_node"),
        chunk=data.get("chunk") or 1,
        placement=dict(data.get("placement") or {}),
        priority=data.get("priority") or 0,
        submitted_s=data.get("submitted_s") or 0,
        started_s=data.get("started_s") or 0,
        time_limit_s=data.get("time_limit_s"),
        topology=_wish(data.get("topology")),
        protected_until_s=data.get("protected_until_s"),
        last_checkpoint_s=data.get("last_checkpoint_s"),
        preemptible=data.get("preemptible") is not False,
        evicting=bool(data.get("evicting")),
        preempted_count=data.get("preempted_count") or 0,
        subqueue=data.get("subqueue"),
        licences=dict(data.get("licences") or {}),
        num_gpus_min=data.get("gpus_min"),
        num_nodes_min=data.get("nodes_min"),
        members_min=data.get("members_min"),
        members_alive=data.get("members_alive"),
        broken_since_s=data.get("broken_since_s"),
    )


def _pending(data: Json) -> PendingJob:
    types = data.get("gpu_types") or [data["gpu_type"]]
    return PendingJob(
        id=data["id"],
        queue=data["queue"],
        gpu_types=tuple(types),
        num_gpus=data.get("gpus"),
        num_nodes=data.get("nodes"),
        gpus_per_node=data.get("gpus_per_node"),
        chunk=data.get("chunk") or 1,
        priority=data.get("priority") or 0,
        submitted_s=data.get("submitted_s") or 0,
        time_limit_s=data.get("time_limit_s"),
        topology=_wish(data.get("topology")),
        after=tuple(data.get("after") or ()),
        hold=data.get("hold") or "",
        not_before_s=data.get("not_before_s"),
        held=bool(data.get("held")),
        preempted_count=data.get("preempted_count") or 0,
        subqueue=data.get("subqueue"),
        licences=dict(data.get("licences") or {}),
        num_gpus_min=data.get("gpus_min"),
        num_nodes_min=data.get("nodes_min"),
    )


def _reservation(data: Json) -> Reservation:
    return Reservation(
        name=data["name"],
        kind=data["kind"],
        start_s=data["start_s"],
        end_s=data["end_s"],
        num_gpus=data.get("gpus") or 0,
        queues=tuple(data.get("queues") or ()),
        gpu_type=data.get("gpu_type"),
    )


def _subqueue(data: Json) -> Subqueue:
    return Subqueue(data["name"], data["queue"], data.get("decayed_usage") or 0, _weight(data))


def _share_node(data: Json) -> ShareNode:
    shares = data["shares"]
    is_user = "user" in data
    return ShareNode(
        name=data["user"] if is_user else data["account"],
        shares=None if shares == "parent" else shares,
        usage=data.get("usage") or 0,
        is_user=is_user,
        children=tuple(_share_node(child) for child in data.get("children") or ()),
    )


def plan_write(plan: Plan) -> dict[str, object]:
    """The plan as the corpus's decision object."""
    out: dict[str, object] = {
        "start": [
            {"job": s.job, "placement": dict(s.placement), "gpu_type": s.gpu_type, "gpus": s.num_gpus}
            for s in plan.start
        ],
        "preempt": [{"job": p.job, "for": p.preemptor} for p in plan.preempt],
        "hold": [{"job": h.job, "placement": dict(h.placement), "gpu_type": h.gpu_type} for h in plan.hold],
        "planned": [{"job": p.job, "start_s": p.start_s} for p in plan.planned],
        "pending": [{"job": p.job, "reason": str(p.reason), "detail": dict(p.detail)} for p in plan.pending],
        "rejected": [{"job": r.job, "code": str(r.code), "message": r.message} for r in plan.rejected],
        "evict": [{"job": e.job, "code": e.code, "message": e.message} for e in plan.evict],
        "replace": [{"job": r.job, "placement": dict(r.placement)} for r in plan.replace],
        "shrink": [{"job": s.job, "gpus": s.num_gpus, "placement": dict(s.placement)} for s in plan.shrink],
        "grow": [{"job": g.job, "gpus": g.num_gpus, "placement": dict(g.placement)} for g in plan.grow],
        "move": [{"job": m.job, "placement": dict(m.placement)} for m in plan.move],
        "problems": list(plan.problems),
        "shares": {name: "inf" if value is None else float(value) for name, value in plan.shares.items()},
    }
    if plan.fair_shares:
        out["fair_shares"] = dict(plan.fair_shares)
    if plan.undivided is not None:
        out["undivided"] = plan.undivided
    if plan.ranks:
        out["ranks"] = dict(plan.ranks)
    if plan.factors:
        out["factors"] = dict(plan.factors)
    return out


def decide_text(text: str) -> str:
    """The decision for one scenario's JSON text, as JSON; a fault in the text is an object with `error`."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise BadScenario("A scenario is a JSON object.")
        answer = plan_write(decide(snapshot_read(data)))
    except (json.JSONDecodeError, BadScenario) as error:
        answer = {"error": str(error)}
    return json.dumps(answer, sort_keys=True)


def decide_lines(lines: Iterable[str]) -> Iterator[str]:
    """One decision per scenario line; empty lines are left out."""
    return (decide_text(line) for line in lines if line.strip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a scenario, or one per line with --batch, and print the decisions."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.scenario", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--batch", action="store_true", help="one scenario per line, one decision per line")
    options = parser.parse_args(arguments)
    text = options.file.read_text()
    for line in decide_lines(text.splitlines()) if options.batch else [decide_text(text)]:
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
