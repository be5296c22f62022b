"""The token of a node agent: one attempt, one node, one generation. Derived, so nothing is stored."""

import hashlib
import hmac
from dataclasses import dataclass

from django.conf import settings

from portal.errors import PortalError

PREFIX = "agent"


class BadAgentToken(PortalError):
    """Not a token of ours."""

    code = "bad-agent-token"
    status = 401
    title = "Not an agent's token"


@dataclass(frozen=True)
class AgentIdentity:
    """Whom a token speaks for. Whether that agent is still the live one is checked in the database."""

    attempt_id: str
    node: str
    generation: int


def agent_token(identity: AgentIdentity) -> str:
    """The token's text: ``agent/<attempt>/<node>/<generation>/<mac>``."""
    body = f"{identity.attempt_id}/{identity.node}/{identity.generation}"
    return f"{PREFIX}/{body}/{_mac(body)}"


def agent_identity(text: str) -> AgentIdentity:
    """Whom the token speaks for; ``BadAgentToken`` unless we made it."""
    prefix, _, rest = text.partition("/")
    body, _, mac = rest.rpartition("/")
    parts = body.split("/")
    if prefix != PREFIX or len(parts) != 3 or not hmac.compare_digest(mac, _mac(body)):
        raise BadAgentToken("This is not a token that the portal gave to an agent.")
    return AgentIdentity(parts[0], parts[1], int(parts[2]))


def _mac(body: str) -> str:
    # The prefix keeps these apart from the digests of API tokens, which use the same key.
    return hmac.new(settings.TOKEN_KEY.encode(), b"agent-token:" + body.encode(), hashlib.sha256).hexdigest()
