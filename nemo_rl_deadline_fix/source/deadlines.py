"""The rollout manager's side of the fix: the registry, the manager's two forwards, and the deadline."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from nemo_rl_deadline_fix.registry import DEFAULT_HOLDER
from nemo_rl_deadline_fix.source.gates import Function
from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import Kind, Rule, Site, State
from nemo_rl_deadline_fix.targets import (
    DEADLINE_CLASS,
    HOLDER,
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
LIVE = "_live"
"""The registry's deadlines that run at present."""
REMAINING = "_remaining"
"""Where a deadline banks what is left of its budget."""


def manager_sites(manager: Source) -> Iterator[Site]:
    """The places of DF001, DF002 and DF004, in the file's order."""
    classes = _classes(manager)
    registry = classes.get(REGISTRY_CLASS)
    found = [
        _registry_site(manager, registry, "suspend"),
        _registry_site(manager, registry, "resume"),
        *(
            _forward_site(manager, classes.get(MANAGER_CLASS), name, verb, _function(registry, verb))
            for name, verb in ((SUSPEND, "suspend"), (RESUME, "resume"))
        ),
    ]
    names = _default_names(manager)
    for site in found:
        if site.state is State.FIXED and len(names) > 1:
            odd = f"defaults that differ: {' and '.join(map(repr, sorted(names)))}"
            site = replace(site, state=State.UNKNOWN, found=odd)
        yield site
    rearm = _rearm_site(manager, classes.get(DEADLINE_CLASS))
    if rearm is not None:
        yield rearm


def shared_name(manager: Source) -> str:
    """The holder of a call that names none: training's and refit's."""
    return min(_default_names(manager))


def _default_names(manager: Source) -> set[str]:
    # A function that takes no holder yet is going to have our default.
    classes = _classes(manager)
    owners = (
        (REGISTRY_CLASS, "suspend"),
        (REGISTRY_CLASS, "resume"),
        (MANAGER_CLASS, SUSPEND),
        (MANAGER_CLASS, RESUME),
    )
    functions = [_function(classes.get(owner), name) for owner, name in owners]
    return {(_default(function) if function else None) or DEFAULT_HOLDER for function in functions}


def _classes(manager: Source) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in manager.module.body if isinstance(node, ast.ClassDef)}


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
    if function is None:
        return State.UNKNOWN, f"no method {verb}"
    trouble = _signature_trouble(function)
    if trouble:
        return State.UNKNOWN, trouble
    start = _function(owner, "__init__")
    if start is None or not any(_sets_flag(node, False) for node in start.body):
        return State.UNKNOWN, f"no `self.{FLAG} = False` in {REGISTRY_CLASS}.__init__"
    other = _function(owner, "resume" if verb == "suspend" else "suspend")
    if not _parameters(function):
        if _uses(owner, HOLDERS) and (other is None or not _parameters(other)):
            # Left behind by a fix that is half there; what it means here is not ours to guess.
            return State.UNKNOWN, f"a {HOLDERS} that {verb} does not use"
        trouble = _flag_trouble(_body(function), verb)
        return (State.UNKNOWN, trouble) if trouble else (State.AFFECTED, f"{verb}() with one flag for all")
    kept = _kept(function, verb)
    if not kept:
        return State.UNKNOWN, f"a {verb}({_holder(function)}) that does not just keep its holders by name"
    beside = (
        _kept(other, "resume" if verb == "suspend" else "suspend")
        if other and _parameters(other)
        else HOLDERS
    )
    made = [node for node in start.body if ast.unparse(node).startswith(f"self.{kept}")]
    if (
        beside != kept
        or len(made) != 1
        or not ast.unparse(made[0]).endswith(("= set()", "= set([])", "= {}", "= dict()"))
    ):
        return State.UNKNOWN, f"a self.{kept} that is not one empty set of holders for suspend and resume"
    used = {node.name for node in owner.body if isinstance(node, Function) and _uses(node, kept)}
    if used - {"__init__", "suspend", "resume"}:
        return State.UNKNOWN, f"a self.{kept} that is used elsewhere too"
    return State.FIXED, f"{verb}({_holder(function)}=...)"


def _uses(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == name for part in ast.walk(node))


def _flag_trouble(body: list[ast.stmt], verb: str) -> str:
    """Why a body is not just "unless it is so already, set the flag and tell each deadline", or ""."""
    suspends = verb == "suspend"
    early = f"self.{FLAG}" if suspends else f"not self.{FLAG}"
    nested = f"not self.{FLAG}" if suspends else f"self.{FLAG}"
    if body and isinstance(body[0], ast.If) and not body[0].orelse:
        if len(body) == 1 and ast.unparse(body[0].test) == nested:
            body = body[0].body
        elif ast.unparse(body[0]) == f"if {early}:\n    return":
            body = body[1:]
        else:
            return f"a {verb}() that does not begin with `if {early}:`"
    else:
        return f"a {verb}() that does not begin with `if {early}:`"
    if not body or not _sets_flag(body[0], suspends):
        return f"a {verb}() that does not set self.{FLAG}"
    loop = body[1] if len(body) == 2 else None
    told = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else ""
    if loop is None or ast.unparse(loop) != f"for {told} in self.{LIVE}:\n    {told}.{verb}()":
        return f"a {verb}() that does more, or other, than to go through the live deadlines"
    return ""


def _kept(function: Function, verb: str) -> str:
    """The attribute in which a method keeps its holder by name, and does nothing else; or ""."""
    body, holder = _body(function), _holder(function)
    first = ast.unparse(body[0]) if body else ""
    if verb == "suspend":
        forms = (rf"\.add\({holder}\)", rf"\[{holder}\] = [^\n]+", rf" \|= \{{{holder}\}}")
    else:
        forms = (rf"\.discard\({holder}\)", rf"\.pop\({holder}, None\)", rf" -= \{{{holder}\}}")
    found = next((m for form in forms if (m := re.fullmatch(rf"self\.(\w+){form}", first))), None)
    name = found[1] if found else ""
    if name in ("", FLAG, LIVE):
        return ""
    rest = body[1:]
    if verb == "resume":
        guard = ast.unparse(rest[0]) if rest else ""
        if guard not in (f"if self.{name}:\n    return", f"if len(self.{name}):\n    return"):
            return ""
        rest = rest[1:]
    return "" if _flag_trouble(rest, verb) else name


def _sets_flag(node: ast.stmt, value: bool) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return node.value.value is value and any(ast.unparse(target) == f"self.{FLAG}" for target in targets)


def _forward_site(
    manager: Source, owner: ast.ClassDef | None, name: str, verb: str, registry: Function | None
) -> Site:
    function = _function(owner, name)
    expected = f"{name}(holder={DEFAULT_HOLDER!r}) that passes the holder to the registry"
    state, found = _forward_state(owner, function, name, verb, registry)
    return _site(manager, Rule.DF002, verb, function, f"{MANAGER_CLASS}.{name}", state, expected, found)


def _forward_state(
    owner: ast.ClassDef | None, function: Function | None, name: str, verb: str, registry: Function | None
) -> tuple[State, str]:
    if owner is None:
        return State.UNKNOWN, f"no class {MANAGER_CLASS}"
    if function is None:
        return State.UNKNOWN, f"no method {name}"
    trouble = _signature_trouble(function)
    if trouble:
        return State.UNKNOWN, trouble
    body = [ast.unparse(node) for node in _body(function)]
    call = f"self.{REGISTRY}.{verb}"
    if not _parameters(function):
        if body != [f"{call}()"]:
            return State.UNKNOWN, f"a {name}() that does more, or other, than `{call}()`"
        return State.AFFECTED, f"{name}() without a holder"
    holder = _holder(function)
    taken = _holder(registry) if registry is not None and _parameters(registry) else "holder"
    if body not in ([f"{call}({holder})"], [f"{call}({taken}={holder})"]):
        return State.UNKNOWN, f"a {name}({holder}) that does more, or other, than `{call}({holder})`"
    return State.FIXED, f"{name}({holder}=...)"


def _signature_trouble(function: Function) -> str:
    """Why a function is not one that takes nothing, or one holder with a default; or ""."""
    name, given = function.name, function.args
    plain = isinstance(function, ast.FunctionDef) and not function.decorator_list and given.args
    if not plain or given.posonlyargs or given.vararg or given.kwarg:
        return f"{name}({ast.unparse(given)}) of another kind"
    if not _parameters(function):
        return ""
    if len(_parameters(function)) > 1 or _default(function) is None:
        parameters = ", ".join(part.arg for part in _parameters(function))
        return f"{name}({parameters}) without one default that is a plain string"
    if _default(function) == HOLDER:
        return f"{name}() with the snapshot's own name as the default"
    return ""


def _default(function: Function) -> str | None:
    """What a holder is where none is named; None where that is no plain string."""
    defaults = [*function.args.defaults, *function.args.kw_defaults]
    value = defaults[0] if len(defaults) == 1 else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _holder(function: Function) -> str:
    return _parameters(function)[0].arg


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
        return replace(site, line=node.lineno)
    return None
