"""Parts of a page that renew themselves: a quick fingerprint first, and only what changed is sent."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

STOP_POLLING = 286  # htmx's word for "nothing more will come"


def digest(data: Any) -> str:
    """A short digest of plain data."""
    text = data if isinstance(data, str) else json.dumps(data, default=str, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def unchanged(request: HttpRequest, fingerprint: str) -> HttpResponse | None:
    """304 when the browser already shows this state, else None: then the part is worth rendering."""
    if request.headers.get("If-None-Match") != f'"{fingerprint}"':
        return None
    return HttpResponse(status=304, headers={"ETag": f'"{fingerprint}"'})


@dataclass(frozen=True)
class Part:
    """A named piece of a page; its digest tells whether the browser has it."""

    name: str
    html: str

    @property
    def digest(self) -> str:
        """Of the content, without times that the browser counts on by itself."""
        return digest(re.sub(r" data-since>[^<]*<", " data-since><", self.html))

    def wrapped(self, *, swap: bool = False) -> SafeString:
        """The piece in its element; ``swap`` makes it replace the one that is shown."""
        # The content comes from a template, which has escaped it.
        content = mark_safe(self.html)  # noqa: S308
        if swap:
            return format_html(
                '<div id="part-{}" data-part="{}" data-digest="{}" hx-swap-oob="true">{}</div>',
                self.name,
                self.name,
                self.digest,
                content,
            )
        return format_html(
            '<div id="part-{}" data-part="{}" data-digest="{}">{}</div>', self.name, self.name, self.digest, content
        )


def shown_parts(request: HttpRequest) -> dict[str, str]:
    """Name → digest of the parts that the browser shows, from its ``X-Parts`` header."""
    pairs = (item.partition("=") for item in request.headers.get("X-Parts", "")[:2000].split(";"))
    return {name: value for name, _, value in pairs if value}


def parts_response(
    request: HttpRequest, *, fingerprint: str, parts: Callable[[], Mapping[str, str]], ended: bool
) -> HttpResponse:
    """The parts that differ from those shown; 304 when the fingerprint does not; the last answer ends the polling."""
    same = unchanged(request, fingerprint)
    if same is not None and not ended:
        return same
    shown = shown_parts(request)
    fresh = [Part(name, html) for name, html in parts().items()]
    body = "".join(part.wrapped(swap=True) for part in fresh if shown.get(part.name) != part.digest)
    response = HttpResponse(body, status=STOP_POLLING if ended else 200)
    response["ETag"] = f'"{fingerprint}"'
    response["Cache-Control"] = "no-store"
    return response
