"""The submit form and the spec behind it, both ways. The spec is the truth; the form shows a part of it."""

import re
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import yaml

from portal.errors import FieldError
from portal.jobs.spec import JobSpec
from trainer.config import PRESETS, DataConfig, TrainerConfig

Kind = Literal["text", "int", "duration", "lines", "pairs"]


@dataclass(frozen=True)
class FormField:
    """A field of the form and its place in the spec."""

    name: str
    path: tuple[str, ...]
    kind: Kind = "text"
    workload: str = ""


def _config(name: str, *path: str, kind: Kind = "text") -> FormField:
    return FormField(name, ("workload", "config", *path), kind, workload="trainer")


FIELDS: Final = (
    FormField("name", ("name",)),
    FormField("team", ("team",)),
    FormField("queue", ("queue",)),
    FormField("gpu_type", ("gpu_type",)),
    FormField("nodes", ("nodes",), "int"),
    FormField("gpus_per_node", ("gpus_per_node",), "int"),
    FormField("priority", ("priority",), "int"),
    FormField("time_limit", ("time_limit_s",), "duration"),
    FormField("max_retries", ("max_retries",), "int"),
    FormField("labels", ("labels",), "pairs"),
    FormField("environment", ("environment",), "pairs"),
    _config("preset", "model", "preset"),
    _config("steps", "steps", kind="int"),
    _config("batch", "global_batch_size", kind="int"),
    _config("strategy", "strategy"),
    _config("precision", "precision"),
    _config("corpus", "data", "corpus"),
    FormField("argv", ("workload", "argv"), "lines", workload="command"),
    FormField("working_dir", ("workload", "working_dir"), workload="command"),
)
ORDER: Final = tuple(
    dict.fromkeys([*(f.path[0] for f in FIELDS if not f.workload), "hold", "resume", "grace_s", "workload"])
)
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "preset": tuple(PRESETS),
    "strategy": get_args(TrainerConfig.__annotations__["strategy"]),
    "precision": get_args(TrainerConfig.__annotations__["precision"]),
}
# What the form shows where the spec says nothing. It stays unsaid in the spec until it is changed.
SHOWN_DEFAULTS: Final = {
    "nodes": "1",
    "gpus_per_node": "1",
    "priority": "0",
    "max_retries": str(JobSpec.model_fields["max_retries"].default),
    "preset": "tiny",
    "steps": str(TrainerConfig.steps),
    "batch": str(TrainerConfig.global_batch_size),
    "strategy": TrainerConfig.strategy,
    "precision": TrainerConfig.precision,
    "corpus": DataConfig.corpus or "python-stdlib",
}


def form_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the form's fields for a spec; what the spec does not say is shown as its default."""
    texts = {"kind": str((_get(spec, ("workload", "kind"))) or "trainer")}
    for field in FIELDS:
        value = _get(spec, field.path)
        texts[field.name] = SHOWN_DEFAULTS.get(field.name, "") if value is None else _text(value, field.kind)
    return texts


def spec_of(form: Mapping[str, str], base: Mapping[str, Any]) -> tuple[dict[str, Any], list[FieldError]]:
    """The spec of the form's texts, on top of ``base``: what the form has no field for is kept.

    A text that cannot be read stays in the spec as it is, so that both sides show it; it comes with its fault.
    """
    spec = deepcopy(dict(base))
    kind = form.get("kind", "trainer")
    workload = spec.get("workload")
    if not isinstance(workload, dict) or workload.get("kind") != kind:
        spec["workload"] = {"kind": kind} | ({"config": {}} if kind == "trainer" else {})
    faults: list[FieldError] = []
    for field in FIELDS:
        if field.workload not in ("", kind) or field.name not in form:
            continue
        text = form[field.name].replace("\r\n", "\n").strip()
        value = _value(text, field, faults)
        unsaid = text == SHOWN_DEFAULTS.get(field.name) and _get(spec, field.path) is None
        if value is None or unsaid:
            _remove(spec, field.path)
        else:
            _put(spec, field.path, value)
    return ordered(spec), faults


def ordered(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with its keys in the order in which people read them."""
    rest = [key for key in spec if key not in ORDER]
    return {key: spec[key] for key in (*ORDER, *rest) if key in spec}


class _Dumper(yaml.SafeDumper):
    """Indented lists, and texts of several lines as they are."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def yaml_of(spec: Mapping[str, Any]) -> str:
    """The spec as YAML."""
    text = yaml.dump(dict(spec), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return str(text)


def field_of(pointer: str) -> str | None:
    """The form's field that a JSON pointer into the spec leads to, or None."""
    parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    for field in FIELDS:
        if parts[: len(field.path)] == field.path:
            return field.name
    return "kind" if parts == ("workload",) or parts == ("workload", "kind") else None


def by_field(errors: list[FieldError] | tuple[FieldError, ...]) -> tuple[dict[str, str], list[FieldError]]:
    """The sentences of each field, and the errors that belong to none."""
    at_field: dict[str, str] = {}
    others: list[FieldError] = []
    for error in errors:
        name = field_of(error.pointer)
        if name is None:
            others.append(error)
        else:
            # One sentence a field: the first fault often causes the second.
            at_field.setdefault(name, error.detail)
    return at_field, others


def _get(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return None
        data = data[key]
    return data


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        inner = data.get(key)
        if not isinstance(inner, dict):
            inner = data[key] = {}
        data = inner
    data[path[-1]] = value


def _remove(data: dict[str, Any], path: tuple[str, ...]) -> None:
    inner = _get(data, path[:-1]) if len(path) > 1 else data
    if isinstance(inner, dict):
        inner.pop(path[-1], None)
        if not inner and len(path) > 2 and path[:2] == ("workload", "config") and path[:-1] != path[:2]:
            _remove(data, path[:-1])


def _text(value: Any, kind: Kind) -> str:
    if kind == "pairs" and isinstance(value, Mapping):
        return "\n".join(f"{key}={text}" for key, text in value.items())
    if kind == "lines" and isinstance(value, list):
        return "\n".join(str(line) for line in value)
    if kind == "duration" and isinstance(value, int) and not isinstance(value, bool):
        return duration_text(value)
    return str(value)


def _value(text: str, field: FormField, faults: list[FieldError]) -> Any:
    if not text:
        return None
    pointer = "/" + "/".join(field.path)
    if field.kind == "int":
        # A text with too many digits is no number that a spec could hold.
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else text
    if field.kind == "duration":
        seconds = duration_read(text)
        if seconds is None:
            sentence = f"{text[:40]!r} is not a duration. Write 90m, 2h30m, 1d or a number of seconds."
            faults.append(FieldError(pointer, "not-a-duration", sentence))
            return text
        return seconds
    if field.kind == "lines":
        return text.split("\n")
    if field.kind == "pairs":
        return _pairs(text, pointer, faults)
    return text


def _pairs(text: str, pointer: str, faults: list[FieldError]) -> Any:
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        if not sign:
            faults.append(FieldError(pointer, "not-a-pair", f"Line {number} has no '='. Write one NAME=value a line."))
            return text
        found[name.strip()] = value.strip()
    return found


UNITS_S: Final = {"d": 86_400, "h": 3600, "m": 60, "min": 60, "s": 1, "": 1}


def duration_read(text: str) -> int | None:
    """Seconds of ``2h30m``, ``90m``, ``1d``, ``1:30:00`` or ``3600``; None when it is no duration."""
    compact = text.replace(" ", "").lower()
    if re.fullmatch(r"\d{1,4}:\d{2}(:\d{2})?", compact):
        hours, minutes, *rest = (int(part) for part in compact.split(":"))
        return hours * 3600 + minutes * 60 + (rest[0] if rest else 0)
    if not re.fullmatch(r"(\d{1,9}(d|h|min|m|s|$))+", compact):
        return None
    return sum(int(n) * UNITS_S[unit] for n, unit in re.findall(r"(\d+)(d|h|min|m|s|)", compact))


def duration_text(seconds: int) -> str:
    """The shortest text that ``duration_read`` reads back."""
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def command_text(argv: list[str]) -> str:
    """An argument list as a line that people read."""
    return shlex.join(argv)
