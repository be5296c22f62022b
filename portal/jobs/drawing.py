"""The two life cycles as a drawing: ``docs/states.md`` is made from the tables, never by hand."""

from collections.abc import Mapping, Set
from typing import Any

from portal.jobs.lifecycle import ATTEMPT_FINAL, ATTEMPT_TRANSITIONS, JOB_FINAL, JOB_TRANSITIONS

HEAD = """# States

Drawn from `portal/jobs/lifecycle.py` by `python manage.py draw_states`; a test compares. A step that is not here is
refused. Terminal states are final.
"""


def states_text() -> str:
    """The whole document."""
    return "\n".join(
        [HEAD, "## Job", "", *_diagram(JOB_TRANSITIONS, JOB_FINAL), "", "## Attempt", ""]
        + [*_diagram(ATTEMPT_TRANSITIONS, ATTEMPT_FINAL), ""]
    )


def _diagram(table: Mapping[tuple[Any, Any], Any], final: Set[Any]) -> list[str]:
    steps = [f"    {old.value} --> {new.value}: {action.value}" for (old, action), new in table.items()]
    ends = [f"    {state.value} --> [*]" for state in sorted(final)]
    return ["```mermaid", "stateDiagram-v2", *steps, *ends, "```"]
