"""What operators see during a run: status, metrics, telemetry."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix import RequestDeadlineRegistry, targets
from nemo_rl_deadline_fix.observing import clocks, metrics
from nemo_rl_deadline_fix.replay import rl, simulation, subjects
from nemo_rl_deadline_fix.replay.gym import Committed, Prepared, Remote
from nemo_rl_deadline_fix.replay.parameters import Parameters
from tests.conftest import Target, virtual


def test_clocks_say_who_stopped_them_since_when_and_what_it_came_to() -> None:
    """A report answers: stopped, by whom, for how long, how many covered, how many snapshots, totals."""

    async def story() -> None:
        registry = RequestDeadlineRegistry()
        async with rl._Deadline(180.0, "rollout", registry):  # type: ignore[arg-type]
            for seconds in (60.0, 20.0):
                with registry.hold(targets.HOLDER):
                    await asyncio.sleep(seconds)
                await asyncio.sleep(5.0)
            registry.suspend()
            await asyncio.sleep(7.0)
            (report,) = clocks()
            assert report.stopped
            assert report.holders == {"engine": 7.0}
            assert (report.covered, report.snapshots) == (1, 2)
            assert (report.paused_seconds, report.longest_hold_seconds) == (87.0, 60.0)
            assert str(report) == (
                "clocks: stopped by engine for 7 s; 1 rollouts covered, 2 snapshots so far, 87 s given back, "
                "longest hold 60 s"
            )

    virtual(story())


def test_metrics_are_floats_under_rollout_names() -> None:
    """The dict can be merged into a NeMo RL logger's metrics as it is."""

    async def story() -> dict[str, float]:
        registry = RequestDeadlineRegistry()
        registry.suspend(targets.HOLDER)
        await asyncio.sleep(30.0)
        return metrics()

    found = virtual(story())
    assert found == {
        "rollout/deadlines/suspended": 1.0,
        "rollout/deadlines/holders": 1.0,
        "rollout/deadlines/live": 0.0,
        "rollout/deadlines/snapshots_total": 1.0,
        "rollout/deadlines/paused_seconds_total": 30.0,
        "rollout/deadlines/longest_hold_seconds": 30.0,
    }
    assert {type(value) for value in found.values()} == {float}


def test_without_a_registry_the_metrics_are_zero() -> None:
    """In a process that has seen no snapshot every number is there, and 0."""
    assert clocks() == ()
    assert set(metrics().values()) == {0.0}


def test_status_tells_the_clocks_too() -> None:
    """`status()` in the actor's process has the clocks beside the targets."""
    registry = RequestDeadlineRegistry()
    registry.suspend("somebody")

    report = nemo_rl_deadline_fix.status()

    (found,) = report.clocks
    assert set(found.holders) == {"somebody"}
    assert "clocks: stopped by somebody" in str(report)


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
    """A logger that raises spoils neither the snapshot nor the release of the clocks."""
    calls: list[dict[str, Any]] = []

    async def story() -> None:
        controller = _controller()

        def log(metrics: dict[str, float], **keywords: Any) -> None:
            calls.append({"metrics": metrics, **keywords})
            raise error

        controller._log_telemetry_metrics = log
        controller._train_steps = 12
        await controller._prepare_and_commit_gym_checkpoint("one", "somewhere")
        await asyncio.sleep(3.0)
        await controller._release_prepared_gym_checkpoint("one", committed=True)
        assert not controller._rollout_manager._request_deadlines.holders

    with caplog.at_level(logging.WARNING, "nemo_rl.deadline_fix"):
        virtual(story())
    assert calls == [
        {"metrics": {"held_seconds": 3.0, "covered": 0.0}, "step": 12, "prefix": "rollout/deadlines"}
    ]
    assert caplog.records == []


def test_an_aborted_snapshot_logs_once() -> None:
    """The abort inside of prepare and commit ends the hold and logs it; the outer call has nothing to log."""

    async def story() -> list[dict[str, float]]:
        controller = _controller()
        logged: list[dict[str, float]] = []
        controller._log_telemetry_metrics = lambda metrics, **_: logged.append(metrics)

        async def fails(*_: Any) -> None:
            await asyncio.sleep(3.0)
            raise OSError("commit")

        controller._gym.commit_checkpoint = Remote(fails)
        with pytest.raises(OSError, match="commit"):
            await controller._prepare_and_commit_gym_checkpoint("one", "somewhere")
        return logged

    assert virtual(story()) == [{"held_seconds": 3.0, "covered": 0.0}]


def test_a_controller_without_telemetry_is_fine() -> None:
    """Where the controller has no telemetry method, nothing is logged and nothing fails."""

    async def story() -> None:
        controller = _controller()
        await controller._prepare_and_commit_gym_checkpoint("one", "somewhere")
        await controller._release_prepared_gym_checkpoint("one", committed=True)
        assert not controller._rollout_manager._request_deadlines.holders

    virtual(story())


class _Gym:
    """A Gym that is always ready and does everything at once."""

    def __init__(self) -> None:
        async def prepare(*_: Any) -> Prepared:
            return Prepared(0, 0, 0)

        async def commit(checkpoint_id: str, *_: Any) -> Committed:
            return Committed(checkpoint_id)

        async def resume(*_: Any) -> None:
            pass

        self.prepare_checkpoint = Remote(prepare)
        self.commit_checkpoint = Remote(commit)
        self.resume_checkpoint = self.abort_checkpoint = Remote(resume)


def _controller() -> Any:
    controller = subjects.fixed(subjects.embedded()).controller
    return controller(rl.RolloutManager(), _Gym(), 300.0)
