"""`verify`: replay the stall and its fix on the embedded model, a checkout or an installed NeMo RL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay import report, verification
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters

DEFAULTS = Parameters()


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(verify)


def verify(
    rl: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A NeMo RL checkout: its own classes are cut out of the files and run, "
            "so use this on code you trust.",
        ),
    ] = None,
    installed: Annotated[
        bool, typer.Option("--installed", help="The NeMo RL that Python can import.")
    ] = False,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="rollout_timeout_s.")] = DEFAULTS.budget,
    snapshot_at: Annotated[
        float, typer.Option(metavar="SECONDS", help="When the first snapshot begins.")
    ] = DEFAULTS.snapshot_at,
    snapshot_for: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long it keeps admission closed.")
    ] = DEFAULTS.snapshot_for,
    second_at: Annotated[
        float, typer.Option(metavar="SECONDS", help="When the second snapshot begins.")
    ] = DEFAULTS.second_at,
    prepare_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="prepare_timeout_s.")
    ] = DEFAULTS.prepare_timeout,
    work: Annotated[
        float, typer.Option(metavar="SECONDS", help="Work of the rollout's first try.")
    ] = DEFAULTS.work,
    retry_work: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Work of every later try; seven tenths of --work by default."),
    ] = None,
    turn: Annotated[
        float, typer.Option(metavar="SECONDS", help="Length of a turn; rollouts park between turns.")
    ] = DEFAULTS.turn,
    overlap: Annotated[
        Overlap,
        typer.Option(help="What else wants the clocks: a weight sync in mid-snapshot, or a training switch."),
    ] = Overlap.NONE,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw both timelines, as .svg or .png (needs the extra `plot`)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the stall and its fix: the same story as the code is, and with the fix put on it.

    The clock is virtual and the printed times are what the replay computed. Exit code 0: the stall is
    there before and gone after, or the target is fixed or has no Gym snapshots; 1: it still stalls;
    2: could not tell.
    """
    if rl is not None and installed:
        raise InvalidInputError(
            "verify has one target", found="--rl and --installed", advice="give one of them, or neither"
        )
    parameters = Parameters(
        budget, snapshot_at, snapshot_for, second_at, prepare_timeout, work, retry_work, turn, overlap
    )
    if plot is not None:
        from nemo_rl_deadline_fix.replay import plot as pictures

        pictures.check(plot)
    if rl is not None:
        result = verification.of_checkout(rl, parameters)
    elif installed:
        result = verification.of_installed(parameters)
    else:
        result = verification.of_embedded(parameters)
    if plot is not None and result.before is not None:
        pictures.plot(result, plot)
    elif plot is not None:
        typer.echo(f"no picture {plot}: nothing was replayed", err=True)
    if as_json:
        print(json.dumps(report.as_json(result), indent=2))
    else:
        report.show(result, Console())
    raise typer.Exit(report.EXIT_CODES[result.verdict])
