"""What operators see during a run: log lines, the warning of a long hold, report, metrics, telemetry."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix import RequestDeadlineRegistry, targets
from nemo_rl_deadline_fix.observing import WARN_AFTER_ENV, clocks, logger, metrics
from nemo_rl_deadline_fix.replay import rl, simulation
from nemo_rl_deadline_fix.replay.gym import Remote
from nemo_rl_deadline_fix.replay.parameters import Parameters
from tests.conftest import Target, virtual
from tests.support.upstream_like import BareDeadline, controller, never, rollout, snapshot


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What was logged at one level."""
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    """Everything the package logs is there to be read."""
    caplog.set_level(logging.DEBUG, logger="nemo_rl.deadline_fix")


# Reports and metrics.


def test_clocks_say_who_stopped_them_since_when_and_what_it_came_to() -> None:
    """A report answers: stopped, by whom, for how long, how many covered, how many snapshots, totals."""

    async def story() -> None:
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 180.0, never()))
        await asyncio.sleep(0)
        for seconds in (60.0, 20.0):
            with registry.hold(targets.HOLDER):
                await asyncio.sleep(seconds)
            await asyncio.sleep(5.0)
        registry.suspend()
        await asyncio.sleep(7.0)
        (report,) = clocks()
        assert report.stopped
        assert report.holders == {"generation_stand_down": 7.0}
        assert (report.covered, report.snapshots) == (1, 2)
        assert (report.paused_seconds, report.longest_hold_seconds) == (87.0, 60.0)
        assert str(report) == (
            "clocks: stopped by generation_stand_down for 7 s; 1 rollouts covered, 2 snapshots so far, 87 s "
            "given back, longest hold 60 s"
        )
        task.cancel()

    virtual(story())


def test_paused_seconds_count_overlapping_holds_once() -> None:
    """The total is the time during which anyone held, the running pause included."""

    async def story() -> list[float]:
        registry = RequestDeadlineRegistry()
        seen = [clocks()[0].paused_seconds]
        registry.suspend("a")
        await asyncio.sleep(2)
        registry.suspend("b")
        await asyncio.sleep(3)
        seen.append(clocks()[0].paused_seconds)
        registry.resume("a")
        await asyncio.sleep(4)
        registry.resume("b")
        await asyncio.sleep(100)
        seen.append(clocks()[0].paused_seconds)
        with registry.hold("a"):
            await asyncio.sleep(1)
            seen.append(clocks()[0].paused_seconds)
        return seen

    assert virtual(story()) == [0, 5, 9, 10]


def test_metrics_are_floats_under_rollout_names() -> None:
    """The dict can be merged into a NeMo RL logger's metrics as it is; several registries are added up."""

    async def story() -> dict[str, float]:
        registries = [RequestDeadlineRegistry() for _ in range(2)]
        registries[0].suspend(targets.HOLDER)
        registries[1].add(BareDeadline())
        await asyncio.sleep(30.0)
        return metrics()

    found = virtual(story())
    assert found == {
        "rollout/deadlines/suspended": 1.0,
        "rollout/deadlines/holders": 1.0,
        "rollout/deadlines/live": 1.0,
        "rollout/deadlines/snapshots_total": 1.0,
        "rollout/deadlines/paused_seconds_total": 30.0,
        "rollout/deadlines/longest_hold_seconds": 30.0,
    }
    assert {type(value) for value in found.values()} == {float}


def test_without_a_registry_the_metrics_are_zero() -> None:
    """In a process that has seen no snapshot every number is there, and 0."""
    assert clocks() == ()
    assert set(metrics().values()) == {0.0}


def test_a_registry_that_is_gone_is_counted_no_longer() -> None:
    """What nobody uses any more does not stay in the numbers of a long run."""
    registry = RequestDeadlineRegistry()
    registry.suspend("a")
    assert metrics()["rollout/deadlines/holders"] == 1.0
    # Its watch and it know each other, so that only the collector ends them.
    del registry
    gc.collect()
    assert clocks() == ()


def test_status_tells_the_clocks_too() -> None:
    """`status()` in the actor's process has the clocks beside the state."""
    registry = RequestDeadlineRegistry()
    registry.suspend("somebody")

    report = nemo_rl_deadline_fix.status()

    (found,) = report.clocks
    assert set(found.holders) == {"somebody"}
    assert "clocks: stopped by somebody" in str(report)


@pytest.mark.parametrize("ask", [metrics, nemo_rl_deadline_fix.status], ids=lambda ask: ask.__name__)
def test_another_thread_may_ask_at_any_time(ask: Callable[[], object]) -> None:
    """Numbers are read while registries come, go and are held, without an error."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def ask_again_and_again() -> None:
        try:
            while not stop.is_set():
                ask()
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=ask_again_and_again)
    thread.start()
    registries = [RequestDeadlineRegistry() for _ in range(3)]
    for turn in range(3_000):
        registries[turn % 3] = registry = RequestDeadlineRegistry()
        for name in "abcdef":
            registry.suspend(name)
        for name in "abcdef":
            registry.resume(name)
    stop.set()
    thread.join()
    sys.setswitchinterval(before)
    assert failures == []


# Log lines.


def test_info_when_the_first_stops_and_the_last_releases(caplog: pytest.LogCaptureFixture) -> None:
    """Two lines a pause: holder and live deadlines, then also the seconds; none for names in between."""

    async def story() -> None:
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
    assert messages(caplog, logging.INFO) == [
        "Rollout clocks stopped by first: 2 live deadline(s)",
        "Rollout clocks run again, released by second after 2.250 s: 2 live deadline(s)",
    ]
    assert {record.name for record in caplog.records} == {"nemo_rl.deadline_fix"}


def test_lines_come_after_what_they_say() -> None:
    """A log handler, which may take its time, finds the clocks stopped or running already."""
    seen: list[tuple[bool, list[str]]] = []

    async def story() -> None:
        registry, deadline = RequestDeadlineRegistry(), BareDeadline()
        registry.add(deadline)

        class Look(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                seen.append((registry.suspended, list(deadline.told)))

        handler = Look()
        logger.addHandler(handler)
        with registry.hold("a"):
            pass
        logger.removeHandler(handler)

    virtual(story())
    assert seen == [(True, ["suspend"]), (False, ["suspend", "resume"])]


@pytest.fixture
def warned_at() -> Iterator[list[float]]:
    """Loop time of each WARNING."""
    times: list[float] = []

    class Clock(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            times.append(asyncio.get_running_loop().time())

    handler = Clock(logging.WARNING)
    logger.addHandler(handler)
    yield times
    logger.removeHandler(handler)


def test_long_hold_warns_at_growing_intervals(
    caplog: pytest.LogCaptureFixture, warned_at: list[float]
) -> None:
    """Rule 6: WARNINGs 300, 900 and 2100 s into a hold say who holds for how long; and nothing ends it."""

    async def story() -> None:
        registry = RequestDeadlineRegistry()
        registry.add(BareDeadline())
        await asyncio.sleep(100)
        registry.suspend("gym_checkpoint")
        await asyncio.sleep(250)
        registry.suspend("engine")
        registry.resume("gym_checkpoint")
        await asyncio.sleep(2250)
        assert registry.suspended
        registry.resume("engine")
        await asyncio.sleep(10_000)

    virtual(story())
    assert warned_at == pytest.approx([400, 1000, 2200])
    warned = messages(caplog, logging.WARNING)
    assert "stopped for 300 s" in warned[0]
    assert "engine (for 50 s)" in warned[0]
    assert "gym_checkpoint" not in warned[0]
    assert "1 live" in warned[0]
    assert "stopped for 2100 s" in warned[2]


def test_nothing_ends_a_hold_by_force() -> None:
    """Rule 6: after four weeks the clocks stand as they did, and the rollout has what it had."""

    async def story() -> tuple[Any, Any]:
        registry = RequestDeadlineRegistry()
        task = asyncio.create_task(rollout(registry, 180, never()))
        await asyncio.sleep(100)
        with registry.hold("gym_checkpoint"):
            await asyncio.sleep(28 * 86_400)
            assert registry.suspended
        return await task

    assert virtual(story()) == ("timeout", pytest.approx(180 + 28 * 86_400, abs=1e-3))


def test_short_hold_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A hold that ends in time is not reported, and the next hold starts its own count."""

    async def story() -> None:
        registry = RequestDeadlineRegistry(warn_after_s=10)
        for _ in range(5):
            with registry.hold("a"):
                await asyncio.sleep(9)
        with registry.hold("a"):
            await asyncio.sleep(10.5)

    virtual(story())
    assert len(messages(caplog, logging.WARNING)) == 1


def test_warning_is_one_timer_and_no_task_and_goes_with_the_hold() -> None:
    """A hold keeps no loop alive, and after the last release nothing of it is scheduled any more."""

    async def story() -> None:
        loop: Any = asyncio.get_running_loop()
        registry = RequestDeadlineRegistry(warn_after_s=10)
        registry.suspend("a")
        registry.suspend("b")
        assert len([handle for handle in loop._scheduled if not handle.cancelled()]) == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(15)
        registry.resume("a")
        registry.resume("b")
        assert [handle for handle in loop._scheduled if not handle.cancelled()] == []

    virtual(story())


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
def test_time_to_warn_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str | None,
    seconds: float,
    complaints: int,
) -> None:
    """The variable is used; a bad value is told in one line that names it, and 300 s stand."""
    if text is None:
        monkeypatch.delenv(WARN_AFTER_ENV, raising=False)
    else:
        monkeypatch.setenv(WARN_AFTER_ENV, text)
    for registry in (RequestDeadlineRegistry(), RequestDeadlineRegistry.adopt(rl.RequestDeadlineRegistry())):
        assert registry._watch.warn_after_s == seconds
    warned = messages(caplog, logging.WARNING)
    assert len(warned) == 2 * complaints
    assert all(WARN_AFTER_ENV in line and repr(text) in line for line in warned)


def test_argument_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A value given in code is used, and the variable is not even read."""
    monkeypatch.setenv(WARN_AFTER_ENV, "nonsense")
    assert RequestDeadlineRegistry(warn_after_s=3)._watch.warn_after_s == 3
    assert not caplog.records


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_bad_argument_is_refused(seconds: float) -> None:
    """A time to warn that is not a positive, finite number is a `ValueError` that shows it."""
    with pytest.raises(ValueError, match=f"warn_after_s.*{seconds}"):
        RequestDeadlineRegistry(warn_after_s=seconds)


# Telemetry.


def test_each_release_logs_through_the_controllers_telemetry(target: Target) -> None:
    """A release logs seconds held and deadlines covered, once for each snapshot, with no set-up."""
    if target.before is None:
        pytest.skip("the source form has no telemetry: this target has the fix itself")
    run = simulation.run(target.after, Parameters())

    assert list(run.telemetry) == [
        {"held_seconds": 60.0, "covered": 1.0},
        {"held_seconds": 0.0, "covered": 0.0},
    ]


@pytest.mark.parametrize("error", [RuntimeError("no"), DeprecationWarning("as an error")], ids=repr)
def test_telemetry_never_costs_an_error(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry that raises spoils neither the snapshot nor the release of the clocks."""
    calls: list[dict[str, Any]] = []

    async def story() -> None:
        built = controller()

        def log(metrics: dict[str, float], **keywords: Any) -> None:
            # Released first, and logged afterwards.
            assert built._rollout_manager._request_deadlines.holders == {}
            calls.append({"metrics": metrics, **keywords})
            raise error

        built._log_telemetry_metrics = log
        built._train_steps = 12
        await snapshot(built, "one")
        assert not built._rollout_manager._request_deadlines.holders

    virtual(story())
    assert calls == [
        {"metrics": {"held_seconds": 40.0, "covered": 0.0}, "step": 12, "prefix": "rollout/deadlines"}
    ]
    assert messages(caplog, logging.WARNING) == messages(caplog, logging.ERROR) == []


def test_an_aborted_snapshot_logs_once() -> None:
    """The abort inside of prepare and commit ends the hold and logs it; the outer call has nothing to log."""

    async def story() -> list[dict[str, float]]:
        built = controller()
        logged: list[dict[str, float]] = []
        built._log_telemetry_metrics = lambda metrics, **_: logged.append(metrics)

        async def fails(*_: Any) -> None:
            raise OSError("commit")

        built._gym.commit_checkpoint = Remote(fails)
        with pytest.raises(OSError, match="commit"):
            await snapshot(built, "one")
        return logged

    assert virtual(story()) == [{"held_seconds": 30.0, "covered": 0.0}]
