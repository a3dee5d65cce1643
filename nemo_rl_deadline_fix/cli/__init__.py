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
from nemo_rl_deadline_fix.cli.printing import say
from nemo_rl_deadline_fix.errors import DeadlineFixError, InvalidInputError

NAME = "nemo-rl-deadline-fix"
INTERRUPTED, PIPE_CLOSED = 130, 141

# Where each command lives, so that one does not import what only the others need, and help needs none.
_COMMANDS = {
    "check": ("tree", "Tell whether a NeMo RL tree, or a run's config, has the defect."),
    "diff": ("tree", "Print the fix for a NeMo RL tree, as a patch."),
    "apply": ("tree", "Write the fix into a NeMo RL tree, or take it out."),
    "verify": ("verify", "Show the stall and its fix, on a virtual clock."),
    "run": ("run", "Start Python with the fix switched on."),
}


class _Commands(click.Group):
    """The commands, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        home, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"{__name__}.{home}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(NAME, cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nemo_rl_deadline_fix.__version__, message="%(version)s")
def commands() -> None:
    """Stops NeMo RL's rollout clocks while a NeMo Gym snapshot parks the rollouts."""


def app(arguments: list[str]) -> NoReturn:
    """Run a command and leave with its exit code.

    Args:
        arguments: The command's name and its arguments; none ask for help.

    Raises:
        SystemExit: Always.
    """
    _prepare_streams()
    try:
        code = _run(arguments or ["--help"])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = PIPE_CLOSED
    except Exception as error:
        code = 2
        say(f"{NAME}: {_in_one_line(error, arguments[0] if arguments else '')}")
    _discard_unwritten()
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


def _in_one_line(error: Exception, command: str) -> DeadlineFixError:
    """What a user is told of an error. Any other than ours is a bug, except for what is named here."""
    if isinstance(error, DeadlineFixError):
        return error
    if isinstance(error, click.UsageError):
        path = f"{NAME} {command}" if command in _COMMANDS else NAME
        return InvalidInputError(
            f"cannot read the arguments of `{path}`",
            found=error.format_message().rstrip("."),
            advice=f"see `{path} --help`",
        )
    if isinstance(error, OSError):
        what = "cannot write the output" if error.filename is None else f"cannot use {error.filename}"
        return InvalidInputError(what, found=error.strerror or str(error))
    if isinstance(error, RecursionError | MemoryError):
        return InvalidInputError("the input is nested too deeply", found=type(error).__name__)
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    return DeadlineFixError(
        "internal error",
        found=f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})",  # noqa: PTH119
        advice="report this line with the command and its input",
    )


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Started with it closed: there is nobody to print to, but an exit code to give.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - for good
        # A path or a key may hold what the terminal's encoding does not.
        if reconfigure := getattr(getattr(sys, name), "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _discard_unwritten() -> None:
    """Take what a closed pipe or a full disk did not; Python would try, and complain, once more at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
