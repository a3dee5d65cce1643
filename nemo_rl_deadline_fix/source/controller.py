"""The controller's side of the fix: every statement that closes or reopens the snapshot gate.

The clocks are held right above each close and released right below each reopening, so that no other task
can run in between. The gate may be made in `__init__`, read, and given a local name. Whatever else is done
with it or with the clocks may have any effect: it is unknown.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from operator import attrgetter

from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import (
    Function,
    Kind,
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
_PLAIN = f"{GATE} made and set in __init__, closed and reopened by statements with lines of their own"
_KINDS: tuple[Kind, Kind] = ("close", "reopen")
_OTHERS = f"no call about the clocks apart from {GATE}, but without a name"


def controller_sites(source: Source) -> list[Site]:
    """The sites of DF003, and the other calls about the clocks; none where the file does not use the gate."""
    return _Controller(source).sites()


class _Controller:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, tuple[str, Function | None]] = {source.module: ("", None)}
        """By node: the class that it is in, or "", and the function, not one inside of another."""
        todo: list[ast.AST] = [source.module]
        for node in todo:
            owner, function = self._scopes[node]
            if function is None:
                owner = node.name if isinstance(node, ast.ClassDef) else owner
                function = node if isinstance(node, Function) else None
            for child in ast.iter_child_nodes(node):
                self._parents[child], self._scopes[child] = node, (owner, function)
                todo.append(child)
        self._gates = [node for node in self._parents if _word(node) == GATE]
        self._aliases = {(self._scopes[gate][1], self._alias(gate)): gate for gate in self._gates}
        """Gates by function and local name: `gate = self._gym_checkpoint_...`."""
        self._ours: set[ast.AST] = set()

    def sites(self) -> list[Site]:
        local = [node for node in self._parents if isinstance(node, ast.Name) and self._receiver(node)]
        gates = [site for node in (*self._gates, *local) if (site := self._gate(node))]
        if not gates:
            return []
        for kind in {*_KINDS}.difference(site.kind for site in gates):
            expected = f"a statement that {kind}s {GATE}"
            gates.append(self._unknown(self._source.module, expected, kind, "none outside __init__"))
        calls = [self._clocks(node) for node in self._parents if _is_clocks(node) and node not in self._ours]
        return [*sorted(gates, key=attrgetter("line")), *sorted(calls, key=attrgetter("line"))]

    def _alias(self, gate: ast.AST) -> str:
        """The one local name that a statement binds, once, to the gate and to nothing else; or ""."""
        _, function = self._scopes[gate]
        match self._parents[gate]:
            case ast.Assign(targets=[ast.Name(name)], value=value) | ast.AnnAssign(
                ast.Name(name), value=value
            ):
                return name if value is gate and function and _bindings(function, name) == 1 else ""
        return ""

    def _receiver(self, gate: ast.AST) -> ast.expr | None:
        """Whose gate an attribute or a local name is; None where it is no gate, or a string."""
        if isinstance(gate, ast.Name) and isinstance(gate.ctx, ast.Load):
            gate = self._aliases.get((self._scopes[gate][1], gate.id), gate)
        return gate.value if isinstance(gate, ast.Attribute) else None

    def _gate(self, gate: ast.AST) -> Site | None:
        """The site of one use of the gate; None where that is none of the fix's business."""
        _, function = self._scopes[gate]
        receiver = self._receiver(gate)
        if receiver is not None and function is not None:
            if _only_waits(function):
                return None
            if _has_a_name(receiver, function):
                return self._use(gate, ast.unparse(receiver), function)
        return self._unknown(gate, _PLAIN)

    def _use(self, gate: ast.AST, receiver: str, function: Function) -> Site | None:
        verb, used = self._call(gate)
        if verb in ("is_set", "wait") or (isinstance(gate, ast.Attribute) and self._alias(gate)):
            return None
        plain = used if isinstance(used, ast.Expr) and stands_alone(self._source, used) else None
        if function.name == "__init__" and self._scopes[function][0] == CONTROLLER_CLASS:
            made = plain if verb == "set" else not verb and _is_assigned(gate, used)
            return None if made and used in function.body else self._unknown(gate, _PLAIN)
        if plain and verb in ("set", "clear") and f".{MANAGER}" in self._source.text:
            return self._change(plain, verb, receiver)
        return self._unknown(gate, _PLAIN)

    def _call(self, gate: ast.AST) -> tuple[str, ast.AST]:
        """What is called on the gate, and the node around that call; or "", and that around the gate."""
        use = self._parents[gate]
        call = self._parents.get(use)
        if isinstance(use, ast.Attribute) and isinstance(call, ast.Call) and call.func is use:
            return use.attr, self._parents[call]
        return "", use

    def _change(self, statement: ast.stmt, verb: str, receiver: str) -> Site:
        closes = verb == "clear"
        forward = SUSPEND if closes else RESUME
        call = f'{receiver}.{MANAGER}.{forward}("{HOLDER}")'
        if closes:
            place, side, beside = lines_before(self._source, statement, call, WHY), "above", -1
        else:
            place, side, beside = line_after(self._source, statement, call), "below", 1
        (block,) = (
            block
            for _, block in ast.iter_fields(self._parents[statement])
            if isinstance(block, list) and statement in block
        )
        at = block.index(statement) + beside
        fixed = [ast.unparse(node) for node in block[at : at + 1]] == [call.replace('"', "'")]
        if fixed:
            self._ours.update(ast.walk(block[at]))
        state, found = (State.FIXED, f"{forward}({HOLDER!r})") if fixed else (State.AFFECTED, "no such call")
        expected = f"{call} right {side} {GATE}.{verb}()"
        return Site(Rule.DF003, _KINDS[not closes], *self._where(statement), state, found, expected, (place,))

    def _clocks(self, node: ast.AST) -> Site:
        """What else is about the clocks. Training and refit name no holder, and stay as they are."""
        call = self._parents[node]
        code = ast.unparse(call if isinstance(call, ast.Call) and call.func is node else node)
        if code.endswith((f".{SUSPEND}()", f".{RESUME}()")):
            return Site(None, "call", *self._where(node), State.INFORMATION, code, _OTHERS)
        return self._unknown(node, _OTHERS, "call")

    def _unknown(self, node: ast.AST, expected: str, kind: Kind = "reopen", found: str = "") -> Site:
        file, line, name = self._where(node)
        found = found or f"not known: {self._source.lines[line - 1].strip()}"
        return Site(Rule.DF003, kind, file, line, name, State.UNKNOWN, found, expected)

    def _where(self, node: ast.AST) -> tuple[str, int, str]:
        """A node's file, its line, and the function that it is in."""
        owner, function = self._scopes[node]
        name = f"{owner}.{function.name}".lstrip(".") if function else owner or CONTROLLER_CLASS
        return self._source.name, getattr(node, "lineno", 1), name


def _word(node: ast.AST) -> str:
    """The name that an attribute or a string is; "" for any other node."""
    word = getattr(node, "attr", getattr(node, "value", ""))
    return word if isinstance(node, ast.Attribute | ast.Constant) and isinstance(word, str) else ""


def _is_clocks(node: ast.AST) -> bool:
    """Whether a node speaks of the clocks."""
    of_manager = isinstance(node, ast.Attribute) and _word(node.value) == MANAGER
    return _word(node) in _CLOCKS or (of_manager and "deadline" in _word(node))


def _is_assigned(gate: ast.AST, statement: ast.AST) -> bool:
    return isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not gate


@lru_cache(maxsize=64)
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
