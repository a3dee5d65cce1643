"""Switch the fix on in this process, switch it off, and say what is on."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import textwrap
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from nemo_rl_deadline_fix import __version__, wrapping
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.importing import ControllerHook
from nemo_rl_deadline_fix.observing import ClockReport, clocks, log, stranded_so_far
from nemo_rl_deadline_fix.shapes import Finding, State, classify, mentions
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_FILE,
    CONTROLLER_MODULE,
    MANAGER_CLASS,
    MANAGER_MODULE,
    REGISTRY,
    REGISTRY_CLASS,
    SNAPSHOT_FILES,
    TRIED,
)

LATE = (
    "a controller actor was created before the fix was switched on: it stays as it is; only actors created "
    "from now on pause their rollout clocks"
)
RESTARTS = (
    "a controller actor was created with the fix on: it keeps the fix until its process ends; where Ray "
    "restarts it, it comes back without"
)
ACKNOWLEDGES = "what NeMo RL gives up on is acknowledged while a snapshot is prepared"
TOO_LATE = "this actor was made without the fix: switch it on in the driver, before the actor is created"

_acknowledge = False
# Two threads that install at once would wrap twice.
_lock = threading.RLock()


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
        lines += [*map(str, self.clocks), self.stranded]
        return "\n".join(part for line in lines for part in textwrap.wrap(line, 80, subsequent_indent="  "))


def install(acknowledge: bool | None = None) -> Report:
    """Switch the fix on in this process, for the controller actors it creates from now on.

    Call it in the driver, before `SingleControllerActor.remote(...)`; before or after NeMo RL is
    imported. Calling it again changes nothing.

    Args:
        acknowledge: Whether those actors also acknowledge in Gym, while they prepare a snapshot, the
            finished replies that NeMo RL has given up on. None leaves it as it was: at first, off.

    Returns:
        `patched`; `pending` while NeMo RL's controller is not imported yet (it is patched when it is);
        `already_fixed`; or `not_applicable` where there is no Gym snapshot code.

    Raises:
        UnsupportedTargetError: The controller is imported and has an unknown shape; it was not changed.
    """
    global _acknowledge
    with _lock:
        _acknowledge = _acknowledge if acknowledge is None else acknowledge
        if not _hook_waits():
            _hook.enter()
    # An import that another thread has begun may be past the hook. Not under the lock, which the hook takes.
    getattr(importlib._bootstrap, "_lock_unlock_module", str)(CONTROLLER_MODULE)
    module = sys.modules.get(CONTROLLER_MODULE)
    report = status() if module is None else on_import(module)
    if report.detail == TOO_LATE:
        log(logging.WARNING, "%s", TOO_LATE)
    return report


def on_import(module: ModuleType, *, announce: bool = True, acknowledge: bool | None = None) -> Report:
    """Switch the fix on for a controller module whose code has run, be it that its import has not ended.

    With `announce` a line at INFO says that it is on, where it was not before. Else as `install`.
    """
    global _acknowledge
    warnings = _untried_versions()
    with _lock:
        _acknowledge = _acknowledge if acknowledge is None else acknowledge
        finding = _finding(module)
        if finding.state is State.UNSUPPORTED:
            raise finding.error()
        if finding.state in (State.UNPATCHED, State.PATCHED) and not finding.found:
            finding = Finding(State.PATCHED)
            # All are found before one is patched, from which others may inherit.
            other = [one for one in _actors(module) if wrapping.acknowledges(one[1]) is not _acknowledge]
            for _, controller in other:
                wrapping.patch(controller, acknowledge=_acknowledge)
            if _forget_exports(other):
                warnings += (LATE,)
            if other and announce:
                log(logging.INFO, "%s", is_on())
    return _report(finding, warnings)


def uninstall() -> Report:
    """Restore exactly what was there, for the controller actors created from now on, and say what is on.

    Where somebody wrapped the method again on top of ours, both stay as they are, with a warning.
    """
    global _acknowledge
    with _lock:
        _acknowledge = False
        _hook.leave()
        patched = [one for one in _actors(sys.modules.get(CONTROLLER_MODULE)) if wrapping.is_patched(one[1])]
        left = {wrapping.unpatch(controller) for controller in {one[1] for one in patched}}
        warnings = tuple(sorted(left - {""}))
        if _forget_exports([one for one in patched if not wrapping.is_patched(one[1])]):
            warnings += (RESTARTS,)
    return _report(_finding(sys.modules.get(CONTROLLER_MODULE)), warnings)


def status() -> Report:
    """Say what is on in this process, without changing anything, and how its rollout clocks stand.

    The clocks live in the controller actor, so ask there for those; the driver has none. Any thread may ask.

    Returns:
        In the states that `install` returns, or `unpatched`, or `unsupported`.
    """
    return _report(_finding(sys.modules.get(CONTROLLER_MODULE)))


def is_on() -> str:
    """The line that says that the fix is on, and what it does."""
    also = f"; {ACKNOWLEDGES}" if _acknowledge else ""
    what = "controller actors made from now on pause their rollout clocks during Gym snapshots"
    return f"deadline fix {__version__} is on: {what}{also}"


def _report(finding: Finding, warnings: tuple[str, ...] = ()) -> Report:
    for text in warnings:
        log(logging.WARNING, "%s", text)
    stranded = ACKNOWLEDGES if _acknowledge else ""
    if wrapping.acknowledges_here:
        stranded = f"{ACKNOWLEDGES}: {stranded_so_far()}"
    return Report(finding.state, finding.found, warnings, clocks(), stranded)


def _untried_versions() -> tuple[str, ...]:
    """One line for each imported package of an untried version; builds from git count by their number."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in TRIED}
    return tuple(
        f"{name} {version} is outside of the tried range {TRIED[name]}; its shape decides"
        for name, version in versions.items()
        if isinstance(version, str) and not _is_within(version, TRIED[name])
    )


def _is_within(version: str, tried: str) -> bool:
    try:
        return SpecifierSet(tried).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _on_import(module: ModuleType) -> None:
    # An exception in here would break the import of the user's training code.
    try:
        on_import(module)
    except UnsupportedTargetError as error:
        log(logging.WARNING, "deadline fix: rollout clocks are NOT paused during Gym snapshots: %s", error)
    except Exception as error:
        log(logging.ERROR, "deadline fix: rollout clocks are NOT paused during Gym snapshots", error=error)


_hook = ControllerHook(_on_import)


def _hook_waits() -> bool:
    # The launcher's does as well as ours. It comes from the file, so its class is another one.
    return any(type(finder).__name__ == ControllerHook.__name__ for finder in sys.meta_path)


def _finding(module: ModuleType | None) -> Finding:
    if wrapping.shipped_here:
        return Finding(State.PATCHED, "as the driver shipped it to this actor")
    if _runs_the_controller():
        return Finding(State.UNPATCHED, TOO_LATE)
    controller = _class_of(getattr(module, CONTROLLER_CLASS, None))
    if controller is None and (module is None or getattr(module.__spec__, "_initializing", False)):
        return Finding(State.PENDING if _hook_waits() else State.UNPATCHED)
    if controller is not None and wrapping.is_patched(controller):
        return Finding(State.PATCHED)
    return _classified(module, controller)


def _classified(module: ModuleType | None, controller: type | None) -> Finding:
    manager_module = sys.modules.get(MANAGER_MODULE)
    registry = getattr(manager_module, REGISTRY_CLASS, None)
    # Newer lines of NeMo RL keep their Gym snapshots in other files.
    root = Path(getattr(module, "__file__", None) or "").parents[CONTROLLER_FILE.count("/") :][:1]
    files = [name for name in SNAPSHOT_FILES if root and (root[0] / name).exists()]
    around = [*vars(module), *vars(manager_module or object), *files]
    finding = classify(controller or object, registry if isinstance(registry, type) else None, around)
    if finding.state is State.NOT_APPLICABLE and controller is None:
        return replace(finding, found=f"{CONTROLLER_MODULE} has no class {CONTROLLER_CLASS}")
    manager = getattr(manager_module, MANAGER_CLASS, None)
    if finding.state is State.UNPATCHED and isinstance(manager, type) and not mentions(manager, REGISTRY):
        return Finding(State.UNSUPPORTED, f"{MANAGER_CLASS} has no {REGISTRY}")
    return finding


# Ray's side. An actor class is an object around the class whose methods run in the actor, and remembers
# whether it has shipped that class in this job, or, under Ray Client, to this cluster.


def _class_of(actor: Any) -> type | None:
    found = getattr(getattr(actor, "__ray_metadata__", None), "modified_class", actor)
    return found if isinstance(found, type) else None


def _actors(module: ModuleType | None) -> list[tuple[Any, type]]:
    """The module's actor class, and those of whoever decorated the controller again, with their classes."""
    actor: Any = getattr(module, CONTROLLER_CLASS, None)
    controller = _class_of(actor)
    if controller is None:
        return []
    plain: type | None = getattr(controller, "__ray_actor_class__", None)
    if plain is None:
        return [(actor, controller)]
    made_by_ray: list[type] = type(actor).__bases__[0].__subclasses__()
    kinds = [kind for kind in made_by_ray if plain in kind.__mro__]
    # Ray keeps no list of them; and to look through everything is for the one in a thousand who did that.
    actors = [actor] if len(kinds) <= 1 else [one for one in gc.get_objects() if type(one) in kinds]
    return [(one, found) for one in actors if (found := _class_of(one)) is not None]


def _forget_exports(actors: list[tuple[Any, type]]) -> bool:
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
