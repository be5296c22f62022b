"""Changing a quota in two steps: new numbers, then before and after with who is affected, then the change."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.accounts.policy import require
from portal.errors import InvalidSpec, NotFound, PortalError, VersionConflict
from portal.jobs.lifecycle import JobState
from portal.jobs.models import Job
from portal.quotas.models import Queue, Quota
from portal.quotas.potential import potentials
from portal.quotas.services import LimitChange, limits_json, quota_change
from portal.web.access import PageRequest, page

NAMES = ("nominal", "borrow_limit", "lend_limit")
LIVE = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)
PENDING = (JobState.QUEUED, JobState.RECOVERING, JobState.HELD)


@dataclass(frozen=True)
class Affected:
    """A queue whose reach changes: how many GPUs it could use at most, before and after, and its jobs."""

    queue: Queue
    before: int
    after: int
    used: int
    running: int
    waiting: int
    never: list[Job]

    @property
    def over(self) -> int:
        """GPUs in use beyond the new most: nothing is stopped, but nothing new starts until they are back."""
        return max(0, self.used - self.after)


@page("GET", "HEAD", "POST")
def quota_edit(request: PageRequest, quota_id: int) -> HttpResponse:
    """Step 1: the form. Step 2 (POST): before and after. Step 3 (POST with ``confirmed``): the change."""
    require(request.user, "quota.edit")
    quota = Quota.objects.select_related("queue__team", "cohort").filter(pk=quota_id).first()
    if quota is None:
        raise NotFound(_("There is no such quota."))
    if request.method != "POST":
        texts = {name: "" if getattr(quota, name) is None else str(getattr(quota, name)) for name in NAMES}
        return _form(request, quota, texts, version=quota.version)
    texts = {name: request.POST.get(name, "").strip() for name in NAMES}
    texts["reason"] = request.POST.get("reason", "").strip()[:500]
    version = request.POST.get("version", "")
    if not version.isdecimal() or len(version) > 9:
        raise NotFound(_("The form is incomplete. Open it again."))
    change, errors = _read(texts)
    if change is None or errors:
        return _form(request, quota, texts, version=int(version), errors=errors, status=422)
    if int(version) != quota.version:
        return _conflict(request, quota, texts)
    if "confirmed" not in request.POST:
        return _confirm(request, quota, change, texts)
    try:
        quota_change(
            quota=quota,
            change=change,
            user=request.user,
            version=int(version),
            now=timezone.now(),
            reason=texts["reason"],
        )
    except VersionConflict:
        quota.refresh_from_db()
        return _conflict(request, quota, texts)
    except InvalidSpec as error:
        return _form(request, quota, texts, version=int(version), errors=_at_field(error), status=422)
    messages.success(request, _("The quota of {name} is changed.").format(name=quota.owner_name))
    return redirect("quota")


def _read(texts: dict[str, str]) -> tuple[LimitChange | None, dict[str, str]]:
    errors: dict[str, str] = {}
    numbers: dict[str, int | None] = {}
    for name in NAMES:
        text = texts[name]
        if not text and name != "nominal":
            numbers[name] = None
        elif text.isdecimal() and len(text) <= 15:
            numbers[name] = int(text)
        else:
            errors[name] = _("Write a whole number of GPUs, 0 or more.")
    if not texts["reason"]:
        errors["reason"] = _("Say why: the people whose quota this is will read it.")
    if errors:
        return None, errors
    change = LimitChange(numbers["nominal"] or 0, numbers["borrow_limit"], numbers["lend_limit"])
    return change, {fault.pointer.strip("/"): fault.detail for fault in change.faults()}


def _at_field(error: PortalError) -> dict[str, str]:
    return {fault.pointer.strip("/"): fault.detail for fault in error.errors}


def _form(
    request: PageRequest,
    quota: Quota,
    texts: dict[str, str],
    *,
    version: int,
    errors: dict[str, str] | None = None,
    conflict: bool = False,
    status: int = 200,
) -> HttpResponse:
    context = {
        "quota": quota,
        "texts": texts,
        "version": version,
        "errors": errors or {},
        "conflict": conflict,
        "current": limits_json(quota),
    }
    return render(request, "web/quota_edit.html", context, status=status)


def _conflict(request: PageRequest, quota: Quota, texts: dict[str, str]) -> HttpResponse:
    """The form again, on top of the numbers that somebody else has saved meanwhile."""
    return _form(request, quota, texts, version=quota.version, conflict=True, status=VersionConflict.status)


def _confirm(request: PageRequest, quota: Quota, change: LimitChange, texts: dict[str, str]) -> HttpResponse:
    after = {"nominal": change.nominal, "borrow_limit": change.borrow_limit, "lend_limit": change.lend_limit}
    before = limits_json(quota)
    words = {"nominal": _("Nominal"), "borrow_limit": _("Borrow limit"), "lend_limit": _("Lend limit")}
    context: dict[str, Any] = {
        "quota": quota,
        "texts": texts,
        "version": quota.version,
        "rows": [(words[name], before[name], after[name], before[name] != after[name]) for name in NAMES],
        "same": before == after,
        "affected": affected_by(quota, change),
    }
    return render(request, "web/quota_confirm.html", context)


def affected_by(quota: Quota, change: LimitChange) -> list[Affected]:
    """The queues whose reach the change would move, and the quota's own queue, with their jobs."""
    before = potentials(quota.gpu_type)
    after = potentials(quota.gpu_type, {quota.pk: change})
    found = []
    used = dict(Quota.objects.filter(gpu_type=quota.gpu_type, queue__isnull=False).values_list("queue", "used"))
    for queue in Queue.objects.select_related("team").filter(pk__in=list(before)):
        if before[queue.pk] == after[queue.pk] and queue.pk != quota.queue_id:
            continue
        jobs = Job.objects.filter(queue=queue, gpu_type=quota.gpu_type)
        waiting = list(jobs.filter(state__in=PENDING))
        never = [j for j in waiting if j.num_gpus > after[queue.pk]]
        running = jobs.filter(state__in=LIVE).count()
        row = Affected(queue, before[queue.pk], after[queue.pk], used[queue.pk], running, len(waiting), never)
        found.append(row)
    return found
