"""The ledger in Django's admin: to look at."""

from django.contrib import admin

from portal.usage.models import UsageEntry
from portal.web.admin_base import ReadOnlyAdmin


@admin.register(UsageEntry)
class UsageEntryAdmin(ReadOnlyAdmin):
    """GPU time by attempt, day and cause."""

    list_display = ("day", "team", "user", "job_id", "gpu_type", "cause", "gpu_ns")
    list_filter = ("cause", "gpu_type")
    list_select_related = ("team", "user")
    date_hierarchy = "day"
    show_full_result_count = False
