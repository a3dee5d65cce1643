"""The awaits of a controller's snapshot methods: all that the source has, and those a call came through."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from nemo_rl_deadline_fix import targets

Site = tuple[str, int, int]
"""An await in the source: its method, line and column."""


def methods_of(controller: Any) -> frozenset[CodeType]:
    """The code of the snapshot's methods and of those they call, without what stands on the object itself."""
    kind: Any = type(controller)
    return _methods_of(kind, frozenset(vars(controller)))


def all_sites(controller: Any) -> frozenset[Site]:
    """Every await in the source of these methods."""
    return frozenset(
        (code.co_name, node.lineno, node.col_offset)
        for code in methods_of(controller)
        for node in _awaits_in(code)
    )


def waiting(methods: frozenset[CodeType], task: asyncio.Task[Any]) -> Iterator[tuple[CodeType, int]]:
    """Where methods wait in a task that is suspended: their code, and the instruction in it."""
    coroutine: Any = task.get_coro()
    while inspect.iscoroutine(coroutine):
        if coroutine.cr_code in methods and coroutine.cr_frame is not None:
            yield coroutine.cr_code, coroutine.cr_frame.f_lasti
        coroutine = coroutine.cr_await


@functools.cache
def site(code: CodeType, instruction: int) -> Site:
    """The innermost await around an instruction."""
    line, _, column, _ = list(code.co_positions())[instruction // 2]
    assert line is not None
    assert column is not None
    around = [
        (node.lineno, node.col_offset)
        for node in _awaits_in(code)
        if (node.lineno, node.col_offset) <= (line, column)
        and (line, column) < (node.end_lineno or node.lineno, node.end_col_offset or 0)
    ]
    return code.co_name, *max(around)


@functools.cache
def _methods_of(kind: type, played: frozenset[str]) -> frozenset[CodeType]:
    found: dict[str, CodeType] = {}
    pending = [targets.PREPARE, targets.RELEASE, targets.RELEASE_COMMITTED]
    while pending:
        name = pending.pop()
        # The original below a wrapper of ours.
        function = inspect.unwrap(getattr(kind, name, len))
        if inspect.isfunction(function) and name not in found and name not in played:
            found[name] = function.__code__
            pending.extend(function.__code__.co_names)
    return frozenset(found.values())


@functools.cache
def _awaits_in(code: CodeType) -> tuple[ast.expr | ast.stmt, ...]:
    tree = ast.parse(Path(code.co_filename).read_text(encoding="utf-8"))
    (function,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == code.co_name
        and min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        == code.co_firstlineno
    )
    return tuple(
        node for node in ast.walk(function) if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
    )
