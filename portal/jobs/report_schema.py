"""The shape of what flows and agents send, checked before anything is stored."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from portal.errors import BadRequest
from portal.jobs.attempts import AgentView
from portal.jobs.reports import Report

Count = Annotated[int, Field(ge=0, le=2**53)]
Instant = Annotated[int, Field(ge=0, lt=2**63)]
RankNumber = Annotated[int, Field(ge=0, lt=1_000_000)]
Text = Annotated[str, StringConstraints(max_length=500)]


class _Part(BaseModel):
    # Unknown fields are let through and dropped: an agent may be newer than the portal.
    model_config = ConfigDict(extra="ignore")


class _Ready(_Part):
    restart: Count
    address: Annotated[str, StringConstraints(max_length=255)] = ""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None


class _Rank(_Part):
    rank: RankNumber
    restart: Count | None = None
    local_rank: RankNumber
    pid: Count | None = None
    state: Literal["running", "exited"]
    exit_code: Annotated[int, Field(ge=-256, le=256)] | None = None
    signal: Annotated[str, StringConstraints(max_length=12)] | int | None = None
    t_ns: Instant


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow")
    k: Annotated[str, StringConstraints(max_length=20)]
    rank: RankNumber
    restart: Count
    t_ns: Instant = 0
    step: Count | None = None
    stall_ns: Count | None = None
    dur_ns: Count | None = None
    bytes: Count | None = None
    world_size: Count | None = None


class _Window(_Part):
    rank: RankNumber
    restart: Count
    n: Count
    from_ns: Instant
    to_ns: Instant
    first_step: Count | None = None
    last_step: Count | None = None
    num_steps: Count = 0
    tokens: Count = 0
    seconds: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


class _Series(_Part):
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    rank: RankNumber = 0
    restart: Count | None = None
    points: list[tuple[Count, Instant, float | None]]

    @field_validator("points")
    @classmethod
    def finite(cls, value: list[tuple[int, int, float | None]]) -> list[tuple[int, int, float | None]]:
        """A value that JSON cannot hold is kept as "none": the plot shows a gap, never a false number."""
        return [(s, t, v if v is not None and math.isfinite(v) else None) for s, t, v in value]


class _Log(_Part):
    rank: RankNumber
    restart: Count
    stream: Annotated[str, StringConstraints(max_length=10)]
    path: Annotated[str, StringConstraints(max_length=300)]
    bytes: Count


class _Problem(_Part):
    code: Annotated[str, StringConstraints(max_length=60)]
    message: str = ""
    node: str | None = None
    # The restart at which it arose; an agent's.
    restart: int | None = None


class _Report(_Part):
    incarnation: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    seq: Annotated[int, Field(ge=0, lt=2**62)]
    state: Annotated[str, StringConstraints(max_length=12)]
    restart: Annotated[int, Field(ge=-1)] = -1
    ready: _Ready | None = None
    ranks: list[_Rank] = []
    records: list[_Record] = []
    windows: list[_Window] = []
    series: list[_Series] = []
    logs: list[_Log] = []
    tails: dict[str, str] = {}
    node: dict[str, Any] = {}
    problem: _Problem | None = None


class _Claim(_Part):
    epoch: Count
    flow_run_id: Annotated[str, StringConstraints(max_length=60)] = ""
    holder: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class _Agent(_Part):
    node: Text
    generation: Count = 0
    alive: bool
    exit_code: int | None = None


class _Heartbeat(_Part):
    epoch: Count
    phase: Text = ""
    agents: list[_Agent] = []
    problem: _Problem | None = None


class _Epoch(_Part):
    epoch: Count


class _Settle(_Part):
    epoch: Count
    gone: bool
    checkpoint: dict[str, Any] | None = None


def _read(model: type[Any], data: Any) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(str(part) for part in first["loc"])
        raise BadRequest(f"The report's field {place!r} is not as docs/protocol.md says ({first['type']}).") from None


def read_report(data: Any) -> Report:
    """The report, checked. Raises ``BadRequest`` naming the first wrong field."""
    body: _Report = _read(_Report, data)
    return Report(
        incarnation=body.incarnation,
        seq=body.seq,
        state=body.state,
        restart=body.restart,
        ready=body.ready.model_dump() if body.ready else None,
        ranks=[r.model_dump(exclude_none=True) for r in body.ranks],
        records=[r.model_dump() for r in body.records],
        windows=[w.model_dump() for w in body.windows],
        series=[s.model_dump(exclude_none=True) for s in body.series],
        logs=[x.model_dump() for x in body.logs],
        tails=body.tails,
        node=body.node,
        problem=body.problem.model_dump() if body.problem else None,
    )


def read_claim(data: Any) -> dict[str, Any]:
    """epoch, flow_run_id, holder."""
    return dict(_read(_Claim, data))


def read_heartbeat(data: Any) -> tuple[int, list[AgentView], dict[str, Any] | None]:
    """The epoch, what the engine sees, and its problem if any."""
    body: _Heartbeat = _read(_Heartbeat, data)
    agents = [AgentView(a.node, a.generation, a.alive, a.exit_code) for a in body.agents]
    return body.epoch, agents, body.problem.model_dump() if body.problem else None


def read_epoch(data: Any) -> int:
    """The epoch alone."""
    return int(_read(_Epoch, data).epoch)


def read_settle(data: Any) -> tuple[int, bool, dict[str, Any] | None]:
    """The epoch, whether every process is gone, and the newest checkpoint as verified."""
    body: _Settle = _read(_Settle, data)
    return body.epoch, body.gone, body.checkpoint
