"""What a pass found that the next one need not look at again."""

from dataclasses import dataclass, field

from scheduler.plan import Detail, Reason
from scheduler.world import World

Group = tuple[tuple[str, ...], Reason, Detail]


@dataclass(slots=True)
class Memory:
    """Queues all of whose jobs lacked quota, and why they wait; good while their tree is unchanged.

    Nothing that is remembered depends on nodes: those change with every job that ends.
    """

    quiet: dict[int, int] = field(default_factory=dict)
    answers: dict[int, tuple[int, list[Group]]] = field(default_factory=dict)

    def forget(self, queue: int) -> None:
        """The queue's jobs changed."""
        self.quiet.pop(queue, None)
        self.answers.pop(queue, None)

    def is_quiet(self, world: World, queue: int) -> bool:
        """Whether nothing changed in the queue's tree since all its jobs lacked quota."""
        return self.quiet.get(queue) == version(world, queue)

    def keep_quiet(self, world: World, queue: int) -> None:
        """All jobs of the queue lack quota now."""
        self.quiet[queue] = version(world, queue)

    def known_answers(self, world: World, queue: int) -> list[Group] | None:
        """Why the queue's jobs wait, if nothing changed in its tree since it was found."""
        known = self.answers.get(queue)
        return known[1] if known is not None and known[0] == version(world, queue) else None

    def keep_answers(self, world: World, queue: int, groups: list[Group]) -> None:
        """Why all jobs of a quiet queue wait."""
        self.answers[queue] = (version(world, queue), groups)


def version(world: World, queue: int) -> int:
    """Moves with every change in the queue's tree."""
    return world.root_version.get(world.tree.root[queue], 0)
