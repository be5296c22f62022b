"""REST for the ledger."""

import csv
from datetime import date

from django.db.models import Sum
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.errors import BadRequest
from portal.rest import caller, check_parameters
from portal.usage.models import Cause
from portal.usage.report import GROUPS, UsageRow, entries_visible_to, held_gpu_ns, usage_by


def read_day(text: str | None, name: str) -> date | None:
    """A day like 2026-12-01, or None."""
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{name} must be a day like 2026-12-01.") from None


class UsageView(APIView):
    """``/api/v1/usage``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> HttpResponse:
        """GPU seconds by cause per group; ``as=csv`` gives the same rows as CSV."""
        check_parameters(request, ("group_by", "from", "to", "job", "as"))
        group = request.query_params.get("group_by", "team")
        if group not in GROUPS:
            raise BadRequest(f"group_by must be one of {', '.join(GROUPS)}.")
        rows = entries_visible_to(
            caller(request),
            read_day(request.query_params.get("from"), "from"),
            read_day(request.query_params.get("to"), "to"),
        )
        if "job" in request.query_params:
            rows = rows.filter(job_id=request.query_params["job"])
        found = usage_by(rows, group)
        if request.query_params.get("as") == "csv":
            return usage_csv(found, group)
        attempts = list(rows.order_by().values_list("attempt_id", flat=True).distinct())
        # Summed as whole nanoseconds: sums of the rows' seconds would differ in their last digit.
        booked_ns = rows.aggregate(whole=Sum("gpu_ns", default=0))["whole"]
        return Response(
            {
                "group_by": group,
                "items": [row.as_json() for row in found],
                "booked_gpu_s": booked_ns / 1e9,
                "held_gpu_s": held_gpu_ns(attempts) / 1e9,
            }
        )


def usage_csv(rows: list[UsageRow], group: str) -> HttpResponse:
    """The rows as a CSV file."""
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="usage-by-{group}.csv"'
    writer = csv.writer(response)
    writer.writerow([group, "gpu_s", "goodput", "jobs", *[c.value for c in Cause]])
    for row in rows:
        # A cell that starts like a formula would be run by a spreadsheet.
        key = "'" + row.key if row.key[:1] in "=+-@" else row.key
        causes = [f"{row.causes[c.value]:.6f}" for c in Cause]
        writer.writerow([key, f"{row.gpu_s:.6f}", f"{row.goodput:.4f}", row.num_jobs, *causes])
    return response
