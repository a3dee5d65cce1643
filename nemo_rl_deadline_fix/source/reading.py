"""Find a NeMo RL tree from what the user names, and read its files without changing a byte of them."""

from __future__ import annotations

import ast
import io
import itertools
import re
import stat
import subprocess
import tokenize
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.targets import CONTROLLER_FILE, MANAGER_FILE

PACKAGE = "nemo_rl"
_WANTED = (
    f"a NeMo RL checkout, its {PACKAGE} folder, an installed {PACKAGE} folder, "
    f"{Path(CONTROLLER_FILE).name} or {Path(MANAGER_FILE).name}"
)
# As Python counts lines; `str.splitlines` also breaks at form feeds and the like.
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_CONFLICT = re.compile(r"(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|)( |$)")


@dataclass(frozen=True)
class Source:
    """One file of the tree: its bytes, and its text as Python sees it.

    Attributes:
        path: Where it is.
        name: Its name relative to the tree's root, with slashes.
        raw: Its bytes.
        encoding: How its bytes are decoded; "utf-8-sig" where it begins with a byte order mark.
        text: Its decoded text, newlines as they are, without the byte order mark.
    """

    path: Path
    name: str
    raw: bytes
    encoding: str
    text: str

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The text's lines with their line ends; together they are the text."""
        return tuple(_LINES.findall(self.text))

    @cached_property
    def module(self) -> ast.Module:
        """The parsed text.

        Raises:
            InvalidInputError: It does not parse; the message names file and line.
        """
        try:
            with warnings.catch_warnings():
                # The user's, about escapes in strings and the like. They are not what was asked for.
                warnings.simplefilter("ignore")
                return ast.parse(self.text, filename=str(self.path))
        except SyntaxError as error:
            raise InvalidInputError(
                f"{self.path}:{error.lineno or 1}: syntax error",
                found=error.msg,
                advice="mend the file, or use the Python version that it is written for; nothing was changed",
            ) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InvalidInputError(
                f"{self.path}: cannot be parsed",
                found=str(error) or type(error).__name__,
                supported="a Python source file",
            ) from None

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *itertools.accumulate(map(len, self.lines))]

    def offset(self, line: int, column: int = 0) -> int:
        """Where a place is in the text: its line from 1, its column in bytes of UTF-8, as `ast` counts."""
        skipped = self.lines[line - 1].encode()[:column].decode() if column else ""
        return self._starts[line - 1] + len(skipped)

    def with_text(self, text: str) -> Source:
        """The file with another text."""
        return Source(self.path, self.name, text.encode(self.encoding), self.encoding, text)


@dataclass(frozen=True)
class Tree:
    """A NeMo RL tree: its root, and those of the two files that it has.

    Attributes:
        root: The folder that holds `nemo_rl`.
        controller: The controller's file, or None.
        manager: The rollout manager's file, or None.
    """

    root: Path
    controller: Source | None
    manager: Source | None

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the two that are there, the controller first."""
        return tuple(source for source in (self.controller, self.manager) if source)

    def git(self, *arguments: str) -> str:
        """What git answers in the tree; "" where there is no git, or no repository."""
        # A monitor that the repository configures would be a program of its own.
        line = ["git", "-C", str(self.root), "-c", "core.fsmonitor=false", *arguments]
        try:
            done = subprocess.run(line, capture_output=True, text=True, errors="surrogateescape", check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.rstrip("\n")

    def left_out(self, names: Collection[str]) -> list[str]:
        """Files of these that git keeps out of this checkout because it is a sparse one."""
        listed = self.git("ls-files", "-t", "--", *names).splitlines()
        return [line.removeprefix("S ") for line in listed if line.startswith("S ")]


def read_tree(path: Path) -> Tree:
    """Read the two files that matter of the tree that a path belongs to.

    Args:
        path: The checkout's root, its `nemo_rl` folder or anything in that, or an installed package's folder.

    Returns:
        The tree; a file that it does not have is None.

    Raises:
        InvalidInputError: There is no such tree, or a file cannot be read or leads out of the tree.
    """
    root = _find_root(path)
    return Tree(root, _read(root, CONTROLLER_FILE), _read(root, MANAGER_FILE))


def _find_root(path: Path) -> Path:
    try:
        if not path.exists():
            raise InvalidInputError(
                f"no NeMo RL tree at {path}", found="no such file or folder", supported=_WANTED
            )
        absolute = path.absolute()
        # A symlink is followed only where the path as written leads nowhere.
        for start in dict.fromkeys((absolute, absolute.resolve())):
            if _is_package(start / PACKAGE):
                return start
            for folder in (start, *start.parents):
                if folder.name == PACKAGE and _is_package(folder):
                    return folder.parent
    except OSError as error:
        raise InvalidInputError(f"cannot look at {path}", found=error.strerror or str(error)) from None
    raise InvalidInputError(
        f"no NeMo RL tree at {path}", found=f"no {PACKAGE} folder there or around it", supported=_WANTED
    )


def _is_package(folder: Path) -> bool:
    # A checkout may be cloned into a folder that is called like the package.
    return (folder / "__init__.py").exists() or (folder / "algorithms").is_dir()


def _read(root: Path, name: str) -> Source | None:
    path = root / name
    try:
        status = path.stat()
        if not path.resolve().is_relative_to(root.resolve()):
            raise InvalidInputError(
                f"{path} leads out of the tree",
                found=f"a symlink to {path.resolve()}",
                supported=f"files inside {root}",
                advice="name the tree that the file really belongs to",
            )
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError(f"{path} is not a file", supported="a Python source file")
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise InvalidInputError(f"{path} cannot be read", found="a symlink to nowhere") from None
        return None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read", found=error.strerror or str(error)) from None
    source = _decode(path, name, raw)
    for number, line in enumerate(source.lines, 1):
        if _CONFLICT.match(line.rstrip("\r\n")):
            raise InvalidInputError(
                f"{path}:{number}: conflict marker",
                found=line.strip(),
                advice="resolve the merge first; nothing was changed",
            )
    return source


def _decode(path: Path, name: str, raw: bytes) -> Source:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise InvalidInputError(
            f"{path} is not text", found=str(error), supported="Python source in UTF-8 or as its header says"
        ) from None
    if text.encode(encoding) != raw:
        raise InvalidInputError(f"{path}: its bytes do not survive decoding as {encoding}")
    return Source(path, name, raw, encoding, text)
