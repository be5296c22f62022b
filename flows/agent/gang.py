"""The ranks of one node: started once per restart, seen to end, and gone with all that they started."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import IO, Any

from flows.agent.environment import RANK_MARK, rank_environment
from flows.agent.plan import AgentPlan
from flows.agent.ranks import RankProcess, command_start
from flows.agent.tail import last_text
from flows.agent.warm import WarmStart
from flows.files import read_json, write_whole
from flows.processes import (
    ProcessId,
    ProcessRow,
    all_processes,
    attempt_processes,
    catches,
    descendants,
    kill_group,
    kill_process,
)

TAIL_BYTES = 4096
# A warm start that dies this often before it is ready will not get better.
MAX_WARM_DEATHS = 3


class NotStarted(Exception):
    """A rank could not be started: a code for the portal's policy and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class NodeGang:
    """The processes that this agent owns. All calls are from the agent's main thread.

    ``on_end`` is called once for each rank, when it is dead.
    """

    def __init__(self, plan: AgentPlan, on_end: Callable[[RankProcess], None]) -> None:
        self.plan, self.on_end = plan, on_end
        self.restart = -1
        self.ranks: list[RankProcess] = []
        self.warm: WarmStart | None = None
        self.warm_deaths = 0
        self.warm_fault: str | None = None
        self._programs: dict[int, tuple[subprocess.Popen[bytes], RankProcess]] = {}
        self._unclean = False

    # -- starting --------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Begin to import what ranks will need, unless the job's program is its own."""
        if self.plan.workload["kind"] == "trainer" and self.warm is None and self.warm_fault is None:
            self.warm = WarmStart(self.plan)

    @property
    def can_start(self) -> bool:
        """Ranks would start at once, and nothing of older ranks is left."""
        warm = self.warm is not None and self.warm.ready
        return not self.running and not self._unclean and (warm or self.plan.workload["kind"] != "trainer")

    @property
    def running(self) -> list[RankProcess]:
        """Ranks that have not been seen to end."""
        return [r for r in self.ranks if r.running]

    def start(self, restart: int, *, rendezvous: dict[str, Any], resume: str) -> None:
        """Start this node's ranks of a restart. Raises ``NotStarted``; those that did start stay."""
        self.restart, self.ranks, self._programs = restart, [], {}
        try:
            for rank in self.plan.ranks:
                environment = rank_environment(
                    self.plan, rank=rank, restart=restart, rendezvous=rendezvous, resume=resume
                )
                self._start_rank(rank, environment)
        except OSError as error:
            raise NotStarted(
                "disk_full" if error.errno == 28 else "folder_unwritable",
                f"Node {self.plan.node} cannot write its run folder: {error.strerror}.",
            ) from None
        finally:
            self._write_registry()

    def _start_rank(self, rank: int, environment: dict[str, str]) -> None:
        folder = self.plan.rank_folder(self.restart, rank)
        folder.mkdir(parents=True, exist_ok=True)
        entry = RankProcess(rank, rank - self.plan.ranks.start, self.restart, time.time_ns())
        stdout, stderr = folder / "stdout.log", folder / "stderr.log"
        if self.plan.workload["kind"] == "trainer":
            assert self.warm is not None
            config = folder.parent / "config.json"
            write_whole(config, json.dumps(self.plan.workload["config"]).encode())
            self.warm.start(
                {
                    "id": f"{self.restart}:{rank}",
                    "environment": environment,
                    "arguments": ["--config", str(config)],
                    "stdout": str(stdout),
                    "stderr": str(stderr),
                }
            )
            self.ranks.append(entry)
            return
        with stdout.open("ab") as out, stderr.open("ab") as err:
            program = self._run_program(environment, out, err)
        entry.process = ProcessId.of(program.pid)
        self._programs[program.pid] = (program, entry)
        self.ranks.append(entry)

    def _run_program(
        self, environment: dict[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        argv, folder = self.plan.workload["argv"], self.plan.workload["working_dir"]
        node = self.plan.node
        if not os.path.isdir(folder):
            raise NotStarted("working_dir_missing", f"The working directory {folder} is no folder on {node}.")
        try:
            return command_start(argv, working_dir=folder, environment=environment, stdout=stdout, stderr=stderr)
        except OSError as error:
            raise NotStarted(
                "entry_point_missing", f"{argv[0]} cannot be run on node {node}: {error.strerror}."
            ) from None

    # -- ends ------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take note of every child that has ended, ranks or what ranks have left behind."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid, code = found.si_pid, found.si_status
            if found.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                code = -code
            os.waitpid(pid, 0)
            if self.warm is not None and pid == self.warm.pid:
                self.warm.process.returncode = code
                self._warm_gone()
            elif pid in self._programs:
                program, rank = self._programs.pop(pid)
                program.returncode = code
                self._ended(rank, code)

    def hear(self) -> None:
        """What the warm start says: pids of ranks, and their ends."""
        messages = self.warm.messages() if self.warm is not None else []
        if messages is None:
            return  # it is dying: its end is seen as any child's
        for message in messages:
            if "started" in message:
                rank = self._rank_of(message["started"])
                if rank is not None:
                    rank.process = ProcessId.of(int(message["pid"]))
                    self._write_registry()
            elif "ended" in message and message["ended"] is not None:
                rank = self._rank_of(message["ended"])
                if rank is not None:
                    self._ended(rank, os.waitstatus_to_exitcode(message["status"]))

    def _rank_of(self, name: str) -> RankProcess | None:
        restart, number = (int(part) for part in name.split(":"))
        return next((r for r in self.ranks if (r.restart, r.rank) == (restart, number)), None)

    def _warm_gone(self) -> None:
        """The warm process died, and its ranks with it."""
        assert self.warm is not None
        self.hear()
        if not self.warm.ready:
            self.warm_deaths += 1
        if self.warm_deaths >= MAX_WARM_DEATHS:
            self.warm_fault = self.warm.last_words()
        self.warm.channel.close()
        self.warm = None
        for rank in self.running:
            self._ended(rank, -9)

    def _ended(self, rank: RankProcess, code: int) -> None:
        if not rank.running:
            return
        rank.exit_code, rank.ended_ns = code, time.time_ns()
        if code != 0:
            rank.tail = last_text(self.plan.rank_folder(rank.restart, rank.rank) / "stderr.log", TAIL_BYTES)
        self._unclean = True
        self.sweep()
        self._write_registry()
        self.on_end(rank)

    # -- killing ---------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """A signal to every running rank itself: its children are its own to stop."""
        for rank in self.running:
            if rank.process is not None:
                kill_process(rank.process, number)

    def signal_if_caught(self, number: int) -> int:
        """The number of ranks that have a handler for this signal and got it."""
        able = [r.process for r in self.running if r.process and catches(r.process.pid, number)]
        for process in able:
            kill_process(process, number)
        return len(able)

    def kill(self) -> None:
        """SIGKILL for every running rank and its group. Their ends are reported as any others."""
        for rank in self.running:
            if rank.process is not None and rank.process.alive():
                kill_group(rank.process.pid)

    def sweep(self) -> None:
        """Kill what ended ranks have left behind; called until nothing is left."""
        if not self._unclean:
            return
        left = self._leftovers()
        for row in left:
            kill_process(row.identity)
        self._unclean = bool(left)

    def _leftovers(self) -> list[ProcessRow]:
        """What descends from this agent (orphans become its children) and belongs to no running rank."""
        rows = all_processes()
        live = {r.process.pid for r in self.running if r.process is not None}
        spared = descendants(live, rows) | {os.getpid()}
        if self.warm is not None:
            spared.add(self.warm.pid)
        mine = descendants([os.getpid()], rows)
        if self.warm is not None and any(r.process is None for r in self.running):
            spared |= descendants([self.warm.pid], rows)  # just forked, and not announced yet
        marks = {f"TRAINYARD_RANK={r.rank}".encode() for r in self.running}
        return [
            row
            for row in rows
            if row.identity.pid in mine - spared and row.group not in live and not (marks & row.environment())
        ]

    def sweep_others(self) -> None:
        """Kill the ranks of an agent that died before this one in the same folder, and see them gone."""
        for pid, start_ticks, boot_id in (read_json(self.plan.folder / "ranks.json") or {}).values():
            kill_process(ProcessId(pid, start_ticks, boot_id))
        node = f"TRAINYARD_NODE={self.plan.node}".encode()
        mark = RANK_MARK.encode() + b"="
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            left = [
                row
                for row in attempt_processes(self.plan.attempt)
                if node in (found := row.environment()) and any(e.startswith(mark) for e in found)
            ]
            if not left:
                break
            for row in left:
                kill_process(row.identity)
            time.sleep(0.02)
        self._write_registry()

    def end(self) -> None:
        """Kill everything that this agent has started, and see it gone."""
        deadline = time.monotonic() + 10.0
        if self.warm is not None:
            self.warm.stop()
        self.kill()
        self._unclean = True
        while (self.running or self.warm or self._unclean) and time.monotonic() < deadline:
            self.kill()
            self.hear()
            self.reap()
            self.sweep()
            time.sleep(0.01)

    def _write_registry(self) -> None:
        """Who runs, for an agent after this one. On a full disk environments must tell it."""
        alive = {
            str(r.rank): [r.process.pid, r.process.start_ticks, r.process.boot_id]
            for r in self.running
            if r.process is not None
        }
        try:
            write_whole(self.plan.folder / "ranks.json", json.dumps(alive).encode())
        except OSError:
            pass
