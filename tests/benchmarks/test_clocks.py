"""The registry against upstream's one flag, and against the bare timers that both of them work on.

Both registries get the same deadlines, which are really entered on a real loop, so that nothing but the
registry differs. Timers that were cancelled are swept by the loop between two rounds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import pytest

from nemo_rl_deadline_fix import RequestDeadlineRegistry, status
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_MODULE,
    MANAGER_MODULE,
    PREPARE,
    REGISTRY_CLASS,
)
from tests.benchmarks.comparing import timed
from tests.benchmarks.conftest import Comparison

BUDGET_S = 3600.0
FLAG = "upstream's flag"
FLAG_ONLY = "upstream's second suspend alone"
FLOOR = "call_at + cancel"
OURS = "this registry"
TAKEN_OVER = "upstream's, taken over"
SIZES = (100, 1_000, 10_000)
# What one measurement does: so much that the clock's own cost does not count, and so little that the
# next one still finds the machine at the same speed.
OPERATIONS = 2_000
ROUNDS = 200

pytestmark = pytest.mark.benchmark(disable_gc=True)


# Ours, or upstream's, or one that was taken over.
Registry = Any


@contextmanager
def loop_with(live: int) -> Iterator[tuple[asyncio.Runner, list[Any]]]:
    """A real loop with a number of entered deadlines, as yet in no registry."""
    deadlines = [rl._Deadline(BUDGET_S, "benchmark") for _ in range(live)]
    entered = AsyncExitStack()

    async def enter() -> None:
        for deadline in deadlines:
            await entered.enter_async_context(deadline)

    with asyncio.Runner() as runner:
        runner.run(enter())
        yield runner, deadlines
        runner.run(entered.aclose())


def inside(runner: asyncio.Runner) -> Callable[[Callable[[], None]], None]:
    """What runs a round inside of a loop."""

    async def run(turn: Callable[[], None]) -> None:
        # In this turn of the loop it sweeps the timers that the last round cancelled.
        await asyncio.sleep(0)
        turn()

    return lambda turn: runner.run(run(turn))


def never() -> None:
    """What the bare timers would call, an hour from now."""


def bare_timers() -> None:
    """Arm and cancel a timer, again and again."""
    loop = asyncio.get_running_loop()
    for _ in range(OPERATIONS):
        loop.call_at(loop.time() + BUDGET_S, never).cancel()


def apart(function: Callable[[Registry], None], registry: Registry) -> Callable[[], float]:
    """The measurement of a function on a registry, with code of its own.

    Python tunes code to the classes that it meets. A training process has one class of registries, so no
    two of them may share the code that calls them here.
    """
    code = function.__code__.replace()
    own = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    return timed(partial(own, registry))


def taken_over() -> rl.RequestDeadlineRegistry:
    """Upstream's registry, as the fix makes it in the actor."""
    registry = rl.RequestDeadlineRegistry()
    RequestDeadlineRegistry.adopt(registry)
    return registry


def test_add_and_discard(compare: Comparison) -> None:
    """A deadline is added and discarded."""
    ours, flag = RequestDeadlineRegistry(), rl.RequestDeadlineRegistry()
    measure_add_and_discard(compare, {OURS: ours, FLAG: flag})
    compare.ratio("add + discard", OURS, FLAG, goal=1.05)
    compare.ratio("add + discard", OURS, FLOOR)


def test_add_and_discard_in_one_that_was_taken_over(compare: Comparison) -> None:
    """The same where the fix has taken over upstream's live object, as it does in the actor."""
    measure_add_and_discard(compare, {TAKEN_OVER: taken_over(), FLAG: rl.RequestDeadlineRegistry()})
    compare.ratio("add + discard, taken over", TAKEN_OVER, FLAG, goal=1.05)


def measure_add_and_discard(compare: Comparison, registries: dict[str, Registry]) -> None:
    """Compare registries with each other, and with bare timers."""

    def add_and_discard(registry: Registry) -> None:
        for _ in range(OPERATIONS):
            registry.add(deadline)
            registry.discard(deadline)

    with loop_with(1) as (runner, (deadline,)):
        things = {name: apart(add_and_discard, registry) for name, registry in registries.items()}
        things[FLOOR] = timed(bare_timers)
        compare.run(things, per=OPERATIONS, rounds=ROUNDS, around=inside(runner))
        for registry in registries.values():
            registry.add(deadline)
            assert registry._live == {deadline}
            registry.discard(deadline)
            assert not registry._live


def test_enter_and_leave(compare: Comparison) -> None:
    """A deadline is entered and left, which adds and discards it: what a rollout really pays."""
    registries: dict[str, Registry] = {
        OURS: RequestDeadlineRegistry(),
        TAKEN_OVER: taken_over(),
        FLAG: rl.RequestDeadlineRegistry(),
    }

    async def enter_and_leave(registry: Registry) -> None:
        for _ in range(OPERATIONS):
            async with rl._Deadline(BUDGET_S, "benchmark", registry):
                pass

    def drive(registry: Registry) -> None:
        # Nothing in it waits, so that one step runs it to its end, within the round's own task.
        with pytest.raises(StopIteration):
            enter_and_leave(registry).send(None)

    async def are_watched_while_inside() -> None:
        for registry in registries.values():
            async with rl._Deadline(BUDGET_S, "benchmark", registry) as deadline:
                assert registry._live == {deadline}
            assert not registry._live

    with loop_with(0) as (runner, _):
        things = {name: apart(drive, registry) for name, registry in registries.items()}
        things[FLOOR] = timed(bare_timers)
        compare.run(things, per=OPERATIONS, rounds=ROUNDS, around=inside(runner))
        runner.run(are_watched_while_inside())
    compare.ratio("enter + leave a deadline", OURS, FLAG, goal=1.05)
    compare.ratio("enter + leave a deadline, taken over", TAKEN_OVER, FLAG, goal=1.05)
    compare.ratio("enter + leave a deadline", OURS, FLOOR)


@pytest.mark.parametrize("live", [1, 10, *SIZES])
def test_suspend_and_resume(compare: Comparison, live: int) -> None:
    """All clocks are stopped and run again."""
    ours: Any = RequestDeadlineRegistry()
    theirs, flag = taken_over(), rl.RequestDeadlineRegistry()
    pauses = max(1, OPERATIONS // live)

    def pause(registry: Registry) -> None:
        for _ in range(pauses):
            registry.suspend()
            registry.resume()

    def pause_bare_timers() -> None:
        for _ in range(pauses):
            for handle in handles:
                handle.cancel()
            when = loop.time() + BUDGET_S
            handles[:] = [loop.call_at(when, never) for _ in handles]

    async def every_clock_stops_and_runs_again() -> None:
        ours.suspend()
        assert all(deadline._timeout.when() is None for deadline in deadlines)
        ours.resume()
        assert all(loop.time() < deadline._timeout.when() for deadline in deadlines)

    with loop_with(live) as (runner, deadlines):
        for deadline in deadlines:
            for registry in (ours, theirs, flag):
                registry.add(deadline)
        loop = runner.get_loop()
        handles = [loop.call_at(loop.time() + BUDGET_S, never) for _ in deadlines]
        things = {
            OURS: apart(pause, ours),
            TAKEN_OVER: apart(pause, theirs),
            FLAG: apart(pause, flag),
            FLOOR: timed(pause_bare_timers),
        }
        compare.run(
            things, per=pauses, rounds=ROUNDS if live < OPERATIONS else ROUNDS // 3, around=inside(runner)
        )
        runner.run(every_clock_stops_and_runs_again())
    compare.ratio(f"suspend + resume, {live:,} live", OURS, FLAG, goal=1.10)
    compare.ratio(f"suspend + resume, {live:,} live, taken over", TAKEN_OVER, FLAG, goal=1.10)
    compare.ratio(f"suspend + resume, {live:,} live", OURS, FLOOR)


def test_what_info_lines_add(compare: Comparison) -> None:
    """The two lines of a pause, written to a file that takes them and keeps nothing."""
    registry: Any = RequestDeadlineRegistry()
    handler = logging.FileHandler(os.devnull, encoding="utf-8")
    logger = logging.getLogger("nemo_rl.deadline_fix")

    def pauses(level: int) -> Callable[[], float]:
        def pause() -> None:
            logger.setLevel(level)
            for _ in range(OPERATIONS // 100):
                registry.suspend()
                registry.resume()

        return timed(pause)

    with loop_with(10) as (runner, deadlines):
        for deadline in deadlines:
            registry.add(deadline)
        logger.addHandler(handler)
        try:
            things = {"INFO": pauses(logging.INFO), "WARNING": pauses(logging.WARNING)}
            compare.run(things, per=OPERATIONS // 100, rounds=ROUNDS, around=inside(runner))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            handler.close()
    compare.ratio("a pause of 10 live with its INFO lines", "INFO", "WARNING")


def _suspend_again(registry: Registry) -> None:
    for _ in range(OPERATIONS):
        registry.suspend()


def test_second_holder(compare: Comparison) -> None:
    """A second holder comes and goes while another holds, with few and with many live deadlines."""
    registries = {f"{live:,} live": RequestDeadlineRegistry() for live in SIZES}
    flag = rl.RequestDeadlineRegistry()

    def come_and_go(registry: RequestDeadlineRegistry) -> None:
        for _ in range(OPERATIONS):
            registry.suspend("second")
            registry.resume("second")

    async def first_holds() -> None:
        for registry, live in zip(registries.values(), SIZES, strict=True):
            for deadline in deadlines[:live]:
                registry.add(deadline)
            registry.suspend("first")
        flag.suspend()

    async def first_releases() -> None:
        for registry in registries.values():
            assert list(registry.holders) == ["first"]
            registry.resume("first")

    with loop_with(max(SIZES)) as (runner, deadlines):
        runner.run(first_holds())
        things = {name: apart(come_and_go, registry) for name, registry in registries.items()}
        things[FLAG_ONLY] = timed(partial(_suspend_again, flag))
        things[FLOOR] = timed(bare_timers)
        compare.run(things, per=OPERATIONS, rounds=ROUNDS, around=inside(runner))
        runner.run(first_releases())
    few, *more = registries
    for many in more:
        compare.ratio(f"a second holder's suspend + resume, {many}", many, few, goal=1.10)
    compare.ratio(f"a second holder's suspend + resume, {few}", few, FLAG_ONLY)
    compare.ratio(f"a second holder's suspend + resume, {few}", few, FLOOR)


# Not a time but a count: replies that were ready when the pause ended, and were lost.

TRIES = 6_000
BUSY_S = 0.0002


async def _through_a_task(reply: asyncio.Future[str]) -> str:
    return await asyncio.create_task(_wait_for(reply))


async def _sealed(reply: asyncio.Future[str]) -> str:
    row = await reply
    await asyncio.sleep(0)
    return row


async def _wait_for(reply: asyncio.Future[str]) -> str:
    return await reply


WAYS: tuple[Callable[[asyncio.Future[str]], Coroutine[Any, Any, str]], ...] = (
    _through_a_task,
    _sealed,
    _wait_for,
)


async def lost_of(tries: int) -> int:
    """End pauses with nothing left in a turn that makes the reply; how many replies are lost."""
    registry, loop, lost = RequestDeadlineRegistry(), asyncio.get_running_loop(), 0
    for number in range(tries):
        reply: asyncio.Future[str] = loop.create_future()
        task = asyncio.create_task(_rollout(registry, WAYS[number % len(WAYS)](reply)))
        for _ in range(3):
            await asyncio.sleep(0)
        registry.suspend("a")
        (deadline,) = registry._live
        deadline._remaining = 0.0
        registry.resume("a")
        if WAYS[number % len(WAYS)] is _wait_for:
            loop.call_soon_threadsafe(reply.set_result, "reply")
        else:
            reply.set_result("reply")
        # Most turns are short, and one in forty is as busy as a training step's bookkeeping.
        _block(0.004 if number % 40 == 0 else BUSY_S)
        lost += await task != "reply"
    return lost


def _block(seconds: float) -> None:
    time.sleep(seconds)


async def _rollout(registry: Any, reply: Coroutine[Any, Any, str]) -> str:
    try:
        async with rl._Deadline(BUDGET_S, "benchmark", registry):
            return await reply
    except rl.RolloutTimeout:
        return "timeout"


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_replies_that_are_ready_when_a_pause_ends(kind: str, benchmark: Any) -> None:
    """Rule 4 on a large scale: of 6,000 replies that need two turns or more, none is lost."""
    factory = asyncio.new_event_loop if kind == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        lost = benchmark.pedantic(lambda: runner.run(lost_of(TRIES)), rounds=1)
    assert lost == 0


def test_status(compare: Comparison) -> None:
    """`status()` in a process that has a controller of 3,000 lines, and none of the fix on it."""
    body = {f"method_{number}": _method(number) for number in range(200)}
    controller = type(
        CONTROLLER_CLASS, (), {**body, "__init__": _init, PREPARE: _prepare, "__module__": CONTROLLER_MODULE}
    )
    modules = {CONTROLLER_MODULE: (CONTROLLER_CLASS, controller)}
    modules[MANAGER_MODULE] = (REGISTRY_CLASS, rl.RequestDeadlineRegistry)
    with pytest.MonkeyPatch.context() as patch:
        for name, (attribute, value) in modules.items():
            module = ModuleType(name)
            setattr(module, attribute, value)
            patch.setitem(sys.modules, name, module)
        assert status().state == "unpatched"
        compare.run({"status()": timed(lambda: status())}, rounds=ROUNDS)
    compare.absolute("status()", "status()", goal=0.001)


def _method(number: int) -> Any:
    lines = "".join(f"    self.attribute_{number}_{line} = self.call_{line}({line})\n" for line in range(14))
    world: dict[str, Any] = {}
    exec(f"async def method(self):\n{lines}", world)
    return world["method"]


def _init(self: Any) -> None:
    self._gym_checkpoint_rollout_permitted = asyncio.Event()


async def _prepare(self: Any, checkpoint_id: str, checkpoint_dir: Any) -> None:
    self._gym_checkpoint_rollout_permitted.clear()
