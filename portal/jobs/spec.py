"""A job spec: checked whole, every fault named with its place."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from portal.errors import FieldError, InvalidSpec
from trainer.config import ConfigError, TrainerConfig

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$")]
Label = Annotated[str, StringConstraints(max_length=100)]
# A job may not change how its ranks find each other, how they report, or which libraries are loaded into them.
RESERVED_ENVIRONMENT = re.compile(
    r"^(TRAINYARD_.*|PREFECT_.*|DJANGO_.*|CELERY_.*|LD_.*|PYTHONPATH|PYTHONHOME|PATH|RANK|LOCAL_RANK|WORLD_SIZE"
    r"|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|CUDA_VISIBLE_DEVICES)$"
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TrainerWorkload(_Part):
    """The platform's own trainer with its configuration (see ``trainer.config``)."""

    kind: Literal["trainer"]
    config: dict[str, Any] = {}


class CommandWorkload(_Part):
    """A program of the user's, started once per rank. An argument list, never a shell string."""

    kind: Literal["command"]
    argv: Annotated[list[Annotated[str, StringConstraints(max_length=4096)]], Field(min_length=1, max_length=256)]
    working_dir: Annotated[str, StringConstraints(min_length=1, max_length=500)]

    @field_validator("argv")
    @classmethod
    def no_null(cls, value: list[str]) -> list[str]:
        """A NUL ends an argument in the kernel's eyes."""
        if not value[0] or any("\0" in argument for argument in value):
            raise ValueError("The first argument names a program, and no argument may hold a NUL character.")
        return value

    @field_validator("working_dir")
    @classmethod
    def absolute(cls, value: str) -> str:
        """Relative to what would a relative one be?"""
        path = PurePosixPath(value)
        if not path.is_absolute() or ".." in path.parts or "\0" in value:
            raise ValueError("Give an absolute path without '..', as the nodes see it.")
        return value


class JobSpec(_Part):
    """What a person asks for; every field but the first few has a default."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
    team: Slug
    queue: Slug | None = None
    gpu_type: Slug
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 1
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    time_limit_s: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    max_retries: Annotated[int, Field(ge=0, le=20)] = 3
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    resume: Annotated[str, StringConstraints(max_length=60)] = "auto"
    hold: bool = False
    labels: dict[Slug, Label] = {}
    environment: dict[str, Annotated[str, StringConstraints(max_length=8192)]] = {}
    workload: Annotated[TrainerWorkload | CommandWorkload, Field(discriminator="kind")]

    @field_validator("environment")
    @classmethod
    def allowed_environment(cls, value: dict[str, str]) -> dict[str, str]:
        """The platform's own variables are not the job's to set."""
        if len(value) > 200:
            raise ValueError("At most 200 variables.")
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name) or "\0" in text:
                raise ValueError(f"{name[:40]!r} is not the name of an environment variable.")
            if RESERVED_ENVIRONMENT.match(name):
                raise ValueError(f"{name} is set by the platform. Leave it out.")
        return value

    @field_validator("labels")
    @classmethod
    def few_labels(cls, value: dict[str, str]) -> dict[str, str]:
        """Labels are for grouping."""
        if len(value) > 64:
            raise ValueError("At most 64 labels.")
        return value


def spec_parse(data: Any) -> tuple[JobSpec, dict[str, Any]]:
    """The checked spec and its normalised form with all defaults (what the job keeps).

    Raises ``InvalidSpec`` with every fault at once, each with a JSON pointer.
    """
    if not isinstance(data, Mapping):
        raise InvalidSpec("A job spec is an object with name, team, gpu_type and workload.")
    errors: list[FieldError] = []
    spec: JobSpec | None = None
    try:
        spec = JobSpec.model_validate(dict(data))
    except ValidationError as error:
        errors += [_field_error(problem) for problem in error.errors()]
    normal = spec.model_dump(mode="json") if spec else {}
    if spec is not None and isinstance(spec.workload, TrainerWorkload):
        try:
            TrainerConfig.parse(spec.workload.config, world_size=spec.nodes * spec.gpus_per_node, nodes=spec.nodes)
        except ConfigError as error:
            errors += [
                FieldError(f"/workload/config{pointer}", "trainer-config", sentence)
                for pointer, sentence in error.faults
            ]
    if errors or spec is None:
        count = "One thing is" if len(errors) == 1 else f"{len(errors)} things are"
        raise InvalidSpec(f"{count} wrong in the job spec: {errors[0].detail}", errors=errors)
    return spec, normal


_SENTENCES = {
    "missing": "{name} is missing.",
    "extra_forbidden": "{name} is not a field of a job spec. See the schema for the fields.",
    "int_type": "{name} must be a whole number.",
    "float_type": "{name} must be a number.",
    "bool_type": "{name} must be true or false.",
    "string_type": "{name} must be text.",
    "dict_type": "{name} must be an object.",
    "list_type": "{name} must be a list.",
    "greater_than_equal": "{name} must be at least {ge}.",
    "less_than_equal": "{name} must be at most {le}.",
    "string_too_long": "{name} must have at most {max_length} characters.",
    "string_too_short": "{name} must have at least {min_length} character.",
    "too_short": "{name} must have at least {min_length} entry.",
    "too_long": "{name} must have at most {max_length} entries.",
    "string_pattern_mismatch": "{name} may hold small letters, digits and hyphens only, at most 60.",
    "union_tag_invalid": "{name} must be one of {expected_tags}.",
    "union_tag_not_found": "{name} needs a kind: 'trainer' or 'command'.",
    "int_parsing_size": "{name} is too large.",
    "finite_number": "{name} must be a finite number.",
}


def _field_error(problem: Any) -> FieldError:
    """A pydantic error as a sentence of ours."""
    # A tagged union adds its tag to the place; the spec's writer never wrote it there.
    place = [str(p) for p in problem["loc"] if p not in ("trainer", "command", "[key]")]
    name = ".".join(place) or "the spec"
    code = problem["type"]
    if code == "value_error":
        detail = f"{name}: {problem['ctx']['error']}"
    else:
        template = _SENTENCES.get(code, "{name} is not valid.")
        detail = template.format(name=name, **problem.get("ctx", {}))
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)
    return FieldError(pointer, code.replace("_", "-"), detail)
