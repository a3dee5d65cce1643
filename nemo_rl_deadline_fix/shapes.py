"""What a loaded controller class is to the fix: affected, fixed, without the feature, or unknown.

Version numbers do not decide, because NeMo RL runs from git; the classes do, by the names that they use.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType, FunctionType
from typing import Any

from nemo_rl_deadline_fix.registry import check_shape
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    COORDINATED,
    GATE,
    PREPARE,
    REGISTRY,
    REGISTRY_CLASS,
    RELEASE,
    RESUME,
    SNAPSHOT_FILES,
    SNAPSHOT_NAMES,
    SUSPEND,
)

NOT_MENDED = (
    "affected, in a form that this package does not mend; NeMo RL has the fix itself from a newer version on "
    "(named holders): update"
)

_names_of: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


class Shape(StrEnum):
    """What a controller class is to the fix; the values are the words used in messages."""

    AFFECTED = "affected"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Finding:
    """A class's shape, with what was found, and what to do about it, where that needs saying."""

    shape: Shape
    found: str = ""
    advice: str = "run `nemo-rl-deadline-fix check` on your checkout and report what it prints"


def classify(controller: type, registry: type | None, around: Iterable[str] = ()) -> Finding:
    """Tell what a controller class is to the fix.

    Args:
        controller: The class whose methods run in the actor.
        registry: The `RequestDeadlineRegistry` class it works with; None where it is not known.
        around: Names that the modules of the two have, which tell of Gym snapshots outside of the class.

    Returns:
        The shape. `UNSUPPORTED` says what was found instead of what the fix needs.
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
    closes, reopens = _calls(uses, PREPARE, SUSPEND), _calls(uses, RELEASE, RESUME)
    named = registry is not None and _takes_holder(registry)
    if closes and reopens and (named or registry is None):
        return Finding(Shape.ALREADY_FIXED, f"{PREPARE} suspends the deadlines itself")
    if closes or named:
        return _unsupported(
            f"a part of a fix: {PREPARE} {'suspends' if closes else 'does not suspend'} the deadlines, "
            f"{RELEASE} {'resumes' if reopens else 'does not resume'} them, and {REGISTRY_CLASS} "
            f"knows {'its' if named else 'no'} holders by name"
        )
    problem = "" if registry is None else _problem_of(registry)
    return _unsupported(problem) if problem else Finding(Shape.AFFECTED)


def mentions(cls: type, name: str) -> bool:
    """Whether any function of a class, or of its bases, uses a name."""
    return any(name in names for names in _uses(cls).values())


def _without_prepare(uses: dict[str, frozenset[str]], names: list[str], registry: type | None) -> Finding:
    found = [name for name in names if name in SNAPSHOT_FILES or any(part in name for part in SNAPSHOT_NAMES)]
    if not found:
        return Finding(Shape.NOT_APPLICABLE, f"{CONTROLLER_CLASS} has no Gym snapshot code")
    if COORDINATED in uses and registry is not None:
        if not _takes_holder(registry):
            return Finding(Shape.UNSUPPORTED, NOT_MENDED, "update NeMo RL")
        if _calls(uses, COORDINATED, SUSPEND) and _calls(uses, COORDINATED, RESUME):
            return Finding(Shape.ALREADY_FIXED, f"by NeMo RL itself: {COORDINATED} suspends the deadlines")
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


def _takes_holder(registry: type) -> bool:
    try:
        return len(inspect.signature(registry.suspend).parameters) > 1  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return False


def _calls(uses: dict[str, frozenset[str]], start: str, forward: str) -> bool:
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


def _uses(cls: type) -> dict[str, frozenset[str]]:
    """The names that each function of a class and of its bases uses, the most derived first."""
    return {name: _names_in(value) for owner in reversed(cls.__mro__) for name, value in vars(owner).items()}


def _names_in(value: Any) -> frozenset[str]:
    function = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
    if not isinstance(function, FunctionType):
        return frozenset()
    if function not in _names_of:
        names: set[str] = set()
        pending: list[CodeType] = [function.__code__]
        while pending:
            code = pending.pop()
            names.update(code.co_names)
            pending += [one for one in code.co_consts if isinstance(one, CodeType)]
        _names_of[function] = frozenset(names)
    return _names_of[function]


def _unsupported(found: str) -> Finding:
    return Finding(Shape.UNSUPPORTED, found)
