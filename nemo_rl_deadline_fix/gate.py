"""Hold the rollout clocks exactly while the gate of a Gym snapshot is closed.

The two functions here are the bodies of the wrappers that `installing` puts on the controller. They
run inside the actor, so they look everything up on the object they are given. The rule is
level-triggered: after every wrapped call, however it ends, the hold is set to what the gate says. That
is right for each way a snapshot can end, with no case of its own for any of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from nemo_rl_deadline_fix.registry import RequestDeadlineRegistry, logger
from nemo_rl_deadline_fix.targets import GATE, HOLDER, MANAGER, METRIC_PREFIX, REGISTRY, TELEMETRY

_TOLD = "_nemo_rl_deadline_fix_told"

runs_here = False
"""Whether a wrapped method has run in this process: then it is the actor's, and the fix is on."""


async def prepare_and_commit(
    original: Callable[..., Awaitable[Any]], controller: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run the controller's prepare and commit with the clocks held from before its first await.

    Args:
        original: The unwrapped `_prepare_and_commit_gym_checkpoint`.
        controller: The controller it is called on.
        *args: The call's arguments, passed on untouched.
        **kwargs: The call's keyword arguments, passed on untouched.

    Returns:
        What the original returns; whatever it raises comes out as it is, cancellation included.
    """
    global runs_here
    runs_here = True
    registry = _registry(controller)
    if registry is not None:
        _attempt(registry.suspend)
    return await release_prepared(original, controller, *args, **kwargs)


async def release_prepared(
    original: Callable[..., Awaitable[Any]], controller: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run one of the controller's methods, then set the hold to what the gate says.

    Args:
        original: The unwrapped method.
        controller: The controller it is called on.
        *args: The call's arguments, passed on untouched.
        **kwargs: The call's keyword arguments, passed on untouched.

    Returns:
        What the original returns; whatever it raises comes out as it is, cancellation included.
    """
    try:
        return await original(controller, *args, **kwargs)
    finally:
        # No await between the gate's last change and this line: the clocks turn in the same step.
        registry = _registry(controller)
        if registry is not None:
            _follow(registry, controller)


def _follow(registry: RequestDeadlineRegistry, controller: Any) -> None:
    """Set the hold to what the gate says, and log how long it was where it ends."""
    if not getattr(controller, GATE).is_set():
        _attempt(registry.suspend)
        return
    seconds = registry.held_seconds.get(HOLDER)
    _attempt(registry.resume)
    if seconds is not None:
        _log(controller, {"held_seconds": seconds, "covered": float(registry.live)})


def _log(controller: Any, metrics: dict[str, float]) -> None:
    # Where the controller logs its snapshots, with no set-up, and never at the cost of an error.
    log = getattr(controller, TELEMETRY, None)
    if callable(log):
        try:
            log(metrics, step=getattr(controller, "_train_steps", 0), prefix=METRIC_PREFIX)
        except Exception:
            logger.debug("The pause's telemetry was not logged", exc_info=True)


def _registry(controller: Any) -> RequestDeadlineRegistry | None:
    """The controller's registry as one of ours, or None and one ERROR when something is missing."""
    try:
        if not callable(getattr(getattr(controller, GATE, None), "is_set", None)):
            raise TypeError(f"it has no gate {GATE!r} with is_set()")
        manager = getattr(controller, MANAGER, None)
        registry = getattr(manager, REGISTRY, None)
        if registry is None:
            raise TypeError(f"it has no registry {MANAGER}.{REGISTRY}")
        return RequestDeadlineRegistry.adopt(registry)
    except Exception as error:
        if not getattr(controller, _TOLD, False):
            logger.error(
                "Rollout clocks are NOT paused during Gym snapshots of this %s: %s",
                type(controller).__name__,
                error,
            )
            # A controller that takes no attributes hears it each time.
            with suppress(Exception):
                setattr(controller, _TOLD, True)
        return None


def _attempt(step: Callable[[str], None]) -> None:
    # The registry has handled every deadline it could before it raises. A snapshot must not fail over
    # the rest, and the original's own outcome must not be replaced.
    try:
        step(HOLDER)
    except Exception:
        logger.exception("Some rollout deadlines did not follow the Gym snapshot's gate")
