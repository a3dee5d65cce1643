"""What happened in one replay, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_rl_deadline_fix.replay.events import Event


@dataclass(frozen=True)
class Snapshot:
    """How one snapshot went."""

    at: float
    ready_to_commit: bool
    parked: int
    completed_unacknowledged: int
    deadlines_suspended: bool
    ended_at: float
    outcome: str
    error: str


@dataclass(frozen=True)
class Attempt:
    """How one try of the rollout ended for RL."""

    index: int
    outcome: str
    at: float
    state_when_given_up: str | None
    reward: float | None
    acknowledged: bool
    error: str


@dataclass(frozen=True)
class Replay:
    """What happened in one replay."""

    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    attempts: tuple[Attempt, ...]
    bodies_started: int
    bodies_finished: int
    holders_left: tuple[str, ...]
    telemetry: tuple[dict[str, float], ...]

    @property
    def stalls(self) -> bool:
        """Whether a reply that nobody will ever ACK stops a later snapshot."""
        last = self.snapshots[-1]
        acknowledged = sum(attempt.acknowledged for attempt in self.attempts)
        stranded = self.bodies_finished - acknowledged
        return last.outcome != "committed" and last.completed_unacknowledged > 0 and stranded > 0
