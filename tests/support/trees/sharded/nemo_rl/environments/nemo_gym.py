"""One Gym actor or several, under one roof: a small stand-in for the class of that name."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class NemoGymShardSet:
    """Gym actors by label, in the order in which a snapshot asks them."""

    def __init__(self, shards: dict[str, Any]) -> None:
        self._shards = dict(shards)

    @property
    def checkpoint_instances(self) -> tuple[tuple[str, Any], ...]:
        """Label and actor of each shard."""
        return tuple(self._shards.items())

    def checkpoint_relative_dir(self, label: str) -> Path:
        """Where a shard keeps its own part of a snapshot, below the snapshot's folder."""
        return Path("shards") / label

    def model_restore_instances(
        self, *, generation_prefix_cuts_enabled: bool
    ) -> tuple[tuple[str, Any], ...]:
        """The shards whose model proxies were restored: the first, or all with cuts."""
        instances = self.checkpoint_instances
        return instances if generation_prefix_cuts_enabled else instances[:1]


def as_nemo_gym_shard_set(environment: Any) -> NemoGymShardSet:
    """A set as it is; a single actor as a set of one."""
    if isinstance(environment, NemoGymShardSet):
        return environment
    return NemoGymShardSet({"nemo_gym": environment})
