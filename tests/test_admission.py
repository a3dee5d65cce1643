"""The hold follows the gate: every way a snapshot can end, and everything that may overlap with it."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_rl_deadline_fix import gate
from nemo_rl_deadline_fix.registry import DEFAULT_HOLDER, RequestDeadlineRegistry
from nemo_rl_deadline_fix.replay.rl import RequestDeadlineRegistry as UpstreamRegistry
from nemo_rl_deadline_fix.replay.rl import _GymCheckpointReleasePendingError
from nemo_rl_deadline_fix.targets import GATE, HOLDER, MANAGER, REGISTRY
from tests.conftest import virtual
from tests.support.upstream_like import BareDeadline, controller, never, rollout, snapshot


def registry_of(controller: Any) -> RequestDeadlineRegistry:
    """The registry behind a controller."""
    return getattr(getattr(controller, MANAGER), REGISTRY)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged at ERROR."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


class WatchedGate(asyncio.Event):
    """A gate that notes where the hold does not turn in the step in which the gate does."""

    def __init__(self, controller: Any) -> None:
        super().__init__()
        super().set()
        self.controller = controller
        self.violations: list[str] = []
        self.closed_s = 0.0
        self.closed_at: float | None = None

    def clear(self) -> None:
        super().clear()
        now = asyncio.get_running_loop().time()
        if self.closed_at is None:
            self.closed_at = now
        self.check("closed", now)
        asyncio.get_running_loop().call_soon(self.check, "just closed", now)

    def set(self) -> None:
        super().set()
        now = asyncio.get_running_loop().time()
        if self.closed_at is not None:
            self.closed_s += now - self.closed_at
            self.closed_at = None
        asyncio.get_running_loop().call_soon(self.check, "just opened", now)

    def check(self, when: str, at: float) -> None:
        held = HOLDER in getattr(registry_of(self.controller), "holders", ())
        if held is self.is_set():
            self.violations.append(f"{when} at {at}: held={held}")


def watched(plan: dict[str, list[Any]] | None = None) -> tuple[Any, WatchedGate]:
    """A controller with the fix, and its gate under watch."""
    built = controller(plan)
    gate = WatchedGate(built)
    setattr(built, GATE, gate)
    return built, gate


async def outcome_of(work: Any, cancel_at: float | None) -> BaseException | Any:
    """What comes out of a coroutine, exceptions included; cancelled at a time, where one is given."""
    task = asyncio.ensure_future(work)
    if cancel_at is not None:
        asyncio.get_running_loop().call_at(cancel_at, task.cancel, "from outside")
    try:
        return await task
    except BaseException as error:
        return error


# Calls take 10 s each: flush 0-10, prepare 10-20, commit 20-30, then resume or abort 30-40.
ROWS = {
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
def test_hold_follows_the_gate_however_a_snapshot_ends(row):
    """Held exactly while closed, whatever the end; the budget counts open seconds; the next one succeeds."""
    plan, cancel_at, kind, gate_open, pending = ROWS[row]

    async def story():
        built, gate = watched(plan)
        registry = registry_of(built)
        task = asyncio.create_task(rollout(registry, 30_000, never()))
        outcome = await outcome_of(snapshot(built, "first"), cancel_at)
        assert isinstance(outcome, kind), outcome
        assert gate.is_set() is gate_open
        assert (built._pending_gym_checkpoint_release is not None) is pending
        assert list(registry.holders) == ([] if gate_open else [HOLDER])
        await asyncio.sleep(10_000)
        assert registry.suspended is not gate_open
        # A new id, or first the pending one; nothing is left over from the failure.
        await snapshot(built, "second")
        assert gate.is_set()
        assert not registry.holders
        assert built._pending_gym_checkpoint_release is None
        result, at = await task
        assert result == "timeout"
        assert at == pytest.approx(30_000 + gate.closed_s, abs=1e-3)
        assert registry.stats[HOLDER].seconds == pytest.approx(gate.closed_s)
        assert registry._warning is None
        return gate.violations

    assert virtual(story()) == []


@pytest.mark.parametrize("row", ROWS)
def test_what_comes_out_is_what_comes_out_without_the_fix(row):
    """Kind, text and members of the outcome, Gym's calls and the time are those of the unwrapped methods."""
    plan, cancel_at, *_ = ROWS[row]

    async def story(patched):
        built = controller(plan, patched=patched)
        outcome = await outcome_of(snapshot(built, "first"), cancel_at)
        parts = [repr(part) for part in getattr(outcome, "exceptions", ())]
        if isinstance(outcome, tuple):
            outcome = [repr(part) for part in outcome]
        return type(outcome), str(outcome), parts, built._gym.calls, asyncio.get_running_loop().time()

    assert virtual(story(True)) == virtual(story(False))


def test_exception_is_the_very_same_object():
    """The wrapper puts nothing around or in place of the original's exception."""
    raised = OSError("prepare")

    async def story():
        return await outcome_of(snapshot(controller({"prepare": [raised]}), "first"), None)

    assert virtual(story()) is raised


@pytest.mark.parametrize("body", [gate.prepare_and_commit, gate.release_prepared])
@pytest.mark.parametrize(
    "outcome", [object(), ValueError("own"), asyncio.CancelledError("own"), SystemExit(3)]
)
def test_wrapper_passes_arguments_result_and_exception_through(body, outcome):
    """What the original gets and gives is untouched, to the object."""
    seen = []

    async def original(*args, **kwargs):
        seen.append((args, kwargs))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def story():
        built = controller()
        try:
            result = await body(original, built, "id", committed=True)
        except BaseException as error:
            result = error
        assert seen == [((built, "id"), {"committed": True})]
        assert not registry_of(built).holders
        return result

    assert virtual(story()) is outcome


def test_cancel_keeps_its_message():
    """A cancel from outside comes out as the same cancel."""

    async def story():
        return await outcome_of(snapshot(controller(), "first"), 15)

    assert virtual(story()).args == ("from outside",)


def test_cancelled_before_it_starts_holds_nothing():
    """A snapshot that is cancelled before its first step closes and holds nothing."""

    async def story():
        built, gate = watched()
        task = asyncio.create_task(snapshot(built, "first"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return gate.is_set(), registry_of(built).suspended

    assert virtual(story()) == (True, False)


def test_clocks_stop_before_the_first_await():
    """The first step of the wrapped method has stopped the clocks when it first waits."""

    async def story():
        built = controller()
        call = built._prepare_and_commit_gym_checkpoint("first", "a directory")
        call.send(None)
        held = list(registry_of(built).holders)
        call.close()
        return held, list(registry_of(built).holders)

    assert virtual(story()) == ([HOLDER], [])


def test_long_publish_stays_held():
    """Between commit and release, during the publishing, the gate is closed and clocks stand still."""

    async def story():
        built, gate = watched()
        registry = registry_of(built)
        task = asyncio.create_task(rollout(registry, 180, never()))
        seen = []

        async def publish():
            seen.append((gate.is_set(), list(registry.holders)))
            await asyncio.sleep(5000)
            seen.append((gate.is_set(), list(registry.holders), task.done()))

        await snapshot(built, "first", publish)
        return seen, await task, gate.violations

    seen, result, violations = virtual(story())
    assert seen == [(False, [HOLDER]), (False, [HOLDER], False)]
    assert result == ("timeout", pytest.approx(180 + 5040))
    assert violations == []


def test_release_that_is_retried_stays_held_until_it_succeeds():
    """A pending release keeps the clocks stopped through two retries of the same id."""

    async def story():
        built, gate = watched({"resume": [OSError("1"), OSError("2"), OSError("3")]})
        registry = registry_of(built)
        task = asyncio.create_task(rollout(registry, 5, never()))
        for attempt in range(3):
            outcome = await outcome_of(snapshot(built, f"id {attempt}"), None)
            assert isinstance(outcome, _GymCheckpointReleasePendingError)
            assert list(registry.holders) == [HOLDER]
            await asyncio.sleep(100)
            assert not task.done()
        await built._release_committed_gym_checkpoint(built._pending_gym_checkpoint_release)
        released_at = asyncio.get_running_loop().time()
        assert not registry.holders
        resumed = [checkpoint_id for call, checkpoint_id in built._gym.calls if call == "resume"]
        return resumed, await task, released_at, gate.violations, registry.stats[HOLDER].holds

    resumed, (result, at), released_at, violations, holds = virtual(story())
    assert resumed == ["id 0"] * 4
    assert result == "timeout"
    assert at == pytest.approx(released_at + 5)
    assert violations == []
    assert holds == 1


def test_new_id_after_a_failed_abort_releases_and_leaves_nothing_over():
    """Closed again by a new snapshot, the hold is the same one, and one success ends it."""

    async def story():
        built, gate = watched({"commit": [OSError("1"), OSError("2")], "abort": [OSError("1"), OSError("2")]})
        registry = registry_of(built)
        for attempt in range(2):
            await outcome_of(snapshot(built, f"id {attempt}"), None)
            assert list(registry.holders) == [HOLDER]
        await snapshot(built, "id 2")
        assert not registry.suspended
        return gate.violations, registry.stats[HOLDER].holds

    assert virtual(story()) == ([], 1)


@pytest.mark.parametrize("ends", ["prepare", "commit", "abort", "resume"])
def test_reply_during_a_snapshot_is_read_at_once(ends):
    """Only clocks stop: a rollout that finishes while held gives its reply there and then."""
    at = {"prepare": 15, "commit": 25, "abort": 35, "resume": 35}[ends]
    plan = {"commit": [OSError("commit")]} if ends == "abort" else {}

    async def story():
        built = controller(plan)
        task = asyncio.create_task(rollout(registry_of(built), 5, asyncio.sleep(at, "reply")))
        await asyncio.sleep(0)
        await outcome_of(snapshot(built, "first"), None)
        return await task

    assert virtual(story()) == ("reply", at)


# What overlaps. The snapshot lasts from 10 to 50.
BEFORE, DURING, AFTER = (2, 6), (20, 35), (60, 70)
PAUSES = {
    "before": BEFORE,
    "before to during": (BEFORE[0], DURING[1]),
    "before to after": (BEFORE[0], AFTER[1]),
    "during": DURING,
    "during to after": (DURING[0], AFTER[1]),
    "after": AFTER,
    "from the close": (10, DURING[1]),
    "to the open": (DURING[0], 50),
}


async def overlapping(pause: tuple[float | None, float], budget: float) -> tuple[Any, list[float], Any]:
    """A snapshot with a training pause in its way, sampled every half second."""
    loop = asyncio.get_running_loop()
    built, gate = watched()
    manager = getattr(built, MANAGER)
    task = asyncio.create_task(rollout(registry_of(built), budget, never()))
    start, end = pause
    if start is not None:
        loop.call_at(start, manager.suspend_request_deadlines)
    loop.call_at(end, manager.resume_request_deadlines)
    loop.call_at(10, lambda: tasks.append(asyncio.create_task(snapshot(built, "first"))))
    tasks: list[asyncio.Task[Any]] = []
    wrong = []
    await asyncio.sleep(0.25)
    while loop.time() < 80:
        held = {HOLDER} if 10 < loop.time() < 50 else set()
        if start is not None and start < loop.time() < end:
            held.add(DEFAULT_HOLDER)
        if registry_of(built).suspended is not bool(held):
            wrong.append(loop.time())
        # Before the first snapshot it is still upstream's registry, without names.
        if loop.time() > 10 and registry_of(built).holders.keys() != held:
            wrong.append(loop.time())
        await asyncio.sleep(0.5)
    await asyncio.gather(*tasks)
    return await task, wrong, gate.violations


@pytest.mark.parametrize("pause", PAUSES)
def test_training_pause_and_snapshot_free_only_their_own_hold(pause):
    """Wherever training pauses, each second in which anyone holds costs the budget nothing."""
    start, end = PAUSES[pause]
    both = (max(0, min(end, 50) - max(start, 10))) if start < 50 and end > 10 else 0
    held = (end - start) + 40 - both
    (result, at), wrong, violations = virtual(overlapping((start, end), 40))
    assert (result, at) == ("timeout", pytest.approx(40 + held, abs=1e-3))
    assert wrong == []
    assert violations == []


def test_weight_sync_that_ends_in_mid_snapshot_frees_nothing():
    """Its argument-free resume, without ever a suspend, leaves the snapshot's hold alone."""
    (result, at), wrong, violations = virtual(overlapping((None, 25), 12))
    assert (result, at) == ("timeout", pytest.approx(52, abs=1e-3))
    assert wrong == []
    assert violations == []


def test_failed_sync_that_never_resumes_is_not_freed_by_a_snapshot():
    """Training's hold outlasts the snapshot: only its own resume ends it."""

    async def story():
        built, _ = watched()
        getattr(built, MANAGER).suspend_request_deadlines()
        await snapshot(built, "first")
        registry = registry_of(built)
        held = list(registry.holders)
        getattr(built, MANAGER).resume_request_deadlines()
        return held, registry.suspended

    assert virtual(story()) == ([DEFAULT_HOLDER], False)


def test_without_the_fix_the_rollout_times_out_while_parked():
    """The defect: the same snapshot without the fix lets the budget end in its middle."""

    async def story():
        built = controller(patched=False)
        task = asyncio.create_task(rollout(registry_of(built), 12, never()))
        await snapshot(built, "first")
        return await task

    assert virtual(story()) == ("timeout", 12)


# What is missing.


def stand_in(**attributes: Any) -> SimpleNamespace:
    """A controller of another shape."""
    whole = {GATE: asyncio.Event(), MANAGER: SimpleNamespace(**{REGISTRY: UpstreamRegistry()})}
    kept = {name: value for name, value in {**whole, **attributes}.items() if value is not ...}
    return SimpleNamespace(**kept)


class Slotted:
    __slots__ = ()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: stand_in(**{GATE: ...}), GATE),
        (lambda: stand_in(**{GATE: True}), GATE),
        (lambda: stand_in(**{MANAGER: ...}), f"{MANAGER}.{REGISTRY}"),
        (lambda: stand_in(**{MANAGER: SimpleNamespace()}), f"{MANAGER}.{REGISTRY}"),
        (lambda: stand_in(**{MANAGER: SimpleNamespace(**{REGISTRY: None})}), f"{MANAGER}.{REGISTRY}"),
        (lambda: stand_in(**{MANAGER: SimpleNamespace(**{REGISTRY: object()})}), "lacks add"),
    ],
)
def test_missing_part_passes_through_with_one_error(build, said, caplog):
    """Without what it needs, the wrapper only calls the original, and says once why clocks run on."""

    async def original(self, *args):
        return args

    async def failing(self):
        raise OSError("own")

    async def story():
        built = build()
        for _ in range(3):
            assert await gate.prepare_and_commit(original, built, 1, 2) == (1, 2)
            assert await gate.release_prepared(original, built, 3) == (3,)
            with pytest.raises(OSError, match="own"):
                await gate.prepare_and_commit(failing, built)

    virtual(story())
    (line,) = errors(caplog)
    assert "NOT paused" in line
    assert said in line


def test_controller_that_takes_no_attributes_passes_through(caplog):
    """Where the wrapper cannot note that it has told, it tells again, and still breaks nothing."""

    async def original(self):
        return "result"

    assert virtual(gate.release_prepared(original, Slotted())) == "result"
    assert "NOT paused" in errors(caplog)[0]


def test_refused_registry_is_left_as_it_is():
    """A registry of a foreign shape keeps its class and its state."""

    class Foreign(UpstreamRegistry):
        def extend(self, seconds): ...

    registry = Foreign()

    async def original(self):
        return None

    virtual(gate.prepare_and_commit(original, stand_in(**{MANAGER: SimpleNamespace(**{REGISTRY: registry})})))
    assert type(registry) is Foreign
    assert vars(registry) == {"_live": set(), "suspended": False}


@pytest.mark.parametrize("failing", ["suspend", "resume"])
def test_deadline_that_does_not_follow_breaks_no_snapshot(failing, caplog):
    """The snapshot goes its way, all other deadlines follow, and the log has the deadline's own error."""

    async def story():
        built, gate = watched()
        bad, good = BareDeadline(failing=(failing,)), BareDeadline()
        registry_of(built)._live |= {bad, good}
        await snapshot(built, "first")
        assert not registry_of(built).suspended
        assert good.told == ["suspend", "resume"]
        return gate.violations

    assert virtual(story()) == []
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert isinstance(record.exc_info[1], ExceptionGroup)
