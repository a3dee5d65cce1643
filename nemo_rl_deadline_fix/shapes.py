"""What a loaded controller class looks like: affected, fixed, without the feature, or unknown.

Version numbers do not decide, because NeMo RL runs from git; the compiled methods do.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType
from typing import Any

from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    GATE,
    METHODS,
    PREPARE,
    REGISTRY,
    REGISTRY_CLASS,
    RELEASE,
    RESUME,
    SNAPSHOT_NAMES,
    SUSPEND,
)

_WAITS = "_wait_for_rollout_admission"
# It waits for both gates and changes none, so it may put them together as it likes.


class Shape(StrEnum):
    """What a controller class is to the fix; the values are the words used in messages."""

    AFFECTED = "affected"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Finding:
    """A class's shape, with what was found where that needs saying."""

    shape: Shape
    found: str = ""


def classify(controller: type, registry: type | None) -> Finding:
    """Tell what a controller class is to the fix.

    Args:
        controller: The class whose methods run in the actor.
        registry: The `RequestDeadlineRegistry` class it works with; None where it is not known.

    Returns:
        The shape. `UNSUPPORTED` says what was found instead of what the fix needs.
    """
    functions = _functions(controller)
    code = {name: list(_codes(function)) for name, function in functions.items()}
    sites = {
        name: verbs for name, codes in code.items() if (verbs := _gate_verbs(codes)) and name != "__init__"
    }
    missing = [name for name in METHODS if name not in code]
    if missing:
        if len(missing) == len(METHODS) and not sites:
            if other := snapshot_names(controller):
                return _unsupported(f"Gym snapshots in another form: {', '.join(other)}")
            return Finding(Shape.NOT_APPLICABLE, f"{CONTROLLER_CLASS} has no Gym snapshot code")
        return _unsupported(f"{CONTROLLER_CLASS} has no method {' and no '.join(missing)}")
    not_async = [name for name in METHODS if not inspect.iscoroutinefunction(functions[name])]
    if not_async:
        return _unsupported(f"{' and '.join(not_async)} is not an async function")

    escapes = sorted(name for name, codes in code.items() if name != _WAITS and _gate_escapes(codes))
    if escapes:
        return _unsupported(f"{GATE} is handed on in {', '.join(escapes)}, so who changes it cannot be seen")
    reached = _reached(code)
    if _calls_manager(code, reached, SUSPEND):
        if registry is not None and not takes_holder(registry):
            return _unsupported(
                f"{PREPARE} suspends the deadlines already, but {REGISTRY_CLASS} knows no holders"
            )
        if not _calls_manager(code, _reached(code, (RELEASE,)), RESUME):
            return _unsupported(f"{PREPARE} suspends the deadlines, but {RELEASE} does not resume them")
        return Finding(Shape.ALREADY_FIXED, f"{PREPARE} suspends the deadlines itself")
    if registry is not None and takes_holder(registry):
        return _unsupported(
            f"{REGISTRY_CLASS} knows holders already, but {PREPARE} does not suspend the deadlines"
        )
    if registry is not None and (lacking := _lacking(registry)):
        return _unsupported(f"{REGISTRY_CLASS} has no {' and no '.join(lacking)}")
    if not any("clear" in sites.get(name, ()) for name in reached):
        return _unsupported(f"{PREPARE} does not close {GATE}")
    if "set" not in {verb for name in _reached(code, (RELEASE,)) for verb in sites.get(name, ())}:
        return _unsupported(f"{RELEASE} does not reopen {GATE}")
    # The wrappers look at the gate when a wrapped call ends. A change of the gate that no wrapped call
    # makes would go unseen, and the clocks would stand still after it, or run.
    others = tuple(name for name in code if name not in reached and name != "__init__")
    elsewhere = sorted(set(sites) & _reached(code, others, stop=METHODS))
    if elsewhere:
        return _unsupported(f"{GATE} is also opened or closed in {', '.join(elsewhere)}")
    return Finding(Shape.AFFECTED)


def mentions(cls: type, name: str) -> bool:
    """Whether any function of a class, or of its bases, uses a name."""
    return any(name in code.co_names for function in _functions(cls).values() for code in _codes(function))


def snapshot_names(cls: type) -> list[str]:
    """Names that speak of Gym snapshots, among those that a class defines or uses."""
    functions = _functions(cls)
    names = {name for owner in cls.__mro__ for name in vars(owner)}
    names.update(
        name for function in functions.values() for code in _codes(function) for name in code.co_names
    )
    return sorted(name for name in names if any(part in name for part in SNAPSHOT_NAMES))


def takes_holder(registry: type) -> bool:
    """Whether a registry's `suspend` takes the name of a holder."""
    suspend = getattr(registry, "suspend", None)
    if suspend is None:
        return False
    try:
        return len(inspect.signature(suspend).parameters) > 1
    except (TypeError, ValueError):
        return False


def _unsupported(found: str) -> Finding:
    return Finding(Shape.UNSUPPORTED, found)


def _lacking(registry: type) -> list[str]:
    return [
        name
        for name in ("add", "discard", "suspend", "resume")
        if not callable(getattr(registry, name, None))
    ]


def _functions(cls: type) -> dict[str, Any]:
    """Every function of the class and its bases by name, the most derived first, unwrapped."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        for name, value in vars(owner).items():
            function = inspect.unwrap(getattr(value, "__func__", value))
            if hasattr(function, "__code__"):
                found[name] = function
    return found


def _codes(function: Any) -> Iterator[CodeType]:
    pending: list[CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        yield code
        pending.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _calls_manager(code: dict[str, list[CodeType]], methods: set[str], forward: str) -> bool:
    """Whether any of the methods calls a forward of the manager, or the registry behind it itself."""
    direct = forward.partition("_")[0]
    names = [set(one.co_names) for method in methods for one in code[method]]
    return any(forward in used or {REGISTRY, direct} <= used for used in names)


def _gate_escapes(codes: list[CodeType]) -> bool:
    """Whether these code objects hand the gate on, or look it up by a string."""
    for code in codes:
        if GATE in code.co_consts:
            return True
        before = None
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("CACHE", "NOP", "EXTENDED_ARG", "PUSH_NULL"):
                continue
            if before is not None and before.argval == GATE and before.opname.startswith("LOAD_"):
                used = instruction.opname.startswith(
                    ("LOAD_ATTR", "LOAD_METHOD", "STORE_FAST", "STORE_DEREF")
                )
                if not used:
                    return True
            before = instruction
    return False


def _gate_verbs(codes: list[CodeType]) -> set[str]:
    """Of `set` and `clear`, what these code objects do to the gate, also by a local name of it."""
    verbs = set()
    for code in codes:
        before, value_before = "", None
        renamed = False
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("CACHE", "NOP", "EXTENDED_ARG"):
                continue
            renamed |= value_before == GATE and instruction.opname.startswith("STORE_")
            on_local = renamed and ("LOAD_FAST" in before or "LOAD_DEREF" in before)
            if instruction.argval in ("set", "clear") and (value_before == GATE or on_local):
                verbs.add(instruction.argval)
            before, value_before = instruction.opname, instruction.argval
    return verbs


def _reached(
    code: dict[str, list[CodeType]], start: tuple[str, ...] = METHODS, stop: tuple[str, ...] = ()
) -> set[str]:
    """The methods that `start` leads to, by the names its code uses, without going on into `stop`."""
    reached: set[str] = set()
    pending = list(start)
    while pending:
        name = pending.pop()
        if name not in reached and name not in stop:
            reached.add(name)
            pending.extend(used for one in code[name] for used in one.co_names if used in code)
    return reached
