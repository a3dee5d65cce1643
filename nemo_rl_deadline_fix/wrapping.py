"""Put the fix on a controller class, take it off, and tell whether it is there.

One method is replaced, by a thin closure. Ray pickles an actor class by value, so what the driver patches
reaches the actor, where the closure finds `gate`, which does the work, by import.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

from nemo_rl_deadline_fix import gate
from nemo_rl_deadline_fix.observing import warn_of_timeout
from nemo_rl_deadline_fix.shapes import Finding, State
from nemo_rl_deadline_fix.targets import PREPARE

shipped_here = False
"""Whether a class came to this process with the fix on it: then this is the actor's, and the fix is on."""
acknowledges_here = False
"""Whether that class also acknowledges what NeMo RL has given up on."""


def patch(controller: type, *, acknowledge: bool = False) -> None:
    """Put the fix on a class. One that has it keeps its wrapper, and takes the choice.

    Args:
        controller: A class of a supported shape (`shapes.classify`).
        acknowledge: Whether to acknowledge what NeMo RL has given up on (`stranded`).

    Raises:
        UnsupportedTargetError: The class does not let itself be changed; it is as it was.
    """
    fix = _fix_on(controller)
    if fix is not None:
        fix.acknowledge = acknowledge
        return
    try:
        # On the class itself, also where a base defines the method: Ray ships this class by value, while an
        # importable base is imported afresh in the actor, without our wrapper.
        original = inspect.getattr_static(controller, PREPARE)
        setattr(controller, PREPARE, _wrap(original, _Fix(acknowledge)))
    except Exception as error:
        raise Finding(State.UNSUPPORTED, f"{type(error).__name__}: {error}").error() from error


def unpatch(controller: type) -> str:
    """Take the fix off a class.

    Returns:
        "", or one line that says why it stays: somebody wrapped the method again, and nothing was changed.
    """
    wrapper: Any = vars(controller).get(PREPARE)
    if not _is_ours(wrapper):
        return f"{PREPARE} was wrapped again after install(), so the fix stays on it"
    delattr(controller, PREPARE)
    if inspect.getattr_static(controller, PREPARE, None) is not wrapper.__wrapped__:
        setattr(controller, PREPARE, wrapper.__wrapped__)
    return ""


def is_patched(controller: type) -> bool:
    """Whether the fix is on a class, be it below somebody else's wrapper."""
    return _fix_on(controller) is not None


def acknowledges(controller: type) -> bool | None:
    """Whether the fix on a class acknowledges what NeMo RL has given up on; None where it is not on."""
    fix = _fix_on(controller)
    return fix.acknowledge if fix else None


class _Fix:
    """What a wrapper calls. Its arrival in another process says that the class came with the fix on it."""

    def __init__(self, acknowledge: bool) -> None:
        self.acknowledge = acknowledge

    async def run(
        self, original: Callable[..., Awaitable[Any]], controller: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with_clocks = partial(gate.prepare_and_commit, original)
        if self.acknowledge:
            from nemo_rl_deadline_fix import stranded

            return await stranded.prepare_and_commit(with_clocks, controller, *args, **kwargs)
        try:
            return await with_clocks(controller, *args, **kwargs)
        except Exception as error:
            warn_of_timeout(error)
            raise

    def __reduce__(self) -> tuple[Callable[[bool], _Fix], tuple[bool]]:
        return _arrive, (self.acknowledge,)


def _arrive(acknowledge: bool) -> _Fix:
    global shipped_here, acknowledges_here
    shipped_here, acknowledges_here = True, acknowledge
    return _Fix(acknowledge)


def _wrap(original: Any, fix: _Fix) -> Any:
    # An `async def`, because Ray looks at the function to know an asyncio method. Both names that it closes
    # over survive cloudpickle: the original by value as before, the fix by a call of a function by name.
    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await fix.run(original, self, *args, **kwargs)

    return wrapper


def _fix_on(controller: type) -> _Fix | None:
    """The fix that a class's method leads to, through whatever wrappers."""
    seen: list[Any] = []
    pending: list[Any] = [inspect.getattr_static(controller, PREPARE, None)]
    while pending:
        function = pending.pop()
        if _is_ours(function):
            return next(one for one in _closed_over(function) if isinstance(one, _Fix))
        if not any(function is one for one in seen):
            seen.append(function)
            pending += [one for one in _closed_over(function) if hasattr(one, "__code__")]
            pending += [function.__wrapped__] if hasattr(function, "__wrapped__") else []
    return None


def _is_ours(function: Any) -> bool:
    # What it closes over says it, because `functools.wraps` copies any mark on to a stranger's wrapper. And
    # the exact type, because a proxy shows the closure of what it wraps.
    return type(function) is FunctionType and any(isinstance(one, _Fix) for one in _closed_over(function))


def _closed_over(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        # A cell is empty while what defines its variable has not run.
        with suppress(ValueError):
            yield cell.cell_contents
