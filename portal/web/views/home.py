"""The home page: my jobs, my teams' quota, what happened lately."""

from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.accounts.models import User
from portal.events.models import Event
from portal.jobs.lifecycle import JobState
from portal.jobs.models import Attempt, Job
from portal.jobs.page_queries import failed_since, recent_jobs
from portal.jobs.queries import teams_visible_to
from portal.quotas.page_queries import team_bars
from portal.web.access import PageRequest, page
from portal.web.live import digest, unchanged
from portal.web.views.events import FEED, Line, feed_line

RUNNING = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)
WAITING = (JobState.QUEUED, JobState.RECOVERING, JobState.HELD)
MOST_EVENTS = 14


@page()
def home(request: PageRequest) -> HttpResponse:
    """The page, or its part that renews itself."""
    now = timezone.now()
    running, waiting = recent_jobs(request.user, RUNNING), recent_jobs(request.user, WAITING)
    failed = recent_jobs(request.user, (JobState.FAILED,), since=failed_since(now))
    teams = list(teams_visible_to(request.user).values_list("pk", "name"))
    bars, events = team_bars(name for _, name in teams), recent_events(request.user, [key for key, _ in teams])
    fingerprint = digest(
        [
            [(j.pk, j.state, j.max_step, (j.pending_reason or {}).get("code")) for j in (*running, *waiting, *failed)],
            [(b.quota.pk, b.quota.used, b.quota.nominal) for b in bars],
            [line.seq for line in events],
        ]
    )
    if request.htmx:
        same = unchanged(request, fingerprint)
        if same is not None:
            return same
    context = {
        "running": running,
        "waiting": waiting,
        "failed": failed,
        "bars": bars,
        "events": events,
        "any_job": Job.objects.filter(user=request.user).exists(),
        "num_teams": len(teams),
    }
    response = render(request, "web/home_part.html" if request.htmx else "web/home.html", context)
    response["ETag"] = f'"{fingerprint}"'
    return response


def recent_events(user: User, team_ids: list[str]) -> list[Line]:
    """The latest events of the user's teams, newest first, in words."""
    rows = Event.objects.filter(FEED)
    if not user.is_superuser:
        # Quotas and nodes concern everybody; the rest only its team.
        rows = rows.filter(Q(team_id__in=team_ids) | Q(subject_kind__in=("node", "quota")))
    found = list(rows.order_by("-seq")[:MOST_EVENTS])
    attempts = [e.subject_id for e in found if e.subject_kind == "attempt"]
    job_of = dict(Attempt.objects.filter(pk__in=attempts).values_list("pk", "job_id"))
    ids = {e.subject_id for e in found if e.subject_kind == "job"} | set(job_of.values())
    names = dict(Job.objects.filter(pk__in=ids).values_list("pk", "name"))
    return [feed_line(event, job_of.get(event.subject_id, event.subject_id), names) for event in found]
