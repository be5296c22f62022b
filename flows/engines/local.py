"""Nodes as processes of this machine: a virtual node is an inventory row with a folder of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from flows.agent.environment import machine_environment
from flows.engines.base import AgentStatus, EngineProblem, LaunchPlan, NodePart
from flows.processes import ProcessId, attempt_processes, kill_process, read_json, wait_until, write_whole

# Below this, records and checkpoints of even a small job would soon stop.
LEAST_FREE_BYTES = 64 * 1024 * 1024
START_TIMEOUT_S = 15.0


class LocalEngine:
    """Starts agents in sessions of their own, and finds them again by pid, start time and boot."""

    def check(self, plan: LaunchPlan, node: NodePart) -> None:
        """The node's folder can be written, and there is room in it."""
        folder = plan.node_folder(node.name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".probe"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise EngineProblem(
                "folder_unwritable", f"The run folder of node {node.name} cannot be written: {error.strerror}.", node.name
            ) from None
        if free < LEAST_FREE_BYTES:
            raise EngineProblem(
                "disk_full", f"Node {node.name} has {free // 2**20} MiB left on the disk of its run folder.", node.name
            )

    def launch(self, plan: LaunchPlan, node: NodePart, *, generation: int, token: str, portal_url: str) -> None:
        """Start the agent; returns when it has said who it is. The agent is nobody's child: it outlives the flow."""
        folder = plan.node_folder(node.name)
        folder.mkdir(parents=True, exist_ok=True)
        (plan.job_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        order = {
            "attempt": plan.attempt,
            "job": plan.job,
            "node": node.name,
            "node_rank": node.node_rank,
            "num_nodes": len(plan.nodes),
            "ranks_per_node": plan.ranks_per_node,
            "generation": generation,
            "portal_url": portal_url,
            "address": node.address,
            "gpu_indices": list(node.gpu_indices) if _has_gpus() else [],
            "checkpoint_dir": str(plan.job_dir / "checkpoints"),
            "cache_dir": str(plan.job_dir.parent.parent / "cache"),
            "workload": plan.workload,
            "environment": plan.environment,
        }
        self._end_old(plan, node.name)
        write_whole(folder / "token", token.encode(), mode=0o600)
        write_whole(folder / "launch.json", json.dumps(order).encode(), mode=0o600)
        environment = machine_environment(os.environ) | {
            "TRAINYARD_ATTEMPT": plan.attempt,
            "TRAINYARD_NODE": node.name,
        }
        # An intermediate process that ends at once: the agent's parent is init, not this flow.
        with (folder / "agent.log").open("ab") as log:
            done = subprocess.run(
                [sys.executable, "-c", _DETACH, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                check=False,
                timeout=START_TIMEOUT_S,
            )
        if done.returncode != 0 or not wait_until(
            lambda: self.find(plan, node.name).generation == generation, timeout_s=START_TIMEOUT_S
        ):
            raise EngineProblem("agent_start", f"The agent of node {node.name} did not start.", node.name)

    def find(self, plan: LaunchPlan, node: str) -> AgentStatus:
        """From the agent's own file, checked against the processes that run."""
        data = read_json(plan.node_folder(node) / "agent.json")
        if data is None:
            return AgentStatus(node, 0, False)
        process = ProcessId(int(data["pid"]), int(data["start_ticks"]), str(data["boot_id"]))
        return AgentStatus(node, int(data["generation"]), process.alive())

    def stop(self, plan: LaunchPlan) -> None:
        """Agents are let go by the portal; what has not left by itself is killed."""
        for pid in list(attempt_processes(plan.attempt)):
            process = ProcessId.of(pid)
            if process is not None and pid != os.getpid():
                kill_process(process, signal.SIGKILL)

    def gone(self, plan: LaunchPlan) -> bool:
        """No process carries the attempt's id."""
        return not [pid for pid in attempt_processes(plan.attempt) if pid != os.getpid()]

    def _end_old(self, plan: LaunchPlan, node: str) -> None:
        """An agent of an older generation in this folder is fenced already; make sure that it is gone."""
        data = read_json(plan.node_folder(node) / "agent.json")
        if data is None:
            return
        old = ProcessId(int(data["pid"]), int(data["start_ticks"]), str(data["boot_id"]))
        kill_process(old)
        if not wait_until(lambda: not old.alive(), timeout_s=5.0):
            raise EngineProblem("agent_stuck", f"The old agent of node {node} does not die.", node)


def _has_gpus() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


_DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.execv(sys.executable, [sys.executable, "-m", "flows.agent", "--folder", sys.argv[1]])
"""
