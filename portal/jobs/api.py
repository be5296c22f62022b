"""REST for jobs: submit, list, look, act. The calls of flows and agents are in ``runner_api``."""

import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.policy import require
from portal.bodies import json_load, yaml_load
from portal.errors import BadRequest, NotFound
from portal.jobs import logs, queries, services
from portal.jobs.lifecycle import JOB_FINAL, JobState
from portal.jobs.models import Attempt, Checkpoint, Job, Rank
from portal.rest import body_of, caller, check_parameters, keyset_page, whole_number

MAX_WAIT_S = 60
LIST_FILTERS = ("state", "team", "user", "gpu_type", "label", "limit", "cursor")


def read_spec(request: Request) -> Any:
    """The spec in the body: JSON, or YAML when the content type says so."""
    if "yaml" in (request._request.content_type or ""):
        try:
            return yaml_load(body_of(request).decode())
        except UnicodeDecodeError:
            raise BadRequest("The body is not UTF-8 text.") from None
    return json_load(body_of(request))


class JobsView(APIView):
    """``/api/v1/jobs``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """Jobs, newest first."""
        check_parameters(request, LIST_FILTERS)
        rows = queries.jobs_visible_to(caller(request))
        given = request.query_params
        if "state" in given:
            states = given["state"].split(",")
            unknown = [s for s in states if s not in JobState.values]
            if unknown:
                raise BadRequest(f"Unknown state {unknown[0]!r}. Known: {', '.join(JobState.values)}.")
            rows = rows.filter(state__in=states)
        if "team" in given:
            rows = rows.filter(team__name=given["team"])
        if "user" in given:
            rows = rows.filter(user__username=request.user.username if given["user"] == "me" else given["user"])
        if "gpu_type" in given:
            rows = rows.filter(gpu_type=given["gpu_type"])
        if "label" in given:
            name, _, value = given["label"].partition("=")
            rows = rows.filter(**{"labels__" + name.replace("__", "_"): value}) if name else rows
        return keyset_page(request, rows, show=queries.job_json)

    @extend_schema(request=OpenApiTypes.OBJECT, responses={201: OpenApiTypes.OBJECT})
    def post(self, request: Request) -> Response:
        """Submit a job. It exists, durably, when the answer is there."""
        key = request.headers.get("Idempotency-Key", "")
        if len(key) > 255:
            raise BadRequest("An Idempotency-Key has at most 255 characters.")
        job, replayed = services.job_submit(user=caller(request), data=read_spec(request), now=timezone.now(), key=key)
        response = Response(queries.job_detail_json(job), status=201)
        response["Location"] = f"/api/v1/jobs/{job.pk}"
        if replayed:
            response["Idempotency-Replayed"] = "true"
        return response


class JobView(APIView):
    """``/api/v1/jobs/<id>``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: str) -> Response:
        """One job. ``?wait=60&until=terminal`` answers when it has ended, or after that many seconds."""
        check_parameters(request, ("wait", "until"))
        return Response(queries.job_detail_json(queries.job_find(caller(request), job_id)))


_job_view = JobView.as_view()


@csrf_exempt
async def job_detail(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """``JobView``, after waiting for what ``until`` names: ``terminal``, or a state, or ``change``."""
    wait, until = request.GET.get("wait", "0"), request.GET.get("until", "terminal")
    answer = await sync_to_async(_job_view)(request, job_id=job_id)
    if request.method != "GET" or answer.status_code != 200 or not wait.isdigit() or until == "":
        return answer
    deadline = asyncio.get_running_loop().time() + min(int(wait), MAX_WAIT_S)
    first = answer.data["state"]
    state = first
    while not _reached(state, first, until) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.2)
        state = await Job.objects.values_list("state", flat=True).aget(pk=job_id)
    return await sync_to_async(_job_view)(request, job_id=job_id)


def _reached(state: str, first: str, until: str) -> bool:
    if state in JOB_FINAL:
        return True
    return state != first if until == "change" else state == until


class JobActView(APIView):
    """``POST /api/v1/jobs/<id>/cancel`` and its like."""

    @extend_schema(request=OpenApiTypes.OBJECT, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request, job_id: str, act: str) -> Response:
        """Cancel, hold, release; or resume as a new job from a checkpoint: ``{"checkpoint": id}``."""
        job = queries.job_find(caller(request), job_id)
        now = timezone.now()
        data = json_load(body_of(request) or b"{}")
        if not isinstance(data, dict):
            raise BadRequest("The body of an act is an object.")
        if act == "cancel":
            job = services.job_cancel(job=job, user=caller(request), now=now, reason=str(data.get("reason", "")))
        elif act == "hold":
            job = services.job_hold(job=job, user=caller(request), now=now)
        elif act == "release":
            job = services.job_release(job=job, user=caller(request), now=now)
        else:
            job = services.job_resume(
                job=job, user=caller(request), checkpoint_id=str(data.get("checkpoint", "")), now=now
            )
            return Response(queries.job_detail_json(job), status=201)
        return Response(queries.job_json(queries.job_find(caller(request), job.pk)), status=202)


class TimelineView(APIView):
    """``/api/v1/jobs/<id>/timeline``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: str) -> Response:
        """The instants from submission to the first step, and each restart."""
        return Response(queries.job_timeline(queries.job_find(caller(request), job_id)))


class MetricsView(APIView):
    """``/api/v1/jobs/<id>/metrics``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: str) -> Response:
        """Series by name, thinned on the server: ``[step, t_ns, min, mean, max]``."""
        check_parameters(request, ("names", "points", "after_step"))
        job = queries.job_find(caller(request), job_id)
        points = whole_number(request, "points", 500, least=1, most=20_000)
        after = whole_number(request, "after_step", -1, least=-1, most=2**53)
        known = queries.metric_names(job)
        names = request.query_params.get("names")
        wanted = names.split(",") if names else known
        series = {
            name: queries.metric_points(job, name, points=points, after_step=after) for name in wanted if name in known
        }
        return Response({"names": known, "series": series})


class LogsView(APIView):
    """``/api/v1/jobs/<id>/logs``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: str) -> Response:
        """The last lines of one rank's stdout or stderr."""
        check_parameters(request, ("attempt", "rank", "stream", "restart", "tail", "q"))
        job = queries.job_find(caller(request), job_id)
        attempt = _attempt_of(job, request.query_params.get("attempt"))
        restart = whole_number(request, "restart", -1, least=-1, most=1_000_000)
        row = logs.log_find(
            attempt,
            rank=whole_number(request, "rank", 0, least=0, most=1_000_000),
            stream=request.query_params.get("stream", "stdout"),
            restart=None if restart < 0 else restart,
        )
        tail = whole_number(request, "tail", 200, least=1, most=5000)
        lines = logs.log_tail(attempt, row, num_lines=tail, contains=request.query_params.get("q", ""))
        return Response(
            {"attempt": attempt.pk, "rank": row.rank, "restart": row.restart, "stream": row.stream, "lines": lines}
        )


def _attempt_of(job: Job, number: str | None) -> Attempt:
    rows = Attempt.objects.filter(job=job)
    if number is not None:
        rows = rows.filter(number=int(number)) if number.isdigit() else rows.filter(pk=number)
    attempt = rows.order_by("-number").first()
    if attempt is None:
        raise NotFound("This job has no such attempt.")
    return attempt


class CheckpointsView(APIView):
    """``/api/v1/jobs/<id>/checkpoints``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: str) -> Response:
        """The job's checkpoints, newest step first."""
        job = queries.job_find(caller(request), job_id)
        rows = Checkpoint.objects.filter(job=job)
        return Response({"items": [queries.checkpoint_json(row) for row in rows]})


class AttemptView(APIView):
    """``/api/v1/attempts/<id>``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt_id: str) -> Response:
        """One attempt with its restarts and nodes."""
        return Response(queries.attempt_json(queries.attempt_find(caller(request), attempt_id)))


class RanksView(APIView):
    """``/api/v1/attempts/<id>/ranks``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt_id: str) -> Response:
        """The ranks of the current restart, or of the one asked for."""
        check_parameters(request, ("restart",))
        attempt = queries.attempt_find(caller(request), attempt_id)
        require(caller(request), "job.read", attempt.job.team)
        restart = whole_number(request, "restart", attempt.restart, least=0, most=1_000_000)
        rows = Rank.objects.filter(attempt=attempt, restart=restart)
        return Response({"restart": restart, "items": [queries.rank_json(row) for row in rows]})
