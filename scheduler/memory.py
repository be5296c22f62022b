"""What a pass found that the next one need not look at again."""

from dataclasses import dataclass, field

from scheduler.plan import Detail, Reason
from scheduler.shapes import Shape
from scheduler.world import World

Group = tuple[tuple[str, ...], Reason, Detail]


# So many whole workers of a shape, by GPU type.
Needs = dict[tuple[str, Shape], int]


@dataclass(slots=True)
class Memory:
    """Queues none of whose jobs can do anything while their tree is unchanged and their needs are not met.

    Needs are of free nodes, which change with every job that ends: they are looked at in each pass. Reasons are
    remembered for queues that want nothing but quota.
    """

    quiet: dict[int, tuple[int, Needs]] = field(default_factory=dict)
    answers: dict[int, tuple[int, list[Group]]] = field(default_factory=dict)

    def forget(self, queue: int) -> None:
        """The queue's jobs changed."""
        self.quiet.pop(queue, None)
        self.answers.pop(queue, None)

    def needs_of(self, world: World, queue: int) -> Needs | None:
        """What the queue's jobs need, if nothing else could help any of them and its tree is unchanged; else None."""
        known = self.quiet.get(queue)
        return known[1] if known is not None and known[0] == version(world, queue) else None

    def keep_quiet(self, world: World, queue: int, needs: Needs) -> None:
        """None of the queue's jobs can do anything before one of these needs is met."""
        self.quiet[queue] = (version(world, queue), needs)

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
