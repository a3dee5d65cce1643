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
    """Something that lasts, in seconds; without an end it is never over. A stopped clock has budget left."""

    begin: float
    end: float | None
    kind: SpanKind
    budget_left: float | None = None


@dataclass(frozen=True)
class Caption:
    """Words about a stretch of a lane, which may stand inside of it; bad ones tell of a failure."""

    begin: float
    end: float | None
    text: str
    bad: bool = False
    inside: bool = False


@dataclass(frozen=True)
class Lane:
    """One actor's row; the clock's has a curve of (time, seconds left) for each try."""

    name: str
    spans: tuple[Span, ...] = ()
    captions: tuple[Caption, ...] = ()
    curve: tuple[tuple[tuple[float, float], ...], ...] = ()
    crosses: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One replay: its lanes from top to bottom, when admission is closed, and whether anything went wrong."""

    name: str
    title: str
    bad: bool
    lanes: tuple[Lane, ...]
    closed: tuple[tuple[float, float | None], ...]


_RUNS = (
    (SpanKind.WAITING, EventKind.RUN_WAITS, {EventKind.RUN_STARTS}),
    (SpanKind.RUNNING, EventKind.RUN_STARTS, {EventKind.RUN_PARKED, EventKind.RUN_FINISHES}),
    (SpanKind.PARKED, EventKind.RUN_PARKED, {EventKind.RUN_RESUMES}),
    (SpanKind.RUNNING, EventKind.RUN_RESUMES, {EventKind.RUN_PARKED, EventKind.RUN_FINISHES}),
    (SpanKind.KEPT, EventKind.RUN_FINISHES, {EventKind.RUN_ACKED}),
)


def seconds(value: float) -> str:
    """A time for people: `180 s`."""
    return f"{round(value, 2 if value >= 1 else 4):.10g} s"


def panels(verification: Verification) -> tuple[Panel, ...]:
    """What there is to show: one panel for each form that was simulated."""
    titles = {Form.AS_IS: "Before, the code as it is", Form.CLOCKS: "After, with the fix"}
    if len(verification.runs) == 1:
        fixed = verification.verdict is Verdict.ALREADY_FIXED
        titles = {Form.AS_IS: f"The code as it is{', which has the fix' if fixed else ''}"}
    tries = max((len(run.attempts) for run in verification.runs.values()), default=0)
    made = []
    for form, run in verification.runs.items():
        closed = tuple(_pairs(run, EventKind.ADMISSION_CLOSES, {EventKind.ADMISSION_REOPENS}))
        bad, outcome = _outcome(run)
        lanes = (
            _snapshots(run),
            *(_reading(run, index) for index in range(tries)),
            *(_running(run, attempt.index) for attempt in run.attempts),
            _prepare(run, closed),
            _clock(run, verification.parameters.budget),
        )
        made.append(Panel(form.value, f"{titles[form]}: {outcome}", bad, lanes, closed))
    return tuple(made)


def _outcome(run: Replay) -> tuple[bool, str]:
    """Whether anything went wrong, and what came of the rollout and the snapshots."""
    failed = [n for n, snapshot in enumerate(run.snapshots, 1) if snapshot.outcome != "committed"]
    snapshots = f"snapshot {failed[0]} fails" if failed else "every snapshot is committed"
    late = [attempt for attempt in run.attempts if attempt.outcome == "timeout"]
    if not late:
        return bool(failed), f"try 0 replies, {snapshots}"
    # One given up while parked is what the picture is about; else the first will do.
    lost = next((attempt for attempt in late if attempt.state_when_given_up == "parked"), late[0])
    return True, f"RL gives up on try {lost.index} while it is {lost.state_when_given_up}, {snapshots}"


def _snapshots(run: Replay) -> Lane:
    spans, captions, crosses = [], [], []
    for number, snapshot in enumerate(run.snapshots, 1):
        spans.append(Span(snapshot.at, snapshot.ended_at, SpanKind.SNAPSHOT))
        bad = snapshot.outcome != "committed"
        text = f"snapshot {number} {'fails' if bad else 'committed'} {seconds(snapshot.ended_at)}"
        captions.append(Caption(snapshot.at, snapshot.ended_at, text, bad, inside=True))
        crosses += [snapshot.ended_at] * bad
    return Lane("RL snapshots", tuple(spans), tuple(captions), crosses=tuple(crosses))


def _reading(run: Replay, index: int) -> Lane:
    name = f"RL try {index}"
    if index >= len(run.attempts):
        return Lane(name, captions=(Caption(0, 0, "not needed"),))
    attempt, begin = run.attempts[index], _begin(run, index)
    bad, text = False, f"reply {seconds(attempt.at)}, reward {attempt.reward or 0:g}"
    if attempt.outcome == "timeout":
        bad = True
        text = f"deadline fires {seconds(attempt.at)} while {attempt.state_when_given_up}: RL stops reading"
    caption = Caption(begin, attempt.at, text, bad)
    return Lane(name, (Span(begin, attempt.at, SpanKind.READING),), (caption,), crosses=(attempt.at,) * bad)


def _running(run: Replay, index: int) -> Lane:
    spans = [
        Span(begin, end, kind)
        for kind, opens, closes in _RUNS
        for begin, end in _pairs(run, opens, closes, index)
        if begin != end
    ]
    captions = [
        Caption(span.begin, span.end, f"{span.kind} {_from_to(span)}")
        for span in spans
        if span.kind in (SpanKind.PARKED, SpanKind.WAITING)
    ]
    for begin, end in _pairs(run, EventKind.RUN_FINISHES, {EventKind.RUN_ACKED}, index):
        kept = "reply never read and never ACKed" if end is None else f"ACKed {seconds(end)}"
        text = f"finished {seconds(begin)}, {'ACKed' if begin == end else kept}"
        captions.append(Caption(begin, end, text, bad=end is None, inside=True))
    return Lane(f"Gym /run, try {index}", tuple(spans), tuple(captions))


def _prepare(run: Replay, closed: tuple[tuple[float, float | None], ...]) -> Lane:
    spans: list[Span] = []
    captions = []
    for (begin, end), snapshot in zip(closed, run.snapshots, strict=False):
        kept = f"completed_unacknowledged={snapshot.completed_unacknowledged}"
        if snapshot.ready_to_commit:
            # Each shard says it; the last one counts.
            events = [event.at for event in run.events if event.kind is EventKind.PREPARE_READY]
            ready = max((at for at in events if begin <= at and (end is None or at <= end)), default=begin)
            spans += [Span(begin, ready, SpanKind.RUNNING), Span(ready, end, SpanKind.PREPARED)]
            text = f"ready {seconds(ready)}, {f'parked={snapshot.parked}' if snapshot.parked else kept}"
        else:
            spans.append(Span(begin, end, SpanKind.NOT_READY))
            why = kept if snapshot.completed_unacknowledged else "a try still running"
            text = f"{why} for {seconds(snapshot.ended_at - begin)}"
        captions.append(Caption(begin, end, text, bad=not snapshot.ready_to_commit, inside=True))
    return Lane("Gym prepare", tuple(spans), tuple(captions))


def _clock(run: Replay, budget: float) -> Lane:
    curves, spans, captions = [], list[Span](), []
    for attempt in run.attempts:
        curve, stops = _budget(run, attempt, budget)
        curves.append(curve)
        spans += stops
        for stop in stops:
            text = f"stopped {_from_to(stop)} with {seconds(stop.budget_left or 0)} left"
            captions.append(Caption(stop.begin, stop.end, text))
        for begin, end in _pairs(run, EventKind.RUN_PARKED, {EventKind.RUN_RESUMES}, attempt.index):
            until = attempt.at if end is None else min(end, attempt.at)
            stopped = any(stop.begin <= begin < (stop.end or begin) for stop in stops)
            if begin < until and not stopped:
                text = f"runs on while try {attempt.index} is parked"
                captions.append(Caption(begin, until, text, bad=True))
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
