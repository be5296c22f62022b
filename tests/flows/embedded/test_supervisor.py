"""The supervisor with real, small processes: order, deaths, refusals, ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.embedded.cleanup import leftovers
from flows.embedded.layout import ROOT
from flows.processes import ProcessId, read_json

DEADLINE_S = 30.0


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
    return value


class Small:
    """A small stack in a process of its own."""

    def __init__(self, data: Path, *, port: str = "-", mode: str = "plain") -> None:
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.embedded.small", "up", str(data), port, mode],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_up(self) -> "Small":
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("up on port"):
                wait_for("the agent and its rank", lambda: len(self.agent()) == 2)
                return self
        raise AssertionError(self.process.communicate()[1])

    def events(self) -> list[str]:
        path = self.data / "events"
        return path.read_text().splitlines() if path.exists() else []

    def children(self) -> dict[str, ProcessId]:
        rows = read_json(self.data / "run" / "processes.json") or {}
        return {name: ProcessId(**row) for name, row in rows.items()}

    def agent(self) -> list[ProcessId]:
        """The agent and its rank, when they live."""
        for path in (self.data / "jobs").glob("*/attempts/*/nodes/*/agent.json"):
            row = json.loads(path.read_text())
            pair = [ProcessId(row["pid"], row["start_ticks"], row["boot_id"]), ProcessId.of(row["rank"])]
            return [p for p in pair if p is not None and p.alive()]
        return []

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float, str]:
        """Exit status, seconds, standard error."""
        begin = time.monotonic()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, time.monotonic() - begin, errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Small]]:
    started: list[Small] = []

    def make(**options: str) -> Small:
        started.append(Small(tmp_path / "data", **options))
        return started[-1]

    yield make
    for small in started:
        if small.process.poll() is None:
            small.end()
    assert leftovers(tmp_path / "data") == []


def test_what_comes_after_starts_when_what_it_needs_serves(start: Callable[..., Small]) -> None:
    small = start().until_up()
    events = small.events()
    assert events.index("store serves") < events.index("migrate starts") < events.index("web starts")
    assert set(small.children()) == {"store", "web", "starter"}, "a command that has ended is nobody's child"


def test_a_child_that_dies_is_started_again_and_the_cause_is_said(start: Callable[..., Small]) -> None:
    small = start().until_up()
    old = small.children()["web"]
    os.kill(old.pid, signal.SIGKILL)
    wait_for("another web", lambda: small.children().get("web") not in (None, old))
    assert small.process.stdout is not None
    assert (
        small.process.stdout.readline()
        == f"web (pid {old.pid}) ended with signal SIGKILL; starting it again in 0.1 s\n"
    )
    assert small.children()["store"].alive(), "its neighbours are left alone"


def test_a_child_that_dies_again_and_again_is_waited_for_longer_each_time(start: Callable[..., Small]) -> None:
    small = start().until_up()
    assert small.process.stdout is not None
    for pause in ("0.1", "0.2", "0.4"):
        web = wait_for("web to live", lambda: p if (p := small.children().get("web")) and p.alive() else None)
        os.kill(web.pid, signal.SIGKILL)
        assert small.process.stdout.readline().endswith(f"starting it again in {pause} s\n")


def test_a_command_that_fails_stops_the_start_with_its_own_last_line(start: Callable[..., Small]) -> None:
    small = start(mode="fail")
    _, errors = small.process.communicate(timeout=DEADLINE_S)
    assert small.process.returncode == 1
    [line] = errors.splitlines()
    assert line.startswith("refused: migrate failed: the migrate of this test is made to fail (see ")
    assert "web starts" not in small.events()


def test_everything_dies_with_a_supervisor_that_is_killed_but_the_agents(start: Callable[..., Small]) -> None:
    small = start().until_up()
    children, agents = small.children(), small.agent()
    small.process.kill()
    small.process.communicate()
    wait_for("the children's end", lambda: not any(child.alive() for child in children.values()))
    assert all(process.alive() for process in agents)
    again = start().until_up()
    assert not any(process.alive() for process in agents), "the next start clears agents and ranks away"
    assert again.children().keys() == children.keys()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_end_is_quick_in_order_and_leaves_nothing(start: Callable[..., Small], number: int) -> None:
    small = start().until_up()
    everything = [*small.children().values(), *small.agent()]
    assert len(everything) == 5
    code, seconds, errors = small.end(number)
    assert (code, errors) == (0, "")
    assert seconds < 5
    assert not any(process.alive() for process in everything)
    assert [e for e in small.events() if e.endswith("leaves")] == ["web leaves", "store leaves"]
    assert not (small.data / "run" / "processes.json").exists()


def test_a_child_that_does_not_listen_is_made_to_leave(start: Callable[..., Small]) -> None:
    small = start(mode="stubborn").until_up()
    web = small.children()["web"]
    code, seconds, _ = small.end()
    assert code == 0
    assert seconds < 5
    assert not web.alive()


def test_it_can_be_stopped_while_it_starts(start: Callable[..., Small]) -> None:
    small = start(mode="stuck")
    store = wait_for("the store to be started", lambda: small.children().get("store"))
    code, seconds, _ = small.end(signal.SIGINT)
    assert code == 130
    assert seconds < 5
    assert not store.alive()


def test_a_second_supervisor_on_one_folder_is_refused_and_harms_nobody(start: Callable[..., Small]) -> None:
    small = start().until_up()
    everything = [*small.children().values(), *small.agent()]
    second = start()
    _, errors = second.process.communicate(timeout=DEADLINE_S)
    assert second.process.returncode == 1
    [line] = errors.splitlines()
    assert line.startswith(f"refused: A supervisor (pid {small.process.pid}) runs on {small.data} already.")
    assert small.process.poll() is None
    assert all(process.alive() for process in everything)


def test_a_port_in_use_is_refused_by_name_before_anything_starts(start: Callable[..., Small]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        small = start(port=str(port))
        _, errors = small.process.communicate(timeout=DEADLINE_S)
    assert small.process.returncode == 1
    [line] = errors.splitlines()
    assert line.startswith(f"refused: Port {port} is in use by ")
    assert f"(pid {os.getpid()})" in line
    assert small.events() == []


def test_a_restarted_stack_has_its_old_address(start: Callable[..., Small]) -> None:
    first = start().until_up()
    ports = read_json(first.data / "ports.json")
    first.end()
    again = start().until_up()
    assert read_json(again.data / "ports.json") == ports
