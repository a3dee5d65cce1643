"""Start Python, or any command, in an environment that switches the fix on in every Python of it."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix.errors import InvalidInputError, UnsupportedTargetError

# Not `typing` and the like: a script may have a module of that name beside it when this is imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import NoReturn

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")  # noqa: PTH100, PTH118, PTH120
"""The folder of the `sitecustomize.py` that Python runs when it starts."""

BEST_EFFORT = "NEMO_RL_DEADLINE_FIX_BEST_EFFORT"
"""The variable that lets a run go on without the fix, with a warning, where it cannot be put on."""

ACKNOWLEDGE = "NEMO_RL_DEADLINE_FIX_ACKNOWLEDGE"
"""The variable that also acknowledges what NeMo RL has given up on."""


def start(command: Sequence[str], *, best_effort: bool = False, acknowledge: bool = False) -> NoReturn:
    """Become a command, looked up on PATH, whose Pythons, and their children, have the fix switched on.

    Raises:
        InvalidInputError: It cannot be started.
    """
    import signal

    variables = environment(os.environ, best_effort=best_effort, acknowledge=acknowledge)
    sys.stdout.flush()
    sys.stderr.flush()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        # By Python, and what is ignored stays so in the program that it becomes.
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), variables)
    except OSError as error:
        raise InvalidInputError(
            f"cannot start {command[0]}",
            found=error.strerror or str(error),
            advice="check the command, and that it is on PATH",
        ) from error


def environment(
    variables: Mapping[str, str], *, best_effort: bool, acknowledge: bool = False
) -> dict[str, str]:
    """The environment that switches the fix on, made from another, whose PYTHONPATH keeps its meaning.

    Raises:
        InvalidInputError: PYTHONPATH cannot name our folder.
    """
    if os.pathsep in STARTUP:
        what, advice = (
            "cannot put our start-up folder on PYTHONPATH",
            "install the package under another path",
        )
        raise InvalidInputError(
            what, found=STARTUP, supported=f"a path without {os.pathsep!r}", advice=advice
        )
    # An empty PYTHONPATH means nothing, but an empty entry in it means the current folder.
    rest = variables.get("PYTHONPATH")
    made = {**variables, "PYTHONPATH": f"{STARTUP}{os.pathsep}{rest}" if rest else STARTUP}
    for name, wanted in {BEST_EFFORT: best_effort, ACKNOWLEDGE: acknowledge}.items():
        made.pop(name, None)
        if wanted:
            made[name] = "1"
    return made


def dropping_option(arguments: Sequence[str]) -> str | None:
    """The first of Python's arguments that makes it ignore the environment, or `site`: -I, -E or -S in it."""
    import re

    rest = iter(arguments)
    for argument in rest:
        if re.match("-[^-cmWXIES]*[IES]", argument):
            return argument
        if re.match("-[^-cmWX]*[cm]|--?$|[^-]|$", argument):
            # What follows belongs to the program.
            return None
        if re.match("-[^-cmWX]*[WX]$|--check-hash-based-pycs$", argument):
            next(rest, None)
    return None


def fix(module: ModuleType, start_path: list[str]) -> tuple[bool, str]:
    """Put the fix on the controller that was just imported in a launched process.

    A script may have a copy.py or an email.py beside it. Ours are never imported from there, and are
    forgotten afterwards where the script would import its own.

    Args:
        module: NeMo RL's controller module, complete.
        start_path: `sys.path` as it was before the script's own folder was on it.

    Returns:
        Whether the controller was refused, and the line to say.
    """
    before, path = set(sys.modules), sys.path
    own = [entry for entry in path if entry not in start_path]
    sys.path = start_path + own
    try:
        from nemo_rl_deadline_fix import installing

        acknowledge = bool(os.environ.get(ACKNOWLEDGE)) or None
        report = installing.on_import(module, announce=False, acknowledge=acknowledge)
    except UnsupportedTargetError as error:
        return True, str(error)
    finally:
        sys.path = path
        _forget({name for name in sys.modules if name.partition(".")[0] not in {*before, __package__}}, own)
    if report.state == "patched":
        return False, installing.is_on()
    why = f"{report.state} ({report.detail})" if report.detail else report.state
    return False, f"deadline fix {nemo_rl_deadline_fix.__version__} changed nothing: {why}"


def _forget(names: set[str], own: list[str]) -> None:
    """Take those modules out that a path has modules for."""
    for name in names:
        if PathFinder.find_spec(name.partition(".")[0], own) is not None:
            del sys.modules[name]
