"""What node agents report, and the answer: what should be true on their node now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from portal.cluster.models import Node
from portal.errors import PortalError
from portal.jobs.attempt_tokens import AgentIdentity
from portal.jobs.attempts import AttemptOver, attempt_lock
from portal.jobs.gang import gang_break, gang_judge, gang_restart
from portal.jobs.lifecycle import ATTEMPT_FINAL, AttemptAction, AttemptState, JobAction, JobState
from portal.jobs.models import Attempt, AttemptNode, Checkpoint, Job, Rank, Restart
from portal.jobs.report_rows import ranks_store, records_store, telemetry_store
from portal.jobs.services import attempt_move, job_move

# While something is about to change, agents ask often: a decision should not wait for a poll.
QUICK_POLL_S = 0.1


class StaleAgent(PortalError):
    """A report of an agent that has been replaced."""

    code = "stale-agent"
    status = 409
    title = "Another agent speaks for this node"


@dataclass(frozen=True)
class Report:
    """An agent's report, its shape checked (see docs/protocol.md)."""

    incarnation: str
    seq: int
    state: str
    restart: int
    ready: Mapping[str, Any] | None
    ranks: list[dict[str, Any]]
    records: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    series: list[dict[str, Any]]
    logs: list[dict[str, Any]]
    tails: Mapping[str, str]
    node: Mapping[str, Any]
    problem: Mapping[str, Any] | None


@transaction.atomic
def agent_report(*, identity: AgentIdentity, report: Report, now: datetime) -> dict[str, Any]:
    """Store the report once, let the portal decide, and answer with the desired state."""
    attempt = attempt_lock(identity.attempt_id)
    if attempt.state in ATTEMPT_FINAL:
        raise AttemptOver(f"Attempt {attempt.pk} has ended: {attempt.state}.")
    part = AttemptNode.objects.filter(attempt=attempt, node_id=identity.node).first()
    if part is None or part.generation != identity.generation:
        raise StaleAgent(f"Generation {identity.generation} of {identity.node} was replaced. Leave.")
    if report.incarnation != part.incarnation:
        _new_incarnation(attempt, part, report, now)
    if report.seq > part.last_seq:
        _store(attempt, part, report, now)
    part.seen_at, part.agent_state, part.agent_restart = now, report.state, report.restart
    _note_ready(part, report.ready, attempt)
    part.save()
    _advance(attempt, now)
    gang_judge(attempt=attempt, now=now)
    if report.problem is not None:
        _judge_problem(attempt, part, report.problem, now)
    return {"ack": report.seq, "desired": desired(attempt), "poll_s": _poll_s(attempt)}


def _new_incarnation(attempt: Attempt, part: AttemptNode, report: Report, now: datetime) -> None:
    """Another agent process speaks for the node now: ranks of the one before died with it."""
    orphans = Rank.objects.filter(attempt=attempt, restart=attempt.restart, node_id=part.node_id, state="running")
    died = part.incarnation != "" and orphans.update(state="exited", exit_code=-9, ended_at=now) > 0
    part.incarnation = report.incarnation
    part.agent_started_at = now
    if died and attempt.state in (AttemptState.RENDEZVOUS, AttemptState.RUNNING):
        cause = {
            "class": "platform",
            "code": "agent_died",
            "action": "retry_same",
            "root_node": part.node_id,
            "evidence": [f"agent of node {part.node_id} was started again"],
        }
        gang_restart(attempt=attempt, cause=cause, now=now)


def _store(attempt: Attempt, part: AttemptNode, report: Report, now: datetime) -> None:
    ranks_store(attempt, part.node_id, report.ranks, report.tails)
    records_store(attempt, part.node_id, report.records)
    steps = telemetry_store(attempt, report.windows, report.series, report.logs)
    if steps.max_step is not None and steps.max_step > attempt.max_step:
        attempt.max_step = steps.max_step
        Attempt.objects.filter(pk=attempt.pk).update(max_step=steps.max_step)
        Job.objects.filter(pk=attempt.job_id, max_step__lt=steps.max_step).update(max_step=steps.max_step)
    if steps.last_step_at is not None:
        Attempt.objects.filter(pk=attempt.pk).update(last_step_at=steps.last_step_at)
    if report.node:
        Node.objects.filter(pk=part.node_id).update(sample=dict(report.node), sampled_at=now)
    part.last_seq = report.seq


def _note_ready(part: AttemptNode, ready: Mapping[str, Any] | None, attempt: Attempt) -> None:
    if ready is None or ready["restart"] != attempt.restart:
        return
    part.ready_restart = ready["restart"]
    part.ready_address = str(ready.get("address") or "")
    part.ready_port = ready.get("port")


def _advance(attempt: Attempt, now: datetime) -> None:
    """All ready: give them a meeting point. All running: the attempt and its job run."""
    parts = list(AttemptNode.objects.filter(attempt=attempt))
    ready = all(p.ready_restart == attempt.restart for p in parts)
    if attempt.state == AttemptState.LAUNCHING and ready:
        attempt_move(attempt=attempt, action=AttemptAction.GATHER, now=now)
    if attempt.state == AttemptState.RENDEZVOUS and ready and attempt.master_port is None:
        first = min(parts, key=lambda p: p.node_rank)
        attempt.master_addr, attempt.master_port = first.ready_address, first.ready_port
        attempt.save(update_fields=["master_addr", "master_port"])
        Restart.objects.filter(attempt=attempt, number=attempt.restart).update(rendezvous_at=now)
    running = all(p.agent_state == "running" and p.agent_restart == attempt.restart for p in parts)
    if attempt.state == AttemptState.RENDEZVOUS and attempt.master_port is not None and running:
        attempt_move(attempt=attempt, action=AttemptAction.RUN, now=now)
        job = Job.objects.select_for_update().get(pk=attempt.job_id)
        if job.state == JobState.STARTING:
            job_move(job=job, action=JobAction.RUN, now=now)


def _judge_problem(attempt: Attempt, part: AttemptNode, problem: Mapping[str, Any], now: datetime) -> None:
    """The agent could not do what it should: its own word for it decides."""
    if attempt.state not in (AttemptState.LAUNCHING, AttemptState.RENDEZVOUS, AttemptState.RUNNING):
        return
    arose_at = problem.get("restart")
    if arose_at is not None and arose_at < attempt.restart:
        return  # Sent again by an agent that has not heard of the decision yet.
    code = str(problem.get("code", "agent_problem"))[:60]
    actions = {
        "port_in_use": "retry_same",
        "entry_point_missing": "fail_config",
        "working_dir_missing": "fail_config",
        "disk_full": "retry_exclude_node",
    }
    classes = {"disk_full": "storage", "entry_point_missing": "user_config", "working_dir_missing": "user_config"}
    cause = {
        "class": classes.get(code, "platform"),
        "code": code,
        "action": actions.get(code, "retry_same"),
        "root_node": part.node_id,
        "evidence": [str(problem.get("message", ""))[:500]],
    }
    gang_break(attempt=attempt, cause=cause, nodes_alive=True, now=now)


def desired(attempt: Attempt) -> dict[str, Any]:
    """What should be true on every node of the attempt now."""
    phase, stop = "prepare", None
    if attempt.state == AttemptState.STOPPING:
        phase = "exit"
    elif attempt.state == AttemptState.SAVING:
        phase = "stop"
        stop = {"grace_s": attempt.grace_s, "reason": str((attempt.cause or {}).get("code", "stopped"))}
    elif attempt.master_port is not None:
        phase = "run"
    rendezvous = None
    if phase in ("run", "stop") and attempt.master_port is not None:
        rendezvous = {"master_addr": attempt.master_addr, "master_port": attempt.master_port}
    restart = Restart.objects.get(attempt=attempt, number=attempt.restart)
    return {
        "phase": phase,
        "restart": attempt.restart,
        "rendezvous": rendezvous,
        "world_size": attempt.job.num_nodes * attempt.job.gpus_per_node,
        "resume": _resume(attempt),
        "max_step_done": restart.max_step_before,
        "save_id": attempt.save_id,
        "dump_id": attempt.dump_id,
        "stop": stop,
    }


def _resume(attempt: Attempt) -> str:
    """Where a gang starts: from the checkpoint that the job was given, until it has one of its own."""
    own = attempt.job.checkpoints.filter(state__in=(Checkpoint.State.DURABLE, Checkpoint.State.VERIFIED))
    return "auto" if own.exists() else attempt.job.resume


def _poll_s(attempt: Attempt) -> float:
    restart = Restart.objects.get(attempt=attempt, number=attempt.restart)
    if attempt.state == AttemptState.RUNNING and restart.seen_at is None:
        return float(settings.ENVIRONMENT.agent_poll_s)
    return QUICK_POLL_S
