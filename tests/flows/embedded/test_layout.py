"""The data folder: secrets, the broker's socket, ports, logs that stay small."""

import stat
import subprocess
from pathlib import Path

import pytest

from flows.embedded.children import (
    DEFAULT_FLOW_LIMIT,
    base_environment,
    flow_environment,
    portal_environment,
    stack_units,
)
from flows.embedded.layout import MAX_SOCKET_PATH, Layout
from flows.embedded.ports import free_port, port_is_free, ports_of
from flows.embedded.supervisor import log_trim
from flows.embedded.unit import Unit, check_units
from flows.processes import wait_until
from flows.settings import FlowSettings


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "data", 8000, 4200)
    made.data.mkdir()
    made.make_folders()
    return made


def secrets_of(layout: Layout) -> dict[str, str]:
    return {p.name: p.read_text().strip() for p in (layout.data / "secrets").iterdir() if p.name != "valkey.conf"}


def test_secrets_are_made_once_and_only_their_owner_reads_them(layout: Layout) -> None:
    before = secrets_of(layout)
    layout.make_folders()
    assert secrets_of(layout) == before
    assert len(set(before.values())) == len(before) == 4
    stack_units(layout)
    for path in (layout.data / "secrets").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_no_secret_stands_in_an_argument_list_or_where_it_is_not_needed(layout: Layout) -> None:
    secrets = secrets_of(layout)
    for unit in stack_units(layout):
        assert not any(text in " ".join(unit.argv) for text in secrets.values()), unit.name
        assert not any(text in repr(unit) for text in secrets.values()), unit.name

    def known(environment: dict[str, str]) -> set[str]:
        return {name for name, text in secrets.items() if any(text in value for value in environment.values())}

    assert known(base_environment(layout)) == set()
    assert known(flow_environment(layout)) == {"prefect"}
    assert known(portal_environment(layout)) == set(secrets)


@pytest.mark.parametrize("depth", [1, 12], ids=["short-path", "path-too-long-for-a-socket"])
def test_the_broker_answers_on_a_socket_that_only_its_owner_reaches(tmp_path: Path, depth: int) -> None:
    layout = Layout(tmp_path / "/".join(['a "quoted" name'] * depth), 8000, 4200)
    layout.data.mkdir(parents=True)
    layout.make_folders()
    assert len(str(layout.socket_path)) <= MAX_SOCKET_PATH
    assert layout.data in layout.socket_path.parents or depth > 1
    broker = next(unit for unit in stack_units(layout) if unit.name == "broker")
    assert broker.ready is not None
    process = subprocess.Popen(broker.argv, env=dict(broker.environment), stdout=subprocess.DEVNULL)
    try:
        assert wait_until(broker.ready, timeout_s=10)
        assert stat.S_IMODE(layout.socket_path.stat().st_mode) == 0o700
        assert ports_of([process.pid]) == {}
    finally:
        process.kill()
        process.wait()
    assert not broker.ready()


def test_units_stand_after_what_they_need() -> None:
    one, two = Unit("one", (), {}), Unit("two", (), {}, after=("one",))
    check_units([one, two])
    with pytest.raises(AssertionError):
        check_units([two, one])
    with pytest.raises(AssertionError):
        check_units([one, one])


def test_a_port_is_free_until_somebody_listens_there() -> None:
    import socket

    port = free_port()
    assert port_is_free(port)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen(1)
        assert not port_is_free(port)


def test_a_log_that_grows_too_big_keeps_its_end_and_its_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"".join(b"line %06d\n" % number for number in range(1000)))
        log_trim(path, most=20_000)
        assert path.stat().st_size == 12_000, "below the limit nothing happens"
        log_trim(path, most=4_000)
        writer.write(b"after\n")
    assert path.read_bytes() == b"after\n"
    kept = (tmp_path / "web.log.1").read_bytes()
    assert len(kept) == 2_000
    assert kept.endswith(b"line 000999\n")


def test_the_worker_runs_as_many_flows_as_the_settings_say(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FlowSettings.model_fields["flow_limit"].default == DEFAULT_FLOW_LIMIT
    worker = next(unit for unit in stack_units(layout) if unit.name == "prefect-worker")
    assert worker.argv[worker.argv.index("--limit") + 1] == str(DEFAULT_FLOW_LIMIT)
