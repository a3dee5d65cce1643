"""`verify`: simulate the stall and its fix on the embedded model, a checkout or an installed NeMo RL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from nemo_rl_deadline_fix.cli.printing import print_json, printable, say, show, show_table
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay import report, verifying
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.verdict import EXIT_CODES, Form, Verification

DEFAULTS = Parameters()
_TITLES = {Form.AS_IS: "before: as the code is", Form.CLOCKS: "after: with the fix"}


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
@click.option("--installed", is_flag=True, help="The NeMo RL that Python can import.")
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
    does not help; 2: could not tell.
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
        result = verifying.of_installed(parameters)
    else:
        result = verifying.of_embedded(parameters)
    if plot is not None and result.runs:
        pictures.plot(result, plot)
        say(f"wrote {printable(str(plot))}")
    elif plot is not None:
        say(f"no picture {printable(str(plot))}: nothing was simulated")
    if as_json:
        print_json(report.as_json(result))
    else:
        _print(result)
    return EXIT_CODES[result.verdict]


def _print(result: Verification) -> None:
    show(f"Target: {printable(report.target(result))}", "bold", later="")
    for file in result.files:
        ranges = ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in file.lines)
        show(f"ran {printable(file.path)}: {ranges}", first="  ", later=" " * 6)
    for form, run in result.runs.items():
        show()
        show(_TITLES[form] if len(result.runs) > 1 else "as the code is", "bold")
        _print_run(run)
    if len(result.runs) > 1:
        show()
        show_table(report.summary(result))
    if result.runs:
        show()
    colour = ("green", "red", "yellow")[EXIT_CODES[result.verdict]]
    show(printable(result.sentence), f"bold {colour}", later="")


def _print_run(run: Replay) -> None:
    rows = [("t (s)", "who", "what")]
    rows += [(f"{event.at:.1f}", event.who, event.what) for event in run.events]
    show_table(rows, [report.COLOURS.get(event.kind, "") for event in run.events], right=0)
    for line in report.outcome(run):
        show(line)
