"""The registry by itself: names, idempotence, what a pause costs, adoption, pickling, what it says."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pickle

import pytest

from nemo_rl_deadline_fix import registry as registry_module
from nemo_rl_deadline_fix.registry import (
    DEFAULT_HOLDER,
    SMALLEST_BUDGET_S,
    WARN_AFTER_ENV,
    HolderStats,
    RequestDeadlineRegistry,
)
from nemo_rl_deadline_fix.replay import rl
from tests.conftest import virtual
from tests.support.upstream_like import BareDeadline, clock_forward, never, rollout


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What was logged at one level."""
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.fixture(autouse=True)
def _log(caplog):
    """Everything the package logs is there to be read."""
    caplog.set_level(logging.DEBUG, logger="nemo_rl.deadline_fix")


# Rule 2: holders have names.


def test_argument_free_calls_share_one_name():
    """Upstream's calls without argument hold and release under the default name."""
    registry = RequestDeadlineRegistry()
    assert not registry.suspended
    registry.suspend()
    registry.suspend()
    assert registry.suspended
    assert list(registry.holders) == [DEFAULT_HOLDER]
    registry.resume(DEFAULT_HOLDER)
    assert not registry.suspended
    registry.suspend(holder=DEFAULT_HOLDER)
    registry.resume()
    assert not registry.suspended


def test_name_is_positional_or_keyword():
    """A holder is given either way."""
    registry = RequestDeadlineRegistry()
    registry.suspend("a")
    registry.suspend(holder="b")
    assert list(registry.holders) == ["a", "b"]
    registry.resume(holder="a")
    registry.resume("b")
    assert not registry.holders


def test_holding_is_idempotent_per_name():
    """Two suspends of one name are undone by one resume, and deadlines are told once."""
    registry, deadline = RequestDeadlineRegistry(), BareDeadline()
    registry.add(deadline)
    registry.suspend("a")
    registry.suspend("a")
    registry.suspend("b")
    registry.resume("a")
    assert registry.suspended
    registry.resume("b")
    registry.resume("b")
    assert not registry.suspended
    assert deadline.told == ["suspend", "resume"]


def test_releasing_a_name_that_does_not_hold_is_a_no_op_with_a_debug_line(caplog):
    """An unknown release frees nobody, goes to no negative count, and is told at DEBUG."""
    registry = RequestDeadlineRegistry()
    registry.resume("stranger")
    registry.suspend("a")
    registry.resume("stranger")
    assert list(registry.holders) == ["a"]
    assert len(messages(caplog, logging.DEBUG)) == 2
    assert "stranger" in messages(caplog, logging.DEBUG)[0]


@pytest.mark.parametrize(
    ("name", "error"), [("", ValueError), (None, TypeError), (1, TypeError), (b"a", TypeError)]
)
@pytest.mark.parametrize("call", ["suspend", "resume", "hold"])
def test_bad_name_is_refused_and_changes_nothing(call, name, error):
    """An empty name or one that is no string raises before anything is done."""
    registry, deadline = RequestDeadlineRegistry(), BareDeadline()
    registry.add(deadline)
    with pytest.raises(error, match="holder"):
        # Entering is what makes `hold` do anything; the others have raised by then.
        getattr(registry, call)(name).__enter__()
    assert not registry.holders
    assert deadline.told == []


def test_holders_are_an_immutable_live_view_of_since_when():
    """The view tells each name's loop time, follows the registry, and cannot be written to."""

    async def story():
        registry = RequestDeadlineRegistry()
        view = registry.holders
        await asyncio.sleep(3)
        registry.suspend("a")
        await asyncio.sleep(4)
        registry.suspend("b")
        registry.suspend("a")
        return registry, view, dict(view)

    registry, view, seen = virtual(story())
    assert seen == {"a": 3.0, "b": 7.0}
    with pytest.raises(TypeError):
        view["c"] = 1.0
    assert view is registry.holders


# Hold: a context manager.


@pytest.mark.parametrize("leave", ["end", "return", "break", "error", "cancel", "exit"])
def test_hold_is_released_on_any_exit(leave):
    """However the block is left, its name holds no longer and the exception is the block's own."""
    registry = RequestDeadlineRegistry()
    raised = {"error": ValueError("own"), "cancel": asyncio.CancelledError(), "exit": SystemExit(3)}.get(
        leave
    )

    def block():
        for _ in range(1):
            with registry.hold("a"):
                assert list(registry.holders) == ["a"]
                if leave == "return":
                    return
                if leave == "break":
                    break
                if raised:
                    raise raised

    if raised:
        with pytest.raises(type(raised)) as caught:
            block()
        assert caught.value is raised
    else:
        block()
    assert not registry.holders


def test_hold_is_released_when_a_deadline_could_not_be_suspended():
    """A hold that comes out with errors does not stay behind."""
    registry = RequestDeadlineRegistry()
    registry.add(BareDeadline(failing=("suspend",)))
    with pytest.raises(ExceptionGroup, match="suspended"), registry.hold("a"):
        pytest.fail("the block must not run")
    assert not registry.holders


def test_hold_leaves_other_names_alone():
    """A block inside another name's hold ends with that hold still there."""
    registry = RequestDeadlineRegistry()
    registry.suspend("outer")
    with registry.hold("inner"):
        pass
    assert list(registry.holders) == ["outer"]


# Rule 3: a pause costs nothing and gives nothing.


@pytest.mark.parametrize("holders", [["a"], ["a", "b"], ["a", "b", DEFAULT_HOLDER]])
def test_only_unheld_seconds_count(holders):
    """A budget of 180 s with a pause of 60 s in it ends after 240 s, however many names overlap in it."""

    async def story():
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 180, never()))
        await asyncio.sleep(150)
        for name in holders:
            registry.suspend(name)
        await asyncio.sleep(60)
        for name in holders:
            registry.resume(name)
        return await task

    outcome, at = virtual(story())
    assert outcome == "timeout"
    assert at == pytest.approx(240, abs=1e-5)


def test_deadline_born_while_held_starts_with_its_whole_budget():
    """A rollout that starts during a pause has all of its budget when the pause ends."""

    async def story():
        registry = RequestDeadlineRegistry()
        registry.suspend("a")
        await asyncio.sleep(10)
        task = asyncio.create_task(rollout(registry, 180, never()))
        await asyncio.sleep(1000)
        registry.resume("a")
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(1190, abs=1e-5))


def test_deadline_without_budget_is_left_alone():
    """`seconds=None` never fires, held or not."""

    async def story():
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, None, asyncio.sleep(10_000, "reply")))
        await asyncio.sleep(1)
        with registry.hold("a"):
            await asyncio.sleep(1)
        return await task

    assert virtual(story()) == ("reply", 10_000)


def test_add_and_discard_keep_the_live_ones():
    """A deadline is live from add to discard; an unknown discard is a no-op; one born while held is told."""
    registry, early, late = RequestDeadlineRegistry(), BareDeadline(), BareDeadline()
    registry.add(early)
    registry.suspend("a")
    registry.add(late)
    assert registry.live == 2
    assert early.told == late.told == ["suspend"]
    registry.discard(early)
    registry.discard(early)
    registry.resume("a")
    assert registry.live == 1
    assert early.told == ["suspend"]
    assert late.told == ["suspend", "resume"]


# Rule 4: a reply of the same turn is kept.


async def same_turn(order: str, turn_s: float, blocks) -> tuple[object, float]:
    """One turn of the loop resumes an exhausted deadline, stays for a while, and brings the reply."""
    registry = RequestDeadlineRegistry()
    loop = asyncio.get_running_loop()
    reply = loop.create_future()
    task = asyncio.create_task(rollout(registry, 0.01, reply))
    await asyncio.sleep(0)
    blocks(0.02)
    registry.suspend("a")
    await asyncio.sleep(0.005)
    resumed_at = 0.0

    def turn():
        nonlocal resumed_at
        if order == "before":
            reply.set_result("reply")
        resumed_at = loop.time()
        registry.resume("a")
        blocks(turn_s)
        if order == "after":
            reply.set_result("reply")

    loop.call_soon(turn)
    outcome, at = await task
    return outcome, at - resumed_at


def real_block(seconds: float) -> None:
    """The loop is blocked for real."""
    registry_module.time.sleep(seconds)


@pytest.mark.parametrize("turn_s", [0.0, 0.05])
@pytest.mark.parametrize("order", ["before", "after"])
def test_reply_of_the_turn_in_which_the_pause_ends_is_kept(order, turn_s):
    """With nothing left, a reply before or after the resume in its turn wins, also in a long turn."""
    assert virtual(same_turn(order, turn_s, clock_forward))[0] == "reply"


@pytest.mark.parametrize("turn_s", [0.0, 0.005])
@pytest.mark.parametrize("order", ["before", "after"])
def test_reply_of_that_turn_is_kept_on_the_real_loop(order, turn_s):
    """The same on asyncio's own loop and clock."""
    assert asyncio.run(same_turn(order, turn_s, real_block))[0] == "reply"


@pytest.mark.parametrize("turn_s", [0.0, 0.005])
@pytest.mark.parametrize("order", ["before", "after"])
def test_reply_of_that_turn_is_kept_on_uvloop(order, turn_s):
    """The same on the loop that Ray uses where it is installed: due timers run before ready callbacks."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(same_turn(order, turn_s, real_block))[0] == "reply"


def test_reply_of_that_turn_is_kept_that_comes_through_other_tasks():
    """With nothing left, a reply wins also when it takes some more turns to reach the rollout."""

    async def story():
        registry = RequestDeadlineRegistry()
        reply = asyncio.get_running_loop().create_future()

        async def passed_on(times):
            return await (asyncio.create_task(passed_on(times - 1)) if times else reply)

        task = asyncio.create_task(rollout(registry, 10, passed_on(3)))
        await asyncio.sleep(1)
        clock_forward(20)
        registry.suspend("a")
        registry.resume("a")
        reply.set_result("reply")
        return await task

    assert virtual(story())[0] == "reply"


def test_no_reply_times_out_promptly():
    """With nothing left and no reply, the timeout comes within a few milliseconds of the resume."""
    outcome, after_s = virtual(same_turn("never", 0.0, clock_forward))
    assert outcome == "timeout"
    assert after_s == pytest.approx(SMALLEST_BUDGET_S, abs=1e-5)


def test_no_reply_times_out_promptly_on_the_real_loop():
    """The same on asyncio's own loop, with room for a busy machine."""
    outcome, after_s = asyncio.run(same_turn("never", 0.0, real_block))
    assert outcome == "timeout"
    assert after_s < 0.1


def test_exhausted_deadline_stays_stopped_when_held_again_in_the_same_turn():
    """Released and held again at once, a deadline with nothing left does not fire during the new hold."""

    async def story():
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(0)
        clock_forward(20)
        registry.suspend("a")
        registry.resume("a")
        registry.suspend("b")
        await asyncio.sleep(100)
        assert not task.done()
        registry.resume("b")
        registry.suspend("a")
        registry.resume("a")
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(120 + SMALLEST_BUDGET_S, abs=1e-5))


def test_exhausted_deadline_that_is_left_meanwhile_is_not_touched():
    """A deadline that ends between the resume and the next turn is forgotten, without an error."""

    async def story():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(0)
        clock_forward(20)
        registry.suspend("a")
        task.cancel()
        registry.resume("a")
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        return errors, registry.live

    assert virtual(story()) == ([], 0)


def test_deadline_that_banks_elsewhere_is_only_resumed():
    """A deadline of another make gets plain suspend and resume, and no attribute of upstream's."""
    registry, deadline = RequestDeadlineRegistry(), BareDeadline()
    registry.add(deadline)
    with registry.hold("a"):
        pass
    assert deadline.told == ["suspend", "resume"]
    assert not hasattr(deadline, "_remaining")


# Errors of deadlines.


@pytest.mark.parametrize("call", ["suspend", "resume"])
def test_errors_of_deadlines_come_out_together(call):
    """Every deadline is handled although some raise, the errors come as one group, the state is right."""
    registry = RequestDeadlineRegistry()
    deadlines = [BareDeadline(failing=(call,) if index % 2 else ()) for index in range(5)]
    for deadline in deadlines:
        registry.add(deadline)
    if call == "resume":
        registry.suspend("a")
    with pytest.raises(ExceptionGroup, match=f"2 of 5 deadlines could not be {call}") as caught:
        getattr(registry, call)("a")
    assert [str(error) for error in caught.value.exceptions] == [f"cannot {call}"] * 2
    assert registry.suspended is (call == "suspend")
    assert all(deadline.told[-1] == call for deadline in deadlines)
    registry.resume("a")
    assert not registry.suspended


def test_failed_add_while_held_keeps_nothing():
    """A deadline that cannot be suspended when it is born is not kept, and its own error comes out."""
    registry = RequestDeadlineRegistry()
    registry.suspend("a")
    with pytest.raises(RuntimeError, match="cannot suspend"):
        registry.add(BareDeadline(failing=("suspend",)))
    assert registry.live == 0


def test_deadlines_may_come_and_go_while_they_are_told():
    """Suspend and resume go over a copy, so a deadline's own code may add and discard."""
    registry = RequestDeadlineRegistry()

    class Restless(BareDeadline):
        def _tell(self, what):
            super()._tell(what)
            if what == "suspend":
                registry.add(BareDeadline())
            else:
                registry.discard(self)

    for _ in range(3):
        registry.add(Restless())
    registry.suspend("a")
    assert registry.live == 6
    registry.resume("a")
    assert registry.live == 3


# Adoption of upstream's registry.


def test_adoption_is_in_place_and_keeps_live_deadlines():
    """The object stays the same, its deadlines stay live, and its owner's deadlines find ours behind it."""

    async def story():
        upstream = rl.RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(upstream, 180, never()))
        await asyncio.sleep(150)
        adopted = RequestDeadlineRegistry.adopt(upstream)
        assert adopted is upstream
        assert type(upstream) is RequestDeadlineRegistry
        assert "suspended" not in vars(upstream)
        assert adopted.live == 1
        assert not adopted.suspended
        adopted.suspend("a")
        adopted.resume()
        await asyncio.sleep(60)
        adopted.resume("a")
        result = await task
        assert adopted.live == 0
        return result

    assert virtual(story()) == ("timeout", pytest.approx(240, abs=1e-5))


def test_adopted_suspended_registry_stays_suspended_under_the_default_name(caplog):
    """Deadlines of a suspended registry stay stopped until upstream's own argument-free resume."""

    async def story():
        upstream = rl.RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(upstream, 10, never()))
        await asyncio.sleep(5)
        upstream.suspend()
        adopted = RequestDeadlineRegistry.adopt(upstream)
        assert dict(adopted.holders) == {DEFAULT_HOLDER: 5.0}
        assert adopted.suspended
        await asyncio.sleep(400)
        upstream.resume()
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(410, abs=1e-5))
    assert len(messages(caplog, logging.WARNING)) == 1


def test_adoption_is_idempotent():
    """A second adoption changes nothing: names, deadlines and totals stay."""
    registry = RequestDeadlineRegistry.adopt(rl.RequestDeadlineRegistry())
    registry.add(BareDeadline())
    registry.suspend("a")
    before = dict(registry.holders)
    assert RequestDeadlineRegistry.adopt(registry) is registry
    assert dict(registry.holders) == before
    assert registry.live == 1


class WithoutResume:
    def __init__(self):
        self._live, self.suspended = set(), False

    def add(self, deadline): ...
    def discard(self, deadline): ...
    def suspend(self): ...


class WithAList(rl.RequestDeadlineRegistry):
    def __init__(self):
        super().__init__()
        self._live = []


class WithACount(rl.RequestDeadlineRegistry):
    def __init__(self):
        super().__init__()
        self.suspended = 0


class WithSlots(rl.RequestDeadlineRegistry):
    __slots__ = ("_extra",)


class WithMore(rl.RequestDeadlineRegistry):
    def extend(self, seconds): ...


class WithMoreOfItsOwn(rl.RequestDeadlineRegistry):
    def _forget(self, deadline): ...

    def __len__(self):
        return len(self._live)


def with_more_state():
    """A registry that keeps something else besides."""
    registry = rl.RequestDeadlineRegistry()
    registry._depth = 0
    return registry


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (object, ["object", "add", "discard", "suspend", "resume", "_live (set)", "suspended (bool)"]),
        (lambda: None, ["NoneType"]),
        (WithoutResume, ["WithoutResume", "lacks resume"]),
        (WithAList, ["WithAList", "lacks _live (set)"]),
        (WithACount, ["WithACount", "lacks suspended (bool)"]),
        (WithSlots, ["WithSlots", "this class lacks its"]),
        (WithMore, ["WithMore", "lacks its extend"]),
        (WithMoreOfItsOwn, ["WithMoreOfItsOwn", "lacks its __len__, _forget"]),
        (with_more_state, ["RequestDeadlineRegistry", "lacks its _depth"]),
        (lambda: rl.RequestDeadlineRegistry, ["type", "_live (set)"]),
    ],
)
def test_other_shapes_are_refused_and_left_untouched(build, named):
    """A `TypeError` names the object's class and what is missing; the object is as it was."""
    found = build()
    kind, state = type(found), dict(getattr(found, "__dict__", {}))
    with pytest.raises(TypeError, match="cannot adopt") as caught:
        RequestDeadlineRegistry.adopt(found)
    assert all(name in str(caught.value) for name in named)
    assert "\n" not in str(caught.value)
    assert type(found) is kind
    assert dict(getattr(found, "__dict__", {})) == state


def test_what_python_refuses_is_left_untouched():
    """An object whose layout is another keeps its class and its state, with Python's own error."""

    class AnotherLayout(rl.RequestDeadlineRegistry):
        __slots__ = ("live",)

    found = AnotherLayout()
    with pytest.raises(TypeError, match="layout"):
        RequestDeadlineRegistry.adopt(found)
    assert type(found) is AnotherLayout
    assert vars(found) == {"_live": set(), "suspended": False}


# Pickling.


@pytest.fixture
def pickler(request):
    """The standard library's, and the one that Ray ships actors with."""
    return importlib.import_module(request.param)


@pytest.mark.parametrize("pickler", ["pickle", "ray.cloudpickle"], indirect=True)
def test_pickle_of_a_registry_that_nobody_holds(pickler):
    """It arrives empty, with its totals and its configuration."""

    async def story():
        registry = RequestDeadlineRegistry(warn_after_s=7)
        with registry.hold("a"):
            await asyncio.sleep(5)
        return pickler.dumps(registry)

    arrived = pickle.loads(virtual(story()))
    assert type(arrived) is RequestDeadlineRegistry
    assert not arrived.suspended
    assert arrived.live == 0
    assert arrived.paused_seconds == 5
    assert arrived.stats == {"a": HolderStats(1, 5, 5)}
    assert arrived._warn_after_s == 7


@pytest.mark.parametrize("pickler", ["pickle", "ray.cloudpickle"], indirect=True)
def test_pickle_of_a_held_registry_goes_on_holding(pickler, caplog):
    """Holds arrive counted from the arrival, with the seconds of before in the totals, and are watched."""

    async def sender():
        await asyncio.sleep(1000)
        registry = RequestDeadlineRegistry.adopt(rl.RequestDeadlineRegistry())
        registry.suspend("a")
        await asyncio.sleep(5)
        registry.suspend("b")
        await asyncio.sleep(1)
        return pickler.dumps(registry)

    async def receiver(data):
        await asyncio.sleep(50)
        registry = pickle.loads(data)
        assert dict(registry.holders) == {"a": 50, "b": 50}
        assert registry.paused_seconds == 6
        await asyncio.sleep(4)
        assert registry.stats == {"a": HolderStats(1, 10, 6), "b": HolderStats(1, 5, 4)}
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(400)
        registry.resume("a")
        registry.resume("b")
        assert registry.paused_seconds == 410
        return await task

    assert virtual(receiver(virtual(sender()))) == ("timeout", pytest.approx(464, abs=1e-5))
    assert len(messages(caplog, logging.WARNING)) == 1


@pytest.mark.parametrize("pickler", ["pickle", "ray.cloudpickle"], indirect=True)
def test_pickle_with_live_deadlines_is_refused_clearly(pickler):
    """A live deadline belongs to this process: the error says so, and the registry is as before."""
    registry = RequestDeadlineRegistry()
    registry.add(BareDeadline())
    with pytest.raises(TypeError, match=r"RequestDeadlineRegistry with 1 live deadline"):
        pickler.dumps(registry)
    assert registry.live == 1


# What it tells.


def test_paused_seconds_count_overlapping_holds_once():
    """The total is the time during which anyone held, the running pause included."""

    async def story():
        registry = RequestDeadlineRegistry()
        seen = [registry.paused_seconds]
        registry.suspend("a")
        await asyncio.sleep(2)
        registry.suspend("b")
        await asyncio.sleep(3)
        seen.append(registry.paused_seconds)
        registry.resume("a")
        await asyncio.sleep(4)
        registry.resume("b")
        await asyncio.sleep(100)
        seen.append(registry.paused_seconds)
        with registry.hold("a"):
            await asyncio.sleep(1)
            seen.append(registry.paused_seconds)
        return seen

    assert virtual(story()) == [0, 5, 9, 10]


def test_stats_per_name():
    """Each name's holds, seconds and longest hold are counted by themselves, the running one included."""

    async def story():
        registry = RequestDeadlineRegistry()
        for seconds in (2, 5, 3):
            with registry.hold("a"):
                await asyncio.sleep(seconds)
        registry.suspend("b")
        registry.suspend("b")
        await asyncio.sleep(4)
        registry.resume("unknown")
        running = registry.stats
        registry.resume("b")
        await asyncio.sleep(9)
        return running, registry.stats

    expected = {"a": HolderStats(3, 10, 5), "b": HolderStats(1, 4, 4)}
    assert virtual(story()) == (expected, expected)


def test_repr_says_who_holds_since_when():
    """One line: live deadlines, who holds for how long, and the total."""

    async def story():
        registry = RequestDeadlineRegistry()
        registry.add(BareDeadline())
        idle = repr(registry)
        registry.suspend("gym_checkpoint")
        await asyncio.sleep(1.5)
        registry.suspend()
        return idle, repr(registry)

    idle, held = virtual(story())
    assert idle == "<RequestDeadlineRegistry: 1 live, running, paused 0.000 s in total>"
    assert held == (
        "<RequestDeadlineRegistry: 1 live, held by gym_checkpoint for 1.500 s, engine for 0.000 s, "
        "paused 1.500 s in total>"
    )


def test_info_when_the_first_stops_and_the_last_lets_go(caplog):
    """Two lines a pause: holder and live deadlines, then also the seconds; none for names in between."""

    async def story():
        registry = RequestDeadlineRegistry()
        for _ in range(2):
            registry.add(BareDeadline())
        registry.suspend("first")
        await asyncio.sleep(1)
        registry.suspend("second")
        registry.resume("first")
        await asyncio.sleep(1.25)
        registry.resume("second")

    virtual(story())
    stopped, run_again = messages(caplog, logging.INFO)
    assert "by first" in stopped
    assert "2 live" in stopped
    assert "by second" in run_again
    assert "2.250 s" in run_again
    assert "2 live" in run_again
    assert {record.name for record in caplog.records} == {"nemo_rl.deadline_fix"}


def test_long_hold_warns_at_growing_intervals(caplog):
    """WARNINGs come 300, 900 and 2100 s into a hold, and say who holds for how long, and how many wait."""
    times = []

    async def story():
        loop = asyncio.get_running_loop()
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: times.append(loop.time())
        registry_module.logger.addHandler(handler)
        try:
            registry = RequestDeadlineRegistry()
            registry.add(BareDeadline())
            await asyncio.sleep(100)
            registry.suspend("gym_checkpoint")
            await asyncio.sleep(250)
            registry.suspend("engine")
            registry.resume("gym_checkpoint")
            await asyncio.sleep(2250)
            registry.resume("engine")
            await asyncio.sleep(10_000)
        finally:
            registry_module.logger.removeHandler(handler)

    virtual(story())
    assert times == pytest.approx([400, 1000, 2200])
    warned = messages(caplog, logging.WARNING)
    assert "stopped for 300 s" in warned[0]
    assert "engine (for 50 s)" in warned[0]
    assert "gym_checkpoint" not in warned[0]
    assert "1 live" in warned[0]
    assert "stopped for 2100 s" in warned[2]


def test_short_hold_does_not_warn(caplog):
    """A hold that ends in time is not reported, and the next hold starts its own count."""

    async def story():
        registry = RequestDeadlineRegistry(warn_after_s=10)
        for _ in range(5):
            with registry.hold("a"):
                await asyncio.sleep(9)
        with registry.hold("a"):
            await asyncio.sleep(10.5)

    virtual(story())
    assert len(messages(caplog, logging.WARNING)) == 1


def test_warning_leaves_no_timer_and_no_task():
    """After the last release nothing of the hold is scheduled any more."""

    async def story():
        loop = asyncio.get_running_loop()
        registry = RequestDeadlineRegistry(warn_after_s=10)
        registry.suspend("a")
        registry.suspend("b")
        timers = [handle for handle in loop._scheduled if not handle.cancelled()]
        assert len(timers) == 1
        await asyncio.sleep(15)
        registry.resume("a")
        registry.resume("b")
        left = [handle for handle in loop._scheduled if not handle.cancelled()]
        assert registry._warning is None
        return left, asyncio.all_tasks() - {asyncio.current_task()}

    assert virtual(story()) == ([], set())


def test_hold_keeps_no_loop_alive():
    """A program that ends while someone holds ends at once, with no task of ours to wait for or to cancel."""

    async def story():
        RequestDeadlineRegistry().suspend("a")
        return asyncio.get_running_loop(), asyncio.all_tasks() - {asyncio.current_task()}

    loop, tasks = virtual(story())
    assert loop.time() == 0
    assert tasks == set()


@pytest.mark.parametrize(
    ("text", "seconds", "complaints"),
    [
        ("45", 45.0, 0),
        ("0.5", 0.5, 0),
        ("", 300.0, 0),
        (None, 300.0, 0),
        ("soon", 300.0, 1),
        ("0", 300.0, 1),
        ("-3", 300.0, 1),
        ("nan", 300.0, 1),
        ("inf", 300.0, 1),
    ],
)
def test_time_to_warn_comes_from_the_environment(monkeypatch, caplog, text, seconds, complaints):
    """The variable is used; a bad value is told in one line that names it, and 300 s stand."""
    if text is None:
        monkeypatch.delenv(WARN_AFTER_ENV, raising=False)
    else:
        monkeypatch.setenv(WARN_AFTER_ENV, text)
    for registry in (RequestDeadlineRegistry(), RequestDeadlineRegistry.adopt(rl.RequestDeadlineRegistry())):
        assert registry._warn_after_s == seconds
    warned = messages(caplog, logging.WARNING)
    assert len(warned) == 2 * complaints
    assert all(WARN_AFTER_ENV in line and repr(text) in line for line in warned)


def test_argument_wins_over_the_environment(monkeypatch, caplog):
    """A value given in code is used, and the variable is not even read."""
    monkeypatch.setenv(WARN_AFTER_ENV, "nonsense")
    assert RequestDeadlineRegistry(warn_after_s=3)._warn_after_s == 3
    assert not caplog.records


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_bad_argument_is_refused(seconds):
    """A time to warn that is no positive, finite number is a `ValueError` that shows it."""
    with pytest.raises(ValueError, match=f"warn_after_s.*{seconds}"):
        RequestDeadlineRegistry(warn_after_s=seconds)


def test_works_where_no_loop_runs(caplog):
    """Outside of a loop names, times and repr work on the monotonic clock; only the warning is left out."""
    registry = RequestDeadlineRegistry(warn_after_s=0.001)
    before = registry_module.time.monotonic()
    with registry.hold("a"):
        assert before <= registry.holders["a"] <= registry_module.time.monotonic()
        assert "held by a" in repr(registry)
    assert registry.paused_seconds >= 0
    assert registry.stats["a"].holds == 1
    assert not messages(caplog, logging.WARNING)
