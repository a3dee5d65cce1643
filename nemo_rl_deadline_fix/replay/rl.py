"""NeMo RL as it is upstream, as far as the defect goes: the embedded model.

This is our own code, written from the facts: the names, the order of events, the gate, the pending
release and the failure paths are upstream's, the text is not. It has the defect, on purpose.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from nemo_rl_deadline_fix.replay.clock import VirtualTime


class RolloutTimeout(Exception):  # noqa: N818 - upstream's name
    """A rollout that outlasted its budget."""


class RequestDeadlineRegistry:
    """One flag for everyone: any resume restarts every live deadline."""

    def __init__(self) -> None:
        self._live: set[_Deadline] = set()
        self.suspended = False

    def add(self, deadline: _Deadline) -> None:
        """Watch a deadline; born while suspended, it is suspended at once."""
        self._live.add(deadline)
        if self.suspended:
            deadline.suspend()

    def discard(self, deadline: _Deadline) -> None:
        """Forget a deadline."""
        self._live.discard(deadline)

    def suspend(self) -> None:
        """Stop every live deadline's clock."""
        if not self.suspended:
            self.suspended = True
            for deadline in self._live:
                deadline.suspend()

    def resume(self) -> None:
        """Run every live deadline's clock again."""
        if self.suspended:
            self.suspended = False
            for deadline in self._live:
                deadline.resume()


class _Deadline:
    """A budget for one prompt group, as an async context manager over `asyncio.timeout`."""

    def __init__(
        self, seconds: float | None, description: str, registry: RequestDeadlineRegistry | None = None
    ) -> None:
        self._seconds = seconds
        self._description = description
        self._registry = registry
        self._timeout: asyncio.Timeout | None = None
        self._remaining: float | None = None

    async def __aenter__(self) -> _Deadline:
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        if self._registry is not None:
            self._registry.add(self)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        assert self._timeout is not None
        if self._registry is not None:
            self._registry.discard(self)
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError as expired:
            # A TimeoutError of the body's own is not the budget's.
            if not self._timeout.expired():
                raise
            raise RolloutTimeout(f"{self._description} exceeded {self._seconds}s") from expired

    def suspend(self) -> None:
        """Bank what is left and stop the clock."""
        if self._timeout is None or self._timeout.expired():
            return
        when = self._timeout.when()
        if when is not None:
            self._remaining = max(0.0, when - asyncio.get_running_loop().time())
            self._timeout.reschedule(None)

    def resume(self) -> None:
        """Run the clock again with what was banked."""
        if self._timeout is not None and self._remaining is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._remaining)
            self._remaining = None


class RolloutManager:
    """Owner of the registry; the controller pauses the clocks through it."""

    def __init__(self) -> None:
        self._request_deadlines = RequestDeadlineRegistry()

    def suspend_request_deadlines(self) -> None:
        """Pause the clocks, as a colocated engine's switch to training does."""
        self._request_deadlines.suspend()

    def resume_request_deadlines(self) -> None:
        """Resume the clocks, as the end of every weight sync does."""
        self._request_deadlines.resume()


@dataclass(frozen=True)
class _PendingGymCheckpointRelease:
    """A published snapshot whose release Gym has not confirmed."""

    checkpoint_id: str
    snapshot_path: Any
    trainer_anchored: bool


class _GymCheckpointReleasePendingError(OSError):
    """The snapshot is published, and admission stays closed until Gym confirms its release."""


class SingleControllerActor:
    """The controller's part in a Gym snapshot."""

    def __init__(self, manager: Any, gym: Any, prepare_timeout_s: float) -> None:
        self._rollout_manager = manager
        self._gym = gym
        self._prepare_timeout_s = prepare_timeout_s
        self._gym_checkpoint_rollout_permitted = asyncio.Event()
        self._gym_checkpoint_rollout_permitted.set()
        self._pending_gym_checkpoint_release: _PendingGymCheckpointRelease | None = None

    def _nemo_gym_checkpoint_actor(self) -> Any:
        return self._gym

    async def _flush_completed_gym_acknowledgements(self) -> int:
        return 0

    async def _prepare_and_commit_gym_checkpoint(
        self, checkpoint_id: str, checkpoint_dir: Any
    ) -> tuple[Any, Any]:
        """Close admission, park Gym and let it write; returns with admission closed."""
        gym = self._nemo_gym_checkpoint_actor()
        prepared = False
        self._gym_checkpoint_rollout_permitted.clear()
        try:
            await self._flush_completed_gym_acknowledgements()
            prepare = await gym.prepare_checkpoint.remote(checkpoint_id, self._deadline_ts())
            if not prepare.ready:
                raise RuntimeError(f"Gym is not ready for snapshot {checkpoint_id}")
            prepared = True
            commit = await gym.commit_checkpoint.remote(
                checkpoint_id, self._deadline_ts(), str(checkpoint_dir)
            )
            if commit.checkpoint_id != checkpoint_id:
                raise RuntimeError(f"Gym committed {commit.checkpoint_id}, not {checkpoint_id}")
            return prepare, commit
        except BaseException as error:
            if prepared:
                try:
                    await self._release_prepared_gym_checkpoint(checkpoint_id, committed=False)
                except BaseException as abort_error:
                    raise BaseExceptionGroup(
                        "the snapshot failed, and so did its abort", [error, abort_error]
                    ) from None
            else:
                self._gym_checkpoint_rollout_permitted.set()
            raise

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        """Resume or abort in Gym; reopen admission only when Gym has confirmed."""
        gym = self._nemo_gym_checkpoint_actor()
        method = gym.resume_checkpoint if committed else gym.abort_checkpoint
        await method.remote(checkpoint_id, self._deadline_ts())
        self._gym_checkpoint_rollout_permitted.set()

    async def _release_committed_gym_checkpoint(self, pending: _PendingGymCheckpointRelease) -> None:
        """Release a published snapshot; while that fails it stays pending under the same id."""
        other = self._pending_gym_checkpoint_release
        if other is not None and other.checkpoint_id != pending.checkpoint_id:
            raise RuntimeError(f"snapshot {other.checkpoint_id} is still to be released")
        self._pending_gym_checkpoint_release = pending
        try:
            await self._release_prepared_gym_checkpoint(pending.checkpoint_id, committed=True)
        except Exception as error:
            raise _GymCheckpointReleasePendingError(
                f"snapshot {pending.checkpoint_id} is published, its release is pending"
            ) from error
        self._pending_gym_checkpoint_release = None

    def _deadline_ts(self) -> float:
        return VirtualTime.time() + self._prepare_timeout_s
