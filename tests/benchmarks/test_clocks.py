"""The registry against upstream's one flag, and against the bare timers that both of them work on.

Both registries get the same deadlines, which are really entered on a real loop, so that nothing but the
registry differs. Timers that were cancelled are swept by the loop between two rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import FunctionType

import pytest

from nemo_rl_deadline_fix import RequestDeadlineRegistry
from nemo_rl_deadline_fix.replay import rl
from tests.benchmarks.comparing import timed
from tests.benchmarks.conftest import Comparison

BUDGET_S = 3600.0
FLAG = "upstream's flag"
MOVED = "upstream's flag, moved to another class"
FLAG_ONLY = "upstream's second suspend alone"
FLOOR = "call_at + cancel"
OURS = "this registry"
ADOPTED = "this registry, adopted"
SIZES = (100, 1_000, 10_000)
# What one measurement does: so much that the clock's own cost does not count, and so little that the
# next one still finds the machine at the same speed.
OPERATIONS = 2_000
ROUNDS = 200

pytestmark = pytest.mark.benchmark(disable_gc=True)


Registry = RequestDeadlineRegistry | rl.RequestDeadlineRegistry


@contextmanager
def loop_with(live: int) -> Iterator[tuple[asyncio.Runner, list[rl._Deadline]]]:
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


class _Theirs(rl.RequestDeadlineRegistry):
    """Upstream's, to be adopted: what becomes of one must not change what Python knows of the others."""


class _TheirsToo(rl.RequestDeadlineRegistry):
    """A class that an object can be moved to without any change of what it does."""


def test_add_and_discard(compare: Comparison):
    """A deadline is added and discarded."""
    ours, flag = RequestDeadlineRegistry(), rl.RequestDeadlineRegistry()
    measure_add_and_discard(compare, {OURS: ours, FLAG: flag})
    compare.ratio("add + discard", OURS, FLAG, goal=1.05)
    compare.ratio("add + discard", OURS, FLOOR)


def test_add_and_discard_in_an_adopted_registry(compare: Comparison):
    """The same where `install()` has made upstream's live object one of ours."""
    moved = _Theirs()
    moved.__class__ = _TheirsToo
    adopted = RequestDeadlineRegistry.adopt(_Theirs())
    measure_add_and_discard(compare, {ADOPTED: adopted, FLAG: rl.RequestDeadlineRegistry(), MOVED: moved})
    compare.ratio("add + discard, adopted", ADOPTED, FLAG, goal=1.05)
    compare.ratio("add + discard, adopted", ADOPTED, MOVED)


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


def test_enter_and_leave(compare: Comparison):
    """A deadline is entered and left, which adds and discards it: what a rollout really pays."""
    registries: dict[str, Registry] = {
        OURS: RequestDeadlineRegistry(),
        ADOPTED: RequestDeadlineRegistry.adopt(_Theirs()),
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
    compare.ratio("enter + leave a deadline, adopted", ADOPTED, FLAG, goal=1.05)
    compare.ratio("enter + leave a deadline", OURS, FLOOR)


@pytest.mark.parametrize("live", SIZES)
def test_suspend_and_resume(compare: Comparison, live: int):
    """All clocks are stopped and run again."""
    ours, flag = RequestDeadlineRegistry(), rl.RequestDeadlineRegistry()
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
            ours.add(deadline)
            flag.add(deadline)
        loop = runner.get_loop()
        handles = [loop.call_at(loop.time() + BUDGET_S, never) for _ in deadlines]
        things = {
            OURS: apart(pause, ours),
            FLAG: apart(pause, flag),
            FLOOR: timed(pause_bare_timers),
        }
        compare.run(
            things, per=pauses, rounds=ROUNDS if live < OPERATIONS else ROUNDS // 3, around=inside(runner)
        )
        runner.run(every_clock_stops_and_runs_again())
    compare.ratio(f"suspend + resume, {live:,} live", OURS, FLAG, goal=1.10)
    compare.ratio(f"suspend + resume, {live:,} live", OURS, FLOOR)


def test_second_holder(compare: Comparison):
    """A second holder comes and goes while another holds, with few and with many live deadlines."""
    registries = {f"{live:,} live": RequestDeadlineRegistry() for live in SIZES}
    flag = rl.RequestDeadlineRegistry()

    def come_and_go(registry: RequestDeadlineRegistry) -> None:
        for _ in range(OPERATIONS):
            registry.suspend("second")
            registry.resume("second")

    def come() -> None:
        for _ in range(OPERATIONS):
            flag.suspend()

    async def first_holds() -> None:
        for registry, live in zip(registries.values(), SIZES, strict=True):
            for deadline in deadlines[:live]:
                registry.add(deadline)
            registry.suspend("first")
        flag.suspend()

    async def first_lets_go() -> None:
        for registry in registries.values():
            assert list(registry.holders) == ["first"]
            assert registry.stats["second"].holds > OPERATIONS
            registry.resume("first")

    with loop_with(max(SIZES)) as (runner, deadlines):
        runner.run(first_holds())
        things = {name: apart(come_and_go, registry) for name, registry in registries.items()}
        things[FLAG_ONLY] = timed(come)
        things[FLOOR] = timed(bare_timers)
        compare.run(things, per=OPERATIONS, rounds=ROUNDS, around=inside(runner))
        runner.run(first_lets_go())
    few, *more = registries
    for many in more:
        compare.ratio(f"a second holder's suspend + resume, {many}", many, few, goal=1.10)
    compare.ratio(f"a second holder's suspend + resume, {few}", few, FLAG_ONLY)
    compare.ratio(f"a second holder's suspend + resume, {few}", few, FLOOR)
