"""What every page's frame needs."""

from typing import Any

from django.http import HttpRequest


def frame(request: HttpRequest) -> dict[str, Any]:
    """The current section of the rail, from the address."""
    section = request.path.strip("/").split("/")[0] or "home"
    return {"section": section, "teams": _teams(request)}


def _teams(request: HttpRequest) -> list[str]:
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return []
    return list(user.memberships.values_list("team__name", flat=True).order_by("team__name"))
