"""Refusals in the reader's language. Services write them in English; here is the table that turns them round.

A sentence that the table does not know stays as it was written: better one English sentence than none.
"""

import re
from functools import lru_cache
from typing import Final

from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as _n

SENTENCES: Final[tuple[str, ...]] = (
    # job specs
    _n("One thing is wrong in the job spec: {inner}"),
    _n("{count} things are wrong in the job spec: {inner}"),
    _n("{name} is missing."),
    _n("{name} is not a field of a job spec. See the schema for the fields."),
    _n("{name} must be a whole number."),
    _n("{name} must be a number."),
    _n("{name} must be true or false."),
    _n("{name} must be text."),
    _n("{name} must be an object."),
    _n("{name} must be a list."),
    _n("{name} must be at least {limit}."),
    _n("{name} must be at most {limit}."),
    _n("{name} must have at most {limit} characters."),
    _n("{name} must have at least {limit} character."),
    _n("{name} may hold small letters, digits and hyphens only, at most 60."),
    _n("{name} is too large."),
    _n("{name} is not valid."),
    _n("{name}: {text} is not the name of an environment variable."),
    _n("{name}: {text} is set by the platform. Leave it out."),
    _n("{text} is not a duration. Write 90m, 2h30m, 1d or a number of seconds."),
    _n("Line {number} has no '='. Write one NAME=value a line."),
    # what the cluster and the quota say to them
    _n("There is no team {name}."),
    _n("Name one of the queues of team {team}: {names}."),
    _n("There is no GPU type {name} here. Known: {known}."),
    _n(
        "The job asks for {nodes} nodes with {gpus} GPUs each, and the cluster has {fitting} such nodes of type {type}."
        " Ask for fewer nodes or fewer GPUs per node."
    ),
    _n("Queue {queue} has no quota for {type}. Ask an administrator for one."),
    _n(
        "The job asks for {asked} GPUs of type {type}, and queue {queue} can use at most {most}, borrowing included."
        " Ask for fewer, or for more quota."
    ),
    _n("The working directory {name} does not exist on the nodes."),
    _n("The entry point {name} does not exist in {folder}."),
    _n("There is no checkpoint {name} of team {team}. Use an id from the checkpoints page."),
    _n("Checkpoint {name} is {state} and cannot be resumed from. Choose an older one."),
    # the trainer's settings
    _n("global_batch_size {batch} is not divisible by {ranks} ranks. Use {up}."),
    _n("hybrid_shard replicates over nodes: it needs at least two. Use full_shard."),
    # texts
    _n("The text is not readable as YAML in line {line}, column {column}: check indentation, colons and quotes."),
    _n("The text is not readable as YAML: check indentation, colons and quotes."),
    _n("YAML anchors and aliases are not allowed here. Write the value out."),
    _n("The text is larger than {size} kB. A spec names data, it holds none."),
    _n("The data is nested more than {depth} levels deep."),
    _n("The key {key} stands twice, in line {line}."),
    # what may not be done
    _n("There is no job {name} that you may see."),
    _n("You need to be {role} or more in team {team} for this. Ask its owner."),
    _n("Only an administrator may do this."),
    _n("A job that is {state} cannot {act}. Possible now: {acts}."),
    _n("A job that is {state} cannot {act}. It has ended for good."),
    _n("Job {name} was changed by somebody else at this moment. Look at it again."),
    _n("Node {name} was changed by somebody else. Look at it again."),
    _n("The quota of {name} for {type} was changed by somebody else. Look at it again."),
    _n("{name} must be between 0 and {limit}."),
    _n("There is no user {name}. Make one with 'manage.py user_create'."),
    _n("The portal cannot reach its database right now. Nothing was changed; try again shortly."),
)


def told(sentence: str) -> str:
    """The sentence in the reader's language, with the names and numbers that are in it."""
    if (get_language() or "en").startswith("en"):
        return sentence
    for template, pattern in _patterns():
        match = pattern.fullmatch(sentence)
        if match:
            values = match.groupdict()
            if "inner" in values:
                values["inner"] = told(values["inner"])
            return gettext(template).format(**values)
    return sentence


@lru_cache(maxsize=1)
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """The templates with their patterns, those with the most fixed text first."""
    ordered = sorted(SENTENCES, key=lambda template: -len(re.sub(r"\{\w+\}", "", template)))
    return [(template, re.compile(_pattern(template), re.DOTALL)) for template in ordered]


def _pattern(template: str) -> str:
    return re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(template))
