"""What our management commands share: refusals become one line and exit status 1."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.management.base import CommandError

from portal.errors import PortalError


def refusals(handle: Callable[..., Any]) -> Callable[..., Any]:
    """A command's ``handle`` whose refusals are printed as one sentence, without a traceback."""

    @wraps(handle)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return handle(*args, **kwargs)
        except PortalError as error:
            raise CommandError(error.detail) from None

    return wrapped
