"""Where training stands: whether it goes on, how it was left, how far it has come, what is open around it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Training:
    """The state that hooks change and that says how a run ended.

    Attributes:
        running: between a begin and an end, error or interrupt.
        left: how it was left last: `finished`, `interrupted` or `failed`.
        stepped: a step has ended since it began.
        step: the last step's number; `highest`: the highest of this process.
        phases_open: phases that have begun and not ended.
    """

    running: bool = False
    left: str | None = None
    stepped: bool = False
    step: int = 0
    highest: int = 0
    phases_open: int = 0

    def begin(self) -> None:
        self.running, self.left, self.stepped = True, None, False

    def leave(self, how: str) -> None:
        self.running, self.left = False, how

    def stepped_to(self, step: int | None) -> int:
        """A step has ended, with this number or the next one: its number."""
        number = self.step = step if step is not None else self.step + 1
        self.highest = max(self.highest, number)
        self.stepped = True
        return number

    def outcome(self, *, stopped: bool) -> str:
        """How a run ended that ends now. `stopped`: for its budget."""
        if self.left in ("failed", "interrupted"):
            return self.left
        if stopped:
            return "stopped"
        return "interrupted" if self.running else "finished"

    def moment(self) -> str | None:
        """Why memory is worth a look between two steps' ends: inside a phase, or before the first step has ended."""
        if self.phases_open > 0:
            return "phase"
        return "sample" if self.running and not self.stepped else None

    def repeats_from(self, step: int) -> int | None:
        """The highest step so far where a resume at `step` does some once more: they are paid for twice."""
        return self.highest if self.highest > step else None
