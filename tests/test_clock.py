"""The virtual clock that replays and tests run on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from nemo_rl_deadline_fix import RequestDeadlineRegistry
from nemo_rl_deadline_fix.replay.clock import StandstillError, now
from tests.conftest import virtual


def test_time_jumps_to_the_next_timer_and_to_nowhere_else() -> None:
    """Waits end at their exact times, in their order, however many there are."""
    woken: list[float] = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(now())

    async def main() -> None:
        await asyncio.gather(*(wait(tenth / 10) for tenth in range(3000, 0, -1)))

    virtual(main())
    assert woken == [tenth / 10 for tenth in range(1, 3001)]


def test_a_timer_below_a_microsecond_is_reached() -> None:
    """No wait is too small for the clock to get past it."""

    async def main() -> float:
        for _ in range(10):
            await asyncio.sleep(1e-7)
        return now()

    assert virtual(main()) == pytest.approx(1e-6)


def test_work_in_threads_takes_no_time_and_is_not_overtaken() -> None:
    """`to_thread` is done when the clock goes on, with its result or its error."""

    async def main() -> None:
        async with asyncio.timeout(0.001):
            assert await asyncio.to_thread(threading.active_count) > 0
            with pytest.raises(ZeroDivisionError):
                await asyncio.to_thread(lambda: 1 / 0)
        assert now() == 0.0

    virtual(main())


def test_a_wait_that_nothing_ends_is_an_error() -> None:
    """Where everybody waits for ever, the loop says so at once instead of hanging."""
    with pytest.raises(StandstillError):
        virtual(asyncio.Event().wait())


def test_a_wait_that_only_a_repeating_warning_interrupts_is_an_error() -> None:
    """A hold that is never released warns for ever, which does not make a hang last for ever."""

    async def main() -> None:
        RequestDeadlineRegistry().suspend("somebody")
        await asyncio.Event().wait()

    with pytest.raises(StandstillError):
        virtual(main())
