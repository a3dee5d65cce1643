"""A verification in words for people, and as one object for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from nemo_rl_deadline_fix.replay.records import Attempt, EventKind, Replay
from nemo_rl_deadline_fix.replay.verdict import EXIT_CODES, Form, Verdict, Verification

_TITLES = {Form.AS_IS: "before: as the code is", Form.CLOCKS: "after: with the fix"}
_COLOURS = {
    EventKind.DEADLINE_FIRES: "red",
    EventKind.SNAPSHOT_FAILED: "red",
    EventKind.PREPARE_GIVES_UP: "red",
    EventKind.REPLY_READ: "green",
    EventKind.SNAPSHOT_COMMITTED: "green",
}


class Line(NamedTuple):
    """One line of text, with a colour's name or "" for the terminal's own."""

    text: str
    colour: str = ""
    bold: bool = False


def lines(verification: Verification, width: int) -> Iterator[Line]:
    """The verification for people: the target, each form's timeline and outcome, the verdict.

    Args:
        verification: What was found.
        width: Columns; only a word that is longer makes a line longer.
    """
    yield from _target(verification, width)
    alone = len(verification.runs) == 1
    for form, run in verification.runs.items():
        yield Line("")
        yield Line("as the code is" if alone else _TITLES[form], bold=True)
        yield from _timeline(run, width)
        for text in _outcome(run):
            yield from _wrapped(text, width)
    if verification.runs:
        yield Line("")
    if not alone and verification.runs:
        yield from _summary(verification, width)
        yield Line("")
    colour = ("green", "red", "yellow")[EXIT_CODES[verification.verdict]]
    for line in _wrapped(verification.sentence, width):
        yield line._replace(colour=colour, bold=True)


def as_json(verification: Verification) -> dict[str, Any]:
    """The verification as the object that `--json` prints."""
    before = verification.runs.get(Form.AS_IS)
    return {
        "target": {
            "kind": verification.kind,
            "path": verification.path or None,
            "files": [
                {"path": file.path, "lines": [list(lines) for lines in file.lines]}
                for file in verification.files
            ],
        },
        "parameters": asdict(verification.parameters),
        **{form.value: _run_as_json(verification.runs.get(form)) for form in Form},
        "stall_reproduced": bool(before and before.stalls),
        "fixed": verification.verdict in (Verdict.FIXED, Verdict.ALREADY_FIXED),
        "verdict": verification.verdict.value,
        "message": verification.sentence,
    }


def _run_as_json(run: Replay | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "snapshots": [asdict(snapshot) for snapshot in run.snapshots],
        "attempts": [asdict(attempt) for attempt in run.attempts],
        "bodies": {"started": run.bodies_started, "finished": run.bodies_finished},
        "holders_left": list(run.holders_left),
        "events": [asdict(event) for event in run.events],
        "scratch_run": _scratch_run(run),
    }


def _scratch_run(run: Replay) -> list[str]:
    """The lines that the reviewer's scratch run printed, for this run."""
    first, last, attempt = run.snapshots[0], run.snapshots[-1], run.attempts[0]
    outcome: dict[str, Any] = {"reply": {"reward": attempt.reward}}
    if attempt.outcome == "timeout":
        outcome = {"timeout": attempt.error, "state_when_rl_gave_up": attempt.state_when_given_up}
    return [
        f"prepare: ready_to_commit={first.ready_to_commit} parked={first.parked} "
        f"(RL deadline registry suspended={first.deadlines_suspended})",
        f"RL outcome: {outcome}",
        f"bodies started={run.bodies_started} finished={run.bodies_finished}",
        f"next prepare: ready_to_commit={last.ready_to_commit} "
        f"completed_unacknowledged={last.completed_unacknowledged}",
    ]


def _target(verification: Verification, width: int) -> Iterator[Line]:
    about = f"{verification.kind} {verification.path}"
    if verification.kind == "embedded":
        about = "the embedded model, our own code of NeMo RL's shape with its defect"
    for line in _wrapped(f"Target: {about}", width):
        yield line._replace(bold=True)
    for file in verification.files:
        ranges = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in file.lines)
        yield from _wrapped(f"  ran {file.path}: {ranges}", width, " " * 6)


def _timeline(run: Replay, width: int) -> Iterator[Line]:
    column = max(len(event.who) for event in run.events)
    yield Line(f" t (s)  {'who':{column}}  what", bold=True)
    for event in run.events:
        text = f"{event.at:6.1f}  {event.who:{column}}  {event.what}"
        for line in _wrapped(text, width, " " * (column + 10)):
            yield line._replace(colour=_COLOURS.get(event.kind, ""))


def _outcome(run: Replay) -> Iterator[str]:
    first, last = run.snapshots[0], run.snapshots[-1]
    ready = "ready" if first.ready_to_commit else "not ready"
    clocks = "stopped" if first.deadlines_suspended else "running"
    yield f"prepare: {ready}, {first.parked} parked, RL's clocks {clocks}"
    yield f"RL outcome: {_attempt(run.attempts[0])}"
    yield f"Gym runs: {run.bodies_started} started, {run.bodies_finished} finished"
    ready = "ready" if last.ready_to_commit else "not ready"
    yield f"next prepare: {ready}, {last.completed_unacknowledged} finished but not ACKed"


def _summary(verification: Verification, width: int) -> Iterator[Line]:
    yield Line(f"{'':6}  {'snapshots saved':15}  RL outcome of try 0", bold=True)
    for form, run in verification.runs.items():
        saved = sum(snapshot.outcome == "committed" for snapshot in run.snapshots)
        text = f"{form.value:6}  {f'{saved} of {len(run.snapshots)}':15}  {_attempt(run.attempts[0])}"
        yield from _wrapped(text, width, " " * 25)


def _attempt(attempt: Attempt) -> str:
    if attempt.outcome == "timeout":
        return f"timed out after {attempt.at:g} s while {attempt.state_when_given_up}"
    return f"reply with reward {attempt.reward:g}"


def _wrapped(text: str, width: int, indent: str = "") -> Iterator[Line]:
    """A text in lines that break at words; what follows the first is indented."""
    if len(text) <= width:
        yield Line(text)
        return
    # Only the blanks at which a line breaks may go: those in front are a column.
    for line in textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    ):
        yield Line(line)
