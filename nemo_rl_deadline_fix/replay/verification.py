"""Play the story on a target twice, as it is and with the fix, and say what that comes to."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_rl_deadline_fix import installing, targets
from nemo_rl_deadline_fix.errors import DeadlineFixError, UnsupportedTargetError
from nemo_rl_deadline_fix.installing import State
from nemo_rl_deadline_fix.registry import logger
from nemo_rl_deadline_fix.replay import subjects
from nemo_rl_deadline_fix.replay.clock import VirtualTime
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.report import Verification
from nemo_rl_deadline_fix.replay.story import replay
from nemo_rl_deadline_fix.replay.subjects import Subject, not_replayable
from nemo_rl_deadline_fix.shapes import Shape, classify


def of_embedded(parameters: Parameters) -> Verification:
    """Verify the fix on the embedded model."""
    return _verify(subjects.embedded(), parameters)


def of_checkout(path: Path, parameters: Parameters) -> Verification:
    """Verify the fix on the real classes of a NeMo RL checkout, which is read and not changed.

    Raises:
        InvalidInputError: The path is no checkout, or a file cannot be read.
        UnsupportedTargetError: The code has a shape that cannot be replayed.
    """
    from nemo_rl_deadline_fix import source

    tree = source.survey(path)
    if tree.state is source.State.NOT_APPLICABLE:
        found = "this tree has no Gym snapshot code"
        return Verification("checkout", str(tree.root), (), parameters, found=found)
    return _verify(subject_of(path), parameters)


def of_installed(parameters: Parameters) -> Verification:
    """Verify the fix on the NeMo RL that Python can import, through `install()`.

    Raises:
        UnsupportedTargetError: NeMo RL cannot be imported, or has an unknown shape.
    """
    controller, _ = _import()
    installing.uninstall()
    state = installing.status()
    if state.state is State.NOT_APPLICABLE:
        found = state.targets[0].detail
        return Verification("installed", str(controller.__file__), (), parameters, found=found)
    with installed_subject() as subject:
        before, after = _play(subject, parameters), None
        if not has_fix(subject):
            installing.install()
            try:
                after = _play(subject, parameters)
            finally:
                installing.uninstall()
        return Verification("installed", subject.path, (), parameters, before, after)


def subject_of(path: Path) -> Subject:
    """The real classes of a NeMo RL checkout.

    Raises:
        InvalidInputError: The path is no checkout, or a file cannot be read.
        UnsupportedTargetError: There are no such classes, or they cannot be run by themselves.
    """
    from nemo_rl_deadline_fix import source
    from nemo_rl_deadline_fix.replay import load

    tree = source.survey(path)
    if tree.controller is None or tree.manager is None:
        raise not_replayable(str(path), "one of the two files alone")
    return load.subject(tree.root, tree.controller, tree.manager)


@contextmanager
def installed_subject() -> Iterator[Subject]:
    """The classes of the NeMo RL that Python can import, on the story's clock for the block's length.

    Raises:
        UnsupportedTargetError: NeMo RL cannot be imported, or lacks what the story needs.
    """
    controller, manager = _import()
    try:
        subject = subjects.installed(controller, manager)
    except AttributeError as error:
        raise not_replayable(str(controller.__file__), str(error)) from error
    with _replayable(controller):
        yield subject


def has_fix(subject: Subject) -> bool:
    """Whether a subject has the fix in its own code.

    Raises:
        UnsupportedTargetError: It has an unknown shape.
    """
    finding = classify(subject.controller, subject.registry)
    if finding.shape in (Shape.UNSUPPORTED, Shape.NOT_APPLICABLE):
        raise not_replayable(subject.path, finding.found)
    return finding.shape is Shape.ALREADY_FIXED


def _import() -> tuple[ModuleType, ModuleType]:
    try:
        return (
            importlib.import_module(targets.CONTROLLER_MODULE),
            importlib.import_module(targets.MANAGER_MODULE),
        )
    except Exception as error:
        raise UnsupportedTargetError(
            f"cannot import {targets.CONTROLLER_MODULE}",
            found=f"{type(error).__name__}: {error}",
            supported="a NeMo RL installed in this Python environment",
            advice="run this in NeMo RL's environment, or use --rl PATH on its checkout",
        ) from error


def _verify(subject: Subject, parameters: Parameters) -> Verification:
    fixed = None if has_fix(subject) else subjects.fixed(subject)
    before = _play(subject, parameters)
    after = _play(fixed, parameters) if fixed else None
    return Verification(subject.kind, subject.path, subject.files, parameters, before, after)


def _play(subject: Subject, parameters: Parameters) -> Replay:
    # The story's own timeline says what the log would, in virtual seconds.
    with _silent(logger):
        try:
            return replay(subject, parameters)
        except DeadlineFixError:
            raise
        except Exception as error:
            raise not_replayable(subject.path, f"{type(error).__name__}: {error}") from error


@contextmanager
def _silent(log: logging.Logger) -> Iterator[None]:
    log.disabled, before = True, log.disabled
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _replayable(module: ModuleType) -> Iterator[None]:
    """Let the installed controller's methods run on the story's clock and on the story's results."""
    from nemo_rl_deadline_fix.replay.load import StandIn

    stand_ins: dict[str, Any] = {"time": VirtualTime}
    for name in (
        "GymCheckpointPrepareResult",
        "GymCheckpointCommitResult",
        "validate_gym_checkpoint_manifests",
    ):
        stand_ins[name] = StandIn(name)
    before = {name: vars(module)[name] for name in stand_ins if name in vars(module)}
    vars(module).update({name: stand_ins[name] for name in before})
    try:
        yield
    finally:
        vars(module).update(before)
