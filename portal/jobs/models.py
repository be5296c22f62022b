"""Jobs and their attempts. What an attempt reports stands in ``telemetry.py``."""

from django.db import models
from django.db.models import Q

from portal import ids
from portal.accounts.models import Team, User
from portal.cluster.models import Node
from portal.jobs.lifecycle import ATTEMPT_FINAL, AttemptState, JobState
from portal.quotas.models import Queue


class Job(models.Model):
    """What a person or a pipeline asked for. ``spec`` never changes after the submission."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.job_id, editable=False)
    name = models.CharField(max_length=100)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    queue = models.ForeignKey(Queue, on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="jobs")
    spec = models.JSONField()
    labels = models.JSONField(default=dict)
    state = models.CharField(max_length=12, choices=JobState, default=JobState.QUEUED)
    state_since = models.DateTimeField()
    submitted_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    # What the scheduler orders and places by, copied out of the spec.
    gpu_type = models.SlugField(max_length=60)
    num_nodes = models.PositiveIntegerField()
    gpus_per_node = models.PositiveIntegerField()
    priority = models.IntegerField(default=0)
    time_limit_s = models.PositiveIntegerField(null=True)
    hold = models.CharField(max_length=8, blank=True)  # "", "user" or "admin"
    not_before = models.DateTimeField(null=True)
    excluded_nodes = models.JSONField(default=list)

    # Written only by the scheduling pass that decided it, with the pass's time.
    pending_reason = models.JSONField(null=True)

    resume = models.CharField(max_length=500, default="auto")
    failures_without_progress = models.PositiveIntegerField(default=0)
    progress_step = models.PositiveBigIntegerField(default=0)  # highest step at the last failure
    max_step = models.PositiveBigIntegerField(default=0)
    end_cause = models.JSONField(null=True)

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("state", "submitted_at")),
            models.Index(fields=("team", "-id")),
            models.Index(fields=("user", "-id")),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.num_nodes * self.gpus_per_node


class Attempt(models.Model):
    """One try at running a job: the GPUs it holds, who watches it, and how it ended."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.attempt_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=12, choices=AttemptState, default=AttemptState.ALLOCATING)
    state_since = models.DateTimeField()
    created_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    # Fencing of flows: a flow run with an older epoch is refused.
    epoch = models.PositiveIntegerField(default=1)
    flow_run_id = models.CharField(max_length=60, blank=True)
    flow_holder = models.CharField(max_length=200, blank=True)
    flow_claimed_at = models.DateTimeField(null=True)
    flow_seen_at = models.DateTimeField(null=True)

    # The gang's current restart, and the meeting point of its ranks once all nodes are ready.
    restart = models.PositiveIntegerField(default=0)
    master_addr = models.CharField(max_length=255, blank=True)
    master_port = models.PositiveIntegerField(null=True)
    save_id = models.PositiveIntegerField(default=0)
    dump_id = models.PositiveIntegerField(default=0)
    stop_requested_at = models.DateTimeField(null=True)
    grace_s = models.FloatField(default=30.0)

    # Decided when the attempt goes to ``stopping``; becomes the state when every process is gone.
    outcome = models.CharField(max_length=12, blank=True)
    cause = models.JSONField(null=True)

    # What the trainer said about itself: parameters, corpus, licence, strategy.
    facts = models.JSONField(default=dict)
    max_step = models.PositiveBigIntegerField(default=0)
    last_step_at = models.DateTimeField(null=True)
    ledger_closed = models.BooleanField(default=False)

    class Meta:
        ordering = ("job_id", "number")
        constraints = (
            models.UniqueConstraint(fields=("job", "number"), name="attempt_number_once"),
            models.UniqueConstraint(
                fields=("job",),
                condition=~Q(state__in=sorted(ATTEMPT_FINAL)),
                name="one_live_attempt_per_job",
            ),
        )
        indexes = (models.Index(fields=("state",)),)

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class Allocation(models.Model):
    """One GPU of one node, held by an attempt from ``since`` until ``until``."""

    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="allocations")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="allocations")
    gpu_index = models.PositiveIntegerField()
    since = models.DateTimeField()
    until = models.DateTimeField(null=True)

    class Meta:
        ordering = ("attempt_id", "node_id", "gpu_index")
        # The database itself refuses to give a GPU twice.
        constraints = (
            models.UniqueConstraint(
                fields=("node", "gpu_index"), condition=Q(until__isnull=True), name="gpu_held_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.node_id}/{self.gpu_index}"


class AttemptNode(models.Model):
    """A node's part in an attempt: which agent speaks for it, and what it last said."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="nodes")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    node_rank = models.PositiveIntegerField()
    # Fencing of agents: rises at each launch; a report of an older one is refused.
    generation = models.PositiveIntegerField(default=0)
    launched_at = models.DateTimeField(null=True)
    incarnation = models.CharField(max_length=64, blank=True)
    agent_started_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)
    last_seq = models.BigIntegerField(default=-1)
    agent_state = models.CharField(max_length=12, blank=True)
    agent_restart = models.IntegerField(default=-1)
    ready_restart = models.IntegerField(default=-1)
    ready_address = models.CharField(max_length=255, blank=True)
    ready_port = models.PositiveIntegerField(null=True)

    class Meta:
        ordering = ("node_rank",)
        constraints = (models.UniqueConstraint(fields=("attempt", "node"), name="node_once_per_attempt"),)

    def __str__(self) -> str:
        return f"{self.node_id} of {self.attempt_id}"


class Restart(models.Model):
    """One gang of ranks of an attempt: number 0 is its first start, each in-place restart makes another."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="restarts")
    number = models.PositiveIntegerField()
    began_at = models.DateTimeField()
    rendezvous_at = models.DateTimeField(null=True)
    first_rank_at = models.DateTimeField(null=True)
    first_step_at = models.DateTimeField(null=True)
    first_step = models.PositiveBigIntegerField(null=True)
    resumed_step = models.PositiveBigIntegerField(null=True)
    max_step_before = models.PositiveBigIntegerField(default=0)
    # When a rank died (by its node's clock), when the portal was told, and when it decided what follows.
    broke_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    cause = models.JSONField(null=True)

    class Meta:
        ordering = ("attempt_id", "number")
        constraints = (models.UniqueConstraint(fields=("attempt", "number"), name="restart_number_once"),)

    def __str__(self) -> str:
        return f"restart {self.number} of {self.attempt_id}"

    @property
    def steps_recomputed(self) -> int:
        """Optimizer steps that were done before this restart and had to be done again."""
        if self.first_step is None:
            return 0
        return max(0, self.max_step_before - self.first_step + 1)


class Rank(models.Model):
    """One rank of one restart."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="ranks")
    restart = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    local_rank = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    pid = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=8, default="running")
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    signal = models.CharField(max_length=12, blank=True)
    exit_record = models.JSONField(null=True)
    stderr_tail = models.TextField(blank=True)

    class Meta:
        ordering = ("attempt_id", "restart", "rank")
        constraints = (models.UniqueConstraint(fields=("attempt", "restart", "rank"), name="rank_once_per_restart"),)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.attempt_id}"


class Checkpoint(models.Model):
    """A checkpoint of a job, as the trainer reported it and the flow verified it."""

    class State(models.TextChoices):
        """How far it can be trusted."""

        WRITING = "writing"
        DURABLE = "durable"
        VERIFIED = "verified"
        CORRUPT = "corrupt"
        FAILED = "failed"
        DELETED = "deleted"

    id = models.CharField(primary_key=True, max_length=40, default=ids.checkpoint_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.PositiveBigIntegerField()
    path = models.CharField(max_length=1000)
    state = models.CharField(max_length=10, choices=State)
    num_bytes = models.PositiveBigIntegerField(default=0)
    digest = models.CharField(max_length=128, blank=True)
    world_size = models.PositiveIntegerField(null=True)
    stall_s = models.FloatField(null=True)
    duration_s = models.FloatField(null=True)
    written_at = models.DateTimeField()
    note = models.CharField(max_length=500, blank=True)
    pinned = models.BooleanField(default=False)

    class Meta:
        ordering = ("-step", "-written_at")
        constraints = (models.UniqueConstraint(fields=("job", "path"), name="checkpoint_path_once"),)

    def __str__(self) -> str:
        return f"step {self.step} of {self.job_id}"


class IdempotencyRecord(models.Model):
    """The stored answer to a POST with an Idempotency-Key, written in the job's own transaction."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    route = models.CharField(max_length=100)
    key = models.CharField(max_length=255)
    body_digest = models.CharField(max_length=64)
    answer = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "route", "key"), name="idempotency_key_once"),)

    def __str__(self) -> str:
        return self.key
