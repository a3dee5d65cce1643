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
    ROW_FAILS = "row_fails"
    RUN_WAITS = "run_waits"
    RUN_STARTS = "run_starts"
    RUN_PARKED = "run_parked"
    RUN_RESUMES = "run_resumes"
    RUN_FINISHES = "run_finishes"
    RUN_FAILS = "run_fails"
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
        row: The row's, where there are several.
    """

    at: float
    who: str
    what: str
    kind: EventKind
    number: int | None = None
    row: int | None = None


class Timeline(list[Event]):
    """The events of a simulation, which is called with the fields of one that happens now."""

    def __call__(self, who: str, what: str, kind: EventKind, *about: int | None) -> None:
        """Add an event of this moment."""
        self.append(Event(now(), who, what, kind, *about))


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

    @property
    def in_words(self) -> str:
        """How it ended for RL."""
        if self.outcome == "timeout":
            return f"timed out after {self.at:g} s while {self.state_when_given_up}"
        if self.outcome == "failed":
            return f"a row failed after {self.at:g} s, {self.error}"
        return f"reply with reward {self.reward:g}"


@dataclass(frozen=True)
class Replies:
    """What became of them: read by RL, which ACKs them; given up, and ACKed all the same; never ACKed."""

    read: int
    acknowledged: int
    stranded: int


@dataclass(frozen=True)
class Replay:
    """What happened in one simulation, up to who still holds the clocks when all is over.

    A run that RL sends to Gym ends there, whether RL reads its reply or not, unless it hangs.
    """

    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    attempts: tuple[Attempt, ...]
    bodies_started: int
    bodies_finished: int
    replies: Replies
    holders_left: tuple[str, ...]
    telemetry: tuple[dict[str, float], ...]

    @property
    def stalls(self) -> bool:
        """Whether a reply that nobody will ever ACK stops a later snapshot, or a run that never parks."""
        last = self.snapshots[-1]
        kept = last.completed_unacknowledged > 0 and self.replies.stranded > 0
        return last.outcome != "committed" and (kept or self.hangs)

    @property
    def hangs(self) -> bool:
        """Whether a run never ended."""
        return self.bodies_finished < self.bodies_started

    @property
    def saved(self) -> str:
        """How many of the snapshots were saved: `1 of 2`."""
        return (
            f"{sum(snapshot.outcome == 'committed' for snapshot in self.snapshots)} of {len(self.snapshots)}"
        )

    @property
    def replies_in_words(self) -> str:
        """What became of the replies."""
        replies = self.replies
        said = [f"{replies.read} read"]
        said += [f"{replies.acknowledged} given up and ACKed"] * bool(replies.acknowledged)
        said += [f"{replies.stranded} given up and not ACKed"] * bool(replies.stranded)
        return ", ".join(said + ["a run hangs"] * self.hangs)

    @property
    def trouble(self) -> str:
        """What went wrong that the fix is there to prevent, or ""."""
        for attempt in self.attempts:
            if attempt.state_when_given_up == "parked":
                return f"RL gave up on try {attempt.index} at {attempt.at:g} s while a snapshot had it parked"
        if self.stalls:
            return f"the snapshot at {self.snapshots[-1].at:g} s failed on {self._cause()}"
        held = ", ".join(self.holders_left)
        return f"the clocks are still held by {held}" if held else ""

    def _cause(self) -> str:
        if self.hangs:
            return (
                "a run that never reaches a turn boundary: it cannot park, and it leaves no reply to ACK, so "
                "this stall stays"
            )
        kept = "a reply that nobody had ACKed"
        for attempt in self.attempts:
            if attempt.outcome == "timeout":
                slow = f"try {attempt.index} was too slow for its budget while it ran"
                return f"{kept}: {slow}, which strands its reply, whatever its clock does"
            if attempt.outcome == "failed":
                return f"{kept}: a row of try {attempt.index} failed, which strands its siblings' replies"
        return kept
