"""`run`: start a training script with the fix switched on."""

from __future__ import annotations

import click

from nemo_rl_deadline_fix.errors import DeadlineFixError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-m] SCRIPT [ARGUMENTS]...")
def run(arguments: tuple[str, ...]) -> int:
    """Run a training script with the fix switched on, as if Python itself had been given it.

    The script runs as __main__, with its own arguments, sys.argv and sys.path[0]; its exit code is ours.
    """
    # Reached by --help alone: the entry point takes scripts out before this library is imported.
    raise DeadlineFixError("run is started by its entry point", advice="call `nemo-rl-deadline-fix run`")
