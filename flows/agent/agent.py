"""The node agent: owns its ranks, reports what they do, and makes true what the portal wants."""

import json
import os
import queue
import secrets
import selectors
import signal
import socket
import subprocess
import time
from typing import Any

from flows.agent.environment import rank_environment
from flows.agent.plan import AgentPlan
from flows.agent.ranks import (
    RankProcess,
    WarmStart,
    command_start,
    free_port,
    kill_all,
    now_ns,
    term_all,
)
from flows.agent.sample import NodeSampler
from flows.agent.spool import Spool
from flows.agent.tail import last_bytes
from flows.agent.telemetry import Telemetry
from flows.agent.uplink import Uplink
from flows.processes import (
    ProcessId,
    attempt_processes,
    kill_process,
    read_json,
    write_whole,
)

TICK_S = 0.2
WINDOW_S = 2.0
SAMPLE_S = 5.0
LOGS_S = 1.0
# A new process of this agent numbers its batches far above the one before, whatever of those got through.
SEQ_JUMP = 1000
TAIL_BYTES = 4096


class Agent:
    """One node of one attempt."""

    def __init__(self, plan: AgentPlan) -> None:
        self.plan = plan
        self.incarnation = secrets.token_hex(8)
        self.state = read_json(plan.folder / "state.json") or {}
        self.spool = Spool(plan.folder / "spool")
        old_seq = max(int(self.state.get("next_seq", 0)), self.spool.newest() + 1)
        self.next_seq = old_seq + SEQ_JUMP if self.state else 1
        self.restart = -1
        self.ranks: list[RankProcess] = []
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.telemetry: Telemetry | None = None
        self.warm: WarmStart | None = None
        self.port: socket.socket | None = None
        self.ready: dict[str, Any] | None = None
        self.problem: dict[str, Any] | None = None
        self.desired: dict[str, Any] = {"phase": "prepare", "restart": 0, "save_id": 0}
        self.saves_done = 0
        self.stop_deadline: float | None = None
        self.status: int | None = None
        self.sampler = NodeSampler(plan.folder)
        self._answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        self._last_window = self._last_sample = self._last_logs = 0.0

    # -- life ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until the portal lets it go, or has replaced it; the exit status."""
        self._sweep_leftovers()
        if self.plan.workload.get("kind") == "trainer":
            self.warm = WarmStart(self.plan)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._answers.put(("term", None)))
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.uplink = Uplink(
            url=self.plan.portal_url,
            token=self.plan.token,
            spool=self.spool,
            current=self._current,
            on_answer=lambda answer: self._tell("answer", answer),
            on_fenced=lambda status, detail: self._tell("fenced", (status, detail)),
        )
        self.uplink.start()
        selector = selectors.DefaultSelector()
        selector.register(self._wake_read, selectors.EVENT_READ)
        if self.warm is not None:
            selector.register(self.warm.ours, selectors.EVENT_READ)
        while self.status is None:
            for key, _ in selector.select(TICK_S):
                if key.fd == self._wake_read:
                    _drain(self._wake_read)
            self._warm_messages(selector)
            self._reap_children()
            self._take_answers()
            self._collect()
            self._obey()
        self._leave()
        return self.status

    def _tell(self, kind: str, value: Any) -> None:
        """From the uplink's thread: wake the main loop with news."""
        self._answers.put((kind, value))
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass

    def _sweep_leftovers(self) -> None:
        """Ranks of an agent that died before this one: they must be gone before new ones start."""
        mine = os.getpid()
        for row in (read_json(self.plan.folder / "ranks.json") or {}).values():
            kill_process(ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"])))
        node_mark = f"TRAINYARD_NODE={self.plan.node}".encode()
        for pid in attempt_processes(self.plan.attempt):
            process = ProcessId.of(pid)
            if pid == mine or process is None:
                continue
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    ours = node_mark in file.read().split(b"\0")
            except OSError:
                continue
            if ours:
                kill_process(process)

    def _leave(self) -> None:
        """Kill what is left, send what is left, and go."""
        kill_all(self.ranks)
        if self.warm is not None:
            self.warm.stop()
        self._reap_children()
        deadline = time.monotonic() + 3.0
        while self.status == 0 and len(self.spool) and time.monotonic() < deadline and self.uplink.is_alive():
            self.uplink.kick()
            time.sleep(0.02)
        self.uplink.stop()

    # -- ranks -----------------------------------------------------------------------------------------

    def _warm_messages(self, selector: selectors.BaseSelector) -> None:
        if self.warm is None:
            return
        self.warm.ours.setblocking(False)
        try:
            ready = bool(self.warm.ours.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return
        except OSError:
            ready = False
        finally:
            self.warm.ours.setblocking(True)
        messages = self.warm.messages() if ready else []
        if not ready or self.warm.gone:
            self._warm_lost(selector)
            return
        for message in messages:
            if "started" in message:
                self._rank_of(message["started"]).process = ProcessId.of(message["pid"])
                self._write_registry()
            elif "ended" in message and message["ended"] is not None:
                self._ended(self._rank_of(message["ended"]), os.waitstatus_to_exitcode(message["status"]))

    def _warm_lost(self, selector: selectors.BaseSelector) -> None:
        """The warm process died, and its ranks with it: say so, and have another ready."""
        assert self.warm is not None
        selector.unregister(self.warm.ours)
        self.warm.stop()
        for rank in self.ranks:
            if rank.running:
                self._ended(rank, -signal.SIGKILL)
        self.warm = WarmStart(self.plan)
        selector.register(self.warm.ours, selectors.EVENT_READ)

    def _rank_of(self, name: str) -> RankProcess:
        restart, rank = (int(part) for part in name.split(":"))
        found = [r for r in self.ranks if (r.restart, r.rank) == (restart, rank)]
        return found[0] if found else RankProcess(rank, 0, restart, now_ns())

    def _reap_children(self) -> None:
        for rank, child in list(self.children.items()):
            code = child.poll()
            if code is not None:
                del self.children[rank]
                self._ended(self.ranks[rank - self.plan.ranks.start], code)

    def _ended(self, rank: RankProcess, code: int) -> None:
        if not rank.running:
            return
        rank.exit_code, rank.ended_ns = code, now_ns()
        if rank.process is not None:
            # Its children (loader workers) must not outlive it.
            from flows.processes import kill_group

            kill_group(rank.process.pid)
        self._collect(force=True)
        self._write_registry()
        self.uplink.kick()

    def _write_registry(self) -> None:
        alive = {str(r.rank): r.process.as_json() for r in self.ranks if r.running and r.process}
        self._save("ranks.json", alive)

    def _start_ranks(self) -> None:
        """Start the ranks of the wanted restart. The number is noted first: no restart is started twice."""
        restart, rendezvous = int(self.desired["restart"]), self.desired["rendezvous"]
        self.state["started_restart"] = restart
        if not self._save("state.json", self.state):
            self.problem = {"code": "disk_full", "message": f"node {self.plan.node} cannot write its run folder"}
            return
        if self.port is not None:
            self.port.close()
            self.port = None
        self.telemetry = Telemetry(self.plan, restart, int(self.desired.get("max_step_done") or 0))
        self.restart, self.ranks, self.children = restart, [], {}
        self.plan.control_path(restart).parent.mkdir(parents=True, exist_ok=True)
        for rank in self.plan.ranks:
            self._start_rank(rank, restart, rendezvous)
        self._write_registry()
        self.uplink.kick()

    def _start_rank(self, rank: int, restart: int, rendezvous: dict[str, Any]) -> None:
        folder = self.plan.rank_folder(restart, rank)
        folder.mkdir(parents=True, exist_ok=True)
        environment = rank_environment(
            self.plan, rank=rank, restart=restart, rendezvous=rendezvous, resume=str(self.desired["resume"])
        )
        entry = RankProcess(rank, rank - self.plan.ranks.start, restart, now_ns())
        self.ranks.append(entry)
        workload = self.plan.workload
        if workload["kind"] == "trainer":
            assert self.warm is not None
            config = folder.parent / "config.json"
            write_whole(config, json.dumps(workload["config"]).encode())
            self.warm.start(
                {
                    "id": f"{restart}:{rank}",
                    "environment": environment,
                    "arguments": ["--config", str(config)],
                    "stdout": str(folder / "stdout.log"),
                    "stderr": str(folder / "stderr.log"),
                }
            )
            return
        try:
            child = command_start(
                workload["argv"],
                working_dir=workload["working_dir"],
                environment=environment,
                stdout=folder / "stdout.log",
                stderr=folder / "stderr.log",
            )
        except OSError as error:
            entry.exit_code, entry.ended_ns = 127, now_ns()
            code = "working_dir_missing" if not os.path.isdir(workload["working_dir"]) else "entry_point_missing"
            self.problem = {"code": code, "message": f"{workload['argv'][0]}: {error.strerror}"}
            return
        self.children[rank] = child
        entry.process = ProcessId.of(child.pid)

    # -- reports ---------------------------------------------------------------------------------------

    def _collect(self, force: bool = False) -> None:
        """Read the records; make a batch when there is something to say."""
        if self.telemetry is None:
            return
        batch = self.telemetry.read()
        now = time.monotonic()
        for rank in self.ranks:
            time_ = self.telemetry.times[rank.rank]
            if not rank.running and rank.ended_ns is not None and not time_.ended:
                if time_.cursor_ns is None:
                    # A program without records: all of its time is its own work.
                    time_.begin(rank.started_ns)
                    time_._phases, time_.last_done = ["eval"], 1
                time_.end(rank.ended_ns)
        if force or batch.urgent or now - self._last_window >= WINDOW_S:
            self.telemetry.cut(batch)
            self._last_window = now
        extra: dict[str, Any] = {}
        if force:
            extra["ranks"] = [r.as_json() for r in self.ranks]
            extra["tails"] = {
                str(r.rank): last_bytes(self.plan.rank_folder(r.restart, r.rank) / "stderr.log", TAIL_BYTES)
                for r in self.ranks
                if r.exit_code not in (None, 0)
            }
        if force or now - self._last_logs >= LOGS_S:
            extra["logs"] = self.telemetry.logs()
            self._last_logs = now
        if batch or extra.get("logs") or force:
            self._add(batch.as_json() | extra)
            if batch.urgent:
                self.uplink.kick()

    def _add(self, content: dict[str, Any]) -> None:
        with self.uplink.lock:
            self.spool.add(self.next_seq, content)
        self.next_seq += 1
        self.state["next_seq"] = self.next_seq
        self._save("state.json", self.state)

    def _current(self) -> dict[str, Any]:
        """What is true at this moment (called by the uplink's thread: reads only)."""
        now = time.monotonic()
        sample = {}
        if now - self._last_sample >= SAMPLE_S:
            sample, self._last_sample = self.sampler.read(), now
        ranks = list(self.ranks)
        started = bool(ranks) and all(r.process is not None or not r.running for r in ranks)
        state = "preparing"
        if any(r.running for r in ranks):
            state = "running" if started else "preparing"
        elif ranks:
            state = "stopped"
        if self.ready is not None and self.ready["restart"] > self.restart:
            state = "ready"
        return {
            "incarnation": self.incarnation,
            "state": state,
            "restart": self.restart,
            "ready": self.ready,
            "ranks": [r.as_json() for r in ranks if r.process is not None or not r.running],
            "node": sample,
            "problem": self.problem,
        }

    def _save(self, name: str, data: dict[str, Any]) -> bool:
        """Whether the file is on disk. A full disk must not end the agent: its ranks train on."""
        try:
            write_whole(self.plan.folder / name, json.dumps(data).encode())
        except OSError:
            return False
        return True

    # -- obeying ---------------------------------------------------------------------------------------

    def _take_answers(self) -> None:
        while True:
            try:
                kind, value = self._answers.get_nowait()
            except queue.Empty:
                return
            if kind == "answer":
                self.desired = value["desired"]
                self.uplink.poll_s = float(value["poll_s"])
                if self.desired["restart"] > self.restart:
                    self.problem = None
            elif kind == "fenced":
                print(f"the portal has no use for this agent any more ({value[0]}): {value[1]}", flush=True)
                self.status = 3
            elif kind == "term":
                self.status = 4

    def _obey(self) -> None:
        """Make true what is wanted; called on every turn, so nothing depends on a single answer."""
        if self.status is not None:
            return
        phase, restart = self.desired["phase"], int(self.desired["restart"])
        if restart > self.restart and any(r.running for r in self.ranks):
            kill_all(self.ranks)
            return
        if phase == "exit":
            if any(r.running for r in self.ranks):
                kill_all(self.ranks)
                return
            self.status = 0
        elif phase == "prepare":
            self._get_ready(restart)
        elif phase == "run":
            if restart > max(self.restart, int(self.state.get("started_restart", -1))) and self._can_start():
                self._start_ranks()
            self._ask_to_save()
        elif phase == "stop":
            self._stop_ranks(self.desired.get("stop") or {})

    def _can_start(self) -> bool:
        return self.warm is None or self.warm.ready

    def _get_ready(self, restart: int) -> None:
        """No old rank is left, the start is warm, and (on the first node) a port is free: ready."""
        if restart <= max(self.restart, int(self.state.get("started_restart", -1))) or not self._can_start():
            return
        if self.ready is not None and self.ready["restart"] == restart:
            return
        port = None
        if self.plan.node_rank == 0:
            if self.port is not None:
                self.port.close()
            self.port = free_port(self.plan.address)
            port = self.port.getsockname()[1]
        self.ready = {"restart": restart, "address": self.plan.address, "port": port}
        self.uplink.kick()

    def _ask_to_save(self) -> None:
        wanted = int(self.desired.get("save_id") or 0)
        if wanted > self.saves_done:
            self._control({"id": wanted, "kind": "save"})
            self.saves_done = wanted

    def _stop_ranks(self, stop: dict[str, Any]) -> None:
        """Ask once, by file and by signal; when the grace is over, kill."""
        running = [r for r in self.ranks if r.running]
        if not running:
            return
        if self.stop_deadline is None:
            grace_s = float(stop.get("grace_s", 30.0))
            self.stop_deadline = time.monotonic() + grace_s
            self._control({"id": 0, "kind": "stop", "reason": stop.get("reason", ""), "grace_s": grace_s})
            term_all(running)
        elif time.monotonic() > self.stop_deadline:
            kill_all(running)

    def _control(self, wish: dict[str, Any]) -> None:
        try:
            with self.plan.control_path(self.restart).open("a") as file:
                file.write(json.dumps(wish) + "\n")
        except OSError as error:
            self.problem = {"code": "disk_full", "message": f"control file: {error.strerror}"}


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
