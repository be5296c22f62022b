"""Codes as sentences: states, why a job waits, why an attempt ended. In the reader's language."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

Words = str | Promise

STATES: Final[dict[str, Words]] = {
    "held": _("held"),
    "queued": _("queued"),
    "starting": _("starting"),
    "running": _("running"),
    "recovering": _("recovering"),
    "cancelling": _("cancelling"),
    "succeeded": _("succeeded"),
    "failed": _("failed"),
    "cancelled": _("cancelled"),
    "allocating": _("allocating"),
    "launching": _("launching"),
    "rendezvous": _("rendezvous"),
    "saving": _("saving"),
    "stopping": _("stopping"),
    "preempted": _("preempted"),
    "lost": _("lost"),
    "ready": _("ready"),
    "cordoned": _("cordoned"),
    "draining": _("draining"),
    "down": _("down"),
    "quarantined": _("quarantined"),
    "writing": _("writing"),
    "durable": _("durable"),
    "verified": _("verified"),
    "corrupt": _("corrupt"),
    "deleted": _("deleted"),
    "exited": _("exited"),
}

# Short enough for a table; ``reason_sentence`` has the numbers.
REASONS: Final[dict[str, Words]] = {
    "held_by_admin": _("held by an administrator"),
    "held_by_user": _("held"),
    "dependency": _("waits for another job"),
    "backoff": _("waits before the next try"),
    "array_limit": _("enough of its array run"),
    "deadline": _("cannot meet its deadline"),
    "configuration": _("quotas need repair"),
    "gpu_type": _("GPU type not allowed"),
    "exceeds_max_quota": _("larger than the quota"),
    "waiting_for_preemption": _("GPUs are being freed"),
    "budget": _("GPU-hour budget spent"),
    "team_quota": _("team’s quota is used"),
    "cohort_quota": _("nothing left to borrow"),
    "licences": _("licences in use"),
    "disruption_budget": _("others must not be disturbed more"),
    "insufficient_gpus": _("too few free GPUs"),
    "fragmented": _("free GPUs too scattered"),
    "topology": _("free GPUs too far apart"),
    "maintenance": _("maintenance ahead"),
    "reservation": _("reservation ahead"),
    "priority": _("others go first"),
}

SENTENCES: Final[dict[str, Words]] = {
    "held_by_admin": _("An administrator holds this job. It starts after its release."),
    "held_by_user": _("This job is held. Release it to let it wait for GPUs."),
    "dependency": _("It starts when the jobs that it depends on have ended."),
    "backoff": _("The last try failed. The next one starts after a pause, at {until} UTC."),
    "array_limit": _("{running} jobs of its array run, and {limit} may run at once."),
    "deadline": _("It can no longer end before its deadline."),
    "configuration": _("The limits of queue {queue} contradict each other. An administrator must repair them."),
    "gpu_type": _("Its queue has no quota for this GPU type."),
    "exceeds_max_quota": _("It asks for {asked} GPUs, and its queue can use at most {most}, borrowing included."),
    "waiting_for_preemption": _(
        "GPUs for it are being freed: {num_victims} running jobs save a checkpoint and make room."
    ),
    "budget": _("Its team’s GPU-hours are spent: {needs} are needed, {left} are left."),
    "team_quota": _(
        "Its queue uses {used} of {nominal} {gpu_type} GPUs; {available} are available and the job asks for {asked}."
    ),
    "cohort_quota": _(
        "Its queue uses {used} {gpu_type} GPUs (own quota {nominal}), and of what others lend {available} are available."
        " The job asks for {asked}."
    ),
    "licences": _("It needs {asked} × licence {licence}, and {free} are free."),
    "disruption_budget": _("Making room would stop more running jobs at once than is allowed."),
    "insufficient_gpus": _("It needs {asked} {gpu_type} GPUs at once, and {free} are free on ready nodes."),
    "fragmented": _(
        "{free} GPUs are free, but not {workers} nodes with {gpus_per_worker} free GPUs each. It starts when whole nodes"
        " become free."
    ),
    "topology": _("Enough GPUs are free, but not as close together as the job asks."),
    "maintenance": _("It would still run when maintenance “{window}” begins."),
    "reservation": _("It would run into the reservation “{window}”."),
    "priority": _("It would fit now, but starting it would delay a job that goes first."),
}

CLASSES: Final[dict[str, Words]] = {
    "user_code": _("The program failed"),
    "user_config": _("The settings cannot work"),
    "oom_gpu": _("A GPU ran out of memory"),
    "oom_host": _("A node ran out of memory"),
    "nccl_network": _("The network between ranks failed"),
    "gpu_hardware": _("A GPU failed"),
    "node_lost": _("A node was lost"),
    "storage": _("Storage failed"),
    "data": _("Data is missing or broken"),
    "checkpoint": _("A checkpoint cannot be used"),
    "preempted": _("Its GPUs were needed by another job"),
    "time_limit": _("The time limit was reached"),
    "cancelled": _("It was cancelled"),
    "numeric": _("The loss was no number"),
    "rendezvous": _("The ranks did not find each other"),
    "environment": _("Something in the environment is missing"),
    "dependency_service": _("An outside service failed"),
    "hang": _("Training stood still"),
    "platform": _("The platform itself failed"),
    "success": _("Finished"),
    "unknown": _("The cause is not known"),
}
CODES: Final[dict[str, Words]] = {
    "killed": _("A process was killed from outside"),
    "terminated": _("A process was ended from outside"),
    "agent_died": _("A node’s agent died and was started again"),
    "disk_full": _("The disk is full"),
    "entry_point_missing": _("The program to run is not there"),
    "working_dir_missing": _("The working directory is not there"),
    "port_in_use": _("A port was in use"),
    "refused": _("The trainer refused its settings"),
    "sigsegv": _("A process crashed (segmentation fault)"),
    "cancelled_by_user": _("Cancelled"),
    "peer_lost": _("A rank lost the connection to another"),
    "module_not_found": _("A Python package cannot be imported"),
    "import_error": _("A Python package cannot be imported"),
    "early_exit_zero": _("A rank left before the others"),
    "missing_file": _("A file is missing"),
    "finished": _("Finished"),
    "no_message": _("Nothing tells why it ended"),
}
# Sentences of ``policy.after_failure``; with a name or number in them they stand as they are.
FOLLOWS: Final[dict[str, Words]] = {
    "The same run would fail again.": _("The same run would fail again."),
    "Not the job's fault: no retry is used up.": _("Not the job’s fault: no retry is used up."),
    "Ranks died and the nodes are fine.": _("The nodes are fine: started again in place."),
    "A node of the gang is gone.": _("A node of the gang is gone."),
}


def state_word(state: str) -> str:
    """The state in the reader's language."""
    return str(STATES.get(state, state.replace("_", " ")))


def reason_short(reason: Mapping[str, Any] | None) -> str:
    """Why a job waits, in a few words."""
    if not reason:
        return _t("not looked at yet")
    code = str(reason.get("code", ""))
    return str(REASONS.get(code, code.replace("_", " ")))


def reason_sentence(reason: Mapping[str, Any] | None) -> str:
    """Why a job waits, with the numbers of the pass that decided it."""
    if not reason:
        return _t("The scheduler has not looked at this job yet.")
    detail = dict(reason.get("detail") or {})
    values: dict[str, Any] = {name: value for name, value in detail.items() if not isinstance(value, (list, dict))}
    values["num_victims"] = len(detail.get("victims") or ())
    for name, source in (("needs", "needs_gpu_s"), ("left", "left_gpu_s")):
        if source in detail:
            values[name] = f"{float(detail[source]) / 3600:.1f}"
    if "until_s" in detail:
        values["until"] = f"{datetime.fromtimestamp(float(detail['until_s']), UTC):%H:%M:%S}"
    sentence = str(SENTENCES.get(str(reason.get("code")), ""))
    try:
        return sentence.format(**values) or reason_short(reason)
    except KeyError:
        # A pass of another version named its numbers otherwise: the short form is still true.
        return reason_short(reason)


def cause_short(cause: Mapping[str, Any] | None) -> str:
    """Why it ended, in a few words."""
    if not cause:
        return ""
    code, class_ = str(cause.get("code", "")), str(cause.get("class", ""))
    return str(CODES.get(code) or CLASSES.get(class_) or code.replace("_", " "))


def cause_sentence(cause: Mapping[str, Any] | None) -> str:
    """Why it ended, which rank and node began it, and how."""
    if not cause:
        return ""
    text = cause_short(cause)
    rank, node, signal = cause.get("root_rank"), cause.get("root_node"), cause.get("signal")
    if rank is not None and node:
        text += _t(": rank {rank} on {node}").format(rank=rank, node=node)
    elif node:
        text += _t(": on {node}").format(node=node)
    if signal:
        text += _t(", signal {signal}").format(signal=signal)
    elif cause.get("exit_code"):
        text += _t(", exit status {status}").format(status=cause["exit_code"])
    return text + _t(".")


def follows_sentence(cause: Mapping[str, Any] | None) -> str:
    """What the portal decided after this end, and why."""
    why = str((cause or {}).get("why", ""))
    return str(FOLLOWS.get(why, why))
