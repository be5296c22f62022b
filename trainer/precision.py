"""Keeping small gradients alive in fp16: the loss is multiplied, the gradients divided, and overflows skipped."""

from typing import Any


class LossScaler:
    """A power of two that grows while gradients stay finite and halves when they do not; 1 unless fp16."""

    GROW_EVERY = 1000
    SMALLEST = 1.0

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.scale = 2.0**16 if on else 1.0
        self._good = 0

    def step(self, finite: bool) -> None:
        """Learn from one step."""
        if not self.on:
            return
        if not finite:
            self.scale, self._good = max(self.SMALLEST, self.scale / 2), 0
            return
        self._good += 1
        if self._good >= self.GROW_EVERY:
            self.scale, self._good = self.scale * 2, 0

    @property
    def exhausted(self) -> bool:
        """Nothing is left to halve: the overflow is not the scale's doing."""
        return not self.on or self.scale <= self.SMALLEST

    def facts(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"scale": self.scale, "good": self._good}

    def restore(self, facts: dict[str, Any] | None) -> None:
        """From the checkpoint."""
        if self.on and facts:
            self.scale, self._good = float(facts["scale"]), int(facts["good"])
