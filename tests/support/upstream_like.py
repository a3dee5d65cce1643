"""The embedded model's controller before a Gym that is a script, for tests of single objects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix.replay.gym import Committed, Remote
from nemo_rl_deadline_fix.replay.rl import (
    RolloutManager,
    RolloutTimeout,
    SingleControllerActor,
    _Deadline,
    _PendingGymCheckpointRelease,
)
from nemo_rl_deadline_fix.wrapping import patch

STEP_S = 10.0
"""Seconds that each of Gym's calls takes."""


class ScriptedGym:
    """Gym by script: `plan[call]` lists what the call's next turns do, after that it succeeds.

    Calls are flush, prepare, commit, resume and abort; each takes `STEP_S` and then raises the
    exception that the plan has, hangs at "hang", or is not ready at "not ready".
    """

    def __init__(self, plan: dict[str, list[Any]]) -> None:
        self.plan = {call: list(steps) for call, steps in plan.items()}
        self.calls: list[tuple[str, str]] = []
        for call in ("prepare", "commit", "resume", "abort"):
            setattr(self, f"{call}_checkpoint", Remote(self._turn(call)))

    def _turn(self, call: str) -> Callable[..., Awaitable[Any]]:
        async def turn(checkpoint_id: str, *_: Any) -> Any:
            return await self.take(call, checkpoint_id)

        return turn

    async def take(self, call: str, checkpoint_id: str) -> Any:
        """One call: its seconds, then what the plan says."""
        self.calls.append((call, checkpoint_id))
        await asyncio.sleep(STEP_S)
        step = self.plan[call].pop(0) if self.plan.get(call) else None
        if step == "hang":
            await asyncio.get_running_loop().create_future()
        if isinstance(step, BaseException):
            raise step
        return Committed(checkpoint_id) if call == "commit" else SimpleNamespace(ready=step != "not ready")


def controller(
    plan: dict[str, list[Any]] | None = None,
    *,
    patched: bool = True,
    kind: type[SingleControllerActor] = SingleControllerActor,
) -> Any:
    """A controller over a Gym of this plan, with the fix on a class of its own unless told otherwise."""
    cls = type(kind.__name__, (kind,), {})
    if patched:
        patch(cls)
    gym = ScriptedGym(plan or {})
    built = cls(RolloutManager(), gym, 300.0)
    built._flush_completed_gym_acknowledgements = lambda: gym.take("flush", "")
    return built


async def snapshot(
    controller: Any, checkpoint_id: str, publish: Callable[[], Awaitable[None]] | None = None
) -> Any:
    """One tick of the snapshot pump: a pending release first, then prepare, commit, publish, release."""
    if controller._pending_gym_checkpoint_release is not None:
        await controller._release_committed_gym_checkpoint(controller._pending_gym_checkpoint_release)
    result = await controller._prepare_and_commit_gym_checkpoint(checkpoint_id, "a directory")
    if publish is not None:
        await publish()
    await controller._release_committed_gym_checkpoint(
        _PendingGymCheckpointRelease(checkpoint_id, "a directory", False)
    )
    return result


async def rollout(registry: Any, budget_s: float | None, reply: Awaitable[Any]) -> tuple[Any, Any]:
    """Wait for a reply within a budget; returns the reply or "timeout", and when, in loop time."""
    try:
        async with _Deadline(budget_s, "rollout", registry):
            outcome = await reply
    except RolloutTimeout:
        outcome = "timeout"
    return outcome, asyncio.get_running_loop().time()


async def never() -> None:
    """A reply that does not come."""
    await asyncio.get_running_loop().create_future()


def clock_forward(seconds: float) -> None:
    """Let the virtual clock run on while the loop is blocked."""
    if seconds:
        asyncio.get_running_loop()._jumping.now += seconds  # type: ignore[attr-defined]


class BareDeadline:
    """A deadline that only writes down what it was told, and fails when it is told to."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.told: list[str] = []
        self.failing = failing

    def suspend(self) -> None:
        self._tell("suspend")

    def resume(self) -> None:
        self._tell("resume")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what in self.failing:
            raise RuntimeError(f"cannot {what}")
