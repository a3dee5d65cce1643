"""A clock that jumps: a replay of minutes takes milliseconds, and prints the times it computed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HORIZON = 4e6
"""Where a virtual loop's time ends, in seconds: 46 days, more than any simulation takes.

Not much farther the gaps between floats outgrow the loop's clock resolution, and no timer is ever due.
"""


class StandstillError(RuntimeError):
    """Everybody waits, and no timer will ever wake anybody, or none that does not set itself again."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps to the next timer instead of waiting for it.

    Work given to threads is done at once, in no time, so that the clock cannot overtake it.
    """

    # Small enough to own: of the libraries for this, one is under the GPL, which a package that people
    # install beside NeMo RL should not bring along, and one adds a pytest plugin to their environment.

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: Unpack[Ts]
    ) -> asyncio.Future[T]:
        """Call the function now, in this thread; returns a future that is done."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: where others sleep until the next timer, it moves the time there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.now + timeout > HORIZON:
            raise StandstillError("everybody waits, and no timer will ever wake anybody")
        then = self.now + timeout
        # Sums of floats miss round numbers by a hair, which a timeline would print.
        self.now = round(then, 6) if abs(then - round(then, 6)) < 5e-10 else then
        return ready


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual loop of its own.

    Args:
        main: What to run.

    Returns:
        Its result.

    Raises:
        StandstillError: It waits for something that nothing will bring about.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time: seconds since the simulation began."""
    return asyncio.get_running_loop().time()


class VirtualTime:
    """Stand-in for the `time` module: every clock of the simulated code is the loop's."""

    time = staticmethod(now)
    monotonic = staticmethod(now)
    perf_counter = staticmethod(now)
