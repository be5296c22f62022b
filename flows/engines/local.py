"""Nodes as processes of this machine: a virtual node is an inventory row with a folder of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from flows.agent.environment import machine_environment
from flows.engines.base import (
    AgentStatus,
    EngineProblem,
    Grant,
    Inventory,
    LaunchPlan,
    NodePart,
    Superseded,
)
from flows.files import lock_try, read_json, write_whole
from flows.processes import ProcessId, attempt_processes, kill_process, wait_until

# Below this, records and checkpoints of even a small job would soon stop.
LEAST_FREE_BYTES = 64 * 1024 * 1024
START_TIMEOUT_S = 15.0
# After the agents have been asked to go, before everything is killed.
TERM_S = 3.0


class LocalEngine:
    """Starts agents in sessions of their own, and finds them again by pid, start time and boot."""

    def inventory(self) -> Inventory:
        """This machine's cores, GPUs and memory."""
        gpus = Path("/proc/driver/nvidia/gpus")
        num_gpus = len(list(gpus.iterdir())) if gpus.is_dir() else 0
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Inventory(len(os.sched_getaffinity(0)), num_gpus, memory)

    def check(self, plan: LaunchPlan, node: NodePart) -> None:
        """The node's folder can be written and there is room in it."""
        folder = plan.node_folder(node.name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe.{os.getpid()}"
            write_whole(probe, b"x" * 4096)
            probe.unlink()
            free = shutil.disk_usage(folder).free
        except OSError as error:
            text = f"The run folder of node {node.name} cannot be written: {error.strerror}."
            raise EngineProblem("folder_unwritable", text, node.name) from None
        if free < LEAST_FREE_BYTES:
            text = f"Node {node.name} has {free // 2**20} MiB left on the disk of its run folder."
            raise EngineProblem("disk_full", text, node.name)

    def launch(self, plan: LaunchPlan, node: NodePart, grant: Grant) -> None:
        """Start the agent; returns when it has said who it is. It is nobody's child: it outlives the flow.

        Of two launchers the one with the newer grant wins, whatever their order.
        """
        folder = plan.node_folder(node.name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            plan.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            lock = self._launch_lock(folder, node.name)
            try:
                found = self.find(plan, node.name)
                written = int((read_json(folder / "launch.json") or {}).get("generation", 0))
                if max(found.generation, written) > grant.generation:
                    raise Superseded(f"Node {node.name} has an agent newer than generation {grant.generation}.")
                if found.alive and found.generation == grant.generation:
                    return
                self._end_old(plan, node.name)
                write_whole(folder / "token", grant.token.encode(), mode=0o600)
                order = json.dumps(self._order(plan, node, grant)).encode()
                write_whole(folder / "launch.json", order, mode=0o600)
                self._detach(plan, node.name)
            finally:
                os.close(lock)
        except OSError as error:
            text = f"The run folder of node {node.name} cannot be written: {error.strerror}."
            raise EngineProblem("folder_unwritable", text, node.name) from None

    def find(self, plan: LaunchPlan, node: str) -> AgentStatus:
        """From the agent's own file, checked against the processes that run."""
        data = read_json(plan.node_folder(node) / "agent.json")
        process = _identity(data)
        if data is None or process is None:
            return AgentStatus(node, 0, False)
        return AgentStatus(node, int(data["generation"]), process.alive())

    def status(self, plan: LaunchPlan) -> list[AgentStatus]:
        """Every node's newest agent."""
        return [self.find(plan, node.name) for node in plan.nodes]

    def signal(self, plan: LaunchPlan, node: str, number: int) -> bool:
        """Whether the node's agent was there to get the signal."""
        process = _identity(read_json(plan.node_folder(node) / "agent.json"))
        if process is None or not process.alive():
            return False
        kill_process(process, number)
        return True

    def stop(self, plan: LaunchPlan) -> None:
        """Agents are asked to go, for they end their ranks best; then whatever is left is killed."""
        asked = [self.signal(plan, node.name, signal.SIGTERM) for node in plan.nodes]
        if any(asked):
            wait_until(lambda: not any(a.alive for a in self.status(plan)), timeout_s=TERM_S)
        for row in attempt_processes(plan.attempt):
            kill_process(row.identity)
        for process in self._registered(plan):
            kill_process(process)

    def gone(self, plan: LaunchPlan) -> bool:
        """Neither the registries know a live process, nor does any carry the attempt's id."""
        if any(process.alive() for process in self._registered(plan)):
            return False
        return next(attempt_processes(plan.attempt), None) is None

    def cleanup(self, plan: LaunchPlan) -> None:
        """Tokens are worth nothing any more, and still nobody's business."""
        for node in plan.nodes:
            with contextlib.suppress(OSError):  # no folder, no token
                (plan.node_folder(node.name) / "token").unlink()

    def _registered(self, plan: LaunchPlan) -> list[ProcessId]:
        """Agents and ranks as their own files name them."""
        found = []
        for node in plan.nodes:
            folder = plan.node_folder(node.name)
            agent = _identity(read_json(folder / "agent.json"))
            found += [agent] if agent is not None else []
            ranks = read_json(folder / "ranks.json") or {}
            found += [ProcessId(int(r[0]), int(r[1]), str(r[2])) for r in ranks.values()]
        return found

    def _order(self, plan: LaunchPlan, node: NodePart, grant: Grant) -> dict[str, object]:
        inventory = self.inventory()
        # All of the gang's nodes are this machine: its cores are shared by all ranks.
        threads = max(1, inventory.num_cores // (len(plan.nodes) * plan.ranks_per_node))
        return {
            "attempt": plan.attempt,
            "job": plan.job,
            "node": node.name,
            "node_rank": node.node_rank,
            "num_nodes": len(plan.nodes),
            "ranks_per_node": plan.ranks_per_node,
            "generation": grant.generation,
            "portal_url": grant.portal_url,
            "address": node.address,
            "gpu_indices": list(node.gpu_indices) if _gpus_are_real(plan, inventory.num_gpus) else [],
            "threads_per_rank": threads,
            "checkpoint_dir": str(plan.checkpoint_dir),
            "cache_dir": str(plan.job_dir.parent.parent / "cache"),
            "workload": plan.workload,
            "environment": plan.environment,
        }

    def _launch_lock(self, folder: Path, node: str) -> int:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (lock := lock_try(folder / "launch.lock")) is None:
            if time.monotonic() > deadline:
                raise EngineProblem("agent_start", f"Another launch on node {node} does not end.", node)
            time.sleep(0.02)
        return lock

    def _detach(self, plan: LaunchPlan, node: str) -> None:
        """Start the agent by way of a process that ends at once, and wait until it has said who it is."""
        folder = plan.node_folder(node)
        environment = machine_environment(os.environ) | {
            "TRAINYARD_ATTEMPT": plan.attempt,
            "TRAINYARD_NODE": node,
        }
        before = self.find(plan, node)
        with (folder / "agent.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _DETACH, sys.executable, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                check=True,
                timeout=START_TIMEOUT_S,
            )
        started = wait_until(
            lambda: (now := self.find(plan, node)) != before and now.alive,
            timeout_s=START_TIMEOUT_S,
            every_s=0.02,
        )
        if not started:
            raise EngineProblem("agent_start", f"The agent of node {node} did not start; see its agent.log.", node)

    def _end_old(self, plan: LaunchPlan, node: str) -> None:
        """An agent of an older generation in this folder is fenced already; make sure that it is gone."""
        old = _identity(read_json(plan.node_folder(node) / "agent.json"))
        if old is None:
            return
        kill_process(old)
        if not wait_until(lambda: not old.alive(), timeout_s=5.0):
            raise EngineProblem("agent_stuck", f"The old agent of node {node} does not die.", node)


def _gpus_are_real(plan: LaunchPlan, num_gpus: int) -> bool:
    """Whether each GPU of the placement is one of this machine's, and no other rank's.

    If not, they are pretended ones: the ranks share the processor.
    """
    indices = [index for node in plan.nodes for index in node.gpu_indices]
    return len(set(indices)) == len(indices) and all(index < num_gpus for index in indices)


def _identity(data: dict[str, object] | None) -> ProcessId | None:
    if data is None:
        return None
    return ProcessId(int(str(data["pid"])), int(str(data["start_ticks"])), str(data["boot_id"]))


_DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.execv(sys.argv[1], [sys.argv[1], "-m", "flows.agent", "--folder", sys.argv[2]])
"""
