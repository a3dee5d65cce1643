"""Plan the fix for a checkout, show it as a patch, and write it: all files or none."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import signal
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError, UnsupportedTargetError
from nemo_rl_deadline_fix.source.judging import Line, TreeReport, examine, survey
from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import Rule, State

ALL_RULES = frozenset(Rule)
_NO_NEWLINE = b"\n\\ No newline at end of file\n"
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

Change = tuple[Source, Source]
"""A file as it is, and as it is to be."""


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
        changes = sorted(self.changes, key=lambda change: change[0].name)
        return b"".join(_file_patch(old, new, os.fsencode(folder)) for old, new in changes)


def plan(path: Path, *, rules: Collection[Rule] = ALL_RULES) -> Plan:
    """Compute the fix for a tree; nothing is written.

    There are no changes where the tree is fixed already or has no Gym snapshot code.

    Args:
        path: As for `survey`.
        rules: The rules to apply: all, or all but DF004.

    Raises:
        InvalidInputError: As `survey`.
        UnsupportedTargetError: The tree has a form that is not mended here.
    """
    return _plan(path, rules, State.AFFECTED, State.FIXED)


def plan_revert(path: Path) -> Plan:
    """Compute how to take out what `plan` puts in; nothing is written.

    There is no record of what was applied. So lines count as the fix's exactly if they are, byte for byte,
    what the fix writes, and the result is given out only if it is a tree that could be fixed again. There are
    no changes where the fix is not there, or is NeMo RL's own.

    Raises:
        InvalidInputError: As `survey`.
        UnsupportedTargetError: The fix is there in another form, or was edited since.
    """
    return _plan(path, ALL_RULES, State.FIXED, State.AFFECTED)


def _plan(path: Path, rules: Collection[Rule], old: State, new: State) -> Plan:
    report = survey(path)
    itself = report.state is State.FIXED and report.line is not Line.GATE
    if itself or report.state in (new, State.NOT_APPLICABLE):
        return Plan(report, ())
    _refuse_other_forms(path, report)
    if old is State.FIXED and not _as_written(report):
        raise UnsupportedTargetError(
            f"cannot take the fix out of {path}",
            found="lines that differ from what `apply` writes: they were edited since, or made otherwise",
            advice="take the fix out by hand or with git; nothing was changed",
        )
    before = report.tree.sources
    sources = {name: _edited(source, report, rules, old) for name, source in before.items()}
    after = examine(replace(report.tree, sources=sources))
    if after.state is not new:
        # A mistake of ours, which does not reach the tree.
        raise _refusal(path, f"a tree that would be {after.state} afterwards ({after.detail})", report)
    changes = [(source, sources[name]) for name, source in before.items() if sources[name] != source]
    return Plan(report, tuple(reversed(changes) if new is State.FIXED else changes))


def _refuse_other_forms(path: Path, report: TreeReport) -> None:
    if report.state is State.UNKNOWN:
        raise _refusal(path, report.detail, report)
    if report.line is not Line.GATE:
        raise _refusal(path, f"the defect {report.detail}", report)
    for source in report.tree.sources.values():
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


def _edited(source: Source, report: TreeReport, rules: Collection[Rule], state: State) -> Source:
    """A file with the text of each site put in where that is affected, or taken out where it is fixed."""
    sites = [site for site in report.sites if site.file == source.name and site.state is state]
    places = {place for site in sites if site.rule in rules for place in site.places}
    text = source.text
    # From the end, so that the offsets of the others stay true.
    for place in sorted(places, key=attrgetter("at"), reverse=True):
        text = place.put_into(text) if state is State.AFFECTED else place.taken_from(text)
    return replace(source, text=text)


def _as_written(report: TreeReport) -> bool:
    """Whether all that there is of the fix, what is optional included, is what the fix writes."""
    fixed = [site for site in report.sites if site.state is State.FIXED]
    return all(site.state is not State.UNKNOWN for site in report.sites) and all(
        place.is_in(report.tree.sources[site.file].text) for site in fixed for place in site.places
    )


def _file_patch(old: Source, new: Source, folder: bytes) -> bytes:
    name = folder + old.name.encode()
    # A tab ends a name that has a space in it, as in git's own patches.
    end = b"\t" if b" " in name else b""
    head = b"diff --git a/%s b/%s\n" % (name, name)
    # Lines as git counts them: a carriage return belongs to its line.
    lines = list(io.BytesIO(old.raw)), list(io.BytesIO(new.raw))
    body = difflib.diff_bytes(difflib.unified_diff, *lines, b"a/" + name + end, b"b/" + name + end)
    return head + b"".join(line if line.endswith(b"\n") else line + _NO_NEWLINE for line in body)


def write(changes: Collection[Change]) -> None:
    """Write changed files, all or none.

    Each file is replaced in one step by a complete new one beside it, with its mode. If that fails, those
    that were replaced already get their old contents back, the last one first. A signal to end the process
    comes when all is done.

    Raises:
        InvalidInputError: A file cannot be written, or is not any more what the plan was made for.
    """
    with contextlib.ExitStack() as made:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        made.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        target = Path()
        try:
            staged = []
            for old, new in changes:
                # Within the tree a symlink is written through; reading has refused those that lead out.
                target = old.path.resolve()
                staged.append((target, old.raw, *_staged(made, target, old, new)))
            with contextlib.ExitStack() as undo:
                for target, raw, old_file, new_file in staged:
                    if target.read_bytes() != raw:
                        raise InvalidInputError(
                            f"{target} cannot be written",
                            found="it was changed by someone else in the meantime",
                            advice="run the command again; nothing was changed",
                        )
                    undo.callback(old_file.replace, target)
                    new_file.replace(target)
                undo.pop_all()
        except OSError as error:
            raise InvalidInputError(
                f"{target} cannot be written",
                found=error.strerror or str(error),
                advice="make it and its folder writable; nothing was changed",
            ) from None
        # So that the renames outlast a power cut, where the file system can.
        for folder in {target.parent for target, *_ in staged}:
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY)
                made.callback(os.close, handle)
                os.fsync(handle)


def _staged(made: contextlib.ExitStack, target: Path, old: Source, new: Source) -> tuple[Path, Path]:
    """Beside the target a copy of the old file to go back to, and a complete new one."""
    status = target.stat()
    # Root may write to anything, and a folder that is writable allows a replacement of a read-only file;
    # who made it read-only meant something by it.
    if not status.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise PermissionError("the file is read-only")
    return _copy(made, target, old.raw, status), _copy(made, target, new.raw, status)


def _copy(made: contextlib.ExitStack, target: Path, raw: bytes, status: os.stat_result) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    path = Path(name)
    made.callback(path.unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
        file.flush()
        with contextlib.suppress(PermissionError):
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
        os.fsync(file.fileno())
    return path
