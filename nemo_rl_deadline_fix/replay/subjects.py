"""The classes that a simulation runs on, and how the fix is put on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.wrapping import patch


@dataclass(frozen=True)
class SourceFile:
    """A file that simulated code came from, with the line ranges that ran."""

    path: str
    lines: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Subject:
    """The classes under test.

    Attributes:
        kind: `embedded`, `checkout` or `installed`.
        path: Where they came from; "" for the embedded model.
        files: The files and lines that run.
        registry: `RequestDeadlineRegistry`.
        deadline: `_Deadline`.
        timeout: `RolloutTimeout`.
        manager: A class with the two forwards.
        controller: A class with the snapshot's methods.
        pending_release: Makes a pending release of (id, path, trainer anchored).
        initialise: Does to a bare controller, given a config, what its own `__init__` does without cluster.
    """

    kind: str
    path: str
    files: tuple[SourceFile, ...]
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
        kind="embedded",
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


def installed(controller: ModuleType, manager: ModuleType, initialise: Callable[[Any, Any], None]) -> Subject:
    """The classes of an imported NeMo RL; `install()` puts the fix on them.

    Raises:
        AttributeError: It has another layout.
    """
    actor = getattr(controller, targets.CONTROLLER_CLASS)
    metadata = getattr(actor, "__ray_metadata__", None)
    return Subject(
        kind="installed",
        path=str(controller.__file__),
        files=(),
        registry=getattr(manager, targets.REGISTRY_CLASS),
        deadline=getattr(manager, targets.DEADLINE_CLASS),
        timeout=getattr(manager, targets.TIMEOUT_CLASS),
        manager=getattr(manager, targets.MANAGER_CLASS),
        controller=getattr(metadata, "modified_class", actor),
        pending_release=controller._PendingGymCheckpointRelease,
        initialise=initialise,
    )


def fixed(subject: Subject) -> Subject:
    """The same subject with the run-time fix on a copy of its controller; the given one stays as it is."""
    controller = copy_class(subject.controller)
    patch(controller)
    return replace(subject, controller=controller)


def copy_class(cls: type[Any]) -> type[Any]:
    """A class of its own with the same methods, the inherited ones included."""
    members: dict[str, Any] = {}
    for owner in reversed(cls.__mro__[:-1]):
        members.update(vars(owner))
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    return type(cls.__name__, (), members)


def leaf(error: BaseException) -> BaseException:
    """The error at the bottom: the first of each group, and what each was caused by."""
    while True:
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
        if inner is None:
            return error
        error = inner


def cannot_simulate(path: str, found: str | BaseException) -> UnsupportedTargetError:
    """The error for code that a simulation cannot run.

    Args:
        path: The code's file or tree; "" for none.
        found: What was found there, or the error that it ended with.

    Returns:
        The error, to be raised.
    """
    if isinstance(found, BaseException):
        cause = leaf(found)
        found = f"{type(cause).__name__}: {cause}"
    return UnsupportedTargetError(
        f"cannot simulate a snapshot on {path or 'this target'}",
        found=found,
        supported="a controller, registry and deadline like those of NeMo RL's pin 98b3b6c",
        advice=f"run `nemo-rl-deadline-fix check {path or 'PATH'}` and report what both print",
    )
