"""A person's own account and tokens."""

from datetime import timedelta
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.accounts.models import Token
from portal.accounts.policy import ALL_SCOPES, require
from portal.accounts.tokens import DEFAULT_SCOPES, MAX_LIFETIME, token_create
from portal.errors import NotFound
from portal.web.access import PageRequest, page

# What a person may give to a token: the scope of flows is the platform's own.
PERSONAL_SCOPES: Final = sorted(ALL_SCOPES - {"flow"})
SCOPE_WORDS: Final[dict[str, str | Promise]] = {
    "jobs:read": gettext_lazy("see jobs, logs, usage and nodes"),
    "jobs:write": gettext_lazy("submit, hold, release and cancel jobs"),
    "quota:read": gettext_lazy("see a team’s quota"),
    "admin:teams": gettext_lazy("change teams and members"),
    "admin:quotas": gettext_lazy("change quotas"),
    "admin:nodes": gettext_lazy("change nodes"),
    "admin:tokens": gettext_lazy("make and revoke tokens"),
}
LIFETIMES: Final = (7, 30, 90, 365)


@page()
def account_page(request: PageRequest) -> HttpResponse:
    """Who I am, my teams, my tokens."""
    return _account(request)


def _account(request: PageRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    require(request.user, "token.own")
    context = {
        "memberships": request.user.memberships.select_related("team").order_by("team__name"),
        "tokens": Token.objects.filter(user=request.user).order_by("-created_at"),
        "scopes": [(scope, SCOPE_WORDS[scope]) for scope in PERSONAL_SCOPES],
        "chosen": DEFAULT_SCOPES,
        "lifetimes": LIFETIMES,
    }
    return render(request, "accounts/account.html", context | more, status=status)


@page("POST")
def token_new(request: PageRequest) -> HttpResponse:
    """The new token's text, on this one page only: it is neither stored nor put into an address."""
    require(request.user, "token.own")
    name = request.POST.get("name", "").strip()
    scopes = request.POST.getlist("scope")
    days = request.POST.get("days", "")
    errors: dict[str, str] = {}
    if not name or len(name) > 100:
        errors["name"] = _("Name what it is for, in at most 100 characters.")
    if not scopes or not set(scopes) <= set(PERSONAL_SCOPES):
        errors["scope"] = _("Choose what the token may do.")
    if not days.isdecimal() or not 1 <= int(days[:6]) <= MAX_LIFETIME.days:
        errors["days"] = _("A token lives from 1 to {most} days.").format(most=MAX_LIFETIME.days)
    if errors:
        return _account(request, status=422, errors=errors, chosen=scopes, token_name=name)
    token, text = token_create(
        user=request.user, name=name, scopes=scopes, lifetime=timedelta(days=int(days)), now=timezone.now()
    )
    return _account(request, new_token=token, new_text=text)


@page("POST")
def token_revoke(request: PageRequest, token_id: str) -> HttpResponse:
    """Make one of my tokens useless, at once and for good."""
    require(request.user, "token.own")
    found = Token.objects.filter(pk=token_id, user=request.user)
    if not found.exists():
        raise NotFound(_("You have no such token."))
    found.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
    messages.success(request, _("The token is revoked."))
    return redirect("account")
