"""The hold follows the gate: every way a snapshot can end, and everything that may overlap with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import gate, wrapping
from nemo_rl_deadline_fix.observing import clocks
from nemo_rl_deadline_fix.replay.rl import RequestDeadlineRegistry as UpstreamRegistry
from nemo_rl_deadline_fix.replay.rl import (
    RolloutManager,
    SingleControllerActor,
    _GymCheckpointReleasePendingError,
)
from nemo_rl_deadline_fix.targets import DEFAULT_HOLDER, GATE, HOLDER, MANAGER, REGISTRY, RELEASE, TELEMETRY
from tests.conftest import virtual
from tests.support import steps
from tests.support.steps import Rule1
from tests.support.upstream_like import BareDeadline, controller, never, rollout, snapshot


def registry_of(controller: Any) -> Any:
    """The registry behind a controller; it has `holders` as soon as it is taken over."""
    return getattr(getattr(controller, MANAGER), REGISTRY)


def gate_of(controller: Any) -> asyncio.Event:
    """A controller's gate of Gym snapshots."""
    gate = getattr(controller, GATE)
    assert isinstance(gate, asyncio.Event)
    return gate


def holders_of(controller: Any) -> list[str]:
    """Who holds a controller's clocks."""
    return list(getattr(registry_of(controller), "holders", ()))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged at ERROR."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def outcome_of(work: Awaitable[Any], cancel_at: float | None = None) -> BaseException | Any:
    """What comes out of a coroutine, exceptions included; cancelled at a time, where one is given."""
    task = asyncio.ensure_future(work)
    if cancel_at is not None:
        asyncio.get_running_loop().call_at(cancel_at, task.cancel, "from outside")
    try:
        return await task
    except BaseException as error:
        return error


# Rule 1, however a snapshot ends. Calls take 10 s each: flush 0-10, prepare 10-20, commit 20-30, then
# resume or abort 30-40. Each row: what goes wrong, when it is cancelled, what comes out, and whether that
# leaves the gate open and a release pending.
Row = tuple[dict[str, list[Any]], float | None, type[Any], bool, bool]
ROWS: dict[str, Row] = {
    "released": ({}, None, tuple, True, False),
    "flush raises": ({"flush": [OSError("flush")]}, None, OSError, True, False),
    "flush is cancelled": ({}, 5, asyncio.CancelledError, True, False),
    "prepare raises": ({"prepare": [TimeoutError("prepare")]}, None, TimeoutError, True, False),
    "prepare is cancelled": ({}, 15, asyncio.CancelledError, True, False),
    "prepare hangs, then is cancelled": ({"prepare": ["hang"]}, 500, asyncio.CancelledError, True, False),
    "prepare returns not ready": ({"prepare": ["not ready"]}, None, RuntimeError, True, False),
    "commit raises, abort succeeds": ({"commit": [OSError("commit")]}, None, OSError, True, False),
    "commit is cancelled, abort succeeds": ({}, 25, asyncio.CancelledError, True, False),
    "commit raises, abort raises": (
        {"commit": [OSError("commit")], "abort": [OSError("abort")]},
        None,
        BaseExceptionGroup,
        False,
        False,
    ),
    "commit raises, abort is cancelled": (
        {"commit": [OSError("commit")]},
        35,
        BaseExceptionGroup,
        False,
        False,
    ),
    "commit raises, abort hangs, then is cancelled": (
        {"commit": [RuntimeError("commit")], "abort": ["hang"]},
        500,
        BaseExceptionGroup,
        False,
        False,
    ),
    "release raises": ({"resume": [OSError("resume")]}, None, _GymCheckpointReleasePendingError, False, True),
    "release is cancelled": ({}, 35, asyncio.CancelledError, False, True),
}


@pytest.mark.parametrize("row", ROWS)
def test_hold_follows_the_gate_however_a_snapshot_ends(row: str) -> None:
    """Held exactly while closed after every step; the budget counts open seconds; the next one succeeds."""
    plan, cancel_at, kind, gate_open, pending = ROWS[row]

    async def story() -> None:
        built = controller(plan)
        rule = Rule1(built)
        task = asyncio.create_task(rollout(registry_of(built), 30_000, never()))

        outcome = await outcome_of(snapshot(built, "first"), cancel_at)

        assert isinstance(outcome, kind), outcome
        assert gate_of(built).is_set() is gate_open
        assert (built._pending_gym_checkpoint_release is not None) is pending
        assert holders_of(built) == ([] if gate_open else [HOLDER])
        await asyncio.sleep(10_000)
        # A new id, or first the pending one; nothing is left over from the failure.
        await snapshot(built, "second")
        assert holders_of(built) == []
        assert built._pending_gym_checkpoint_release is None
        result, at = await task
        assert (result, at) == ("timeout", pytest.approx(30_000 + rule.closed_s, abs=1e-3))
        assert clocks()[0].paused_seconds == pytest.approx(rule.closed_s)
        assert rule.broken == []
        assert rule.seen == {True, False}

    steps.run(story())


@pytest.mark.parametrize("row", ROWS)
def test_what_comes_out_is_what_comes_out_without_the_fix(row: str) -> None:
    """Kind, text and members of the outcome, Gym's calls and the time are those of the unwrapped methods."""
    plan, cancel_at, *_ = ROWS[row]

    async def story(patched: bool) -> tuple[Any, ...]:
        built = controller(plan, patched=patched)
        outcome = await outcome_of(snapshot(built, "first"), cancel_at)
        parts = [repr(part) for part in getattr(outcome, "exceptions", ())]
        if isinstance(outcome, tuple):
            outcome = [repr(part) for part in outcome]
        return type(outcome), str(outcome), parts, built._gym.calls, asyncio.get_running_loop().time()

    assert virtual(story(True)) == virtual(story(False))


@pytest.mark.parametrize(
    "outcome", [object(), ValueError("own"), asyncio.CancelledError("own"), SystemExit(3)]
)
def test_wrapper_passes_arguments_result_and_exception_through(outcome: object) -> None:
    """What the original gets and gives is untouched, to the object, cancellation included."""
    seen = []

    async def original(*args: Any, **kwargs: Any) -> object:
        seen.append((args, kwargs))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def story() -> object:
        built = controller()
        result: object
        try:
            result = await gate.prepare_and_commit(original, built, "id", committed=True)
        except BaseException as error:
            result = error
        assert seen == [((built, "id"), {"committed": True})]
        assert holders_of(built) == []
        return result

    assert virtual(story()) is outcome


def test_cancelled_before_it_starts_holds_nothing() -> None:
    """A snapshot that is cancelled before its first step closes and holds nothing."""

    async def story() -> None:
        built = controller()
        task = asyncio.create_task(snapshot(built, "first"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate_of(built).is_set()
        assert not registry_of(built).suspended

    virtual(story())


def test_clocks_stop_before_the_first_await() -> None:
    """The first step of the wrapped method has stopped the clocks when it first waits."""

    async def story() -> None:
        built = controller()
        call = built._prepare_and_commit_gym_checkpoint("first", "a directory")
        call.send(None)
        assert holders_of(built) == [HOLDER]
        call.close()
        assert holders_of(built) == []

    virtual(story())


def test_long_publish_stays_held() -> None:
    """Between commit and release, during the publishing, the gate is closed and clocks stand still."""

    async def story() -> None:
        built = controller()
        rule = Rule1(built)
        task = asyncio.create_task(rollout(registry_of(built), 180, never()))

        async def publish() -> None:
            await asyncio.sleep(5000)
            assert holders_of(built) == [HOLDER]
            assert not task.done()

        await snapshot(built, "first", publish)
        assert await task == ("timeout", pytest.approx(180 + 5040))
        assert rule.broken == []

    steps.run(story())


def test_release_that_is_retried_stays_held_until_it_succeeds() -> None:
    """A pending release keeps the clocks stopped through two retries of the same id, as one hold."""

    async def story() -> None:
        built = controller({"resume": [OSError("1"), OSError("2"), OSError("3")]})
        rule = Rule1(built)
        task = asyncio.create_task(rollout(registry_of(built), 5, never()))
        for attempt in range(3):
            outcome = await outcome_of(snapshot(built, f"id {attempt}"))
            assert isinstance(outcome, _GymCheckpointReleasePendingError)
            assert holders_of(built) == [HOLDER]
            await asyncio.sleep(100)
            assert not task.done()
        await built._release_committed_gym_checkpoint(built._pending_gym_checkpoint_release)
        released_at = asyncio.get_running_loop().time()
        assert holders_of(built) == []
        resumed = [checkpoint_id for call, checkpoint_id in built._gym.calls if call == "resume"]
        assert resumed == ["id 0"] * 4
        assert await task == ("timeout", pytest.approx(released_at + 5))
        assert clocks()[0].snapshots == 1
        assert rule.broken == []

    steps.run(story())


def test_new_id_after_a_failed_abort_releases_and_leaves_nothing_over() -> None:
    """Closed again by a new snapshot, the hold is the same one, and one success ends it."""

    async def story() -> None:
        failures = [OSError("1"), OSError("2")]
        built = controller({"commit": [*failures], "abort": [*failures]})
        rule = Rule1(built)
        for attempt in range(2):
            await outcome_of(snapshot(built, f"id {attempt}"))
            assert holders_of(built) == [HOLDER]
        await snapshot(built, "id 2")
        assert holders_of(built) == []
        assert clocks()[0].snapshots == 1
        assert rule.broken == []

    steps.run(story())


@pytest.mark.parametrize("ends", ["prepare", "commit", "abort", "resume"])
def test_reply_during_a_snapshot_is_read_at_once(ends: str) -> None:
    """Rule 5, only clocks stop: a rollout that finishes while held gives its reply there and then."""
    at = {"prepare": 15, "commit": 25, "abort": 35, "resume": 35}[ends]
    plan: dict[str, list[Any]] = {"commit": [OSError("commit")]} if ends == "abort" else {}

    async def story() -> tuple[Any, float]:
        built = controller(plan)
        task = asyncio.create_task(rollout(registry_of(built), 5, asyncio.sleep(at, "reply")))
        await asyncio.sleep(0)
        await outcome_of(snapshot(built, "first"))
        return await task

    assert virtual(story()) == ("reply", at)


# Rule 1, whoever changes the gate, and from wherever. Each of these closes it and reopens it in another way
# than upstream does; the shapes that the end of a wrapped method would not see.


def reopen_from_outside(controller: Any) -> None:
    """A function outside of the class that reopens its gate."""
    getattr(controller, GATE).set()


class _ByCallSoon(SingleControllerActor):
    def _reopen(self) -> None:
        asyncio.get_running_loop().call_soon(self._gym_checkpoint_rollout_permitted.set)

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        await self._gym.resume_checkpoint.remote(checkpoint_id, 0.0)
        self._reopen()


class _ByATaskThatNobodyAwaits(_ByCallSoon):
    def _reopen(self) -> None:
        async def reopen() -> None:
            await asyncio.sleep(3)
            self._gym_checkpoint_rollout_permitted.set()

        self._task = asyncio.ensure_future(reopen())


class _ByADoneCallback(_ByCallSoon):
    def _reopen(self) -> None:
        self._task = asyncio.ensure_future(asyncio.sleep(3))
        self._task.add_done_callback(lambda _: self._gym_checkpoint_rollout_permitted.set())


class _BehindAProperty(_ByCallSoon):
    @property
    def _admission(self) -> Callable[[], None]:
        return self._gym_checkpoint_rollout_permitted.set

    def _reopen(self) -> None:
        self._admission()


class _OutsideOfTheClass(_ByCallSoon):
    def _reopen(self) -> None:
        reopen_from_outside(self)


class _ByACallbackMadeInInit(_ByCallSoon):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Made before the fix could hang on anything, and it looks the gate up when it is called.
        self._callback = lambda: self._gym_checkpoint_rollout_permitted.set()

    def _reopen(self) -> None:
        asyncio.get_running_loop().call_later(2, self._callback)


class _ByATimer(_ByCallSoon):
    def _reopen(self) -> None:
        asyncio.get_running_loop().call_later(4, reopen_from_outside, self)


class _AwaitsAfterReopening(_ByCallSoon):
    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        await super()._release_prepared_gym_checkpoint(checkpoint_id, committed=committed)
        self._gym_checkpoint_rollout_permitted.set()
        await asyncio.sleep(7)


class _AwaitsBeforeClosing(SingleControllerActor):
    async def _prepare_and_commit_gym_checkpoint(
        self, checkpoint_id: str, checkpoint_dir: Any
    ) -> tuple[Any, Any]:
        await asyncio.sleep(7)
        return await SingleControllerActor._prepare_and_commit_gym_checkpoint(
            self, checkpoint_id, checkpoint_dir
        )


class _ClosesInATask(SingleControllerActor):
    async def _prepare_and_commit_gym_checkpoint(
        self, checkpoint_id: str, checkpoint_dir: Any
    ) -> tuple[Any, Any]:
        async def close() -> None:
            self._gym_checkpoint_rollout_permitted.clear()

        await asyncio.gather(close(), asyncio.sleep(2))
        return await SingleControllerActor._prepare_and_commit_gym_checkpoint(
            self, checkpoint_id, checkpoint_dir
        )


class _ByAPartialMethod(SingleControllerActor):
    async def _end(self, checkpoint_id: str, *, committed: bool, how: str) -> None:
        await getattr(self._gym, how).remote(checkpoint_id, 0.0)
        self._gym_checkpoint_rollout_permitted.set()

    _release_prepared_gym_checkpoint: Any = partialmethod(_end, how="resume_checkpoint")


OTHER_WAYS = (
    _ByCallSoon,
    _ByATaskThatNobodyAwaits,
    _ByADoneCallback,
    _BehindAProperty,
    _OutsideOfTheClass,
    _ByACallbackMadeInInit,
    _ByATimer,
    _AwaitsAfterReopening,
    _AwaitsBeforeClosing,
    _ClosesInATask,
    _ByAPartialMethod,
)


async def two_snapshots(built: Any) -> Rule1:
    """Two snapshots of a controller, with a rollout that outlasts them, and time for whoever reopens late."""
    rule = Rule1(built)
    began = asyncio.get_running_loop().time()
    task = asyncio.create_task(rollout(registry_of(built), 1000, never()))
    for number in range(2):
        await snapshot(built, f"id {number}")
        await asyncio.sleep(20)
    assert await task == ("timeout", pytest.approx(began + 1000 + rule.closed_s, abs=1e-3))
    assert gate_of(built).is_set()
    assert holders_of(built) == []
    return rule


@pytest.mark.parametrize("kind", OTHER_WAYS, ids=lambda kind: kind.__name__.strip("_"))
def test_hold_follows_the_gate_whoever_changes_it(kind: type[SingleControllerActor]) -> None:
    """After every step the snapshot holds if and only if the gate is closed, whoever closes or reopens it."""

    async def story() -> Rule1:
        return await two_snapshots(controller(kind=kind))

    rule = steps.run(story())
    assert rule.broken == []
    assert rule.seen == {True, False}
    assert len(rule.changes) == 4


def test_a_subclass_that_never_calls_super_is_followed() -> None:
    """A class derived from the patched one may replace the release as it likes."""

    async def story() -> Rule1:
        built = controller()

        class Derived(type(built)):  # type: ignore[misc]
            async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
                await asyncio.sleep(5)
                self._gym_checkpoint_rollout_permitted.set()

        built.__class__ = Derived
        return await two_snapshots(built)

    assert steps.run(story()).broken == []


def test_a_mocked_release_is_followed(mocker: MockerFixture) -> None:
    """A release that a test or a tool has put a mock in place of reopens the gate all the same."""

    async def story() -> Rule1:
        built = controller()
        mock = mocker.AsyncMock(side_effect=lambda *_, **__: gate_of(built).set())
        setattr(built, RELEASE, mock)
        return await two_snapshots(built)

    assert steps.run(story()).broken == []


def test_a_gate_that_closed_before_the_fix_came_holds_at_once() -> None:
    """The first call of the wrapper finds the gate closed, and a rollout's clock stands from then on."""

    async def story() -> None:
        built = controller(kind=_AwaitsBeforeClosing)
        rule = Rule1(built)
        gate_of(built).clear()
        task = asyncio.create_task(rollout(registry_of(built), 100, never()))
        await asyncio.sleep(30)

        call = asyncio.create_task(snapshot(built, "first"))
        await asyncio.sleep(0)
        assert holders_of(built) == [HOLDER]
        await call

        assert await task == ("timeout", pytest.approx(147))
        assert rule.broken == []

    steps.run(story())


def test_a_gate_that_is_replaced_between_snapshots_is_followed() -> None:
    """The next call of the wrapper finds the new gate; what the old one does counts no longer."""

    async def story() -> None:
        built = controller()
        rule = Rule1(built)
        await snapshot(built, "first")
        old = gate_of(built)
        new = asyncio.Event()
        new.set()
        setattr(built, GATE, new)
        await asyncio.sleep(1)
        await snapshot(built, "second")
        await asyncio.sleep(1)
        old.clear()
        assert holders_of(built) == []
        assert rule.broken == []
        assert len(rule.changes) == 4

    steps.run(story())


def test_a_gate_that_is_replaced_while_it_is_closed_lets_its_hold_go() -> None:
    """A closed gate that is put away holds until the wrapper looks again, and not for ever."""

    async def story() -> None:
        built = controller({"resume": [OSError("resume")]})
        await outcome_of(snapshot(built, "first"))
        assert holders_of(built) == [HOLDER]
        new = asyncio.Event()
        new.set()
        setattr(built, GATE, new)
        built._pending_gym_checkpoint_release = None

        await snapshot(built, "second")

        assert holders_of(built) == []
        assert registry_of(built).suspended is False

    virtual(story())


def test_a_gate_that_is_replaced_within_a_snapshot_is_followed_when_the_call_ends() -> None:
    """The belt: the end of the wrapped call looks once more at what is there."""

    class Replaces(SingleControllerActor):
        async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
            self._gym_checkpoint_rollout_permitted.clear()
            await asyncio.sleep(1)
            self._gym_checkpoint_rollout_permitted = asyncio.Event()
            await asyncio.sleep(1)

    async def story() -> None:
        built = controller(kind=Replaces)
        await built._prepare_and_commit_gym_checkpoint("first", "a directory")
        assert holders_of(built) == [HOLDER]
        gate_of(built).set()
        assert holders_of(built) == []

    virtual(story())


def test_a_registry_that_is_replaced_is_followed_and_the_old_one_released() -> None:
    """Rollouts of the old registry run on, and those of the new one stand still."""

    async def story() -> None:
        built = controller({"resume": [OSError("resume")]})
        old = registry_of(built)
        await outcome_of(snapshot(built, "first"))
        assert list(old.holders) == [HOLDER]
        new = UpstreamRegistry()
        setattr(getattr(built, MANAGER), REGISTRY, new)
        built._pending_gym_checkpoint_release = None

        call = asyncio.create_task(snapshot(built, "second"))
        await asyncio.sleep(1)

        assert (list(old.holders), old.suspended) == ([], False)
        assert holders_of(built) == [HOLDER]
        await call
        assert holders_of(built) == []

    virtual(story())


def test_calls_that_somebody_took_off_the_gate_are_put_on_again() -> None:
    """Where the gate has its own methods back, the next snapshot is held as the first one was."""

    async def story() -> None:
        built = controller()
        await snapshot(built, "first")
        for name in ("set", "clear"):
            delattr(gate_of(built), name)
        rule = await two_snapshots(built)
        assert rule.broken == []
        assert rule.seen == {True, False}

    steps.run(story())


def test_a_wrapper_on_the_gates_own_call_is_kept() -> None:
    """Somebody may watch the gate by wrapping its methods, before the fix or after."""
    calls: list[str] = []

    def watched(gate: asyncio.Event) -> None:
        for name in ("set", "clear"):
            setattr(gate, name, partial(watch, name, getattr(gate, name)))

    def watch(name: str, call: Callable[[], None]) -> None:
        calls.append(name)
        call()

    async def story() -> Rule1:
        built = controller()
        watched(gate_of(built))
        await snapshot(built, "first")
        watched(gate_of(built))
        return await two_snapshots(built)

    assert steps.run(story()).broken == []
    assert calls[:3] == ["clear", "set", "clear"]


def test_the_hold_is_there_before_the_gate_closes_and_until_it_is_open() -> None:
    """Whoever looks in the middle of the gate's own `clear` or `set` sees stopped clocks."""
    seen: list[tuple[str, bool]] = []

    def looked_at(name: str, call: Callable[[], None], built: Any) -> None:
        seen.append((f"before {name}", registry_of(built).suspended))
        call()
        seen.append((f"after {name}", registry_of(built).suspended))

    async def story() -> None:
        built = controller()
        gate = gate_of(built)
        for name in ("set", "clear"):
            setattr(gate, name, partial(looked_at, name, getattr(gate, name), built))
        await snapshot(built, "first")

    virtual(story())

    assert seen == [("before clear", True), ("after clear", True), ("before set", True), ("after set", True)]


def test_one_who_waits_at_the_gate_is_woken() -> None:
    """The gate stays the same object, so that a rollout that waits at it is let in when it reopens."""

    async def story() -> float:
        built = controller({"prepare": [OSError("prepare")]})
        gate_of(built).clear()
        waiter = asyncio.create_task(gate_of(built).wait())
        await asyncio.sleep(0)
        await outcome_of(snapshot(built, "first"))
        await waiter
        return asyncio.get_running_loop().time()

    assert virtual(story()) == 20


# What overlaps. The snapshot lasts from 10 to 50.
BEFORE, DURING, AFTER = (2.0, 6.0), (20.0, 35.0), (60.0, 70.0)
PAUSES = {
    "before": BEFORE,
    "before to during": (BEFORE[0], DURING[1]),
    "before to after": (BEFORE[0], AFTER[1]),
    "during": DURING,
    "during to after": (DURING[0], AFTER[1]),
    "after": AFTER,
    "from the close": (10.0, DURING[1]),
    "to the open": (DURING[0], 50.0),
}


async def overlapping(start: float | None, end: float, budget: float) -> tuple[Any, list[float]]:
    """A snapshot with a training pause in its way, sampled every half second."""
    loop = asyncio.get_running_loop()
    built = controller()
    rule = Rule1(built)
    manager = getattr(built, MANAGER)
    task = asyncio.create_task(rollout(registry_of(built), budget, never()))
    if start is not None:
        loop.call_at(start, manager.suspend_request_deadlines)
    loop.call_at(end, manager.resume_request_deadlines)
    tasks: list[asyncio.Task[Any]] = []
    loop.call_at(10, lambda: tasks.append(asyncio.create_task(snapshot(built, "first"))))
    wrong = []
    await asyncio.sleep(0.25)
    while loop.time() < 80:
        held = {HOLDER} if 10 < loop.time() < 50 else set()
        if start is not None and start < loop.time() < end:
            held.add(DEFAULT_HOLDER)
        if registry_of(built).suspended is not bool(held):
            wrong.append(loop.time())
        # Before the first snapshot it is still upstream's own, without names.
        if loop.time() > 10 and {*holders_of(built)} != held:
            wrong.append(loop.time())
        await asyncio.sleep(0.5)
    await asyncio.gather(*tasks)
    assert rule.broken == []
    return await task, wrong


@pytest.mark.parametrize("pause", PAUSES)
def test_training_pause_and_snapshot_free_only_their_own_hold(pause: str) -> None:
    """Wherever training pauses, each second in which anyone holds costs the budget nothing."""
    start, end = PAUSES[pause]
    both = (max(0, min(end, 50) - max(start, 10))) if start < 50 and end > 10 else 0
    held = (end - start) + 40 - both
    (result, at), wrong = steps.run(overlapping(start, end, 40))
    assert (result, at) == ("timeout", pytest.approx(40 + held, abs=1e-3))
    assert wrong == []


def test_weight_sync_that_ends_in_mid_snapshot_frees_nothing() -> None:
    """Its argument-free resume, without ever a suspend, leaves the snapshot's hold alone."""
    (result, at), wrong = steps.run(overlapping(None, 25, 12))
    assert (result, at) == ("timeout", pytest.approx(52, abs=1e-3))
    assert wrong == []


def test_failed_sync_that_never_resumes_is_not_freed_by_a_snapshot() -> None:
    """Training's hold outlasts the snapshot: only its own resume ends it."""

    async def story() -> None:
        built = controller()
        getattr(built, MANAGER).suspend_request_deadlines()
        await snapshot(built, "first")
        assert holders_of(built) == [DEFAULT_HOLDER]
        getattr(built, MANAGER).resume_request_deadlines()
        assert not registry_of(built).suspended

    virtual(story())


def test_without_the_fix_the_rollout_times_out_while_parked() -> None:
    """The defect: the same snapshot without the fix lets the budget end in its middle."""

    async def story() -> tuple[Any, float]:
        built = controller(patched=False)
        task = asyncio.create_task(rollout(registry_of(built), 12, never()))
        await snapshot(built, "first")
        return await task

    assert virtual(story()) == ("timeout", 12)


# Whatever of ours fails stops no snapshot, keeps or loses no hold, and replaces no outcome.


class Furious(logging.Handler):
    """A log handler that raises, and not only where logging would catch it."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Raise, whatever comes."""
        raise OSError("no space left on device")


@pytest.fixture
def furious(request: pytest.FixtureRequest) -> Any:
    """Every line that the package logs raises."""
    log, handler = logging.getLogger("nemo_rl.deadline_fix"), Furious()
    before = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    yield
    log.removeHandler(handler)
    log.setLevel(before)


@pytest.mark.usefixtures("furious")
@pytest.mark.parametrize("row", ["released", "commit raises, abort raises", "release raises"])
def test_a_log_handler_that_raises_changes_nothing(row: str) -> None:
    """The snapshot, its outcome and the hold are the same with a log that cannot be written."""
    test_hold_follows_the_gate_however_a_snapshot_ends(row)


@pytest.mark.usefixtures("furious")
def test_a_log_handler_that_raises_does_not_stop_training(mocker: MockerFixture) -> None:
    """Training's own pause, a deadline that fails and the warning of a long hold survive it as well."""

    async def story() -> None:
        built = controller()
        setattr(built, TELEMETRY, mocker.Mock(side_effect=OSError("telemetry")))
        await snapshot(built, "first")
        registry_of(built).add(BareDeadline(failing=("suspend", "resume")))
        getattr(built, MANAGER).suspend_request_deadlines()
        await asyncio.sleep(2000)
        getattr(built, MANAGER).resume_request_deadlines()
        assert not registry_of(built).suspended

    virtual(story())


@pytest.mark.parametrize("failing", ["suspend", "resume"])
def test_deadline_that_does_not_follow_breaks_no_snapshot(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot goes its way, all other deadlines follow, and the log has the deadline's own error."""

    async def story() -> None:
        built = controller()
        rule = Rule1(built)
        bad, good = BareDeadline(failing=(failing,)), BareDeadline()
        registry_of(built)._live |= {bad, good}
        await snapshot(built, "first")
        assert not registry_of(built).suspended
        assert good.told == ["suspend", "resume"]
        assert rule.broken == []

    steps.run(story())
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == f"cannot {failing}"


def test_a_gate_that_raises_leaves_the_hold_as_the_gate_is() -> None:
    """An error of the gate's own comes out as it is, and what holds then is what the gate says."""

    class Stubborn(asyncio.Event):
        def clear(self) -> None:
            raise OSError("cannot close")

    async def story() -> None:
        built = controller()
        gate = Stubborn()
        gate.set()
        setattr(built, GATE, gate)
        outcome = await outcome_of(snapshot(built, "first"))
        assert isinstance(outcome, OSError)
        assert holders_of(built) == []

    virtual(story())


# What is missing.


def stand_in(**attributes: Any) -> SimpleNamespace:
    """A controller of another shape."""
    whole: dict[str, Any] = {
        GATE: asyncio.Event(),
        MANAGER: SimpleNamespace(**{REGISTRY: UpstreamRegistry()}),
    }
    kept = {name: value for name, value in {**whole, **attributes}.items() if value is not ...}
    return SimpleNamespace(**kept)


class Slotted:
    __slots__ = ()


class SlottedGate:
    __slots__ = ()

    def is_set(self) -> bool:
        return True

    def clear(self) -> None: ...
    def set(self) -> None: ...


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: stand_in(**{GATE: ...}), GATE),
        (lambda: stand_in(**{GATE: True}), GATE),
        (lambda: stand_in(**{GATE: SlottedGate()}), "__dict__"),
        (lambda: stand_in(**{MANAGER: ...}), f"{MANAGER}.{REGISTRY}"),
        (lambda: stand_in(**{MANAGER: SimpleNamespace()}), f"{MANAGER}.{REGISTRY}"),
        (lambda: stand_in(**{MANAGER: SimpleNamespace(**{REGISTRY: None})}), f"{MANAGER}.{REGISTRY}"),
        (lambda: stand_in(**{MANAGER: SimpleNamespace(**{REGISTRY: object()})}), "no set _live"),
    ],
)
def test_missing_part_passes_through_with_one_error(
    build: Callable[[], Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without what it needs, the wrapper only calls the original, and says once why clocks run on."""

    async def original(self: Any, *args: Any) -> Any:
        return args

    async def failing(self: Any) -> None:
        raise OSError("own")

    async def story() -> None:
        built = build()
        for _ in range(3):
            assert await gate.prepare_and_commit(original, built, 1, 2) == (1, 2)
            with pytest.raises(OSError, match="own"):
                await gate.prepare_and_commit(failing, built)

    virtual(story())
    (line,) = errors(caplog)
    assert "NOT paused" in line
    assert said in line


def test_controller_that_takes_no_attributes_passes_through(caplog: pytest.LogCaptureFixture) -> None:
    """Where the wrapper cannot keep what it follows, it says so, and breaks nothing."""

    async def original(self: Any) -> str:
        return "result"

    assert virtual(gate.prepare_and_commit(original, Slotted())) == "result"
    assert "NOT paused" in errors(caplog)[0]


def test_a_registry_that_is_lost_keeps_no_hold(caplog: pytest.LogCaptureFixture) -> None:
    """Where the manager goes while the gate is closed, its rollouts run again, and an ERROR says so."""

    async def story() -> None:
        built = controller({"resume": [OSError("resume")]})
        old = registry_of(built)
        await outcome_of(snapshot(built, "first"))
        built._pending_gym_checkpoint_release = None
        setattr(built, MANAGER, SimpleNamespace())
        await snapshot(built, "second")
        assert not old.suspended
        setattr(built, MANAGER, RolloutManager())
        await asyncio.sleep(1)
        call = asyncio.create_task(snapshot(built, "third"))
        await asyncio.sleep(1)
        assert holders_of(built) == [HOLDER]
        await call
        assert holders_of(built) == []

    virtual(story())
    (line,) = errors(caplog)
    assert REGISTRY in line


def test_a_class_that_was_wrapped_twice_is_held_once() -> None:
    """Two wrappers on one class share what they follow."""

    async def story() -> Rule1:
        built = controller()
        kind = type(built)
        kind._prepare_and_commit_gym_checkpoint = wrapping._wrap(
            kind._prepare_and_commit_gym_checkpoint, wrapping._Fix(acknowledge=False)
        )
        rule = await two_snapshots(built)
        assert clocks()[0].snapshots == 2
        return rule

    assert steps.run(story()).broken == []


def test_the_actor_says_once_that_its_clocks_follow_the_gate(caplog: pytest.LogCaptureFixture) -> None:
    """One INFO line of the fix's version, when it is attached, and none at the next snapshot."""

    async def story() -> None:
        built = controller()
        for number in range(2):
            await snapshot(built, f"id {number}")

    with caplog.at_level(logging.INFO, "nemo_rl.deadline_fix"):
        virtual(story())
    (line,) = [text for text in caplog.messages if text.startswith("deadline fix ")]
    assert line.endswith("rollout clocks follow its gate")
