"""The command line: thin commands, one line for a user's mistake, exit codes as ruff's.

0: fine, 1: a finding, 2: wrong usage, or could not decide.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import Annotated

import typer

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix.errors import DeadlineFixError

NAME = "nemo-rl-deadline-fix"

# Where each command lives, so that one does not import what only the others need.
_HOMES = {"verify": "verify", "check": "checkout", "diff": "checkout", "apply": "checkout"}


def app(arguments: list[str]) -> None:
    """Run a command and leave with its exit code.

    Args:
        arguments: The command's name and its arguments.

    Raises:
        SystemExit: Always.
    """
    if sys.stdout is None:
        # Started with its output closed: there is nobody to print to, but an exit code to give.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for good
    try:
        try:
            _commands(_HOMES.get(arguments[0]) if arguments else None)(arguments, prog_name=NAME)
        finally:
            sys.stdout.flush()
    except DeadlineFixError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        # Our output is closed, as by `| head`, or full. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None
        print(f"{NAME}: cannot write the output; found: {error}", file=sys.stderr)
        raise SystemExit(2) from None


@cache
def _commands(home: str | None) -> typer.Typer:
    """The commands of one module; by default all, which takes longer than most commands do themselves."""
    commands = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    commands.callback()(_main)
    for module in dict.fromkeys(_HOMES.values()):
        if home in (module, None):
            import_module(f"{__name__}.{module}").register(commands)
    if home is None:
        commands.command(
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            options_metavar="[-m]",
            short_help="Run a training script with the fix switched on.",
        )(run)
    return commands


def _version(wanted: bool) -> None:
    if wanted:
        print(nemo_rl_deadline_fix.__version__)
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stops NeMo RL's rollout clocks while a NeMo Gym snapshot parks the rollouts."""


def run(
    script: Annotated[str, typer.Argument(help="A Python file; with -m, a module's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, passed on untouched.")
    ] = None,
) -> None:
    """Run a training script with the fix switched on, as if Python itself had been given it.

    The script runs as __main__, with its own arguments, sys.argv and sys.path[0]; its exit code is ours.
    """
    # Reached by --help alone: the entry point takes scripts out before this library is imported.
    raise DeadlineFixError(f"{NAME} run is started by its entry point", advice=f"call `{NAME} run`")
