"""Request deadlines that stand still while anyone, by name, holds their clocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

from nemo_rl_deadline_fix.observing import Watch, log, now, running_loop

DEFAULT_HOLDER = "generation_stand_down"
"""The one name that upstream's argument-free calls share: training and weight sync."""

LAST_MOMENT_S = 0.1
"""A deadline with less than this left, in seconds, restarts `RESTART_TURNS` later than the others.

Else it would beat a reply that is ready when the pause ends: asyncio delivers an expiry without delay ahead
of what becomes ready later in the turn, and uvloop runs timers that are due before callbacks that are ready.
"""
RESTART_TURNS = 5
"""Turns of the loop that such a reply has to reach its rollout; a busy one outlasts any few milliseconds."""
SMALLEST_BUDGET_S = 0.001
"""The least that a deadline is restarted with, in seconds: uvloop's clock knows nothing shorter."""


class _Deadline(Protocol):
    """What the registry asks of a deadline: to bank what is left of its budget, and to run again with it."""

    def suspend(self) -> None: ...
    def resume(self) -> None: ...


class RequestDeadlineRegistry:
    """Live request deadlines, suspended while at least one named holder holds their clocks.

    A drop-in for the class of the same name in `nemo_rl.experience.rollout_manager`: `add`, `discard`,
    `suspend()`, `resume()` and `suspended` mean what they mean there. New are the names: holding is
    idempotent per name, and one name's release never frees another's hold. Times are seconds of the running
    loop's clock (`time.monotonic` without a loop). Not thread-safe, as upstream's: it belongs to one loop.

    Args:
        warn_after_s: Seconds after which a lasting hold is reported at WARNING; see `observing.Watch`.

    Attributes:
        suspended: Whether anyone holds the clocks.
        holders: Read-only live view of who holds them: name to since when, in loop time.

    Raises:
        ValueError: `warn_after_s` is not a positive, finite number.
    """

    def __init__(self, *, warn_after_s: float | None = None) -> None:
        self._live: set[_Deadline] = set()
        self.suspended = False
        self._holders: dict[str, float] = {}
        self.holders = MappingProxyType(self._holders)
        self._upstream: Any = None
        self._restart: asyncio.Handle | None = None
        self._watch = Watch(self, warn_after_s)

    @classmethod
    def adopt(cls, registry: Any) -> RequestDeadlineRegistry:
        """Take over a live upstream registry, in place. Taking over twice is the same as once.

        The object stays what it is, with its own `add` and `discard`, which every rollout calls. It is lent
        `suspend`, `resume` and `holders` of a registry of this class, which shares its deadlines and keeps
        its `suspended` true. One that was suspended stays so, under `DEFAULT_HOLDER`.

        Returns:
            The registry that knows the names.

        Raises:
            TypeError: The object has another shape.
        """
        lender = getattr(getattr(registry, "suspend", None), "__self__", None)
        if isinstance(lender, cls) and (lender is registry or lender._upstream is registry):
            return lender
        check_shape(registry)
        ours = cls()
        ours._upstream, ours._live = registry, registry._live
        vars(registry).update(suspend=ours.suspend, resume=ours.resume, holders=ours.holders)
        if registry.suspended:
            ours.suspend()
        return ours

    @property
    def live(self) -> int:
        """Number of deadlines entered and not yet left."""
        return len(self._live)

    def add(self, deadline: _Deadline) -> None:
        """Watch a deadline that was just entered; born while held, it is suspended at once."""
        self._live.add(deadline)
        if self.suspended:
            deadline.suspend()

    def discard(self, deadline: _Deadline) -> None:
        """Forget a deadline that was left. An unknown one is a no-op."""
        self._live.discard(deadline)

    def suspend(self, holder: str = DEFAULT_HOLDER) -> None:
        """Hold the clocks under a name. A name that holds already is a no-op.

        A deadline that does not follow is logged at ERROR; all others do, and the hold stands.

        Raises:
            ValueError: `holder` is not a string, or is empty.
        """
        if not isinstance(holder, str) or not holder:
            raise ValueError(f"a holder is named by a string that is not empty, not by {holder!r}")
        if holder in self._holders:
            return
        at = self._holders[holder] = now()
        first = not self.suspended
        if first:
            self._set_suspended(True)
            if self._restart is not None:
                self._restart.cancel()
            _each(self._live.copy(), lambda deadline: deadline.suspend())
        self._watch.held(holder, at, first=first)

    def resume(self, holder: str = DEFAULT_HOLDER) -> None:
        """Release a name's hold, if it has one; the clocks run again when no name is left.

        A deadline that does not follow is logged at ERROR; all others do, and the hold is gone.
        """
        since = self._holders.pop(holder, None)
        if since is None:
            return
        at = now()
        last = not self._holders
        if last:
            self._set_suspended(False)
            late = {deadline for deadline in self._live if _is_in_its_last_moment(deadline)}
            _each(self._live - late, lambda deadline: deadline.resume())
            self._restart_later(late, RESTART_TURNS if late else 0)
        self._watch.released(holder, since, at, last=last)

    @contextmanager
    def hold(self, holder: str) -> Iterator[None]:
        """Hold the clocks for the length of a `with` block, however it is left, as `suspend` and `resume`."""
        self.suspend(holder)
        try:
            yield
        finally:
            self.resume(holder)

    def _set_suspended(self, suspended: bool) -> None:
        self.suspended = suspended
        if self._upstream is not None:
            # Its `add` asks this one.
            self._upstream.suspended = suspended

    def _restart_later(self, deadlines: set[Any], turns: int) -> None:
        # The next hold cancels this, and the seconds stay banked.
        loop = running_loop()
        if turns and loop is not None:
            self._restart = loop.call_soon(self._restart_later, deadlines, turns - 1)
        else:
            _each(self._live & deadlines, _restart_in_its_last_moment)

    def __repr__(self) -> str:
        names = ", ".join(self._holders)
        return f"<{type(self).__name__}: {self.live} live, {f'held by {names}' if names else 'running'}>"


def check_shape(registry: Any) -> None:
    """Make sure that an object can be taken over.

    Raises:
        TypeError: It has another shape than upstream's registry.
    """
    state = getattr(registry, "__dict__", {})
    if not isinstance(state.get("_live"), set) or not isinstance(state.get("suspended"), bool):
        raise TypeError(f"{type(registry).__qualname__} has no set _live, or no bool suspended")


def _each(deadlines: Collection[Any], step: Callable[[Any], None]) -> None:
    # To the end: one failure must not leave the others with a clock that disagrees with the registry.
    for deadline in deadlines:
        try:
            step(deadline)
        except Exception as error:
            log(logging.ERROR, "A rollout deadline did not follow the rollout clocks", error=error)


def _is_in_its_last_moment(deadline: Any) -> bool:
    # `_remaining` is where upstream's deadline banks its seconds; one that banks elsewhere is only resumed.
    left = getattr(deadline, "_remaining", None)
    return isinstance(left, float | int) and left < LAST_MOMENT_S


def _restart_in_its_last_moment(deadline: Any) -> None:
    deadline._remaining = max(deadline._remaining, SMALLEST_BUDGET_S)
    deadline.resume()
