"""Acts on a node. The cluster page itself also shows jobs: it stands in ``portal.web``."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.accounts.policy import require
from portal.cluster.api import ACTS
from portal.cluster.models import Node
from portal.cluster.services import node_state_set
from portal.errors import BadRequest, NotFound
from portal.web.access import PageRequest, page


@page("POST")
def node_act(request: PageRequest) -> HttpResponse:
    """Cordon, drain or uncordon a node; the first two need a reason, since others will ask."""
    require(request.user, "node.edit")
    name, act = request.POST.get("name", "")[:63], request.POST.get("act", "")
    if act not in ACTS:
        raise BadRequest(f"An act on a node is one of {', '.join(ACTS)}.")
    node = Node.objects.filter(pk=name).first()
    if node is None:
        raise NotFound(_("There is no node {name}.").format(name=name))
    reason = request.POST.get("reason", "").strip()
    if not reason and act != "uncordon":
        messages.error(
            request, _("Say in a few words why {name} leaves service. Nothing was changed.").format(name=name)
        )
        return redirect("cluster")
    node_state_set(
        node=node, state=ACTS[act], reason=reason, user=request.user, version=node.version, now=timezone.now()
    )
    messages.success(request, _("Node {name} is changed.").format(name=name))
    return redirect("cluster")
