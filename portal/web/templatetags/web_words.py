"""Refusals in the reader's language: the heading is translated by its code, the sentence stands as it was written."""

from typing import Final

from django import template
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.errors import PortalError
from portal.web.refusals import told

register = template.Library()
register.filter("told", told)

TITLES: Final[dict[str, str | Promise]] = {
    "refused": _("The request was refused"),
    "not-found": _("Not found"),
    "forbidden": _("Not allowed"),
    "bad-request": _("The request cannot be read"),
    "invalid-spec": _("The job cannot be accepted"),
    "invalid-transition": _("Not possible in this state"),
    "moved": _("Not possible in this state"),
    "version-conflict": _("Changed by somebody else"),
    "version-required": _("The version is missing"),
    "quota-exceeded": _("The job can never fit its quota"),
    "idempotency-key-reused": _("This form was sent before"),
    "database-away": _("The database does not answer"),
    "too-large": _("The request is too large"),
}


@register.filter
def refusal_title(error: PortalError) -> str:
    """The heading of a refusal."""
    return str(TITLES.get(error.code, error.title))
