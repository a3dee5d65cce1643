"""The registry by itself: names, idempotence, what a pause costs, the last loop turn, taking over."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nemo_rl_deadline_fix.registry import (
    LAST_MOMENT_S,
    RESTART_TURNS,
    SMALLEST_BUDGET_S,
    RequestDeadlineRegistry,
)
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.targets import DEFAULT_HOLDER
from tests.conftest import virtual
from tests.support.upstream_like import BareDeadline, clock_forward, never, rollout


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The exceptions that were logged at ERROR."""
    return [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


# Rule 2: holders have names.


def test_argument_free_calls_share_one_name() -> None:
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


def test_name_is_positional_or_keyword() -> None:
    """A holder is given either way."""
    registry = RequestDeadlineRegistry()
    registry.suspend("a")
    registry.suspend(holder="b")
    assert list(registry.holders) == ["a", "b"]
    registry.resume(holder="a")
    registry.resume("b")
    assert not registry.holders


def test_holding_is_idempotent_per_name() -> None:
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


def test_releasing_a_name_that_does_not_hold_is_a_no_op() -> None:
    """An unknown release frees nobody, and the next hold counts as before."""
    registry = RequestDeadlineRegistry()
    registry.resume("stranger")
    registry.suspend("a")
    registry.resume("stranger")
    assert list(registry.holders) == ["a"]
    registry.resume("a")
    assert not registry.suspended


@pytest.mark.parametrize("name", ["", None, 1, b"a"])
def test_bad_name_is_refused_and_changes_nothing(name: Any) -> None:
    """An empty name or one that is no string raises before anything is done."""
    registry, deadline = RequestDeadlineRegistry(), BareDeadline()
    registry.add(deadline)
    with pytest.raises(ValueError, match="a holder is named by a string"):
        registry.suspend(name)
    with pytest.raises(ValueError, match="a holder is named by a string"), registry.hold(name):
        pytest.fail("the block must not run")
    assert not registry.holders
    assert deadline.told == []


def test_holders_are_an_immutable_live_view_of_since_when() -> None:
    """The view tells each name's loop time, follows the registry, and cannot be written to."""

    async def story() -> Any:
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
def test_hold_is_released_on_any_exit(leave: str) -> None:
    """However the block is left, its name holds no longer and the exception is the block's own."""
    registry = RequestDeadlineRegistry()
    raised = {"error": ValueError("own"), "cancel": asyncio.CancelledError(), "exit": SystemExit(3)}.get(
        leave
    )

    def block() -> Any:
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


def test_hold_leaves_other_names_alone() -> None:
    """A block inside another name's hold ends with that hold still there."""
    registry = RequestDeadlineRegistry()
    registry.suspend("outer")
    with registry.hold("inner"):
        pass
    assert list(registry.holders) == ["outer"]


# Rule 3: a pause costs nothing and gives nothing.


@pytest.mark.parametrize("holders", [["a"], ["a", "b"], ["a", "b", DEFAULT_HOLDER]])
def test_only_unheld_seconds_count(holders: list[str]) -> None:
    """A budget of 180 s with a pause of 60 s in it ends after 240 s, however many names overlap in it."""

    async def story() -> Any:
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


def test_deadline_born_while_held_starts_with_its_whole_budget() -> None:
    """A rollout that starts during a pause has all of its budget when the pause ends."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        registry.suspend("a")
        await asyncio.sleep(10)
        task = asyncio.create_task(rollout(registry, 180, never()))
        await asyncio.sleep(1000)
        registry.resume("a")
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(1190, abs=1e-5))


def test_deadline_without_budget_is_left_alone() -> None:
    """`seconds=None` never fires, held or not."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, None, asyncio.sleep(10_000, "reply")))
        await asyncio.sleep(1)
        with registry.hold("a"):
            await asyncio.sleep(1)
        return await task

    assert virtual(story()) == ("reply", 10_000)


def test_add_and_discard_keep_the_live_ones() -> None:
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


# Rule 4: a reply that is ready in the turn in which the pause ends is kept, counted in turns of the loop.


def uvloop_run(story: Coroutine[Any, Any, Any]) -> Any:
    """Run on the loop that Ray uses where it is installed."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story)


LOOPS = pytest.mark.parametrize(
    "run", [virtual, asyncio.run, uvloop_run], ids=["virtual", "asyncio", "uvloop"]
)


def block(seconds: float) -> None:
    """Keep the loop's thread busy, in the loop's own time."""
    if hasattr(asyncio.get_running_loop(), "_jumping"):
        clock_forward(seconds)
    else:
        time.sleep(seconds)


async def passed_on(reply: asyncio.Future[str], hops: int) -> str:
    """A reply that takes some more turns to come through."""
    return await (asyncio.create_task(passed_on(reply, hops - 1)) if hops else reply)


async def sealed(reply: asyncio.Future[str]) -> str:
    """A reply that is sealed before it counts, as NeMo RL's callback does, with a turn of the loop in it."""
    row = await reply
    await asyncio.sleep(0)
    return row


async def kept(
    left_s: float,
    *,
    answers: Callable[[asyncio.Future[str]], None] | None,
    through: Callable[[asyncio.Future[str]], Any] = lambda reply: reply,
    busy_s: float = 0.0,
    first: str = "release",
) -> tuple[object, float]:
    """A pause ends with some seconds left, in a turn that may be busy and in which the reply may be made.

    Returns:
        What came out, and how many seconds after the release.
    """
    registry = RequestDeadlineRegistry()
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[str] = loop.create_future()
    task = asyncio.create_task(rollout(registry, 60, through(reply)))
    # As many turns as the reply's way has hops, so that everybody waits.
    for _ in range(5):
        await asyncio.sleep(0)
    registry.suspend("a")
    deadline: Any = next(iter(registry._live))
    deadline._remaining = left_s
    released_at = 0.0

    def turn() -> None:
        nonlocal released_at
        steps: list[Callable[[], object]] = [
            lambda: registry.resume("a"),
            lambda: answers(reply) if answers else None,
        ]
        released_at = loop.time()
        for step in steps if first == "release" else reversed(steps):
            step()
            block(busy_s)

    loop.call_soon(turn)
    outcome, at = await task
    return outcome, at - released_at


def at_once(reply: asyncio.Future[str]) -> None:
    """The reply is made in the turn itself."""
    reply.set_result("reply")


def by_a_thread(reply: asyncio.Future[str]) -> None:
    """The reply is made by a thread, which asks the loop to take it."""
    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(reply.set_result, "reply"))
    thread.start()
    thread.join()


# Nothing left, and little enough that the busy turn outlasts it.
@pytest.mark.parametrize("left_s", [0, 0.0, 0.003, LAST_MOMENT_S / 2])
@pytest.mark.parametrize("busy_s", [0.0, 0.004])
@pytest.mark.parametrize("first", ["release", "reply"])
@LOOPS
def test_reply_of_the_turn_in_which_the_pause_ends_is_kept(
    run: Callable[[Coroutine[Any, Any, Any]], Any], first: str, busy_s: float, left_s: float
) -> None:
    """Before or after the release in its turn, in a busy turn or not, the reply wins."""
    assert run(kept(left_s, answers=at_once, busy_s=busy_s, first=first))[0] == "reply"


@pytest.mark.parametrize(
    ("answers", "through"),
    [
        (at_once, lambda reply: passed_on(reply, 3)),
        (at_once, sealed),
        (by_a_thread, lambda reply: reply),
        (by_a_thread, sealed),
    ],
    ids=["through tasks", "sealed", "from a thread", "from a thread, sealed"],
)
@LOOPS
def test_reply_that_needs_some_turns_is_kept(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    answers: Callable[[asyncio.Future[str]], None],
    through: Callable[[asyncio.Future[str]], Any],
) -> None:
    """With nothing left and a busy turn, a reply wins also when it takes more turns to come through."""
    assert run(kept(0.0, answers=answers, through=through, busy_s=0.004))[0] == "reply"


@pytest.mark.parametrize("left_s", [0.0, 0.05])
def test_no_reply_times_out_promptly(left_s: float) -> None:
    """Without a reply the timeout comes when it should: in the smallest budget where nothing was left."""
    outcome, after_s = virtual(kept(left_s, answers=None))
    assert outcome == "timeout"
    assert after_s == pytest.approx(max(left_s, SMALLEST_BUDGET_S), abs=1e-5)


@LOOPS
def test_no_reply_times_out_on_every_loop(run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    """The same on real loops, with room for a busy machine."""
    outcome, after_s = run(kept(0.0, answers=None))
    assert outcome == "timeout"
    assert after_s < 1.0


def test_a_spent_deadline_restarts_some_turns_after_the_others() -> None:
    """The clocks with seconds left run at once; one in its last moment waits for the turns of the loop."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        tasks = [asyncio.create_task(rollout(registry, budget_s, never())) for budget_s in (10, 50)]
        await asyncio.sleep(0)
        clock_forward(20)
        registry.suspend("a")
        live: set[Any] = {*registry._live}
        spent, other = sorted(live, key=lambda deadline: deadline._remaining or 0)
        registry.resume("a")
        assert other._timeout.when() == 50
        for _ in range(RESTART_TURNS):
            assert spent._timeout.when() is None
            await asyncio.sleep(0)
        assert spent._timeout.when() == pytest.approx(20 + SMALLEST_BUDGET_S)
        return [await task for task in tasks]

    assert virtual(story()) == [("timeout", pytest.approx(20 + SMALLEST_BUDGET_S)), ("timeout", 50)]


@pytest.mark.parametrize("turns", range(RESTART_TURNS + 2))
def test_exhausted_deadline_stays_stopped_when_held_again(turns: int) -> None:
    """Released and held again some turns later, a deadline with nothing left does not fire while held."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(0)
        clock_forward(20)
        registry.suspend("a")
        registry.resume("a")
        for _ in range(turns):
            await asyncio.sleep(0)
        registry.suspend("b")
        await asyncio.sleep(100)
        assert not task.done()
        registry.resume("b")
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(120 + SMALLEST_BUDGET_S, abs=1e-5))


def test_a_short_hold_does_not_make_the_next_release_hurry() -> None:
    """The turns count from the last release: those of a release before it are counted no longer."""

    async def story() -> Any:
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(0)
        clock_forward(20)
        registry.suspend("a")
        deadline: Any = next(iter(registry._live))
        registry.resume("a")
        for _ in range(RESTART_TURNS - 1):
            await asyncio.sleep(0)
        with registry.hold("b"):
            pass
        for _ in range(RESTART_TURNS):
            assert deadline._timeout.when() is None
            await asyncio.sleep(0)
        assert deadline._timeout.when() is not None
        return await task

    virtual(story())


def test_exhausted_deadline_that_is_left_meanwhile_is_not_touched() -> None:
    """A deadline that ends between the release and its restart is forgotten, without an error."""

    async def story() -> Any:
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 10, never()))
        await asyncio.sleep(0)
        clock_forward(20)
        registry.suspend("a")
        deadline: Any = next(iter(registry._live))
        task.cancel()
        registry.resume("a")
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        return errors, registry.live, deadline._remaining

    assert virtual(story()) == ([], 0, 0.0)


def test_deadline_that_banks_elsewhere_is_only_resumed() -> None:
    """A deadline of another make gets plain suspend and resume, and no attribute of upstream's."""
    registry, deadline = RequestDeadlineRegistry(), BareDeadline()
    registry.add(deadline)
    with registry.hold("a"):
        pass
    assert deadline.told == ["suspend", "resume"]
    assert not hasattr(deadline, "_remaining")


# Errors of deadlines.


@pytest.mark.parametrize("call", ["suspend", "resume"])
def test_errors_of_deadlines_are_logged_and_stop_nobody_else(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every deadline is handled although some raise, each error is in the log, and the state is right."""
    registry = RequestDeadlineRegistry()
    deadlines = [BareDeadline(failing=(call,) if index % 2 else ()) for index in range(5)]
    for deadline in deadlines:
        registry.add(deadline)
    if call == "resume":
        registry.suspend("a")
    getattr(registry, call)("a")
    assert errors(caplog) == [f"cannot {call}"] * 2
    assert registry.suspended is (call == "suspend")
    assert all(deadline.told[-1] == call for deadline in deadlines)
    registry.resume("a")
    assert not registry.suspended


def test_deadlines_may_come_and_go_while_they_are_told() -> None:
    """Suspend and resume go over a copy, so a deadline's own code may add and discard."""
    registry = RequestDeadlineRegistry()

    class Restless(BareDeadline):
        def _tell(self, what: Any) -> Any:
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


# Taking over upstream's registry.


class Upstream(rl.RequestDeadlineRegistry):
    """Upstream's, with more of its own than the fix knows."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def extend(self, seconds: float) -> float:
        """A method that the registry of this package has not."""
        return seconds


def test_taking_over_is_in_place() -> None:
    """The object keeps its class, its own methods and its live deadlines, and knows names from then on."""

    async def story() -> Any:
        upstream: Any = Upstream()
        task = asyncio.create_task(rollout(upstream, 180, never()))
        await asyncio.sleep(150)
        kind = type(upstream)
        registry = RequestDeadlineRegistry.adopt(upstream)
        assert kind is type(upstream)
        assert upstream.extend(5) == 5
        assert {"add", "discard"} & vars(upstream).keys() == set()
        assert (registry.live, registry.suspended, upstream.suspended) == (1, False, False)
        upstream.suspend("a")
        assert (registry.suspended, upstream.suspended) == (True, True)
        assert list(upstream.holders) == list(registry.holders) == ["a"]
        upstream.resume()
        await asyncio.sleep(60)
        upstream.resume(holder="a")
        assert (registry.suspended, upstream.suspended) == (False, False)
        result = await task
        assert registry.live == 0
        return result

    assert virtual(story()) == ("timeout", pytest.approx(240, abs=1e-5))


def test_taken_over_a_deadline_born_while_held_is_suspended_by_upstreams_own_add() -> None:
    """Rule 3: a rollout that starts during a pause has all of its budget when the pause ends."""

    async def story() -> Any:
        upstream: Any = Upstream()
        registry = RequestDeadlineRegistry.adopt(upstream)
        registry.suspend("a")
        await asyncio.sleep(10)
        task = asyncio.create_task(rollout(upstream, 180, never()))
        await asyncio.sleep(1000)
        registry.resume("a")
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(1190, abs=1e-5))


def test_taken_over_while_suspended_it_stays_so_under_the_default_name() -> None:
    """Deadlines of a suspended registry stay stopped until upstream's own argument-free resume."""

    async def story() -> Any:
        upstream: Any = rl.RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(upstream, 10, never()))
        await asyncio.sleep(5)
        upstream.suspend()
        await asyncio.sleep(7)
        registry = RequestDeadlineRegistry.adopt(upstream)
        assert dict(registry.holders) == {DEFAULT_HOLDER: 12.0}
        assert upstream.suspended
        await asyncio.sleep(400)
        upstream.resume()
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(417, abs=1e-5))


def test_taking_over_twice_is_once() -> None:
    """A second time gives the same registry and changes nothing: names, deadlines and calls stay."""
    upstream: Any = Upstream()
    registry = RequestDeadlineRegistry.adopt(upstream)
    upstream.add(BareDeadline())
    upstream.suspend("a")
    lent, holders = dict(vars(upstream)), dict(upstream.holders)
    assert RequestDeadlineRegistry.adopt(upstream) is registry
    assert dict(vars(upstream)) == lent
    assert dict(upstream.holders) == holders
    ours = RequestDeadlineRegistry()
    assert RequestDeadlineRegistry.adopt(ours) is ours


def test_each_object_is_taken_over_by_itself() -> None:
    """A call that somebody lent on, of one registry to another, is not taken for that one's own."""
    first: Any = Upstream()
    second: Any = Upstream()
    registry = RequestDeadlineRegistry.adopt(first)
    second.suspend = first.suspend
    other = RequestDeadlineRegistry.adopt(second)
    assert other is not registry
    second.suspend("a")
    assert (list(first.holders), list(second.holders)) == ([], ["a"])


class WithAList(rl.RequestDeadlineRegistry):
    def __init__(self) -> None:
        super().__init__()
        self._live = []  # type: ignore[assignment]


class WithACount(rl.RequestDeadlineRegistry):
    def __init__(self) -> None:
        super().__init__()
        self.suspended = 0  # type: ignore[assignment]


class WithNames:
    def __init__(self) -> None:
        self._live: set[Any] = set()
        self._suspension_holders: set[str] = set()

    @property
    def suspended(self) -> bool:
        return bool(self._suspension_holders)


@pytest.mark.parametrize(
    "build", [object, lambda: None, WithAList, WithACount, WithNames, lambda: rl.RequestDeadlineRegistry]
)
def test_other_shapes_are_refused_and_left_untouched(build: Callable[[], Any]) -> None:
    """A `TypeError` names the object's class and what is missing; the object is as it was."""
    found = build()
    state = dict(getattr(found, "__dict__", {}))
    with pytest.raises(TypeError, match="has no set _live, or no bool suspended") as caught:
        RequestDeadlineRegistry.adopt(found)
    assert type(found).__name__ in str(caught.value)
    assert dict(getattr(found, "__dict__", {})) == state


def test_works_where_no_loop_runs() -> None:
    """Outside of a loop names and times work on the monotonic clock."""
    registry, deadline = RequestDeadlineRegistry(), BareDeadline()
    deadline._remaining = 0.0  # type: ignore[attr-defined]
    registry.add(deadline)
    before = time.monotonic()
    with registry.hold("a"):
        assert before <= registry.holders["a"] <= time.monotonic()
    assert deadline.told == ["suspend", "resume"]


def test_an_unused_registry_is_pickled_as_upstreams_is() -> None:
    """The driver sends a manager with one in it; what arrives works, and warns when it was told to."""
    copy = pickle.loads(pickle.dumps(RequestDeadlineRegistry(warn_after_s=7.0)))

    copy.suspend("a")
    copy.add(deadline := BareDeadline())

    assert (list(copy.holders), copy.live, deadline.told) == (["a"], 1, ["suspend"])
    assert copy._watch.warn_after_s == 7.0


@pytest.mark.parametrize("use", ["add", "suspend"])
def test_a_registry_in_use_is_not_pickled(use: str) -> None:
    """Its deadlines and its clock belong to one loop, and one line says so."""
    registry = RequestDeadlineRegistry()
    registry.add(BareDeadline()) if use == "add" else registry.suspend()

    with pytest.raises(TypeError, match="cannot pickle a RequestDeadlineRegistry that has live deadlines or"):
        pickle.dumps(registry)
