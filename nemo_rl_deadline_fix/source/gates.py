"""Every place in the controller that closes or reopens the snapshot gate, found by what the code does.

A gate's change and the call that stops or starts the clocks belong into one *step*: code that runs
without an `await` in between, so that no other task can see the one without the other.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from nemo_rl_deadline_fix.targets import CONTROLLER_CLASS, GATE, MANAGER

WAIT = "_wait_for_rollout_admission"
"""Where rollouts wait for both gates."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Assert)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Method:
    """A function of the controller's module with the class it belongs to, where it belongs to one."""

    owner: str
    function: Function

    @property
    def name(self) -> str:
        """Its name for people: `Class.method`."""
        return f"{self.owner}.{self.function.name}" if self.owner else self.function.name


@dataclass(frozen=True)
class GateChange:
    """One statement that closes or reopens the gate.

    Attributes:
        method: Where it stands.
        closes: Whether it closes the gate; else it reopens it.
        line: Its line.
        receiver: The object whose gate it is, as source text; "" where that is not known.
        trouble: Why no call can be put beside it, or "".
        step: The statements that surely run in one step with it, itself included.
    """

    method: Method
    closes: bool
    line: int
    receiver: str
    trouble: str = ""
    step: tuple[ast.stmt, ...] = ()


def methods(module: ast.Module) -> Iterator[Method]:
    """Every function of a module, wherever it stands, but for those inside of other functions."""
    yield from _methods_in(module, "")


def _methods_in(node: ast.AST, owner: str) -> Iterator[Method]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield Method(owner, child)
        else:
            yield from _methods_in(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """The code of a module that is in no function."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            yield child
            yield from _outside(child)


def gate_changes(module: ast.Module) -> list[GateChange]:
    """All changes of the gate but its making in `__init__`, in the file's order.

    Whatever else is done with the gate, but to ask or to wait for it, may be a change as well: it is one
    with trouble.
    """
    changes = [change for method in methods(module) for change in _changes_in(method)]
    nowhere = Method("", cast(ast.FunctionDef, ast.parse("def module(): ...").body[0]))
    changes += [
        _unclear(nowhere, node, f"{GATE} is used outside of any function")
        for node in _outside(module)
        if _refers(node)
    ]
    return sorted(changes, key=lambda change: change.line)


def _refers(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return bool(node.value == GATE)
    return isinstance(node, ast.Attribute) and node.attr == GATE


def _changes_in(method: Method) -> Iterator[GateChange]:
    function = method.function
    if not any(map(_refers, ast.walk(function))) or _only_waits(function):
        return
    bound = bindings(function)
    aliases = _aliases(function, bound)
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and node.value == GATE:
            yield _unclear(method, node, f"{GATE} is named in a string")
        elif isinstance(node, ast.Attribute | ast.Name) and (found := _receiver(node, aliases)) is not None:
            root = found
            while isinstance(root, ast.Attribute):
                root = root.value
            if not (isinstance(root, ast.Name) and bound[root.id] <= 1):
                yield _unclear(method, node, f"{GATE} of an object that has no name of its own")
            else:
                yield from _use(method, node, ast.unparse(found), parents, aliases)


def _use(
    method: Method,
    node: ast.Attribute | ast.Name,
    receiver: str,
    parents: dict[ast.AST, ast.AST],
    aliases: dict[str, ast.expr],
) -> Iterator[GateChange]:
    use = parents[node]
    starts = method.owner == CONTROLLER_CLASS and method.function.name == "__init__"
    if not isinstance(node.ctx, ast.Load):
        made = starts and isinstance(use, ast.Assign | ast.AnnAssign) and parents[use] is method.function
        if isinstance(node, ast.Attribute) and not made:
            yield _unclear(method, node, f"{GATE} is replaced")
    elif isinstance(use, ast.Attribute) and use.attr in ("set", "clear"):
        change = _change(method, use, receiver, parents)
        if not starts:
            yield change
        elif change.closes or change.trouble or parents[parents[parents[use]]] is not method.function:
            yield _unclear(method, node, f"{GATE} is more than made and set in __init__")
    elif isinstance(use, ast.Attribute):
        call = parents[use]
        asks = use.attr in ("is_set", "wait") and isinstance(call, ast.Call) and call.func is use
        if not asks:
            yield _unclear(method, node, f"{GATE}.{use.attr} is used")
    elif isinstance(use, ast.Call | ast.keyword):
        yield _unclear(method, node, f"{GATE} is handed on")
    elif _alias(use) not in aliases:
        yield _unclear(method, node, f"{GATE} is kept under another name: {ast.unparse(use)}")


def _only_waits(function: Function) -> bool:
    """Whether this is the function in which rollouts wait, and it does nothing else with any gate."""
    return function.name == WAIT and not any(
        (isinstance(node, ast.Attribute) and (node.attr in ("set", "clear") or _stored(node)))
        or (isinstance(node, ast.Return) and node.value is not None)
        for node in ast.walk(function)
    )


def _stored(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _receiver(node: ast.AST, aliases: dict[str, ast.expr]) -> ast.expr | None:
    """Whose gate an expression is; None where it is no gate."""
    if isinstance(node, ast.Attribute) and node.attr == GATE:
        return node.value
    return aliases.get(node.id) if isinstance(node, ast.Name) else None


def _alias(node: ast.AST) -> str:
    """The one local name that a statement binds, or ""."""
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Assign):
        targets = list(node.targets)  # type: ignore[arg-type]
    else:
        return ""
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _aliases(function: Function, bound: Counter[str]) -> dict[str, ast.expr]:
    """Local names that stand for the gate, such as `gate = self._gym_checkpoint_rollout_permitted`."""
    return {
        name: node.value.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == GATE
        and (name := _alias(node))
        and bound[name] == 1
    }


def bindings(function: ast.AST) -> Counter[str]:
    """How often each name is bound in some code, in whatever way."""
    found: Counter[str] = Counter()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.arg):
            found[node.arg] += 1
        elif isinstance(node, ast.Global | ast.Nonlocal):
            # Bound elsewhere too, and nobody knows to what.
            found.update(node.names * 2)
        elif isinstance(node, ast.alias):
            found[(node.asname or node.name).partition(".")[0]] += 1
        elif isinstance(node, Function | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            found[node.name or ""] += 1
        elif isinstance(node, ast.MatchMapping):
            found[node.rest or ""] += 1
    return found


def _unclear(method: Method, node: ast.AST, trouble: str) -> GateChange:
    return GateChange(method, False, getattr(node, "lineno", method.function.lineno), "", trouble)


def _change(
    method: Method, verb: ast.Attribute, receiver: str, parents: dict[ast.AST, ast.AST]
) -> GateChange:
    call = parents[verb]
    statement = parents.get(call)
    if not (isinstance(call, ast.Call) and call.func is verb and isinstance(statement, ast.Expr)):
        return _unclear(method, verb, f"{GATE}.{verb.attr} is used otherwise than as a statement of its own")
    block = _block(statement, parents[statement])
    trouble = ""
    owner = parents[statement]
    if isinstance(owner, ast.stmt) and owner.lineno == statement.lineno:
        trouble = f"{GATE}.{verb.attr}() stands on the line of its {type(owner).__name__.lower()}"
    elif any(other is not statement and _touches(other, statement) for other in block):
        trouble = f"{GATE}.{verb.attr}() shares its line with another statement"
    return GateChange(
        method,
        verb.attr == "clear",
        statement.lineno,
        receiver,
        trouble,
        tuple(_step(statement, parents)),
    )


def _touches(one: ast.stmt, other: ast.stmt) -> bool:
    return one.lineno <= other.lineno <= (one.end_lineno or one.lineno)


def _block(statement: ast.AST, owner: ast.AST) -> list[ast.stmt]:
    for _, value in ast.iter_fields(owner):
        if isinstance(value, list) and any(item is statement for item in value):
            return value
    return []


def _step(statement: ast.stmt, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.stmt]:
    yield statement
    block, here = _block(statement, parents[statement]), statement
    yield from _until_await(block[_index(block, statement) + 1 :])
    while True:
        for earlier in reversed(block[: _index(block, here)]):
            if _awaits(earlier) or _leaves(earlier):
                return
            yield earlier
        owner = parents[here]
        # Into the body of a `try` or `with` one gets as surely as to the statement before it.
        if not (isinstance(owner, ast.Try | ast.With) and block is owner.body):
            return
        block, here = _block(owner, parents[owner]), owner


def _until_await(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        if isinstance(statement, ast.Try | ast.With) and _awaits(statement):
            yield from _until_await(statement.body)
            return
        if _awaits(statement) or _leaves(statement):
            return
        yield statement


def _index(block: list[ast.stmt], statement: ast.AST) -> int:
    return next(index for index, item in enumerate(block) if item is statement)


def _awaits(node: ast.AST) -> bool:
    """Whether other tasks may run while this code does; nested functions run elsewhere."""
    return _has(node, _AWAITS)


def _leaves(node: ast.AST) -> bool:
    """Whether the statement after this code may not be reached; that any call may raise is not counted."""
    return _has(node, _LEAVES)


def _has(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    if isinstance(node, kinds):
        return True
    return any(_has(child, kinds) for child in ast.iter_child_nodes(node) if not isinstance(child, _SCOPES))


def deadline_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls on the manager whose name speaks of deadlines: maybe another form of the same fix."""
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and isinstance(inner.func.value, ast.Attribute)
            and inner.func.value.attr == MANAGER
            and "deadline" in inner.func.attr
        ):
            yield inner
