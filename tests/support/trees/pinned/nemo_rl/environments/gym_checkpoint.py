"""What a Gym snapshot's calls answer: small stand-ins for the models of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field
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
class GymCheckpointCommitResult:
    """Answer of a commit call."""

    checkpoint_id: str
    participants: list[Any] = field(default_factory=list)

    @classmethod
    def model_validate(cls, answer: dict[str, Any]) -> "GymCheckpointCommitResult":
        return cls(**answer)


def validate_gym_checkpoint_manifests(
    checkpoint_dir: Path, checkpoint: GymCheckpointCommitResult
) -> None:
    """Accept what was written: this stand-in keeps no files."""


def gym_generation_cut_staging_keys(prepare: GymCheckpointPrepareResult) -> set[str]:
    """Rows that hold cut generations: this stand-in's Gym makes none."""
    return set()
