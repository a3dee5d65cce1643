"""RL and Gym in any order: what is wanted is never touched, and what is given up does not stay."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nemo_rl_deadline_fix import stranded
from nemo_rl_deadline_fix.replay.clock import VirtualLoop
from nemo_rl_deadline_fix.replay.ledger import Group, RolloutRecoveryLedger, as_object
from tests.support import chaos
from tests.support.gym_agents import GymError, Key, Work
from tests.support.recovering_rl import Controller, World, as_flat_object, as_tuple, with_fix

PREPARE_TIMEOUT_S = 4.0
REMEMBERED = 12


def _group(key: Key) -> str:
    return key[0].rpartition("_g")[0]


class RlAndGym(RuleBasedStateMachine):
    """RL's steps, Gym's runs and snapshots, one by one, on a virtual loop of the machine's own."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.runner = asyncio.Runner(loop_factory=lambda: self.loop)
        self.groups = 0
        self.snapshots = 0
        self.snapshot: asyncio.Task[bool] | None = None
        self.saved: tuple[str, RolloutRecoveryLedger] | None = None
        self.restarts = 0
        self.faulty_at = -1.0
        self.survived: Counter[Key] = Counter()
        self.sealed: Counter[Key] = Counter()

    @initialize(entry=st.sampled_from([as_tuple, as_object, as_flat_object]))
    def begin(self, entry: Any) -> None:
        self.entry = entry
        self._start()

    def _start(self) -> None:
        async def start() -> World:
            return World(
                with_fix(Controller, clocks=True), prepare_timeout_s=PREPARE_TIMEOUT_S, entry=self.entry
            )

        self.world = self.runner.run(start())
        self.controller = self.world.controller
        self.survived.clear()

    @property
    def ledger(self) -> RolloutRecoveryLedger:
        return self.controller._rollout_recovery_ledger

    @property
    def admitted(self) -> bool:
        return self.controller._gym_checkpoint_rollout_permitted.is_set()

    def step(self, seconds: float = 0.0) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)

        self.runner.run(wait())

    def _run(self, keys: list[Key], work: Work) -> None:
        async def run() -> None:
            for key in keys:
                self.world.controller._gym._spawn(self.world.agent.run(key, work))
            await asyncio.sleep(0.3)

        self.runner.run(run())

    # ── RL ───────────────────────────────────────────────────────────────────────────────────────────────

    works = st.builds(
        Work,
        turns=st.integers(1, 4),
        turn_s=st.sampled_from([0.0, 0.1, 0.4, 1.5]),
        fails=st.sampled_from([False, False, False, True]),
    )

    @precondition(lambda self: self.admitted and len(self.ledger._groups) < 6)
    @rule(
        rows=st.sampled_from([1, 2, 2, 3]),
        atomic=st.booleans(),
        work=works,
        dispatched=st.sampled_from([True, True, False]),
    )
    def reserve(self, rows: int, atomic: bool, work: Work, dispatched: bool) -> None:
        group_id = f"group{self.groups}"
        self.groups += 1
        self.ledger.reserve_group(None, group_id, rows, atomic=atomic)
        if dispatched:
            self._dispatch(group_id, work)

    def _dispatch(self, group_id: str, work: Work) -> None:
        numbers = self.ledger.mark_group_dispatched(None, group_id)
        keys = self.ledger._groups[group_id].keys()
        self._run([keys[number] for number in numbers], work)

    @precondition(lambda self: self.admitted and self._dispatched())
    @rule(data=st.data(), work=works)
    def dispatch_row_again(self, data: st.DataObject, work: Work) -> None:
        """The stream broke: a dispatched row is sent again under its index, and Gym may have its reply."""
        self._run([data.draw(st.sampled_from(self._dispatched()))], work)

    def _dispatched(self) -> list[Key]:
        return [key for key, one, current in self.ledger.attempts() if current and one.status == "dispatched"]

    @precondition(lambda self: self.world.agent.states("completed"))
    @rule(
        data=st.data(),
        twice=st.booleans(),
        sent=st.sampled_from([False, False, True]),
        cohort_fails=st.booleans(),
    )
    def read(self, data: st.DataObject, twice: bool, sent: bool, cohort_fails: bool) -> None:
        """An answer arrives, maybe twice: RL seals it if it still can, and maybe gets to send the ACK."""
        finished = sorted(self.world.agent.states("completed"))
        awaited = [key for key in finished if key in self._dispatched()]
        key = data.draw(st.sampled_from(awaited or finished))
        for _ in range(1 + twice):
            self._seal(key)
        if sent:
            self.flush()
        if cohort_fails and _group(key) in self.ledger._groups:
            self.ledger.abandon_unsealed(None, _group(key))

    def _seal(self, key: Key) -> None:
        receipt = self.world.agent.executions[key].receipt
        try:
            self.ledger.seal(None, key, "agent-agent", receipt)
        except (KeyError, ValueError):
            return
        self.sealed[key] = 1

    @precondition(lambda self: self.ledger.pending())
    @rule()
    def flush(self) -> None:
        """The outbox is drained, as well as it goes."""

        async def drain() -> None:
            self.controller.drain()

        self.runner.run(drain())
        self.step(0.01)

    @precondition(lambda self: self.ledger._groups)
    @rule(data=st.data(), retried=st.booleans(), work=works)
    def give_up(self, data: st.DataObject, retried: bool, work: Work) -> None:
        """RL abandons a try, and maybe starts another one."""
        group_id = data.draw(st.sampled_from(sorted(self.ledger._groups)))
        self.ledger.abandon_unsealed(None, group_id)
        if retried and self.admitted:
            self.ledger.prepare_incomplete_retry(None, group_id)
            self._dispatch(group_id, work)

    @precondition(lambda self: self.ledger._groups)
    @rule(data=st.data())
    def finish_group(self, data: st.DataObject) -> None:
        """A group whose rows are all there leaves the ledger; another one is dropped."""
        group_id = data.draw(st.sampled_from(sorted(self.ledger._groups)))
        if self.ledger._groups[group_id].atomic and self._complete(group_id):
            self.ledger.seal_group(None, group_id)
        self.ledger.abandon_unsealed(None, group_id)
        self.ledger.discard_group(None, group_id)

    def _complete(self, group_id: str) -> bool:
        group = self.ledger._groups[group_id]
        return all(self.sealed[key] for key in Group.keys(group))

    @precondition(lambda self: self.admitted and len(self.ledger._groups) < 6)
    @rule(work=works)
    def reserve_under_a_discarded_id(self, work: Work) -> None:
        """A group that was dropped before its dispatch comes back, with attempts that Gym never saw."""
        group_id = f"group{self.groups}"
        self.groups += 1
        self.ledger.reserve_group(None, group_id, 2)
        self.ledger.discard_group(None, group_id)
        self.ledger.reserve_group(None, group_id, 2)
        self._dispatch(group_id, work)

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.snapshot is None)
    @rule(
        publish_s=st.sampled_from([0.0, 3.0]),
        route=st.sampled_from([None, "status", "completion-receipt", "acknowledge-completed"]),
        late=st.booleans(),
        times=st.integers(1, 3),
    )
    def take_snapshot(self, publish_s: float, route: str | None, late: bool, times: int) -> None:
        """A snapshot begins; the next requests to a route may be answered with an error, at once or late."""

        async def fault() -> None:
            self.faulty_at = self.loop.time()
            await asyncio.sleep(1.0 if late else 0.0)
            raise GymError("broken", 500)

        if route is not None:
            self.world.gym.faults[route] = [fault] * times
        self.snapshots += 1
        name = f"snapshot{self.snapshots}"
        stale = [key for key in self.world.agent.states("completed") if self._given_up(key)]
        self.began = self.loop.time(), stale, name

        async def start() -> asyncio.Task[bool]:
            return asyncio.ensure_future(self.controller.snapshot(name, publish_s))

        self.snapshot = self.runner.run(start())
        self.step()
        self._look_at_snapshot()

    def _given_up(self, key: Key) -> bool:
        if key in self.ledger.pending():
            return False
        for there, attempt, current in self.ledger.attempts():
            if there == key:
                return not current or attempt.status in ("abandoned", "failed")
        return True

    @rule(seconds=st.sampled_from([0.3, 0.7, 0.7, 2.0, 5.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.step(seconds)
        self._look_at_snapshot()

    def _look_at_snapshot(self) -> None:
        if self.snapshot is None or not self.snapshot.done():
            return
        began, stale, name = self.began
        task, self.snapshot = self.snapshot, None
        saved = task.exception() is None and task.result()
        if saved:
            assert self.world.agent.restorable(name), "a snapshot that says saved cannot be restored"
            self.saved = name, copy.deepcopy(self.ledger)
        if saved or (self.loop.time() - began >= PREPARE_TIMEOUT_S and self.faulty_at < began):
            for key in stale:
                if key in self.world.agent.executions:
                    self.survived[key] += 1
                    assert self.survived[key] < 2, f"{key} outlives two snapshots"

    @precondition(lambda self: self.snapshot is None and self.saved is not None and self.restarts < 1)
    @rule()
    def restart(self) -> None:
        """Controller and Gym start anew from the last snapshot; what was unsealed is abandoned."""
        assert self.saved is not None
        self.restarts += 1
        self._cancel_everything()
        self._start()
        self.controller._rollout_recovery_ledger = copy.deepcopy(self.saved[1])
        self.ledger._pending.clear()
        for group_id, group in self.ledger._groups.items():
            if not group.atomic or not self._complete(group_id):
                self.ledger.abandon_unsealed(None, group_id)

    # ── what holds ───────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def nothing_that_rl_can_use_is_touched(self) -> None:
        if hasattr(self, "world"):
            self._assert_untouched()

    def _assert_untouched(self) -> None:
        assert self.world.wrong == []
        touched = set(self.world.touched)
        assert not touched & {key for key in self.sealed if self.sealed[key] and key in self.ledger.pending()}

    @invariant()
    def memory_is_bounded(self) -> None:
        state = getattr(self, "controller", None) and getattr(self.controller, stranded._STATE, None)
        if state:
            assert len(state.memory) <= REMEMBERED
            for seen in state.seen.values():
                assert len(seen) <= 3 * 3 * self.groups

    def teardown(self) -> None:
        """In the end everybody finishes: two more snapshots, and ledger and Gym agree."""
        try:
            if hasattr(self, "world"):
                self._finish()
        finally:
            self._cancel_everything()
            self.runner.close()

    def _finish(self) -> None:
        self.world.gym.faults.clear()
        while self.snapshot is not None:
            self.wait(5.0)
        self.step(30.0)
        for group_id in list(self.ledger._groups):
            self.ledger.abandon_unsealed(None, group_id)
        self.flush()
        for _ in range(2):
            self.take_snapshot(0.0, None, False, 1)
            while self.snapshot is not None:
                self.wait(5.0)
        assert self.saved is not None
        assert self.saved[0] == f"snapshot{self.snapshots}"
        assert self.world.agent.executions == {}
        assert self.ledger.pending() == {}
        self._assert_untouched()

    def _cancel_everything(self) -> None:
        async def cancel() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.runner.run(cancel())


@pytest.mark.parametrize("examples", [80, pytest.param(1000, marks=pytest.mark.slow)])
def test_any_order(examples: int, mocker: Any) -> None:
    """No order of steps makes it touch what RL can use, or keep what RL has given up."""
    mocker.patch.object(stranded, "REMEMBERED", REMEMBERED)
    run_state_machine_as_test(
        RlAndGym,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            # The short run is the same each time; the long one looks for what is new.
            derandomize=examples < 100,
            phases=[Phase.generate],
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


@pytest.mark.parametrize("seed", [11, pytest.param(21, marks=pytest.mark.slow)])
def test_slow_and_failing_rows(seed: int) -> None:
    """Of eleven snapshots among slow and failing rows nearly all are saved, and without it next to none."""
    before, after = (chaos.run(seed, clocks=True, acknowledge=acknowledge) for acknowledge in (False, True))

    assert sum(before.saved) <= 2
    assert sum(after.saved) >= 9
    assert after.streak <= 2
    assert before.restorable
    assert after.restorable
    assert after.touched
    assert after.wrong == []
