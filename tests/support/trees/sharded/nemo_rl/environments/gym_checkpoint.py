"""What a Gym snapshot's calls answer: small stand-ins for the models of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GymCheckpointPrepareResult:
    """Answer of a prepare call."""

    checkpoint_id: str
    ready: bool
    participants: list[Any] = field(default_factory=list)

    @classmethod
    def model_validate(cls, answer: dict[str, Any]) -> "GymCheckpointPrepareResult":
        return cls(**answer)


@dataclass(frozen=True)
class GymParticipantIdentity:
    """Which server of Gym took part."""

    component: str
    server_name: str


@dataclass(frozen=True)
class GymAgentCommitResponse:
    """What an agent server wrote."""

    continuation_index: str


@dataclass(frozen=True)
class GymParticipantCommitResult:
    """What one server wrote, and where, relative to the snapshot's folder."""

    participant: GymParticipantIdentity
    payload: Any
    manifest: Path


@dataclass(frozen=True)
class GymCheckpointCommitResult:
    """Answer of a commit call."""

    checkpoint_id: str
    participants: list[GymParticipantCommitResult] = field(default_factory=list)

    @classmethod
    def model_validate(cls, answer: dict[str, Any]) -> "GymCheckpointCommitResult":
        return cls(**answer)


def rebase_gym_checkpoint_commit_result(
    checkpoint: GymCheckpointCommitResult, below: Path
) -> GymCheckpointCommitResult:
    """The same answer with its paths below another folder."""
    moved = [
        replace(result, manifest=below / result.manifest)
        for result in checkpoint.participants
    ]
    return replace(checkpoint, participants=moved)


def gym_checkpoint_continuations(
    checkpoint_dir: Path, checkpoint: GymCheckpointCommitResult
) -> list[str]:
    """Where the parked rollouts can be taken up again: one index for each agent server."""
    return [
        result.payload.continuation_index
        for result in checkpoint.participants
        if isinstance(result.payload, GymAgentCommitResponse)
    ]
