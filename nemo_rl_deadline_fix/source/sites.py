"""The words of a survey: rules, kinds, states, and one place in a NeMo RL tree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class State(StrEnum):
    """State of a place or of a whole tree; the values are the words used in messages."""

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


class Kind(StrEnum):
    """What a place is."""

    SUSPEND = "suspend"
    RESUME = "resume"
    CLOSE = "close"
    REOPEN = "reopen"
    REARM = "rearm"
    CALL = "call"


@dataclass(frozen=True)
class Site:
    """One place in a tree, and its state.

    Attributes:
        rule: The rule that changes it; None where nothing is to be changed.
        kind: What it is.
        file: The file it is in.
        line: Its line.
        name: The function it is in, as `Class.method`.
        state: Its state.
        expected: What the fix wants to see there.
        found: What is there.
        required: Whether the tree's state depends on it.
        span: First and last line of that function.
        receiver: The object whose gate it is, as source text; only for places of DF003.
    """

    rule: Rule | None
    kind: Kind
    file: Path
    line: int
    name: str
    state: State
    expected: str
    found: str
    required: bool = True
    span: tuple[int, int] = (0, 0)
    receiver: str = ""

    def where(self, root: Path) -> str:
        """File and line relative to the tree's root, as an editor follows it."""
        file = self.file.relative_to(root) if self.file.is_relative_to(root) else self.file
        return f"{file.as_posix()}:{self.line}"
