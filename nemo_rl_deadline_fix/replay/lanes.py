"""A replay as lanes of spans and captions: what the picture shows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nemo_rl_deadline_fix.replay.records import Attempt, EventKind, Replay
from nemo_rl_deadline_fix.replay.verdict import Form, Verdict, Verification


class SpanKind(StrEnum):
    """What a span shows; the values are the words of the picture's legend."""

    CLOSED = "admission closed"
    SNAPSHOT = "snapshot"
    READING = "RL reads this try"
    RUNNING = "Gym works"
    PARKED = "parked"
    WAITING = "held back"
    KEPT = "reply kept until ACKed"
    PREPARED = "ready, is saved"
    NOT_READY = "not ready"
    BUDGET = "budget left"
    STOPPED = "clock stopped"


@dataclass(frozen=True)
class Span:
    """Something that lasts.

    Attributes:
        begin: When it begins.
        end: When it ends; None for what is never over.
        kind: What it is.
        budget_left: Where this is a stopped clock: the seconds left.
    """

    begin: float
    end: float | None
    kind: SpanKind
    budget_left: float | None = None


@dataclass(frozen=True)
class Caption:
    """Words about a moment or a stretch of a lane.

    Attributes:
        begin: Where they belong.
        end: The same, or where the stretch ends; None for what is never over.
        text: The words.
        bad: Whether they tell of a failure.
        inside: Whether they may be written over the stretch itself.
    """

    begin: float
    end: float | None
    text: str
    bad: bool = False
    inside: bool = False


@dataclass(frozen=True)
class Lane:
    """One actor's row.

    Attributes:
        name: The actor.
        spans: What it does when.
        captions: What is said about it.
        curve: Where this is the clock: (time, seconds left of the budget), one line for each try.
        crosses: The moments that are crossed out.
    """

    name: str
    spans: tuple[Span, ...] = ()
    captions: tuple[Caption, ...] = ()
    curve: tuple[tuple[tuple[float, float], ...], ...] = ()
    crosses: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One replay.

    Attributes:
        name: `before` or `after`.
        title: What is replayed, and what comes of it.
        bad: Whether that is a stall.
        lanes: From top to bottom.
        closed: When admission is closed.
    """

    name: str
    title: str
    bad: bool
    lanes: tuple[Lane, ...]
    closed: tuple[tuple[float, float | None], ...]


def seconds(value: float) -> str:
    """A time for people: `180 s`."""
    return f"{round(value, 2 if value >= 1 else 4):.10g} s"


def panels(verification: Verification) -> tuple[Panel, ...]:
    """What there is to show: the code as it is and, unless it has the fix itself, with the fix."""
    tries = max((len(run.attempts) for run in verification.runs.values()), default=0)
    titles = {Form.AS_IS: "Before, the code as it is", Form.CLOCKS: "After, with the fix"}
    if len(verification.runs) == 1:
        fixed = verification.verdict is Verdict.ALREADY_FIXED
        titles = {Form.AS_IS: f"The code as it is{', which has the fix' if fixed else ''}"}
    budget = verification.parameters.budget
    return tuple(
        _panel(run, form.value, titles[form], budget, tries) for form, run in verification.runs.items()
    )


def _panel(run: Replay, name: str, title: str, budget: float, tries: int) -> Panel:
    closed = tuple(_pairs(run, EventKind.ADMISSION_CLOSES, {EventKind.ADMISSION_REOPENS}))
    bad, outcome = _outcome(run)
    lanes = [
        _snapshots(run),
        *(_reading(run, index) for index in range(tries)),
        *(_running(run, attempt) for attempt in run.attempts),
        _prepare(run, closed),
        _clock(run, budget),
    ]
    return Panel(name, f"{title}: {outcome}", bad, tuple(lanes), closed)


def _outcome(run: Replay) -> tuple[bool, str]:
    """Whether anything went wrong, and what came of the rollout and the snapshots."""
    failed = [n for n, snapshot in enumerate(run.snapshots, 1) if snapshot.outcome != "committed"]
    late = [attempt for attempt in run.attempts if attempt.outcome == "timeout"]
    snapshots = f"snapshot {failed[0]} fails" if failed else "every snapshot is committed"
    if late:
        # One given up while parked is what the picture is about; else the first will do.
        lost = next((attempt for attempt in late if attempt.state_when_given_up == "parked"), late[0])
        rollout = f"RL gives up on try {lost.index} while it is {lost.state_when_given_up}"
    else:
        rollout = "try 0 replies"
    return bool(failed or late), f"{rollout}, {snapshots}"


def _snapshots(run: Replay) -> Lane:
    spans, captions = [], []
    for number, snapshot in enumerate(run.snapshots, 1):
        spans.append(Span(snapshot.at, snapshot.ended_at, SpanKind.SNAPSHOT))
        bad = snapshot.outcome != "committed"
        text = f"snapshot {number} {'fails' if bad else 'committed'} {seconds(snapshot.ended_at)}"
        captions.append(Caption(snapshot.at, snapshot.ended_at, text, bad, inside=True))
    crosses = tuple(snapshot.ended_at for snapshot in run.snapshots if snapshot.outcome != "committed")
    return Lane("RL snapshots", tuple(spans), tuple(captions), crosses=crosses)


def _reading(run: Replay, index: int) -> Lane:
    name = f"RL try {index}"
    if index >= len(run.attempts):
        return Lane(name, captions=(Caption(0, 0, "not needed"),))
    attempt, begin = run.attempts[index], _begin(run, index)
    bad = attempt.outcome == "timeout"
    if bad:
        text = f"deadline fires {seconds(attempt.at)} while {attempt.state_when_given_up}: RL stops reading"
    else:
        text = f"reply {seconds(attempt.at)}, reward {attempt.reward:g}"
    return Lane(
        name,
        (Span(begin, attempt.at, SpanKind.READING),),
        (Caption(begin, attempt.at, text, bad),),
        crosses=(attempt.at,) if bad else (),
    )


def _running(run: Replay, attempt: Attempt) -> Lane:
    index = attempt.index
    spans = [
        Span(begin, end, kind)
        for kind, opens, closes in (
            (SpanKind.WAITING, EventKind.RUN_WAITS, {EventKind.RUN_STARTS}),
            (SpanKind.RUNNING, EventKind.RUN_STARTS, {EventKind.RUN_PARKED, EventKind.RUN_FINISHES}),
            (SpanKind.PARKED, EventKind.RUN_PARKED, {EventKind.RUN_RESUMES}),
            (SpanKind.RUNNING, EventKind.RUN_RESUMES, {EventKind.RUN_PARKED, EventKind.RUN_FINISHES}),
            (SpanKind.KEPT, EventKind.RUN_FINISHES, {EventKind.RUN_ACKED}),
        )
        for begin, end in _pairs(run, opens, closes, index)
        if begin != end
    ]
    captions = []
    for span in spans:
        if span.kind is SpanKind.PARKED:
            captions.append(Caption(span.begin, span.end, f"parked {_from_to(span)}"))
        elif span.kind is SpanKind.WAITING:
            captions.append(Caption(span.begin, span.end, f"held back {_from_to(span)}"))
    for begin, end in _pairs(run, EventKind.RUN_FINISHES, {EventKind.RUN_ACKED}, index):
        text = f"finished {seconds(begin)}, "
        if end is None:
            text += "reply never read and never ACKed"
        else:
            text += "ACKed" if begin == end else f"ACKed {seconds(end)}"
        captions.append(Caption(begin, end, text, bad=end is None, inside=True))
    return Lane(f"Gym /run, try {index}", tuple(spans), tuple(captions))


def _prepare(run: Replay, closed: tuple[tuple[float, float | None], ...]) -> Lane:
    spans, captions = [], []
    for (begin, end), snapshot in zip(closed, run.snapshots, strict=False):
        if snapshot.ready_to_commit:
            # Each shard says it; the last one counts.
            events = [event.at for event in run.events if event.kind is EventKind.PREPARE_READY]
            ready = max((at for at in events if begin <= at and (end is None or at <= end)), default=begin)
            spans += [Span(begin, ready, SpanKind.RUNNING), Span(ready, end, SpanKind.PREPARED)]
            text = f"parked={snapshot.parked}"
            if not snapshot.parked:
                text = f"completed_unacknowledged={snapshot.completed_unacknowledged}"
            captions.append(Caption(begin, end, f"ready {seconds(ready)}, {text}", inside=True))
        else:
            spans.append(Span(begin, end, SpanKind.NOT_READY))
            kept = snapshot.completed_unacknowledged
            why = f"completed_unacknowledged={kept}" if kept else "a try still running"
            text = f"{why} for {seconds(snapshot.ended_at - begin)}"
            captions.append(Caption(begin, end, text, bad=True, inside=True))
    return Lane("Gym prepare", tuple(spans), tuple(captions))


def _clock(run: Replay, budget: float) -> Lane:
    curves, spans, captions = [], [], []
    for attempt in run.attempts:
        curve, stops = _budget(run, attempt, budget)
        curves.append(curve)
        for stop in stops:
            text = f"stopped {_from_to(stop)} with {seconds(stop.budget_left or 0)} left"
            captions.append(Caption(stop.begin, stop.end, text))
        spans += stops
        captions += _running_while_parked(run, attempt, stops)
    captions += [
        Caption(event.at, event.at, f"{event.what} {seconds(event.at)}")
        for event in run.events
        if event.kind is EventKind.OVERLAP
    ]
    crosses = tuple(attempt.at for attempt in run.attempts if attempt.outcome == "timeout")
    return Lane("clock, budget left", tuple(spans), tuple(captions), tuple(curves), crosses)


def _budget(
    run: Replay, attempt: Attempt, budget: float
) -> tuple[tuple[tuple[float, float], ...], list[Span]]:
    """What is left of a try's budget wherever its clock stops or runs again, and the stops."""
    begin = _begin(run, attempt.index)
    points, stops = [(begin, budget)], []
    for stop, runs_again in _pairs(run, EventKind.CLOCK_STOPS, {EventKind.CLOCK_RUNS}):
        if begin <= stop <= attempt.at:
            at, left = points[-1]
            left -= stop - at
            until = attempt.at if runs_again is None else min(runs_again, attempt.at)
            points += [(stop, left), (until, left)]
            stops.append(Span(stop, until, SpanKind.STOPPED, left))
    at, left = points[-1]
    points.append((attempt.at, max(0.0, left - (attempt.at - at))))
    return tuple(points), stops


def _running_while_parked(run: Replay, attempt: Attempt, stopped: list[Span]) -> Iterator[Caption]:
    for begin, end in _pairs(run, EventKind.RUN_PARKED, {EventKind.RUN_RESUMES}, attempt.index):
        until = attempt.at if end is None else min(end, attempt.at)
        if begin < until and not any(span.begin <= begin < (span.end or begin) for span in stopped):
            yield Caption(begin, until, f"runs on while try {attempt.index} is parked", bad=True)


def _from_to(span: Span) -> str:
    return f"from {seconds(span.begin)}" if span.end is None else f"{span.begin:.10g} to {seconds(span.end)}"


def _begin(run: Replay, index: int) -> float:
    return next(e.at for e in run.events if e.kind is EventKind.TRY_STARTS and e.number == index)


def _pairs(
    run: Replay, opens: EventKind, closes: set[EventKind], number: int | None = None
) -> Iterator[tuple[float, float | None]]:
    """From each event of one kind to the next of some others, of the same try."""
    begin: float | None = None
    for event in run.events:
        if number is not None and event.number != number:
            continue
        if begin is not None and event.kind in closes:
            yield begin, event.at
            begin = None
        elif event.kind is opens:
            begin = event.at
    if begin is not None:
        yield begin, None
