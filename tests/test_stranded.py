"""What NeMo RL has given up on is ACKed while a snapshot is prepared, and nothing else is touched."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix import observing, stranded
from nemo_rl_deadline_fix.replay.ledger import RolloutRecoveryLedger, as_object
from nemo_rl_deadline_fix.stranded import Memory, Verdict, verdict
from tests.conftest import virtual
from tests.support import upstream_like
from tests.support.gym_agents import GymError, Key, Work
from tests.support.recovering_rl import (
    Controller,
    Plan,
    ShardedController,
    World,
    as_flat_object,
    as_tuple,
    with_fix,
)

PREPARE_TIMEOUT_S = 4.0
ROOT = Path(__file__).parent.parent


def steady(seconds: float = 1.0) -> Plan:
    """A row that takes some seconds, in turns of a fifth of that."""
    return lambda number, attempt: Work(turns=5, turn_s=seconds / 5)


def first_try(slow: Work) -> Plan:
    """A row that does this at its first try, and is quick at the next."""
    return lambda number, attempt: slow if attempt == 0 else Work(turns=2, turn_s=0.1)


FAILS = Work(turns=1, turn_s=0.2, fails=True)
SLOW = Work(turns=20, turn_s=0.1)


def ledger(status: str, *, attempts: int = 1, entry: Any = as_object) -> RolloutRecoveryLedger:
    """A ledger with one group of one row, whose last of some attempts is in a state."""
    built = RolloutRecoveryLedger(entry)
    group = built.reserve_group(None, "group", 1)
    for _ in range(attempts - 1):
        group.current(0).status = "abandoned"
        built.prepare_incomplete_retry(None, "group")
    group.current(0).status = status
    return built


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────────────

W, G, U = Verdict.WANTED, Verdict.GIVEN_UP, Verdict.UNKNOWN
KEY: Key = ("group_g0", 0)


@pytest.mark.parametrize(
    ("status", "attempts", "key", "remembered", "outbox", "expected"),
    [
        ("reserved", 1, KEY, False, False, W),
        ("dispatched", 1, KEY, False, False, W),
        ("sealed", 1, KEY, False, False, W),
        ("abandoned", 1, KEY, False, False, G),
        ("failed", 1, KEY, False, False, G),
        ("finalizing", 1, KEY, False, False, W),  # a word of a version to come
        ("reserved", 2, KEY, False, False, G),
        ("dispatched", 2, KEY, False, False, G),
        ("sealed", 2, KEY, False, False, G),
        ("dispatched", 2, ("group_g0", 1), False, False, W),
        ("abandoned", 2, ("group_g0", 2), False, False, W),  # newer than the ledger knows
        ("dispatched", 1, KEY, True, False, W),  # the ledger is asked before the memory
        ("abandoned", 1, KEY, False, True, W),
        ("dispatched", 2, KEY, False, True, W),
        ("sealed", 1, ("other_g0", 0), False, False, U),
        ("sealed", 1, ("other_g0", 0), True, False, G),
        ("sealed", 1, ("other_g0", 0), True, True, W),
        ("sealed", 1, ("other_g0", 0), False, True, W),
        ("abandoned", 1, ("group_g1", 0), False, False, U),
        ("abandoned", 1, ("group_g00", 0), False, False, U),
        ("abandoned", 1, ("group_g-1", 0), False, False, U),
        ("abandoned", 1, ("group_g\u0660", 0), False, False, U),  # a zero that int() would take
        ("abandoned", 1, ("group", 0), False, False, U),
        ("abandoned", 1, ("", 0), False, False, U),
    ],
)
def test_verdict(
    status: str, attempts: int, key: Key, remembered: bool, outbox: bool, expected: Verdict
) -> None:
    """What RL can still do with a reply, by the ledger, the memory and the outbox."""
    memory, pending = ({key} if remembered else set()), ({key} if outbox else set())

    said = verdict(ledger(status, attempts=attempts), memory, pending, key)

    assert said is expected


# ── what leaves the ledger ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call", [lambda shadowed: shadowed(None, "group"), lambda s: s(cut=None, group_id="group")]
)
@pytest.mark.parametrize(
    ("status", "remembered"),
    [("sealed", [("group_g0", 0)]), ("dispatched", [("group_g0", 0), ("group_g0", 1)])],
)
def test_discarded_group_is_remembered(call: Callable[..., None], status: str, remembered: list[Key]) -> None:
    """A discarded group leaves its unused attempts behind, however the call names it; not the sealed ones."""
    memory, followed = Memory(), ledger(status, attempts=2)
    memory.follow(followed)
    memory.follow(followed)

    call(followed.discard_group)

    assert list(memory) == remembered
    assert followed._groups == {}


def test_discard_that_fails_is_not_remembered() -> None:
    """The ledger's own refusal comes out as it is, and a group that stays is not forgotten."""
    memory, followed = Memory(), ledger("abandoned")
    memory.follow(followed)

    with pytest.raises(ValueError, match="unknown group other"):
        followed.discard_group(None, "other")

    assert not memory
    assert list(followed._groups) == ["group"]


@pytest.mark.parametrize("broken", [None, [], [SimpleNamespace(attempts=[])], [SimpleNamespace()]])
def test_bookkeeping_never_raises_into_rl(broken: Any) -> None:
    """A group of another shape is discarded like any other."""
    memory, followed = Memory(), ledger("abandoned")
    memory.follow(followed)
    followed._groups["group"].siblings = broken

    followed.discard_group(None, "group")

    assert followed._groups == {}
    assert not memory


def test_memory_is_bounded(mocker: Any) -> None:
    """The oldest attempts are forgotten first."""
    mocker.patch.object(stranded, "REMEMBERED", 3)
    memory, followed = Memory(), RolloutRecoveryLedger()
    memory.follow(followed)

    for number in range(5):
        followed.reserve_group(None, f"group{number}", 1)
        followed.discard_group(None, f"group{number}")

    assert list(memory) == [("group2_g0", 0), ("group3_g0", 0), ("group4_g0", 0)]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copied_ledger_is_its_own(duplicate: Callable[[Any], Any]) -> None:
    """A followed ledger can be pickled and deep-copied as before, and a copy discards from itself alone."""
    memory, followed = Memory(), ledger("abandoned")
    memory.follow(followed)

    copied = duplicate(followed)
    copied.discard_group(None, "group")

    assert copied._groups == {}
    assert list(followed._groups) == ["group"]
    assert not memory


# ── a snapshot's prepare ─────────────────────────────────────────────────────────────────────────────────


async def give_up(world: World, group_id: str = "group") -> Key:
    """One reply that RL has given up on and Gym has finished."""
    controller = world.controller
    await controller.group(group_id, "agent", [first_try(FAILS), first_try(SLOW)])
    await asyncio.sleep(3.0)
    assert world.agent.states("completed") == [(f"{group_id}_g1", 0)]
    return f"{group_id}_g1", 0


def build(*, acknowledge: bool = True, clocks: bool = True, **options: Any) -> World:
    """A controller with a Gym actor and its agents, in the running loop."""
    return World(with_fix(Controller, clocks=clocks, acknowledge=acknowledge), **options)


@pytest.mark.parametrize("acknowledge", [False, True])
def test_one_failed_row_strands_its_siblings(acknowledge: bool) -> None:
    """Without any deadline: one HTTP 500 in a group, and no snapshot is saved; with it, all are."""

    async def story() -> tuple[World, list[bool]]:
        world = build(acknowledge=acknowledge)
        plans = [first_try(FAILS), first_try(SLOW), first_try(SLOW)]
        await world.controller.group("group", "agent", plans)
        await asyncio.sleep(3.0)
        return world, [await world.controller.snapshot(f"snapshot {n}") for n in range(3)]

    world, saved = virtual(story())

    assert saved == [acknowledge] * 3
    assert sorted(world.touched) == ([("group_g1", 0), ("group_g2", 0)] if acknowledge else [])
    assert world.wrong == []


@pytest.mark.parametrize("entry", [as_tuple, as_object, as_flat_object])
def test_outbox_is_rls_own(entry: Any) -> None:
    """What RL is about to ACK itself is left to it, in each form that versions keep it in."""

    async def story() -> World:
        world = build(entry=entry)
        key = await give_up(world)
        receipt = world.agent.executions[key].receipt
        # Put there while Gym is asked to prepare, and not sent: the ACK of one row of an atomic group.
        pending = world.controller._rollout_recovery_ledger._pending
        world.gym.requests.clear()
        asyncio.get_running_loop().call_later(0.1, pending.update, {key: ("agent-agent", receipt)})
        await world.controller.snapshot("snapshot")
        return world

    world = virtual(story())

    assert world.touched == []
    assert ("agent", "completion-receipt") not in world.gym.requests


async def refuse() -> None:
    """A request that an agent answers with an error."""
    raise GymError("broken", 500)


async def hang() -> None:
    """A request that is never answered."""
    await asyncio.get_running_loop().create_future()


def test_second_look_is_waited_for() -> None:
    """A reply is ACKed only when it has been seen un-ACKed before: nothing is touched at the first look."""

    async def story() -> tuple[float, World]:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        await give_up(world)
        began = asyncio.get_running_loop().time()
        await world.controller.snapshot("snapshot")
        return asyncio.get_running_loop().time() - began, world

    took, world = virtual(story())

    assert took == pytest.approx(0.6)
    assert len(world.touched) == 1


def test_unknown_reply_is_acknowledged_after_the_grace() -> None:
    """What left the ledger before the first snapshot is unknown, and left alone for half of a prepare."""

    async def story() -> tuple[list[float], World]:
        world = build()
        await world.controller.group("group", "agent", [first_try(FAILS), first_try(SLOW)])
        await asyncio.sleep(3.0)
        took = []
        for number in range(2):
            began = asyncio.get_running_loop().time()
            assert await world.controller.snapshot(f"snapshot {number}")
            took.append(asyncio.get_running_loop().time() - began)
        return took, world

    took, world = virtual(story())

    assert PREPARE_TIMEOUT_S / 2 <= took[0] < PREPARE_TIMEOUT_S
    assert took[1] < 0.1
    assert world.touched == [("group_g1", 0)]


def test_dropped_prompt_is_remembered() -> None:
    """A group that was dropped while snapshots are taken needs no grace: its attempts are remembered."""

    async def story() -> tuple[float, World]:
        world = build(tries=1)
        await world.controller.snapshot("the first one follows the ledger")
        await world.controller.group("group", "agent", [first_try(FAILS), first_try(SLOW)])
        await asyncio.sleep(3.0)
        began = asyncio.get_running_loop().time()
        assert await world.controller.snapshot("snapshot")
        return asyncio.get_running_loop().time() - began, world

    took, world = virtual(story())

    assert took < 1.0
    assert world.touched == [("group_g1", 0)]
    # What failed will never finish; it is forgotten when its turn comes.
    state = getattr(world.controller, stranded._STATE)
    assert list(state.memory) == [("group_g0", 0)]


def test_batch_that_is_refused_goes_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """One reply that Gym refuses to release costs that reply alone."""

    async def story() -> tuple[bool, World]:
        world = build(tries=1)
        await world.controller.snapshot("the first one follows the ledger")
        await world.controller.group("group", "agent", [first_try(FAILS), *[first_try(SLOW)] * 5])
        await asyncio.sleep(3.0)
        acknowledge = world.agent.acknowledge

        def picky(receipts: list[dict[str, Any]]) -> None:
            if any(one["rollout_id"] == "group_g3" for one in receipts):
                raise GymError("completed_execution_acknowledgement_error")
            acknowledge(receipts)

        world.agent.acknowledge = picky  # type: ignore[method-assign]
        return await world.controller.snapshot("snapshot"), world

    caplog.set_level(logging.INFO)
    saved, world = virtual(story())

    assert not saved
    assert world.agent.states("completed") == [("group_g3", 0)]
    assert len(world.touched) == 4
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "an ACK (5 in it) failed" in warnings[0]
    assert (
        "4 acknowledged (group_g1 attempt 0, group_g2 attempt 0, group_g4 attempt 0 and 1 more)"
        in caplog.text
    )


@pytest.mark.parametrize("route", ["status", "completion-receipt", "acknowledge-completed"])
def test_call_that_fails_is_tried_again(route: str, caplog: pytest.LogCaptureFixture) -> None:
    """Three failures of one route cost three looks, and are logged once."""

    async def story() -> tuple[bool, World]:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        await give_up(world)
        world.gym.faults[route] = [refuse] * 3
        return await world.controller.snapshot("snapshot"), world

    saved, world = virtual(story())

    assert saved
    assert len(world.touched) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_receipt_of_another_attempt_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """An agent that answers with another execution's receipt gets nothing ACKed by it."""

    async def story() -> World:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        key = await give_up(world)
        handle = world.agent.handle

        async def confused(method: str, route: str, fields: dict[str, Any]) -> Any:
            answer = await handle(method, route, fields)
            return {**answer, "attempt_index": key[1] + 1} if route == "completion-receipt" else answer

        world.gym._agents["agent"] = confused
        await world.controller.snapshot("snapshot")
        return world

    world = virtual(story())

    assert ("agent", "acknowledge-completed") not in world.gym.requests[-20:]
    assert world.touched == []
    assert "that of another execution" in caplog.text


def test_judged_again_before_the_ack() -> None:
    """What has become RL's own while the receipt was fetched is left to RL."""

    async def story() -> World:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        key = await give_up(world)
        pending, receipt = (
            world.controller._rollout_recovery_ledger._pending,
            world.agent.executions[key].receipt,
        )

        async def late() -> None:
            await asyncio.sleep(1.0)
            pending[key] = "agent-agent", receipt

        world.gym.faults["completion-receipt"] = [late]
        await world.controller.snapshot("snapshot")
        return world

    assert virtual(story()).touched == []


def test_redispatched_row_with_the_same_attempt_is_left_alone() -> None:
    """A finished reply that RL will ask for again under the same index is dispatched, and so not touched."""

    async def story() -> World:
        world = build()
        controller, ledger_ = world.controller, world.controller._rollout_recovery_ledger
        ledger_.reserve_group(None, "group", 1)
        ledger_.mark_group_dispatched(None, "group")
        await world.agent.run(("group_g0", 0), Work())
        assert not await controller.snapshot("one")
        assert not await controller.snapshot("two")
        # The stream had broken: RL dispatches the row again, and Gym gives the same reply out.
        receipt = await world.agent.run(("group_g0", 0), Work())
        ledger_.seal(None, ("group_g0", 0), "agent-agent", receipt)
        assert await controller.snapshot("three")
        return world

    world = virtual(story())

    assert world.touched == []
    assert world.controller._rollout_recovery_ledger.pending() == {}


@pytest.mark.parametrize("fault", [refuse, hang])
def test_broken_agent_holds_up_no_other(fault: Any) -> None:
    """Of two agents one fails or hangs at each look: the other's reply is ACKed at once all the same."""

    async def story() -> tuple[float, World]:
        world = build(agents=("broken", "agent"))
        await world.controller.snapshot("the first one follows the ledger")
        plans = [first_try(FAILS), first_try(SLOW)]
        await world.controller.group("group", "agent", plans)
        await asyncio.sleep(3.0)
        handle = world.agents["broken"].handle

        async def broken(method: str, route: str, fields: dict[str, Any]) -> Any:
            if route == "status":
                await fault()
            return await handle(method, route, fields)

        world.gym._agents["broken"] = broken
        began = asyncio.get_running_loop().time()
        assert await world.controller.snapshot("snapshot")
        return asyncio.get_running_loop().time() - began, world

    took, world = virtual(story())

    assert took == pytest.approx(0.6)
    assert world.touched == [("group_g1", 0)]


def test_several_gym_actors() -> None:
    """Version C: each Gym actor's agents are looked at, side by side, though their names are the same."""

    async def story() -> tuple[bool, list[World]]:
        worlds = [build(), build()]
        shards = {f"shard {n}": (world.controller._gym, [f"agent{n}"]) for n, world in enumerate(worlds)}
        controller = with_fix(ShardedController)(shards, asyncio.get_running_loop().time)
        for number, world in enumerate(worlds):
            world.controller = controller
            ledger_ = controller._rollout_recovery_ledger
            ledger_.reserve_group(None, f"group{number}", 1)
            ledger_.mark_group_dispatched(None, f"group{number}")
            await world.agent.run((f"group{number}_g0", 0), Work())
            ledger_.abandon_unsealed(None, f"group{number}")
        return await controller.snapshot("snapshot"), worlds

    saved, worlds = virtual(story())

    assert saved
    assert [world.touched for world in worlds] == [[("group0_g0", 0)], [("group1_g0", 0)]]


def test_nothing_is_looked_at_while_gym_writes() -> None:
    """Once an agent is prepared nothing can finish there, so a long commit is left in peace."""

    async def story() -> list[tuple[str, str]]:
        world = build()
        commit = world.gym.commit_checkpoint

        async def slow(*args: Any) -> Any:
            await asyncio.sleep(200.0)
            return await commit(*args)

        world.gym.commit_checkpoint = slow  # type: ignore[method-assign, assignment]
        assert await world.controller.snapshot("snapshot")
        return world.gym.requests

    requests = virtual(story())

    assert requests.count(("agent", "status")) <= 2


def test_parked_run_that_was_given_up_is_left_alone() -> None:
    """It is live, and so it is saved with its session: the snapshot can be restored."""

    async def story() -> tuple[bool, list[bool]]:
        world = build()
        saved = []
        # While the one is parked, the other has not come to a turn boundary yet: there is time for looks.
        parks, keeps_waiting = Work(turns=40, turn_s=0.3), Work(turns=9, turn_s=1.4)
        rows = [first_try(FAILS), first_try(parks), first_try(keeps_waiting)]
        await world.controller.group("group", "agent", rows)
        for name in ("one", "two"):
            saved.append(await world.controller.snapshot(name))
            assert world.agent.snapshots[name][0].keys() == {("group_g1", 0), ("group_g2", 0)}
        return all(saved), [world.agent.restorable(name) for name in world.agent.snapshots]

    saved, restorable = virtual(story())

    assert saved
    assert restorable == [True, True]


def test_hung_run_is_named_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    """A run that reaches no turn boundary is left alone; the log says what the snapshot waited for."""

    async def story() -> tuple[bool, list[Key], set[str]]:
        world = build()
        hung = Work(turns=1, turn_s=100.0)
        await world.controller.group("group", "agent", [first_try(FAILS), first_try(hung)])
        await asyncio.sleep(1.0)
        world.gym.requests.clear()
        saved = await world.controller.snapshot("snapshot")
        return saved, world.agent.states("running"), {route for _, route in world.gym.requests}

    caplog.set_level(logging.INFO)
    saved, running, routes = virtual(story())

    assert not saved
    assert running == [("group_g1", 0)]
    assert routes == {"prepare", "status", "resume"}
    assert "runs that had not come to a turn boundary: 1" in caplog.text


# ── what comes out ───────────────────────────────────────────────────────────────────────────────────────


class Silent:
    """A Gym actor whose calls are never answered, or are by what a test says; its calls are counted."""

    def __init__(self, answer: Callable[[], Awaitable[Any]] = hang) -> None:
        self.calls = 0
        self._answer = answer
        method = SimpleNamespace(remote=self._remote)
        self._control = self._checkpoint_participants = self.acknowledge_completed_executions = method

    def _remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        self.calls += 1
        return self._answer()


def bare(**attributes: Any) -> Any:
    """A controller of no class in particular, with a ledger and a Gym actor unless told otherwise."""
    actor = attributes.pop("actor", Silent())
    found = {"_rollout_recovery_ledger": RolloutRecoveryLedger(), "_nemo_gym_checkpoint_actor": lambda: actor}
    return SimpleNamespace(**{**found, **attributes})


class OddError(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    "error", [None, ValueError("v"), TimeoutError("t"), OddError("o"), asyncio.CancelledError("c")]
)
def test_outcome_is_the_originals(error: BaseException | None) -> None:
    """What the original returns or raises comes out as the same object; its arguments went in untouched."""
    result, given = object(), []

    async def original(*args: Any, **kwargs: Any) -> object:
        given.append((args, kwargs))
        await asyncio.sleep(1.0)
        if error is not None:
            raise error
        return result

    async def story() -> tuple[object, int]:
        controller = bare()
        outcome: object
        try:
            outcome = await stranded.prepare_and_commit(original, controller, checkpoint_id="id", more=1)
        except BaseException as raised:
            outcome = raised
        assert given == [((controller,), {"checkpoint_id": "id", "more": 1})]
        await asyncio.sleep(0.01)
        return outcome, len(asyncio.all_tasks())

    outcome, tasks = virtual(story())

    assert outcome is (result if error is None else error)
    assert tasks == 1


def test_cancelled_snapshot_is_cancelled_once() -> None:
    """A cancellation reaches the original, whose own clean-up is awaited; no watch outlives it."""
    events: list[str] = []

    async def original(controller: Any, *args: Any) -> None:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            await asyncio.sleep(5.0)
            events.append("cleaned up")
            raise

    async def story() -> int:
        task = asyncio.ensure_future(stranded.prepare_and_commit(original, bare(), "id"))
        await asyncio.sleep(1.0)
        task.cancel("by the pump")
        with pytest.raises(asyncio.CancelledError, match="by the pump"):
            await task
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert virtual(story()) == 1
    assert events == ["cleaned up"]


@pytest.mark.parametrize("steps", range(60))
def test_no_call_begins_after_the_end(steps: int) -> None:
    """The snapshot ends after any number of loop turns: nothing is called any more, and no task is left."""

    async def story() -> None:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        await give_up(world)
        await world.controller.snapshot("seen once")
        world.gym.faults["acknowledge-completed"] = [refuse] * 9
        actor = world.controller._gym

        async def original(controller: Any, *args: Any) -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        before = asyncio.all_tasks()
        await stranded.prepare_and_commit(original, world.controller, "id")
        calls, running = len(world.gym.requests), len(actor.tasks)
        # A call that was on its way goes on in Gym; ours are over within a few turns.
        for _ in range(4):
            await asyncio.sleep(0)
        ours = asyncio.all_tasks() - before - actor.tasks
        assert not ours
        assert len(world.gym.requests) <= calls + running

    virtual(story())


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"_rollout_recovery_ledger": None}, "its ledger has no _groups, its ledger has no discard_group"),
        ({"actor": object()}, "its Gym actor has no _control, its Gym actor has no _checkpoint_participants"),
        ({"_nemo_gym_checkpoint_actor": None}, "TypeError"),
        ({"_prepared_gym_checkpoint": None}, "through a coordinator"),
    ],
)
def test_stays_out(attributes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where something is missing the snapshot goes on without it, with one ERROR for the controller."""

    async def original(controller: Any, checkpoint_id: str) -> str:
        return checkpoint_id

    async def story() -> list[str]:
        controller = bare(**attributes)
        return [await stranded.prepare_and_commit(original, controller, name) for name in ("one", "two")]

    assert virtual(story()) == ["one", "two"]

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert reason in caplog.text


def test_stays_out_where_rl_retires_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A NeMo RL that retires what it gives up needs no help."""
    module = SimpleNamespace(GYM_AGENT_RETIRE_PATH="/retire")
    monkeypatch.setitem(sys.modules, "nemo_rl.environments.gym_checkpoint", module)
    actor = Silent()

    async def original(controller: Any, checkpoint_id: str) -> None:
        await asyncio.sleep(1.0)

    virtual(stranded.prepare_and_commit(original, bare(actor=actor), "id"))

    assert actor.calls == 0
    assert "retires what it gives up by itself" in caplog.text


def test_participants_are_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """A Gym actor that does not answer is asked every half second, and the failure is logged once."""
    actor = Silent(refuse)

    async def original(controller: Any, checkpoint_id: str) -> None:
        await asyncio.sleep(1.9)

    virtual(stranded.prepare_and_commit(original, bare(actor=actor), "id"))

    assert actor.calls == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_log_handler_that_raises_costs_nothing(request: pytest.FixtureRequest) -> None:
    """A log handler that raises keeps neither the snapshot from being saved nor a reply from being ACKed."""

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the disk is full")

    async def story() -> tuple[bool, World]:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        await give_up(world)
        world.gym.faults["status"] = [refuse]
        observing.logger.addHandler(full)
        return await world.controller.snapshot("snapshot"), world

    full = Full(logging.DEBUG)
    request.addfinalizer(lambda: observing.logger.removeHandler(full))
    saved, world = virtual(story())

    assert saved
    assert len(world.touched) == 1


# ── what operators see ───────────────────────────────────────────────────────────────────────────────────


def test_one_line_and_numbers_per_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    """One INFO line per snapshot, its numbers where the controller logs its snapshots, and totals."""

    async def story() -> World:
        world = build()
        await world.controller.snapshot("the first one follows the ledger")
        await give_up(world)
        world.gym.faults["status"] = [refuse]
        await world.controller.snapshot("snapshot")
        return world

    caplog.set_level(logging.INFO)
    world = virtual(story())

    lines = [one.message for one in caplog.records if one.message.startswith("Stranded replies in this")]
    assert lines == [
        "Stranded replies in this snapshot: 0 acknowledged; of these unknown to NeMo RL's ledger: 0; failed "
        "calls: 0",
        "Stranded replies in this snapshot: 1 acknowledged (group_g1 attempt 0); of these unknown to NeMo "
        "RL's ledger: 0; failed calls: 1",
    ]
    logged = [one for one in world.controller.telemetry if one[2] == "rollout/stranded"]
    assert logged == [
        ({"acknowledged": 0.0, "unknown": 0.0, "failed": 0.0}, 7, "rollout/stranded"),
        ({"acknowledged": 1.0, "unknown": 0.0, "failed": 1.0}, 7, "rollout/stranded"),
    ]
    totals = {name: number for name, number in nemo_rl_deadline_fix.metrics().items() if "stranded" in name}
    assert totals == {
        "rollout/stranded/acknowledged_total": 1.0,
        "rollout/stranded/unknown_total": 0.0,
        "rollout/stranded/failed_total": 1.0,
    }


def test_off_by_default() -> None:
    """Without the choice nothing of it is imported, and no metric speaks of it."""
    code = (
        "import sys, asyncio, nemo_rl_deadline_fix\n"
        "from tests.support import upstream_like as like\n"
        "from nemo_rl_deadline_fix.replay import clock\n"
        "async def story(): await like.snapshot(like.controller(), 'id')\n"
        "clock.run(story())\n"
        "assert 'nemo_rl_deadline_fix.stranded' not in sys.modules\n"
        "assert not any('stranded' in name for name in nemo_rl_deadline_fix.metrics())\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_off_and_out_of_time_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    """Without the choice, each snapshot whose prepare ran out of time says what it usually waited for."""

    async def story() -> list[bool]:
        world = build(acknowledge=False)
        await give_up(world)
        return [await world.controller.snapshot(name) for name in ("one", "two")]

    saved = virtual(story())

    assert saved == [False, False]
    warnings = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "completed_unacknowledged" in warnings[0]
    assert "install(acknowledge=True)" in warnings[0]


@pytest.mark.parametrize(
    ("error", "warned"),
    [
        (TimeoutError("late"), True),
        (RuntimeError("not ready: completed_unacknowledged=1"), True),
        (ExceptionGroup("of two shards", [ValueError(), TimeoutError()]), True),
        (ValueError("no such folder"), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_failed_snapshot_comes_out_as_it_is(
    error: BaseException, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is explained or not, what the snapshot raised is the same object."""

    async def story() -> BaseException:
        controller = upstream_like.controller({"prepare": [error]})
        try:
            await upstream_like.snapshot(controller, "id")
        except BaseException as raised:
            return raised
        raise AssertionError("the snapshot was saved")

    assert virtual(story()) is error

    assert any(one.levelname == "WARNING" for one in caplog.records) is warned
