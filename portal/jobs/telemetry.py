"""What agents report while ranks train: series of numbers, where a rank's time went, log files."""

from django.db import models

from portal.jobs.models import Attempt, Job


class MetricChunk(models.Model):
    """Some points of one named series of one rank: ``[[step, t_ns, value], …]`` in step order."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="metric_chunks")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    restart = models.PositiveIntegerField()
    name = models.CharField(max_length=100)
    rank = models.PositiveIntegerField()
    first_step = models.PositiveBigIntegerField()
    last_step = models.PositiveBigIntegerField()
    points = models.JSONField()

    class Meta:
        indexes = (models.Index(fields=("job", "name", "id")),)

    def __str__(self) -> str:
        return f"{self.name} of {self.job_id}"


class RankWindow(models.Model):
    """Where a rank's time went from ``from_ns`` to ``to_ns``. Sent again, it changes nothing."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="windows")
    rank = models.PositiveIntegerField()
    restart = models.PositiveIntegerField()
    n = models.PositiveIntegerField()
    from_ns = models.BigIntegerField()
    to_ns = models.BigIntegerField()
    first_step = models.PositiveBigIntegerField(null=True)
    last_step = models.PositiveBigIntegerField(null=True)
    num_steps = models.PositiveIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    seconds = models.JSONField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("attempt", "rank", "restart", "n"), name="window_once"),)

    def __str__(self) -> str:
        return f"window {self.n} of rank {self.rank}"


class LogFile(models.Model):
    """A log file of a rank, by its path inside the attempt's run folder."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="logs")
    rank = models.PositiveIntegerField()
    restart = models.PositiveIntegerField()
    stream = models.CharField(max_length=10)
    path = models.CharField(max_length=300)
    num_bytes = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ("attempt_id", "restart", "rank", "stream")
        constraints = (models.UniqueConstraint(fields=("attempt", "path"), name="log_path_once"),)

    def __str__(self) -> str:
        return self.path
