"""Hold the rollout clocks exactly while the gate of a Gym snapshot is closed.

The gate itself is the one place that knows. So the hold hangs on it, inside the actor: its `clear()` holds
the clocks first and its `set()` releases them afterwards, whoever calls them, and however a snapshot ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from nemo_rl_deadline_fix import __version__
from nemo_rl_deadline_fix.observing import log, log_telemetry, now
from nemo_rl_deadline_fix.registry import RequestDeadlineRegistry
from nemo_rl_deadline_fix.targets import GATE, HOLDER, MANAGER, REGISTRY

_FOLLOWER = "_nemo_rl_deadline_fix"
_OFF = "deadline fix: rollout clocks are NOT paused during Gym snapshots"


async def prepare_and_commit(
    original: Callable[..., Awaitable[Any]], controller: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run a controller's own prepare and commit, which ends as ever, with its clocks following its gate."""
    follow_gate(controller)
    try:
        return await original(controller, *args, **kwargs)
    finally:
        # A belt: by now the gate has seen to it, unless somebody has put another one in its place.
        follow_gate(controller)


def follow_gate(controller: Any) -> None:
    """Let a controller's clocks follow the gate and the registry that it has now. It never raises."""
    try:
        vars(controller).setdefault(_FOLLOWER, _Follower(controller)).look_again()
    except Exception as error:
        log(logging.ERROR, _OFF, error=error)


class _Follower:
    """A controller's hold, which lasts exactly while its gate is closed."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._gate: Any = None
        self._calls: tuple[Any, Any] | None = None
        self._registry: RequestDeadlineRegistry | None = None
        self._problem = ""

    def look_again(self) -> None:
        try:
            gate, registry = _parts(self._controller)
            if registry is not self._registry:
                self._release()
                self._registry = registry
            if (gate.clear, gate.set) != self._calls:
                self._attach(gate)
        except Exception as error:
            self._release()
            self._registry = None
            # Once, and not again at each snapshot.
            if str(error) != self._problem:
                self._problem = str(error)
                log(logging.ERROR, f"{_OFF}: %s", error)
        else:
            self._agree(gate)

    def _attach(self, gate: Any) -> None:
        def followed(call: Callable[..., Any], *, closing: bool) -> Callable[..., Any]:
            def call_it(*args: Any, **kwargs: Any) -> Any:
                self._agree(gate, closing=closing)
                try:
                    return call(*args, **kwargs)
                finally:
                    self._agree(gate)

            return call_it

        self._calls = clear, set_ = followed(gate.clear, closing=True), followed(gate.set, closing=False)
        # Both or none, and on the object, which stays the same one for those who wait for it.
        vars(gate).update(clear=clear, set=set_)
        self._gate = gate
        log(logging.INFO, "deadline fix %s: this controller's rollout clocks follow its gate", __version__)

    def _agree(self, gate: Any, *, closing: bool = False) -> None:
        # Whatever goes wrong in here stays here: the gate's caller has a snapshot to take.
        try:
            if gate is not self._gate or self._registry is None:
                return
            if closing or not gate.is_set():
                self._registry.suspend(HOLDER)
            else:
                self._release()
        except Exception as error:
            log(logging.ERROR, "The rollout clocks did not follow the Gym snapshot's gate", error=error)

    def _release(self) -> None:
        if self._registry is None or HOLDER not in self._registry.holders:
            return
        seconds = now() - self._registry.holders[HOLDER]
        self._registry.resume(HOLDER)
        log_telemetry(self._controller, {"held_seconds": seconds, "covered": float(self._registry.live)})


def _parts(controller: Any) -> tuple[Any, RequestDeadlineRegistry]:
    gate = getattr(controller, GATE, None)
    if not all(callable(getattr(gate, name, None)) for name in ("is_set", "clear", "set")):
        raise TypeError(f"{type(controller).__name__} has no gate {GATE} with is_set(), clear() and set()")
    registry = getattr(getattr(controller, MANAGER, None), REGISTRY, None)
    if registry is None:
        raise TypeError(f"{type(controller).__name__} has no registry {MANAGER}.{REGISTRY}")
    return gate, RequestDeadlineRegistry.adopt(registry)
