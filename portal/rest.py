"""How REST shows refusals, pages of a list and versions."""

import base64
import binascii
import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from django.db import OperationalError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from portal.accounts.models import User
from portal.errors import BadRequest, Forbidden, NotFound, PortalError, VersionConflict, VersionRequired

if TYPE_CHECKING:
    from rest_framework.request import Request

log = structlog.get_logger(__name__)
MAX_PAGE = 200
Row = TypeVar("Row", bound=Model)


def problem_body(error: PortalError, request: HttpRequest) -> dict[str, Any]:
    """The refusal in the form of RFC 9457."""
    body: dict[str, Any] = {
        "type": f"/docs/errors#{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": request.path,
        "request_id": getattr(request, "request_id", ""),
        "code": error.code,
    }
    if error.errors:
        body["errors"] = [item.as_json() for item in error.errors]
    return body


def problem_response(error: PortalError, request: HttpRequest) -> JsonResponse:
    """The refusal as an answer."""
    response = JsonResponse(problem_body(error, request), status=error.status)
    response["Content-Type"] = "application/problem+json"
    if error.status == 503:
        response["Retry-After"] = "2"
    return response


def problem_handler(error: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """DRF's exception handler: every refusal as ``application/problem+json``."""
    from portal.requests import DatabaseAway

    request = context["request"]._request
    if isinstance(error, OperationalError):
        log.error("database_away", error=str(error))
        error = DatabaseAway()
    if isinstance(error, Http404):
        error = NotFound("There is nothing of this id that you may see.")
    if isinstance(error, PortalError):
        return problem_response(error, request)
    plain = exception_handler(error, context)
    if plain is None or not isinstance(error, exceptions.APIException):
        return None
    problem = PortalError(_plain_detail(error))
    problem.code = str(error.default_code).replace("_", "-")
    problem.status = error.status_code
    problem.title = str(error.default_detail)
    response = problem_response(problem, request)
    for name in ("WWW-Authenticate", "Retry-After", "Allow"):
        if name in plain:
            response[name] = plain[name]
    return response


def _plain_detail(error: exceptions.APIException) -> str:
    return str(error.detail) if isinstance(error.detail, str) else str(error.default_detail)


def check_parameters(request: "Request", known: Collection[str]) -> None:
    """Refuse unknown query parameters: a typo must not list everything."""
    for name in request.query_params:
        if name not in known:
            raise BadRequest(f"Unknown query parameter {name!r}. Known here: {', '.join(sorted(known)) or 'none'}.")


def whole_number(request: "Request", name: str, default: int, *, least: int, most: int) -> int:
    """A whole-number query parameter inside its bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.lstrip("-").isdigit() or len(text) > 18 or not least <= int(text) <= most:
        raise BadRequest(f"{name} must be a whole number from {least} to {most}.")
    return int(text)


def keyset_page(request: "Request", rows: QuerySet[Row], *, show: Callable[[Row], dict[str, Any]]) -> Response:
    """One page of rows, newest id first: ``{items, next_cursor}``, and a Link header."""
    limit = whole_number(request, "limit", 50, least=1, most=MAX_PAGE)
    cursor = request.query_params.get("cursor")
    if cursor:
        rows = rows.filter(pk__lt=_read_cursor(cursor))
    items = list(rows.order_by("-pk")[: limit + 1])
    next_cursor = _make_cursor(items[limit - 1].pk) if len(items) > limit else None
    response = Response({"items": [show(row) for row in items[:limit]], "next_cursor": next_cursor})
    if next_cursor:
        query = request._request.GET.copy()
        query["cursor"] = next_cursor
        response["Link"] = f'<{request.path}?{query.urlencode()}>; rel="next"'
    return response


def _make_cursor(key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(str(key)).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> str:
    try:
        value = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        raise BadRequest("The cursor is not one of ours. Take next_cursor of the page before.") from None
    if not isinstance(value, str):
        raise BadRequest("The cursor is not one of ours. Take next_cursor of the page before.")
    return value


def etag_of(version: int) -> str:
    """The ETag of a row's version."""
    return f'"v{version}"'


def check_version(request: "Request", version: int) -> None:
    """Refuse a change that names no version, or another than the row's."""
    given = request.headers.get("If-Match")
    if given is None:
        raise VersionRequired("Send If-Match with the ETag that you read, so that nobody's change is lost.")
    if given.strip() != etag_of(version):
        raise VersionConflict("Somebody changed this since you read it. Read it again and repeat your change.")


def caller(request: "Request") -> User:
    """The signed-in user. The permission classes have turned anybody else away before."""
    if not isinstance(request.user, User):
        raise Forbidden("Sign in first.")
    return request.user


def body_of(request: "Request") -> bytes:
    """The raw body, refused when too large."""
    from django.core.exceptions import RequestDataTooBig

    try:
        return request._request.body
    except RequestDataTooBig:
        raise TooLarge("The body is larger than 1 MiB. A spec names data, it holds none.") from None
    except RawPostDataException:
        raise BadRequest("The body could not be read.") from None


class TooLarge(PortalError):
    """More bytes than any honest request of this kind has."""

    code = "too-large"
    status = 413
    title = "The request is too large"
