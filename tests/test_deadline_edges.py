"""Deadlines at their edges: what else may happen to a rollout in the turn in which clocks stop or start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nemo_rl_deadline_fix.registry import SMALLEST_BUDGET_S, RequestDeadlineRegistry
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.replay.rl import RolloutTimeout
from tests.conftest import virtual
from tests.support.upstream_like import BareDeadline, clock_forward, never, rollout

# Upstream's deadline, which takes any registry of its shape.
_Deadline: Any = rl._Deadline


def about(seconds: float) -> object:
    """A time, to a few ticks of the virtual clock."""
    return pytest.approx(seconds, abs=5e-6)


def now() -> float:
    """Loop time."""
    return asyncio.get_running_loop().time()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


# A cancel from before.


@pytest.mark.parametrize("held", [False, True])
def test_entered_with_a_cancel_pending(held: bool) -> None:
    """The cancel comes out at the first await, held or not; it is no timeout, and nothing stays live."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        if held:
            registry.suspend("a")

        async def body() -> Any:
            _this_task().cancel()
            await rollout(registry, 10, never())

        task = asyncio.create_task(body())
        with pytest.raises(asyncio.CancelledError):
            await task
        registry.resume("a")
        await asyncio.sleep(100)
        return task.cancelled(), registry.live

    assert virtual(story()) == (True, 0)


def test_entered_after_a_swallowed_cancel() -> None:
    """A cancel that was swallowed before the deadline began does not keep it from being a timeout."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            _this_task().cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)
            return await rollout(registry, 10, never())

        task = asyncio.create_task(body())
        await asyncio.sleep(4)
        with registry.hold("a"):
            await asyncio.sleep(50)
        return await task

    assert virtual(story()) == ("timeout", about(60))


# The turn of the close.


@pytest.mark.parametrize(("first", "expected"), [("close", 110 + SMALLEST_BUDGET_S), ("deadline", 10)])
def test_expiring_in_the_very_turn_of_the_close(first: str, expected: float) -> None:
    """Whichever comes first in the turn wins: a close stops the clock at zero, an expiry stands."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        loop = asyncio.get_running_loop()
        if first == "close":
            loop.call_at(10, registry.suspend, "a")
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(0)
        if first == "deadline":
            loop.call_at(10, registry.suspend, "a")
        await asyncio.sleep(110)
        assert registry.suspended
        registry.resume("a")
        return await task

    assert virtual(story()) == ("timeout", about(expected))


def test_closed_in_the_turn_of_the_expiry_keeps_the_reply() -> None:
    """With the clock stopped at zero, a reply that comes during the hold is a reply."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        asyncio.get_running_loop().call_at(10, registry.suspend, "a")
        return await rollout(registry, 10, asyncio.sleep(30, "reply"))

    assert virtual(story()) == ("reply", 30)


@pytest.mark.parametrize("reply_after_s", [None, 100])
def test_loop_blocked_past_the_deadline_then_close(reply_after_s: float | None) -> None:
    """A deadline that a blocked loop kept from firing does not fire while held, and promptly after."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        reply = never() if reply_after_s is None else asyncio.sleep(reply_after_s, "reply")
        task = asyncio.create_task(rollout(registry, 10, reply))
        await asyncio.sleep(0)
        clock_forward(25)
        registry.suspend("a")
        await asyncio.sleep(200)
        assert task.done() is (reply_after_s is not None)
        registry.resume("a")
        return await task

    expected = ("reply", 100) if reply_after_s else ("timeout", about(225 + SMALLEST_BUDGET_S))
    assert virtual(story()) == expected


# Nested deadlines.


@pytest.mark.parametrize("inner_s", [30, 300])
def test_nested_deadlines_are_paused_alike(inner_s: int) -> None:
    """Of two nested deadlines the shorter one fires, later by the pause, and under its own description."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(100, "outer", registry), _Deadline(inner_s, "inner", registry):
                await never()

        task = asyncio.create_task(body())
        await asyncio.sleep(20)
        with registry.hold("a"):
            assert registry.live == 2
            await asyncio.sleep(1000)
        with pytest.raises(RolloutTimeout) as caught:
            await task
        return str(caught.value), now(), registry.live

    shorter = ("inner exceeded 30s", about(1030)) if inner_s == 30 else ("outer exceeded 100s", about(1100))
    assert virtual(story()) == (*shorter, 0)


def test_outer_deadline_goes_on_after_the_inner_one() -> None:
    """The outer budget counts on across an inner timeout and two pauses."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(100, "outer", registry):
                with pytest.raises(RolloutTimeout, match="inner"):
                    async with _Deadline(30, "inner", registry):
                        await never()
                await never()

        task = asyncio.create_task(body())
        for _ in range(2):
            await asyncio.sleep(20)
            with registry.hold("a"):
                await asyncio.sleep(500)
        with pytest.raises(RolloutTimeout, match="outer"):
            await task
        return now()

    assert virtual(story()) == about(1100)


def test_nested_deadlines_with_nothing_left_end_in_one_timeout() -> None:
    """Two that are exhausted together give the outer one's timeout, and nothing stays live."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(10, "outer", registry), _Deadline(10, "inner", registry):
                await never()

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        clock_forward(20)
        with registry.hold("a"):
            await asyncio.sleep(30)
        with pytest.raises(RolloutTimeout, match="outer"):
            await task
        return now(), registry.live, task.cancelling()

    assert virtual(story()) == (about(50 + SMALLEST_BUDGET_S), 0, 0)


def test_deadline_without_registry_is_not_paused() -> None:
    """The native path's inner deadline runs on during a hold, as upstream's does."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(100, "outer", registry), _Deadline(30, "environment step"):
                await never()

        task = asyncio.create_task(body())
        await asyncio.sleep(20)
        with registry.hold("a"), pytest.raises(RolloutTimeout, match="environment step"):
            await task
        return now()

    assert virtual(story()) == about(30)


# While it expires.


def test_another_exception_while_expiring_comes_out() -> None:
    """An error from the body's own clean-up is what the caller sees, and later pauses touch nothing."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(10, "rollout", registry):
                try:
                    await never()
                except asyncio.CancelledError:
                    raise ValueError("clean-up failed") from None

        task = asyncio.create_task(body())
        await asyncio.sleep(5)
        with registry.hold("a"):
            await asyncio.sleep(5)
        with pytest.raises(ValueError, match="clean-up failed"):
            await task
        with registry.hold("a"):
            return now(), registry.live

    assert virtual(story()) == (about(15), 0)


def test_hold_during_a_long_clean_up_changes_nothing() -> None:
    """A deadline that has expired is not paused again while its body still cleans up."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(10, "rollout", registry):
                try:
                    await never()
                finally:
                    await asyncio.sleep(20)

        task = asyncio.create_task(body())
        await asyncio.sleep(15)
        with registry.hold("a"):
            assert registry.live == 1
            await asyncio.sleep(3)
        with pytest.raises(RolloutTimeout):
            await task
        return now()

    assert virtual(story()) == about(30)


def test_body_that_swallows_an_outside_cancel_keeps_its_budget() -> None:
    """A body that goes on after a cancel is timed on, with the pauses taken out."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(10, "rollout", registry):
                with pytest.raises(asyncio.CancelledError):
                    await never()
                await never()

        task = asyncio.create_task(body())
        await asyncio.sleep(2)
        registry.suspend("a")
        await asyncio.sleep(100)
        task.cancel()
        await asyncio.sleep(100)
        assert not task.done()
        registry.resume("a")
        # The swallowed cancel is still counted on the task, so asyncio leaves the expiry a cancel.
        with pytest.raises((RolloutTimeout, asyncio.CancelledError)):
            await task
        return now(), registry.live

    assert virtual(story()) == (about(210), 0)


def test_body_that_swallows_the_expiry_gives_its_reply() -> None:
    """A body that goes on after the expiry ends with its reply; pauses meanwhile raise nothing."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def reply() -> Any:
            with pytest.raises(asyncio.CancelledError):
                await never()
            return await asyncio.sleep(50, "reply")

        task = asyncio.create_task(rollout(registry, 10, reply()))
        for _ in range(5):
            await asyncio.sleep(4)
            with registry.hold("a"):
                await asyncio.sleep(4)
        return await task, registry.live

    assert virtual(story()) == (("reply", about(68)), 0)


# A cancel from outside in the turn of the resume.


@pytest.mark.parametrize("run", [virtual, asyncio.run])
@pytest.mark.parametrize("left_s", [0.0, 5.0])
@pytest.mark.parametrize("order", ["cancel first", "resume first"])
def test_outside_cancel_wins_over_the_resume_of_its_turn(
    order: str, left_s: float, run: Callable[[Coroutine[Any, Any, Any]], Any]
) -> None:
    """A rollout that is cancelled in the turn in which its clock restarts ends cancelled, not timed out."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()

        async def body() -> Any:
            async with _Deadline(5, "rollout", registry) as deadline:
                deadline.suspend()
                deadline._remaining = left_s
                registry.suspend("a")
                await never()

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        steps: list[Callable[[], object]] = [task.cancel, lambda: registry.resume("a")]
        for step in steps if order == "cancel first" else reversed(steps):
            step()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled(), task.cancelling(), registry.live

    assert run(story()) == (True, 1, 0)


# Many.


def test_a_thousand_pauses_do_not_drift() -> None:
    """After a thousand pauses at a late clock, the budget ends on the tick on which it should."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        clock_forward(1_000_000)
        task = asyncio.create_task(rollout(registry, 180, never()))
        await asyncio.sleep(0)
        paused = 0.0
        for turn in range(1000):
            await asyncio.sleep(0.1)
            with registry.hold("ab"[turn % 2]):
                await asyncio.sleep(0.037)
            paused += 0.037
        outcome, at = await task
        assert registry._watch.report().paused_seconds == pytest.approx(paused, abs=1e-6)
        return outcome, at - 1_000_000 - paused

    assert virtual(story()) == ("timeout", pytest.approx(180, abs=2e-6))


def test_pauses_with_no_time_between_them_do_not_keep_a_deadline_alive() -> None:
    """A deadline with seconds left is not lengthened by pauses of no length."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 1, never()))
        while not task.done():
            with registry.hold("a"):
                pass
            await asyncio.sleep(0.01)
        return task.result()

    # The last re-arming may find less than the smallest budget.
    assert virtual(story()) == ("timeout", pytest.approx(1, abs=2 * SMALLEST_BUDGET_S))


def test_ten_thousand_live_deadlines() -> None:
    """All of them stop and all of them end a pause later; only the first holder visits them."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        tasks = [asyncio.create_task(rollout(registry, 10 + index % 7, never())) for index in range(10_000)]
        watch = BareDeadline()
        registry.add(watch)
        await asyncio.sleep(4)
        assert registry.live == 10_001
        for name in ("a", "b", "c"):
            registry.suspend(name)
        await asyncio.sleep(500)
        assert not any(task.done() for task in tasks)
        for name in ("a", "b", "c"):
            registry.resume(name)
        results = await asyncio.gather(*tasks)
        assert watch.told == ["suspend", "resume"]
        registry.discard(watch)
        return results, registry.live

    results, live = virtual(story())
    assert live == 0
    assert {outcome for outcome, _ in results} == {"timeout"}
    assert all(abs(at - (510 + index % 7)) < 5e-6 for index, (_, at) in enumerate(results))
