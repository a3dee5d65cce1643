"""The controller's side of the fix: every statement that closes or reopens the snapshot gate.

The clocks are held right above each close and released right below each reopening, so that no other task
can run in between. Whatever else is done with the gate or with the clocks may have any effect: it is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from operator import attrgetter

from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import (
    Function,
    Kind,
    Place,
    Rule,
    Site,
    State,
    line_after,
    lines_before,
    stands_alone,
)
from nemo_rl_deadline_fix.targets import CONTROLLER_CLASS, GATE, HOLDER, MANAGER, REGISTRY, RESUME, SUSPEND

WHY = "Rollouts park until admission reopens. Their deadlines must not run meanwhile."
WAIT = "_wait_for_rollout_admission"
"""Where rollouts wait for both gates."""
_CLOCKS = (SUSPEND, RESUME, REGISTRY)
_NO_BINDING = (ast.Attribute, ast.Constant, ast.keyword)
_CHANGED = f"{GATE} closed and reopened by plain statements"
_OTHERS = f"no call about the clocks apart from {GATE}, but without a name"


def controller_sites(source: Source) -> list[Site]:
    """The sites of DF003, and the other calls about the clocks; none where the file does not use the gate."""
    return _Controller(source).sites()


class _Controller:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._parents: dict[ast.AST, ast.AST] = {}
        todo: list[ast.AST] = [source.module]
        for node in todo:
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
                todo.append(child)
        self._words = [node for node in self._parents if _is_word(node)]
        self._aliases = dict(self._find_aliases())
        self._ours: set[ast.AST] = set()

    def sites(self) -> list[Site]:
        names = {name for _, name in self._aliases}
        local = [node for node in self._parents if isinstance(node, ast.Name) and node.id in names]
        gates = [site for node in (*self._words, *local) for site in self._gate(node)]
        if not gates:
            return []
        gates += [
            self._unknown(
                self._source.module, "none outside __init__", kind, f"a statement that {verb} {GATE}"
            )
            for kind, verb in ((Kind.CLOSE, "closes"), (Kind.REOPEN, "reopens"))
            if not any(site.kind is kind for site in gates)
        ]
        calls = [site for node in self._words if node not in self._ours for site in self._clocks(node)]
        return [*sorted(gates, key=attrgetter("line")), *sorted(calls, key=attrgetter("line"))]

    # Who stands where.

    def _function(self, node: ast.AST) -> Function | None:
        """The function that a node is in, not one inside of another."""
        found = None
        while node in self._parents:
            node = self._parents[node]
            found = node if isinstance(node, Function) else found
        return found

    def _owner(self, node: ast.AST) -> str:
        """The class that a node is in, or ""."""
        while node in self._parents and not isinstance(node, ast.ClassDef):
            node = self._parents[node]
        return getattr(node, "name", "")

    def _find_aliases(self) -> Iterator[tuple[tuple[Function | None, str], ast.expr]]:
        """Local names for the gate, bound once: `gate = self._gym_checkpoint_rollout_permitted`."""
        for node in self._words:
            if not (isinstance(node, ast.Attribute) and node.attr == GATE):
                continue
            function, name = self._function(node), _bound_to(node, self._parents[node])
            if function is not None and name and _bindings(function, name) == 1:
                yield (function, name), node.value

    # The gate.

    def _gate(self, node: ast.AST) -> Iterator[Site]:
        if isinstance(node, ast.Constant) and node.value == GATE:
            yield self._unknown(node, f"{GATE} named in a string")
            return
        receiver = self._receiver(node)
        function = self._function(node) if receiver is not None else None
        if receiver is None or (function is not None and _only_waits(function)):
            return
        if function is None or not _has_a_name(receiver, function):
            yield self._unknown(node, f"{GATE} outside of a function, or of an object without a name")
        elif not self._reads(node, function) and not self._makes(node, function):
            yield self._change(node, ast.unparse(receiver), function)

    def _receiver(self, node: ast.AST) -> ast.expr | None:
        """Whose gate a node is; None where it is no gate."""
        if isinstance(node, ast.Attribute) and node.attr == GATE:
            return node.value
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            return self._aliases.get((self._function(node), node.id))
        return None

    def _reads(self, gate: ast.AST, function: Function) -> bool:
        use = self._parents[gate]
        verb, _ = self._call(gate)
        return verb in ("is_set", "wait") or (function, _bound_to(gate, use)) in self._aliases

    def _makes(self, gate: ast.AST, function: Function) -> bool:
        """Whether this is where `__init__` makes the gate, or sets it."""
        if function.name != "__init__" or self._owner(function) != CONTROLLER_CLASS:
            return False
        use = self._parents[gate]
        verb, statement = self._call(gate)
        if isinstance(use, ast.Assign | ast.AnnAssign) and use.value is not gate:
            return use in function.body
        return verb == "set" and statement in function.body and self._stands_alone(statement)

    def _call(self, gate: ast.AST) -> tuple[str, ast.AST | None]:
        """What is called on the gate, and the node around that call; "" where nothing is."""
        use = self._parents[gate]
        call = self._parents.get(use)
        if isinstance(use, ast.Attribute) and isinstance(call, ast.Call) and call.func is use:
            return use.attr, self._parents[call]
        return "", None

    def _change(self, gate: ast.AST, receiver: str, function: Function) -> Site:
        verb, statement = self._call(gate)
        if trouble := self._trouble(verb, statement, function):
            return self._unknown(gate, trouble)
        assert isinstance(statement, ast.Expr)
        forward, kind = (SUSPEND, Kind.CLOSE) if verb == "clear" else (RESUME, Kind.REOPEN)
        call = f'{receiver}.{MANAGER}.{forward}("{HOLDER}")'
        if kind is Kind.CLOSE:
            place, side, beside = lines_before(self._source, statement, [call], WHY), "above", -1
        else:
            place, side, beside = line_after(self._source, statement, call), "below", 1
        ours = self._neighbour(statement, beside)
        fixed = ours is not None and ast.unparse(ours) == call.replace('"', "'")
        if ours is not None and fixed:
            self._ours.update(ast.walk(ours))
        return self._site(
            Rule.DF003,
            kind,
            statement,
            State.FIXED if fixed else State.AFFECTED,
            f"{forward}({HOLDER!r})" if fixed else "no such call",
            f"{call} right {side} {GATE}.{verb}()",
            place,
        )

    def _trouble(self, verb: str, statement: ast.AST | None, function: Function) -> str:
        """Why no call can be put beside a use of the gate, or ""."""
        if verb not in ("set", "clear"):
            return f"{GATE} used otherwise than by set(), clear(), wait() and is_set()"
        if function.name == "__init__" and self._owner(function) == CONTROLLER_CLASS:
            return f"{GATE} more than made and set in __init__"
        if not self._stands_alone(statement):
            return f"{GATE}.{verb}() that is not a statement with lines of its own"
        if f".{MANAGER}" not in self._source.text:
            return f"a controller without {MANAGER}"
        return ""

    def _stands_alone(self, statement: ast.AST | None) -> bool:
        return isinstance(statement, ast.Expr) and stands_alone(self._source, statement)

    def _neighbour(self, statement: ast.stmt, distance: int) -> ast.stmt | None:
        for _, block in ast.iter_fields(self._parents[statement]):
            if isinstance(block, list) and statement in block:
                index = block.index(statement) + distance
                return block[index] if 0 <= index < len(block) else None
        return None

    # The clocks.

    def _clocks(self, node: ast.AST) -> Iterator[Site]:
        """What else is about the clocks. Training and refit name no holder, and stay as they are."""
        if isinstance(node, ast.Constant) and node.value in _CLOCKS:
            yield self._unknown(node, f"{node.value} named in a string", Kind.CALL, _OTHERS)
        elif isinstance(node, ast.Attribute) and node.attr != GATE:
            call = self._parents[node]
            code = (
                ast.unparse(call) if isinstance(call, ast.Call) and call.func is node else ast.unparse(node)
            )
            if code.endswith((f".{SUSPEND}()", f".{RESUME}()")):
                yield self._site(None, Kind.CALL, node, State.INFORMATION, code, _OTHERS)
            else:
                yield self._unknown(node, code, Kind.CALL, _OTHERS)

    def _unknown(self, node: ast.AST, found: str, kind: Kind = Kind.REOPEN, expected: str = _CHANGED) -> Site:
        return self._site(Rule.DF003, kind, node, State.UNKNOWN, found, expected)

    def _site(
        self,
        rule: Rule | None,
        kind: Kind,
        node: ast.AST,
        state: State,
        found: str,
        expected: str,
        *places: Place,
    ) -> Site:
        function = self._function(node)
        names = (self._owner(function or node), function.name if function else "")
        return Site(
            rule=rule,
            kind=kind,
            file=self._source.name,
            line=getattr(node, "lineno", 1),
            name=".".join(filter(None, names)) or CONTROLLER_CLASS,
            state=state,
            found=found,
            expected=expected,
            places=places,
            required=rule is not None,
        )


def _is_word(node: ast.AST) -> bool:
    """Whether a node speaks of the gate or of the clocks."""
    if isinstance(node, ast.Constant):
        return node.value == GATE or node.value in _CLOCKS
    if not isinstance(node, ast.Attribute):
        return False
    of_manager = isinstance(node.value, ast.Attribute) and node.value.attr == MANAGER
    return node.attr == GATE or node.attr in _CLOCKS or (of_manager and "deadline" in node.attr)


def _bound_to(gate: ast.AST, use: ast.AST) -> str:
    """The one name that a statement binds to the gate and to nothing else, or ""."""
    if not isinstance(use, ast.Assign | ast.AnnAssign) or use.value is not gate:
        return ""
    targets = use.targets if isinstance(use, ast.Assign) else [use.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _bindings(function: Function, name: str) -> int:
    """How often a name is bound in a function, in whatever way; more than once where it is not its own."""
    found = 0
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found += 2 * node.names.count(name)
        elif not (isinstance(getattr(node, "ctx", None), ast.Load) or isinstance(node, _NO_BINDING)):
            found += sum(str(value).partition(".")[0] == name for _, value in ast.iter_fields(node))
    return found


def _has_a_name(receiver: ast.expr, function: Function) -> bool:
    """Whether a receiver is `self`, a parameter or another name that stands for one object, or part of it."""
    while isinstance(receiver, ast.Attribute):
        receiver = receiver.value
    return isinstance(receiver, ast.Name) and _bindings(function, receiver.id) <= 1


def _only_waits(function: Function) -> bool:
    """Whether this is the function in which rollouts wait, and it does nothing else with any gate."""
    return function.name == WAIT and not any(
        (isinstance(node, ast.Return) and node.value is not None)
        or (
            isinstance(node, ast.Attribute)
            and (node.attr in ("set", "clear") or not isinstance(node.ctx, ast.Load))
        )
        for node in ast.walk(function)
    )
