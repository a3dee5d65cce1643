"""`run`: start Python, or a command, with the fix switched on."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from nemo_rl_deadline_fix import launching
from nemo_rl_deadline_fix.errors import InvalidInputError

_OWN = ("--acknowledge", "--best-effort", "--exec", "-h", "--help")


class _Run(click.Command):
    """Takes its own options in front; all that follows is Python's, or the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = next((at for at, argument in enumerate(args) if argument not in _OWN), len(args))
        return super().parse_args(ctx, [*args[:own], "--", *args[own:]])


@click.command(cls=_Run)
@click.option("--acknowledge", is_flag=True, help="Also acknowledge in Gym what NeMo RL has given up on.")
@click.option("--best-effort", is_flag=True, help="Go on with a warning where the fix cannot be put on.")
@click.option("--exec", "is_command", is_flag=True, help="Start COMMAND instead of Python.")
@click.argument("arguments", nargs=-1, type=click.Path(), metavar="ARGUMENTS...")
def run(arguments: tuple[str, ...], acknowledge: bool, best_effort: bool, is_command: bool) -> NoReturn:
    """Start Python with the fix switched on in it and in its children.

    ARGUMENTS are all that Python takes: a script, -m MODULE, -X dev, - and so on; with --exec a COMMAND
    and its arguments, for example `uv run examples/run_grpo_single_controller.py`. Exit code, output and
    signals are those of what was started. Exit code 2 if NeMo RL's controller has a shape that cannot be
    fixed.
    """
    if is_command and arguments[:1] == ("--",):
        arguments = arguments[1:]
    if not arguments:
        raise InvalidInputError(
            "run needs something to start",
            found="no argument",
            supported="run SCRIPT, run -m MODULE, run --exec COMMAND, each with its arguments",
        )
    if is_command:
        launching.start(arguments, best_effort=best_effort, acknowledge=acknowledge)
    option = launching.dropping_option(arguments)
    if option is not None:
        raise InvalidInputError(
            f"Python would start without the fix because of {option}",
            found="an option that ignores PYTHONPATH or sitecustomize (-I, -E, -S)",
            supported="every other option of Python's",
            advice="leave it out; -P keeps the script's folder off the path as well",
        )
    command = [sys.executable, *arguments]
    launching.start(command, best_effort=best_effort, acknowledge=acknowledge)
