"""``python -m flows.embedded up``: the stack on a data folder until somebody stops it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from flows.embedded.children import stack_units
from flows.embedded.cleanup import claim, clear
from flows.embedded.layout import CannotStart, Layout, layout_open
from flows.embedded.supervisor import Say, Supervisor, stop_on_signals
from flows.embedded.unit import Unit


@contextmanager
def stack_on(
    data: Path,
    *,
    port: int | None,
    say: Say,
    units: Callable[[Layout], list[Unit]],
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Layout, Supervisor]]:
    """A stack that is not started yet; at the end of the block nothing of it is left.

    Refused before anything is touched when another supervisor has the folder or the port is taken.
    ``prepare`` runs when the folder is ours and what a killed supervisor left is gone.
    """
    data = data.resolve()
    try:
        data.mkdir(parents=True, exist_ok=True)
        claim(data)  # until this process ends
    except OSError as error:
        raise CannotStart(f"{data} cannot be used: {error.strerror}. Choose a folder that you can write.") from None
    left = clear(data, grace_s=0.0)
    if left:
        say(f"clearing away {left} processes that a killed supervisor left")
    prepare()
    layout = layout_open(data, port)
    layout.make_folders()
    supervisor = Supervisor(data, units(layout), say=say)
    stop_on_signals(supervisor)
    try:
        yield layout, supervisor
    finally:
        supervisor.stop()


def run_up(data: Path, *, port: int | None, inventory: Path | None, say: Say) -> int:
    """Start, watch, stop."""
    if inventory is not None and not inventory.is_file():
        raise CannotStart(f"There is no inventory file {inventory}. Give a YAML or JSON file with the nodes.")
    units = partial(stack_units, inventory=inventory and inventory.resolve())
    with stack_on(data, port=port, say=say, units=units) as (layout, supervisor):
        supervisor.start()
        say(f"the portal is at {layout.portal_url}; Ctrl-C stops everything")
        supervisor.watch()
        say("stopping")
    return 0
