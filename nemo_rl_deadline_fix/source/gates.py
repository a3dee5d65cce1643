"""Every place in the controller that closes or reopens the snapshot gate, found by what the code does.

A gate's change and the call that stops or starts the clocks belong into one *step*: code that runs
without an `await` in between, so that no other task can see the one without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_rl_deadline_fix.targets import GATE, MANAGER, REGISTRY, RESUME, SUSPEND

Function = ast.FunctionDef | ast.AsyncFunctionDef
_AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)
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
    """Every function of a module's top level and of its classes."""
    for node in module.body:
        if isinstance(node, Function):
            yield Method("", node)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function):
                    yield Method(node.name, inner)


def gate_changes(module: ast.Module) -> list[GateChange]:
    """All changes of the gate outside of `__init__`, in the file's order."""
    changes = [
        change
        for method in methods(module)
        if method.function.name != "__init__"
        for change in _changes_in(method)
    ]
    return sorted(changes, key=lambda change: change.line)


def _changes_in(method: Method) -> Iterator[GateChange]:
    function = method.function
    if not any(isinstance(node, ast.Attribute) and node.attr == GATE for node in ast.walk(function)):
        return
    aliases = _aliases(function)
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    escapes: list[ast.AST] = []
    strangers: list[ast.Attribute] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Name) and _receiver(node, aliases) is not None:
            use = parents[node]
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                yield _unclear(method, node, f"{GATE} is replaced")
            elif isinstance(use, ast.Call | ast.keyword) and node is not getattr(use, "func", None):
                yield _unclear(method, node, f"{GATE} is handed on")
            elif isinstance(node.ctx, ast.Load) and not isinstance(use, ast.Attribute) and not _is_alias(use):
                escapes.append(node)
        if isinstance(node, ast.Attribute) and node.attr in ("set", "clear"):
            receiver = _receiver(node.value, aliases)
            if receiver is not None:
                yield _change(method, node, receiver, parents)
            elif isinstance(node.value, ast.Name):
                strangers.append(node)
    if escapes:
        for stranger in strangers:
            yield _unclear(method, stranger, f"{ast.unparse(stranger.value)} may be {GATE}")


def _receiver(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Whose gate an expression is, as source text; None where it is no gate."""
    if isinstance(node, ast.Attribute) and node.attr == GATE:
        return ast.unparse(node.value)
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    return None


def _is_alias(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
    ) or (isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name))


def _aliases(function: Function) -> dict[str, str]:
    """Local names that stand for the gate, such as `gate = self._gym_checkpoint_rollout_permitted`."""
    found: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and _is_alias(node):
            receiver = _receiver(node.value, {}) if node.value is not None else None
            if receiver is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: receiver for target in targets if isinstance(target, ast.Name)}
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
            if _awaits(earlier):
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
        if _awaits(statement) or isinstance(statement, _LEAVES):
            return
        yield statement


def _index(block: list[ast.stmt], statement: ast.AST) -> int:
    return next(index for index, item in enumerate(block) if item is statement)


def _awaits(node: ast.AST) -> bool:
    """Whether other tasks may run while this code does; nested functions run elsewhere."""
    if isinstance(node, _AWAITS):
        return True
    return any(_awaits(child) for child in ast.iter_child_nodes(node) if not isinstance(child, _SCOPES))


def clock_calls(node: ast.AST, *, suspends: bool) -> Iterator[ast.Call]:
    """Calls that stop (or start) the rollout clocks, through the manager or its registry."""
    wanted, on_registry = (SUSPEND, "suspend") if suspends else (RESUME, "resume")
    for inner in ast.walk(node):
        if not (isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)):
            continue
        target = inner.func
        if target.attr == wanted or (
            target.attr == on_registry
            and isinstance(target.value, ast.Attribute)
            and target.value.attr == REGISTRY
        ):
            yield inner


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
