"""The rollout manager's side of the fix: the registry, the manager's two forwards, and the deadline.

Each method has two known forms, without and with our text, and is unknown in any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import (
    Function,
    Kind,
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
_NAMED = {
    "suspend": ("self._holders.add(holder)",),
    "resume": ("self._holders.discard(holder)", "if self._holders:\n    return"),
}
_ONE_FLAG = {
    verb: rf"if {skip}self\.suspended:\n    return\nself\.suspended = {value}\n"
    rf"for (\w+) in self\._live:\n    \1\.{verb}\(\)"
    for verb, skip, value in (("suspend", "", True), ("resume", "not ", False))
}
_FLAG = r"self\.suspended(: bool)? = False"


def manager_sites(source: Source) -> list[Site]:
    """The sites of DF001, DF002 and DF004, in the file's order."""
    # A tree that 0.1.0 fixed keeps its name: the four defaults must be one.
    for default in DEFAULTS:
        sites = list(_Manager(source, default).sites()) if f'"{default}"' in source.text else []
        if any(site.state is State.FIXED for site in sites if site.rule is not Rule.DF004):
            return sites
    return list(_Manager(source, DEFAULT_HOLDER).sites())


class _Manager:
    def __init__(self, source: Source, default: str) -> None:
        self._source = source
        self._classes = {node.name: node for node in source.module.body if isinstance(node, ast.ClassDef)}
        self._default = default
        self._holder = f'holder: str = "{default}"'
        self._named = {verb: self._registry_form(verb) for verb in _NAMED}

    def sites(self) -> Iterator[Site]:
        for verb in _NAMED:
            yield self._registry(verb)
        for name, verb in ((SUSPEND, "suspend"), (RESUME, "resume")):
            yield self._forward(name, verb)
        yield from self._rearm()

    def _registry(self, verb: str) -> Site:
        function, flag = self._method(REGISTRY_CLASS, verb), self._flag()
        state, found = self._named[verb]
        places: tuple[Place, ...] = ()
        if flag is None:
            state, found = State.UNKNOWN, "no `self.suspended = False` in __init__"
        elif not self._keeps_holders(flag):
            state, found = State.UNKNOWN, "a self._holders that is made or used in another way"
        elif function is not None and state is not State.UNKNOWN:
            first = body_of(function)[0]
            # One of the two steps of indentation, as this file has them.
            unit = self._source.lines[first.lineno - 1].lstrip("\f")[: first.col_offset // 2]
            places = (
                parameter(self._source, function, self._holder),
                lines_before(self._source, first, _NAMED[verb], unit=unit),
                lines_before(self._source, flag, [HOLDERS], WHY_NAMES),
            )
        expected = f"{verb}({self._holder}) that keeps holders apart by name"
        return self._site(Rule.DF001, Kind(verb), REGISTRY_CLASS, verb, state, found, expected, places)

    def _registry_form(self, verb: str) -> tuple[State, str]:
        """The state of one of the registry's two methods, by itself."""
        named = re.escape("\n".join(_NAMED[verb])) + "\n"
        return self._form(REGISTRY_CLASS, verb, _ONE_FLAG[verb], named + _ONE_FLAG[verb])

    def _flag(self) -> ast.stmt | None:
        """The statement that makes the registry's flag, on a line of its own."""
        start = self._method(REGISTRY_CLASS, "__init__")
        flags = [node for node in start.body if re.fullmatch(_FLAG, ast.unparse(node))] if start else []
        return flags[0] if len(flags) == 1 and begins_its_line(self._source, flags[0]) else None

    def _keeps_holders(self, flag: ast.stmt) -> bool:
        """Whether the set of holders is made where a method needs it, and nobody else uses it."""
        start = self._method(REGISTRY_CLASS, "__init__")
        above = _above(flag, start.body if start else [])
        methods = [verb for verb in _NAMED if self._named[verb][0] is State.FIXED]
        ours = sum(len(_NAMED[verb]) for verb in methods) + (above == HOLDERS)
        return (above == HOLDERS) == bool(methods) and ours == sum(
            isinstance(node, ast.Attribute) and node.attr == "_holders"
            for node in ast.walk(self._classes[REGISTRY_CLASS])
        )

    def _forward(self, name: str, verb: str) -> Site:
        function, call = self._method(MANAGER_CLASS, name), f"self.{REGISTRY}.{verb}"
        state, found = self._form(MANAGER_CLASS, name, re.escape(f"{call}()"), re.escape(f"{call}(holder)"))
        places: tuple[Place, ...] = ()
        if function is not None and state is not State.UNKNOWN:
            called = body_of(function)[0].value.func  # type: ignore[attr-defined]
            end = self._source.offset(called.end_lineno, called.end_col_offset)
            if opened := re.compile(r"\s*\(").match(self._source.text, end):
                places = (parameter(self._source, function, self._holder), Place(opened.end(), "holder"))
            else:
                state, found = State.UNKNOWN, f"{call} in brackets of its own"
        expected = f"{name}({self._holder}) that passes the holder on"
        return self._site(Rule.DF002, Kind(verb), MANAGER_CLASS, name, state, found, expected, places)

    def _rearm(self) -> Iterator[Site]:
        """The statement that re-arms a deadline with what it banked, where there is one."""
        function = self._method(DEADLINE_CLASS, "resume")
        for node in function.body if function else []:
            code = ast.unparse(node)
            if not (isinstance(node, ast.Expr) and "reschedule" in code and "self._remaining" in code):
                continue
            state, found = State.AFFECTED, "no floor for what is left"
            if _above(node, function.body if function else []) == FLOOR:
                state, found = State.FIXED, "a floor for what is left"
            elif "max(" in ast.unparse(function or node) or not begins_its_line(self._source, node):
                state, found = State.UNKNOWN, "another floor for what is left"
            expected = (
                "at least a millisecond ahead, so that a reply of the same loop turn is kept "
                "(on uvloop, where the rest of the turn takes less than that)"
            )
            places = (lines_before(self._source, node, [FLOOR], WHY_FLOOR),)
            site = self._site(
                Rule.DF004, Kind.REARM, DEADLINE_CLASS, "resume", state, found, expected, places
            )
            yield replace(site, line=node.lineno, required=False)
            return

    def _method(self, owner: str, name: str) -> Function | None:
        """A class's method of a name, where there is one and no second."""
        body = self._classes[owner].body if owner in self._classes else []
        found = [node for node in body if isinstance(node, Function) and node.name == name]
        return found[0] if len(found) == 1 else None

    def _form(self, owner: str, name: str, affected: str, fixed: str) -> tuple[State, str]:
        """Which of its two known forms a method has, given as patterns of its body."""
        function = self._method(owner, name)
        if function is None:
            return State.UNKNOWN, f"no method {name}" if owner in self._classes else f"no class {owner}"
        body = body_of(function)
        code, given = "\n".join(map(ast.unparse, body)), ast.unparse(function.args)
        plain = isinstance(function, ast.FunctionDef) and not function.decorator_list
        if plain and body and begins_its_line(self._source, body[0]):
            if given == "self" and re.fullmatch(affected, code):
                return State.AFFECTED, f"{name}() without a holder"
            if given == f"self, holder: str={self._default!r}" and re.fullmatch(fixed, code):
                return State.FIXED, f"{name}(holder=...)"
        return State.UNKNOWN, f"a {name}({given}) that does more, or other, than the known one"

    def _site(
        self,
        rule: Rule,
        kind: Kind,
        owner: str,
        name: str,
        state: State,
        found: str,
        expected: str,
        places: tuple[Place, ...],
    ) -> Site:
        function = self._method(owner, name)
        line = function.lineno if function else 1
        return Site(rule, kind, self._source.name, line, f"{owner}.{name}", state, found, expected, places)


def _above(node: ast.stmt, block: list[ast.stmt]) -> str:
    """The statement above one, as text; "" where there is none."""
    index = block.index(node)
    return ast.unparse(block[index - 1]) if index else ""
