"""Nodes in Django's admin: they come from the inventory and change on the cluster page."""

from django.contrib import admin

from portal.cluster.models import Node
from portal.web.admin_base import ReadOnlyAdmin


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    """Nodes and their state."""

    list_display = ("name", "gpu_type", "num_gpus", "address", "state", "state_reason", "state_since")
    list_filter = ("state", "gpu_type")
    search_fields = ("name",)
