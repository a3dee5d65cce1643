"""The controller over a Gym of one or more shards: its gates, and its Gym snapshots."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import ray

from nemo_rl.environments.gym_checkpoint import (
    GymAgentCommitResponse,
    GymCheckpointCommitResult,
    GymCheckpointPrepareResult,
    GymParticipantCommitResult,
    gym_checkpoint_continuations,
    rebase_gym_checkpoint_commit_result,
)
from nemo_rl.environments.nemo_gym import NemoGymShardSet, as_nemo_gym_shard_set

_SHARD_COMPONENTS = ["responses_api_agents", "resources_servers"]
_MODEL_COMPONENTS = ["responses_api_models"]


@dataclass(frozen=True)
class _PendingGymCheckpointRelease:
    """A snapshot that is published, but that Gym has not been released from."""

    checkpoint_id: str
    snapshot_path: Path
    trainer_anchored: bool


@dataclass(frozen=True)
class _PendingGymCheckpointAbort:
    """A snapshot that failed, but that Gym has not been told to give up."""

    checkpoint_id: str


class _GymCheckpointReleasePendingError(OSError):
    """Gym could not be released, so admission stays closed."""


class _GymCheckpointAbortPendingError(OSError):
    """Gym did not confirm that it gave the snapshot up, so admission stays closed."""


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
        self._gym_checkpoint_restore_operation_id: Optional[str] = (
            actor_args.gym_checkpoint_restore_operation_id
        )
        self._trainer_version = 0
        self._train_steps = 0
        self._checkpoint_save_lock = asyncio.Lock()

        # Closed during a weight sync and while a colocated engine trains.
        self._rollout_permitted: asyncio.Event = asyncio.Event()
        self._rollout_permitted.set()
        # Closed during a Gym snapshot, whatever the other gate does.
        self._gym_checkpoint_rollout_permitted: asyncio.Event = asyncio.Event()
        self._gym_checkpoint_rollout_permitted.set()
        self._generation_prefix_cuts_enabled = (
            master_config.rollout_checkpointing.gym.generation_prefix_cuts_enabled
        )
        self._generation_checkpoint_id: Optional[str] = None
        self._gym_acknowledgement_lock = asyncio.Lock()
        self._gym_acknowledgements: list[Any] = []
        self._pending_gym_checkpoint_abort: Optional[_PendingGymCheckpointAbort]
        self._pending_gym_checkpoint_abort = None
        self._pending_gym_checkpoint_release: Optional[_PendingGymCheckpointRelease]
        self._pending_gym_checkpoint_release = None

    async def run(self) -> None:
        """Take up what a restored snapshot left; only then would rollouts start."""
        if self._gym_checkpoint_restore_operation_id is not None:
            await self._release_restored_gym_checkpoint(
                self._gym_checkpoint_restore_operation_id
            )
            self._gym_checkpoint_restore_operation_id = None

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

    def _nemo_gym_checkpoint_shards(self) -> NemoGymShardSet:
        return as_nemo_gym_shard_set(self._env_handles["nemo_gym"])

    def _nemo_gym_checkpoint_instances(self) -> tuple[tuple[str, Any], ...]:
        """Label and actor of each shard."""
        return self._nemo_gym_checkpoint_shards().checkpoint_instances

    @staticmethod
    async def _await_gym_checkpoint_calls(
        operation: str, calls: list[tuple[str, Any]]
    ) -> dict[str, Any]:
        """Wait for all shards, however some of them end; return their answers by label."""
        ends = await asyncio.gather(
            *(call for _label, call in calls), return_exceptions=True
        )
        errors: list[BaseException] = []
        answers: dict[str, Any] = {}
        for (label, _call), end in zip(calls, ends, strict=True):
            if isinstance(end, BaseException):
                end.add_note(f"during {operation} on {label!r}")
                errors.append(end)
            else:
                answers[label] = end
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{operation} failed on some shards", errors)
        return answers

    async def _flush_completed_gym_acknowledgements(self) -> int:
        """Tell Gym which replies were taken over; return how many."""
        async with self._gym_acknowledgement_lock:
            pending = list(self._gym_acknowledgements)
            if not pending:
                return 0
            await self._await_gym_checkpoint_calls(
                "acknowledgement",
                [
                    (label, actor.acknowledge_completed_executions.remote(pending))
                    for label, actor in self._nemo_gym_checkpoint_instances()
                ],
            )
            del self._gym_acknowledgements[: len(pending)]
            return len(pending)

    async def _wait_for_rollout_admission(self) -> None:
        """Return once both gates are open at the same time."""
        gates = (self._rollout_permitted, self._gym_checkpoint_rollout_permitted)
        while not all(gate.is_set() for gate in gates):
            for gate in gates:
                await gate.wait()

    async def _commit_sharded_gym_checkpoint(
        self, checkpoint_id: str, checkpoint_dir: Path, timeout_s: float
    ) -> GymCheckpointCommitResult:
        """Let each shard write its own servers' part, and the first one the models'."""
        instances = self._nemo_gym_checkpoint_instances()
        if len(instances) == 1:
            _label, actor = instances[0]
            return GymCheckpointCommitResult.model_validate(
                await actor.commit_checkpoint.remote(
                    checkpoint_id, time.time() + timeout_s, str(checkpoint_dir)
                )
            )

        shards = self._nemo_gym_checkpoint_shards()
        calls: list[tuple[str, Any]] = []
        for label, actor in instances:
            folder = checkpoint_dir / shards.checkpoint_relative_dir(label)
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            call = actor.commit_checkpoint.remote(
                checkpoint_id,
                time.time() + timeout_s,
                str(folder),
                _SHARD_COMPONENTS,
                None,
            )
            calls.append((label, call))
        answers = await self._await_gym_checkpoint_calls("shard commit", calls)

        participants: list[GymParticipantCommitResult] = []
        continuations: list[str] = []
        for label, _actor in instances:
            checkpoint = GymCheckpointCommitResult.model_validate(answers[label])
            if checkpoint.checkpoint_id != checkpoint_id:
                raise RuntimeError(f"{label!r} committed {checkpoint.checkpoint_id!r}")
            moved = rebase_gym_checkpoint_commit_result(
                checkpoint, shards.checkpoint_relative_dir(label)
            )
            participants.extend(moved.participants)
            continuations.extend(
                result.payload.continuation_index
                for result in moved.participants
                if isinstance(result.payload, GymAgentCommitResponse)
            )

        label, actor = instances[0]
        models = GymCheckpointCommitResult.model_validate(
            await actor.commit_checkpoint.remote(
                checkpoint_id,
                time.time() + timeout_s,
                str(checkpoint_dir),
                _MODEL_COMPONENTS,
                continuations,
                [],
            )
        )
        if models.checkpoint_id != checkpoint_id:
            raise RuntimeError(f"{label!r} committed {models.checkpoint_id!r}")
        participants.extend(models.participants)
        participants.sort(
            key=lambda result: (
                result.participant.component,
                result.participant.server_name,
            )
        )
        return GymCheckpointCommitResult(
            checkpoint_id=checkpoint_id, participants=participants
        )

    async def _prepare_and_commit_gym_checkpoint(
        self,
        checkpoint_id: str,
        checkpoint_dir: Path,
    ) -> tuple[GymCheckpointPrepareResult, GymCheckpointCommitResult]:
        """Close admission, park every shard and let it write its part of the snapshot."""
        timeout_s = self._master_config.rollout_checkpointing.gym.prepare_timeout_s
        prepare_attempted = False
        self._gym_checkpoint_rollout_permitted.clear()
        try:
            # Gym is not ready while it keeps replies that nobody took over.
            await self._flush_completed_gym_acknowledgements()
            if self._generation_prefix_cuts_enabled:
                await asyncio.to_thread(
                    self._gen.begin_generation_checkpoint, timeout_s=timeout_s
                )
                self._generation_checkpoint_id = checkpoint_id
            # From here on a shard may be parked, even where its answer is lost.
            prepare_attempted = True
            deadline_ts = time.time() + timeout_s
            answers = await self._await_gym_checkpoint_calls(
                "prepare",
                [
                    (label, actor.prepare_checkpoint.remote(checkpoint_id, deadline_ts))
                    for label, actor in self._nemo_gym_checkpoint_instances()
                ],
            )
            prepares = []
            for label, answer in answers.items():
                result = GymCheckpointPrepareResult.model_validate(answer)
                if result.checkpoint_id != checkpoint_id or not result.ready:
                    raise RuntimeError(f"{label!r} is not ready for {checkpoint_id!r}")
                prepares.append(result)
            prepare = GymCheckpointPrepareResult(
                checkpoint_id=checkpoint_id,
                ready=True,
                participants=[
                    participant
                    for result in prepares
                    for participant in result.participants
                ],
            )
            checkpoint = await self._commit_sharded_gym_checkpoint(
                checkpoint_id, checkpoint_dir, timeout_s
            )
            if checkpoint.checkpoint_id != checkpoint_id:
                raise RuntimeError(f"Gym committed {checkpoint.checkpoint_id!r}")
            if self._gym_checkpoint_topology is None:
                raise RuntimeError("nobody knows Gym's participants")
            self._gym_checkpoint_topology.validate_checkpoint_participants(checkpoint)
            await asyncio.to_thread(
                gym_checkpoint_continuations, checkpoint_dir, checkpoint
            )
            return prepare, checkpoint
        except BaseException as checkpoint_error:
            recovery_errors: list[BaseException] = [checkpoint_error]
            if prepare_attempted:
                try:
                    await self._abort_prepared_gym_checkpoint(checkpoint_id)
                except _GymCheckpointAbortPendingError as abort_error:
                    abort_error.add_note(f"after {checkpoint_error!r}")
                    raise
                except BaseException as abort_error:
                    recovery_errors.append(abort_error)
            else:
                if self._generation_checkpoint_id == checkpoint_id:
                    try:
                        await asyncio.to_thread(
                            self._gen.finish_generation_checkpoint, timeout_s=timeout_s
                        )
                    except BaseException as fence_error:
                        recovery_errors.append(fence_error)
                    else:
                        self._generation_checkpoint_id = None
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
        """Let every shard go on, after a commit or without one, and reopen admission."""
        timeout_s = self._master_config.rollout_checkpointing.gym.prepare_timeout_s
        deadline_ts = time.time() + timeout_s
        self._gym_checkpoint_rollout_permitted.clear()
        calls = []
        for label, actor in self._nemo_gym_checkpoint_instances():
            release = actor.resume_checkpoint if committed else actor.abort_checkpoint
            calls.append((label, release.remote(checkpoint_id, deadline_ts)))
        operation = "resume" if committed else "abort"
        await self._await_gym_checkpoint_calls(operation, calls)
        if self._generation_checkpoint_id == checkpoint_id:
            await asyncio.to_thread(
                self._gen.finish_generation_checkpoint, timeout_s=timeout_s
            )
            self._generation_checkpoint_id = None
        # Not reached where a shard did not confirm: then admission stays closed.
        self._gym_checkpoint_rollout_permitted.set()

    async def _release_restored_gym_checkpoint(self, checkpoint_id: str) -> None:
        """Let every shard go on from the snapshot that it was restored from."""
        instances = self._nemo_gym_checkpoint_instances()
        if len(instances) == 1:
            await self._release_prepared_gym_checkpoint(checkpoint_id, committed=True)
            return

        timeout_s = self._master_config.rollout_checkpointing.gym.prepare_timeout_s
        deadline_ts = time.time() + timeout_s
        self._gym_checkpoint_rollout_permitted.clear()
        with_models = {
            label
            for label, _actor in self._nemo_gym_checkpoint_shards().model_restore_instances(
                generation_prefix_cuts_enabled=self._generation_prefix_cuts_enabled
            )
        }
        calls = []
        for label, actor in instances:
            only = () if label in with_models else (_SHARD_COMPONENTS,)
            call = actor.resume_checkpoint.remote(checkpoint_id, deadline_ts, *only)
            calls.append((label, call))
        await self._await_gym_checkpoint_calls("restore", calls)
        self._gym_checkpoint_rollout_permitted.set()

    async def _abort_prepared_gym_checkpoint(self, checkpoint_id: str) -> None:
        """Give a snapshot up; keep it as pending until every shard has confirmed."""
        active = self._pending_gym_checkpoint_abort
        if active is not None and active.checkpoint_id != checkpoint_id:
            raise RuntimeError(f"{active.checkpoint_id!r} has yet to be aborted")
        self._pending_gym_checkpoint_abort = _PendingGymCheckpointAbort(checkpoint_id)
        try:
            await self._release_prepared_gym_checkpoint(checkpoint_id, committed=False)
        except Exception as error:
            raise _GymCheckpointAbortPendingError(
                f"the abort of {checkpoint_id!r} will be tried again"
            ) from error
        self._pending_gym_checkpoint_abort = None

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
        """Take one snapshot, after the abort or the release of the one before."""
        async with self._checkpoint_save_lock:
            pending_abort = self._pending_gym_checkpoint_abort
            if pending_abort is not None:
                await self._abort_prepared_gym_checkpoint(pending_abort.checkpoint_id)
            pending_release = self._pending_gym_checkpoint_release
            if pending_release is not None:
                await self._release_committed_gym_checkpoint(pending_release)
                return True
            await self._prepare_and_commit_gym_checkpoint(checkpoint_id, path)
            try:
                await publish()
            except BaseException:
                await self._abort_prepared_gym_checkpoint(checkpoint_id)
                raise
            await self._release_committed_gym_checkpoint(
                _PendingGymCheckpointRelease(checkpoint_id, path, False)
            )
            return True
