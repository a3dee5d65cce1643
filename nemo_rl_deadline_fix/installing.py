"""Switch the fix on in this process, switch it off, and say what is on."""

from __future__ import annotations

import importlib.metadata
import sys
import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from types import ModuleType

from nemo_rl_deadline_fix import gate
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.observing import ClockReport, clocks
from nemo_rl_deadline_fix.registry import RequestDeadlineRegistry, logger
from nemo_rl_deadline_fix.shapes import Shape, classify, mentions
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_MODULE,
    MANAGER_CLASS,
    MANAGER_MODULE,
    METHODS,
    REGISTRY,
    REGISTRY_CLASS,
    SUPPORTED,
)
from nemo_rl_deadline_fix.wrapping import covered, patch, unpatch, unsupported

# wrapt's hooks cannot be taken back, so the one that waits asks the first flag when its time comes.
_enabled = False
_hook_waits = False
# Two threads that install at once would wrap twice.
_lock = threading.RLock()


class State(StrEnum):
    """State of one target; the values are the words used in messages."""

    PATCHED = "patched"
    PENDING = "pending"
    UNPATCHED = "unpatched"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class TargetReport:
    """State of one method that the fix wraps.

    Attributes:
        target: `module:Class.method`.
        state: What holds for it now.
        detail: What was found, where the state needs it; else "".
    """

    target: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """One entry per target, and what the user should know besides.

    Attributes:
        targets: The methods that the fix wraps.
        warnings: One line each.
        clocks: The rollout clocks that live in this process; in the controller actor, where they are.
    """

    targets: tuple[TargetReport, ...]
    warnings: tuple[str, ...] = ()
    clocks: tuple[ClockReport, ...] = ()

    @property
    def state(self) -> State:
        """The state of all targets: they are patched together or not at all."""
        return self.targets[0].state

    def __str__(self) -> str:
        lines = [
            f"{entry.target}: {entry.state}{f' ({entry.detail})' if entry.detail else ''}"
            for entry in self.targets
        ]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings), *map(str, self.clocks)])


def install() -> Report:
    """Switch the fix on in this process, for the controller actors it creates from now on.

    Call it in the driver, before `SingleControllerActor.remote(...)`; before or after NeMo RL is
    imported. Calling it again changes nothing. A controller module that was dropped from `sys.modules`
    and imported again needs another call.

    Returns:
        One entry per target: `patched`; `pending` while NeMo RL's controller is not imported yet (it is
        patched when it is); `already_fixed`; or `not_applicable` where there is no Gym snapshot code.

    Raises:
        UnsupportedTargetError: The controller is imported and has an unknown shape; nothing was changed.
    """
    global _enabled, _hook_waits
    with _lock:
        _enabled = True
        module = sys.modules.get(CONTROLLER_MODULE)
        if module is not None:
            return _install_on(module)
        if not _hook_waits:
            from wrapt import register_post_import_hook

            register_post_import_hook(_on_import, CONTROLLER_MODULE)
            _hook_waits = True
        return status()


def uninstall() -> Report:
    """Restore exactly what was there, for the controller actors created from now on.

    Where somebody wrapped one of the methods again on top of ours, both stay as they are, with a
    warning: the fix on one method alone would stop the clocks and not let them run again.

    Returns:
        One entry per target, as `status`.
    """
    global _enabled
    warnings: tuple[str, ...] = ()
    with _lock:
        _enabled = gate.runs_here = False
        module = sys.modules.get(CONTROLLER_MODULE)
        controller = _controller(module)
        if controller is not None and any(covered(controller)):
            warnings = unpatch(controller)
            _forget_export(module)
    for text in warnings:
        logger.warning("%s", text)
    report = status()
    return replace(report, warnings=report.warnings + warnings)


def status() -> Report:
    """Say what is on in this process, without changing anything, and how its rollout clocks stand.

    The clocks live in the controller actor, so ask there for those; the driver has none.

    Returns:
        One entry per target, in the states that `install` returns, or `unpatched`, or `unsupported`.
    """
    state, found = _state(sys.modules.get(CONTROLLER_MODULE))
    if gate.runs_here and state in (State.UNPATCHED, State.PENDING):
        # The class came with the driver's patch on it; the module, imported here, knows nothing of that.
        state, found = State.PATCHED, "as the driver shipped it to this actor"
    return _report(state, found, _version_warnings())


def _controller(module: ModuleType | None) -> type | None:
    """The class whose methods run in the actor: the one Ray made of the decorated class."""
    found = getattr(module, CONTROLLER_CLASS, None)
    metadata = getattr(found, "__ray_metadata__", None)
    found = getattr(metadata, "modified_class", found)
    return found if isinstance(found, type) else None


def _state(module: ModuleType | None) -> tuple[State, str]:
    controller = _controller(module)
    if controller is None:
        importing = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if module is None or importing:
            if _enabled and _hook_waits:
                return State.PENDING, ""
            if module is None:
                return State.UNPATCHED, ""
            return State.UNSUPPORTED, "the module is still being imported: install before or after that"
        return State.NOT_APPLICABLE, f"{CONTROLLER_MODULE} has no class {CONTROLLER_CLASS}"
    if all(covered(controller)):
        return State.PATCHED, ""
    manager_module = sys.modules.get(MANAGER_MODULE)
    registry = getattr(manager_module, REGISTRY_CLASS, None)
    finding = classify(controller, registry if isinstance(registry, type) else None)
    if finding.shape is Shape.AFFECTED:
        refused = _refused(registry, getattr(manager_module, MANAGER_CLASS, None))
        return (State.UNSUPPORTED, refused) if refused else (State.UNPATCHED, "")
    return State(finding.shape.value), finding.found


def _refused(registry: object, manager: object) -> str:
    """Why the actor could not adopt the registry, found out here in the driver; "" where it can."""
    if isinstance(manager, type) and not mentions(manager, REGISTRY):
        return f"{MANAGER_CLASS} has no {REGISTRY}"
    if not isinstance(registry, type):
        return ""
    try:
        RequestDeadlineRegistry.adopt(registry())
    except Exception as error:
        return str(error)
    return ""


def _install_on(module: ModuleType) -> Report:
    warnings = _version_warnings()
    for text in warnings:
        logger.warning("%s", text)
    state, found = _state(module)
    if state is State.UNSUPPORTED:
        raise unsupported(found)
    controller = _controller(module)
    if state is State.UNPATCHED and controller is not None:
        patch(controller)
        state = State.PATCHED
        if _forget_export(module):
            late = (
                "a controller actor was created before the fix was switched on: it stays as it is; only "
                "actors created from now on pause their rollout clocks"
            )
            logger.warning("%s", late)
            warnings += (late,)
    return _report(state, found, warnings)


def _on_import(module: ModuleType) -> None:
    # wrapt has dropped the hook by now, so a later import would go unseen.
    global _hook_waits
    _hook_waits = False
    if not _enabled:
        return
    # An exception in here would break the import of the user's training code.
    try:
        with _lock:
            _install_on(module)
    except UnsupportedTargetError as error:
        logger.warning("Rollout clocks will NOT be paused during Gym snapshots: %s", error)
    except Exception:
        logger.exception("Rollout clocks will NOT be paused during Gym snapshots")


def _forget_export(module: ModuleType | None) -> bool:
    """Make Ray ship the class anew; True if it had been shipped in this job already.

    Ray keeps one copy per job, the newest, which an actor takes when its process starts, or restarts.
    """
    metadata = getattr(getattr(module, CONTROLLER_CLASS, None), "__ray_metadata__", None)
    if metadata is None or getattr(metadata, "last_export_cluster_and_job", None) is None:
        return False
    metadata.last_export_cluster_and_job = None
    return True


def _report(state: State, detail: str = "", warnings: tuple[str, ...] = ()) -> Report:
    targets = tuple(
        TargetReport(f"{CONTROLLER_MODULE}:{CONTROLLER_CLASS}.{name}", state, detail) for name in METHODS
    )
    return Report(targets, warnings, clocks())


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
    version = getattr(sys.modules.get(name), "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version(name.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            return None
    return version if isinstance(version, str) else None
