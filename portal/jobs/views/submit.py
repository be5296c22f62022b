"""The submit page: form and YAML side by side, kept alike by the server, with a preview beside them."""

import secrets
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.accounts.models import Role, Team, User
from portal.accounts.policy import ROLE_ORDER, TEAM_ACTS
from portal.bodies import yaml_load
from portal.cluster.models import Node
from portal.errors import BadRequest, FieldError, InvalidSpec, PortalError
from portal.jobs.forms import CHOICES, FIELDS, by_field, form_of, ordered, spec_of, yaml_of
from portal.jobs.models import Job
from portal.jobs.preview import Preview, job_preview
from portal.jobs.queries import job_find
from portal.jobs.services import KeyReused, QuotaExceeded, job_check, job_submit
from portal.quotas.models import Queue
from portal.web.access import PageRequest, page

ROUTE = "page"


@page("GET", "HEAD", "POST")
def submit_page(request: PageRequest) -> HttpResponse:
    """The page, or the submission itself."""
    if request.method == "POST":
        return _submit(request)
    source = _start(request)
    return _page(request, _Draft(source, yaml_of(source)), _new_key())


@page("POST")
def submit_sync(request: PageRequest) -> HttpResponse:
    """After an edit: the other side, the faults at their fields, the preview."""
    draft = _Draft.read(request.POST)
    context = {**_choices(request.user), **draft.checked(request.user).context(), "edited": request.POST.get("edited")}
    return render(request, "jobs/submit_sync.html", context)


class _Draft:
    """A spec being written: as data, as YAML, and what is wrong with it."""

    def __init__(self, spec: dict[str, Any] | None, text: str, faults: list[FieldError] | None = None) -> None:
        self.spec, self.text = spec, text
        self.faults: list[FieldError] = faults or []
        self.yaml_error = ""
        self.preview: Preview | None = None
        self.form: dict[str, str] = form_of(spec or {})

    @classmethod
    def read(cls, post: Mapping[str, str]) -> "_Draft":
        """The draft as it was sent: the side that was edited last decides."""
        text = post.get("yaml", "")
        try:
            data = yaml_load(text)
        except BadRequest as error:
            return cls._unreadable(post, text, error.detail)
        if not isinstance(data, dict):
            detail = _("The text is not a job spec: it must be lines of “name: value”.")
            return cls._unreadable(post, text, detail)
        if post.get("edited") == "yaml":
            return cls(data, text)
        spec, faults = spec_of(post, data)
        draft = cls(spec, yaml_of(spec), faults)
        draft.form |= {field.name: post[field.name] for field in FIELDS if field.name in post}
        return draft

    @classmethod
    def _unreadable(cls, post: Mapping[str, str], text: str, detail: str) -> "_Draft":
        draft = cls(None, text)
        draft.yaml_error = detail
        draft.form = {field.name: post.get(field.name, "") for field in FIELDS} | {"kind": post.get("kind", "trainer")}
        return draft

    def checked(self, user: User) -> "_Draft":
        """The same draft with everything that a submission would refuse, and the preview when it would not."""
        if self.spec is None:
            return self
        try:
            spec, _normal, queue, _resume = job_check(user=user, data=self.spec)
        except PortalError as error:
            self.refused(error)
        else:
            self.preview = job_preview(spec, queue)
        return self

    def refused(self, error: PortalError) -> None:
        """Note what a refusal says, after the faults that the form itself has."""
        known = {fault.pointer for fault in self.faults}
        self.faults += [fault for fault in error.errors if fault.pointer not in known]
        if not error.errors:
            self.faults.append(FieldError("", error.code, error.detail))

    def context(self) -> dict[str, Any]:
        """For the templates."""
        at_field, others = by_field(self.faults)
        return {
            "form": self.form,
            "yaml": self.text,
            "yaml_error": self.yaml_error,
            "errors": at_field,
            "slots": [(f.name, at_field.get(f.name, "")) for f in FIELDS] + [("kind", at_field.get("kind", ""))],
            "others": others,
            "preview": self.preview,
            "portal_url": settings.ENVIRONMENT.portal_url,
        }


def _submit(request: PageRequest) -> HttpResponse:
    draft, key = _Draft.read(request.POST), request.POST.get("key", "")[:100]
    if draft.spec is None or draft.faults:
        return _page(request, draft.checked(request.user), key, status=422)
    try:
        job, replayed = job_submit(
            user=request.user, data=draft.spec, now=timezone.now(), route=ROUTE, key=key, source="page"
        )
    except KeyReused:
        detail = _("This form was sent before, with other content. Send it again to submit one more job.")
        draft.faults.append(FieldError("", KeyReused.code, detail))
        return _page(request, draft, _new_key(), status=409)
    except (InvalidSpec, QuotaExceeded) as error:
        draft.refused(error)
        return _page(request, draft, key, status=error.status)
    if not replayed:
        messages.success(request, _("The job is submitted."))
    return redirect("job", job.pk)


def _page(request: PageRequest, draft: _Draft, key: str, *, status: int = 200) -> HttpResponse:
    if status == 200:
        draft.checked(request.user)
    context = {**_choices(request.user), **draft.context(), "key": key, "refused": status != 200}
    return render(request, "jobs/submit.html", context, status=status)


def _new_key() -> str:
    return secrets.token_urlsafe(18)


def _choices(user: User) -> dict[str, Any]:
    """What can be chosen in the form."""
    teams = teams_to_submit(user)
    return {
        "teams_to_submit": teams,
        "queues": list(Queue.objects.filter(team__name__in=teams).values_list("name", flat=True)),
        "gpu_types": sorted(set(Node.objects.values_list("gpu_type", flat=True))),
        "choices": CHOICES,
    }


def teams_to_submit(user: User) -> list[str]:
    """Names of the teams in which the user may submit jobs."""
    if user.is_superuser:
        return list(Team.objects.values_list("name", flat=True))
    least = ROLE_ORDER.index(TEAM_ACTS["job.submit"])
    roles = [role for role in Role if ROLE_ORDER.index(role) >= least]
    rows = user.memberships.filter(role__in=roles).order_by("team__name")
    return list(rows.values_list("team__name", flat=True))


def _start(request: PageRequest) -> dict[str, Any]:
    """What the page begins with: a copy of a job, or one of the templates."""
    source = request.GET.get("from")
    if source:
        return _copy_of(job_find(request.user, source))
    teams = teams_to_submit(request.user)
    return ordered(starting_spec(request.GET.get("template", "small"), teams[0] if teams else ""))


def _copy_of(job: Job) -> dict[str, Any]:
    """The job's spec without what is as its default anyway."""
    plain = {
        "priority": 0,
        "max_retries": 3,
        "grace_s": 30.0,
        "resume": "auto",
        "hold": False,
        "labels": {},
        "environment": {},
    }
    spec = {k: v for k, v in job.spec.items() if v is not None and (k not in plain or v != plain[k])}
    if spec.get("resume") not in (None, "none"):
        # A checkpoint of the source job: a copy starts from the beginning.
        spec.pop("resume")
    return ordered(spec)


def starting_spec(template: str, team: str) -> dict[str, Any]:
    """A template's spec, cut to what the cluster has."""
    node = Node.objects.order_by("gpu_type", "-num_gpus").first()
    gpu_type, most = (node.gpu_type, node.num_gpus) if node else ("", 1)
    num_nodes = min(2, max(1, Node.objects.filter(gpu_type=gpu_type).count()))
    gpus = min(2, most)
    spec: dict[str, Any] = {"team": team, "gpu_type": gpu_type, "gpus_per_node": gpus, "time_limit_s": 3600}
    if template == "script":
        argv = ["python", "train.py"]
        return spec | {
            "name": "my-script",
            "nodes": 1,
            "workload": {"kind": "command", "argv": argv, "working_dir": "/"},
        }
    small = template != "gang"
    config: dict[str, Any] = {
        "steps": 60 if small else 300,
        "global_batch_size": 16,
        "strategy": "full_shard",
        "model": {"preset": "nano" if small else "tiny"},
    }
    return spec | {
        "name": "small-run" if small else "gang-run",
        "nodes": 1 if small else num_nodes,
        "workload": {"kind": "trainer", "config": config},
    }
