"""What Gym answers to snapshot calls, and the adapter in Gym's actor that answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class GymCheckpointUnavailable(RuntimeError):
    """Gym could not be reached, and another try may reach it."""


@dataclass(frozen=True, order=True)
class GymCheckpointEpisode:
    """One attempt at one rollout, as Gym knows it."""

    rollout_id: str
    attempt: int


@dataclass(frozen=True)
class GymCheckpointPrepareSummary:
    """Whether everything is parked, and what is not."""

    prepared: bool
    blockers: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class GymCheckpointCommitSummary:
    """The attempts that one Gym has written."""

    exported_episodes: tuple[GymCheckpointEpisode, ...] = ()
    staging_keys: tuple[str, ...] = ()


class GymCheckpointAdapter:
    """Stands between Gym's own snapshot calls and the names that NeMo RL calls."""

    def __init__(self, participant: Any) -> None:
        self._participant = participant

    async def checkpoint_prepare(
        self, checkpoint_id: str, *, deadline_ts: float
    ) -> GymCheckpointPrepareSummary:
        blockers = await self._participant.prepare(checkpoint_id, deadline_ts)
        return GymCheckpointPrepareSummary(not blockers, blockers)

    async def checkpoint_commit(
        self,
        checkpoint_id: str,
        checkpoint_root: str,
        episodes: tuple[GymCheckpointEpisode, ...],
        *,
        deadline_ts: float,
    ) -> GymCheckpointCommitSummary:
        await self._participant.commit(checkpoint_id, checkpoint_root, deadline_ts)
        return GymCheckpointCommitSummary(exported_episodes=episodes)
