"""The classes that a simulation runs on, the fix put on them, and a controller built of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.wrapping import acknowledges, patch


@dataclass(frozen=True)
class Subject:
    """The classes under test.

    Attributes:
        path: The tree that they came from; "" for the embedded model.
        files: The files in it that were executed.
        registry: `RequestDeadlineRegistry`.
        deadline: `_Deadline`.
        timeout: `RolloutTimeout`.
        manager: A class with the two forwards.
        controller: A class with the snapshot's methods.
        pending_release: Makes a pending release of (id, path, trainer anchored).
        initialise: Does to a bare controller, given a config, what its own `__init__` does without cluster.
    """

    path: str
    files: tuple[str, ...]
    registry: type[Any]
    deadline: type[Any]
    timeout: type[BaseException]
    manager: type[Any]
    controller: type[Any]
    pending_release: Callable[[str, Path, bool], Any]
    initialise: Callable[[Any, Any], None]


def embedded() -> Subject:
    """The embedded model: our own code, of upstream's shape, with upstream's defect."""
    return Subject(
        path="",
        files=(),
        registry=rl.RequestDeadlineRegistry,
        deadline=rl._Deadline,
        timeout=rl.RolloutTimeout,
        manager=rl.RolloutManager,
        controller=rl.SingleControllerActor,
        pending_release=rl._PendingGymCheckpointRelease,
        initialise=lambda controller, config: rl.SingleControllerActor.__init__(
            controller, None, None, config.rollout_checkpointing.gym.prepare_timeout_s
        ),
    )


def fixed(subject: Subject, *, acknowledge: bool = False) -> Subject:
    """The same subject with the run-time fix on a subclass of its controller, which stays as it is."""
    controller = type(subject.controller.__name__, (subject.controller,), {})
    patch(controller, acknowledge=acknowledge)
    return replace(subject, controller=controller)


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
    ledger: Any = None,
) -> Any:
    """Build a controller: its own `__init__` as far as that needs no cluster, and stand-ins for the cluster.

    Args:
        subject: Whose classes to build.
        gym: The actors in front of Gym's shards.
        parameters: Where the config's numbers come from.
        gate: The gate of Gym snapshots, open.
        acknowledge: Stands for the flush of ACKs.
        telemetry: Takes the metrics that the controller logs.
        ledger: What RL can still use, for a controller that acknowledges what RL has given up on.
    """
    manager: Any = object.__new__(subject.manager)
    setattr(manager, targets.REGISTRY, subject.registry())
    snapshots = _Settings(
        prepare_timeout_s=parameters.prepare_timeout,
        participant_checkpointing_enabled=True,
        generation_prefix_cuts_enabled=False,
    )
    config = _Settings(rollout_checkpointing=_Settings(gym=snapshots))
    shards = SimpleNamespace(
        checkpoint_instances=tuple((f"gym-{number}", actor) for number, actor in enumerate(gym)),
        checkpoint_relative_dir=lambda label: label,
    )
    controller: Any = object.__new__(subject.controller)
    subject.initialise(controller, config)
    vars(controller).update(
        {
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
    )
    if acknowledges(subject.controller):
        setattr(controller, targets.LEDGER, ledger)
    return controller


def holders_left(registry: Any) -> tuple[str, ...]:
    """Who still holds a registry's clocks: by name where it knows names."""
    names = getattr(registry, "holders", None) or getattr(registry, "_holders", None) or ()
    if registry.suspended and not names:
        return ("(unnamed)",)
    return tuple(sorted(names))


def leaf(error: BaseException) -> BaseException:
    """The error at the bottom: the first of each group, and what each was caused by."""
    while True:
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
        if inner is None:
            return error
        error = inner


def cannot_simulate(path: str, found: str | BaseException) -> UnsupportedTargetError:
    """The error for code that cannot be run, with what was found, or the error that it ended with."""
    if isinstance(found, BaseException):
        cause = leaf(found)
        found = f"{type(cause).__name__}: {cause}"
    return UnsupportedTargetError(
        f"cannot simulate a snapshot on {path or 'this target'}",
        found=found,
        supported="a controller, registry and deadline like those of NeMo RL's pin 98b3b6c",
        advice=f"run `nemo-rl-deadline-fix check {path or 'PATH'}` and report what both print",
    )


async def _nothing(*_: Any) -> None:
    """Nothing is in the cluster that is not there."""
