"""Acts on a node. The cluster page itself also shows jobs: it stands in ``portal.web``."""

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.accounts.policy import require
from portal.cluster.api import ACTS
from portal.cluster.models import Node
from portal.cluster.services import node_state_set
from portal.errors import NotFound, PortalError
from portal.web.access import PageRequest, page


class ReasonMissing(PortalError):
    """Taking a node away without a word."""

    code = "reason-missing"
    title = "A reason is missing"


@page("POST")
def node_act(request: PageRequest, name: str, act: str) -> HttpResponse:
    """Cordon, uncordon or drain a node, with a reason for the first and the last."""
    if act not in ACTS:
        raise Http404
    require(request.user, "node.edit")
    node = Node.objects.filter(pk=name).first()
    if node is None:
        raise NotFound(_("There is no node {name}.").format(name=name[:63]))
    reason = request.POST.get("reason", "").strip()
    if not reason and act != "uncordon":
        raise ReasonMissing(_("Say in a few words why {name} is taken out of service: others will read it.").format(name=name))
    version = request.POST.get("version", "")
    node_state_set(
        node=node,
        state=ACTS[act],
        reason=reason,
        user=request.user,
        version=int(version) if version.isdecimal() and len(version) < 10 else node.version,
        now=timezone.now(),
    )
    messages.success(request, _("Node {name} is changed.").format(name=name))
    return redirect("cluster")
