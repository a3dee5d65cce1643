"""The story's numbers, and what cannot be played."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from nemo_rl_deadline_fix.errors import InvalidInputError


class Overlap(StrEnum):
    """What else wants the clocks during the snapshot."""

    NONE = "none"
    SYNC = "sync"
    TRAINING = "training"


@dataclass(frozen=True)
class Parameters:
    """The story's numbers, in seconds from its beginning; the defaults are the background document's.

    Attributes:
        budget: `rollout_timeout_s`: what one try may take.
        snapshot_at: When the first snapshot closes admission.
        snapshot_for: How long it keeps admission closed.
        second_at: When the second snapshot begins.
        prepare_timeout: `prepare_timeout_s`: how long a snapshot waits for Gym to get ready.
        work: Work of the first try, parked time not counted.
        retry_work: Work of every later try; None for seven tenths of `work`.
        turn: Length of a turn; a park request takes effect at a turn's end.
        overlap: `sync`: a weight sync that never paused the clocks ends in mid-snapshot. `training`: the
            engine switches to training before the snapshot's end, and back after it.
    """

    budget: float = 180.0
    snapshot_at: float = 150.0
    snapshot_for: float = 60.0
    second_at: float = 450.0
    prepare_timeout: float = 300.0
    work: float = 170.0
    retry_work: float | None = None
    turn: float = 20.0
    overlap: Overlap = Overlap.NONE

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "overlap" or value is None:
                continue
            if not math.isfinite(value) or value <= 0:
                raise _impossible(entry.name, value, "a finite number of seconds above 0")
            if value > 1e5:
                raise _impossible(entry.name, value, "at most 100,000 seconds")
        if self.second_at < self.snapshot_at + self.snapshot_for:
            raise _impossible(
                "second_at",
                self.second_at,
                f"at least {self.snapshot_at + self.snapshot_for:g}, when the first snapshot is over",
            )
        # A replay of more would take minutes.
        if max(self.work_of(0), self.work_of(1)) / self.turn > 10_000:
            raise _impossible("turn", self.turn, "at least a ten-thousandth of the work")
        if self.prepare_timeout > 7200:
            raise _impossible("prepare_timeout", self.prepare_timeout, "at most 7,200 seconds")

    def work_of(self, index: int) -> float:
        """Seconds of work of one try."""
        if index == 0:
            return self.work
        # A second sampling of a slow rollout is seldom as slow.
        return 0.7 * self.work if self.retry_work is None else self.retry_work


def _impossible(name: str, value: float, supported: str) -> InvalidInputError:
    option = "--" + name.replace("_", "-")
    return InvalidInputError(
        f"cannot replay with {option}", found=f"{value:g}", supported=supported, advice=f"change {option}"
    )
