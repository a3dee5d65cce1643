"""What the story can be played on, and how the fix is put on it."""

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
    """A file that replayed code came from, with the line ranges that ran."""

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


def installed(controller: ModuleType, manager: ModuleType) -> Subject:
    """The classes of an imported NeMo RL; `installing.install()` puts the fix on them."""
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
    )


def not_replayable(path: str, found: str) -> UnsupportedTargetError:
    """The error for code that the story cannot be played on.

    Args:
        path: The code's file or tree; "" for none.
        found: What was found there.

    Returns:
        The error, to be raised.
    """
    return UnsupportedTargetError(
        f"cannot replay the story on {path or 'this target'}",
        found=found,
        supported="the controller, registry and deadline of NeMo RL's Gym snapshots as of pin 98b3b6c",
        advice="run `nemo-rl-deadline-fix check` on the checkout and report what it prints",
    )
