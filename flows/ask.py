"""HTTP to our own loopback servers with the standard library: the supervisor stays small, and uses no proxy."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def ask(
    url: str, *, body: Any = None, headers: Mapping[str, str] | None = None, timeout_s: float = 2.0
) -> tuple[int, Any]:
    """Status and JSON answer (None when it is no JSON); ``OSError`` when the server is away.

    A body makes it a POST.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request(
            "GET" if body is None else "POST",
            parts.path + (f"?{parts.query}" if parts.query else ""),
            None if body is None else json.dumps(body).encode(),
            {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})},
        )
        answer = connection.getresponse()
        text = answer.read()
    except http.client.HTTPException as error:
        # A server that is being killed breaks off in the middle of its answer.
        raise ConnectionError(f"{type(error).__name__} from {parts.netloc}") from error
    finally:
        connection.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, None
