"""The audit log in Django's admin."""

from django.contrib import admin

from portal.events.models import Event
from portal.web.admin_base import ReadOnlyAdmin


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    """What happened, newest first, with before and after."""

    list_display = ("at", "actor", "verb", "subject_kind", "subject_id", "before", "after", "reason")
    list_filter = ("subject_kind", "verb")
    search_fields = ("subject_id", "actor")
    date_hierarchy = "at"
    ordering = ("-seq",)
    # Counting a large log for each page costs more than the page.
    show_full_result_count = False
