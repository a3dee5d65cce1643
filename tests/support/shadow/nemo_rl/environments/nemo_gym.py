"""Gym's actor and its agent participant: running, park requested, parked, completed until ACKed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import ray

Key = tuple[str, int]


class AgentCheckpointParticipant:
    """States of the executions of one agent, and what a snapshot needs to know of them."""

    def __init__(self) -> None:
        self.states: dict[Key, str] = {}
        self.changed = asyncio.Event()
        self._admission = asyncio.Event()
        self._admission.set()
        self._parking = asyncio.Event()

    async def begin(self, key: Key) -> None:
        await self._admission.wait()
        self._enter(key, "running")

    def _enter(self, key: Key, state: str) -> None:
        self.states[key] = state
        self.changed.set()
        self.changed = asyncio.Event()

    async def boundary(self, key: Key) -> None:
        """A turn's end: park here if that was asked for."""
        if self._parking.is_set():
            self._enter(key, "parked")
            await self._admission.wait()
            self._enter(key, "running")

    async def parking(self) -> None:
        await self._parking.wait()

    def finish(self, key: Key) -> None:
        self._enter(key, "completed")

    def prepare(self) -> dict[str, Any]:
        self._admission.clear()
        self._parking.set()
        states = list(self.states.values())
        report = {
            "running": states.count("running"),
            "parked": states.count("parked"),
            "completed_unacknowledged": states.count("completed"),
        }
        return {**report, "ready_to_commit": not report["running"] and not report["completed_unacknowledged"]}

    def resume(self) -> None:
        self._parking.clear()
        self._admission.set()

    def acknowledge(self, key: Key) -> None:
        self.states.pop(key)


@ray.remote(num_cpus=0, num_gpus=0)
class NemoGym:
    """The actor through which RL reaches Gym."""

    def __init__(self) -> None:
        self._agent = AgentCheckpointParticipant()

    async def run_rollouts(self, rollout_id: str, attempt: int) -> AsyncIterator[dict[str, Any]]:
        """Runs to its end, also when nobody reads it any more."""
        key = (rollout_id, attempt)
        await self._agent.begin(key)
        if attempt == 0:
            # The first turn of try 0 lasts until a snapshot is asked for, whatever the machine's speed.
            await self._agent.parking()
        await self._agent.boundary(key)
        self._agent.finish(key)
        yield {"reward": 1.0, "attempt": attempt}

    async def prepare_checkpoint(self, checkpoint_id: str, deadline_ts: float) -> dict[str, Any]:
        while not (report := self._agent.prepare())["ready_to_commit"]:
            if time.time() > deadline_ts:
                self._agent.resume()
                raise TimeoutError(f"{checkpoint_id}: {report}")
            await asyncio.sleep(0.02)
        return report

    async def commit_checkpoint(self, checkpoint_id: str, deadline_ts: float, checkpoint_dir: str) -> None:
        pass

    async def resume_checkpoint(self, checkpoint_id: str, deadline_ts: float) -> None:
        self._agent.resume()

    async def abort_checkpoint(self, checkpoint_id: str, deadline_ts: float) -> None:
        self._agent.resume()

    async def acknowledge_completed_executions(self, executions: list[Key]) -> None:
        for rollout_id, attempt in executions:
            self._agent.acknowledge((rollout_id, attempt))

    async def wait_for(self, rollout_id: str, attempt: int, state: str) -> None:
        """Return once an execution is in a state."""
        while self._agent.states.get((rollout_id, attempt)) != state:
            await self._agent.changed.wait()

    async def state(self, rollout_id: str, attempt: int) -> str | None:
        return self._agent.states.get((rollout_id, attempt))
