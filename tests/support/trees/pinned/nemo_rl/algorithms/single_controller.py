"""The controller: two gates of admission, training, weight sync and Gym snapshots."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import ray

from nemo_rl.environments.gym_checkpoint import (
    GymCheckpointCommitResult,
    GymCheckpointPrepareResult,
    validate_gym_checkpoint_manifests,
)


@dataclass(frozen=True)
class _PendingGymCheckpointRelease:
    """A snapshot that is published, but that Gym has not been released from."""

    checkpoint_id: str
    snapshot_path: Path
    trainer_anchored: bool


class _GymCheckpointReleasePendingError(OSError):
    """Gym could not be released, so admission stays closed."""


@ray.remote(num_cpus=1, num_gpus=0)  # pragma: no cover
class SingleControllerActor:
    """Admits rollouts, trains on them, hands out weights and takes snapshots."""

    def __init__(
        self, master_config: Any, actor_args: Any, setup_timing_metrics: Any = None
    ) -> None:
        self._master_config = master_config
        self._rollout_manager = actor_args.rollout_manager
        self._env_handles = actor_args.env_handles
        self._gen = actor_args.gen
        self._weight_synchronizer = actor_args.weight_synchronizer
        self._gym_checkpoint_topology = actor_args.gym_checkpoint_topology
        self._trainer_version = 0
        self._train_steps = 0
        self._checkpoint_save_lock = asyncio.Lock()

        # Closed during a weight sync and while a colocated engine trains.
        self._rollout_permitted: asyncio.Event = asyncio.Event()
        self._rollout_permitted.set()
        # Closed during a Gym snapshot, whatever the other gate does.
        self._gym_checkpoint_rollout_permitted: asyncio.Event = asyncio.Event()
        self._gym_checkpoint_rollout_permitted.set()
        self._gym_acknowledgements: list[Any] = []
        self._pending_gym_checkpoint_release: Optional[_PendingGymCheckpointRelease]
        self._pending_gym_checkpoint_release = None

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

    def _nemo_gym_checkpoint_actor(self) -> Any:
        return self._env_handles["nemo_gym"]

    async def _flush_completed_gym_acknowledgements(self) -> int:
        """Tell Gym which replies were taken over; return how many."""
        pending = list(self._gym_acknowledgements)
        if not pending:
            return 0
        gym_actor = self._nemo_gym_checkpoint_actor()
        await gym_actor.acknowledge_completed_executions.remote(pending)
        del self._gym_acknowledgements[: len(pending)]
        return len(pending)

    async def _wait_for_rollout_admission(self) -> None:
        """Return once both gates are open at the same time."""
        gates = (self._rollout_permitted, self._gym_checkpoint_rollout_permitted)
        while not all(gate.is_set() for gate in gates):
            for gate in gates:
                await gate.wait()

    async def _prepare_and_commit_gym_checkpoint(
        self,
        checkpoint_id: str,
        checkpoint_dir: Path,
    ) -> tuple[GymCheckpointPrepareResult, GymCheckpointCommitResult]:
        """Close admission, park Gym and let it write its part of the snapshot."""
        timeout_s = self._master_config.rollout_checkpointing.gym.prepare_timeout_s
        gym_actor = self._nemo_gym_checkpoint_actor()
        prepared = False
        self._gym_checkpoint_rollout_permitted.clear()
        try:
            # Gym is not ready while it keeps replies that nobody took over.
            await self._flush_completed_gym_acknowledgements()
            answer = await gym_actor.prepare_checkpoint.remote(
                checkpoint_id, time.time() + timeout_s
            )
            prepare = GymCheckpointPrepareResult.model_validate(answer)
            if not prepare.ready:
                raise RuntimeError(f"Gym is not ready for {checkpoint_id!r}")
            prepared = True
            answer = await gym_actor.commit_checkpoint.remote(
                checkpoint_id, time.time() + timeout_s, str(checkpoint_dir)
            )
            checkpoint = GymCheckpointCommitResult.model_validate(answer)
            if checkpoint.checkpoint_id != checkpoint_id:
                raise RuntimeError(f"Gym committed {checkpoint.checkpoint_id!r}")
            if self._gym_checkpoint_topology is None:
                raise RuntimeError("nobody knows Gym's participants")
            self._gym_checkpoint_topology.validate_checkpoint_participants(checkpoint)
            await asyncio.to_thread(
                validate_gym_checkpoint_manifests, checkpoint_dir, checkpoint
            )
            return prepare, checkpoint
        except BaseException as checkpoint_error:
            recovery_errors: list[BaseException] = [checkpoint_error]
            if prepared:
                try:
                    await self._release_prepared_gym_checkpoint(
                        checkpoint_id, committed=False
                    )
                except BaseException as abort_error:
                    recovery_errors.append(abort_error)
            else:
                self._gym_checkpoint_rollout_permitted.set()
            if len(recovery_errors) > 1:
                raise BaseExceptionGroup("snapshot and abort failed", recovery_errors)
            raise

    async def _release_prepared_gym_checkpoint(
        self,
        checkpoint_id: str,
        *,
        committed: bool,
    ) -> None:
        """Let Gym go on, after a commit or without one, and reopen admission."""
        timeout_s = self._master_config.rollout_checkpointing.gym.prepare_timeout_s
        gym_actor = self._nemo_gym_checkpoint_actor()
        release = (
            gym_actor.resume_checkpoint if committed else gym_actor.abort_checkpoint
        )
        await release.remote(checkpoint_id, time.time() + timeout_s)
        # Not reached where Gym did not confirm: then admission stays closed.
        self._gym_checkpoint_rollout_permitted.set()

    async def _release_committed_gym_checkpoint(
        self,
        pending: _PendingGymCheckpointRelease,
    ) -> None:
        """Release a published snapshot; keep it as pending where that fails."""
        active = self._pending_gym_checkpoint_release
        if active is not None and active.checkpoint_id != pending.checkpoint_id:
            raise RuntimeError(f"{active.checkpoint_id!r} has yet to be released")
        self._pending_gym_checkpoint_release = pending
        try:
            await self._release_prepared_gym_checkpoint(
                pending.checkpoint_id, committed=True
            )
        except Exception as error:
            raise _GymCheckpointReleasePendingError(
                f"the release of {pending.checkpoint_id!r} will be tried again"
            ) from error
        self._pending_gym_checkpoint_release = None

    async def _save_rollout_checkpoint(
        self, checkpoint_id: str, path: Path, publish: Any
    ) -> bool:
        """Take one snapshot, or only finish the release of the one before."""
        async with self._checkpoint_save_lock:
            pending = self._pending_gym_checkpoint_release
            if pending is not None:
                await self._release_committed_gym_checkpoint(pending)
                return True
            await self._prepare_and_commit_gym_checkpoint(checkpoint_id, path)
            try:
                await publish()
            except BaseException:
                await self._release_prepared_gym_checkpoint(
                    checkpoint_id, committed=False
                )
                raise
            await self._release_committed_gym_checkpoint(
                _PendingGymCheckpointRelease(checkpoint_id, path, False)
            )
            return True
