"""Plain data into a tree of dataclasses: every fault is named with its place, all at once. Free of torch."""

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping
from typing import Any, Literal

Fault = tuple[str, str]  # a JSON pointer and a sentence
Bounds = Mapping[str, tuple[float, float]]

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def read_into(cls: type[Any], data: Any, bounds: Bounds, faults: list[Fault], at: str = "") -> Any:
    """An instance of a config dataclass, or None; what is wrong is added to ``faults``."""
    if not isinstance(data, Mapping):
        faults.append((at, f"{_dotted(at) or 'The configuration'} must be an object, and is {data!r:.60}."))
        return None
    hints = typing.get_type_hints(cls)
    before = len(faults)
    values: dict[str, Any] = {}
    for name, value in data.items():
        here = f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}"
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(hints)}."
            faults.append((here, f"{_dotted(here)[:80]} is not a setting of the trainer.{hint}"))
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = read_into(typing.cast(type[Any], hints[name]), value, bounds, faults, here)
        else:
            values[name] = _value(hints[name], value, here, bounds, faults)
    return cls(**values) if len(faults) == before else None


def _value(hint: Any, value: Any, at: str, bounds: Bounds, faults: list[Fault]) -> Any:
    name = _dotted(at)
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if not isinstance(value, str) or value not in allowed:
            near = difflib.get_close_matches(str(value), map(str, allowed), n=1)
            hint_text = f" Did you mean {near[0]!r}?" if near else ""
            choices = ", ".join(map(str, allowed))
            faults.append((at, f"{name} must be one of {choices}, and is {value!r:.60}.{hint_text}"))
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 10**300 else math.inf
    if isinstance(value, bool) is not (hint is bool) or not isinstance(value, hint):
        faults.append((at, f"{name} must be {_WORDS[hint]}, and is {value!r:.60}."))
        return value
    low, high = bounds.get(at, (None, None))
    if low is not None and high is not None and not low <= value <= high:
        faults.append((at, f"{name} must be between {low:g} and {high:g}, and is {_short(value)}."))
    if hint is str and ("\0" in value or len(value) > 4096):
        faults.append((at, f"{name} must be text of at most 4,096 characters without NUL."))
    return value


def _short(value: Any) -> str:
    # Python refuses to print integers of thousands of digits.
    return "a huge number" if isinstance(value, int) and value.bit_length() > 200 else f"{value!r:.60}"


def _dotted(at: str) -> str:
    return at[1:].replace("/", ".").replace("~1", "/").replace("~0", "~")
