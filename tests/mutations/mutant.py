"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Edit = tuple[str, str]
"""A text that is found exactly once, and what it is replaced by."""


class DoesNotApplyError(Exception):
    """A mutant whose text is no longer there, or there more than once."""


@dataclass(frozen=True)
class Mutant:
    """One wrong version of the fix.

    Attributes:
        name: Its name on the command line.
        file: The file that is changed, relative to the repo's root.
        why: What goes wrong with it, in one sentence.
        tests: Arguments for pytest: the tests that must not all be green.
        edits: What is replaced, in this order.
        survives: Why no test can tell it from the fix; "" where one must.
    """

    name: str
    file: str
    why: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]
    survives: str = ""

    def text(self, root: Path) -> str:
        """The file's text with the mutant in it.

        Args:
            root: The repo's root.

        Raises:
            DoesNotApplyError: The sources have moved on without the list.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        for old, new in self.edits:
            if text.count(old) != 1:
                raise DoesNotApplyError(f"{self.name}: found {text.count(old)} times in {self.file}: {old!r}")
            text = text.replace(old, new)
        return text
