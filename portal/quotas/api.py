"""REST for quotas."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.policy import require
from portal.bodies import json_load
from portal.errors import FieldError, InvalidSpec, NotFound
from portal.quotas.models import Quota
from portal.quotas.services import LimitChange, limits_json, quota_change
from portal.rest import body_of, caller, check_parameters, check_version, etag_of


def quota_json(quota: Quota) -> dict[str, Any]:
    """A limit as REST shows it; ``over`` is what is held beyond nominal and borrow limit together."""
    ceiling = None if quota.borrow_limit is None else quota.nominal + quota.borrow_limit
    return {
        "id": quota.pk,
        "queue": quota.queue.name if quota.queue else None,
        "cohort": quota.cohort_id,
        "gpu_type": quota.gpu_type,
        **limits_json(quota),
        "used": quota.used,
        "over": max(0, quota.used - ceiling) if ceiling is not None else 0,
        "version": quota.version,
    }


class QuotasView(APIView):
    """``/api/v1/quotas``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """All limits: who may use how much is no secret inside a cluster."""
        check_parameters(request, ("queue", "gpu_type"))
        require(caller(request), "queue.read")
        rows = Quota.objects.select_related("queue", "cohort").order_by("queue__name", "cohort_id", "gpu_type")
        if "queue" in request.query_params:
            rows = rows.filter(queue__name=request.query_params["queue"])
        if "gpu_type" in request.query_params:
            rows = rows.filter(gpu_type=request.query_params["gpu_type"])
        return Response({"items": [quota_json(row) for row in rows]})


class QuotaView(APIView):
    """``/api/v1/quotas/<id>``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, quota_id: int) -> Response:
        """One limit with its ETag."""
        require(caller(request), "queue.read")
        return _with_etag(_find(quota_id))

    @extend_schema(request=OpenApiTypes.OBJECT, responses=OpenApiTypes.OBJECT)
    def put(self, request: Request, quota_id: int) -> Response:
        """Change the limits; ``If-Match`` is required."""
        require(caller(request), "quota.edit")
        quota = _find(quota_id)
        check_version(request, quota.version)
        change, reason = read_change(json_load(body_of(request)))
        quota = quota_change(
            quota=quota,
            change=change,
            user=caller(request),
            version=quota.version,
            now=timezone.now(),
            reason=reason,
        )
        return _with_etag(quota)


def _find(quota_id: int) -> Quota:
    quota = Quota.objects.select_related("queue", "cohort").filter(pk=quota_id).first()
    if quota is None:
        raise NotFound(f"There is no quota {quota_id}.")
    return quota


def _with_etag(quota: Quota) -> Response:
    response = Response(quota_json(quota))
    response["ETag"] = etag_of(quota.version)
    return response


def read_change(data: Any) -> tuple[LimitChange, str]:
    """The new limits and the reason for them; every wrong field is named."""
    if not isinstance(data, dict):
        raise InvalidSpec("A change of a quota is an object with nominal, borrow_limit and lend_limit.")
    known = {"nominal", "borrow_limit", "lend_limit", "reason"}
    errors = [
        FieldError(
            f"/{name}", "unknown-field", f"{name!r} is not a field of a quota. Known: {', '.join(sorted(known))}."
        )
        for name in data
        if name not in known
    ]
    for name in ("nominal", "borrow_limit", "lend_limit"):
        value = data.get(name)
        if value is None and name != "nominal":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            errors.append(FieldError(f"/{name}", "not-a-number", f"{name} must be a whole number of GPUs."))
    if errors:
        raise InvalidSpec(errors[0].detail, errors=errors)
    change = LimitChange(data["nominal"], data.get("borrow_limit"), data.get("lend_limit"))
    return change, str(data.get("reason", ""))[:500]
