"""The page of one job: its parts, which renew themselves, its log, and what can be done to it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib import messages
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.policy import may, require
from portal.errors import BadRequest, NotFound
from portal.jobs import services
from portal.jobs.forms import ordered, yaml_of
from portal.jobs.lifecycle import JOB_FINAL, JOB_TRANSITIONS, JobAction, JobState
from portal.jobs.log_follow import in_thread, log_since
from portal.jobs.logs import log_bytes, log_find, log_path, log_tail
from portal.jobs.models import Attempt, Checkpoint, Job, Rank
from portal.jobs.page_queries import (
    ahead_of,
    has_metrics,
    held_now,
    holders_before,
    job_fingerprint,
    log_choices,
    steps_wanted,
)
from portal.jobs.queries import job_find
from portal.jobs.telemetry import LogFile
from portal.jobs.timeline import timeline
from portal.jobs.words import reason_short, state_word
from portal.web.access import PageRequest, page
from portal.web.live import Part, parts_response

PARTS: Final = ("state", "acts", "why", "attempts", "checkpoints", "ranks")
TAIL: Final = 500
USABLE: Final = (Checkpoint.State.DURABLE, Checkpoint.State.VERIFIED)


@page()
def job_page(request: PageRequest, job_id: str) -> HttpResponse:
    """The whole page."""
    job = _find(request.user, job_id)
    parts = {name: Part(name, html).wrapped() for name, html in _render_parts(request, job).items()}
    context = {
        "job": job,
        "parts": parts,
        "ended": _settled(job),
        "choices": _log_choices(job),
        # Whoever opens a failed job wants the words of the rank that failed first.
        "first_rank": (job.end_cause or {}).get("root_rank") or 0,
        "has_metrics": has_metrics(job),
        "steps": steps_wanted(job),
        "spec_yaml": yaml_of(ordered(job.spec)),
    }
    return render(request, "jobs/job.html", context)


@page()
def job_live(request: PageRequest, job_id: str) -> HttpResponse:
    """The parts that have changed since the browser got them."""
    job = _find(request.user, job_id)
    return parts_response(
        request,
        fingerprint=job_fingerprint(job),
        parts=lambda: _render_parts(request, job),
        ended=_settled(job),
    )


def _find(user: User, job_id: str) -> Job:
    job = job_find(user, job_id)
    require(user, "job.read", job.team)
    return job


def _settled(job: Job) -> bool:
    return job.state in JOB_FINAL


def _render_parts(request: PageRequest, job: Job) -> dict[str, str]:
    context = {**_facts(request, job), "job": job}
    return {name: render_to_string(f"jobs/parts/{name}.html", context, request).strip() for name in PARTS}


def _facts(request: PageRequest, job: Job) -> dict[str, Any]:
    now = timezone.now()
    attempts = list(
        Attempt.objects.filter(job=job).select_related("job").prefetch_related("restarts", "nodes").order_by("number")
    )
    last = attempts[-1] if attempts else None
    waits = job.state in (JobState.QUEUED, JobState.RECOVERING, JobState.HELD)
    ahead = ahead_of(job) if waits and job.state != JobState.HELD else (0, 0)
    return {
        "attempts": attempts,
        "last": last,
        "timeline": timeline(attempts, submitted_at=job.submitted_at, now=now),
        "waits": waits,
        "jobs_ahead": ahead[0],
        "gpus_ahead": ahead[1],
        "places": held_now(job),
        "holders": holders_before(job, request.user) if waits and job.state != JobState.HELD else [],
        "planned_at": _planned(job),
        "milestones": _milestones(job),
        "steps": steps_wanted(job),
        "checkpoints": list(Checkpoint.objects.filter(job=job).select_related("attempt")[:50]),
        "usable": USABLE,
        "ranks": list(Rank.objects.filter(attempt=last, restart=last.restart)) if last else [],
        "acts": _acts(request.user, job),
        "may_submit": may(request.user, "job.submit", job.team),
        "announce": _announcement(job),
    }


def _planned(job: Job) -> datetime | None:
    """When the scheduler's calendar starts the job at the latest, if it has said so."""
    planned = (job.pending_reason or {}).get("planned_start_s")
    return datetime.fromtimestamp(float(planned), UTC) if planned else None


def _announcement(job: Job) -> str:
    words = _("Job {name} is {state}.").format(name=job.name, state=state_word(job.state))
    if job.state in (JobState.QUEUED, JobState.RECOVERING):
        words += f" {reason_short(job.pending_reason)}"
    return words


def _acts(user: User, job: Job) -> set[str]:
    """What this user may do to the job in the state that it is in."""
    allowed = may(user, "job.act_own" if job.user_id == user.pk else "job.act_any", job.team)
    names = {a.value for s, a in JOB_TRANSITIONS if s == job.state and a in ACTS}
    return names if allowed else set()


def _milestones(job: Job) -> list[tuple[str, str, Any]]:
    """The state bar: what was reached when; the last one is where the job stands."""
    steps: list[tuple[str, str, Any]] = [(_("submitted"), "done", job.submitted_at)]
    first = Attempt.objects.filter(job=job).order_by("number").values_list("created_at", flat=True).first()
    if job.state == JobState.HELD or (job.state == JobState.QUEUED and first is None):
        steps.append((state_word(job.state), "now", job.state_since))
    elif first:
        steps.append((_("GPUs given"), "done", first))
    if job.started_at:
        steps.append((state_word("running"), "now" if job.state == JobState.RUNNING else "done", job.started_at))
    if job.state in JOB_FINAL:
        css = {"succeeded": "done", "failed": "bad"}.get(job.state, "")
        steps.append((state_word(job.state), css, job.ended_at))
    elif job.state in (JobState.STARTING, JobState.RECOVERING, JobState.CANCELLING):
        steps.append((state_word(job.state), "now", job.state_since))
    if job.state not in JOB_FINAL:
        steps.append((_("ended"), "", None))
    return steps


ACTS: Final[dict[str, Callable[..., Job]]] = {
    JobAction.CANCEL: services.job_cancel,
    JobAction.HOLD: services.job_hold,
    JobAction.RELEASE: services.job_release,
}


@page("POST")
def job_act(request: PageRequest, job_id: str, act: str) -> HttpResponse:
    """Cancel, hold or release, then back to where the button was."""
    if act not in ACTS:
        raise Http404
    job = _find(request.user, job_id)
    values = {"reason": request.POST.get("reason", "")[:500]} if act == JobAction.CANCEL else {}
    ACTS[act](job=job, user=request.user, now=timezone.now(), **values)
    back = request.POST.get("back", "")
    if url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}):
        return redirect(back)
    return redirect("job", job.pk)


@page("POST")
def job_resume_view(request: PageRequest, job_id: str) -> HttpResponse:
    """A new job that goes on from the chosen checkpoint."""
    job = _find(request.user, job_id)
    new = services.job_resume(
        job=job, user=request.user, checkpoint_id=request.POST.get("checkpoint", ""), now=timezone.now()
    )
    messages.success(request, _("This new job goes on from the checkpoint."))
    return redirect("job", new.pk)


@page()
def job_log(request: PageRequest, job_id: str) -> HttpResponse:
    """The end of a log, or what was written after ``after`` bytes, as lines."""
    job = _find(request.user, job_id)
    try:
        attempt, row = _log(request, job)
    except NotFound:
        # No rank has written anything yet: nothing is wrong, and the next call may find something.
        nothing: dict[str, Any] = {"file": None, "lines": [], "after": 0, "more": False, "ended": _settled(job)}
        return JsonResponse({**nothing, "choices": _log_choices(job)})
    contains = request.GET.get("q", "")[:200]
    after = request.GET.get("after", "")
    same = request.GET.get("file", "") == str(row.pk)
    if after and same:
        lines, offset = log_since(attempt, row, after=_number(after, "after"), contains=contains)
    else:
        # Where the tail ends is read first: a line written in between comes with the next call.
        offset = log_path(attempt, row).stat().st_size
        lines = log_tail(attempt, row, num_lines=TAIL, contains=contains)
    where = {"file": row.pk, "attempt": attempt.number, "restart": row.restart, "rank": row.rank, "stream": row.stream}
    return JsonResponse(
        {
            **where,
            "lines": lines,
            "after": offset,
            "more": bool(after and same),
            "ended": _settled(job),
            "choices": _log_choices(job),
        }
    )


@page()
def job_log_file(request: PageRequest, job_id: str) -> HttpResponseBase:
    """A whole log, as a file."""
    job = _find(request.user, job_id)
    attempt, row = _log(request, job)
    pieces = log_bytes(log_path(attempt, row))
    # An ASGI server would read a synchronous iterator whole before it sends the first byte.
    content = in_thread(pieces) if isinstance(request, ASGIRequest) else pieces
    response = StreamingHttpResponse(content, content_type="text/plain; charset=utf-8")
    name = f"{job.pk}-attempt{attempt.number}-restart{row.restart}-rank{row.rank}.{row.stream}.log"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _log(request: PageRequest, job: Job) -> tuple[Attempt, LogFile]:
    """The attempt and the file that the query names; the newest where it names none."""
    attempt = _attempt(job, request.GET.get("attempt", ""))
    restart = request.GET.get("restart", "")
    row = log_find(
        attempt,
        rank=_number(request.GET.get("rank", "0"), "rank"),
        stream=request.GET.get("stream", "stdout"),
        restart=_number(restart, "restart") if restart else None,
    )
    return attempt, row


def _log_choices(job: Job) -> dict[str, list[int]]:
    """Which attempts, restarts and ranks have a log by now."""
    found = log_choices(job)
    return {
        "attempt": sorted({c.attempt for c in found}, reverse=True),
        "restart": sorted({c.restart for c in found}),
        "rank": sorted({c.rank for c in found}) or [0],
    }


def _attempt(job: Job, number: str) -> Attempt:
    rows = Attempt.objects.filter(job=job)
    if number:
        rows = rows.filter(number=_number(number, "attempt"))
    attempt = rows.order_by("-number").first()
    if attempt is None:
        raise NotFound(_("This job has no such attempt yet."))
    return attempt


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise BadRequest(f"{name} must be a whole number.")
    return int(text)
