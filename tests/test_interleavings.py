"""Registry, deadlines, gate, training, refit and snapshots in random order, beside a plain model.

The model knows no deadlines and no clocks: it adds up the seconds in which nobody held. Every step is
one turn of something, a few turns of the loop, and then a comparison of everything that can be seen.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nemo_rl_deadline_fix.registry import (
    RESTART_TURNS,
    SMALLEST_BUDGET_S,
    RequestDeadlineRegistry,
)
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.replay.clock import VirtualLoop
from nemo_rl_deadline_fix.replay.gym import Committed, Remote
from nemo_rl_deadline_fix.targets import DEFAULT_HOLDER, GATE, HOLDER, MANAGER, REGISTRY
from tests.conftest import virtual
from tests.support.upstream_like import clock_forward, controller, rollout, snapshot

TICK_S = 1e-9
"""Resolution of the loop's clock, with which float errors of this size disappear too."""

# Quarters meet each other exactly, so that things happen in one turn; the others never do.
SECONDS = st.one_of(
    st.integers(1, 80).map(lambda quarters: quarters / 4),
    st.floats(0.002, 30, allow_nan=False).map(lambda seconds: round(seconds, 6)),
)
NAMES = st.sampled_from(["engine", "refit", "save"])
FAILURES = st.sampled_from([OSError, TimeoutError, RuntimeError])


@dataclass
class Rollout:
    """The model's view of one rollout: how many seconds of its budget are left, and what must come out."""

    left: float
    reply: asyncio.Future[str]
    task: asyncio.Task[tuple[Any, float]]
    outcome: str | None = None
    at: float = 0.0


class AskedGym:
    """A Gym whose calls wait until the test answers them."""

    def __init__(self) -> None:
        self.asked: asyncio.Future[Any] | None = None
        for call in ("prepare", "commit", "resume", "abort"):
            setattr(self, f"{call}_checkpoint", Remote(self.ask))

    async def ask(self, checkpoint_id: str, *_: Any) -> Any:
        self.asked = asyncio.get_running_loop().create_future()
        try:
            ready = await self.asked
        finally:
            self.asked = None
        return SimpleNamespace(ready=ready, checkpoint_id=Committed(checkpoint_id).checkpoint_id)


class Interleavings(RuleBasedStateMachine):
    """One controller with the fix, some rollouts, and whoever else stops their clocks."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: Any = VirtualLoop()
        self.gym: Any = AskedGym()
        self.controller = controller()
        self.controller._gym = self.gym
        self.controller._flush_completed_gym_acknowledgements = lambda: self.gym.ask("flush")
        self.gate = getattr(self.controller, GATE)
        self.manager = getattr(self.controller, MANAGER)
        self.registry = RequestDeadlineRegistry.adopt(getattr(self.manager, REGISTRY))
        self.snapshot: Any = None
        self.snapshots = 0
        # The model.
        self.names: set[str] = set()
        self.held = False
        self.rollouts: list[Rollout] = []
        self.paused_s = self.told_s = 0.0

    def turn(self, *steps: Any) -> None:
        """Run some steps in one turn of the loop, then let everything follow that takes no time."""

        async def one_turn() -> None:
            for step in steps:
                step()
            for _ in range(RESTART_TURNS + 3):
                await asyncio.sleep(0)
            # The registry tells loop time only inside of the loop.
            self.told_s = self.registry._watch.report().paused_seconds

        self.loop.run_until_complete(one_turn())
        held = bool(self.names) or not self.gate.is_set()
        if self.held and not held:
            for one in self.live():
                one.left = max(one.left, SMALLEST_BUDGET_S)
        self.held = held

    def live(self) -> list[Rollout]:
        return [one for one in self.rollouts if one.outcome is None]

    def count(self, seconds: float) -> None:
        """Seconds go by: for the budgets if nobody holds, else for the pause."""
        if self.held:
            self.paused_s += seconds
            return
        for one in self.live():
            one.left -= seconds

    # Rollouts.

    @precondition(lambda self: len(self.live()) < 8)
    @rule(budget=SECONDS)
    def start_rollout(self, budget: float) -> None:
        def start() -> None:
            reply = self.loop.create_future()
            task = self.loop.create_task(rollout(self.registry, budget, reply))
            self.rollouts.append(Rollout(budget, reply, task))

        self.turn(start)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live()), label="rollout")
        self.turn(lambda: one.reply.set_result("reply"))
        one.outcome, one.at = "reply", self.loop.time()

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def cancel_rollout(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live()), label="rollout")
        self.turn(one.task.cancel)
        one.outcome = "cancelled"

    # Time.

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        began = self.loop.time()
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.turn()
        if not self.held:
            for one in self.live():
                if one.left <= seconds + TICK_S / 2:
                    one.outcome, one.at = "timeout", began + one.left
        self.count(seconds)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def wait_until_a_budget_would_end(self, data: st.DataObject) -> None:
        self.wait(data.draw(st.sampled_from(self.live()), label="rollout").left)

    @precondition(lambda self: self.live() and not self.held)
    @rule(seconds=SECONDS, name=NAMES)
    def block_the_loop_then_hold(self, seconds: float, name: str) -> None:
        self.names.add(name)
        self.count(seconds)
        for one in self.live():
            # Nobody came to fire it, so it is exhausted, and held.
            one.left = max(one.left, 0.0)
        self.turn(lambda: clock_forward(seconds), lambda: self.registry.suspend(name))

    # Those who hold.

    @rule()
    def training_starts(self) -> None:
        self.names.add(DEFAULT_HOLDER)
        self.turn(self.manager.suspend_request_deadlines)

    @rule()
    def weight_sync_ends(self) -> None:
        self.names.discard(DEFAULT_HOLDER)
        self.turn(self.manager.resume_request_deadlines)

    @rule(name=NAMES)
    def hold(self, name: str) -> None:
        self.names.add(name)
        self.turn(lambda: self.registry.suspend(name))

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        self.names.discard(name)
        self.turn(lambda: self.registry.resume(name))

    @rule(last=NAMES)
    def everyone_releases_and_one_holds_again_in_one_turn(self, last: str) -> None:
        names, self.names = sorted(self.names), {last}
        steps = [partial(self.registry.resume, name) for name in names]
        self.turn(*steps, lambda: self.registry.suspend(last))

    @rule()
    def everyone_releases(self) -> None:
        names, self.names = sorted(self.names), set()
        self.turn(*[partial(self.registry.resume, name) for name in names])

    @precondition(lambda self: self.names and self.live())
    @rule(reply_first=st.booleans())
    def everyone_releases_in_the_turn_of_a_reply(self, reply_first: bool) -> None:
        # Of the one with the least left, for whom it matters.
        one = min(self.live(), key=lambda live: live.left)
        steps: list[Any] = [partial(self.registry.resume, name) for name in sorted(self.names)]
        steps.insert(0 if reply_first else len(steps), lambda: one.reply.set_result("reply"))
        self.names.clear()
        self.turn(*steps)
        one.outcome, one.at = "reply", self.loop.time()

    # Snapshots.

    @precondition(lambda self: self.snapshot is None)
    @rule()
    def snapshot_starts(self) -> None:
        def start() -> None:
            self.snapshots += 1
            self.snapshot = self.loop.create_task(snapshot(self.controller, f"id {self.snapshots}"))

        self.turn(start)

    @precondition(lambda self: self.gym.asked is not None)
    @rule()
    def gym_answers(self) -> None:
        self.answer(lambda: self.gym.asked.set_result(True))

    @precondition(lambda self: self.gym.asked is not None)
    @rule()
    def gym_is_not_ready(self) -> None:
        self.answer(lambda: self.gym.asked.set_result(False))

    @precondition(lambda self: self.gym.asked is not None)
    @rule(failure=FAILURES)
    def gym_fails(self, failure: type[Exception]) -> None:
        self.answer(lambda: self.gym.asked.set_exception(failure("from Gym")))

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def snapshot_is_cancelled(self) -> None:
        self.answer(self.snapshot.cancel)

    def answer(self, step: Any) -> None:
        self.turn(step)
        if self.snapshot.done():
            # Its way to end is the controller's own; here only the gate that it leaves behind counts.
            if not self.snapshot.cancelled():
                self.snapshot.exception()
            self.snapshot = None

    # What must hold after every step.

    @invariant()
    def suspended_if_and_only_if_someone_holds(self) -> None:
        expected = self.names | ({HOLDER} if not self.gate.is_set() else set())
        assert set(self.registry.holders) == expected
        assert self.registry.suspended is bool(expected)

    @invariant()
    def rollouts_end_when_they_must(self) -> None:
        for one in self.rollouts:
            if one.outcome is None:
                assert not one.task.done(), (one, self.loop.time())
            elif one.outcome == "cancelled":
                assert one.task.cancelled()
            else:
                outcome, at = one.task.result()
                assert outcome == one.outcome
                assert abs(at - one.at) <= TICK_S, (at, one.at)
        assert self.registry.live == len(self.live())

    @invariant()
    def each_clock_has_what_is_left(self) -> None:
        live: set[Any] = {*self.registry._live}
        deadlines = sorted(
            deadline._remaining if self.held else deadline._timeout.when() - self.loop.time()
            for deadline in live
        )
        expected = sorted(one.left for one in self.live())
        assert all(abs(a - b) <= TICK_S for a, b in zip(deadlines, expected, strict=True)), (
            deadlines,
            expected,
        )

    @invariant()
    def paused_seconds_add_up(self) -> None:
        assert abs(self.told_s - self.paused_s) <= 1e-6

    @invariant()
    def no_timer_and_no_task_too_many(self) -> None:
        timers = [handle for handle in self.loop._scheduled if not handle.cancelled()]
        # One that warns of the hold, or one for each running clock.
        assert len(timers) == (1 if self.held else len(self.live()))
        assert len(asyncio.all_tasks(self.loop)) == len(self.live()) + (self.snapshot is not None)

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.loop.close()

    def end(self) -> None:
        """Everyone releases, a last snapshot succeeds, the budgets end, and nothing is left over."""
        for name in sorted(self.names):
            self.release(name)
        while self.snapshot is not None or not self.gate.is_set():
            if self.snapshot is None:
                self.snapshot_starts()
            self.gym_answers()
        while self.live():
            self.wait(30)
        self.suspended_if_and_only_if_someone_holds()
        self.rollouts_end_when_they_must()
        assert not self.registry.holders
        assert self.registry.live == 0
        assert not asyncio.all_tasks(self.loop)
        assert not [handle for handle in self.loop._scheduled if not handle.cancelled()]
        assert not self.loop._ready


def test_random_interleavings() -> None:
    """Thousands of random steps agree with a model that only adds up the seconds in which nobody held."""
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            # The same steps on every machine of a CI, new ones at each run elsewhere.
            derandomize=bool(os.environ.get("CI")),
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


# Every order, not some.


def test_every_order_of_two_holders() -> None:
    """All sequences of up to seven suspends and resumes of two names agree with a set of names."""
    virtual(every_order(("a", "b"), 7))


def test_every_order_of_three_holders() -> None:
    """All sequences of up to five suspends and resumes of three names agree with a set of names."""
    virtual(every_order(("a", "b", "c"), 5))


async def every_order(names: tuple[str, ...], length: int) -> None:
    """Play every order with one second after each step, beside a set of names and a sum of seconds."""
    loop = asyncio.get_running_loop()
    steps = [(verb, name) for verb in ("suspend", "resume") for name in names]
    # A shorter order is the beginning of a longer one, and every step is checked.
    for order in itertools.product(steps, repeat=length):
        registry: Any = RequestDeadlineRegistry()
        budget = 10 * length
        deadline: Any
        async with rl._Deadline(budget, "rollout", registry) as deadline:
            holding: set[str] = set()
            used = 0
            for verb, name in order:
                getattr(registry, verb)(name)
                holding = holding | {name} if verb == "suspend" else holding - {name}
                assert registry.holders.keys() == holding
                assert registry.suspended is bool(holding)
                left = deadline._timeout.when()
                assert (left is None) is bool(holding)
                if left is None:
                    left = loop.time() + deadline._remaining
                assert abs(left - loop.time() - (budget - used)) < 1e-6
                clock_forward(1)
                used += not holding
        for name in names:
            registry.resume(name)
        assert registry._watch._warning is None
