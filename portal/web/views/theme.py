"""Light, dark, or as the system."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from portal.errors import BadRequest
from portal.web.context import THEMES


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Remember the theme in a cookie and go back."""
    chosen = request.POST.get("theme", "")
    if chosen not in THEMES:
        raise BadRequest(f"A theme is one of {', '.join(THEMES)}.")
    back = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}):
        back = "/"
    response = redirect(back)
    response.set_cookie(
        "theme", chosen, max_age=365 * 86_400, samesite="Lax", secure=settings.SESSION_COOKIE_SECURE, httponly=True
    )
    return response
