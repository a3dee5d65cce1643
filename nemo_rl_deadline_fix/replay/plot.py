"""`verify --plot`: the picture of a verification as a file, complete or not at all."""

from __future__ import annotations

import io
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay.verdict import Verification

SUFFIXES = (".svg", ".png")
_MAKER = "nemo-rl-deadline-fix verify --plot"
_SETTINGS: dict[Any, object] = {
    # The same picture is the same file.
    "svg.hashsalt": "nemo-rl-deadline-fix",
    # Glyphs as outlines: no viewer has to have the font, and nothing gets wider than it was measured.
    "svg.fonttype": "path",
    "text.hinting": "none",
    "hatch.linewidth": 0.6,
}


def check(path: Path) -> None:
    """Make sure that a picture can be drawn and written, before any work is done for it.

    Raises:
        InvalidInputError: The path's suffix is unknown, it cannot be written, or matplotlib cannot start.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInputError(
            f"cannot draw {path}",
            found=f"suffix {path.suffix}" if path.suffix else "no suffix",
            supported=" or ".join(SUFFIXES),
            advice="name the picture accordingly",
        )
    try:
        _import_matplotlib()
    except Exception as error:
        # A broken installation raises all sorts of things, and so does a settings file.
        found, advice = f"{type(error).__name__}: {error}", "mend what `python -m matplotlib` complains of"
        if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
            found, advice = "no matplotlib", "pip install 'nemo-rl-deadline-fix[plot]'"
        elif isinstance(error, UnicodeDecodeError):
            found, advice = "a matplotlibrc that is not UTF-8", "mend it, or run this in another folder"
        raise InvalidInputError(
            "--plot needs matplotlib", found=found, supported="matplotlib 3.8 or newer", advice=advice
        ) from error
    with _beside(path):
        pass


def plot(verification: Verification, path: Path) -> None:
    """Draw what was simulated, one form over the other.

    Args:
        verification: What was found; something was simulated.
        path: The picture, an `.svg` or a `.png`; an old one is replaced when the new one is complete.

    Raises:
        InvalidInputError: As `check`.
    """
    check(path)
    picture = _render(verification, path.suffix.lower()[1:])
    with _beside(path) as (file, target):
        file.write(picture)
        file.close()
        Path(file.name).replace(target)


def _import_matplotlib() -> None:
    """Import it as if nobody had set it up: a picture in a file needs no backend and no settings."""
    before = os.environ.pop("MPLBACKEND", None)
    logging.disable(logging.WARNING)
    try:
        import matplotlib.figure  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)
        if before is not None:
            os.environ["MPLBACKEND"] = before


def _render(verification: Verification, kind: str) -> bytes:
    import matplotlib as mpl

    from nemo_rl_deadline_fix.replay import drawing

    metadata: dict[str, Any] = {"Software": _MAKER}
    if kind == "svg":
        metadata = {"Date": None, "Creator": _MAKER, "Title": drawing.heading(verification)}
    data = io.BytesIO()
    # Neither the user's settings nor ours get into the other's pictures.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        drawing.figure(verification).savefig(data, format=kind, dpi=144, metadata=metadata)
    return data.getvalue()


@contextmanager
def _beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in a path's folder, with the path's mode, and the path without links.

    The file is removed at the end if it is still there. Whatever goes wrong is an InvalidInputError.
    """
    try:
        # What a link leads to is to be replaced, not the link.
        target = path.resolve()
        mode = _mode(target)
        temporary = target.with_name(f".nemo-rl-deadline-fix-{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                if mode is not None:
                    temporary.chmod(mode)
                yield file, target
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        # A loop of links is a RuntimeError, a null byte a ValueError.
        raise InvalidInputError(
            f"cannot write {path}",
            found=getattr(error, "strerror", None) or f"{type(error).__name__}: {error}",
            supported="a new or existing file in an existing folder, both of them writable",
            advice="give --plot another path",
        ) from error


def _mode(target: Path) -> int | None:
    """The mode of a file that may be replaced; None where there is none yet."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
    if not os.access(target, os.W_OK):
        # Replacing it would work, and would not be what its owner meant.
        raise OSError(0, "it is write-protected")
    return stat.S_IMODE(mode)
