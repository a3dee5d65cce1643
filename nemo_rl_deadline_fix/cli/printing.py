"""What every command prints with: text for people on a console, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console

SCHEMA_VERSION = 1
"""Of every command's JSON object. It changes where a key changes its meaning or goes away."""

WIDTH = 80
"""Columns where the terminal says that it has none; without a terminal, rich takes as many."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would leave with 1, which means a finding here.
        raise


def console() -> Console:
    """Where results go: stdout, as wide as the terminal, folded at words."""
    made = _Console(highlight=False, soft_wrap=False, emoji=False, markup=False)
    if made.width < 1:
        made.width = WIDTH
    return made


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object and nothing else; JSON has no infinity and no NaN, so they become words."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **_finite(result)}, indent=2, default=str))


def say(text: str) -> None:
    """Talk, which goes to stderr so that results can be piped."""
    print(text, file=sys.stderr)


def printable(text: str) -> str:
    """A path or a key with what a terminal should not run escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
