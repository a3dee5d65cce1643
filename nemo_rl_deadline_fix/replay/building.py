"""A bare controller over a bare manager, built without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay.gym import GymShards
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.subjects import Subject

GIVEN = frozenset(
    {
        "_nemo_gym_checkpoint_actor",
        "_nemo_gym_checkpoint_shards",
        "_nemo_gym_checkpoint_instances",
        "_flush_completed_gym_acknowledgements",
        "_clear_generation_cut_staging_rows",
        targets.TELEMETRY,
    }
)
"""The controller's methods that a simulation gives, because they stand for a ledger or a cluster."""


class _Settings(SimpleNamespace):
    """A config in which everything that was not set is off."""

    def __getattr__(self, name: str) -> None:
        return None


def build_controller(
    subject: Subject,
    gym: Sequence[Any],
    parameters: Parameters,
    *,
    gate: asyncio.Event,
    acknowledge: Callable[[], Awaitable[int]],
    telemetry: list[dict[str, float]],
) -> Any:
    """Build a controller: its own `__init__` as far as that needs no cluster, and stand-ins for the cluster.

    Args:
        subject: Whose classes to build.
        gym: The actors in front of Gym's shards.
        parameters: Where the config's numbers come from.
        gate: The gate of Gym snapshots, open.
        acknowledge: Stands for the flush of ACKs.
        telemetry: Takes the metrics that the controller logs.

    Returns:
        The controller.
    """
    manager: Any = object.__new__(subject.manager)
    setattr(manager, targets.REGISTRY, subject.registry())
    config = _Settings(
        rollout_checkpointing=_Settings(
            gym=_Settings(
                prepare_timeout_s=parameters.prepare_timeout,
                participant_checkpointing_enabled=True,
                generation_prefix_cuts_enabled=False,
            )
        )
    )
    shards = GymShards(gym)
    controller: Any = object.__new__(subject.controller)
    subject.initialise(controller, config)
    given = {
        targets.MANAGER: manager,
        targets.GATE: gate,
        targets.TELEMETRY: lambda metrics, **_: telemetry.append(dict(metrics)),
        "_master_config": config,
        "_train_steps": 0,
        "_env_handles": {"nemo_gym": gym[0]},
        "_gym_checkpoint_topology": SimpleNamespace(validate_checkpoint_participants=lambda _: None),
        "_nemo_gym_checkpoint_actor": lambda: gym[0],
        "_nemo_gym_checkpoint_shards": lambda: shards,
        "_nemo_gym_checkpoint_instances": lambda: shards.checkpoint_instances,
        "_flush_completed_gym_acknowledgements": acknowledge,
        "_clear_generation_cut_staging_rows": _nothing,
    }
    for name, value in given.items():
        setattr(controller, name, value)
    return controller


def holders_left(registry: Any) -> tuple[str, ...]:
    """Who still holds a registry's clocks: by name where it knows names."""
    names = getattr(registry, "holders", None) or getattr(registry, "_holders", None) or ()
    if registry.suspended and not names:
        return ("(unnamed)",)
    return tuple(sorted(names))


async def _nothing(*_: Any) -> None:
    """Nothing is in the cluster that is not there."""
