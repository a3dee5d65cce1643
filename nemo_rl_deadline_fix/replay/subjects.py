"""What the story can be played on, and how the fix is put on it."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.replay.story import Subject
from nemo_rl_deadline_fix.wrapping import patch


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
