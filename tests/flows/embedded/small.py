"""A small stack of real processes under the real supervisor: ``python -m tests.flows.embedded.small up DATA …``.

Its processes are this file too: they write what happens to them into ``DATA/events``, one line each.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from flows.embedded.cleanup import STACK_VARIABLE
from flows.embedded.layout import CannotStart, Layout
from flows.embedded.supervisor import Interrupted
from flows.embedded.unit import Unit
from flows.embedded.up import stack_on
from flows.processes import ATTEMPT_VARIABLE, ProcessId, die_with_parent


def small_units(layout: Layout, mode: str) -> list[Unit]:
    """A server that takes a while, a command that needs it, a second server after both, and a starter of agents."""
    environment = {"PATH": os.environ["PATH"], "SMALL": str(layout.data), STACK_VARIABLE: str(layout.data)}

    def argv(kind: str, name: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "tests.flows.embedded.small", kind, name)

    def serves(name: str) -> bool:
        return (layout.data / f"{name}.ready").exists()

    first = "stuck" if mode == "stuck" else "server"
    return [
        Unit("store", argv(first, "store"), environment, ready=lambda: serves("store"), leaves=2),
        Unit(
            "migrate", argv("fail" if mode == "fail" else "once", "migrate"), environment, after=("store",), once=True
        ),
        Unit(
            "web",
            argv("stubborn" if mode == "stubborn" else "server", "web"),
            environment,
            after=("store", "migrate"),
            ready=lambda: serves("web"),
            grace_s=0.5,
        ),
        Unit("starter", argv("starter", "starter"), environment, after=("migrate",), leaves=0, grace_s=0.0),
    ]


def up(data: Path, port: int | None, mode: str) -> int:
    """The stack, with what ``up`` does on refusals and signals."""

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        with stack_on(data, port=port, say=say, units=lambda layout: small_units(layout, mode)) as (layout, supervisor):
            supervisor.start()
            say(f"up on port {layout.port}")
            supervisor.watch()
    except CannotStart as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    except Interrupted:
        return 130
    return 0


def tell(text: str) -> None:
    """One line into the events, whole even when several write."""
    descriptor = os.open(Path(os.environ["SMALL"]) / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def child(kind: str, name: str) -> int:
    """What one process of the stack does."""
    ready = Path(os.environ["SMALL"]) / f"{name}.ready"
    ready.unlink(missing_ok=True)
    tell(f"{name} starts")
    if kind in ("once", "fail"):
        print(f"the {name} of this test is made to fail" if kind == "fail" else "fine", flush=True)
        return 1 if kind == "fail" else 0
    leaving = False

    def leave(*_: object) -> None:
        nonlocal leaving
        leaving = True

    signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "stubborn" else leave)
    if kind == "starter":
        start_agent()
    if kind != "stuck":
        tell(f"{name} serves")
        ready.touch()
    while not leaving:
        time.sleep(0.02)
    tell(f"{name} leaves")
    return 0


def start_agent() -> None:
    """A node agent in a session of its own, with a rank: neither is in anybody's process group."""
    subprocess.Popen(
        [sys.executable, "-m", "tests.flows.embedded.small", "agent", "att_small"],
        env={"PATH": os.environ["PATH"], "SMALL": os.environ["SMALL"], ATTEMPT_VARIABLE: "att_small"},
        start_new_session=True,
    )


def agent(attempt: str) -> int:
    """Writes who it is, starts one rank, lives until it is told to go."""
    folder = Path(os.environ["SMALL"]) / "jobs" / "job_small" / "attempts" / attempt / "nodes" / "node-1"
    folder.mkdir(parents=True, exist_ok=True)
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        preexec_fn=die_with_parent(os.getpid()),
        start_new_session=True,
    )
    me = ProcessId.of(os.getpid())
    assert me is not None
    (folder / "agent.json.new").write_text(json.dumps(me.as_json() | {"rank": rank.pid}))
    (folder / "agent.json.new").replace(folder / "agent.json")
    rank.wait()
    return 0


if __name__ == "__main__":
    what, name, *rest = sys.argv[1:]
    if what == "up":
        sys.exit(up(Path(name), int(rest[0]) if rest[0] != "-" else None, rest[1]))
    sys.exit(agent(name) if what == "agent" else child(what, name))
