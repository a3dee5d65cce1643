"""Put the fix on a controller class, take it off, and tell whether it is there.

Only two methods are replaced, by thin closures. Ray pickles an actor class by value, so what the driver
patches reaches the actor; the closures hold nothing but the original, and find `admission`, where the
work is done, by import at the other end.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

from nemo_rl_deadline_fix import gate
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.targets import CONTROLLER_MODULE, GATE, METHODS, PREPARE, RELEASE

_SHAPE_WANTED = f"async {PREPARE} and {RELEASE} that alone close and reopen {GATE}"
_ADVICE = (
    "run `nemo-rl-deadline-fix check` on your checkout and report what it prints, or apply the source diff"
)


def patch(controller: type) -> None:
    """Wrap the two methods on a class, both or none. Wrapped ones are left as they are.

    Args:
        controller: A class of a supported shape (`shapes.classify`).

    Raises:
        UnsupportedTargetError: The class does not let itself be changed; it is as it was.
    """
    bodies = {PREPARE: gate.prepare_and_commit, RELEASE: gate.release_prepared}
    done: list[str] = []
    try:
        for name, has_ours in zip(METHODS, covered(controller), strict=True):
            if not has_ours:
                # On the class itself, also where a base defines the method: Ray ships this class by
                # value, while an importable base is imported afresh in the actor, without our wrapper.
                setattr(controller, name, _wrap(_lookup(controller, name), bodies[name]))
                done.append(name)
    except Exception as error:
        for name in done:
            _restore(controller, name)
        raise unsupported(f"{type(error).__name__}: {error}") from error


def unpatch(controller: type) -> tuple[str, ...]:
    """Take our wrappers off a class, both or none.

    Args:
        controller: The class.

    Returns:
        One line for each method that somebody wrapped again; nothing was changed then.
    """
    ours = [name for name, has_ours in zip(METHODS, covered(controller), strict=True) if has_ours]
    left = [name for name in ours if not _is_ours(vars(controller).get(name))]
    if not left:
        for name in ours:
            _restore(controller, name)
    return tuple(
        f"{name} was wrapped again after install(), so the fix stays on {' and '.join(METHODS)}"
        for name in left
    )


def covered(controller: type) -> list[bool]:
    """For each of `METHODS`, whether our wrapper is on it, or somewhere below what is on it."""
    return [any(map(_is_ours, _layers(_lookup(controller, name)))) for name in METHODS]


def unsupported(found: str) -> UnsupportedTargetError:
    """The error for a controller of an unknown shape.

    Args:
        found: What was found instead of what the fix needs.

    Returns:
        The error, to be raised.
    """
    return UnsupportedTargetError(
        f"cannot pause the rollout clocks of {CONTROLLER_MODULE}",
        found=found,
        supported=_SHAPE_WANTED,
        advice=_ADVICE,
    )


def _restore(controller: type, name: str) -> None:
    original = vars(controller)[name].__wrapped__
    if original is _lookup(controller, name, controller.__mro__[1:]):
        delattr(controller, name)
    else:
        setattr(controller, name, original)


def _wrap(original: Any, body: Callable[..., Awaitable[Any]]) -> Any:
    # An `async def`, because Ray looks at the function to know an asyncio method. Both names it closes
    # over survive cloudpickle: the original by value as before, the body by reference.
    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await body(original, self, *args, **kwargs)

    return wrapper


def _is_ours(function: Any) -> bool:
    # The code says it, because `functools.wraps` copies any mark on to a stranger's wrapper. And the
    # exact type, because a proxy shows the code of what it wraps.
    return type(function) is FunctionType and function.__code__.co_filename == _wrap.__code__.co_filename


def _layers(function: Any) -> list[Any]:
    """A function and what it wraps, as far as `__wrapped__` or a plain closure shows it."""
    layers: list[Any] = []
    pending = [function]
    while pending:
        one = pending.pop()
        if one is not None and not any(one is layer for layer in layers):
            layers.append(one)
            pending.append(getattr(one, "__wrapped__", None))
            if not _is_ours(one) and hasattr(one, "__code__"):
                pending += [value for value in _closed_over(one) if hasattr(value, "__code__")]
    return layers


def _closed_over(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        # A cell is empty while what defines its variable has not run.
        with suppress(ValueError):
            yield cell.cell_contents


def _lookup(controller: type, name: str, owners: tuple[type, ...] | None = None) -> Any:
    """What a class has under a name, as it is stored; None where it has nothing."""
    found = (vars(owner)[name] for owner in owners or controller.__mro__ if name in vars(owner))
    return next(found, None)
