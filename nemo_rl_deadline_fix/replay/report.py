"""What a verification found: as a table for people, as one object for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nemo_rl_deadline_fix.replay.events import Event, Kind
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.subjects import SourceFile


class Verdict(StrEnum):
    """What a verification comes to; the values are the words used in JSON."""

    FIXED = "fixed"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    STILL_STALLS = "still_stalls"
    UNDECIDED = "undecided"


EXIT_CODES = {
    Verdict.FIXED: 0,
    Verdict.ALREADY_FIXED: 0,
    Verdict.NOT_APPLICABLE: 0,
    Verdict.STILL_STALLS: 1,
    Verdict.UNDECIDED: 2,
}


@dataclass(frozen=True)
class Verification:
    """The story played on a target as it is, and with the fix put on it.

    Attributes:
        kind: `embedded`, `checkout` or `installed`.
        path: Where the target is; "" for the embedded model.
        files: The files and lines that ran.
        parameters: The story's numbers.
        before: The target as it is; None where nothing was to be played.
        after: The target with the fix; None where it has the fix itself, or nothing was to be played.
        found: What was found, where the target was not played.
    """

    kind: str
    path: str
    files: tuple[SourceFile, ...]
    parameters: Parameters
    before: Replay | None = None
    after: Replay | None = None
    found: str = ""

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        if self.before is None:
            return Verdict.NOT_APPLICABLE
        if self.after is None:
            return Verdict.ALREADY_FIXED if _good(self.before) else Verdict.STILL_STALLS
        if not self.before.stalls:
            return Verdict.UNDECIDED
        return Verdict.FIXED if _good(self.after) else Verdict.STILL_STALLS

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.verdict is Verdict.NOT_APPLICABLE:
            return f"Nothing to fix here: {self.found}."
        if self.verdict is Verdict.ALREADY_FIXED:
            return "Already fixed: the story runs without a stall on this code as it is."
        if self.verdict is Verdict.FIXED:
            return "The stall is there before and gone after: the fix holds for these numbers."
        if self.verdict is Verdict.UNDECIDED and self.before is not None and _trouble(self.before):
            return (
                "Could not tell: without the fix RL gave up on a parked try, but the second snapshot came "
                "too early to meet its reply. Let it come later (--second-at)."
            )
        if self.verdict is Verdict.UNDECIDED:
            return (
                "Could not tell: with these numbers nothing stalls even without the fix. Let the snapshot "
                "outlast what is left of the budget (--snapshot-for), or try the defaults."
            )
        bad = self.after or self.before
        assert bad is not None
        return f"STILL STALLS: {_trouble(bad)}."


def _good(run: Replay) -> bool:
    return not _trouble(run)


def _trouble(run: Replay) -> str:
    """What went wrong that the fix is there to prevent, or ""."""
    lost = [attempt for attempt in run.attempts if attempt.state_when_given_up == "parked"]
    if lost:
        return f"RL gave up on try {lost[0].index} at {lost[0].at:g} while a snapshot had it parked"
    if run.stalls:
        late = [attempt for attempt in run.attempts if attempt.outcome == "timeout"]
        why = (
            ""
            if not late
            else (
                f": try {late[0].index} was too slow for its budget while it ran, which strands its "
                "reply with the fix as without it"
            )
        )
        return f"the snapshot at {run.snapshots[-1].at:g} failed with a reply that nobody had ACKed{why}"
    if run.holders_left:
        return f"the clocks are still held by {', '.join(run.holders_left)}"
    return ""


def as_json(verification: Verification) -> dict[str, Any]:
    """The verification as the object that `--json` prints."""
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
        "before": _run_as_json(verification.before),
        "after": _run_as_json(verification.after),
        "stall_reproduced": bool(verification.before and verification.before.stalls),
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
    }


def show(verification: Verification, console: Console) -> None:
    """Print the verification for people."""
    console.print(_target(verification), highlight=False)
    if verification.before is not None and verification.after is None:
        _show_run("as the code is", verification.before, console)
    elif verification.before is not None and verification.after is not None:
        _show_run("before: as the code is", verification.before, console)
        _show_run("after: with the fix", verification.after, console)
    style = {0: "bold green", 1: "bold red", 2: "bold yellow"}[EXIT_CODES[verification.verdict]]
    console.print(Text(verification.sentence, style=style), soft_wrap=True)


def _target(verification: Verification) -> RenderableType:
    if verification.kind == "embedded":
        return Text(
            "Target: the embedded model, our own code of NeMo RL's shape with its defect", style="bold"
        )
    lines = [Text(f"Target: {verification.kind} {verification.path}", style="bold")]
    for file in verification.files:
        ranges = ", ".join(f"{first}-{last}" for first, last in file.lines)
        lines.append(Text(f"  ran {file.path}:{ranges}"))
    return Group(*lines)


def _show_run(title: str, run: Replay, console: Console) -> None:
    table = Table("t (s)", "who", "what", title=title, title_justify="left", title_style="bold", box=None)
    table.columns[0].justify = "right"
    for event in run.events:
        table.add_row(f"{event.at:.1f}", event.who, Text(event.what, style=_style(event)))
    console.print()
    console.print(table, highlight=False)
    for line in _scratch_lines(run):
        console.print(Text(line), soft_wrap=True)
    console.print()


def _style(event: Event) -> str:
    if event.kind in (Kind.DEADLINE_FIRES, Kind.SNAPSHOT_FAILED, Kind.PREPARE_GIVES_UP):
        return "red"
    return "green" if event.kind in (Kind.REPLY_READ, Kind.SNAPSHOT_COMMITTED) else ""


def _scratch_lines(run: Replay) -> list[str]:
    """The lines that the reviewer's scratch run printed, for this run."""
    first, last = run.snapshots[0], run.snapshots[-1]
    lines = [
        f"prepare: ready_to_commit={first.ready_to_commit} parked={first.parked} "
        f"(RL deadline registry suspended={first.deadlines_suspended})"
    ]
    for attempt in run.attempts[:1]:
        outcome: dict[str, Any] = {"reply": {"reward": attempt.reward}}
        if attempt.outcome == "timeout":
            outcome = {"timeout": attempt.error, "state_when_rl_gave_up": attempt.state_when_given_up}
        lines.append(f"RL outcome: {outcome}")
    lines.append(f"bodies started={run.bodies_started} finished={run.bodies_finished}")
    lines.append(
        f"next prepare: ready_to_commit={last.ready_to_commit} "
        f"completed_unacknowledged={last.completed_unacknowledged}"
    )
    return lines
