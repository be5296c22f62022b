"""What every page's frame needs."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

THEMES = ("auto", "light", "dark")


def frame(request: HttpRequest) -> dict[str, Any]:
    """The rail's current section, from the address; theme; the caller's teams; the nonce for scripts."""
    section = request.path.strip("/").split("/")[0] or "home"
    return {
        "section": section,
        "teams": _Teams(request),
        "theme": theme_of(request),
        "csp_nonce": getattr(request, "csp_nonce", ""),
        "now": timezone.now(),
        "languages": settings.LANGUAGES,
    }


def theme_of(request: HttpRequest) -> str:
    """The theme that the person chose; ``auto`` follows the system."""
    chosen = request.COOKIES.get("theme", "auto")
    return chosen if chosen in THEMES else "auto"


class _Teams:
    """Names of the caller's teams, read only by the pages that show them."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request

    def __iter__(self) -> Any:
        user = getattr(self.request, "user", None)
        if user is None or not user.is_authenticated:
            return iter(())
        return iter(user.memberships.values_list("team__name", flat=True).order_by("team__name"))
