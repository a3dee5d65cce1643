"""Request deadlines that stand still while anyone, by name, holds their clocks.

The module imports nothing of this package, so that it can be read, copied or pickled alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

DEFAULT_HOLDER = "engine"
"""The one name that upstream's argument-free calls share: training and weight sync."""

WARN_AFTER_ENV = "NEMO_RL_DEADLINE_FIX_WARN_AFTER_S"
"""Environment variable: seconds after which a lasting hold is reported at WARNING."""

SMALLEST_BUDGET_S = 0.001
"""What a deadline with nothing left is re-armed with, in seconds.

At zero asyncio delivers the expiry by `call_soon`, ahead of a reply that becomes ready later in the
same loop turn. Such a deadline is re-armed one turn later and this far ahead, which lets the reply win
in either order. The turn is needed besides the millisecond: uvloop, which Ray uses where it is
installed, runs due timers before ready callbacks, and a busy turn outlasts a millisecond.
"""

logger = logging.getLogger("nemo_rl.deadline_fix")

_known: weakref.WeakSet[RequestDeadlineRegistry] = weakref.WeakSet()


class PausableDeadline(Protocol):
    """What the registry asks of a deadline. NeMo RL's `_Deadline` is one."""

    def suspend(self) -> None:
        """Stop the clock and bank what is left of the budget."""

    def resume(self) -> None:
        """Run the clock again with the banked budget."""


class HolderStats(NamedTuple):
    """What one name has held so far, the running hold included."""

    holds: int
    seconds: float
    longest_seconds: float


_NO_HOLDS = HolderStats(0, 0.0, 0.0)


class RequestDeadlineRegistry:
    """Live request deadlines, suspended while at least one named holder holds their clocks.

    A drop-in for the class of the same name in `nemo_rl.experience.rollout_manager`: `add`, `discard`,
    `suspend()`, `resume()` and `suspended` mean what they mean there. New are the names. Holding is
    idempotent per name, releasing a name that does not hold is a no-op, and one name's release never
    frees another's hold. All times are seconds of the running loop's clock (`time.monotonic` where no
    loop runs). Not thread-safe, as upstream's: it belongs to one event loop.

    Args:
        warn_after_s: Seconds after which a lasting hold is reported at WARNING, and again each time
            the wait has doubled. By default the environment variable `WARN_AFTER_ENV`, else 300.

    Raises:
        ValueError: `warn_after_s` is not a positive, finite number.
    """

    def __init__(self, *, warn_after_s: float | None = None) -> None:
        if warn_after_s is not None and not 0 < warn_after_s < float("inf"):
            raise ValueError(f"warn_after_s is a positive number of seconds, not {warn_after_s!r}")
        self._live: set[PausableDeadline] = set()
        self._begin(warn_after_s)

    def _begin(self, warn_after_s: float | None) -> None:
        _known.add(self)
        self._holders: dict[str, float] = {}
        # Whether there are any: `add`, which every rollout calls, reads a bool faster than a dict's length.
        self._held = False
        self._stats: dict[str, HolderStats] = {}
        self._view = MappingProxyType(self._holders)
        self._paused_since = 0.0
        self._paused_before = 0.0
        self._warn_after_s = _configured_warn_after_s() if warn_after_s is None else warn_after_s
        self._warning: asyncio.TimerHandle | None = None

    @classmethod
    def adopt(cls, registry: Any) -> RequestDeadlineRegistry:
        """Turn a live upstream registry into one of ours, in place.

        The object stays the same one, because live deadlines and the rollout implementation keep
        references to it. Its live deadlines are kept; one that was suspended stays suspended, under
        `DEFAULT_HOLDER`. Adopting twice is the same as once.

        Args:
            registry: An instance of upstream's `RequestDeadlineRegistry`, or of this class.

        Returns:
            The same object.

        Raises:
            TypeError: The object has another shape; the message names what is missing.
        """
        if isinstance(registry, RequestDeadlineRegistry):
            return registry
        missing = [
            name
            for name in ("add", "discard", "suspend", "resume")
            if not callable(getattr(registry, name, None))
        ]
        state = getattr(registry, "__dict__", {})
        missing += [
            f"{name} ({kind.__name__})"
            for name, kind in (("_live", set), ("suspended", bool))
            if not isinstance(state.get(name), kind)
        ]
        refused = f"cannot adopt a {type(registry).__qualname__} as a RequestDeadlineRegistry"
        if missing:
            raise TypeError(f"{refused}: it lacks {', '.join(missing)}")
        # What only the other class has would be gone or mean nothing any more, and its next user would crash.
        more = sorted({*dir(type(registry)), *state} - {*dir(cls), "_live"})
        lost = [name for name in more if name[:2] != "__" or callable(getattr(registry, name))]
        if lost:
            raise TypeError(f"{refused}: this class lacks its {', '.join(lost)}")
        was_suspended = state["suspended"]
        # The one step that Python can refuse, with a TypeError of its own, comes before any change.
        registry.__class__ = cls
        del state["suspended"]
        adopted: RequestDeadlineRegistry = registry
        adopted._begin(None)
        if was_suspended:
            # The deadlines are suspended already; only the name is new.
            adopted._take(DEFAULT_HOLDER)
        return adopted

    @property
    def suspended(self) -> bool:
        """Whether anyone holds the clocks."""
        return self._held

    @property
    def holders(self) -> Mapping[str, float]:
        """Immutable live view of who holds the clocks: name to since when, in loop time."""
        return self._view

    @property
    def held_seconds(self) -> dict[str, float]:
        """Who holds the clocks, and for how many seconds so far."""
        now = _now()
        return {name: now - since for name, since in self._holders.items()}

    @property
    def live(self) -> int:
        """Number of deadlines entered and not yet left."""
        return len(self._live)

    @property
    def paused_seconds(self) -> float:
        """Seconds in total during which at least one name held, the running pause included."""
        if not self._holders:
            return self._paused_before
        return self._paused_before + _now() - self._paused_since

    @property
    def stats(self) -> dict[str, HolderStats]:
        """What each name has held so far: number of holds, seconds in total, longest in seconds."""
        now = _now()
        return {name: self._stats_until(now, name) for name in self._stats | self._holders}

    def add(self, deadline: PausableDeadline) -> None:
        """Watch a deadline that was just entered; born while held, it is suspended at once.

        Args:
            deadline: Entered deadline; its whole budget is still ahead of it.

        Raises:
            Exception: Whatever the deadline's own `suspend` raises; the deadline is then not kept.
        """
        self._live.add(deadline)
        if self._held:
            try:
                deadline.suspend()
            except BaseException:
                self._live.discard(deadline)
                raise

    def discard(self, deadline: PausableDeadline) -> None:
        """Forget a deadline that was left. An unknown one is a no-op."""
        self._live.discard(deadline)

    def suspend(self, holder: str = DEFAULT_HOLDER) -> None:
        """Hold the clocks under a name. A name that holds already is a no-op.

        Args:
            holder: Who holds.

        Raises:
            TypeError: `holder` is not a string.
            ValueError: `holder` is empty.
            ExceptionGroup: Deadlines that could not be suspended; all others are, and the hold stands.
        """
        _check_name(holder)
        if holder in self._holders:
            return
        first = not self._holders
        self._take(holder)
        if not first:
            return
        logger.info("Rollout clocks stopped by %s: %d live deadline(s)", holder, len(self._live))
        self._stop_all()

    def resume(self, holder: str = DEFAULT_HOLDER) -> None:
        """Let go of a name's hold; the clocks run again when no name is left.

        A name that does not hold is a no-op, with a line at DEBUG. A deadline that has nothing left of
        its budget is re-armed in the next loop turn, `SMALLEST_BUDGET_S` ahead, so that a reply which
        becomes ready in this turn is kept.

        Args:
            holder: Who lets go.

        Raises:
            TypeError: `holder` is not a string.
            ValueError: `holder` is empty.
            ExceptionGroup: Deadlines that could not be resumed; all others are, and the hold is gone.
        """
        _check_name(holder)
        if holder not in self._holders:
            logger.debug("%s let go of the rollout clocks without holding them: nothing to do", holder)
            return
        now = _now()
        self._stats[holder] = self._stats_until(now, holder)
        del self._holders[holder]
        if self._holders:
            return
        self._held = False
        seconds = now - self._paused_since
        self._paused_before += seconds
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None
        logger.info(
            "Rollout clocks run again, let go by %s after %.3f s: %d live deadline(s)",
            holder,
            seconds,
            len(self._live),
        )
        self._restart_all()

    @contextmanager
    def hold(self, holder: str) -> Iterator[None]:
        """Hold the clocks under a name for the length of a `with` block, however it is left.

        Holding is idempotent per name, so an inner block of the same name ends the hold of both.

        Raises:
            TypeError: `holder` is not a string.
            ValueError: `holder` is empty.
            ExceptionGroup: As `suspend` and `resume`.
        """
        _check_name(holder)
        try:
            self.suspend(holder)
            yield
        finally:
            self.resume(holder)

    def _take(self, holder: str) -> None:
        loop = _running_loop()
        now = _time_of(loop)
        if not self._held:
            self._paused_since = now
            self._warn_in(loop, self._warn_after_s)
        self._holders[holder] = now
        self._held = True

    def _stats_until(self, now: float, holder: str) -> HolderStats:
        # Only holds that have ended are written down; one that runs is added here.
        stats = self._stats.get(holder, _NO_HOLDS)
        since = self._holders.get(holder)
        if since is None:
            return stats
        running = now - since
        return HolderStats(stats.holds + 1, stats.seconds + running, max(stats.longest_seconds, running))

    # Both of these go over a copy, because a deadline's own code may add or discard, and to the end, because
    # one failure must not leave the others with a clock that disagrees with the registry. They share no
    # loop: a call more per deadline would be most of what this registry takes beyond upstream's.

    def _stop_all(self) -> None:
        errors: list[Exception] = []
        deadlines = tuple(self._live)
        for deadline in deadlines:
            try:
                deadline.suspend()
            except Exception as error:
                errors.append(error)
        if errors:
            raise _could_not_be("suspended", errors, deadlines)

    def _restart_all(self) -> None:
        errors: list[Exception] = []
        deadlines = tuple(self._live)
        loop = _running_loop()
        for deadline in deadlines:
            try:
                if loop is not None and _nothing_left(deadline):
                    loop.call_soon(self._restart_exhausted, deadline)
                else:
                    deadline.resume()
            except Exception as error:
                errors.append(error)
        if errors:
            raise _could_not_be("resumed", errors, deadlines)

    def _restart_exhausted(self, deadline: Any) -> None:
        # One turn later the reply may have come, or someone may hold again: then the seconds stay banked.
        if deadline in self._live and not self._holders and _nothing_left(deadline):
            deadline._remaining = SMALLEST_BUDGET_S
            deadline.resume()

    def _warn_in(self, loop: asyncio.AbstractEventLoop | None, seconds: float) -> None:
        # A timer handle, not a task: it keeps no loop alive, and the last release cancels it.
        self._warning = loop.call_later(seconds, self._warn, seconds) if loop else None

    def _warn(self, waited: float) -> None:
        logger.warning(
            "Rollout clocks have been stopped for %.0f s, by %s: %d live deadline(s) wait. Usual causes: a "
            "snapshot whose release is pending or whose abort failed, or a training pause that no weight "
            "sync has ended. NeMo RL keeps admission closed and tries again at its next snapshot; the clocks "
            "run again when the last holder lets go.",
            _now() - self._paused_since,
            ", ".join(f"{name} (for {seconds:.0f} s)" for name, seconds in self.held_seconds.items()),
            len(self._live),
        )
        self._warn_in(_running_loop(), 2 * waited)

    def __getstate__(self) -> dict[str, Any]:
        """State for a trip to another process, where loop time starts elsewhere.

        Raises:
            TypeError: A deadline is live; it belongs to a running task of this process.
        """
        if self._live:
            raise TypeError(
                f"cannot pickle a RequestDeadlineRegistry with {len(self._live)} live deadline(s): they "
                "belong to this process's event loop; pickle it before the first rollout or after the last"
            )
        return {
            "holders": tuple(self._holders),
            # Over there the running holds are counted again.
            "stats": {
                name: stats._replace(holds=stats.holds - (name in self._holders))
                for name, stats in self.stats.items()
            },
            "paused_seconds": self.paused_seconds,
            "warn_after_s": self._warn_after_s,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Holds go on here, counted from now."""
        self._live = set()
        self._begin(state["warn_after_s"])
        for holder in state["holders"]:
            self._take(holder)
        self._stats = state["stats"]
        self._paused_before = state["paused_seconds"]

    def __repr__(self) -> str:
        held = ", ".join(f"{name} for {seconds:.3f} s" for name, seconds in self.held_seconds.items())
        return (
            f"<{type(self).__name__}: {len(self._live)} live, "
            f"{f'held by {held}' if held else 'running'}, paused {self.paused_seconds:.3f} s in total>"
        )


def _nothing_left(deadline: Any) -> bool:
    # `_remaining` is where upstream's deadline banks its seconds; one that banks elsewhere is only resumed.
    try:
        return bool(deadline._remaining < SMALLEST_BUDGET_S)
    except (AttributeError, TypeError):
        return False


def _could_not_be(
    done: str, errors: list[Exception], deadlines: tuple[PausableDeadline, ...]
) -> ExceptionGroup[Exception]:
    return ExceptionGroup(f"{len(errors)} of {len(deadlines)} deadlines could not be {done}", errors)


def known_registries() -> tuple[RequestDeadlineRegistry, ...]:
    """Every registry of this class that is in use in this process."""
    return tuple(_known)


def _check_name(holder: object) -> None:
    if not isinstance(holder, str):
        raise TypeError(f"a holder is named by a string, not by {type(holder).__name__}")
    if not holder:
        raise ValueError("a holder needs a name: the empty string is none")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _now() -> float:
    return _time_of(_running_loop())


def _time_of(loop: asyncio.AbstractEventLoop | None) -> float:
    # Without a loop, the clock that asyncio's own loops run on, so that both readings compare.
    return time.monotonic() if loop is None else loop.time()


def _configured_warn_after_s() -> float:
    text = os.environ.get(WARN_AFTER_ENV, "")
    try:
        seconds = float(text or 300.0)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        logger.warning("%s=%r is not a positive number of seconds; using 300", WARN_AFTER_ENV, text)
        return 300.0
    return seconds
