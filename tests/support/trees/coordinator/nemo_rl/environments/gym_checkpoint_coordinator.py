"""One snapshot call at a time, made of every Gym there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from nemo_rl.environments.gym_checkpoint_adapter import (
    GymCheckpointCommitSummary,
    GymCheckpointEpisode,
)

_REPLY_GRACE_S = 5.0

EpisodesByInstance = Mapping[str, tuple[GymCheckpointEpisode, ...]]


class GymCheckpointNotReady(RuntimeError):
    """Something in a Gym could not be parked in time."""


@dataclass(frozen=True)
class GymCheckpointCommitResult:
    """What each Gym has written."""

    checkpoint_id: str
    instances: dict[str, GymCheckpointCommitSummary]


class GymCheckpointCoordinator:
    """Calls every Gym and waits for all of them, each call within its own limit."""

    def __init__(self, handles: Mapping[str, Any], *, control_timeout_s: float) -> None:
        self._handles = dict(handles)
        self.control_timeout_s = control_timeout_s

    @property
    def instance_ids(self) -> frozenset[str]:
        return frozenset(self._handles)

    async def _call(
        self, name: str, *args: Any, episodes: Optional[EpisodesByInstance] = None
    ) -> dict[str, Any]:
        deadline_ts = time.time() + self.control_timeout_s
        calls = []
        for label, handle in self._handles.items():
            own = () if episodes is None else (episodes[label],)
            method = getattr(handle, f"checkpoint_{name}")
            calls.append(method.remote(*args, *own, deadline_ts=deadline_ts))
        async with asyncio.timeout(self.control_timeout_s + _REPLY_GRACE_S):
            answers = await asyncio.gather(*calls)
        return dict(zip(self._handles, answers, strict=True))

    async def prepare(self, checkpoint_id: str) -> None:
        answers = await self._call("prepare", checkpoint_id)
        if blockers := {
            label: answer.blockers
            for label, answer in answers.items()
            if not answer.prepared
        }:
            raise GymCheckpointNotReady(f"not parked: {blockers}")

    async def commit(
        self, checkpoint_id: str, checkpoint_root: Path, episodes: EpisodesByInstance
    ) -> GymCheckpointCommitResult:
        answers = await self._call(
            "commit", checkpoint_id, str(checkpoint_root), episodes=episodes
        )
        return GymCheckpointCommitResult(checkpoint_id, answers)

    async def retire(self, checkpoint_id: str, episodes: EpisodesByInstance) -> None:
        await self._call("retire", checkpoint_id, episodes=episodes)

    async def renew(self, checkpoint_id: str) -> None:
        await self._call("renew", checkpoint_id)

    async def resume(self, checkpoint_id: str) -> None:
        await self._call("resume", checkpoint_id)

    async def _keep_lease(self, checkpoint_id: str) -> None:
        while True:
            await asyncio.sleep(self.control_timeout_s / 3)
            await self.renew(checkpoint_id)

    @asynccontextmanager
    async def prepared(self, checkpoint_id: str) -> AsyncIterator[None]:
        """Park every Gym, keep its lease while the body runs, and resume at any end."""
        try:
            await self.prepare(checkpoint_id)
            await self.renew(checkpoint_id)
            lease = asyncio.create_task(self._keep_lease(checkpoint_id))
            try:
                yield
            finally:
                lease.cancel()
                await asyncio.gather(lease, return_exceptions=True)
        finally:
            await self.resume(checkpoint_id)
