"""What an agent has to say and must not forget: telemetry of the present restart, batches, state."""

import time
from typing import Any

from flows.agent.logs import RankLogs
from flows.agent.plan import AgentPlan
from flows.agent.ranks import RankProcess
from flows.agent.spool import Spool
from flows.agent.telemetry import Batch, Telemetry

# Young jobs are watched closely; later, rows must not grow with every second of a week.
FIRST_FLUSH_S, LAST_FLUSH_S = 1.0, 10.0
FIRST_WINDOW_S, LAST_WINDOW_S = 2.0, 60.0
# A program that has written no record for this long is taken to be one that never will.
UNRECORDED_AFTER_S = 20.0
# A new process of this agent numbers its batches far above the one before: numbers that a full disk
# has kept from being noted are not used again.
SEQ_JUMP = 1000


class Journal:
    """Reads, cuts and spools; keeps the state with which an agent after this one goes on."""

    def __init__(self, plan: AgentPlan) -> None:
        self.plan = plan
        self.spool = Spool(plan.folder / "spool")
        state = self.spool.state()
        self.next_seq = int(state.get("next_seq", 0)) + (SEQ_JUMP if state else 1)
        self.started_restart = int(state.get("started_restart", -1))
        self.num_dropped = int(state.get("num_dropped", 0))
        # Numbers of wishes that were passed on to ranks already.
        self.handled: dict[str, int] = {"save": 0, "dump": 0, **state.get("handled", {})}
        self.telemetry: Telemetry | None = None
        self.logs: RankLogs | None = None
        self._batch = Batch()
        if state.get("telemetry"):
            self.telemetry = Telemetry.from_json(plan, state["telemetry"])
            self.logs = RankLogs(plan, self.telemetry.restart)
        self._began = self._flushed = self._windowed = time.monotonic()

    def begin(self, restart: int, max_step_done: int) -> bool:
        """A restart begins: whether that is noted on disk, so that no agent ever starts it a second time."""
        self.started_restart = restart
        self.telemetry = Telemetry(self.plan, restart, max_step_done)
        self.logs = RankLogs(self.plan, restart)
        self._began = time.monotonic()
        return self._add({})

    def finish_old(self) -> list[RankProcess]:
        """Book what ranks of an agent before this one have written until they died with it; these ranks."""
        telemetry, dead = self.telemetry, []
        if telemetry is None:
            return []
        for rank, time_ in telemetry.times.items():
            if time_.ended:
                continue
            now_ns = time.time_ns()
            telemetry.drain(self._batch, rank, now_ns=now_ns)
            # When exactly it died nobody has seen: its books end with its last record.
            at = time_.cursor_ns or now_ns
            time_.end(at, lost=True)
            local = rank - self.plan.ranks.start
            dead.append(RankProcess(rank, local, telemetry.restart, at, exit_code=-9, ended_ns=at))
        if dead:
            self.note()
        return dead

    def note(self) -> None:
        """Something has changed that the portal should know now."""
        self._batch.urgent = True

    def ended(self, rank: RankProcess) -> None:
        """A rank is dead: read it to its end and close its books."""
        if self.telemetry is None or rank.ended_ns is None or rank.restart != self.telemetry.restart:
            return
        self.telemetry.drain(self._batch, rank.rank, now_ns=rank.ended_ns)
        time_ = self.telemetry.times[rank.rank]
        time_.begin(rank.started_ns, phase="program")
        time_.end(rank.ended_ns, lost=rank.exit_code != 0)
        self.note()

    def collect(self, ranks: list[RankProcess]) -> bool:
        """Read what is new; whether a batch was made that should be sent at once."""
        if self.telemetry is None:
            return False
        now, now_ns = time.monotonic(), time.time_ns()
        writing = frozenset(r.rank for r in ranks if r.running)
        self.telemetry.read(self._batch, now_ns=now_ns, writing=writing)
        if now - self._began > UNRECORDED_AFTER_S:
            for rank in ranks:
                time_ = self.telemetry.times[rank.rank]
                if rank.running and rank.known and (time_.cursor_ns is None or time_.phases == ["program"]):
                    time_.begin(rank.started_ns, phase="program")
                    time_.advance(now_ns)
        age = now - self._began
        due = now - self._flushed >= min(LAST_FLUSH_S, max(FIRST_FLUSH_S, age / 120))
        if due or self._batch.urgent:
            return self.flush()
        return False

    def flush(self) -> bool:
        """Make a batch of all that is new, if anything is; whether it should be sent at once."""
        now, urgent = time.monotonic(), self._batch.urgent
        window_s = min(LAST_WINDOW_S, max(FIRST_WINDOW_S, (now - self._began) / 30))
        if self.telemetry is not None and (urgent or now - self._windowed >= window_s):
            self.telemetry.cut(self._batch)
            self._windowed = now
        logs = self.logs.look() if self.logs is not None else []
        self._flushed = now
        if self._batch or logs or urgent:
            report = self._batch.as_json() | {"logs": logs}
            self.num_dropped += self._batch.num_dropped
            self._batch = Batch()
            self._add(report)
        return urgent

    def _add(self, report: dict[str, Any]) -> bool:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        return self.spool.add(seq, report, self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "next_seq": self.next_seq,
            "started_restart": self.started_restart,
            "num_dropped": self.num_dropped,
            "handled": self.handled,
            "telemetry": self.telemetry.as_json() if self.telemetry is not None else None,
        }
