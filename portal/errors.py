"""Refusals that a person reads: each has a code that never changes and a sentence that helps."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one part of a request: a JSON pointer to it, a code and a sentence."""

    pointer: str
    code: str
    detail: str

    def as_json(self) -> dict[str, str]:
        """The form that REST shows."""
        return {"pointer": self.pointer, "code": self.code, "detail": self.detail}


class PortalError(Exception):
    """A request that is refused. ``code`` and ``status`` are fixed; the sentence is for people."""

    code = "refused"
    status = 422
    title = "The request was refused"

    def __init__(self, detail: str, *, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)


class NotFound(PortalError):
    """Nothing of this id that the caller may see."""

    code = "not-found"
    status = 404
    title = "Not found"


class Forbidden(PortalError):
    """The caller is known and may not do this."""

    code = "forbidden"
    status = 403
    title = "Not allowed"


class BadRequest(PortalError):
    """The request cannot be read."""

    code = "bad-request"
    status = 400
    title = "The request cannot be read"


class InvalidSpec(PortalError):
    """A job spec with faults: all of them, each with its place."""

    code = "invalid-spec"
    title = "The job cannot be accepted"


class InvalidTransition(PortalError):
    """The object is in a state in which this act makes no sense."""

    code = "invalid-transition"
    status = 409
    title = "Not possible in this state"


class VersionConflict(PortalError):
    """The object was changed by somebody else since the caller read it."""

    code = "version-conflict"
    status = 412
    title = "Changed by somebody else"


class VersionRequired(PortalError):
    """A change of this kind must say which version it was made for."""

    code = "version-required"
    status = 428
    title = "If-Match is required"
