"""Rows for tests: what does not matter is filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.accounts.models import Membership, Team, User
from portal.accounts.tokens import token_create
from portal.cluster.models import Node
from portal.jobs.attempt_tokens import AgentIdentity
from portal.jobs.attempts import agent_launch, attempt_claim
from portal.jobs.models import Attempt, Job
from portal.jobs.report_schema import read_report
from portal.jobs.reports import agent_report
from portal.jobs.services import job_submit
from portal.jobs.starts import attempt_start
from portal.quotas.services import LimitChange, team_create

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def ns(at: datetime) -> int:
    """The instant in nanoseconds."""
    return int(at.timestamp() * 1e9)


def user(name: str = "ada", **values: Any) -> User:
    """A user."""
    return User.objects.get_or_create(username=name, defaults=values)[0]


def admin(name: str = "root") -> User:
    """An administrator."""
    return user(name, is_superuser=True, is_staff=True)


def team(name: str = "vision", *, gpus: int = 8, gpu_type: str = "cpu-sim", cohort: str | None = None) -> Team:
    """A team with a queue of its name and a quota."""
    limits = {gpu_type: LimitChange(gpus, None, None)}
    return team_create(name=name, limits=limits, cohort=cohort, now=NOW, actor="test")


def member(name: str, of: Team, role: str = "member") -> User:
    """A user with a role in a team."""
    found = user(name)
    Membership.objects.update_or_create(team=of, user=found, defaults={"role": role})
    return found


def nodes(**sizes: int) -> list[Node]:
    """Nodes by name and number of GPUs."""
    return [
        Node.objects.get_or_create(name=name, defaults={"gpu_type": "cpu-sim", "num_gpus": gpus, "state_since": NOW})[0]
        for name, gpus in sizes.items()
    ]


def token(of: User, *scopes: str) -> str:
    """The text of a token with the scopes."""
    chosen = scopes or ("jobs:read", "jobs:write", "quota:read")
    return token_create(user=of, name="test", scopes=chosen, lifetime=timedelta(days=1), now=datetime.now(UTC))[1]


def spec(**values: Any) -> dict[str, Any]:
    """A job spec for two nodes of two GPUs."""
    return {
        "name": "tiny",
        "team": "vision",
        "gpu_type": "cpu-sim",
        "nodes": 2,
        "gpus_per_node": 2,
        "workload": {"kind": "command", "argv": ["python", "-c", "pass"], "working_dir": "/"},
    } | values


def job(by: User | None = None, **values: Any) -> Job:
    """A submitted job; its team, nodes and member are made when absent."""
    if not Team.objects.filter(name=values.get("team", "vision")).exists():
        team(values.get("team", "vision"))
    if not Node.objects.exists():
        nodes(a=2, b=2)
    owner = by or member("ada", Team.objects.get(name=values.get("team", "vision")))
    now = values.pop("now", NOW)
    return job_submit(user=owner, data=spec(**values), now=now)[0]


@dataclass
class Gang:
    """A live attempt driven by hand: what its flow and its agents would report."""

    job: Job
    now: datetime = NOW
    seqs: dict[str, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)

    @property
    def attempt(self) -> Attempt:
        """The newest attempt, read anew."""
        found = Attempt.objects.select_related("job").filter(job=self.job).order_by("-number").first()
        assert found is not None
        return found

    def start(self, placement: Mapping[str, int] | None = None) -> "Gang":
        """Admit, claim and launch the agents."""
        self.job.refresh_from_db()
        attempt = attempt_start(job=self.job, placement=placement or {"a": 2, "b": 2}, now=self.now)
        attempt_claim(attempt_id=attempt.pk, epoch=1, flow_run_id="run", holder="flow-1", now=self.now)
        for part in attempt.nodes.all():
            self.launch(part.node_id)
        return self

    def launch(self, node: str) -> None:
        """A new agent generation on the node."""
        attempt = self.attempt
        answer = agent_launch(attempt_id=attempt.pk, epoch=attempt.epoch, node=node, now=self.now)
        self.generations[node] = answer["generation"]

    def report(self, node: str, **values: Any) -> dict[str, Any]:
        """One report of a node's agent, and the portal's answer."""
        self.seqs[node] = self.seqs.get(node, -1) + 1
        body = {"incarnation": f"{node}-{self.generations[node]}", "seq": self.seqs[node], "state": "running"}
        identity = AgentIdentity(self.attempt.pk, node, self.generations[node])
        return agent_report(identity=identity, report=read_report(body | values), now=self.now)

    def ready(self) -> "Gang":
        """Both nodes ready for the current restart."""
        restart = self.attempt.restart
        for node in self.generations:
            ready = {"restart": restart, "address": "127.0.0.1", "port": 40000 + restart}
            self.report(node, state="ready", restart=restart, ready=ready)
        return self

    def run(self) -> "Gang":
        """All ranks running."""
        self.ready()
        for node in self.generations:
            self.report(node, restart=self.attempt.restart, ranks=[self.rank(r) for r in self.ranks_of(node)])
        return self

    def ranks_of(self, node: str) -> list[int]:
        """Global ranks of the node."""
        part = self.attempt.nodes.get(node_id=node)
        per_node = self.job.gpus_per_node
        return [part.node_rank * per_node + i for i in range(per_node)]

    def rank(self, rank: int, **values: Any) -> dict[str, Any]:
        """A rank's row in a report."""
        local = rank % self.job.gpus_per_node
        row = {"rank": rank, "local_rank": local, "pid": 1000 + rank, "state": "running", "t_ns": ns(self.now)}
        return row | {"restart": self.attempt.restart} | values

    def exits(self, rank: int, code: int = 0, status: str | None = None) -> dict[str, Any]:
        """A rank ends; ``status`` is its exit record's."""
        node = next(n for n in self.generations if rank in self.ranks_of(n))
        restart = self.attempt.restart
        records = []
        if status:
            records = [{"k": "exit", "rank": rank, "restart": restart, "status": status, "t_ns": ns(self.now)}]
        ended = self.rank(rank, state="exited", exit_code=code)
        return self.report(node, restart=restart, ranks=[ended], records=records)

    def finish(self) -> "Gang":
        """Every rank finishes."""
        for node in self.generations:
            for rank in self.ranks_of(node):
                self.exits(rank, 0, "finished")
        return self

    def wait(self, seconds: float) -> "Gang":
        """Later."""
        self.now += timedelta(seconds=seconds)
        return self
