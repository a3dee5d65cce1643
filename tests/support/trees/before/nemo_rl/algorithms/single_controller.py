"""The controller: training, weight sync, and snapshots without Gym's part."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ray


@ray.remote(num_cpus=1, num_gpus=0)  # pragma: no cover
class SingleControllerActor:
    """Admits rollouts, trains on them, hands out weights and saves."""

    def __init__(
        self, master_config: Any, actor_args: Any, setup_timing_metrics: Any = None
    ) -> None:
        self._master_config = master_config
        self._rollout_manager = actor_args.rollout_manager
        self._env_handles = actor_args.env_handles
        self._gen = actor_args.gen
        self._weight_synchronizer = actor_args.weight_synchronizer
        self._trainer_version = 0
        self._train_steps = 0
        self._checkpoint_save_lock = asyncio.Lock()

        # Closed during a weight sync and while a colocated engine trains.
        self._rollout_permitted: asyncio.Event = asyncio.Event()
        self._rollout_permitted.set()

    async def _train_chunk(self, train: Any) -> None:
        """Train on one chunk; a colocated engine cannot serve meanwhile."""
        if self._gen.blocks_training():
            self._rollout_permitted.clear()
            self._rollout_manager.suspend_request_deadlines()
            await asyncio.to_thread(self._gen.finish_generation)
        await train()
        self._train_steps += 1

    async def _sync_weights(self) -> None:
        """Hand the trainer's weights to the engine, then let rollouts go on."""
        self._rollout_permitted.clear()
        await asyncio.to_thread(self._weight_synchronizer.sync_weights)
        self._trainer_version += 1
        self._rollout_manager.set_weight_version(self._trainer_version)
        self._rollout_permitted.set()
        self._rollout_manager.resume_request_deadlines()

    async def _save_rollout_checkpoint(self, path: Path, publish: Any) -> bool:
        """Save what the data plane has; rollouts in flight start again from nothing."""
        async with self._checkpoint_save_lock:
            await publish(path)
            return True
