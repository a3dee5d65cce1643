"""Request deadlines that stand still while anyone, by name, holds their clocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from types import MappingProxyType
from typing import Any

from nemo_rl_deadline_fix.observing import Watch, log, now, running_loop
from nemo_rl_deadline_fix.targets import DEFAULT_HOLDER

# A reply that is ready when the pause ends must not lose to a deadline that has next to nothing left: asyncio
# delivers an expiry without delay ahead of what becomes ready later in the turn, and uvloop runs due timers
# before ready callbacks. Turns of the loop are what counts: a busy one outlasts any few milliseconds.
LAST_MOMENT_S = 0.1
"""A deadline with less than this left, in seconds, restarts later than the others."""
RESTART_TURNS = 5
"""Turns of the loop by which it restarts later: a reply's way through other tasks, or from another thread."""
SMALLEST_BUDGET_S = 0.001
"""The least that it is restarted with, in seconds: uvloop's clock knows nothing shorter."""


class RequestDeadlineRegistry:
    """Live request deadlines, suspended while at least one named holder holds their clocks.

    A drop-in for the class of the same name in `nemo_rl.experience.rollout_manager`: `add`, `discard`,
    `suspend()`, `resume()`, `suspended` and pickling while it is unused mean what they mean there. New are
    the names: holding is idempotent per name, and one name's release never frees another's hold. A deadline
    that does not follow is logged at ERROR, and all others do. Times are seconds of the running loop's clock
    (`time.monotonic` without a loop). Not thread-safe, as upstream's: it belongs to one loop.

    Args:
        warn_after_s: Seconds after which a lasting hold is reported at WARNING; see `observing.Watch`.

    Attributes:
        suspended: Whether anyone holds the clocks.
        holders: Read-only live view of who holds them: name to since when, in loop time.
    """

    def __init__(self, *, warn_after_s: float | None = None) -> None:
        self._live: set[Any] = set()
        self.suspended = False
        self._holders: dict[str, float] = {}
        self.holders = MappingProxyType(self._holders)
        self._upstream: Any = None
        self._restart: asyncio.Handle | None = None
        self._warn_after_s = warn_after_s
        self._watch = Watch(self, warn_after_s)

    @classmethod
    def adopt(cls, registry: Any) -> RequestDeadlineRegistry:
        """Take over a live upstream registry, in place. Taking over twice is the same as once.

        The object stays what it is, with its own `add` and `discard`, which every rollout calls. It is lent
        `suspend`, `resume` and `holders` of the registry that is returned, which shares its deadlines and
        keeps its `suspended` true. One that was suspended stays so, under `DEFAULT_HOLDER`.

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

    def add(self, deadline: Any) -> None:
        """Watch a deadline (`suspend()` banks its budget, `resume()`); born while held, it is suspended."""
        self._live.add(deadline)
        if self.suspended:
            deadline.suspend()

    def discard(self, deadline: Any) -> None:
        """Forget a deadline that was left. An unknown one is a no-op."""
        self._live.discard(deadline)

    def suspend(self, holder: str = DEFAULT_HOLDER) -> None:
        """Hold the clocks under a name. A name that holds already is a no-op.

        Raises:
            ValueError: `holder` is not a string, or is empty.
        """
        if not isinstance(holder, str) or not holder:
            raise ValueError(f"a holder is named by a string that is not empty, not by {holder!r}")
        if holder in self._holders:
            return
        at = self._holders[holder] = now()
        if first := not self.suspended:
            self._set_suspended(True)
            if self._restart is not None:
                self._restart.cancel()
            _each(self._live.copy(), methodcaller("suspend"))
        self._watch.held(holder, at, first=first)

    def resume(self, holder: str = DEFAULT_HOLDER) -> None:
        """Release a name's hold, if it has one; the clocks run again when no name is left."""
        since = self._holders.pop(holder, None)
        if since is None:
            return
        at = now()
        last = not self._holders
        if last:
            self._set_suspended(False)
            self._restart_all()
        self._watch.released(holder, since, at, last=last)

    @contextmanager
    def hold(self, holder: str) -> Iterator[None]:
        """Hold the clocks for the length of a `with` block, however it is left, as `suspend` and `resume`."""
        self.suspend(holder)
        try:
            yield
        finally:
            self.resume(holder)

    def __reduce__(self) -> tuple[Callable[[], RequestDeadlineRegistry], tuple[()]]:
        # The driver makes one and sends it to the actor, where its life begins.
        if self._live or self._holders:
            raise TypeError("cannot pickle a RequestDeadlineRegistry that has live deadlines or holders")
        return partial(type(self), warn_after_s=self._warn_after_s), ()

    def _set_suspended(self, suspended: bool) -> None:
        self.suspended = suspended
        if self._upstream is not None:
            # Its `add` asks this one.
            self._upstream.suspended = suspended

    def _restart_all(self) -> None:
        late: set[Any] = set()

        def restart(deadline: Any) -> None:
            # `_remaining` is where upstream's deadline banks its seconds; one that has none is resumed.
            left = getattr(deadline, "_remaining", None)
            if left is None or left >= LAST_MOMENT_S:
                deadline.resume()
            else:
                late.add(deadline)

        _each(self._live.copy(), restart)
        if late:
            self._restart_later(late, RESTART_TURNS)

    def _restart_later(self, deadlines: set[Any], turns: int) -> None:
        # The next hold cancels this, and the seconds stay banked.
        loop = running_loop()
        if turns and loop is not None:
            self._restart = loop.call_soon(self._restart_later, deadlines, turns - 1)
        else:
            _each(self._live & deadlines, _restart_in_its_last_moment)


def check_shape(registry: Any) -> None:
    """Raise a TypeError where an object has another shape than upstream's registry."""
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


def _restart_in_its_last_moment(deadline: Any) -> None:
    deadline._remaining = max(deadline._remaining, SMALLEST_BUDGET_S)
    deadline.resume()
