"""One part of the stack, as the supervisor sees it: a command, what must be there before, a sign of readiness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Unit:
    """A process that stays, or with ``once`` a command that must end well before what comes ``after`` it.

    ``ready`` tells whether a process serves; without it, living is enough. ``done`` is called when a ``once``
    command has ended well. At the end units with a small ``leaves`` go first, and each may take ``grace_s``.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    after: tuple[str, ...] = ()
    once: bool = False
    ready: Callable[[], bool] | None = None
    done: Callable[[], None] | None = None
    leaves: int = 1
    grace_s: float = 1.5


def check_units(units: Sequence[Unit]) -> None:
    """Names are unique, and whatever a unit comes after stands before it in the list: no circles."""
    known: set[str] = set()
    for unit in units:
        assert unit.name not in known, f"two units are called {unit.name}"
        assert known.issuperset(unit.after), f"{unit.name} comes after something that does not stand before it"
        known.add(unit.name)
