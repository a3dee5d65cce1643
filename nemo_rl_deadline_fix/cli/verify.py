"""`verify`: simulate the stall and its fix on the embedded model, a checkout or an installed NeMo RL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nemo_rl_deadline_fix.cli.printing import print_json, printable, say, show, show_table
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay import verifying
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.records import EventKind, Replay
from nemo_rl_deadline_fix.replay.verdict import Form, Verdict, Verification

DEFAULTS = Parameters()
_COLOURS = {
    EventKind.DEADLINE_FIRES: "red",
    EventKind.ROW_FAILS: "red",
    EventKind.SNAPSHOT_FAILED: "red",
    EventKind.PREPARE_GIVES_UP: "red",
    EventKind.REPLY_READ: "green",
    EventKind.SNAPSHOT_COMMITTED: "green",
}


def _seconds(name: str, text: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """An option for one of the simulation's numbers."""
    option = f"--{name.replace('_', '-')}"
    return click.option(
        option, name, metavar="SECONDS", type=float, default=getattr(DEFAULTS, name), help=text
    )


@click.command()
@click.option(
    "--rl",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A NeMo RL checkout: its own classes are cut out and run, so use this on code you trust.",
)
@click.option("--installed", is_flag=True, help="The NeMo RL that Python can import, as --rl its folder.")
@_seconds("budget", "rollout_timeout_s.")
@_seconds("snapshot_at", "When the first snapshot begins.")
@_seconds("snapshot_for", "How long it keeps admission closed.")
@_seconds("second_at", "When the second snapshot begins.")
@_seconds("prepare_timeout", "prepare_timeout_s.")
@_seconds("work", "Work of the rollout's first try.")
@_seconds("retry_work", "Work of every later try; seven tenths of --work by default.")
@_seconds("turn", "Length of a turn; rollouts park between turns.")
@click.option(
    "--overlap",
    type=click.Choice([overlap.value for overlap in Overlap]),
    default=Overlap.NONE.value,
    help="What else suspends or resumes the clocks: a weight sync in mid-snapshot, or a training switch.",
)
@click.option(
    "--fail-row", is_flag=True, help="Three rows instead of one, of which one fails on its first attempt."
)
@click.option("--hang", is_flag=True, help="The first try's last turn never ends: this stall stays.")
@click.option(
    "--shards",
    metavar="NUMBER",
    type=int,
    default=DEFAULTS.shards,
    help="Gym's shards, where the checkout's NeMo RL has shards.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Draw the timelines, as .svg or .png (needs the extra `plot`).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def verify(
    rl: Path | None, installed: bool, plot: Path | None, as_json: bool, overlap: str, **numbers: Any
) -> int:
    """Show the stall and its fix: one simulation of the code as it is, and one with the fix put on it.

    The clock is virtual and the printed times are what the simulation computed. Exit code 0: the stall is
    there before and gone after, or the target is fixed or has no Gym snapshots; 1: it stalls, and the fix
    does not help; 2: could not tell. Where the clocks alone leave a stall, as with --work 220 or --fail-row,
    a third simulation acknowledges what RL has given up on, as `run --acknowledge` does.
    """
    if rl is not None and installed:
        raise InvalidInputError(
            "verify has one target", found="--rl and --installed", advice="give one of them, or neither"
        )
    parameters = Parameters(overlap=Overlap(overlap), **numbers)
    if plot is not None:
        from nemo_rl_deadline_fix.replay import plot as pictures

        pictures.check(plot)
    if rl is not None:
        result = verifying.of_checkout(rl, parameters)
    elif installed:
        result = verifying.of_checkout(verifying.installed_package(), parameters, "installed")
    else:
        result = verifying.of_embedded(parameters)
    if plot is not None and result.runs:
        pictures.plot(result, plot)
        say(f"wrote {printable(str(plot))}")
    elif plot is not None:
        say(f"no picture {printable(str(plot))}: nothing was simulated")
    if as_json:
        print_json(_as_json(result))
    else:
        _print(result)
    return result.verdict.exit_code


def _print(result: Verification) -> None:
    target = "the embedded model, our own code of NeMo RL's shape with its defect"
    if result.kind != "embedded":
        target = f"{result.kind} {result.path}"
    show(f"Target: {printable(target)}", "bold", later="")
    for file in result.files:
        show(f"ran {printable(file)}", first="  ", later=" " * 6)
    for form, run in result.runs.items():
        show()
        show(result.title(form), "bold")
        _print_run(run)
    if len(result.runs) > 1:
        show()
        show_table(result.summary())
    if result.runs:
        show()
    colour = ("green", "red", "yellow")[result.verdict.exit_code]
    show(printable(result.sentence), f"bold {colour}", later="")


def _print_run(run: Replay) -> None:
    rows = [("t (s)", "who", "what")]
    rows += [(f"{event.at:.1f}", event.who, event.what) for event in run.events]
    show_table(rows, [_COLOURS.get(event.kind, "") for event in run.events], right=0)
    first, last = run.snapshots[0], run.snapshots[-1]
    clocks = "stopped" if first.deadlines_suspended else "running"
    show(f"prepare: {_ready(first.ready_to_commit)}, {first.parked} parked, RL's clocks {clocks}")
    show(f"RL outcome: {run.attempts[0].in_words}")
    show(f"Gym runs: {run.bodies_started} started, {run.bodies_finished} finished")
    kept = last.completed_unacknowledged
    hung = "; a run never reaches a turn boundary" * run.hangs
    show(f"next prepare: {_ready(last.ready_to_commit)}, {kept} finished but not ACKed{hung}")


def _ready(ready_to_commit: bool) -> str:
    return "ready" if ready_to_commit else "not ready"


def _as_json(result: Verification) -> dict[str, Any]:
    before = result.runs.get(Form.AS_IS)
    return {
        "target": {"kind": result.kind, "path": result.path or None, "files": list(result.files)},
        "parameters": asdict(result.parameters),
        **{form.value: _run_as_json(result.runs.get(form)) for form in Form},
        "stall_reproduced": bool(before and before.stalls),
        "fixed": result.verdict in (Verdict.FIXED, Verdict.ALREADY_FIXED),
        "verdict": result.verdict.value,
        "message": result.sentence,
    }


def _run_as_json(run: Replay | None) -> dict[str, Any] | None:
    if run is None:
        return None
    fields = asdict(run)
    bodies = {"started": run.bodies_started, "finished": fields.pop("bodies_finished")}
    return {**fields, "bodies": bodies, "scratch_run": _scratch_run(run)}


def _scratch_run(run: Replay) -> list[str]:
    """The lines that the background document's scratch run prints, for this run."""
    first, last, attempt = run.snapshots[0], run.snapshots[-1], run.attempts[0]
    outcome: dict[str, Any] = {"reply": {"reward": attempt.reward}}
    if attempt.outcome == "timeout":
        outcome = {"timeout": attempt.error, "state_when_rl_gave_up": str(attempt.state_when_given_up)}
    elif attempt.outcome == "failed":
        outcome = {"failed": attempt.error}
    return [
        f"prepare: ready_to_commit={first.ready_to_commit} parked={first.parked} "
        f"(RL deadline registry suspended={first.deadlines_suspended})",
        f"RL outcome: {outcome}",
        f"bodies started={run.bodies_started} finished={run.bodies_finished}",
        f"next prepare: ready_to_commit={last.ready_to_commit} "
        f"completed_unacknowledged={last.completed_unacknowledged}",
    ]
