"""Snapshots of rollouts in flight."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nemo_rl.environments.checkpointing.nemo_gym import NemoGymCheckpointing


class RolloutCheckpointing:
    """Keeps new rollouts back, stops the clocks and has Gym write its part."""

    def __init__(self, rollout_manager: Any, env_handles: dict[str, Any]) -> None:
        self._rollout_manager = rollout_manager
        self._gym = NemoGymCheckpointing(env_handles["nemo_gym"])

    @asynccontextmanager
    async def snapshot(self, path: Path) -> AsyncIterator[None]:
        """Park Gym while the body saves the rest."""
        self._rollout_manager.suspend_request_deadlines("gym_checkpoint")
        try:
            async with self._gym.parked(path):
                yield
        finally:
            self._rollout_manager.resume_request_deadlines("gym_checkpoint")
