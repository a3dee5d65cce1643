"""The numbers of a simulation, and which of them cannot be simulated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from nemo_rl_deadline_fix.errors import InvalidInputError

LONGEST_S, LONGEST_PREPARE_S = 100_000.0, 7_200.0
"""Upper limits in seconds. Gym is asked ten times a second while it is not ready, so that one is lower."""

MOST_SHARDS = 8
"""More of them show nothing new."""


class Overlap(StrEnum):
    """What else suspends or resumes the clocks during the snapshot."""

    NONE = "none"
    SYNC = "sync"
    TRAINING = "training"


@dataclass(frozen=True)
class Parameters:
    """The numbers of a simulation, in seconds from its beginning; the defaults are the background document's.

    Attributes:
        budget: `rollout_timeout_s`: what one try may take.
        snapshot_at: When the first snapshot closes admission.
        snapshot_for: How long it keeps admission closed.
        second_at: When the second snapshot begins.
        prepare_timeout: `prepare_timeout_s`: how long a snapshot waits for Gym to get ready.
        work: Work of the first try, parked time not counted.
        retry_work: Work of every later try; None for seven tenths of `work`.
        turn: Length of a turn; a park request takes effect at a turn's end.
        overlap: `sync`: a weight sync that never suspended the clocks ends in mid-snapshot. `training`: the
            engine switches to training before the snapshot's end, and back after it.
        fail_row: Whether there are three rows instead of one, of which one fails on its first attempt.
        hang: Whether the first try's last turn never ends, so that it can neither park nor finish.
        shards: Number of Gym's shards, where the NeMo RL under test has shards; the rollout is in the first.

    Raises:
        InvalidInputError: Numbers that cannot be simulated.
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
    shards: int = 1
    fail_row: bool = False
    hang: bool = False

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.type in ("float", "float | None")):
            value = getattr(self, name)
            longest = LONGEST_PREPARE_S if name == "prepare_timeout" else LONGEST_S
            # Also where it is no number at all, which compares to nothing.
            if value is not None and not 0 < value <= longest:
                above = value > longest
                self._refuse(
                    name, f"at most {longest:,.0f} seconds" if above else "a number of seconds above 0"
                )
        first_ends = self.snapshot_at + self.snapshot_for
        if self.second_at < first_ends:
            self._refuse("second_at", f"at least {first_ends:g}, when the first snapshot is over")
        # More turns than that would take minutes.
        if max(self.work_of(0), self.work_of(1)) / self.turn > 10_000:
            self._refuse("turn", "at least a ten-thousandth of the work")
        if not 1 <= self.shards <= MOST_SHARDS:
            self._refuse("shards", f"1 to {MOST_SHARDS}")

    def _refuse(self, name: str, supported: str) -> None:
        option, found = "--" + name.replace("_", "-"), f"{getattr(self, name):g}"
        raise InvalidInputError(
            f"cannot simulate {option}", found=found, supported=supported, advice=f"change {option}"
        )

    def work_of(self, index: int) -> float:
        """Seconds of work of one try."""
        if index == 0:
            return self.work
        # A second sampling of a slow rollout is seldom as slow.
        return 0.7 * self.work if self.retry_work is None else self.retry_work
