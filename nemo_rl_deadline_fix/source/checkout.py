"""Plan the fix for a checkout, show it as a patch, and write it: all files or none."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError, UnsupportedTargetError
from nemo_rl_deadline_fix.source.judging import Line, TreeReport, examine, survey
from nemo_rl_deadline_fix.source.reading import Source, Tree
from nemo_rl_deadline_fix.source.sites import Rule, State

ALL_RULES = frozenset(Rule)
_NO_NEWLINE = b"\n\\ No newline at end of file\n"


@dataclass(frozen=True)
class Change:
    """A new text for one file.

    Attributes:
        source: The file as it is.
        new: The file as it is to be.
    """

    source: Source
    new: Source


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

    def patch(self, folder: str = "") -> bytes:
        """The changes as a patch that `git apply` and `patch -p1` accept.

        Args:
            folder: Where the tree is in the folder that the patch is for, with a slash at its end; by
                default the patch is for the tree's root.
        """
        changes = sorted(self.changes, key=lambda change: change.source.name)
        return b"".join(_file_patch(change, os.fsencode(folder)) for change in changes)


def plan(path: Path, *, rules: Collection[Rule] = ALL_RULES) -> Plan:
    """Compute the fix for a tree; nothing is written.

    Args:
        path: As for `survey`.
        rules: The rules to apply. All but DF004 are needed for the tree to count as fixed.

    Returns:
        The changes; none where the tree is fixed already or has no Gym snapshot code.

    Raises:
        InvalidInputError: There is no tree, or a file of it cannot be read or parsed.
        UnsupportedTargetError: The tree has a form that is not mended here.
    """
    report = survey(path)
    if report.state in (State.FIXED, State.NOT_APPLICABLE):
        return Plan(report, ())
    _refuse_other_forms(report, path)
    changes = tuple(reversed(_changes(report, rules, State.AFFECTED)))
    after = examine(_changed(report.tree, changes))
    if {*rules} >= ALL_RULES - {Rule.DF004} and after.state is not State.FIXED:
        # A mistake of ours, which does not reach the tree.
        raise _refusal(path, f"a tree that would be {after.state} afterwards ({after.detail})", report)
    return Plan(report, changes)


def plan_revert(path: Path) -> Plan:
    """Compute how to take out what `plan` puts in; nothing is written.

    There is no record of what was applied. So lines count as the fix's exactly if they are, byte for byte,
    what the fix writes, and the result is given out only if it is a tree that could be fixed again.

    Args:
        path: As for `survey`.

    Returns:
        The changes; none where the fix is not there, or is NeMo RL's own.

    Raises:
        InvalidInputError: There is no tree, or a file of it cannot be read or parsed.
        UnsupportedTargetError: The fix is there in another form, or was edited since.
    """
    report = survey(path)
    others = report.line is not Line.GATE and report.state is not State.UNKNOWN
    if others or report.state in (State.AFFECTED, State.NOT_APPLICABLE):
        return Plan(report, ())
    _refuse_other_forms(report, path)
    changes = _changes(report, ALL_RULES, State.FIXED)
    optional = any(site.state is State.UNKNOWN for site in report.sites)
    if optional or examine(_changed(report.tree, changes)).state is not State.AFFECTED:
        raise _edited_since(path)
    return Plan(report, changes)


def _refuse_other_forms(report: TreeReport, path: Path) -> None:
    if report.state is State.UNKNOWN:
        raise _refusal(path, report.detail, report)
    if report.line is not Line.GATE:
        raise _refusal(path, f"the defect {report.detail}", report)
    for source in report.tree.sources:
        if re.search("\r(?!\n)", source.text):
            raise UnsupportedTargetError(
                f"cannot change {source.path}",
                found="lines that end in a lone carriage return",
                supported="LF or CRLF",
                advice="convert the file's line ends first; nothing was changed",
            )


def _refusal(path: Path, found: str, report: TreeReport) -> UnsupportedTargetError:
    advice = f"nemo-rl-deadline-fix verify --rl {shlex.quote(str(path))}" if report.playable else ""
    return UnsupportedTargetError(f"cannot change {path}", found=found, advice=advice)


def _edited_since(path: Path) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"cannot take the fix out of {path}",
        found="lines that differ from what `apply` writes: they were edited since, or made otherwise",
        advice="take the fix out by hand or with git; nothing was changed",
    )


def _changes(report: TreeReport, rules: Collection[Rule], state: State) -> tuple[Change, ...]:
    """The files with each site's text put in where it is affected, or taken out where it is fixed."""
    changes = []
    for source in report.tree.sources:
        sites = [site for site in report.sites if site.file == source.name and site.state is state]
        places = {place for site in sites if site.rule in rules for place in site.places}
        text = source.text
        # From the end, so that the offsets of the others stay true.
        for place in sorted(places, key=lambda place: place.at, reverse=True):
            if state is State.AFFECTED:
                text = place.put_into(text)
            elif place.is_in(text):
                text = place.taken_from(text)
            else:
                raise _edited_since(source.path)
        if text != source.text:
            changes.append(Change(source, source.with_text(text)))
    return tuple(changes)


def _changed(tree: Tree, changes: Collection[Change]) -> Tree:
    new = {change.source: change.new for change in changes}
    return replace(
        tree,
        controller=tree.controller and new.get(tree.controller, tree.controller),
        manager=tree.manager and new.get(tree.manager, tree.manager),
    )


def _file_patch(change: Change, folder: bytes) -> bytes:
    name = folder + change.source.name.encode()
    # Lines as git counts them: a carriage return belongs to its line.
    old, new = (_git_lines(source.raw) for source in (change.source, change.new))
    # A tab ends a name that has a space in it, as in git's own patches.
    end = b"\t" if b" " in name else b""
    head = b"diff --git a/%s b/%s\n" % (name, name)
    body = difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + name + end, b"b/" + name + end)
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
            _copy(stack, target, change.new.raw, status),
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
