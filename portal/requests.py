"""What every request gets: an id that stands in answers, logs and events; refusals shown as pages."""

import re
import secrets
from collections.abc import Callable

import structlog
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.errors import PortalError
from portal.rest import problem_response

log = structlog.get_logger(__name__)
GetResponse = Callable[[HttpRequest], HttpResponse]


class RequestIdMiddleware:
    """``X-Request-ID`` in and out; a caller's own is kept when it is harmless."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", given) else secrets.token_hex(8)
        request.request_id = request_id  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        response = self.get_response(request)
        response["X-Request-ID"] = request_id
        return response


class RefusalMiddleware:
    """A refusal raised in a page's view becomes a page with its sentence; a database that is away, a 503."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """The answer to a refusal, or None for Django's own handling."""
        if isinstance(error, OperationalError):
            log.error("database_away", error=str(error))
            error = DatabaseAway()
        if not isinstance(error, PortalError):
            return None
        if request.path.startswith("/api/"):
            return problem_response(error, request)
        return render(request, "web/refusal.html", {"error": error}, status=error.status)


class DatabaseAway(PortalError):
    """The database does not answer, or stayed locked for too long."""

    code = "database-away"
    status = 503
    title = "The database does not answer"

    def __init__(self) -> None:
        super().__init__("The portal cannot reach its database right now. Nothing was changed; try again shortly.")
