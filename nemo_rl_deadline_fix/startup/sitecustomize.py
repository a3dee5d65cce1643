"""Runs at the start of every Python in an environment that `nemo-rl-deadline-fix run` made.

That may be any Python, 2.7 too, with or without our package, and most of them never import NeMo RL. So the
syntax is old, nothing but `sys` and `os` is imported, and what would have run without us runs as well.
"""

import os
import sys

HERE = os.path.dirname(__file__)
NAME = "nemo-rl-deadline-fix"
BEST_EFFORT = "NEMO_RL_DEADLINE_FIX_BEST_EFFORT"
INFO, WARNING, ERROR = 20, 30, 40
START_PATH = []  # type: list[str]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def _watch():
    # type: () -> None
    """Wait for NeMo RL's controller, which no Python before 3.6 can import."""
    # The module is loaded by its path: to import its package is more than most children need, or can.
    import atexit

    name = "nemo_rl_deadline_fix.importing"
    path = os.path.join(os.path.dirname(HERE), "importing.py")
    importing = {"__name__": name, "__file__": path}  # type: dict[str, Any]
    exec(type(__loader__)(name, path).get_code(name), importing)  # type: ignore[name-defined]
    hook = importing["ControllerHook"](_fix)
    hook.enter()
    atexit.register(_tell_missed, hook)


def _fix(module):
    # type: (ModuleType) -> None
    """Put the fix on the controller, say so, and go no further where that cannot be done."""
    try:
        from nemo_rl_deadline_fix import launching

        refused, line = launching.fix(module, START_PATH)
    except Exception as error:
        refused = True
        found = "%s: %s" % (type(error).__name__, " ".join(str(error).split()))
        line = "the fix cannot be put on in this Python; found: %s; do this: install %s into %s"
        line %= (found, NAME, sys.prefix)
    # By this name Ray starts its workers.
    worker = os.path.basename("".join(sys.argv[:1])) == "default_worker.py"
    best_effort = os.environ.get(BEST_EFFORT)
    if refused and (worker or best_effort):
        line = "deadline fix: rollout clocks are NOT paused during Gym snapshots: " + line
        _log(WARNING if best_effort else ERROR, line)
    elif refused:
        _write(line + ", or go on without the fix by `run --best-effort`")
        # Not a typed error, which an `except Exception` of the script would swallow.
        raise SystemExit(2)
    elif not worker:
        # In a worker the module says nothing of the actor: its class came from the driver, fixed or not.
        _log(INFO, line)


def _tell_missed(hook):
    # type: (Any) -> None
    if hook.missed() is not None:
        _write(
            "NeMo RL's controller was imported past the fix, which stayed off; do this: call "
            "nemo_rl_deadline_fix.install() in the script before it makes the controller actor"
        )


def _log(level, line):
    # type: (int, str) -> None
    """Log a line; on stderr where logging is not set up and would drop it. A level that was set holds."""
    import logging

    logger = logging.getLogger("nemo_rl.deadline_fix")
    if logger.hasHandlers() and (logger.isEnabledFor(level) or logging.getLogger("nemo_rl").level):
        logger.log(level, "%s", line)
    else:
        _write(line)


def _write(line):
    # type: (str) -> None
    if sys.stderr is not None:
        sys.stderr.write("%s: %s\n" % (NAME, line))


def _run_the_next():
    # type: () -> None
    """Import the sitecustomize that this one shadows. Where there is none, the error says so to `site`."""
    at = sys.path.index(HERE) if HERE in sys.path else 0
    earlier = sys.path[:at]
    stood = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path[at:] if entry != HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found]
    finally:
        sys.path[:0] = earlier
        # Complete, but for what the script brings.
        START_PATH[:] = sys.path
        if stood is not None and vars(stood) is not globals():
            # Somebody else's, who runs the next ones as we do.
            sys.modules["sitecustomize"] = stood


if sys.version_info >= (3, 6):
    _watch()
_run_the_next()
