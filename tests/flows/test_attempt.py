"""The flow of one attempt, as real processes beside a real Prefect server."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import httpx
import pytest

from tests.flows.conftest import Gang, MakeGang
from tests.flows.prefect import Prefect

FLOW_S = 90.0
Worker = Callable[..., "subprocess.Popen[bytes]"]


def flow_pid(gang: Gang) -> int:
    """The pid inside the holder's name, as the flow gave it when it claimed."""
    return int(gang.portal.holder.split(":")[1])


def test_prefect_listens_to_who_knows_its_password(prefect: Prefect) -> None:
    answer = httpx.post(f"{prefect.api_url}/deployments/filter", json={}, trust_env=False)
    assert answer.status_code == 401


def test_a_flow_run_of_the_worker_runs_an_attempt_to_its_end(
    prefect: Prefect, worker: Worker, make_gang: MakeGang
) -> None:
    gang = make_gang("steps=5", nodes=2, ranks_per_node=2)
    portal = gang.portal
    worker(portal)
    asked = time.time()
    run_id = prefect.run(portal.attempt, 1)
    assert prefect.run(portal.attempt, 1) == run_id, "the same key is the same run"
    portal.wait(lambda: portal.settled, timeout_s=FLOW_S)
    assert portal.settled is not None
    assert portal.settled["gone"] is True
    assert portal.launches == [("n1", 1), ("n2", 1)] or portal.launches == [("n2", 1), ("n1", 1)]
    assert [portal.rank(r)["exit_code"] for r in range(4)] == [0, 0, 0, 0]
    gang.wait_gone()
    # The flow clears away after it has told the portal.
    portal.wait(lambda: not (gang.folder() / "token").exists(), timeout_s=FLOW_S)
    first_rank = min(r["t_ns"] for r in portal.records if r["k"] == "start") / 1e9
    print(
        f"run made → flow claims {portal.times['claim'] - asked:.2f} s → first agent is granted "
        f"{portal.times['launch'] - portal.times['claim']:.2f} s → first rank "
        f"{first_rank - portal.times['launch']:.2f} s"
    )

    def state() -> str:
        with prefect.client as client:
            return str(client.get(f"/flow_runs/{run_id}").json()["state"]["type"])

    portal.wait(lambda: state() == "COMPLETED", timeout_s=FLOW_S)


def test_of_two_flows_with_one_epoch_one_starts_the_gang(prefect: Prefect, make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000", nodes=2)
    portal = gang.portal
    flows = [prefect.flow(portal, 1) for _ in range(2)]
    portal.wait(lambda: portal.num_claims_asked >= 2 and portal.all_running(), timeout_s=FLOW_S)
    with portal.lock:
        portal.phase = "exit"
    portal.wait(lambda: portal.settled, timeout_s=FLOW_S)
    assert [f.wait(timeout=FLOW_S) for f in flows] == [0, 0]
    assert sorted(gang.portal.launches) == [("n1", 1), ("n2", 1)]
    assert len(set(gang.portal.claims)) == 1
    output = prefect.output(f"flow_{gang.portal.attempt}_1.log")
    assert "left: claimed by another flow" in output


def test_a_flow_that_was_killed_while_it_watched_is_followed_by_one_that_adopts(
    prefect: Prefect, make_gang: MakeGang
) -> None:
    gang = make_gang("steps=100000", nodes=2)
    portal = gang.portal
    first = prefect.flow(portal, 1)
    portal.wait(lambda: portal.all_running() and portal.points.get("loss"), timeout_s=FLOW_S)
    agents = [gang.agent_pid("n1"), gang.agent_pid("n2")]
    first.kill()
    first.wait()
    second = prefect.flow(portal, portal.next_epoch())
    portal.wait(lambda: portal.holder, timeout_s=FLOW_S)
    count = len(portal.heartbeats)
    portal.wait(lambda: len(portal.heartbeats) > count + 2)
    assert [gang.agent_pid("n1"), gang.agent_pid("n2")] == agents
    assert portal.all_running(), "no rank was started again"
    with portal.lock:
        portal.phase = "exit"
    portal.wait(lambda: portal.settled)
    assert second.wait(timeout=FLOW_S) == 0
    gang.wait_gone()


def test_an_older_flow_leaves_and_touches_nothing(prefect: Prefect, make_gang: MakeGang) -> None:
    gang = make_gang("steps=100000")
    portal = gang.portal
    first = prefect.flow(portal, 1)
    portal.wait(lambda: portal.all_running(), timeout_s=FLOW_S)
    agent = gang.agent_pid()
    portal.next_epoch()
    assert first.wait(timeout=FLOW_S) == 0
    assert "left: epoch 2 is live" in prefect.output(f"flow_{portal.attempt}_1.log")
    assert gang.agent_pid() == agent
    assert portal.all_running()


@pytest.mark.parametrize("call", ["claim", "launch", "heartbeat", "settle"])
def test_a_flow_killed_at_any_call_is_followed_by_one_that_ends_the_attempt(
    prefect: Prefect, make_gang: MakeGang, call: str
) -> None:
    gang = make_gang("steps=5", nodes=2)
    portal = gang.portal
    killed = []

    def kill(name: str) -> None:
        if name == call and not killed:
            killed.append(flow_pid(gang))
            os.kill(killed[0], signal.SIGKILL)

    portal.on_call = kill
    first = prefect.flow(portal, 1)
    assert first.wait(timeout=FLOW_S) == -signal.SIGKILL
    if portal.settled:
        return  # the call was carried out although its caller died
    second = prefect.flow(portal, portal.next_epoch())
    portal.wait(lambda: portal.settled, timeout_s=FLOW_S)
    assert second.wait(timeout=FLOW_S) == 0
    gang.wait_gone()
    assert portal.finished()
    starts = [(r["restart"], r["rank"]) for r in portal.records if r["k"] == "start"]
    assert len(starts) == len(set(starts)), "no rank of a restart was started twice"


def test_a_node_whose_folder_cannot_be_made_is_told_before_anything_is_started(
    prefect: Prefect, make_gang: MakeGang
) -> None:
    gang = make_gang("steps=5")
    folder = gang.plan.run_dir / "nodes"
    folder.parent.mkdir(parents=True)
    folder.write_text("a file is in the way")
    flow = prefect.flow(gang.portal, 1)
    gang.portal.wait(lambda: gang.portal.problems, timeout_s=FLOW_S)
    [problem] = gang.portal.problems
    assert (problem["code"], problem["node"]) == ("folder_unwritable", "n1")
    assert flow.wait(timeout=FLOW_S) == 0
    assert not gang.portal.launches


def test_a_flow_waits_for_a_portal_that_is_away(prefect: Prefect, make_gang: MakeGang) -> None:
    gang = make_gang("steps=300", "step_s=0.02")
    portal = gang.portal
    flow = prefect.flow(portal, 1)
    portal.wait(lambda: portal.all_running(), timeout_s=FLOW_S)
    portal.close()
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        assert flow.poll() is None
        time.sleep(0.05)
    portal.open()
    portal.wait(lambda: portal.settled)
    assert flow.wait(timeout=FLOW_S) == 0
