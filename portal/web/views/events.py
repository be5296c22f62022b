"""Events as lines of a feed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Q
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.events.models import Event
from portal.jobs.words import CODES, state_word

# What people want to read; the steps of attempts between them stand on the job's page.
FEED: Final = Q(subject_kind="job") | Q(subject_kind__in=("node", "quota", "team")) | Q(verb="restart_in_place")

VERBS: Final[dict[tuple[str, str], str | Promise]] = {
    ("job", "submit"): _("{actor} submitted {name}"),
    ("job", "admit"): _("{name} was given GPUs on {reason}"),
    ("job", "run"): _("{name} runs"),
    ("job", "interrupt"): _("{name} was interrupted ({reason})"),
    ("job", "hold"): _("{actor} holds {name}"),
    ("job", "release"): _("{actor} released {name}"),
    ("job", "cancel"): _("{actor} cancelled {name}"),
    ("job", "finish_cancel"): _("{name} has stopped"),
    ("job", "succeed"): _("{name} succeeded"),
    ("job", "fail"): _("{name} failed ({reason})"),
    ("attempt", "restart_in_place"): _("{name} was started again in place ({reason})"),
    ("node", "add"): _("Node {name} was added"),
    ("node", "change"): _("Node {name} was changed in the inventory"),
    ("node", "down"): _("Node {name} is down ({reason})"),
    ("node", "set_ready"): _("{actor} put node {name} back into service"),
    ("node", "set_cordoned"): _("{actor} cordoned node {name} ({reason})"),
    ("node", "set_draining"): _("{actor} drains node {name} ({reason})"),
    ("quota", "change"): _("{actor} changed a quota {change}"),
    ("quota", "create"): _("{actor} made a quota"),
    ("team", "create"): _("{actor} made team {name}"),
    ("team", "member"): _("{actor} changed the members of a team"),
}


@dataclass(frozen=True)
class Line:
    """One line of the feed."""

    seq: int
    at: datetime
    text: str
    link: str


def feed_line(event: Event, subject_id: str, names: Mapping[str, str]) -> Line:
    """The event in words, with the address of what it is about."""
    about_job = event.subject_kind in ("job", "attempt")
    name = (
        names.get(subject_id, subject_id) if about_job else str(event.after if event.verb == "create" else subject_id)
    )
    template = str(VERBS.get((event.subject_kind, event.verb), "")) or f"{event.verb} {event.subject_kind} {{name}}"
    reason = str(CODES.get(event.reason, event.reason.replace("_", " ") if about_job else event.reason)) or "–"
    text = template.format(actor=event.actor, name=name, reason=reason, change=_change(event))
    link = (
        reverse("job", args=[subject_id])
        if about_job
        else reverse("cluster" if event.subject_kind == "node" else "quota")
    )
    return Line(event.seq, event.at, text, link)


def _change(event: Event) -> str:
    before, after = event.before, event.after
    if not isinstance(before, dict) or not isinstance(after, dict):
        return state_word(str(after))
    changed = [f"{key} {before.get(key)} → {value}" for key, value in after.items() if before.get(key) != value]
    return ", ".join(changed).replace("None", "∞")
