"""Stops NeMo RL's rollout clocks while a NeMo Gym snapshot parks the rollouts.

Re-exports only. They are resolved on first use, so that importing the package costs a training
process next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nemo_rl_deadline_fix.errors import DeadlineFixError, InvalidInputError, UnsupportedTargetError
    from nemo_rl_deadline_fix.installing import Report, install, status, uninstall
    from nemo_rl_deadline_fix.observing import ClockReport, metrics
    from nemo_rl_deadline_fix.registry import RequestDeadlineRegistry
    from nemo_rl_deadline_fix.shapes import State

__version__ = "0.2.0"

__all__ = [
    "ClockReport",
    "DeadlineFixError",
    "InvalidInputError",
    "Report",
    "RequestDeadlineRegistry",
    "State",
    "UnsupportedTargetError",
    "install",
    "metrics",
    "status",
    "uninstall",
]

_HOMES = {
    "ClockReport": "observing",
    "DeadlineFixError": "errors",
    "InvalidInputError": "errors",
    "Report": "installing",
    "RequestDeadlineRegistry": "registry",
    "State": "shapes",
    "UnsupportedTargetError": "errors",
    "install": "installing",
    "metrics": "observing",
    "status": "installing",
    "uninstall": "installing",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
