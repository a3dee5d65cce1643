"""Switch the fix on in this process, switch it off, and say what is on."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import logging
import sys
import textwrap
import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from nemo_rl_deadline_fix import __version__, wrapping
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.observing import ClockReport, clocks, log, stranded_so_far
from nemo_rl_deadline_fix.shapes import Finding, Shape, classify, mentions
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_FILE,
    CONTROLLER_MODULE,
    MANAGER_CLASS,
    MANAGER_MODULE,
    REGISTRY,
    REGISTRY_CLASS,
    SNAPSHOT_FILES,
    SUPPORTED,
)

LATE = (
    "a controller actor was created before the fix was switched on: it stays as it is; only actors created "
    "from now on pause their rollout clocks"
)
RESTARTS = (
    "a controller actor was created with the fix on: it keeps the fix until its process ends; where Ray "
    "restarts it, it comes back without"
)
IS_ON = "controller actors made from now on pause their rollout clocks during Gym snapshots"
ACKNOWLEDGES = "what NeMo RL gives up on is acknowledged while a snapshot is prepared"
TOO_LATE = "this actor was made without the fix: switch it on in the driver, before the actor is created"

# wrapt's hooks cannot be taken back, so the one that waits asks the first flag when its time comes.
_enabled = False
_acknowledge = False
_hook_waits = False
# Two threads that install at once would wrap twice.
_lock = threading.RLock()


class State(StrEnum):
    """State of the controller; the values are the words used in messages."""

    PATCHED = "patched"
    PENDING = "pending"
    UNPATCHED = "unpatched"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Report:
    """What is on, and what the user should know besides.

    Attributes:
        state: State of the controller.
        detail: What was found, where the state needs it; else "".
        warnings: One line each.
        clocks: The rollout clocks that live in this process; in the controller actor, where they are.
        stranded: What is done about replies that NeMo RL gives up on; "" where nothing is.
    """

    state: State
    detail: str = ""
    warnings: tuple[str, ...] = ()
    clocks: tuple[ClockReport, ...] = ()
    stranded: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        lines = [f"{CONTROLLER_MODULE}:{CONTROLLER_CLASS}: {self.state}{detail}"]
        lines += [f"warning: {text}" for text in self.warnings]
        wrapped = (
            textwrap.wrap(line, 80, subsequent_indent="  ")
            for line in [*lines, *map(str, self.clocks), self.stranded]
        )
        return "\n".join(line for part in wrapped for line in part)


def install(acknowledge: bool | None = None) -> Report:
    """Switch the fix on in this process, for the controller actors it creates from now on.

    Call it in the driver, before `SingleControllerActor.remote(...)`; before or after NeMo RL is
    imported. Calling it again changes nothing. A controller module that was dropped from `sys.modules`
    and imported again needs another call.

    Args:
        acknowledge: Whether those actors also acknowledge in Gym, while they prepare a snapshot, the
            finished replies that NeMo RL has given up on. None leaves it as it was: at first, off.

    Returns:
        `patched`; `pending` while NeMo RL's controller is not imported yet (it is patched when it is);
        `already_fixed`; or `not_applicable` where there is no Gym snapshot code.

    Raises:
        UnsupportedTargetError: The controller is imported and has an unknown shape; nothing was changed.
    """
    global _enabled, _acknowledge, _hook_waits
    with _lock:
        _enabled = True
        _acknowledge = _acknowledge if acknowledge is None else acknowledge
        if CONTROLLER_MODULE not in sys.modules and not _hook_waits:
            from wrapt import register_post_import_hook

            register_post_import_hook(_on_import, CONTROLLER_MODULE)
            _hook_waits = True
    # An import that another thread has begun may be past the hook. Not under the lock, which the hook takes.
    getattr(importlib._bootstrap, "_lock_unlock_module", str)(CONTROLLER_MODULE)
    module = sys.modules.get(CONTROLLER_MODULE)
    report = status() if module is None else on_import(module)
    if report.detail == TOO_LATE:
        log(logging.WARNING, "%s", TOO_LATE)
    return report


def on_import(module: ModuleType, *, announce: bool = True, acknowledge: bool | None = None) -> Report:
    """Switch the fix on for a controller module whose code has run, be it that its import has not ended.

    Args:
        module: `nemo_rl.algorithms.single_controller`.
        announce: Whether to log at INFO that it is on, where it was not before.
        acknowledge: As for `install`.

    Returns:
        As `install`.

    Raises:
        UnsupportedTargetError: The controller has an unknown shape; nothing was changed.
    """
    global _acknowledge
    with _lock:
        _acknowledge = _acknowledge if acknowledge is None else acknowledge
        warnings = _version_warnings()
        state, finding = _state(module)
        if state is State.UNSUPPORTED:
            raise wrapping.unsupported(finding.found, finding.advice)
        other = [
            one
            for one in _actors(module)
            if not wrapping.is_patched(one.controller)
            or wrapping.acknowledges(one.controller) is not _acknowledge
        ]
        if state in (State.UNPATCHED, State.PATCHED) and other and not finding.found:
            for one in other:
                wrapping.patch(one.controller, acknowledge=_acknowledge)
            state = State.PATCHED
            if _forget_exports(other):
                warnings += (LATE,)
            if announce:
                is_on = f"{IS_ON}; {ACKNOWLEDGES}" if _acknowledge else IS_ON
                log(logging.INFO, "deadline fix %s is on: %s", __version__, is_on)
    for text in warnings:
        log(logging.WARNING, "%s", text)
    return Report(state, finding.found, warnings, clocks(), _stranded())


def uninstall() -> Report:
    """Restore exactly what was there, for the controller actors created from now on.

    Where somebody wrapped the method again on top of ours, both stay as they are, with a warning.

    Returns:
        As `status`.
    """
    global _enabled, _acknowledge
    with _lock:
        _enabled = _acknowledge = False
        patched = [
            one for one in _actors(sys.modules.get(CONTROLLER_MODULE)) if wrapping.is_patched(one.controller)
        ]
        left = {wrapping.unpatch(controller) for controller in {one.controller for one in patched}}
        warnings = tuple(sorted(left - {""}))
        if _forget_exports([one for one in patched if not wrapping.is_patched(one.controller)]):
            warnings += (RESTARTS,)
    for text in warnings:
        log(logging.WARNING, "%s", text)
    report = status()
    return replace(report, warnings=report.warnings + warnings)


def status() -> Report:
    """Say what is on in this process, without changing anything, and how its rollout clocks stand.

    The clocks live in the controller actor, so ask there for those; the driver has none. Any thread may ask.

    Returns:
        In the states that `install` returns, or `unpatched`, or `unsupported`.
    """
    state, finding = _state(sys.modules.get(CONTROLLER_MODULE))
    return Report(state, finding.found, _version_warnings(), clocks(), _stranded())


def _stranded() -> str:
    if wrapping.acknowledges_here:
        return f"{ACKNOWLEDGES}: {stranded_so_far()}"
    return ACKNOWLEDGES if _acknowledge else ""


def _state(module: ModuleType | None) -> tuple[State, Finding]:
    if wrapping.shipped_here:
        return State.PATCHED, Finding(Shape.AFFECTED, "as the driver shipped it to this actor")
    if _runs_the_controller():
        return State.UNPATCHED, Finding(Shape.AFFECTED, TOO_LATE)
    controller = _class_of(getattr(module, CONTROLLER_CLASS, None))
    if controller is None and _is_to_come(module):
        if _enabled and _hook_waits:
            return State.PENDING, Finding(Shape.AFFECTED)
        if module is None:
            return State.UNPATCHED, Finding(Shape.AFFECTED)
        found = "the module is still being imported: install before or after that"
        return State.UNSUPPORTED, Finding(Shape.UNSUPPORTED, found)
    if controller is not None and wrapping.is_patched(controller):
        return State.PATCHED, Finding(Shape.AFFECTED)
    finding = _finding(module, controller)
    return State.UNPATCHED if finding.shape is Shape.AFFECTED else State(finding.shape.value), finding


def _is_to_come(module: ModuleType | None) -> bool:
    return module is None or bool(getattr(module.__spec__, "_initializing", False))


def _finding(module: ModuleType | None, controller: type | None) -> Finding:
    manager_module = sys.modules.get(MANAGER_MODULE)
    registry = getattr(manager_module, REGISTRY_CLASS, None)
    finding = classify(
        controller or object,
        registry if isinstance(registry, type) else None,
        [*vars(module), *vars(manager_module or object), *_snapshot_files(module)],
    )
    if finding.shape is Shape.NOT_APPLICABLE and controller is None:
        return replace(finding, found=f"{CONTROLLER_MODULE} has no class {CONTROLLER_CLASS}")
    manager = getattr(manager_module, MANAGER_CLASS, None)
    if finding.shape is Shape.AFFECTED and isinstance(manager, type) and not mentions(manager, REGISTRY):
        return Finding(Shape.UNSUPPORTED, f"{MANAGER_CLASS} has no {REGISTRY}")
    return finding


def _snapshot_files(module: ModuleType | None) -> list[str]:
    """Files beside the controller's in which newer lines of NeMo RL keep their Gym snapshots."""
    file = getattr(module, "__file__", None)
    if file is None:
        return []
    root = Path(file).parents[CONTROLLER_FILE.count("/")]
    return [name for name in SNAPSHOT_FILES if (root / name).exists()]


# Ray's side. An actor class is an object around the class whose methods run in the actor, and remembers
# whether it has shipped that class in this job, or, under Ray Client, to this cluster.


def _class_of(actor: Any) -> type | None:
    found = getattr(getattr(actor, "__ray_metadata__", None), "modified_class", actor)
    return found if isinstance(found, type) else None


class _Actor(NamedTuple):
    made_by_ray: Any
    controller: type


def _actors(module: ModuleType | None) -> list[_Actor]:
    """The module's actor class, and those of whoever decorated the controller again."""
    actor: Any = getattr(module, CONTROLLER_CLASS, None)
    controller = _class_of(actor)
    if controller is None:
        return []
    plain: type | None = getattr(controller, "__ray_actor_class__", None)
    if plain is None:
        return [_Actor(actor, controller)]
    made_by_ray: list[type] = type(actor).__bases__[0].__subclasses__()
    kinds = [kind for kind in made_by_ray if plain in kind.__mro__]
    # Ray keeps no list of them; and to look through everything is for the one in a thousand who did that.
    actors = [actor] if len(kinds) <= 1 else [one for one in gc.get_objects() if type(one) in kinds]
    return [_Actor(one, found) for one in actors if (found := _class_of(one)) is not None]


def _forget_exports(actors: list[_Actor]) -> bool:
    """Make Ray ship these classes anew; True if one of them had been shipped already.

    Ray keeps one copy per job, the newest, which an actor takes when its process starts, or restarts.
    """
    shipped = False
    for actor, _ in actors:
        metadata = getattr(actor, "__ray_metadata__", None)
        if metadata is not None:
            shipped |= metadata.last_export_cluster_and_job is not None
            metadata.last_export_cluster_and_job = None
            shipped |= vars(actor).pop("__ray_client_mode_key__", None) is not None
    return shipped


def _runs_the_controller() -> bool:
    """Whether this process is a controller actor's, as Ray says; without Ray it is none."""
    ray = sys.modules.get("ray")
    try:
        # Asked first, because Ray would start a cluster to be able to answer the other question.
        if ray is None or not ray.is_initialized():
            return False
        return repr(ray.get_runtime_context().current_actor).startswith(f"Actor({CONTROLLER_CLASS},")
    except Exception:
        return False


def _on_import(module: ModuleType) -> None:
    # wrapt has dropped the hook by now, so a later import would go unseen.
    global _hook_waits
    _hook_waits = False
    if not _enabled:
        return
    # An exception in here would break the import of the user's training code.
    try:
        on_import(module)
    except UnsupportedTargetError as error:
        log(logging.WARNING, "Rollout clocks will NOT be paused during Gym snapshots: %s", error)
    except Exception as error:
        log(logging.ERROR, "Rollout clocks will NOT be paused during Gym snapshots", error=error)


def _version_warnings() -> tuple[str, ...]:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    warnings = []
    for name, supported in SUPPORTED.items():
        version = _version(name)
        if version is None:
            continue
        try:
            # Pre-releases and builds from git count by their number.
            inside = SpecifierSet(supported).contains(Version(version), prereleases=True)
        except InvalidVersion:
            inside = False
        if not inside:
            warnings.append(f"{name} {version} is outside of the tried range {supported}; its shape decides")
    return tuple(warnings)


def _version(name: str) -> str | None:
    # A module that is imported tells its own version; a checkout on the path has no metadata.
    version = getattr(sys.modules.get(name), "__version__", None) or _installed_version(name)
    return version if isinstance(version, str) else None


@functools.cache
def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None
