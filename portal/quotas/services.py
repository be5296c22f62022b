"""Changes to queues and limits: by an administrator, versioned, each with its before and after."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.accounts.models import Membership, Role, Team, User
from portal.accounts.policy import require
from portal.errors import FieldError, InvalidSpec, PortalError, VersionConflict
from portal.events.services import event_record
from portal.quotas.models import Cohort, Queue, Quota

MAX_LIMIT = 1_000_000


@dataclass(frozen=True)
class LimitChange:
    """New limits of one quota; None for a borrow or lend limit means no limit."""

    nominal: int
    borrow_limit: int | None
    lend_limit: int | None

    def faults(self) -> list[FieldError]:
        """What is wrong with the numbers."""
        found = []
        for name in ("nominal", "borrow_limit", "lend_limit"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LIMIT:
                found.append(FieldError(f"/{name}", "out-of-range", f"{name} must be between 0 and {MAX_LIMIT}."))
        return found


def limits_json(quota: Quota) -> dict[str, Any]:
    """The limits as events and answers show them."""
    return {
        "nominal": quota.nominal,
        "borrow_limit": quota.borrow_limit,
        "lend_limit": quota.lend_limit,
    }


@transaction.atomic
def quota_change(
    *, quota: Quota, change: LimitChange, user: User, version: int, now: datetime, reason: str = ""
) -> Quota:
    """The quota with its new limits. Running jobs stay: lowering a limit only keeps new ones from starting."""
    require(user, "quota.edit")
    faults = change.faults()
    if faults:
        raise InvalidSpec(faults[0].detail, errors=faults)
    before = limits_json(quota)
    values = {
        "nominal": change.nominal,
        "borrow_limit": change.borrow_limit,
        "lend_limit": change.lend_limit,
    }
    changed = Quota.objects.filter(pk=quota.pk, version=version).update(**values, version=version + 1)
    if changed != 1:
        raise VersionConflict(
            f"The quota of {quota.owner_name} for {quota.gpu_type} was changed by somebody else. Look at it again."
        )
    quota.refresh_from_db()
    event_record(subject=quota, verb="change", before=before, after=values, reason=reason, at=now, actor=user.username)
    return quota


@transaction.atomic
def team_create(*, name: str, limits: dict[str, LimitChange], cohort: str | None, now: datetime, actor: str) -> Team:
    """A team with one queue of the same name and its limits. An existing team gets the limits that it lacks."""
    faults = [fault for change in limits.values() for fault in change.faults()]
    if faults:
        raise InvalidSpec(faults[0].detail, errors=faults)
    for word in (name, *([cohort] if cohort else []), *limits):
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?", word):
            raise PortalError(f"{word!r} is no name: small letters, digits and hyphens, at most 60.")
    team, made = Team.objects.get_or_create(name=name, defaults={"created_at": now})
    group = Cohort.objects.get_or_create(name=cohort)[0] if cohort else None
    queue, _ = Queue.objects.get_or_create(name=name, team=team, defaults={"cohort": group})
    for gpu_type, change in limits.items():
        quota, new = Quota.objects.get_or_create(
            queue=queue,
            gpu_type=gpu_type,
            defaults={
                "nominal": change.nominal,
                "borrow_limit": change.borrow_limit,
                "lend_limit": change.lend_limit,
            },
        )
        if new:
            event_record(subject=quota, verb="create", after=limits_json(quota), at=now, actor=actor, team_id=team.pk)
    if made:
        event_record(subject=team, verb="create", after=name, at=now, actor=actor)
    return team


@transaction.atomic
def member_set(*, team: Team, username: str, role: str, now: datetime, actor: str) -> Membership:
    """The user's membership with this role."""
    user = User.objects.filter(username=username).first()
    if user is None:
        raise PortalError(f"There is no user {username!r}. Make one with 'manage.py user_create'.")
    if role not in Role.values:
        raise PortalError(f"A role is one of {', '.join(Role.values)}.")
    row, _ = Membership.objects.update_or_create(team=team, user=user, defaults={"role": role})
    event_record(subject=team, verb="member", after={username: role}, at=now, actor=actor, team_id=team.pk)
    return row
