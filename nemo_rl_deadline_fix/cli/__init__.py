"""The command line: thin commands, one line for a user's mistake, exit codes as ruff's.

0: fine, 1: a finding, 2: wrong usage, or could not decide. 130 after Ctrl-C, 141 where the reader of our
output went away, as for any command that dies of the signal.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix.errors import DeadlineFixError

NAME = "nemo-rl-deadline-fix"
INTERRUPTED, PIPE_CLOSED = 130, 141

# Where each command lives, so that one does not import what only the others need.
_HOMES = {"check": "tree", "diff": "tree", "apply": "tree", "verify": "verify", "run": "run"}


class _Commands(click.Group):
    """The commands, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _HOMES:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{_HOMES[cmd_name]}"), cmd_name)
        return command


@click.group(NAME, cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nemo_rl_deadline_fix.__version__, message="%(version)s")
def commands() -> None:
    """Stops NeMo RL's rollout clocks while a NeMo Gym snapshot parks the rollouts."""


def app(arguments: list[str]) -> NoReturn:
    """Run a command and leave with its exit code.

    Args:
        arguments: The command's name and its arguments.

    Raises:
        SystemExit: Always.
    """
    if sys.stdout is None:
        # Started with its output closed: there is nobody to print to, but an exit code to give.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for good
    for stream in (sys.stdout, sys.stderr):
        # A path or a key may hold what the terminal's encoding does not.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except DeadlineFixError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        code = _output_lost(error)
    raise SystemExit(code)


def _run(arguments: list[str]) -> int:
    if f"_{NAME}_COMPLETE".replace("-", "_").upper() in os.environ:
        commands.main(prog_name=NAME)
    try:
        # Not `commands.main`: it would take a closed pipe for a finding.
        with commands.make_context(NAME, arguments) as context:
            return int(commands.invoke(context))
    except click.exceptions.Exit as left:
        return left.exit_code


def _output_lost(error: OSError) -> int:
    """Our output is closed, as by `| head`, or full. Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    print(f"{NAME}: cannot write the output; found: {error}", file=sys.stderr)
    return 2
