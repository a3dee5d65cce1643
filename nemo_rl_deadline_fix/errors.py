"""The errors a user may see: what is wrong, what was found, what is supported, what to do."""

from __future__ import annotations


class DeadlineFixError(Exception):
    """Base of this package's errors; its text is always one line.

    Attributes:
        what: What could not be done.
        found: What was found instead of what was expected, or "".
        supported: What would have been accepted, or "".
        advice: What the reader can do about it, or "".
    """

    def __init__(self, what: str, *, found: str = "", supported: str = "", advice: str = "") -> None:
        super().__init__(what, found, supported, advice)
        self.what = what
        self.found = found
        self.supported = supported
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default, which replays `args`.
        return _rebuild, (type(self), self.what, self.found, self.supported, self.advice)

    def __str__(self) -> str:
        parts = [self.what]
        if self.found:
            parts.append(f"found: {self.found}")
        if self.supported:
            parts.append(f"supported: {self.supported}")
        if self.advice:
            parts.append(f"do this: {self.advice}")
        return " ".join("; ".join(parts).split())


def _rebuild(
    kind: type[DeadlineFixError], what: str, found: str, supported: str, advice: str
) -> DeadlineFixError:
    return kind(what, found=found, supported=supported, advice=advice)


class UnsupportedTargetError(DeadlineFixError):
    """The code to be patched, read or replayed has a shape this package does not know."""


class InvalidInputError(DeadlineFixError):
    """A path, option or file given by the user cannot be used."""
