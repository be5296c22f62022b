"""Who may do what: the one table that REST, pages and commands ask."""

from typing import TYPE_CHECKING, Final

from portal.accounts.models import Membership, Role
from portal.errors import Forbidden

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from portal.accounts.models import Team, User

ROLE_ORDER: Final = (Role.VIEWER, Role.MEMBER, Role.MANAGER, Role.OWNER)

# The least role in the object's team that may do the act. An administrator (``is_superuser``) may do all.
TEAM_ACTS: Final[dict[str, Role]] = {
    "job.read": Role.VIEWER,
    "usage.read": Role.VIEWER,
    "quota.read": Role.VIEWER,
    "job.submit": Role.MEMBER,
    "job.act_own": Role.MEMBER,  # cancel, hold, release, resume: one's own job
    "job.act_any": Role.MANAGER,  # the same on a colleague's job
    "team.edit": Role.OWNER,
}
# Acts on the cluster as a whole: administrators only.
ADMIN_ACTS: Final = frozenset({"quota.edit", "node.edit", "team.create", "job.read_all", "cluster.edit"})
# Acts of any signed-in user.
USER_ACTS: Final = frozenset({"node.read", "queue.read", "token.own"})

# The scope that a token must carry for an act; a session (a person in the browser) has them all.
SCOPES: Final[dict[str, str]] = {
    "job.read": "jobs:read",
    "usage.read": "jobs:read",
    "node.read": "jobs:read",
    "queue.read": "jobs:read",
    "quota.read": "quota:read",
    "job.submit": "jobs:write",
    "job.act_own": "jobs:write",
    "job.act_any": "jobs:write",
    "team.edit": "admin:teams",
    "team.create": "admin:teams",
    "quota.edit": "admin:quotas",
    "node.edit": "admin:nodes",
    "cluster.edit": "admin:nodes",
    "job.read_all": "jobs:read",
    "token.own": "admin:tokens",
}
ALL_SCOPES: Final = frozenset(SCOPES.values()) | {"flow"}


def may(user: "User | AnonymousUser", act: str, team: "Team | None" = None, *, role: str | None = None) -> bool:
    """Whether the user may do the act (in the team). ``role`` spares the look-up when it is known."""
    if not user.is_authenticated or not user.is_active:
        return False
    scopes = getattr(user, "token_scopes", None)
    if scopes is not None and SCOPES[act] not in scopes:
        return False
    if user.is_superuser or act in USER_ACTS:
        return True
    if act in ADMIN_ACTS or team is None:
        return False
    if role is None:
        role = Membership.objects.filter(team=team, user_id=user.pk).values_list("role", flat=True).first()
    return role is not None and ROLE_ORDER.index(Role(role)) >= ROLE_ORDER.index(TEAM_ACTS[act])


def require(user: "User | AnonymousUser", act: str, team: "Team | None" = None) -> None:
    """Refuse with a sentence unless the user may do the act."""
    if may(user, act, team):
        return
    scopes = getattr(user, "token_scopes", None)
    if scopes is not None and SCOPES[act] not in scopes:
        raise Forbidden(f"This token lacks the scope {SCOPES[act]}. Make a token that has it.")
    if team is None or act in ADMIN_ACTS:
        raise Forbidden("Only an administrator may do this.")
    raise Forbidden(f"You need to be {TEAM_ACTS[act]} or more in team {team.name} for this. Ask its owner.")
