"""Plan the fix for a checkout, show it as a patch, and write it: all files or none."""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError, UnsupportedTargetError
from nemo_rl_deadline_fix.source.locate import TreeReport, examine
from nemo_rl_deadline_fix.source.reading import Source, Tree, read_tree
from nemo_rl_deadline_fix.source.rewrite import with_fix, without_fix
from nemo_rl_deadline_fix.source.sites import Rule, State

ALL_RULES = frozenset(Rule)
_NO_NEWLINE = b"\n\\ No newline at end of file\n"
_KNOWN = "the shapes that `nemo-rl-deadline-fix check` knows"
_ADVICE = "run `nemo-rl-deadline-fix check` on it, and make the change by hand after the diffs in patches/"


@dataclass(frozen=True)
class Change:
    """New bytes for one file."""

    source: Source
    raw: bytes


@dataclass(frozen=True)
class Plan:
    """What is to be written to a tree; without changes there is nothing to do.

    Attributes:
        report: The survey of the tree as it is.
        changes: One entry for each file that changes, in the order in which they are to be written: a
            manager that takes names is harmless beside any controller, a controller that gives names to a
            manager that takes none fails at the next snapshot.
    """

    report: TreeReport
    changes: tuple[Change, ...]

    @property
    def patch(self) -> bytes:
        """The changes as a patch that `git apply` and `patch -p1` accept at the tree's root."""
        return b"".join(
            _file_patch(change) for change in sorted(self.changes, key=lambda change: change.source.name)
        )


def plan(path: Path, *, rules: Collection[Rule] = ALL_RULES) -> Plan:
    """Compute the fix for a tree; nothing is written.

    Args:
        path: As for `survey`.
        rules: The rules to apply. All but DF004 are needed for the tree to count as fixed.

    Returns:
        The changes; none where the tree is fixed already or has no Gym snapshot code.

    Raises:
        InvalidInputError: There is no tree, or a file of it cannot be read or parsed.
        UnsupportedTargetError: The tree has a shape that is not known.
    """
    report = examine(read_tree(path))
    if report.state in (State.FIXED, State.NOT_APPLICABLE):
        return Plan(report, ())
    _refuse_unknown(report)
    changes = tuple(
        Change(source, source.with_text(text))
        for source in reversed(_sources(report.tree))
        if (text := with_fix(source, report.sites, rules)) != source.text
    )
    after = examine(_changed(report.tree, changes))
    if {*rules} >= ALL_RULES - {Rule.DF004} and after.state is not State.FIXED:
        raise UnsupportedTargetError(
            f"cannot fix {report.root}",
            found=f"a tree that would be {after.state} afterwards ({after.detail})",
            supported=_KNOWN,
            advice=_ADVICE,
        )
    return Plan(report, changes)


def plan_revert(path: Path) -> Plan:
    """Compute how to take out what `plan` puts in; nothing is written.

    There is no record of what was applied. So lines count as the fix's exactly if they are what the fix
    writes, and the result is given out only if fixing it again leads to the tree as it is, byte for byte.

    Args:
        path: As for `survey`.

    Returns:
        The changes; none where the fix is not there.

    Raises:
        InvalidInputError: There is no tree, or a file of it cannot be read or parsed.
        UnsupportedTargetError: The fix is there in another form, or was edited since.
    """
    report = examine(read_tree(path))
    if report.state in (State.AFFECTED, State.NOT_APPLICABLE):
        return Plan(report, ())
    _refuse_unknown(report)
    present = {site.rule for site in report.sites if site.rule and site.state is State.FIXED}
    changes = tuple(
        Change(source, source.with_text(text))
        for source in _sources(report.tree)
        if (text := without_fix(source, report.sites, present)) != source.text
    )
    before = _changed(report.tree, changes)
    again = examine(before)
    for source, now in zip(_sources(before), _sources(report.tree), strict=True):
        if source.with_text(with_fix(source, again.sites, present)) != now.raw:
            raise UnsupportedTargetError(
                f"cannot take the fix out of {now.path}",
                found="a file that fixing again would not lead back to: its lines were edited since",
                supported="a tree as `apply` left it",
                advice="take the fix out by hand or with git; nothing was changed",
            )
    return Plan(report, changes)


def _refuse_unknown(report: TreeReport) -> None:
    if report.state is State.UNKNOWN:
        raise UnsupportedTargetError(
            f"cannot change {report.root}", found=report.detail, supported=_KNOWN, advice=_ADVICE
        )


def _sources(tree: Tree) -> tuple[Source, ...]:
    return tuple(source for source in (tree.controller, tree.manager) if source is not None)


def _changed(tree: Tree, changes: Collection[Change]) -> Tree:
    new = {change.source: change.raw.decode(change.source.encoding) for change in changes}

    def renewed(source: Source | None) -> Source | None:
        if source is None or source not in new:
            return source
        text = new[source]
        return Source(source.path, source.name, source.with_text(text), source.encoding, text)

    return Tree(tree.root, renewed(tree.controller), renewed(tree.manager))


def _file_patch(change: Change) -> bytes:
    name = change.source.name.encode()
    # Lines as git counts them: a carriage return belongs to its line.
    old, new = (_git_lines(raw) for raw in (change.source.raw, change.raw))
    head = b"diff --git a/%s b/%s\n" % (name, name)
    body = difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + name, b"b/" + name)
    return head + b"".join(line if line.endswith(b"\n") else line + _NO_NEWLINE for line in body)


def _git_lines(raw: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in raw.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def write(changes: Collection[Change]) -> None:
    """Write changed files, all or none.

    Each file is replaced in one step by a complete new one beside it, with its mode. If anything fails, or
    a SIGTERM comes, those that were replaced already get their old contents back, the last one first.

    Args:
        changes: What to write.

    Raises:
        InvalidInputError: A file cannot be written, or is not any more what the plan was made for.
    """
    with _termination() as stop_if_terminated, contextlib.ExitStack() as stack:
        staged = []
        for change in changes:
            # Within the tree a symlink is written through; reading has refused those that lead out.
            target = change.source.path.resolve()
            staged.append((change, target, _staged(stack, target, change)))
        replaced: list[tuple[Path, Path]] = []
        try:
            for change, target, (new, old) in staged:
                if target.read_bytes() != change.source.raw:
                    raise InvalidInputError(
                        f"{target} cannot be written",
                        found="it was changed by someone else in the meantime",
                        advice="run the command again; nothing was changed",
                    )
                replaced.append((target, old))
                stop_if_terminated()
                new.replace(target)
            stop_if_terminated()
        except BaseException as error:
            for target, old in reversed(replaced):
                old.replace(target)
            if isinstance(error, OSError):
                raise _unwritable(target, error) from None
            raise
        for folder in {target.parent for _, target, _ in staged}:
            _sync_folder(folder)


class _Terminated(BaseException):
    """A SIGTERM came."""


@contextlib.contextmanager
def _termination() -> Iterator[Callable[[], None]]:
    """Let a SIGTERM wait, and give out what raises once it came, so that it comes only between two steps."""
    before = signal.getsignal(signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()
    if not main or before in (None, signal.SIG_IGN):
        yield lambda: None
        return
    came: list[int] = []

    def stop_if_terminated() -> None:
        if came:
            raise _Terminated

    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield stop_if_terminated
    except _Terminated:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            # Nothing is left to do; what the signal does otherwise, it does now.
            signal.raise_signal(signal.SIGTERM)
    if came:
        raise SystemExit(128 + signal.SIGTERM)


def _staged(stack: contextlib.ExitStack, target: Path, change: Change) -> tuple[Path, Path]:
    """A complete new file beside the target, and a copy of the old one to go back to."""
    try:
        status = target.stat()
        # Root may write to anything, and a folder that is writable allows a replacement of a read-only
        # file; who made it read-only meant something by it.
        if not status.st_mode & 0o222 or not os.access(target, os.W_OK):
            raise PermissionError("the file is read-only")
        return (
            _copy(stack, target, change.raw, status),
            _copy(stack, target, change.source.raw, status),
        )
    except OSError as error:
        raise _unwritable(target, error) from None


def _copy(stack: contextlib.ExitStack, target: Path, raw: bytes, status: os.stat_result) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    path = Path(name)
    stack.callback(path.unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
        file.flush()
        with contextlib.suppress(PermissionError):
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
        os.fsync(file.fileno())
    return path


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(target: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"{target} cannot be written",
        found=error.strerror or str(error),
        advice="make it and its folder writable; nothing was changed",
    )
