"""What happens in a replay, each happening as a line for people and as a kind for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
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
    OTHER = "other"


@dataclass(frozen=True)
class Event:
    """One line of the timeline: when (seconds of the story), who, what.

    Attributes:
        at: Seconds since the story began.
        who: The actor.
        what: What it does, in words.
        kind: The same as a kind.
        number: The try's index or the snapshot's number, where the event is about one.
    """

    at: float
    who: str
    what: str
    kind: Kind = Kind.OTHER
    number: int | None = None


class Tell(Protocol):
    """Puts an event of this moment on the timeline."""

    def __call__(self, who: str, what: str, kind: Kind = Kind.OTHER, number: int | None = None) -> None:
        """Take an event's fields; the timeline knows the time."""
