"""The node agent with real ranks and a real HTTP server as its portal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.processes import ProcessId, wait_until
from tests.flows.conftest import MakeGang


def test_a_gang_of_two_nodes_runs_to_its_end_and_its_agents_leave(make_gang: MakeGang) -> None:
    gang = make_gang("steps=5", nodes=2, ranks_per_node=2)
    gang.launch()
    gang.portal.wait(gang.portal.finished)
    gang.wait_gone()
    portal = gang.portal
    assert [portal.rank(r)["exit_code"] for r in range(4)] == [0, 0, 0, 0]
    assert {r["rank"] for r in portal.records if r["k"] == "start"} == {0, 1, 2, 3}
    assert {r["status"] for r in portal.records if r["k"] == "exit"} == {"finished"}
    assert [p[0] for p in portal.points["loss"]] == [1, 2, 3, 4, 5]
    assert all(point[2] > 0 for point in portal.points["tokens_per_s"])
    assert portal.samples
    assert 0 <= portal.samples[0]["memory_used_bytes"] <= portal.samples[0]["memory_total_bytes"]


def test_windows_of_a_rank_cover_its_life_without_gap_or_overlap(make_gang: MakeGang) -> None:
    gang = make_gang("steps=150", "step_s=0.02", ranks_per_node=2)
    gang.launch()
    gang.portal.wait(gang.portal.finished)
    gang.wait_gone()
    for rank in (0, 1):
        windows = gang.portal.windows_of(rank, 0)
        start = next(r for r in gang.portal.records if r["k"] == "start" and r["rank"] == rank)
        assert len(windows) > 1
        assert windows[0]["from_ns"] == start["t_ns"]
        assert [w["n"] for w in windows] == list(range(len(windows)))
        for before, after in zip(windows, windows[1:], strict=False):
            assert before["to_ns"] == after["from_ns"]
        for window in windows:
            length = (window["to_ns"] - window["from_ns"]) / 1e9
            assert sum(window["seconds"].values()) == pytest.approx(length, abs=1e-6)
        assert sum(w["num_steps"] for w in windows) == 150
        assert windows[-1]["to_ns"] == gang.portal.rank(rank)["t_ns"]


def test_a_killed_rank_is_reported_at_once_and_the_gang_starts_again(make_gang: MakeGang) -> None:
    gang = make_gang("steps@0=100000", "steps@1=100000", "steps=5", ranks_per_node=2)
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.all_running() and portal.points.get("loss"))
    killed_ns = time.time_ns()
    os.kill(portal.rank(1)["pid"], signal.SIGKILL)
    portal.wait(lambda: portal.rank(1)["state"] == "exited")
    assert portal.rank(1)["signal"] == "SIGKILL"
    assert (portal.seen_at_ns[(0, 1)] - killed_ns) / 1e9 < 2.0
    portal.wait(portal.finished)
    assert portal.restart == 1
    # The survivor of the first gang was killed before the next one began.
    assert portal.rank(0, restart=0)["exit_code"] == -9
    lost = sum(w["seconds"].get("recomputed", 0) for w in portal.windows_of(0, 0))
    assert lost > 0, "the step in flight came to nothing"
    again = sum(w["seconds"].get("recomputed", 0) for w in portal.windows_of(0, 1))
    assert again > 0, "steps that were done before are recomputed work"


def test_when_the_agent_is_killed_its_ranks_die_with_it(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", ranks_per_node=2)
    gang.launch()
    portal = gang.portal
    portal.wait(portal.all_running)
    os.kill(gang.agent_pid(), signal.SIGKILL)
    gang.wait_gone(timeout_s=2.0)


def test_an_agent_after_a_killed_one_goes_on_with_records_and_numbers(make_gang: MakeGang) -> None:
    gang = make_gang("steps@0=100000", "steps=5")
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: len(portal.points.get("loss", [])) > 20)
    os.kill(gang.agent_pid(), signal.SIGKILL)
    gang.wait_gone()
    with portal.lock:
        portal.again()
        last_seq = portal.last_seq["n1"]
    gang.launch()
    portal.wait(portal.finished)
    steps = [p[0] for p in portal.points["loss"]]
    first_life = steps[: steps.index(max(steps)) + 1]
    assert first_life == list(range(1, max(steps) + 1)), "each step once, none missing"
    assert portal.rank(0, restart=0)["exit_code"] == -9
    windows = portal.windows_of(0, 0)
    for before, after in zip(windows, windows[1:], strict=False):
        assert before["to_ns"] == after["from_ns"]
    assert portal.last_seq["n1"] > last_seq


def test_an_agent_of_an_older_generation_kills_its_ranks_and_leaves(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", ranks_per_node=2)
    gang.launch()
    portal = gang.portal
    portal.wait(portal.all_running)
    with portal.lock:
        portal.launch("n1")
    gang.wait_gone(timeout_s=3.0)


def test_an_agent_of_an_attempt_that_is_over_leaves(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000")
    gang.launch()
    portal = gang.portal
    portal.wait(portal.all_running)
    with portal.lock:
        portal.state = "over"
    gang.wait_gone(timeout_s=3.0)


def test_ranks_train_on_while_the_portal_is_away_and_nothing_is_lost(make_gang: MakeGang) -> None:
    gang = make_gang("steps=200", "step_s=0.02")
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.points.get("loss"))
    pid = portal.rank(0)["pid"]
    portal.close()
    spool = gang.folder() / "spool"
    assert wait_until(lambda: len(list(spool.glob("*.json"))) >= 2, timeout_s=10)
    assert ProcessId.of(pid) is not None
    portal.open()
    portal.wait(portal.finished)
    gang.wait_gone()
    assert [p[0] for p in portal.points["loss"]] == list(range(1, 201))
    assert not list(spool.glob("*.json"))


def test_a_portal_in_trouble_fences_nobody(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100", "step_s=0.02")
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.points.get("loss"))
    with portal.lock:
        portal.failing = True
        count = len(portal.reports)
    time_before = time.monotonic()
    assert wait_until(lambda: time.monotonic() - time_before > 1.0, timeout_s=5)
    assert len(portal.reports) == count
    with portal.lock:
        portal.failing = False
    portal.wait(portal.finished)
    assert [p[0] for p in portal.points["loss"]] == list(range(1, 101))


def test_a_stop_is_obeyed_by_ranks_that_listen(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", ranks_per_node=2)
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.all_running() and portal.points.get("loss"))
    with portal.lock:
        portal.phase, portal.stop = "stop", {"grace_s": 20.0, "reason": "cancelled"}
    portal.wait(lambda: [portal.rank(r).get("exit_code") for r in (0, 1)] == [90, 90], timeout_s=5)
    control = (gang.folder() / "restart_000" / "control.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in control] == ["stop"]


def test_a_rank_that_ignores_the_stop_is_killed_when_its_grace_is_over(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", "ignore_term=1")
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.all_running() and portal.points.get("loss"))
    with portal.lock:
        portal.phase, portal.stop = "stop", {"grace_s": 0.5, "reason": "cancelled"}
    portal.wait(lambda: portal.rank(0)["state"] == "exited", timeout_s=5)
    assert portal.rank(0)["exit_code"] == -9


@pytest.mark.parametrize("leftover", ["child=600", "orphan=600"])
def test_what_a_rank_has_started_dies_with_it(make_gang: MakeGang, leftover: str) -> None:
    gang = make_gang("steps=3", leftover)
    gang.launch()
    gang.portal.wait(gang.portal.finished)
    gang.wait_gone()


def test_children_of_a_rank_die_while_its_peer_lives(make_gang: MakeGang) -> None:
    gang = make_gang("steps@0=100000", "steps=3", "child=600", ranks_per_node=2)
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.rank(1).get("state") == "exited")

    def sleepers() -> int:
        commands = [Path(f"/proc/{pid}/cmdline") for pid in gang.pids()]
        return sum(path.read_bytes().startswith(b"sleep") for path in commands if path.exists())

    assert wait_until(lambda: sleepers() == 1, timeout_s=5), "rank 0's child lives, rank 1's does not"
    assert portal.rank(0)["state"] == "running"


def test_a_save_and_a_dump_are_passed_on_once(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", "dump=1")
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.all_running() and portal.points.get("loss"))
    with portal.lock:
        portal.save_id, portal.dump_id = 2, 1
    stderr = gang.folder() / "restart_000" / "rank_0" / "stderr.log"
    assert wait_until(lambda: "most recent call first" in stderr.read_text(), timeout_s=5)
    count = len(portal.reports)
    portal.wait(lambda: len(portal.reports) > count + 5)
    control = (gang.folder() / "restart_000" / "control.jsonl").read_text().splitlines()
    assert [(json.loads(x)["kind"], json.loads(x)["id"]) for x in control] == [("save", 2), ("dump", 1)]
    assert portal.rank(0)["state"] == "running"


def test_a_dump_does_not_kill_a_program_that_knows_no_such_signal(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000")
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.all_running() and portal.points.get("loss"))
    with portal.lock:
        portal.dump_id = 1
        count = len(portal.reports)
    portal.wait(lambda: len(portal.reports) > count + 5)
    assert portal.rank(0)["state"] == "running"


def test_the_tail_of_a_failing_rank_is_told_with_every_report_of_its_end(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", "fail_at@0=3", "stderr@0=ValueError: told to")
    gang.portal.max_restarts = 0
    gang.launch()
    portal = gang.portal
    portal.wait(lambda: portal.rank(0).get("state") == "exited")
    rows = [r for r in portal.reports if any(x["state"] == "exited" for x in r["ranks"])]
    assert all("ValueError: told to" in r["tails"]["0"] for r in rows)


def test_a_port_that_was_taken_is_a_problem_of_its_own(make_gang: MakeGang) -> None:
    message = "The server socket has failed to listen. port: PORT, name: EADDRINUSE"
    gang = make_gang("steps=100000", "fail_at@0=1", f"stderr@0={message}", "steps=3")
    gang.launch()
    portal = gang.portal
    portal.wait(portal.finished)
    assert {p["code"] for p in portal.problems} == {"port_in_use"}
    assert portal.restart == 1, "one problem, one restart"


@pytest.mark.parametrize(
    ("workload", "code"),
    [
        ({"argv": ["no-such-program"], "working_dir": "/"}, "entry_point_missing"),
        ({"argv": ["true"], "working_dir": "/no/such/folder"}, "working_dir_missing"),
    ],
)
def test_a_program_that_cannot_be_started_is_told(make_gang: MakeGang, workload: dict, code: str) -> None:
    gang = make_gang(workload={"kind": "command", **workload})
    gang.portal.max_restarts = 0
    gang.launch()
    gang.portal.wait(lambda: gang.portal.problems)
    assert gang.portal.problems[0]["code"] == code
    gang.wait_gone()


def test_a_program_without_records_is_followed_by_its_process(make_gang: MakeGang) -> None:
    gang = make_gang("silent=0.3", ranks_per_node=2)
    gang.launch()
    gang.portal.wait(gang.portal.finished)
    gang.wait_gone()
    windows = gang.portal.windows_of(0, 0)
    assert sum(w["seconds"]["productive"] for w in windows) >= 0.3


def test_a_rank_finds_its_place_and_no_secret_in_its_environment(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "TRAINYARD_SECRET_KEY",
        "PREFECT_API_AUTH_STRING",
        "TRAINYARD_FLOW_TOKEN_FILE",
        "DATABASE_URL",
    ):
        monkeypatch.setenv(name, "geheim")
    gang = make_gang("steps=1", "show_environment=1", nodes=2, ranks_per_node=2)
    gang.launch()
    portal = gang.portal
    portal.wait(portal.finished)
    gang.wait_gone()
    text = (gang.folder("n2") / "restart_000" / "rank_3" / "stdout.log").read_text()
    values = json.loads(text.splitlines()[0])
    assert "geheim" not in text
    assert not set(portal.tokens) & set(values.values())
    assert (values["RANK"], values["LOCAL_RANK"], values["GROUP_RANK"]) == ("3", "1", "1")
    assert (values["WORLD_SIZE"], values["LOCAL_WORLD_SIZE"]) == ("4", "2")
    assert values["MASTER_ADDR"] == "127.0.0.1"
    assert 1024 < int(values["MASTER_PORT"]) < 65536
    assert values["TRAINYARD_FENCE"] == f"{portal.attempt}:0"
    assert values["CUDA_VISIBLE_DEVICES"] == ""
    assert oct((gang.folder() / "launch.json").stat().st_mode & 0o777) == "0o600"
    assert oct((gang.folder() / "token").stat().st_mode & 0o777) == "0o600"


def test_of_two_agents_in_one_folder_one_works(make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000")
    gang.launch()
    gang.portal.wait(gang.portal.all_running)
    pid = gang.agent_pid()
    second = subprocess.run(
        [sys.executable, "-m", "flows.agent", "--folder", str(gang.folder())], capture_output=True, timeout=30
    )
    assert second.returncode == 3
    assert gang.agent_pid() == pid
    assert gang.portal.rank(0)["state"] == "running"
