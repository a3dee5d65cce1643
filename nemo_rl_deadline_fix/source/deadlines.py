"""The rollout manager's side of the fix: the registry, the manager's two forwards, and the deadline."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nemo_rl_deadline_fix.registry import DEFAULT_HOLDER
from nemo_rl_deadline_fix.source.gates import Function
from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import Kind, Rule, Site, State
from nemo_rl_deadline_fix.targets import (
    DEADLINE_CLASS,
    MANAGER_CLASS,
    REGISTRY,
    REGISTRY_CLASS,
    RESUME,
    SUSPEND,
)

FLAG = "suspended"
"""The registry's public flag, kept readable."""
HOLDERS = "_holders"
"""What the fix adds to the registry."""
REMAINING = "_remaining"
"""Where a deadline banks what is left of its budget."""


def manager_sites(manager: Source) -> Iterator[Site]:
    """The places of DF001, DF002 and DF004, in the file's order."""
    classes = {node.name: node for node in manager.module.body if isinstance(node, ast.ClassDef)}
    found = [
        _registry_site(manager, classes.get(REGISTRY_CLASS), "suspend"),
        _registry_site(manager, classes.get(REGISTRY_CLASS), "resume"),
        _forward_site(manager, classes.get(MANAGER_CLASS), SUSPEND, "suspend"),
        _forward_site(manager, classes.get(MANAGER_CLASS), RESUME, "resume"),
    ]
    yield from found
    rearm = _rearm_site(manager, classes.get(DEADLINE_CLASS))
    if rearm is not None:
        yield rearm


def _function(owner: ast.ClassDef | None, name: str) -> Function | None:
    if owner is None:
        return None
    return next((node for node in owner.body if isinstance(node, Function) and node.name == name), None)


def _site(
    manager: Source,
    rule: Rule,
    verb: str,
    function: Function | None,
    name: str,
    state: State,
    expected: str,
    found: str,
) -> Site:
    span = (0, 0)
    if function is not None:
        first = min([function.lineno, *(part.lineno for part in function.decorator_list)])
        span = (first, function.end_lineno or function.lineno)
    return Site(
        rule=rule,
        kind=Kind(verb),
        file=manager.path,
        line=function.lineno if function is not None else 1,
        name=name,
        state=state,
        expected=expected,
        found=found,
        required=rule is not Rule.DF004,
        span=span,
    )


def _registry_site(manager: Source, owner: ast.ClassDef | None, verb: str) -> Site:
    function = _function(owner, verb)
    expected = f"{verb}(holder={DEFAULT_HOLDER!r}) that keeps holders apart by name"
    state, found = _registry_state(owner, function, verb)
    return _site(manager, Rule.DF001, verb, function, f"{REGISTRY_CLASS}.{verb}", state, expected, found)


def _registry_state(owner: ast.ClassDef | None, function: Function | None, verb: str) -> tuple[State, str]:
    if owner is None:
        return State.UNKNOWN, f"no class {REGISTRY_CLASS}"
    named = _named(function, verb)
    if named is not None or function is None:
        return named or (State.UNKNOWN, f"no method {verb}")
    start = _function(owner, "__init__")
    if start is None or not any(_sets_flag(node, False) for node in start.body):
        return State.UNKNOWN, f"no `self.{FLAG} = False` in {REGISTRY_CLASS}.__init__"
    if any(isinstance(node, ast.Attribute) and node.attr == HOLDERS for node in ast.walk(owner)):
        # Left behind by a fix that is half there; what it means here is not ours to guess.
        other = _function(owner, "resume" if verb == "suspend" else "suspend")
        if other is None or not _parameters(other):
            return State.UNKNOWN, f"a {HOLDERS} that {verb} does not use"
    body = _body(function)
    early = f"self.{FLAG}" if verb == "suspend" else f"not self.{FLAG}"
    if not (body and isinstance(body[0], ast.If) and ast.unparse(body[0].test) == early):
        return State.UNKNOWN, f"a {verb}() that does not begin with `if {early}:`"
    if not any(_sets_flag(node, verb == "suspend") for node in body):
        return State.UNKNOWN, f"a {verb}() that does not set self.{FLAG}"
    if not any(isinstance(node, ast.For) for node in body):
        return State.UNKNOWN, f"a {verb}() that does not go through the live deadlines"
    return State.AFFECTED, f"{verb}() with one flag for all"


def _sets_flag(node: ast.stmt, value: bool) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return node.value.value is value and any(ast.unparse(target) == f"self.{FLAG}" for target in targets)


def _forward_site(manager: Source, owner: ast.ClassDef | None, name: str, verb: str) -> Site:
    function = _function(owner, name)
    expected = f"{name}(holder={DEFAULT_HOLDER!r}) that passes the holder to the registry"
    state, found = _forward_state(owner, function, name, verb)
    return _site(manager, Rule.DF002, verb, function, f"{MANAGER_CLASS}.{name}", state, expected, found)


def _forward_state(
    owner: ast.ClassDef | None, function: Function | None, name: str, verb: str
) -> tuple[State, str]:
    if owner is None:
        return State.UNKNOWN, f"no class {MANAGER_CLASS}"
    named = _named(function, name)
    if named is not None or function is None:
        return named or (State.UNKNOWN, f"no method {name}")
    body = _body(function)
    if len(body) != 1 or ast.unparse(body[0]) != f"self.{REGISTRY}.{verb}()":
        return State.UNKNOWN, f"a {name}() that does more, or other, than `self.{REGISTRY}.{verb}()`"
    return State.AFFECTED, f"{name}() without a holder"


def _named(function: Function | None, name: str) -> tuple[State, str] | None:
    """The state of a function that takes a holder already; None where it takes nothing."""
    if function is None:
        return None
    given = function.args
    plain = isinstance(function, ast.FunctionDef) and not function.decorator_list and given.args
    if not plain or given.posonlyargs or given.vararg or given.kwarg:
        return State.UNKNOWN, f"{name}({ast.unparse(given)}) of another kind"
    parameters = _parameters(function)
    if not parameters:
        return None
    holder = parameters[0].arg
    defaults = len(function.args.defaults) + sum(part is not None for part in function.args.kw_defaults)
    if len(parameters) > 1 or defaults < len(parameters):
        return State.UNKNOWN, f"{name}({', '.join(part.arg for part in parameters)}) without one default"
    used = any(isinstance(node, ast.Name) and node.id == holder for node in ast.walk(function))
    if not used:
        return State.UNKNOWN, f"{name}({holder}) that does not use it"
    return State.FIXED, f"{name}({holder}=...)"


def _parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs][1:]


def _body(function: Function) -> list[ast.stmt]:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def _rearm_site(manager: Source, owner: ast.ClassDef | None) -> Site | None:
    """The statement that re-arms a deadline with what it banked; None where there is no such thing."""
    function = _function(owner, "resume")
    if function is None:
        return None
    for node in function.body:
        if not (isinstance(node, ast.Expr) and "reschedule" in ast.unparse(node)):
            continue
        banked = any(isinstance(part, ast.Attribute) and part.attr == REMAINING for part in ast.walk(node))
        if not banked:
            continue
        floored = any(
            isinstance(part, ast.Call) and ast.unparse(part.func) == "max" for part in ast.walk(function)
        )
        site = _site(
            manager,
            Rule.DF004,
            "rearm",
            function,
            f"{DEADLINE_CLASS}.resume",
            State.FIXED if floored else State.AFFECTED,
            "at least a millisecond ahead, so that a reply of the same loop turn is kept",
            "a floor for what is left" if floored else "no floor for what is left",
        )
        return Site(**{**site.__dict__, "line": node.lineno})
    return None
