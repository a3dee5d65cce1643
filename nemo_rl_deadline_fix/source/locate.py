"""Tell which state a NeMo RL tree is in, place by place, without importing or changing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.deadlines import manager_sites, shared_name
from nemo_rl_deadline_fix.source.gates import GateChange, Method, deadline_calls, gate_changes, methods
from nemo_rl_deadline_fix.source.holds import Call, Controller
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
    SNAPSHOT_FILES,
    SNAPSHOT_NAMES,
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
    changes = gate_changes(tree.controller.module) if tree.controller else []
    if tree.controller is None or not changes:
        state, detail = _nothing_found(tree)
        return TreeReport(tree.root, state, detail, (), tree)
    if tree.manager is None:
        detail = f"expected {MANAGER_FILE} beside the controller; found none"
        return TreeReport(tree.root, State.UNKNOWN, detail, (), tree)
    sites = (
        *manager_sites(tree.manager),
        *_controller_sites(tree.controller, changes, shared_name(tree.manager)),
    )
    state, detail = _sum(sites, tree.root)
    return TreeReport(tree.root, state, detail, sites, tree)


def _nothing_found(tree: Tree) -> tuple[State, str]:
    controller = tree.controller
    names = {method.function.name for method in methods(controller.module)} if controller else set()
    there = [name for name in METHODS if name in names]
    if controller and (there or GATE in controller.text):
        found = f"{' and '.join(there) or GATE}, and no statement that closes or reopens {GATE}"
        return State.UNKNOWN, f"expected {GATE} to be closed and reopened in {controller.path}; found {found}"
    if other := _snapshots_elsewhere(tree):
        return State.UNKNOWN, f"Gym snapshots in a form that this package does not know: {', '.join(other)}"
    if controller is None:
        detail = f"no {CONTROLLER_FILE}: a NeMo RL without the single controller takes no Gym snapshots"
        return State.NOT_APPLICABLE, detail
    return State.NOT_APPLICABLE, f"{CONTROLLER_CLASS} has no Gym snapshot code"


def _snapshots_elsewhere(tree: Tree) -> list[str]:
    """Files of the tree that speak of Gym snapshots."""
    sources = (source for source in (tree.controller, tree.manager) if source)
    speaking = [source.name for source in sources if any(name in source.text for name in SNAPSHOT_NAMES)]
    return speaking + [name for name in SNAPSHOT_FILES if (tree.root / name).exists()]


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


def _controller_sites(source: Source, changes: list[GateChange], shared: str) -> Iterator[Site]:
    controller = Controller(source.module, shared)
    calls = [controller.calls(change) for change in changes]
    held = {
        call.name
        for change, found in zip(changes, calls, strict=True)
        for call in found
        if change.closes and call.suspends and call.name is not None and call.name != shared
    }
    sites = [
        _judge(source, change, found, held, shared) for change, found in zip(changes, calls, strict=True)
    ]
    yield from sites
    for closes, missing in ((True, "closes"), (False, "reopens")):
        if not any(change.closes is closes for change in changes):
            yield Site(
                rule=Rule.DF003,
                kind=Kind.CLOSE if closes else Kind.REOPEN,
                file=source.path,
                line=1,
                name=CONTROLLER_CLASS,
                state=State.UNKNOWN,
                expected=f"a statement that {missing} {GATE}",
                found="none outside __init__",
            )
    # A hold that is only in the wrong place is missed at the right one.
    misplaced = any(site.kind is Kind.CLOSE and site.state is State.AFFECTED for site in sites)
    for method, node, suspends in controller.strays():
        harmless = suspends is None or (suspends and misplaced)
        yield _stray(source, method, node, harmless=harmless)


def _judge(source: Source, change: GateChange, calls: list[Call], held: set[str], shared: str) -> Site:
    verb = SUSPEND if change.closes else RESUME
    wanted = f"{change.receiver or 'self'}.{MANAGER}.{verb}({HOLDER!r})"
    expected = f"{wanted} in the step that {'closes' if change.closes else 'reopens'} the gate"
    named = [call for call in calls if call.name != shared]
    state, found = State.AFFECTED, "no such call in this step"
    if named:
        state, found = _named(change, named, held, verb)
    elif change.trouble:
        state, found = State.UNKNOWN, change.trouble
    elif any(call.suspends is change.closes for call in calls):
        found = f"{verb}() under the name that training and refit share"
    elif others := [
        ast.unparse(call) for part in change.step for call in deadline_calls(part) if _other(call)
    ]:
        state, found = State.UNKNOWN, f"another call about deadlines: {others[0]}"
    elif f".{MANAGER}" not in source.text:
        state, found = State.UNKNOWN, f"a controller without {MANAGER}"
    return Site(
        rule=Rule.DF003,
        kind=Kind.CLOSE if change.closes else Kind.REOPEN,
        file=source.path,
        line=change.line,
        name=change.method.name,
        state=state,
        expected=expected,
        found=found,
        required=True,
        span=_span(change.method),
        receiver=change.receiver,
    )


def _named(change: GateChange, calls: list[Call], held: set[str], verb: str) -> tuple[State, str]:
    """The state of a place that has calls under a name of their own."""
    first = calls[0]
    if len(calls) > 1 or first.suspends is not change.closes:
        texts = " and ".join(ast.unparse(call.node) for call in calls)
        return State.UNKNOWN, f"{texts} in one step"
    if not first.sure:
        return State.UNKNOWN, f"{ast.unparse(first.node)}, and no statement of its own on {MANAGER}"
    if first.name is None:
        return State.UNKNOWN, f"a name that is no plain string: {ast.unparse(first.node)}"
    if held and held != {first.name}:
        return (
            State.UNKNOWN,
            f"the clocks are held as {_list(held)} and released as {first.name!r}"
            if not change.closes
            else f"the clocks are held as {_list(held)}",
        )
    return State.FIXED, f"{verb} as {first.name!r}"


def _other(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr not in (SUSPEND, RESUME)


def _stray(source: Source, method: Method, node: ast.expr, *, harmless: bool) -> Site:
    """A call that is no gate's. Training's and refit's share one name, and stay as they are."""
    return Site(
        rule=None if harmless else Rule.DF003,
        kind=Kind.CALL,
        file=source.path,
        line=node.lineno,
        name=method.name,
        state=State.INFORMATION if harmless else State.UNKNOWN,
        expected="training and refit keep one name of their own",
        found=ast.unparse(node) if harmless else f"{ast.unparse(node)}, apart from any change of {GATE}",
        required=not harmless,
        span=_span(method),
    )


def _span(method: Method) -> tuple[int, int]:
    function = method.function
    first = min([function.lineno, *(part.lineno for part in function.decorator_list)])
    return first, function.end_lineno or function.lineno


def _list(names: object) -> str:
    return " and ".join(sorted(repr(name) for name in names))  # type: ignore[attr-defined]
