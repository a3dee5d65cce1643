"""The controller's calls that stop or start the rollout clocks: whose they are, and by what name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_rl_deadline_fix.source.gates import Function, GateChange, Method, bindings, methods
from nemo_rl_deadline_fix.targets import MANAGER, REGISTRY, RESUME, SUSPEND


@dataclass(frozen=True)
class Call:
    """One call that stops or starts the clocks.

    Attributes:
        node: The call.
        suspends: Whether it stops them.
        name: Its holder; the shared name where it names none; None where the name is not a plain string.
        sure: Whether it is a statement of its own on the manager of the controller whose gate it is about.
    """

    node: ast.Call
    suspends: bool
    name: str | None
    sure: bool


class Controller:
    """The controller's module, read for calls about the clocks.

    Args:
        module: The module.
        shared: The name of a call that names no holder.
    """

    def __init__(self, module: ast.Module, shared: str) -> None:
        self.module = module
        self.shared = shared
        self._methods = list(methods(module))
        self._bound = bindings(module)
        self._constants = _constants(module)
        self._used: set[int] = set()
        self._helpers: set[str] = set()

    def calls(self, change: GateChange) -> list[Call]:
        """The calls in the step of a gate's change, those in a short helper included."""
        found: list[Call] = []
        for part in change.step:
            # What stands under an `if` is not sure to run in this step, and is judged as a stray.
            if isinstance(part, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):
                found += self._in_statement(part, change.receiver, change.method)
                found += self._in_helper(part, change)
        self._used |= {id(call.node) for call in found}
        return found

    def _in_statement(self, part: ast.stmt, receiver: str, method: Method) -> Iterator[Call]:
        for node, suspends in _clock_calls(part):
            own = isinstance(part, ast.Expr) and part.value is node
            sure = own and self._is_managers(node, receiver, method.function)
            yield Call(node, suspends, self._name(node, method), sure)

    def _in_helper(self, part: ast.stmt, change: GateChange) -> Iterator[Call]:
        """The calls of `self.helper()`, whose statements surely run in the caller's step."""
        call = part.value if isinstance(part, ast.Expr) else None
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)) or call.args:
            return
        target = call.func
        same = [m for m in self._methods if m.function.name == target.attr]
        if call.keywords or ast.unparse(target.value) != change.receiver or len(same) != 1:
            return
        (helper,) = same
        function = helper.function
        plain = isinstance(function, ast.FunctionDef) and not function.decorator_list
        given = [part.arg for part in function.args.args]
        if not plain or helper.owner != change.method.owner or given != ["self"]:
            return
        if not all(
            isinstance(line, ast.Expr) and isinstance(line.value, ast.Call | ast.Constant)
            for line in function.body
        ):
            return
        found = [call for line in function.body for call in self._in_statement(line, "self", helper)]
        if found:
            self._helpers.add(target.attr)
            self._used.add(id(target))
        yield from found

    def _is_managers(self, call: ast.Call, receiver: str, function: Function) -> bool:
        target = call.func
        assert isinstance(target, ast.Attribute)
        owner = target.value
        if target.attr in ("suspend", "resume") and isinstance(owner, ast.Attribute):
            owner = owner.value
        wanted = f"{receiver}.{MANAGER}"
        if not isinstance(owner, ast.Name):
            return ast.unparse(owner) == wanted
        return bindings(function)[owner.id] == 1 and any(
            isinstance(node, ast.Assign) and ast.unparse(node) == f"{owner.id} = {wanted}"
            for node in function.body
        )

    def _name(self, call: ast.Call, method: Method) -> str | None:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not given:
            return self.shared
        value = given[0] if len(given) == 1 else None
        if isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) else None
        if isinstance(value, ast.Name):
            # A constant is bound once in the whole module; a parameter or a local name would be the second.
            return self._constants.get(("", value.id)) if self._bound[value.id] == 1 else None
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) in ("self", "cls", method.owner):
            stored = any(
                isinstance(node, ast.Attribute) and node.attr == value.attr and _is_stored(node)
                for node in ast.walk(self.module)
            )
            once = self._bound[value.attr] == 1 and not stored
            return self._constants.get((method.owner, value.attr)) if once else None
        return None

    def strays(self) -> Iterator[tuple[Method, ast.expr, bool | None]]:
        """What else is about the clocks, once `calls` was asked about every change.

        Yields:
            The function, the expression, and whether it is a call that stops the clocks under a name of
            its own (True), or starts them so or is no call and may do anything (False); None where it is
            a call under the shared name.
        """
        for method in self._methods:
            parents = {
                child: node for node in ast.walk(method.function) for child in ast.iter_child_nodes(node)
            }
            called = {id(node): suspends for node, suspends in _clock_calls(method.function)}
            for node in ast.walk(method.function):
                if isinstance(node, ast.Call) and id(node) in called and id(node) not in self._used:
                    shared = self._name(node, method) == self.shared
                    yield method, node, None if shared else called[id(node)]
                elif isinstance(node, ast.Attribute) and id(node) not in self._used:
                    use = parents[node]
                    if node.attr in (SUSPEND, RESUME):
                        fine = id(use) in called
                    elif node.attr == REGISTRY:
                        fine = id(parents.get(use)) in called
                    else:
                        fine = node.attr not in self._helpers
                    if not fine:
                        yield method, node, False
                elif isinstance(node, ast.Constant) and node.value in (SUSPEND, RESUME, REGISTRY):
                    yield method, node, False


def _clock_calls(node: ast.AST) -> Iterator[tuple[ast.Call, bool]]:
    """Calls on the manager or its registry, each with whether it stops the clocks."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            target = inner.func
            on_registry = isinstance(target.value, ast.Attribute) and target.value.attr == REGISTRY
            if target.attr in (SUSPEND, RESUME) or (on_registry and target.attr in ("suspend", "resume")):
                yield inner, target.attr in (SUSPEND, "suspend")


def _is_stored(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _constants(module: ast.Module) -> dict[tuple[str, str], str]:
    """String constants of the module ("") and of its classes, by class and name."""
    bodies = [("", module.body)]
    bodies += [(node.name, node.body) for node in module.body if isinstance(node, ast.ClassDef)]
    found: dict[tuple[str, str], str] = {}
    for owner, node in ((owner, node) for owner, body in bodies for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value.value, str):
                found |= {(owner, t.id): node.value.value for t in targets if isinstance(t, ast.Name)}
    return found
