"""The calls of flows and node agents (docs/protocol.md)."""

from typing import Any

from django.conf import settings
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.authentication import TokenAuthentication
from portal.bodies import json_load
from portal.errors import Forbidden
from portal.jobs import attempts, report_schema
from portal.jobs.attempt_tokens import AgentIdentity, agent_identity
from portal.jobs.reports import agent_report
from portal.rest import TooLarge, body_of


class IsFlow(BasePermission):
    """The service account of the flows."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Only a token with the scope ``flow``; being an administrator is not enough."""
        if "flow" in (getattr(request.user, "token_scopes", None) or ()):
            return True
        raise Forbidden("These calls are for flows: the token needs the scope flow.")


class FlowView(APIView):
    """A call of a flow about its attempt."""

    authentication_classes = (TokenAuthentication,)
    permission_classes = (IsFlow,)
    schema = None


class ClaimView(FlowView):
    """``POST /api/v1/flow/attempts/<id>/claim``."""

    def post(self, request: Request, attempt_id: str) -> Response:
        """The plan, for the first flow of this epoch."""
        claim = report_schema.read_claim(json_load(body_of(request)))
        return Response(attempts.attempt_claim(attempt_id=attempt_id, now=timezone.now(), **claim))


class HeartbeatView(FlowView):
    """``POST /api/v1/flow/attempts/<id>/heartbeat``."""

    def post(self, request: Request, attempt_id: str) -> Response:
        """What the flow should do now."""
        epoch, agents, problem = report_schema.read_heartbeat(json_load(body_of(request)))
        answer = attempts.attempt_heartbeat(
            attempt_id=attempt_id, epoch=epoch, agents=agents, problem=problem, now=timezone.now()
        )
        return Response(answer)


class LaunchView(FlowView):
    """``POST /api/v1/flow/attempts/<id>/agents/<node>/launch``."""

    def post(self, request: Request, attempt_id: str, node: str) -> Response:
        """The next generation and its token."""
        epoch = report_schema.read_epoch(json_load(body_of(request)))
        return Response(attempts.agent_launch(attempt_id=attempt_id, epoch=epoch, node=node, now=timezone.now()))


class SettleView(FlowView):
    """``POST /api/v1/flow/attempts/<id>/settle``."""

    def post(self, request: Request, attempt_id: str) -> Response:
        """The attempt's final state."""
        epoch, gone, checkpoint = report_schema.read_settle(json_load(body_of(request)))
        state = attempts.attempt_settle(
            attempt_id=attempt_id, epoch=epoch, gone=gone, checkpoint=checkpoint, now=timezone.now()
        )
        return Response({"state": state})


class AgentAuthentication(BaseAuthentication):
    """The token of one agent; it is nobody's user."""

    def authenticate(self, request: Request) -> tuple[Any, AgentIdentity]:
        """Whom the token speaks for."""
        _, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        return None, agent_identity(text.strip())

    def authenticate_header(self, request: Request) -> str:
        """What a 401 answer names as the way in."""
        return "Bearer"


class AgentReportView(APIView):
    """``POST /api/v1/agent/report``."""

    authentication_classes = (AgentAuthentication,)
    permission_classes = ()
    schema = None

    def post(self, request: Request) -> Response:
        """The acknowledgement and the desired state."""
        size = int(request.META.get("CONTENT_LENGTH") or 0)
        if size > settings.AGENT_REPORT_MAX_BYTES:
            raise TooLarge("The report is too large: send it in smaller batches.")
        report = report_schema.read_report(json_load(request.stream.read(size) if request.stream else b""))
        identity = request.auth
        assert isinstance(identity, AgentIdentity), "AgentAuthentication is this view's only one"
        return Response(agent_report(identity=identity, report=report, now=timezone.now()))
