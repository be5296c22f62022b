"""Teams and their members: their owners change them here."""

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.accounts.models import Membership, Role, Team, User
from portal.accounts.policy import may, require
from portal.errors import NotFound, PortalError
from portal.events.services import event_record
from portal.quotas.services import member_set
from portal.web.access import PageRequest, page


@page()
def teams_page(request: PageRequest) -> HttpResponse:
    """My teams; all of them for an administrator."""
    teams = _teams_of(request.user)
    rows = [(team, list(team.memberships.select_related("user").order_by("user__username"))) for team in teams]
    roles = dict(request.user.memberships.values_list("team", "role"))
    context = {"rows": [(team, members, roles.get(team.pk, "")) for team, members in rows]}
    return render(request, "web/teams.html", context)


def _teams_of(user: User) -> list[Team]:
    return list(Team.objects.all() if user.is_superuser else Team.objects.filter(memberships__user=user))


@page("GET", "HEAD", "POST")
def team_page(request: PageRequest, name: str) -> HttpResponse:
    """A team's members; its owners and administrators change them here."""
    team = next((t for t in _teams_of(request.user) if t.name == name), None)
    if team is None:
        raise NotFound(_("There is no team {name} that you may see.").format(name=name))
    if request.method == "POST":
        require(request.user, "team.edit", team)
        try:
            _change_member(request, team)
        except PortalError as error:
            if error.status != 422:
                raise
            return _team(request, team, status=422, error=error.detail)
        return redirect("team", team.name)
    return _team(request, team)


def _team(request: PageRequest, team: Team, *, status: int = 200, error: str = "") -> HttpResponse:
    context = {
        "team": team,
        "members": team.memberships.select_related("user").order_by("user__username"),
        "roles": Role.choices,
        "may_edit": may(request.user, "team.edit", team),
        "error": error,
    }
    return render(request, "web/team.html", context, status=status)


class LastOwner(PortalError):
    """A team without an owner could not be changed by its own people any more."""

    code = "last-owner"
    title = "The team would have no owner"


@transaction.atomic
def _change_member(request: PageRequest, team: Team) -> None:
    username, role = request.POST.get("username", "").strip(), request.POST.get("role", "")
    now, actor = timezone.now(), request.user.username
    owners = set(team.memberships.filter(role=Role.OWNER).values_list("user__username", flat=True))
    if owners == {username} and role != Role.OWNER:
        raise LastOwner(_("{name} is the only owner. Make somebody else an owner first.").format(name=username))
    if role == "none":
        if Membership.objects.filter(team=team, user__username=username).delete()[0]:
            event_record(subject=team, verb="member", before=username, at=now, actor=actor, team_id=team.pk)
        messages.success(request, _("{name} is no longer in the team.").format(name=username))
        return
    member_set(team=team, username=username, role=role, now=now, actor=actor)
    messages.success(request, _("{name} is changed.").format(name=username))
