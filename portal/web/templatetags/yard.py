"""Template tags of all pages: icons, times, badges, addresses with changed filters."""

import hashlib
from datetime import datetime
from functools import lru_cache
from typing import Any

from django import template
from django.conf import settings
from django.contrib.staticfiles import finders
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.web import formats

register = template.Library()

register.filter("duration", formats.duration)
register.filter("bytes", formats.num_bytes)
register.filter("gpu_hours", formats.gpu_hours)


@lru_cache(maxsize=64)
def _version(name: str) -> str:
    path = finders.find(name)
    if not isinstance(path, str):
        raise template.TemplateSyntaxError(f"There is no static file {name!r}.")
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=5).hexdigest()


@register.simple_tag
def asset(name: str) -> str:
    """The address of a static file with a mark of its content: a new version is fetched at once."""
    if settings.DEBUG:
        return static(name)
    return f"{static(name)}?v={_version(name)}"


@register.simple_tag
def icon(name: str) -> SafeString:
    """A drawing beside a word; the word says it all to a screen reader."""
    return format_html(
        '<svg class="icon" aria-hidden="true" width="16" height="16"><use href="{}#{}"></use></svg>',
        asset("web/icons.svg"),
        name,
    )


@register.simple_tag
def at(moment: datetime | None) -> SafeString | str:
    """A time in UTC, the whole of it as a tool tip."""
    if moment is None:
        return "–"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        moment.isoformat(),
        f"{moment:%Y-%m-%d %H:%M:%S}",
        formats.instant(moment, timezone.now()),
    )


@register.simple_tag
def since(start: datetime | None, end: datetime | None = None) -> SafeString | str:
    """The time from start to end; without an end it goes on counting in the browser."""
    if start is None:
        return "–"
    if end is not None:
        return formats.duration((end - start).total_seconds())
    passed = formats.duration((timezone.now() - start).total_seconds())
    # ``live.Part.digest`` leaves the text out: it changes each second, and the browser counts by itself.
    return format_html('<time datetime="{}" data-since>{}</time>', start.isoformat(), passed)


@register.simple_tag(takes_context=True)
def with_query(context: Any, **changes: Any) -> str:
    """The current query with these parameters set, or dropped when empty; paging starts anew."""
    query = context["request"].GET.copy()
    query.pop("before", None)
    for name, value in changes.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = str(value)
    text = query.urlencode()
    return f"?{text}" if text else "?"


@register.filter
def item(mapping: Any, key: Any) -> Any:
    """``mapping[key]``, or nothing."""
    return mapping.get(key, "")


@register.filter
def percent(value: float) -> str:
    """A ratio as percent with one decimal."""
    return f"{100 * value:.1f} %"


@register.filter
def plain(value: float) -> str:
    """A number with a decimal point in every language: for SVG and data attributes."""
    return f"{value:.3f}"
