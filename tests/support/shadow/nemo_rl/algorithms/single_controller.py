"""The controller: an asyncio actor with a gate that a Gym snapshot closes."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import ray
from nemo_rl.experience.failures import RolloutTimeout
from nemo_rl.experience.rollout_manager import RolloutManager


class _GymCheckpointReleasePendingError(OSError):
    """A committed snapshot could not be released; the same id is tried again."""


@ray.remote(num_cpus=1, num_gpus=0)
class SingleControllerActor:
    """Runs rollouts and snapshots; the manager comes pickled from the driver."""

    def __init__(self, rollout_manager: RolloutManager, gym_actor: Any, prepare_timeout_s: float) -> None:
        self._rollout_manager = rollout_manager
        self._gym_actor = gym_actor
        self._prepare_timeout_s = prepare_timeout_s
        self._rollout_permitted = asyncio.Event()
        self._rollout_permitted.set()
        self._gym_checkpoint_rollout_permitted = asyncio.Event()
        self._gym_checkpoint_rollout_permitted.set()
        self._pending_gym_checkpoint_release: str | None = None
        self._attempts: list[dict[str, Any]] = []
        self._given_up = asyncio.Event()
        self._telemetry: list[dict[str, Any]] = []
        self._train_steps = 7

    def _log_telemetry_metrics(self, metrics: dict[str, float], *, step: int, prefix: str) -> None:
        self._telemetry.append({"metrics": metrics, "step": step, "prefix": prefix})

    async def _wait_for_rollout_admission(self) -> None:
        for gate in (self._rollout_permitted, self._gym_checkpoint_rollout_permitted):
            await gate.wait()

    async def _prepare_and_commit_gym_checkpoint(
        self, checkpoint_id: str, checkpoint_dir: str
    ) -> dict[str, Any]:
        self._gym_checkpoint_rollout_permitted.clear()
        prepared = False
        deadline_ts = time.time() + self._prepare_timeout_s
        try:
            report: dict[str, Any] = await self._gym_actor.prepare_checkpoint.remote(
                checkpoint_id, deadline_ts
            )
            prepared = True
            await self._gym_actor.commit_checkpoint.remote(checkpoint_id, deadline_ts, checkpoint_dir)
        except BaseException:
            if prepared:
                await self._release_prepared_gym_checkpoint(checkpoint_id, committed=False)
            else:
                self._gym_checkpoint_rollout_permitted.set()
            raise
        return report

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        gym = self._gym_actor
        end = gym.resume_checkpoint if committed else gym.abort_checkpoint
        await end.remote(checkpoint_id, time.time() + self._prepare_timeout_s)
        self._gym_checkpoint_rollout_permitted.set()

    async def _release_committed_gym_checkpoint(self, pending: str) -> None:
        self._pending_gym_checkpoint_release = pending
        try:
            await self._release_prepared_gym_checkpoint(pending, committed=True)
        except Exception as error:
            raise _GymCheckpointReleasePendingError(pending) from error
        self._pending_gym_checkpoint_release = None

    async def _rollout(self, rollout_id: str) -> None:
        """One prompt group: when its deadline fires it is given up and tried once more."""
        for index in (0, 1):
            attempt: dict[str, Any] = {"index": index}
            self._attempts.append(attempt)
            try:
                attempt["reply"] = await self._rollout_manager.run(rollout_id, index)
            except RolloutTimeout as error:
                attempt["timeout"] = str(error)
                attempt["state_when_given_up"] = await self._gym_actor.state.remote(rollout_id, index)
                self._given_up.set()
            else:
                return

    async def _snapshot(self, checkpoint_id: str, publish_s: float) -> dict[str, Any]:
        """Prepare, commit, publish for some seconds or until the rollout is given up, release."""
        try:
            report = await self._prepare_and_commit_gym_checkpoint(checkpoint_id, "unused")
        except TimeoutError as error:
            # Ray's own subclass of it cannot be told apart further, and need not be.
            return {"ready_to_commit": False, "error": str(error)}
        report["suspended"] = self._rollout_manager._request_deadlines.suspended
        # A weight sync that never suspended ends in mid-snapshot.
        self._rollout_manager.resume_request_deadlines()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), publish_s)
        await self._release_committed_gym_checkpoint(checkpoint_id)
        return report

    async def story(self, rollout_id: str, publish_s: float) -> dict[str, Any]:
        """One rollout, a snapshot that outlasts its budget, and a second snapshot after it has ended."""
        # No budget runs while Gym's process is still starting.
        await self._gym_actor.state.remote(rollout_id, 0)
        rollout = asyncio.create_task(self._rollout(rollout_id))
        await self._gym_actor.wait_for.remote(rollout_id, 0, "running")
        first = await self._snapshot("first", publish_s)
        await rollout
        if "timeout" in self._attempts[0]:
            await self._gym_actor.wait_for.remote(rollout_id, 0, "completed")
        second = await self._snapshot("second", 0.0)
        registry = self._rollout_manager._request_deadlines
        return {
            "snapshots": [first, second],
            "attempts": self._attempts,
            "gate_open": self._gym_checkpoint_rollout_permitted.is_set(),
            "registry": f"{type(registry).__module__}.{type(registry).__name__}",
            "same_registry": registry is self._rollout_manager._rollouts._deadline_registry,
            "holders": dict(getattr(registry, "holders", {})),
            "telemetry": self._telemetry,
        }
