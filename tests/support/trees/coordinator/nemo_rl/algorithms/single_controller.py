"""The controller: training, weight sync, and Gym snapshots through a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

import ray

from nemo_rl.environments.gym_checkpoint_adapter import GymCheckpointEpisode
from nemo_rl.environments.gym_checkpoint_coordinator import (
    GymCheckpointCommitResult,
    GymCheckpointCoordinator,
)
from nemo_rl.experience.rollout_manager import RolloutDispatchAdmissionGate


@ray.remote(num_cpus=1, num_gpus=0)  # pragma: no cover
class SingleControllerActor:
    """Trains on rollouts, hands out weights and takes snapshots."""

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
        # Which attempts Gym has, by Gym; and those that RL gave up on.
        self._gym_episodes: dict[str, list[GymCheckpointEpisode]] = {}
        self._dropped_gym_episodes: dict[str, list[GymCheckpointEpisode]] = {}
        self._gym_checkpoint_coordinator: Optional[GymCheckpointCoordinator] = None
        self._rollout_dispatch_admission_gate: Optional[
            RolloutDispatchAdmissionGate
        ] = None
        if master_config.rollout_recovery.target_level in ("turn", "prefix"):
            self._gym_checkpoint_coordinator = GymCheckpointCoordinator(
                {"nemo_gym": self._env_handles["nemo_gym"]},
                control_timeout_s=master_config.token_capture.control_timeout_s,
            )
            self._rollout_dispatch_admission_gate = RolloutDispatchAdmissionGate()
            self._rollout_manager.set_rollout_dispatch_admission_gate(
                self._rollout_dispatch_admission_gate
            )

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

    def _gym_checkpoint_inventory(
        self, coordinator: GymCheckpointCoordinator
    ) -> dict[str, tuple[GymCheckpointEpisode, ...]]:
        """Attempts that Gym is at, by Gym."""
        return {
            label: tuple(self._gym_episodes.get(label, ()))
            for label in coordinator.instance_ids
        }

    @contextlib.asynccontextmanager
    async def _prepared_gym_checkpoint(
        self, checkpoint_path: Path, *, checkpoint_id: str, enabled: bool = True
    ) -> AsyncIterator[Optional[GymCheckpointCommitResult]]:
        """Keep new rollouts back and Gym parked while the body saves the rest."""
        coordinator = self._gym_checkpoint_coordinator
        if not enabled or coordinator is None:
            yield None
            return
        gate = self._rollout_dispatch_admission_gate
        if gate is None:
            raise RuntimeError("a coordinator, and no gate")

        async with gate.closed():
            async with coordinator.prepared(checkpoint_id):
                commit = await coordinator.commit(
                    checkpoint_id,
                    checkpoint_path,
                    self._gym_checkpoint_inventory(coordinator),
                )
                yield commit

    async def _save_rollout_checkpoint(
        self, checkpoint_id: str, path: Path, publish: Any
    ) -> bool:
        """Take one snapshot between two steps of the trainer."""
        async with self._checkpoint_save_lock:
            async with self._prepared_gym_checkpoint(path, checkpoint_id=checkpoint_id):
                await publish()
            return True

    async def _save_trainer_checkpoint(self, path: Path, save: Any) -> None:
        """Save the trainer, with the rollouts of that moment."""
        async with self._checkpoint_save_lock:
            async with self._prepared_gym_checkpoint(
                path, checkpoint_id=f"step-{self._train_steps}"
            ):
                await save()
