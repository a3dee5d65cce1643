"""What a simulation records: events for people and programs, and how everything ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nemo_rl_deadline_fix.replay.clock import now


class EventKind(StrEnum):
    """What an event is; the values are the words used in JSON."""

    TRY_STARTS = "try_starts"
    DEADLINE_FIRES = "deadline_fires"
    REPLY_READ = "reply_read"
    RUN_WAITS = "run_waits"
    RUN_STARTS = "run_starts"
    RUN_PARKED = "run_parked"
    RUN_RESUMES = "run_resumes"
    RUN_FINISHES = "run_finishes"
    RUN_ACKED = "run_acked"
    SNAPSHOT_BEGINS = "snapshot_begins"
    SNAPSHOT_COMMITTED = "snapshot_committed"
    SNAPSHOT_FAILED = "snapshot_failed"
    ADMISSION_CLOSES = "admission_closes"
    ADMISSION_REOPENS = "admission_reopens"
    PREPARE_NOT_READY = "prepare_not_ready"
    PREPARE_READY = "prepare_ready"
    PREPARE_GIVES_UP = "prepare_gives_up"
    CLOCK_STOPS = "clock_stops"
    CLOCK_RUNS = "clock_runs"
    OVERLAP = "overlap"


@dataclass(frozen=True)
class Event:
    """One line of the timeline.

    Attributes:
        at: Seconds since the simulation began.
        who: The actor.
        what: What it does, in words.
        kind: The same for programs.
        number: The try's or the snapshot's, where the event is about one.
    """

    at: float
    who: str
    what: str
    kind: EventKind
    number: int | None = None


class Timeline(list[Event]):
    """The events of a simulation, which is called with the fields of one that happens now."""

    def __call__(self, who: str, what: str, kind: EventKind, number: int | None = None) -> None:
        """Add an event of this moment."""
        self.append(Event(now(), who, what, kind, number))


@dataclass(frozen=True)
class Snapshot:
    """How one snapshot went; times in seconds since the simulation began."""

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
    """How one try of the rollout ended for RL; times in seconds since the simulation began."""

    index: int
    outcome: str
    at: float
    state_when_given_up: str | None
    reward: float | None
    acknowledged: bool
    error: str


@dataclass(frozen=True)
class Replay:
    """What happened in one simulation, up to who still holds the clocks when all is over."""

    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    attempts: tuple[Attempt, ...]
    bodies_finished: int
    holders_left: tuple[str, ...]
    telemetry: tuple[dict[str, float], ...]

    @property
    def bodies_started(self) -> int:
        """How many tries RL sent to Gym; each runs to its end there, whether RL reads its reply or not."""
        return len(self.attempts)

    @property
    def stalls(self) -> bool:
        """Whether a reply that nobody will ever ACK stops a later snapshot."""
        last = self.snapshots[-1]
        stranded = self.bodies_finished - sum(attempt.acknowledged for attempt in self.attempts)
        return last.outcome != "committed" and last.completed_unacknowledged > 0 and stranded > 0

    @property
    def trouble(self) -> str:
        """What went wrong that the fix is there to prevent, or ""."""
        for attempt in self.attempts:
            if attempt.state_when_given_up == "parked":
                return f"RL gave up on try {attempt.index} at {attempt.at:g} s while a snapshot had it parked"
        if self.stalls:
            failed = f"the snapshot at {self.snapshots[-1].at:g} s failed on a reply that nobody had ACKed"
            late = [attempt.index for attempt in self.attempts if attempt.outcome == "timeout"]
            slow = "was too slow for its budget while it ran, which strands its reply, fix or no fix"
            return f"{failed}: try {late[0]} {slow}" if late else failed
        held = ", ".join(self.holders_left)
        return f"the clocks are still held by {held}" if held else ""
