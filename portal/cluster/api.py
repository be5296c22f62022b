"""REST for nodes."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.policy import require
from portal.bodies import json_load
from portal.cluster.models import Node, NodeState
from portal.cluster.services import node_state_set
from portal.errors import BadRequest, NotFound
from portal.rest import body_of, caller, check_parameters, etag_of

ACTS = {"cordon": NodeState.CORDONED, "uncordon": NodeState.READY, "drain": NodeState.DRAINING}


def node_json(node: Node) -> dict[str, Any]:
    """A node as REST shows it."""
    return {
        "name": node.name,
        "gpu_type": node.gpu_type,
        "gpus": node.num_gpus,
        "address": node.address,
        "labels": node.labels,
        "state": node.state,
        "state_reason": node.state_reason,
        "state_since": node.state_since.isoformat(),
        "version": node.version,
    }


class NodesView(APIView):
    """``/api/v1/nodes``."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """All nodes by name."""
        check_parameters(request, ("gpu_type", "state"))
        require(caller(request), "node.read")
        rows = Node.objects.all()
        for name in ("gpu_type", "state"):
            if name in request.query_params:
                rows = rows.filter(**{name: request.query_params[name]})
        return Response({"items": [node_json(row) for row in rows]})


class NodeActView(APIView):
    """``POST /api/v1/nodes/<name>/cordon`` and its like."""

    @extend_schema(request=OpenApiTypes.OBJECT, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request, name: str, act: str) -> Response:
        """Cordon, uncordon or drain, with a reason."""
        require(caller(request), "node.edit")
        node = Node.objects.filter(pk=name).first()
        if node is None:
            raise NotFound(f"There is no node {name!r}.")
        data = json_load(body_of(request) or b"{}")
        if not isinstance(data, dict):
            raise BadRequest("The body of an act is an object.")
        node = node_state_set(
            node=node,
            state=ACTS[act],
            reason=str(data.get("reason", "")),
            user=caller(request),
            version=node.version,
            now=timezone.now(),
        )
        response = Response(node_json(node), status=202)
        response["ETag"] = etag_of(node.version)
        return response
