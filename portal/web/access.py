"""Who may open a page, and how a page's view sees its caller."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import reverse

from portal.accounts.models import User

if TYPE_CHECKING:
    from django_htmx.middleware import HtmxDetails

P = ParamSpec("P")


class PageRequest(HttpRequest):
    """A request of somebody who is signed in."""

    user: User  # type: ignore[assignment]
    htmx: "HtmxDetails"


View = Callable[Concatenate[PageRequest, P], HttpResponseBase]


def page(*methods: str) -> Callable[[View[P]], Callable[Concatenate[HttpRequest, P], HttpResponseBase]]:
    """A view for people who are signed in; others are led to the log-in page and back.

    A part that refreshes itself leads the whole page there: the log-in form must not appear in a table.
    """
    allowed = methods or ("GET", "HEAD")

    def decorate(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
        @wraps(view)
        def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if request.method not in allowed:
                return HttpResponseNotAllowed(allowed)
            if not request.user.is_authenticated:
                return _to_login(request)
            response = view(request, *args, **kwargs)  # type: ignore[arg-type]
            # What a page shows depends on who asks: no cache may keep it.
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return inner

    return decorate


def _to_login(request: Any) -> HttpResponse:
    came_from = request.get_full_path()
    if request.htmx:
        came_from = request.htmx.current_url_abs_path or "/"
    address = f"{reverse(settings.LOGIN_URL)}?{urlencode({'next': came_from})}"
    if request.htmx:
        response = HttpResponse(status=401)
        response["HX-Redirect"] = address
        return response
    return redirect(address)
