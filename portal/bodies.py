"""Reading what people and programs send: JSON and YAML, with limits."""

import json
from typing import Any

import yaml

from portal.errors import BadRequest

MAX_TEXT_BYTES = 256 * 1024
MAX_DEPTH = 32


def yaml_load(text: str) -> Any:
    """The data of a text typed as YAML (JSON is YAML too). Raises ``BadRequest`` with the line of the fault."""
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise BadRequest(f"The text is larger than {MAX_TEXT_BYTES // 1024} kB. A spec names data, it holds none.")
    try:
        data = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader that refuses aliases
    except _TooMuch as error:
        raise BadRequest(str(error)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadRequest(f"The text is not readable as YAML{where}: check indentation, colons and quotes.") from None
    return data


def json_load(body: bytes) -> Any:
    """The data of a JSON body; ``BadRequest`` with a sentence when it is none, or nested too deep."""

    def no_constant(text: str) -> None:
        raise BadRequest(f"{text} is not a number in JSON.")

    try:
        data = json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise BadRequest("The body is not readable as JSON.") from None
    _check_depth(data)
    return data


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise BadRequest(f"The data is nested more than {MAX_DEPTH} levels deep.")


class _TooMuch(Exception):
    """The text would grow when it is read."""


class _PlainLoader(yaml.SafeLoader):
    """Plain data only: no aliases (a few lines of them can stand for gigabytes), no key twice."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise _TooMuch("YAML anchors and aliases are not allowed here. Write the value out.")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooMuch(f"The data is nested more than {MAX_DEPTH} levels deep.")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _value in node.value:
            if key.value in seen:
                raise _TooMuch(f"The key {key.value!r} stands twice, in line {key.start_mark.line + 1}.")
            seen.add(key.value)
        return super().construct_mapping(node, deep)
