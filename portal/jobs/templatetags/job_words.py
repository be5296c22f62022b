"""Filters of the job pages."""

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.jobs import words

register = template.Library()

register.filter("reason_short", words.reason_short)
register.filter("reason_sentence", words.reason_sentence)
register.filter("cause_short", words.cause_short)
register.filter("cause_sentence", words.cause_sentence)
register.filter("follows_sentence", words.follows_sentence)
register.filter("state_word", words.state_word)


@register.simple_tag
def badge(state: Any) -> SafeString:
    """A state as a badge: its word, a mark and a colour."""
    return format_html('<span class="state state-{}">{}</span>', state, words.state_word(str(state)))
