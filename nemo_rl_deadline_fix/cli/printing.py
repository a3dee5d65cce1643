"""What every command prints with: text for people, one JSON object for programs.

Text folds at words and never within one, so that a path or a key can be copied. Not with rich: its import
alone was a fifth of what `verify` takes of a processor, for one table and four colours.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

SCHEMA_VERSION = 2
"""Of every command's JSON object. It changes where a key changes its meaning or goes away."""

NARROWEST = 20
"""Columns that a text keeps beside what stands on its left, however narrow the terminal is."""


def show(text: str = "", style: str = "", *, first: str = "", later: str = "  ") -> None:
    """Print one paragraph to stdout, folded at words.

    Args:
        text: The paragraph, with what a terminal should not run escaped already (`printable`).
        style: `bold`, `dim` or a colour, or several as in `bold red`; seen on a terminal alone.
        first: What the first line begins with.
        later: What the lines after it begin with.
    """
    # A width of 0 is how some programs and terminals say that they have none.
    width = max(shutil.get_terminal_size().columns, len(later) + NARROWEST)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(_styled(line.rstrip(), style) for line in lines or [first.rstrip()]))


def show_table(
    rows: Sequence[Sequence[str]], styles: Sequence[str] = (), *, right: int | None = None
) -> None:
    """Print columns side by side to stdout; the last one folds within what is left of the width.

    Args:
        rows: Cells by row, as many in each. The first row is the heading.
        styles: The style of each row after the heading, as `show` takes it.
        right: The index of a column whose cells stand at its right edge.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row, style in zip(rows, ["bold", *(styles or [""] * len(rows[1:]))], strict=True):
        cells = [
            cell.rjust(width) if column == right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        left = "".join(f"{cell}  " for cell in cells)
        show(row[-1], style, first=left, later=" " * len(left))


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object and nothing else; JSON has no infinity and no NaN, so they become words."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **_finite(result)}, indent=2, default=str))


def say(text: str) -> None:
    """Talk, which goes to stderr so that results can be piped; one line, so that it can be searched for."""
    # Where nobody can hear it, that is no failure.
    with suppress(OSError):
        print(text, file=sys.stderr)


def printable(text: str) -> str:
    """A path or a key with what a terminal should not run escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _styled(line: str, style: str) -> str:
    if not style or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    *kinds, last = style.split()
    kinds += [last] if last in ("bold", "dim") else []
    return click.style(line, fg=None if last in kinds else last, **dict.fromkeys(kinds, True))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
