"""A replay as lanes of spans: what the picture shows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import inf

from nemo_rl_deadline_fix.replay.records import EventKind as E
from nemo_rl_deadline_fix.replay.records import Replay


@dataclass(frozen=True)
class Kind:
    """What a span shows: its name in the legend, its look, its caption, and whether it tells of a failure.

    The colours are Okabe and Ito's, light ones inside; what is hatched stands still. A caption's fields are
    the seconds `begin`, `end` and `left` (of the budget), and the words of the events that `opened` and
    `closed` the span.
    """

    legend: str
    face: str
    edge: str
    hatch: str = ""
    caption: str = ""
    bad: bool = False


CLOSED = Kind("admission closed", "#e4e4e4", "#e4e4e4")
SNAPSHOT = Kind("snapshot", "#cbcbcb", "#6f6f6f", caption="{end} s: {closed}")
FAILED = replace(SNAPSHOT, bad=True)
READING = Kind("RL reads this try", "#a9d3ee", "#0072b2", caption="{end} s: {closed}")
GIVEN_UP = replace(READING, bad=True)
RUNNING = Kind("Gym works", "#a3dcc8", "#009e73")
BROKEN = replace(RUNNING, caption="{end} s: {closed}", bad=True)
HUNG = replace(RUNNING, caption="{begin} s: never again at a turn boundary", bad=True)
PARKED = Kind("parked", "#ffffff", "#009e73", "////", "{begin} to {end} s: parked")
WAITING = Kind("held back", "#ffffff", "#6f6f6f", "----", "{begin} to {end} s: held back")
KEPT = Kind("reply kept until ACKed", "#f9d78f", "#b87a00", caption="{begin} s: finished, ACKed {end} s")
STRANDED = replace(KEPT, caption="{begin} s: finished, reply never read and never ACKed", bad=True)
PREPARED = Kind("ready, is saved", "#e2f4ee", "#009e73", caption="{begin} s: {opened}")
NOT_READY = Kind("not ready", "#f6b899", "#d55e00", caption="{end} s: {closed}", bad=True)
ENGINE = Kind("weight sync, switch", "#56b4e9", "#0072b2", caption="{begin} s: {opened}")
BUDGET = Kind("budget left", "#e6c8da", "#a6447d")
STOPPED = Kind(
    "clock stopped", "#ffffff", "#a6447d", "\\\\\\\\", "{begin} to {end} s: stopped with {left} s left"
)
RUNS_ON = Kind(
    "runs on while parked", "#f6b899", "#d55e00", "....", "{begin} to {end} s: runs on while parked", True
)


@dataclass(frozen=True)
class Span:
    """Something from `begin` to `end`, in seconds, maybe for ever; `heights` are parts of its lane's."""

    begin: float
    end: float
    kind: Kind
    caption: str = ""
    heights: tuple[float, float] = (1.0, 1.0)


# What opens a span, and what it was by what ends it: nothing to show, where that is None. Under None stands
# what is never over.
Row = tuple[Collection[E], Mapping[E | None, Kind | None]]
ADMISSION: Row = ({E.ADMISSION_CLOSES}, {E.ADMISSION_REOPENS: CLOSED, None: CLOSED})
_READING: Row = ({E.TRY_STARTS}, {E.REPLY_READ: READING, E.DEADLINE_FIRES: GIVEN_UP, E.ROW_FAILS: GIVEN_UP})
_PARKED: Row = ({E.RUN_PARKED}, {E.RUN_RESUMES: PARKED})
# The clock of a try that is over never runs again.
_STOPPED: Row = ({E.CLOCK_STOPS}, dict.fromkeys((E.CLOCK_RUNS, *_READING[1]), STOPPED))
# From top to bottom. Where two spans meet, the later row's is over the other.
_LANES: dict[str, tuple[Row, ...]] = {
    "RL snapshots": (({E.SNAPSHOT_BEGINS}, {E.SNAPSHOT_COMMITTED: SNAPSHOT, E.SNAPSHOT_FAILED: FAILED}),),
    "RL {}": (_READING,),
    "Gym {}": (
        ({E.RUN_WAITS}, {E.RUN_STARTS: WAITING}),
        (
            {E.RUN_STARTS, E.RUN_RESUMES},
            {E.RUN_PARKED: RUNNING, E.RUN_FINISHES: RUNNING, E.RUN_FAILS: BROKEN, None: HUNG},
        ),
        _PARKED,
        ({E.RUN_FINISHES}, {E.RUN_ACKED: KEPT, None: STRANDED}),
    ),
    "Gym prepare": (
        ({E.ADMISSION_CLOSES}, {E.PREPARE_GIVES_UP: NOT_READY, E.ADMISSION_REOPENS: RUNNING}),
        # One shard may be ready in vain.
        ({E.PREPARE_READY}, {E.ADMISSION_REOPENS: PREPARED, E.PREPARE_GIVES_UP: None, None: PREPARED}),
    ),
    "RL engine": (({E.OVERLAP}, {E.OVERLAP: ENGINE}),),
}


def lanes(run: Replay, budget: float) -> dict[str, list[Span]]:
    """The lanes by their names, from top to bottom; the budget is `rollout_timeout_s`, in seconds."""
    tries = range(len(run.attempts))
    several = sorted({(event.number or 0, event.row) for event in run.events if event.row is not None})
    of_rl: dict[str, tuple[int | None, ...]] = {f"try {number}": (number,) for number in tries}
    of_gym: dict[str, tuple[int | None, ...]]
    of_gym = {f"try {number} row {row}": (number, row) for number, row in several}
    of_gym = of_gym or {f"/run, {name}": about for name, about in of_rl.items()}
    found: dict[str, list[Span]] = {}
    for name, rows in _LANES.items():
        whose = {"RL {}": of_rl, "Gym {}": of_gym}.get(name, {"": ()})
        for words, about in whose.items():
            found[name.format(words)] = [span for row in rows for span in spans(run, row, *about)]
    found["clock, budget left"] = [span for number in tries for span in _clock(run, number, budget)]
    return {name: lane for name, lane in found.items() if lane}


def spans(run: Replay, row: Row, *about: int | None) -> Iterator[Span]:
    """The spans of one row: of everything, of one try by its number, or of one row in it."""
    opens, kinds = row
    opened = None
    for event in run.events:
        if about != (event.number, event.row)[: len(about)]:
            continue
        if event.kind in opens:
            # Each shard of Gym is ready once; the last one counts.
            opened = event
        if opened and event.kind in kinds:
            kind = kinds[event.kind]
            # Whoever runs or stands still for no time at all does not.
            if kind and (opened.at < event.at or kind not in (RUNNING, PARKED, WAITING)):
                yield _span(kind, opened.at, event.at, opened=opened.what, closed=event.what)
            opened = None
    if opened and (kind := kinds.get(None)):
        yield _span(kind, opened.at, inf, opened=opened.what)


def _span(kind: Kind, begin: float, end: float, left: float = 0, **words: str) -> Span:
    numbers = {"begin": seconds(begin), "end": seconds(end), "left": seconds(left)}
    return Span(begin, end, kind, kind.caption.format(**numbers, **words))


def _clock(run: Replay, number: int, budget: float) -> Iterator[Span]:
    """What is left of a try's budget, a span for each stretch of its clock."""
    (read,) = spans(run, _READING, number)
    stops, parks = list(spans(run, _STOPPED)), list(spans(run, _PARKED, number))

    def kind(stretch: tuple[float, float]) -> Kind:
        if any(stop.begin <= stretch[0] < stop.end for stop in stops):
            return STOPPED
        return RUNS_ON if any(park.begin <= stretch[0] < park.end for park in parks) else BUDGET

    cuts = {at for span in (read, *stops, *parks) for at in (span.begin, span.end)}
    at, left = read.begin, budget
    for what, stretches in groupby(pairwise(sorted(c for c in cuts if read.begin <= c <= read.end)), kind):
        end = max(end for _, end in stretches)
        after = left if what is STOPPED else max(0.0, round(left - (end - at), 9))
        yield replace(_span(what, at, end, left), heights=(left / budget, after / budget))
        at, left = end, after


def seconds(value: float) -> str:
    """A time for people, in seconds: `180`."""
    return f"{round(value, 2 if value >= 1 else 4):.10g}"
