"""Simulate a target in each form: as it is, and with the fix put on it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.errors import DeadlineFixError, UnsupportedTargetError
from nemo_rl_deadline_fix.observing import logger
from nemo_rl_deadline_fix.replay import simulation, subjects
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.subjects import Subject, cannot_simulate
from nemo_rl_deadline_fix.replay.verdict import Form, Verdict, Verification

if TYPE_CHECKING:
    from nemo_rl_deadline_fix.source import TreeReport


def of_embedded(parameters: Parameters) -> Verification:
    """Verify the fix on the embedded model."""
    subject = subjects.embedded()
    runs = {
        Form.AS_IS: _simulate(subject, parameters),
        Form.CLOCKS: _simulate(subjects.fixed(subject), parameters),
    }
    return Verification(subject.kind, subject.path, parameters, runs=runs)


def of_checkout(path: Path, parameters: Parameters) -> Verification:
    """Verify the fix on the real classes of a NeMo RL checkout, which is read and not changed.

    Raises:
        InvalidInputError: The path is no checkout, or a file cannot be read.
        UnsupportedTargetError: The code cannot be simulated.
    """
    from nemo_rl_deadline_fix.source import Line, survey

    tree = survey(path)
    if tree.line is not Line.GATE:
        return _by_survey("checkout", tree, parameters)
    return _verify(subject_of(path), parameters, lambda subject: nullcontext(subjects.fixed(subject)))


def of_installed(parameters: Parameters) -> Verification:
    """Verify the fix on the NeMo RL that Python can import, through `install()`.

    Raises:
        UnsupportedTargetError: NeMo RL cannot be imported, or cannot be simulated.
    """
    from nemo_rl_deadline_fix import installing
    from nemo_rl_deadline_fix.source import Line, survey

    tree = survey(_installed_package())
    if tree.line is not Line.GATE:
        return _by_survey("installed", tree, parameters)

    @contextmanager
    def install(subject: Subject) -> Iterator[Subject]:
        installing.install()
        try:
            yield subject
        finally:
            installing.uninstall()

    installing.uninstall()
    with installed_subject() as subject:
        return _verify(subject, parameters, install)


def subject_of(path: Path) -> Subject:
    """The real classes of a NeMo RL checkout.

    Raises:
        InvalidInputError: The path is no checkout, or a file cannot be read.
        UnsupportedTargetError: There are no such classes, or they cannot be run by themselves.
    """
    from nemo_rl_deadline_fix.replay import loading
    from nemo_rl_deadline_fix.source import survey

    tree = survey(path).tree
    if tree.controller is None or tree.manager is None:
        raise cannot_simulate(str(path), "one of the two files alone")
    return loading.load(tree.root, tree.controller.path, tree.manager.path)


@contextmanager
def installed_subject() -> Iterator[Subject]:
    """The classes of the NeMo RL that Python can import, without their cluster for the block's length.

    Raises:
        UnsupportedTargetError: NeMo RL cannot be imported, or lacks what the simulation needs.
    """
    from nemo_rl_deadline_fix.replay import loading

    controller, manager = _import(targets.CONTROLLER_MODULE), _import(targets.MANAGER_MODULE)
    with loading.stand_ins(controller) as initialise:
        try:
            subject = subjects.installed(controller, manager, initialise)
        except AttributeError as error:
            raise cannot_simulate(str(controller.__file__), error) from error
        yield subject


def refusal(subject: Subject) -> str | None:
    """Why the fix is not put on a subject: "" where it has its own, None where nothing is against it."""
    from nemo_rl_deadline_fix.shapes import Shape, classify

    finding = classify(subject.controller, subject.registry)
    if finding.shape is Shape.AFFECTED:
        return None
    return "" if finding.shape is Shape.ALREADY_FIXED else finding.found


def _verify(
    subject: Subject,
    parameters: Parameters,
    with_fix: Callable[[Subject], AbstractContextManager[Subject]],
) -> Verification:
    runs = {Form.AS_IS: _simulate(subject, parameters)}
    why_not = refusal(subject)
    if why_not is None:
        with with_fix(subject) as fixed:
            runs[Form.CLOCKS] = _simulate(fixed, parameters)
    # Code that does not stall may be fixed, or the numbers stall nothing. The embedded model has no shards.
    stalls = why_not is None or _simulate(subjects.embedded(), replace(parameters, shards=1)).stalls
    return Verification(
        subject.kind,
        subject.path,
        parameters,
        files=subject.files,
        runs=runs,
        stalls_elsewhere=stalls,
        detail=why_not or "",
    )


def _by_survey(kind: str, tree: TreeReport, parameters: Parameters) -> Verification:
    judged = {
        "not_applicable": Verdict.NOT_APPLICABLE,
        "fixed": Verdict.ALREADY_FIXED,
        "unknown": Verdict.UNDECIDED,
    }.get(tree.state.value, Verdict.OTHER_FORM)
    return Verification(kind, str(tree.tree.root), parameters, judged=judged, detail=tree.detail.rstrip("."))


def _simulate(subject: Subject, parameters: Parameters) -> Replay:
    # The simulation's own timeline says what the log would, in virtual seconds.
    with _silent(logger), _folder(subject) as folder:
        try:
            return simulation.run(subject, parameters, folder)
        except DeadlineFixError:
            raise
        except Exception as error:
            raise cannot_simulate(subject.path, error) from error


@contextmanager
def _silent(log: logging.Logger) -> Iterator[None]:
    log.disabled, before = True, log.disabled
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _folder(subject: Subject) -> Iterator[Path]:
    """Where a snapshot may make folders; our own model makes none."""
    if subject.kind == "embedded":
        yield Path()
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="nemo-rl-deadline-fix-") as folder:
        yield Path(folder)


def _installed_package() -> Path:
    spec = importlib.util.find_spec("nemo_rl")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise _not_importable("nemo_rl", "No module named 'nemo_rl'")
    return Path(folders[0])


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _not_importable(name, f"{type(error).__name__}: {error}") from error


def _not_importable(name: str, found: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        f"cannot import {name}",
        found=found,
        supported="a NeMo RL installed in this Python environment",
        advice="run this in NeMo RL's environment, or use --rl PATH on its checkout",
    )
