"""`verify --plot`: the picture of a verification as a file, complete or not at all."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay.verdict import Verification

SUFFIXES = (".svg", ".png")


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
        found = f"{type(error).__name__}: {error}"
        advice = "mend matplotlib, or the matplotlibrc that it reads here"
        if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
            found, advice = "no matplotlib", "pip install 'nemo-rl-deadline-fix[plot]'"
        raise InvalidInputError(
            "--plot needs matplotlib", found=found, supported="matplotlib 3.8 or newer", advice=advice
        ) from error
    _write(path, None)


def plot(verification: Verification, path: Path) -> None:
    """Draw what was simulated, one form over the other.

    Args:
        verification: What was found; something was simulated.
        path: The picture, which `check` has passed; an old one is replaced when the new one is complete.

    Raises:
        InvalidInputError: It cannot be written.
    """
    from nemo_rl_deadline_fix.replay import drawing

    _write(path, drawing.render(verification, path.suffix.lower()[1:]))


def _import_matplotlib() -> None:
    """Import it quietly and as if no backend had been chosen: a picture in a file needs none."""
    before = os.environ.pop("MPLBACKEND", None)
    logging.disable(logging.WARNING)
    try:
        import matplotlib.figure  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)
        if before is not None:
            os.environ["MPLBACKEND"] = before


def _write(path: Path, picture: bytes | None) -> None:
    """Replace a file in one step, through links and with its mode; without a picture only try."""
    try:
        target = path.resolve()
        mode = target.stat().st_mode if os.path.lexists(target) else None
        # Replacing what is write-protected would work, and would not be what its owner meant.
        if mode is not None and not (stat.S_ISREG(mode) and os.access(target, os.W_OK)):
            raise OSError(0, "it is not a regular file, or is write-protected")
        temporary = target.with_name(f".nemo-rl-deadline-fix-{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                file.write(picture or b"")
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            if picture is not None:
                temporary.replace(target)
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
