"""What a loaded controller class is to the fix: affected, fixed, without the feature, or unknown.

Version numbers do not decide, because NeMo RL runs from git; the classes do, by the names that they use.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType, FunctionType
from typing import Any

from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.registry import check_shape
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_MODULE,
    COORDINATED,
    DOCUMENTED,
    GATE,
    NIGHTLY_FILES,
    NOT_MENDED,
    PREPARE,
    REGISTRY,
    REGISTRY_CLASS,
    RELEASE,
    RESUME,
    SNAPSHOT_FILES,
    SNAPSHOT_NAMES,
    SUSPEND,
)


class State(StrEnum):
    """What a controller class is to the fix, and whether it is on; the values are the words in messages."""

    PATCHED = "patched"
    PENDING = "pending"
    UNPATCHED = "unpatched"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Finding:
    """A class's state, with what was found, and what to do about it, where that needs saying."""

    state: State
    found: str = ""
    advice: str = "run `nemo-rl-deadline-fix check` on your checkout and report what it prints"

    def error(self) -> UnsupportedTargetError:
        """The error that says so."""
        version = getattr(sys.modules.get("nemo_rl"), "__version__", "")
        return UnsupportedTargetError(
            f"cannot pause the rollout clocks of {CONTROLLER_MODULE}",
            found=f"{self.found} (nemo_rl {version})" if version else self.found,
            supported=f"a plain async method {PREPARE} and a gate {GATE}",
            advice=self.advice,
        )


_Uses = dict[str, frozenset[str]]


def classify(controller: type, registry: type | None, around: Iterable[str] = ()) -> Finding:
    """Tell what a controller class is to the fix.

    Args:
        controller: The class whose methods run in the actor.
        registry: The `RequestDeadlineRegistry` class it works with; None where it is not known.
        around: Names that the modules of the two have, which tell of Gym snapshots outside of the class.

    Returns:
        `UNPATCHED` where the fix can be put on. `UNSUPPORTED` says what was found instead of what it needs.
    """
    uses = _uses(controller)
    used = set(uses).union(*uses.values())
    prepare = inspect.getattr_static(controller, PREPARE, None)
    if prepare is None:
        return _without_prepare(uses, sorted(used.union(around)), registry)
    if type(prepare) is not FunctionType or not inspect.iscoroutinefunction(prepare):
        return _unsupported(f"{PREPARE} is not a plain async method but a {type(prepare).__name__}")
    if GATE not in used:
        return _unsupported(f"{CONTROLLER_CLASS} has no {GATE}")
    closes, reopens = (
        _calls(uses, PREPARE, SUSPEND),
        _calls(uses, RELEASE, RESUME),
    )
    named = _takes_holder(registry)
    if closes and reopens and (named or registry is None):
        return Finding(State.ALREADY_FIXED, f"{PREPARE} suspends the deadlines itself")
    if closes or named:
        return _unsupported(
            f"a part of a fix: {PREPARE} {'suspends' if closes else 'does not suspend'} the deadlines, "
            f"{RELEASE} {'resumes' if reopens else 'does not resume'} them, and {REGISTRY_CLASS} "
            f"knows {'its' if named else 'no'} holders by name"
        )
    problem = "" if registry is None else _problem_of(registry)
    return _unsupported(problem) if problem else Finding(State.UNPATCHED)


def mentions(cls: type, name: str) -> bool:
    """Whether any function of a class, or of its bases, uses a name."""
    return any(name in names for names in _uses(cls).values())


def _without_prepare(uses: _Uses, names: list[str], registry: type | None) -> Finding:
    found = [name for name in names if name in SNAPSHOT_FILES or any(part in name for part in SNAPSHOT_NAMES)]
    if not found:
        return Finding(State.NOT_APPLICABLE, f"{CONTROLLER_CLASS} has no Gym snapshot code")
    named = _takes_holder(registry)
    if COORDINATED in uses and registry is not None and not named:
        return Finding(State.UNSUPPORTED, f"affected, {NOT_MENDED}", "update NeMo RL")
    if named and _calls(uses, COORDINATED, SUSPEND) and _calls(uses, COORDINATED, RESUME):
        return Finding(State.ALREADY_FIXED, f"by NeMo RL itself: {COORDINATED} suspends the deadlines")
    nightly = [name for name in found if name in NIGHTLY_FILES]
    if named and nightly:
        advice = "run without this package, if that is right"
        return Finding(State.UNSUPPORTED, f"Gym snapshots in {nightly[0]}: {DOCUMENTED}", advice)
    return _unsupported(f"Gym snapshots in another form: {', '.join(found)}")


def _problem_of(registry: type) -> str:
    """Why a registry of this class could not be taken over, found out by trying one; "" if it can."""
    deadline = _Deadline()
    try:
        tried: Any = registry()
        check_shape(tried)
        tried.suspended = True
        tried.add(deadline)
        known = deadline in tried._live
        tried.discard(deadline)
    except Exception as error:
        return f"{REGISTRY_CLASS} cannot be taken over: {type(error).__name__}: {error}"
    if known and deadline.suspended and not tried._live:
        return ""
    return f"{REGISTRY_CLASS} does not keep what is added, suspended, until it is discarded"


class _Deadline:
    suspended = False

    def suspend(self) -> None:
        self.suspended = True


def _takes_holder(registry: type | None) -> bool:
    try:
        return len(inspect.signature(registry.suspend).parameters) > 1  # type: ignore[union-attr]
    except (AttributeError, TypeError, ValueError):
        return False


def _calls(uses: _Uses, start: str, forward: str) -> bool:
    """Whether a method leads to a forward of the manager, or to the registry behind it."""
    direct = {REGISTRY, forward.partition("_")[0]}
    reached: set[str] = set()
    pending = [start]
    while pending:
        name = pending.pop()
        if name in uses and name not in reached:
            reached.add(name)
            pending += uses[name]
    return any(forward in uses[name] or direct <= uses[name] for name in reached)


def _uses(cls: type) -> _Uses:
    """The names that each function of a class and of its bases uses, the most derived first."""
    return {name: _names_in(value) for owner in reversed(cls.__mro__) for name, value in vars(owner).items()}


def _names_in(value: Any) -> frozenset[str]:
    function = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
    return _names_of(function.__code__) if isinstance(function, FunctionType) else frozenset()


@functools.cache
def _names_of(code: CodeType) -> frozenset[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return frozenset(code.co_names).union(*map(_names_of, inner))


def _unsupported(found: str) -> Finding:
    return Finding(State.UNSUPPORTED, found)
