"""The rollout manager's side of the fix: the registry, the manager's two forwards, and the deadline.

Each method has two known forms, without and with our text, and is unknown in any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Literal

from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import (
    Function,
    Place,
    Rule,
    Site,
    State,
    begins_its_line,
    body_of,
    lines_before,
    parameter,
)
from nemo_rl_deadline_fix.targets import (
    DEADLINE_CLASS,
    DEFAULT_HOLDER,
    MANAGER_CLASS,
    REGISTRY,
    REGISTRY_CLASS,
    RESUME,
    SUSPEND,
)

DEFAULTS = (DEFAULT_HOLDER, "engine")
"""What a call without a name holds as; the second one is what 0.1.0 of this package wrote."""
HOLDERS = "self._holders: set[str] = set()"
FLOOR = "self._remaining = max(self._remaining, 0.001)"
WHY_NAMES = "By name: one holder's resume must not end another one's pause."
WHY_FLOOR = (
    "Expiry at once would come ahead of a reply that becomes ready in this same turn "
    "of the event loop. A timer comes after it."
)
_EXPECTED_FLOOR = (
    "at least a millisecond ahead, so that a reply of the same loop turn is kept "
    "(on uvloop, where the rest of the turn takes less than that)"
)
_NAMED = {
    "suspend": "self._holders.add(holder)",
    "resume": "self._holders.discard(holder)\nif self._holders:\n    return",
}
_ONE_FLAG = {
    verb: rf"if {skip}self\.suspended:\n    return\nself\.suspended = {value}\n"
    rf"for (\w+) in self\._live:\n    \1\.{verb}\(\)"
    for verb, skip, value in (("suspend", "", True), ("resume", "not ", False))
}
_FLAG = r"self\.suspended(: bool)? = False"
_METHODS: dict[tuple[str, str], Literal["suspend", "resume"]] = {
    (REGISTRY_CLASS, "suspend"): "suspend",
    (REGISTRY_CLASS, "resume"): "resume",
    (MANAGER_CLASS, SUSPEND): "suspend",
    (MANAGER_CLASS, RESUME): "resume",
}
"""The methods that take a holder, and which of the registry's two each is, or calls."""


def manager_sites(source: Source) -> list[Site]:
    """The sites of DF001, DF002 and DF004, in the file's order."""
    return list(_Manager(source).sites())


def takes_names(source: Source) -> bool:
    """Whether the manager's methods take a holder, and the registry's keep it, as NeMo RL's own fix does."""
    manager = _Manager(source)
    return all(manager.takes_name(*key) for key in _METHODS)


class _Manager:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._classes = {node.name: node for node in source.module.body if isinstance(node, ast.ClassDef)}
        # A tree that 0.1.0 fixed keeps its name: the four defaults must be one.
        given = "".join(ast.unparse(found.args) for key in _METHODS if (found := self._method(*key)))
        self._default = next((name for name in DEFAULTS if repr(name) in given), DEFAULT_HOLDER)
        self._holder = f'holder: str = "{self._default}"'
        self._states = {key: self._state(*key) for key in _METHODS}
        """The state of each method by itself."""

    def sites(self) -> Iterator[Site]:
        yield from (self._takes_holder(*key) for key in _METHODS)
        yield from self._rearm()

    def _takes_holder(self, owner: str, name: str) -> Site:
        function, state = self._method(owner, name), self._states[owner, name]
        places: tuple[Place, ...] = ()
        if function is None:
            found = f"no {owner}.{name}"
        elif state is State.UNKNOWN:
            found = f"a {name}({ast.unparse(function.args)}) that does more, or other, than the known one"
        elif body := self._body_places(owner, name, function):
            places = (parameter(self._source, function, self._holder), *body)
            found = f"{name}(holder=...)" if state is State.FIXED else f"{name}() without a holder"
        else:
            state, found = State.UNKNOWN, f"{owner}.__init__, or brackets, of another form than the known one"
        rule, does = Rule.DF002, "passes the holder on"
        if owner == REGISTRY_CLASS:
            rule, does = Rule.DF001, "keeps holders apart by name"
        where = (self._source.name, function.lineno if function else 1, f"{owner}.{name}")
        expected = f"{name}({self._holder}) that {does}"
        return Site(rule, _METHODS[owner, name], *where, state, found, expected, places)

    def _state(self, owner: str, name: str) -> State:
        """Which of its two known forms a method has."""
        function, verb = self._method(owner, name), _METHODS[owner, name]
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return State.UNKNOWN
        affected, fixed = (re.escape(f"self.{REGISTRY}.{verb}({given})") for given in ("", "holder"))
        if owner == REGISTRY_CLASS:
            affected, fixed = _ONE_FLAG[verb], re.escape(_NAMED[verb] + "\n") + _ONE_FLAG[verb]
        body, given = body_of(function), ast.unparse(function.args)
        code = "\n".join(map(ast.unparse, body))
        if body and begins_its_line(self._source, body[0]):
            if given == "self" and re.fullmatch(affected, code):
                return State.AFFECTED
            if given == f"self, holder: str={self._default!r}" and re.fullmatch(fixed, code):
                return State.FIXED
        return State.UNKNOWN

    def _body_places(self, owner: str, name: str, function: Function) -> tuple[Place, ...]:
        """What belongs in a method of a known form, and in what it needs; none where there is no place."""
        first = body_of(function)[0]
        if owner == REGISTRY_CLASS:
            # One of the two steps of indentation, as this file has them.
            unit = self._source.lines[first.lineno - 1].lstrip("\f")[: first.col_offset // 2]
            names = lines_before(self._source, first, _NAMED[name], unit=unit)
            flag = self._flag()
            return (names, lines_before(self._source, flag, HOLDERS, WHY_NAMES)) if flag else ()
        called = first.value.func  # type: ignore[attr-defined]
        end = self._source.offset(called.end_lineno, called.end_col_offset)
        opened = re.compile(r"\s*\(").match(self._source.text, end)
        return (Place(opened.end(), "holder"),) if opened else ()

    def _flag(self) -> ast.stmt | None:
        """Where `__init__` makes the flag, with the set of holders above it as it must be; or None."""
        start = self._method(REGISTRY_CLASS, "__init__")
        body = start.body if start else []
        flags = [node for node in body if re.fullmatch(_FLAG, ast.unparse(node))]
        if len(flags) != 1 or not begins_its_line(self._source, flags[0]):
            return None
        return flags[0] if self._has_its_holders(_above(flags[0], body) == HOLDERS) else None

    def _has_its_holders(self, made: bool) -> bool:
        """Whether the set is made exactly if a method of ours uses it, and nobody else does."""
        fixed = [verb for verb in _NAMED if self._states[REGISTRY_CLASS, verb] is State.FIXED]
        nodes = ast.walk(self._classes[REGISTRY_CLASS])
        uses = sum(isinstance(node, ast.Attribute) and node.attr == "_holders" for node in nodes)
        ours = made + sum(_NAMED[verb].count("_holders") for verb in fixed)
        return made == bool(fixed) and uses == ours

    def _rearm(self) -> Iterator[Site]:
        """The statement that re-arms a deadline with what it banked, where there is one."""
        function = self._method(DEADLINE_CLASS, "resume")
        if function is None or not (nodes := [node for node in function.body if _re_arms(node)]):
            return
        node = nodes[0]
        state, found = State.AFFECTED, "no floor for what is left"
        if _above(node, function.body) == FLOOR:
            state, found = State.FIXED, "a floor for what is left"
        elif "max(" in ast.unparse(function) or not begins_its_line(self._source, node):
            state, found = State.UNKNOWN, "another floor for what is left"
        place = lines_before(self._source, node, FLOOR, WHY_FLOOR)
        where = (self._source.name, node.lineno, f"{DEADLINE_CLASS}.resume")
        yield Site(Rule.DF004, "rearm", *where, state, found, _EXPECTED_FLOOR, (place,))

    def takes_name(self, owner: str, name: str) -> bool:
        """Whether a method keeps the name that it is given, or passes it on, in whatever words."""
        function, verb = self._method(owner, name), _METHODS[owner, name]
        if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 2:
            return False
        code, given = "\n".join(map(ast.unparse, body_of(function))), function.args.args[1].arg
        if owner == MANAGER_CLASS:
            return code == f"self.{REGISTRY}.{verb}({given})"
        return bool(re.search(rf"\.({'add' if verb == 'suspend' else 'remove|discard'})\({given}\)", code))

    def _method(self, owner: str, name: str) -> Function | None:
        """A class's method of a name, where there is one and no second."""
        body = self._classes[owner].body if owner in self._classes else []
        found = [node for node in body if isinstance(node, Function) and node.name == name]
        return found[0] if len(found) == 1 else None


def _re_arms(node: ast.stmt) -> bool:
    code = ast.unparse(node)
    return isinstance(node, ast.Expr) and "reschedule" in code and "self._remaining" in code


def _above(node: ast.stmt, block: list[ast.stmt]) -> str:
    """The statement above one, as text; "" where there is none."""
    index = block.index(node)
    return ast.unparse(block[index - 1]) if index else ""
