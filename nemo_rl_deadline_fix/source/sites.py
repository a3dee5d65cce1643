"""A site is a place in a file and the text that belongs there: is it there, put it in, take it out."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from nemo_rl_deadline_fix.source.reading import Source

WIDTH = 88
"""Columns of a line in NeMo RL's formatter."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class State(StrEnum):
    """State of a site or of a whole tree; the values are the words used in messages."""

    AFFECTED = "affected"
    FIXED = "fixed"
    PARTLY_FIXED = "partly_fixed"
    NOT_APPLICABLE = "not_applicable"
    UNKNOWN = "unknown"
    INFORMATION = "information"


class Rule(StrEnum):
    """What is changed, one rule per concern; the same ids in messages, JSON, documents and tests."""

    DF001 = "DF001"
    """The registry knows its holders by name."""
    DF002 = "DF002"
    """The manager passes the holder on."""
    DF003 = "DF003"
    """The controller holds the clocks exactly while the gate is closed."""
    DF004 = "DF004"
    """A deadline with nothing left does not fire ahead of a reply of the same loop turn. Optional."""


OPTIONAL = (Rule.DF004,)
"""Rules that a tree may lack and count as fixed."""

Kind = Literal["suspend", "resume", "close", "reopen", "rearm", "call"]
"""What a site does."""


@dataclass(frozen=True)
class Place:
    """A text of the fix, and the offset in the file's text where it begins, or would begin."""

    at: int
    text: str

    def is_in(self, text: str) -> bool:
        """Whether it is there."""
        # What begins with a line end is whole lines: nothing may stand behind the last one.
        behind = text[self.at + len(self.text) :][:1] if self.text[:1] in "\r\n" else ""
        return text.startswith(self.text, self.at) and behind in ("", "\r", "\n")

    def put_into(self, text: str) -> str:
        """A text with this one in it; unchanged where it is there already."""
        return text if self.is_in(text) else text[: self.at] + self.text + text[self.at :]

    def taken_from(self, text: str) -> str:
        """A text, in which this one is, without it."""
        return text[: self.at] + text[self.at + len(self.text) :]


@dataclass(frozen=True)
class Site:
    """One site in a tree, and its state.

    Attributes:
        rule: The rule that changes it; None where nothing is to be changed.
        file: The file it is in, relative to the tree's root, with slashes.
        name: The function it is in, as `Class.method`.
        expected: What the fix wants to see there.
        places: What the fix puts there.
    """

    rule: Rule | None
    kind: Kind
    file: str
    line: int
    name: str
    state: State
    found: str
    expected: str
    places: tuple[Place, ...] = ()

    @property
    def required(self) -> bool:
        """Whether the tree's state depends on it."""
        return self.rule not in (None, *OPTIONAL)

    @property
    def where(self) -> str:
        """File and line, as an editor follows it from the tree's root."""
        return f"{self.file}:{self.line}"


def parameter(source: Source, function: Function, text: str) -> Place:
    """The place of a parameter after the first one; on a line of its own where that one has one."""
    first = function.args.args[0]
    at = source.offset(first.end_lineno or 0, first.end_col_offset or 0)
    if begins_its_line(source, first) and source.text.startswith(",", at):
        return Place(at + 1, f"{_newline(source, first)}{_indent(source, first)}{text},")
    return Place(at, f", {text}")


def lines_before(source: Source, anchor: ast.stmt, code: str, why: str = "", unit: str = "    ") -> Place:
    """The place of statements above one, or of those that stand there; a comment above the first.

    Comments above the anchor stay above, so that the lines of one step stand together.
    """
    indent = _indent(source, anchor)
    comment = [f"# {line}" for line in textwrap.wrap(why, WIDTH - len(indent) - 2)]
    lines = (*comment, *_wrapped(code, len(indent), unit))
    text = "".join(f"{indent}{line}{_newline(source, anchor)}" for line in lines)
    at = source.offset(anchor.lineno)
    return Place(at - len(text) if source.text[:at].endswith(text) else at, text)


def line_after(source: Source, anchor: ast.stmt, code: str) -> Place:
    """The place of a statement below one, with the line end before it: the last line may have none."""
    indent, last = _indent(source, anchor), anchor.end_lineno or anchor.lineno
    lines = _wrapped(code, len(indent))
    at = source.offset(last) + len(source.lines[last - 1].rstrip("\r\n"))
    return Place(at, "".join(f"{_newline(source, anchor)}{indent}{line}" for line in lines))


def begins_its_line(source: Source, node: ast.stmt | ast.arg) -> bool:
    """Whether a line can be put above a node: nothing stands before it, nor continues into its line."""
    above = source.lines[node.lineno - 2].strip() if node.lineno > 1 else ""
    before = source.lines[node.lineno - 1].encode()[: node.col_offset]
    return not before.strip() and (above.startswith("#") or not above.endswith("\\"))


def stands_alone(source: Source, node: ast.stmt) -> bool:
    """Whether a line can be put above and below a statement: nothing but a comment shares its lines."""
    rest = source.lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset :].decode()
    return begins_its_line(source, node) and bool(re.fullmatch(r"\s*(#.*)?", rest.rstrip("\r\n")))


def body_of(function: Function) -> list[ast.stmt]:
    """A function's statements without its docstring."""
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def _wrapped(code: str, indented: int, unit: str = "    ") -> list[str]:
    if indented + len(code) > WIDTH and code.endswith(")"):
        head, _, inside = code.rpartition("(")
        return [f"{head}(", f"    {inside[:-1]}", ")"]
    return code.replace("    ", unit).split("\n")


def _indent(source: Source, node: ast.stmt | ast.arg) -> str:
    # Python forgets what stands before a form feed; it is the line's own and is not copied.
    return re.match(r"\s*", source.lines[node.lineno - 1])[0].rpartition("\f")[2]  # type: ignore[index]


def _newline(source: Source, node: ast.stmt | ast.arg) -> str:
    # The anchor's own, for a file may mix them; the last line may have none.
    for line in (source.lines[node.lineno - 1], source.lines[node.lineno - 2]):
        if end := line[len(line.rstrip("\r\n")) :]:
            return end
    return "\n"
