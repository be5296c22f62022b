"""Taking holders out of the landed view, to see whether a job then fits, and putting them back."""

from dataclasses import dataclass

import numpy as np

from scheduler.holders import Holder
from scheduler.nodes import Pool
from scheduler.placement import Placement
from scheduler.quota import TypeLimits
from scheduler.shapes import Shape
from scheduler.world import World


@dataclass(slots=True, eq=False)
class Claim:
    """A job that looks for room on one GPU type."""

    id: str
    queue: int
    gpu_type: str
    shape: Shape
    priority: float
    submitted_s: float
    may_borrow: bool = True

    @property
    def size(self) -> int:
        """GPUs of the whole job."""
        return self.shape.size


@dataclass(slots=True, eq=False)
class Room:
    """Victims whose leaving makes room, and where the job will then be."""

    victims: list[Holder]
    placement: Placement


class Trial:
    """One search for room. `taken` are the holders that are out now; `undo` ends the trial.

    Without a topology wish a gang fits when enough whole workers do, so their number is kept up to
    date node by node instead of being counted anew for each victim.
    """

    def __init__(self, world: World, limits: TypeLimits, claim: Claim) -> None:
        self.world, self.limits, self.claim = world, limits, claim
        self.was_split = world.is_split(claim.gpu_type)
        world.split(claim.gpu_type)
        self.usage = world.usage[claim.gpu_type]
        self.taken: list[Holder] = []
        self.pool = world.pools.get(claim.gpu_type)
        self.mark = 0 if self.pool is None else self.pool.releases
        # GPUs of the claim that the usage counts already.
        self.counted = 0
        shape = claim.shape
        self.is_plain = shape.required is None and shape.preferred is None and not shape.slices
        self.excluded = self.pool.mask(shape.excluded) if self.pool is not None and shape.excluded else None
        self.num_workers = self._count() if self.pool is not None and self.is_plain else 0

    def count_claim(self) -> None:
        """Compare shares as if the job ran already."""
        self.world.tree.add(self.limits, self.usage, self.claim.queue, self.claim.size)
        self.counted = self.claim.size

    def remove(self, holder: Holder) -> None:
        """Take the holder out."""
        self._move(holder, out=True)
        self.taken.append(holder)

    def undo(self) -> None:
        """Put everything back as it was."""
        for holder in self.taken:
            self.world.put_back(holder)
        self.taken = []
        if self.counted:
            self.world.tree.add(self.limits, self.usage, self.claim.queue, -self.counted)
            self.counted = 0
        if self.pool is not None:
            # The view is what it was, so what was known not to fit it is known still.
            self.pool.releases = self.mark
        if not self.was_split:
            self.world.merge(self.claim.gpu_type)

    def fits(self, *, borrow: bool) -> bool:
        """Whether quota and nodes hold the claim now."""
        missing = self.claim.size - self.counted
        if not borrow and self.usage[self.claim.queue] + missing > self.limits.subtree[self.claim.queue]:
            return False
        if self.world.tree.available(self.limits, self.usage, self.claim.queue) < missing:
            return False
        if self.world.count_only:
            return True
        if self.pool is not None and self.is_plain:
            return self.num_workers >= self.claim.shape.num_workers
        return self.world.find(self.claim.gpu_type, self.claim.shape) is not None

    def room(self, *, borrow: bool) -> Room:
        """The job fits: walk back, newest victim first, and put back each (but the last) that may stay."""
        kept = self.taken[-1:]
        stopped = {holder.id for holder in kept if not holder.is_surplus}
        for holder in reversed(self.taken[:-1]):
            if holder.is_surplus and holder.id in stopped:
                kept.append(holder)
                continue
            self._move(holder, out=False)
            if not self.fits(borrow=borrow):
                self._move(holder, out=True)
                kept.append(holder)
                if not holder.is_surplus:
                    stopped.add(holder.id)
        self.taken = kept[::-1]
        placement = self.world.find(self.claim.gpu_type, self.claim.shape)
        assert placement is not None, "the claim fits"
        return Room(list(self.taken), placement)

    def _move(self, holder: Holder, *, out: bool) -> None:
        before = self._workers_on(holder)
        if out:
            self.world.remove(holder)
        else:
            self.world.put_back(holder)
        self.num_workers += self._workers_on(holder) - before

    def _workers_on(self, holder: Holder) -> int:
        """Whole workers that the holder's nodes have room for."""
        pool, shape = self.pool, self.claim.shape
        if pool is None or not self.is_plain:
            return 0
        count = 0
        for node, _ in holder.placement:
            if self.excluded is not None and self.excluded[node]:
                continue
            free = int(pool.free[node])
            if free >= shape.worker:
                count += 1 if shape.spread else free // shape.worker
        return count

    def _count(self) -> int:
        pool, shape = self.pool, self.claim.shape
        assert isinstance(pool, Pool), "counted only where there are nodes"
        usable = pool.usable(pool.free, shape)
        if shape.spread:
            return int(np.count_nonzero(usable >= shape.worker))
        return int(usable.sum() if shape.worker == 1 else (usable // shape.worker).sum())
