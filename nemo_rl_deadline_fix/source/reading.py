"""Find a NeMo RL tree from what the user names, and read its files without changing a byte of them."""

from __future__ import annotations

import ast
import io
import re
import stat
import subprocess
import tokenize
import warnings
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
        encoding: How its bytes are decoded; "utf-8-sig" where it begins with a byte order mark.
        text: Its decoded text, newlines as they are, without the byte order mark.
    """

    path: Path
    name: str
    encoding: str
    text: str

    @property
    def raw(self) -> bytes:
        """Its bytes: reading has made sure that they are what its text is encoded to."""
        return self.text.encode(self.encoding)

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
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidInputError(
                f"{self.path}:{getattr(error, 'lineno', None) or 1}: syntax error",
                found=getattr(error, "msg", "") or str(error) or type(error).__name__,
                advice="mend the file, or use the Python version that it is written for; nothing was changed",
            ) from None

    def offset(self, line: int, column: int = 0) -> int:
        """Where a place is in the text: its line from 1, its column in bytes of UTF-8, as `ast` counts."""
        skipped = self.lines[line - 1].encode()[:column].decode() if column else ""
        return sum(map(len, self.lines[: line - 1])) + len(skipped)


@dataclass(frozen=True)
class Tree:
    """A NeMo RL tree.

    Attributes:
        root: The folder that holds `nemo_rl`.
        sources: Those of the two files that it has, by name, the controller first.
    """

    root: Path
    sources: dict[str, Source]

    @property
    def controller(self) -> Source | None:
        """The controller's file, if there is one."""
        return self.sources.get(CONTROLLER_FILE)

    @property
    def manager(self) -> Source | None:
        """The rollout manager's file, if there is one."""
        return self.sources.get(MANAGER_FILE)

    def git(self, *arguments: str) -> str:
        """What git answers in the tree; "" where there is no git, or no repository."""
        # A monitor that the repository configures would be a program of its own.
        line = ["git", "-C", str(self.root), "-c", "core.fsmonitor=false", *arguments]
        try:
            done = subprocess.run(line, capture_output=True, text=True, errors="surrogateescape", check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.rstrip("\n")


def read_tree(path: Path) -> Tree:
    """Read the two files that matter of the tree that a path belongs to.

    Args:
        path: The checkout's root, its `nemo_rl` folder or anything in that, or an installed package's folder.

    Raises:
        InvalidInputError: There is no such tree, or a file cannot be read or leads out of the tree.
    """
    root = _find_root(path)
    read = {name: _read(root, name) for name in (CONTROLLER_FILE, MANAGER_FILE)}
    return Tree(root, {name: source for name, source in read.items() if source})


def _find_root(path: Path) -> Path:
    found = "no such file or folder"
    try:
        if path.exists():
            found = f"no {PACKAGE} folder there or around it"
            # A symlink is followed only where the path as written leads nowhere.
            for start in (path.absolute(), path.resolve()):
                for folder in (start / PACKAGE, start, *start.parents):
                    if folder.name == PACKAGE and _is_package(folder):
                        return folder.parent
    except OSError as error:
        raise InvalidInputError(f"cannot look at {path}", found=error.strerror or str(error)) from None
    raise InvalidInputError(f"no NeMo RL tree at {path}", found=found, supported=_WANTED)


def _is_package(folder: Path) -> bool:
    # A checkout may be cloned into a folder that is called like the package.
    return (folder / "__init__.py").exists() or (folder / "algorithms").is_dir()


def _read(root: Path, name: str) -> Source | None:
    path = root / name
    try:
        mode = path.stat().st_mode
        if not path.resolve().is_relative_to(root.resolve()):
            raise InvalidInputError(
                f"{path} leads out of the tree",
                found=f"a symlink to {path.resolve()}",
                supported=f"files inside {root}",
                advice="name the tree that the file really belongs to",
            )
        if not stat.S_ISREG(mode):
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
    return Source(path, name, encoding, text)
