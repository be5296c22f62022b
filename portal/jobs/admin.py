"""Jobs, attempts and checkpoints in Django's admin: to look at. People act on a job's own page."""

from django.contrib import admin

from portal.jobs.models import Allocation, Attempt, Checkpoint, Job
from portal.web.admin_base import ReadOnlyAdmin


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """What was asked for."""

    list_display = ("name", "id", "team", "user", "state", "num_nodes", "gpus_per_node", "submitted_at", "ended_at")
    list_filter = ("state", "gpu_type")
    list_select_related = ("team", "user")
    search_fields = ("name", "id", "user__username")
    show_full_result_count = False


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    """Tries at running jobs, with what fences them."""

    list_display = ("id", "job_id", "number", "state", "epoch", "restart", "flow_holder", "flow_seen_at", "outcome")
    list_filter = ("state",)
    search_fields = ("id", "job__id")
    show_full_result_count = False


@admin.register(Allocation)
class AllocationAdmin(ReadOnlyAdmin):
    """Who held which GPU from when to when."""

    list_display = ("node_id", "gpu_index", "attempt_id", "since", "until")
    list_filter = ("node",)
    show_full_result_count = False


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyAdmin):
    """Checkpoints and how far they can be trusted."""

    list_display = ("id", "job_id", "step", "state", "num_bytes", "world_size", "written_at", "pinned")
    list_filter = ("state",)
    show_full_result_count = False
