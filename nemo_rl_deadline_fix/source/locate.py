"""Tell which state a NeMo RL tree is in, place by place, without importing or changing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.registry import DEFAULT_HOLDER
from nemo_rl_deadline_fix.source.deadlines import manager_sites
from nemo_rl_deadline_fix.source.gates import (
    GateChange,
    Method,
    clock_calls,
    deadline_calls,
    gate_changes,
    methods,
)
from nemo_rl_deadline_fix.source.reading import Source, Tree, read_tree
from nemo_rl_deadline_fix.source.sites import Kind, Rule, Site, State
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_FILE,
    GATE,
    HOLDER,
    MANAGER,
    MANAGER_FILE,
    METHODS,
    RESUME,
    SUSPEND,
)

__all__ = ["Kind", "Rule", "Site", "State", "TreeReport", "examine", "survey"]


@dataclass(frozen=True)
class TreeReport:
    """What a tree is to the fix.

    Attributes:
        root: The folder that holds `nemo_rl`.
        state: The state of the tree as a whole.
        detail: Why it is not applicable or unknown, or which places are missing; else "".
        sites: Every place that was looked at, in the order of rules and lines.
        tree: The files that were read.
    """

    root: Path
    state: State
    detail: str
    sites: tuple[Site, ...]
    tree: Tree

    @property
    def controller(self) -> Path | None:
        """The controller's file, or None where the tree has none."""
        return self.tree.controller.path if self.tree.controller else None

    @property
    def manager(self) -> Path | None:
        """The rollout manager's file, or None where the tree has none."""
        return self.tree.manager.path if self.tree.manager else None


def survey(path: Path) -> TreeReport:
    """Find the places of the fix in a NeMo RL tree and tell the state of each.

    Args:
        path: The checkout's root, its `nemo_rl` folder, an installed package's folder, or one of the
            two files.

    Returns:
        One state per place and one for the tree.

    Raises:
        InvalidInputError: There is no tree, or a file of it cannot be read or parsed.
    """
    return examine(read_tree(path))


def examine(tree: Tree) -> TreeReport:
    """As `survey`, for a tree that is read already.

    Raises:
        InvalidInputError: A file of it cannot be parsed.
    """
    try:
        return _examine(tree)
    except RecursionError:
        raise InvalidInputError(
            f"cannot read the code of {tree.root}", found="expressions nested too deeply"
        ) from None


def _examine(tree: Tree) -> TreeReport:
    if tree.controller is None:
        detail = f"no {CONTROLLER_FILE}: a NeMo RL without the single controller takes no Gym snapshots"
        return TreeReport(tree.root, State.NOT_APPLICABLE, detail, (), tree)
    changes = gate_changes(tree.controller.module)
    if not changes:
        missing = _nothing_found(tree.controller)
        return TreeReport(tree.root, missing[0], missing[1], (), tree)
    if tree.manager is None:
        detail = f"expected {MANAGER_FILE} beside the controller; found none"
        return TreeReport(tree.root, State.UNKNOWN, detail, (), tree)
    sites = (
        *manager_sites(tree.manager),
        *_controller_sites(tree.controller, changes),
        *_calls_of_others(tree.controller, changes),
    )
    state, detail = _sum(sites, tree.root)
    return TreeReport(tree.root, state, detail, sites, tree)


def _nothing_found(controller: Source) -> tuple[State, str]:
    names = {method.function.name for method in methods(controller.module)}
    there = [name for name in METHODS if name in names]
    if there or GATE in controller.text:
        found = f"{' and '.join(there) or GATE}, and no statement that closes or reopens {GATE}"
        return State.UNKNOWN, f"expected {GATE} to be closed and reopened in {controller.path}; found {found}"
    return State.NOT_APPLICABLE, f"{CONTROLLER_CLASS} has no Gym snapshot code"


def _sum(sites: tuple[Site, ...], root: Path) -> tuple[State, str]:
    required = [site for site in sites if site.required]
    states = {site.state for site in required}
    if State.UNKNOWN in states:
        return State.UNKNOWN, "; ".join(
            f"{site.where(root)}: expected {site.expected}; found {site.found}"
            for site in required
            if site.state is State.UNKNOWN
        )
    if states == {State.FIXED}:
        return State.FIXED, ""
    if State.FIXED not in states:
        return State.AFFECTED, ""
    missing = ", ".join(site.where(root) for site in required if site.state is State.AFFECTED)
    return State.PARTLY_FIXED, f"missing: {missing}"


@dataclass(frozen=True)
class _Words:
    """What names in the controller's module stand for: string constants, and short helpers' statements."""

    constants: dict[str, str]
    helpers: dict[str, tuple[ast.stmt, ...]]


def _helpers(module: ast.Module) -> dict[str, tuple[ast.stmt, ...]]:
    # Only plain functions, whose statements surely run in the caller's step.
    return {
        method.function.name: tuple(part for part in method.function.body if isinstance(part, ast.Expr))
        for method in methods(module)
        if isinstance(method.function, ast.FunctionDef)
    }


def _controller_sites(controller: Source, changes: list[GateChange]) -> Iterator[Site]:
    words = _Words(_constants(controller.module), _helpers(controller.module))
    held = {
        name
        for change in changes
        for name in _names(change, words, suspends=True)
        if change.closes and name != DEFAULT_HOLDER
    }
    for change in changes:
        yield _judge(controller, change, words, held)
    for closes, missing in ((True, "closes"), (False, "reopens")):
        if not any(change.closes is closes for change in changes):
            yield Site(
                rule=Rule.DF003,
                kind=Kind.CLOSE if closes else Kind.REOPEN,
                file=controller.path,
                line=1,
                name=CONTROLLER_CLASS,
                state=State.UNKNOWN,
                expected=f"a statement that {missing} {GATE}",
                found="none outside __init__",
            )


def _judge(controller: Source, change: GateChange, words: _Words, held: set[str]) -> Site:
    verb = SUSPEND if change.closes else RESUME
    wanted = f"{change.receiver or 'self'}.{MANAGER}.{verb}({HOLDER!r})"
    expected = f"{wanted} in the step that {'closes' if change.closes else 'reopens'} the gate"
    names = list(_names(change, words, suspends=change.closes))
    state, found = State.AFFECTED, "no such call in this step"
    if names:
        named = [name for name in names if name != DEFAULT_HOLDER]
        if not named:
            found = f"{verb}() under the name that training and refit share"
        elif not change.closes and held and not held & set(named):
            state = State.UNKNOWN
            found = f"the clocks are held as {_list(held)} and released as {_list(named)}"
        else:
            state, found = State.FIXED, f"{verb} as {_list(named)}"
    elif change.trouble:
        state, found = State.UNKNOWN, change.trouble
    elif others := [
        ast.unparse(call) for part in _plain(change) for call in deadline_calls(part) if _other(call)
    ]:
        state, found = State.UNKNOWN, f"another call about deadlines: {others[0]}"
    elif f".{MANAGER}" not in controller.text:
        state, found = State.UNKNOWN, f"a controller without {MANAGER}"
    return Site(
        rule=Rule.DF003,
        kind=Kind.CLOSE if change.closes else Kind.REOPEN,
        file=controller.path,
        line=change.line,
        name=change.method.name,
        state=state,
        expected=expected,
        found=found,
        required=True,
        span=_span(change.method),
        receiver=change.receiver,
    )


def _other(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr not in (SUSPEND, RESUME)


def _plain(change: GateChange) -> Iterator[ast.stmt]:
    # What stands under an `if` is not sure to run in this step.
    return (part for part in change.step if isinstance(part, ast.Expr | ast.Assign))


def _names(change: GateChange, words: _Words, *, suspends: bool) -> Iterator[str]:
    """Under which names the clocks are stopped (or started) in the step of a gate's change."""
    for part in _plain(change):
        code = [part, *(line for name in _called(part) for line in words.helpers.get(name, ()))]
        for call in (call for line in code for call in clock_calls(line, suspends=suspends)):
            yield _holder(call, words.constants)


def _called(part: ast.stmt) -> Iterator[str]:
    target = part.value.func if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) else None
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        yield target.attr


def _holder(call: ast.Call, constants: dict[str, str]) -> str:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        return DEFAULT_HOLDER
    if isinstance(given[0], ast.Constant):
        return str(given[0].value)
    text = ast.unparse(given[0])
    return constants.get(text.rpartition(".")[2], text)


def _constants(module: ast.Module) -> dict[str, str]:
    """String constants of the module and of its classes, by name."""
    bodies = [module.body, *(node.body for node in module.body if isinstance(node, ast.ClassDef))]
    found: dict[str, str] = {}
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value.value, str):
                found |= {t.id: node.value.value for t in targets if isinstance(t, ast.Name)}
    return found


def _calls_of_others(controller: Source, changes: list[GateChange]) -> Iterator[Site]:
    """Training's and refit's calls, for information: they share one name, and stay as they are."""
    ours = {id(call) for change in changes for part in change.step for call in _any_call(part)}
    for method in methods(controller.module):
        for call in _any_call(method.function):
            if id(call) in ours:
                continue
            yield Site(
                rule=None,
                kind=Kind.CALL,
                file=controller.path,
                line=call.lineno,
                name=method.name,
                state=State.INFORMATION,
                expected="training and refit keep one name of their own",
                found=ast.unparse(call),
                required=False,
                span=_span(method),
            )


def _any_call(node: ast.AST) -> Iterator[ast.Call]:
    yield from clock_calls(node, suspends=True)
    yield from clock_calls(node, suspends=False)


def _span(method: Method) -> tuple[int, int]:
    function = method.function
    first = min([function.lineno, *(part.lineno for part in function.decorator_list)])
    return first, function.end_lineno or function.lineno


def _list(names: object) -> str:
    return " and ".join(sorted(repr(name) for name in names))  # type: ignore[attr-defined]
