"""What a mutant is, and how it finds its line by what that line means."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class DoesNotApplyError(Exception):
    """A mutant whose line is no longer there, or there more than once."""


@dataclass(frozen=True)
class Mutant:
    """One wrong version of the fix.

    A statement is found by the function it is in and by its code, whatever its layout and comments are. In a
    diff it is a hunk that is found, and lost.

    Attributes:
        name: Its name on the command line.
        why: What goes wrong with it, in one sentence.
        tests: Arguments for pytest: the tests that must not all be green.
        file: The file that is changed, relative to the repo's root.
        function: `Class.method` or the function's name; "" for the module itself. Not used for a diff.
        line: Regular expression for the code of one statement, of a compound one its first line.
        put: What the match is replaced by.
    """

    name: str
    why: str
    tests: tuple[str, ...]
    file: str
    function: str = ""
    line: str = ""
    put: str = ""

    def text(self, root: Path) -> str:
        """The file's text with the mutant in it.

        Args:
            root: The repo's root.

        Raises:
            DoesNotApplyError: The sources have moved on without the list.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        if self.file.endswith(".diff"):
            start, end = self._only(
                [hunk for hunk in _hunks(text) if re.search(self.line, text[slice(*hunk)])]
            )
            return text[:start] + text[end:]
        lines = text.splitlines(keepends=True)
        statement = self._only(
            [
                node
                for node in _statements(ast.parse(text), self.function)
                if re.search(self.line, _code(node))
            ]
        )
        code = re.sub(self.line, self.put.replace("\\", r"\\"), _code(statement), count=1)
        indent = lines[statement.lineno - 1][: statement.col_offset]
        lines[statement.lineno - 1 : _last_line(statement)] = [textwrap.indent(code or "pass", indent) + "\n"]
        return "".join(lines)

    def _only(self, found: list[T]) -> T:
        if len(found) != 1:
            where = f"{self.file}:{self.function}"
            raise DoesNotApplyError(f"{self.name}: found {len(found)} times in {where}: {self.line!r}")
        return found[0]


def _hunks(diff: str) -> Iterator[tuple[int, int]]:
    """Where each hunk begins and ends."""
    for match in re.finditer(r"^@@ .*\n(?:[ +\-\\].*\n|\n)*", diff, re.MULTILINE):
        yield match.span()


def _statements(module: ast.Module, function: str) -> Iterator[ast.stmt]:
    """The statements of a function, of a class or, for "", of the module; not those of others inside it."""
    scope: ast.AST = module
    for name in filter(None, function.split(".")):
        inner = (node for node in ast.walk(scope) if isinstance(node, Scope) and node.name == name)
        scope = next(inner, ast.Module([], []))
    pending: list[ast.AST] = [*ast.iter_child_nodes(scope)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, Scope):
            pending.extend(ast.iter_child_nodes(node))


def _code(node: ast.stmt) -> str:
    """A statement's code; of a compound one its first line."""
    return ast.unparse(node).partition("\n")[0] if _body(node) else ast.unparse(node)


def _last_line(node: ast.stmt) -> int:
    body = _body(node)
    return body[0].lineno - 1 if body else node.end_lineno or node.lineno


def _body(node: ast.stmt) -> list[ast.stmt]:
    body: list[ast.stmt] = getattr(node, "body", [])
    return body
