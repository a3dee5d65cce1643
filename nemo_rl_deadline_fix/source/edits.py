"""What the fix changes in a file, as data: which statements go where, and which functions take a holder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.registry import SMALLEST_BUDGET_S
from nemo_rl_deadline_fix.source.deadlines import FLAG, HOLDERS, REMAINING
from nemo_rl_deadline_fix.source.gates import Function
from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import Kind, Rule, Site
from nemo_rl_deadline_fix.targets import HOLDER, MANAGER, REGISTRY_CLASS, RESUME, SUSPEND

WHY_NAMES = "By name: one holder's resume must not end another one's pause."
WHY_HERE = "Rollouts park until admission reopens. Their deadlines must not run meanwhile."
WHY_FLOOR = (
    "Expiry at once would come ahead of a reply that becomes ready in this same turn "
    "of the event loop. A timer comes after it."
)


@dataclass(frozen=True)
class Insert:
    """Statements that belong before (or after) the statement on a line; a comment above the first."""

    line: int
    codes: tuple[str, ...]
    comment: str = ""
    after: bool = False


@dataclass(frozen=True)
class TakeHolder:
    """A function on a line that is to take a holder with a default."""

    line: int


@dataclass(frozen=True)
class PassHolder:
    """A statement on a line whose call is to pass the holder on."""

    line: int


Edit = Insert | TakeHolder | PassHolder


def edits(source: Source, site: Site, *, taken_out: bool) -> Iterator[tuple[tuple[int, int], Edit]]:
    """The changes at one site, each with the first and last line of the function it is in.

    Args:
        source: The file.
        site: A place in it, affected, or fixed where the fix is to be taken out.
        taken_out: Whether the lines are those of a text that has the fix.

    Raises:
        UnsupportedTargetError: The fix is to be taken out, and is there in another form.
    """
    if site.rule is Rule.DF003:
        # The hold includes the time when the gate is closed, as brackets do. So a call that fails
        # leaves an open gate, never one that nobody opens.
        call = f'{site.receiver}.{MANAGER}.{{}}("{HOLDER}")'
        if site.kind is Kind.CLOSE:
            yield site.span, Insert(site.line, (call.format(SUSPEND),), WHY_HERE)
        else:
            yield site.span, Insert(site.line, (call.format(RESUME),), after=True)
        return
    function = _function_at(source.module, site)
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if site.rule is Rule.DF004:
        floor = f"self.{REMAINING} = max(self.{REMAINING}, {SMALLEST_BUDGET_S})"
        yield site.span, Insert(site.line, (floor,), WHY_FLOOR)
        return
    yield site.span, TakeHolder(function.lineno)
    if site.rule is Rule.DF002:
        yield site.span, PassHolder(body[0].lineno)
        return
    codes: tuple[str, ...] = (f"self.{HOLDERS}.add(holder)",)
    if site.kind is Kind.RESUME:
        codes = (f"self.{HOLDERS}.discard(holder)", f"if self.{HOLDERS}:\n    return")
    anchor = len(codes) if taken_out else 0
    if anchor >= len(body):
        raise not_ours(source, function.lineno)
    yield site.span, Insert(body[anchor].lineno, codes)
    yield from _registry_start(source, taken_out=taken_out)


def _registry_start(source: Source, *, taken_out: bool) -> Iterator[tuple[tuple[int, int], Edit]]:
    """The set of holders, made beside the flag; it is there already in a half fixed registry."""
    owner = next(node for node in source.module.body if getattr(node, "name", "") == REGISTRY_CLASS)
    start = next((node for node in ast.walk(owner) if getattr(node, "name", "") == "__init__"), None)
    if not isinstance(start, Function):
        return
    there = f"self.{HOLDERS}" in ast.unparse(start)
    flag = next((node for node in start.body if ast.unparse(node).startswith(f"self.{FLAG}")), None)
    if there is taken_out and flag is not None:
        insert = Insert(flag.lineno, (f"self.{HOLDERS}: set[str] = set()",), WHY_NAMES)
        yield (start.lineno, start.end_lineno or start.lineno), insert


def _function_at(module: ast.Module, site: Site) -> Function:
    first, last = site.span
    for node in ast.walk(module):
        if isinstance(node, Function) and node.end_lineno == last and first <= node.lineno:
            return node
    raise AssertionError(f"no function ends at line {last}")


def not_ours(source: Source, line: int) -> UnsupportedTargetError:
    """The error for a fix that cannot be taken out, because it is not what the fix writes."""
    return UnsupportedTargetError(
        f"cannot take the fix out of {source.path}:{line}",
        found="lines that differ from what `apply` writes: they were edited since, or made otherwise",
        supported="a tree as `apply` left it",
        advice="take the fix out by hand or with git; nothing was changed",
    )
