"""A verification in words for people, and as one object for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from nemo_rl_deadline_fix.replay.records import Attempt, EventKind, Replay
from nemo_rl_deadline_fix.replay.verdict import Form, Verdict, Verification

COLOURS = {
    EventKind.DEADLINE_FIRES: "red",
    EventKind.SNAPSHOT_FAILED: "red",
    EventKind.PREPARE_GIVES_UP: "red",
    EventKind.REPLY_READ: "green",
    EventKind.SNAPSHOT_COMMITTED: "green",
}
"""Events that stand out in a timeline."""


def target(verification: Verification) -> str:
    """What was simulated."""
    if verification.kind == "embedded":
        return "the embedded model, our own code of NeMo RL's shape with its defect"
    return f"{verification.kind} {verification.path}"


def outcome(run: Replay) -> Iterator[str]:
    """What the reviewer's scratch run printed, in words, line by line."""
    first, last = run.snapshots[0], run.snapshots[-1]
    clocks = "stopped" if first.deadlines_suspended else "running"
    yield f"prepare: {_ready(first.ready_to_commit)}, {first.parked} parked, RL's clocks {clocks}"
    yield f"RL outcome: {rl_outcome(run.attempts[0])}"
    yield f"Gym runs: {run.bodies_started} started, {run.bodies_finished} finished"
    kept = last.completed_unacknowledged
    yield f"next prepare: {_ready(last.ready_to_commit)}, {kept} finished but not ACKed"


def rl_outcome(attempt: Attempt) -> str:
    """How a try ended for RL."""
    if attempt.outcome == "timeout":
        return f"timed out after {attempt.at:g} s while {attempt.state_when_given_up}"
    return f"reply with reward {attempt.reward:g}"


def summary(verification: Verification) -> list[tuple[str, str, str]]:
    """One row for each form, after a heading."""
    rows = [("", "snapshots saved", "RL outcome of try 0")]
    for form, run in verification.runs.items():
        saved = sum(snapshot.outcome == "committed" for snapshot in run.snapshots)
        rows.append((form.value, f"{saved} of {len(run.snapshots)}", rl_outcome(run.attempts[0])))
    return rows


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


def _ready(ready_to_commit: bool) -> str:
    return "ready" if ready_to_commit else "not ready"
