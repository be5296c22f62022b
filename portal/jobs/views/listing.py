"""The jobs page: filters in the address, a table that renews itself."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render

from portal.jobs.lifecycle import JOB_FINAL, JobState
from portal.jobs.models import Job
from portal.jobs.page_queries import JobFilter, list_fingerprint, state_counts, steps_wanted
from portal.jobs.queries import teams_visible_to
from portal.web.access import PageRequest, page
from portal.web.live import unchanged


@page()
def jobs_page(request: PageRequest) -> HttpResponse:
    """The whole page."""
    context, _ = _context(request)
    teams = list(teams_visible_to(request.user).values_list("name", flat=True))
    return render(request, "jobs/list.html", {**context, "all_teams": sorted(teams)})


@page()
def jobs_table(request: PageRequest) -> HttpResponse:
    """Chips and table; 304 while nothing in them changes."""
    context, fingerprint = _context(request)
    same = unchanged(request, fingerprint)
    if same is not None:
        return same
    response = render(request, "jobs/table.html", context)
    response["ETag"] = f'"{fingerprint}"'
    return response


def _context(request: PageRequest) -> tuple[dict[str, Any], str]:
    wanted = JobFilter.read(request.GET)
    counts = state_counts(wanted.apart_from_state(request.user))
    jobs, more = wanted.jobs(request.user)
    context = {
        "filter": wanted,
        "filtered": bool(wanted.states or wanted.team or wanted.mine or wanted.text or wanted.label or wanted.before),
        "chips": [(state, counts[state]) for state in JobState.values if counts[state] or state in wanted.states],
        "total": sum(counts.values()),
        "rows": [_row(job) for job in jobs],
        "more": more,
        "query": request.GET.urlencode(),
    }
    return context, list_fingerprint(jobs, counts)


def _row(job: Job) -> dict[str, Any]:
    wanted = steps_wanted(job)
    share = min(100.0, 100 * job.max_step / wanted) if wanted else None
    return {
        "job": job,
        "steps": wanted,
        "share": share,
        "ended": job.state in JOB_FINAL,
        "waits": job.state in (JobState.QUEUED, JobState.RECOVERING, JobState.HELD),
    }
