"""The node agent: makes true on its node what the portal wants, and tells the portal what is true."""

import json
import os
import queue
import re
import secrets
import selectors
import signal
import socket
import time
from typing import Any

from flows.agent.gang import NodeGang, NotStarted
from flows.agent.journal import Journal
from flows.agent.plan import AgentPlan
from flows.agent.ranks import RankProcess, free_port
from flows.agent.sample import NodeSampler
from flows.agent.uplink import Uplink

TICK_S = 0.2
SAMPLE_S = 5.0
LAST_REPORTS_S = 3.0
LET_GO, REPLACED, TOLD_TO_LEAVE = 0, 3, 4
DUMP_SIGNAL = signal.SIGUSR2
PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


class Agent:
    """One node of one attempt. Everything but the uplink happens in the main thread, one turn at a time."""

    def __init__(self, plan: AgentPlan) -> None:
        self.plan = plan
        self.incarnation = secrets.token_hex(8)
        self.journal = Journal(plan)
        self.gang = NodeGang(plan, self._rank_ended)
        self.sampler = NodeSampler(plan.folder)
        self.uplink = Uplink(
            url=plan.portal_url,
            token=plan.token,
            spool=self.journal.spool,
            current=self._current,
            on_answer=self._answered,
            on_fenced=lambda code, detail: self._tell("fenced", f"{code}: {detail}"),
        )
        self.port: socket.socket | None = None
        self.ready: dict[str, Any] | None = None
        self.problem: dict[str, Any] | None = None
        self.desired: dict[str, Any] = {"phase": "prepare", "restart": 0}
        self.stop_deadline: float | None = None
        self.status: int | None = None
        self._answered_restart = 0
        self._sampled = 0.0
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Until the portal lets it go, or has replaced it; the exit status."""
        self.gang.sweep_others()
        self.gang.ranks = self.journal.finish_old()
        self.gang.restart = self.journal.telemetry.restart if self.journal.telemetry else -1
        self.gang.warm_up()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._tell("term", None))
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.uplink.start()
        while self.status is None:
            self._wait()
            self.gang.hear()
            self.gang.reap()
            self.gang.sweep()
            self.gang.warm_up()
            self._take_news()
            if self.status is None:
                self._obey()
            if self.journal.collect(self.gang.ranks):
                self.uplink.kick()
        self._leave()
        return self.status

    def _wait(self) -> None:
        """Until something happens: a child ended, the warm start or the portal spoke, or a turn is due."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            if self.gang.warm is not None:
                selector.register(self.gang.warm.channel, selectors.EVENT_READ)
            selector.select(TICK_S)
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def _leave(self) -> None:
        """Kill what is left, send what is left, and go."""
        self.gang.end()
        self.journal.flush()
        deadline = time.monotonic() + LAST_REPORTS_S
        while self.status == LET_GO and len(self.journal.spool) and time.monotonic() < deadline:
            self.uplink.kick()
            self.uplink.join(0.02)
            if not self.uplink.is_alive():
                break
        self.uplink.stop()

    # -- what is true ----------------------------------------------------------------------------------

    def _rank_ended(self, rank: RankProcess) -> None:
        self.journal.ended(rank)
        rendezvous = self.desired.get("rendezvous") or {}
        port = str(rendezvous.get("master_port", ""))
        if rank.rank == 0 and rank.failed and port and port in rank.tail and PORT_IN_USE.search(rank.tail):
            self._problem("port_in_use", f"Port {port} was taken before rank 0 could listen on it.")

    def _problem(self, code: str, message: str) -> None:
        """What the portal has to judge; told until it has decided on another restart."""
        restart = max(self.gang.restart, int(self.desired["restart"]))
        self.problem = {"code": code, "message": message, "restart": restart}
        self.uplink.kick()

    def _current(self) -> dict[str, Any]:
        """What is true at this moment (called by the uplink's thread: it reads only)."""
        now = time.monotonic()
        sample = {}
        if now - self._sampled >= SAMPLE_S:
            sample, self._sampled = self.sampler.read(), now
            lost = self.journal.spool.num_lost
            sample |= {"telemetry_lost_batches": lost, "records_dropped": self.journal.num_dropped}
        ranks = [r for r in list(self.gang.ranks) if r.known]
        problem = self.problem
        if problem is not None and problem["restart"] < self._answered_restart:
            problem = None  # the portal has decided about this one
        return {
            "incarnation": self.incarnation,
            "state": self._state(),
            "restart": self.gang.restart,
            "ready": self.ready,
            "ranks": [r.as_json() for r in ranks],
            "tails": {str(r.rank): r.tail for r in ranks if r.failed},
            "node": sample,
            "problem": problem,
        }

    def _state(self) -> str:
        ranks = list(self.gang.ranks)
        if self.ready is not None and self.ready["restart"] > self.gang.restart:
            return "ready"
        if any(r.running for r in ranks):
            return "running" if all(r.known for r in ranks) else "preparing"
        return "stopped" if ranks else "preparing"

    # -- what is wanted --------------------------------------------------------------------------------

    def _answered(self, answer: dict[str, Any]) -> None:
        """From the uplink's thread."""
        self._answered_restart = max(self._answered_restart, int(answer["desired"]["restart"]))
        self._tell("desired", answer["desired"])

    def _tell(self, kind: str, value: Any) -> None:
        """Wake the main loop with news; from any thread, and from signal handlers."""
        self._news.put((kind, value))
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # it is awake already

    def _take_news(self) -> None:
        while True:
            try:
                kind, value = self._news.get_nowait()
            except queue.Empty:
                return
            if kind == "desired":
                self.desired = value
                if self.problem is not None and int(value["restart"]) > self.problem["restart"]:
                    self.problem = None
            elif kind == "fenced":
                print(f"the portal has no use for this agent any more: {value}", flush=True)
                self.status = REPLACED
            elif kind == "term":
                self.status = TOLD_TO_LEAVE

    def _obey(self) -> None:
        """Make true what is wanted; done at every turn, so nothing depends on a single answer."""
        phase, restart = self.desired["phase"], int(self.desired["restart"])
        if phase == "exit" or restart > self.gang.restart:
            # The restart before is over, whatever its ranks are doing.
            self.gang.kill()
        if phase == "exit":
            if not self.gang.running:
                self.status = LET_GO
        elif phase == "prepare":
            self._get_ready(restart)
        elif phase == "run":
            if self._is_new(restart) and self.gang.can_start:
                self._start(restart)
            self._pass_wishes()
        elif phase == "stop":
            self._stop_ranks(self.desired.get("stop") or {})

    def _is_new(self, restart: int) -> bool:
        return restart > max(self.gang.restart, self.journal.started_restart)

    def _get_ready(self, restart: int) -> None:
        """No old rank is left, the start is warm, and (on the first node) a port is free: ready."""
        if self.gang.warm_fault is not None and self.problem is None:
            fault = self.gang.warm_fault
            self._problem("trainer_broken", f"The trainer cannot be imported on {self.plan.node}: {fault}")
        if not self._is_new(restart) or not self.gang.can_start:
            return
        if self.ready is not None and self.ready["restart"] == restart:
            return
        port = None
        if self.plan.node_rank == 0:
            self._release_port()
            self.port = free_port(self.plan.address)
            port = self.port.getsockname()[1]
        self.ready = {"restart": restart, "address": self.plan.address, "port": port}
        self.uplink.kick()

    def _release_port(self) -> None:
        if self.port is not None:
            self.port.close()
            self.port = None

    def _start(self, restart: int) -> None:
        """Start the ranks. The number is noted on disk first: no restart is ever started twice."""
        if not self.journal.begin(restart, int(self.desired.get("max_step_done") or 0)):
            self.gang.restart, self.gang.ranks = restart, []
            self._problem("disk_full", f"Node {self.plan.node} cannot write into its run folder.")
            return
        self.stop_deadline = None
        self._release_port()
        try:
            self.gang.start(restart, rendezvous=self.desired["rendezvous"], resume=str(self.desired["resume"]))
        except NotStarted as error:
            self._problem(error.code, error.message)
        self.journal.note()

    def _pass_wishes(self) -> None:
        """Saves and stack dumps that were not asked for yet."""
        for kind in ("save", "dump"):
            wanted = int(self.desired.get(f"{kind}_id") or 0)
            if wanted > self.journal.handled[kind] and self.gang.running:
                self.journal.handled[kind] = wanted
                self._control({"id": wanted, "kind": kind})
                if kind == "dump":
                    # Python's faulthandler writes stacks to stderr; who has no handler would die of it.
                    self.gang.signal_if_caught(DUMP_SIGNAL)

    def _stop_ranks(self, stop: dict[str, Any]) -> None:
        """Ask once, by file and by signal; when the grace is over, kill."""
        if not self.gang.running:
            return
        if self.stop_deadline is None:
            grace_s = float(stop.get("grace_s", 30.0))
            self.stop_deadline = time.monotonic() + grace_s
            self._control({"id": 0, "kind": "stop", "reason": stop.get("reason", ""), "grace_s": grace_s})
            self.gang.signal(signal.SIGTERM)
        elif time.monotonic() > self.stop_deadline:
            self.gang.kill()

    def _control(self, wish: dict[str, Any]) -> None:
        """Append a line to the ranks' control file; whoever handles SIGTERM is told by that as well."""
        try:
            with self.plan.control_path(self.gang.restart).open("a") as file:
                file.write(json.dumps(wish) + "\n")
        except OSError as error:
            print(f"control file: {error.strerror}", flush=True)
