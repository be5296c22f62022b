"""The quota page: who may use how much, and who lends to whom."""

from django.http import HttpResponse
from django.shortcuts import render

from portal.accounts.policy import may, require
from portal.quotas.page_queries import quota_tree
from portal.web.access import PageRequest, page


@page()
def quota_page(request: PageRequest) -> HttpResponse:
    """All limits as a tree: they are no secret inside a cluster."""
    require(request.user, "queue.read")
    context = {"branches": quota_tree(), "may_edit": may(request.user, "quota.edit")}
    return render(request, "quotas/quota.html", context)
