"""Simulate a target in each form: as it is, and with the fix put on it."""

from __future__ import annotations

import importlib.util
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.errors import DeadlineFixError, InvalidInputError, UnsupportedTargetError
from nemo_rl_deadline_fix.observing import logger
from nemo_rl_deadline_fix.replay import simulation, subjects
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.subjects import Subject, cannot_simulate
from nemo_rl_deadline_fix.replay.verdict import Form, Verdict, Verification
from nemo_rl_deadline_fix.shapes import State, classify

if TYPE_CHECKING:
    from nemo_rl_deadline_fix.source.reading import Tree


def of_embedded(parameters: Parameters) -> Verification:
    """Verify the fix on the embedded model."""
    return _verify("embedded", subjects.embedded(), parameters)


def of_checkout(path: Path, parameters: Parameters, kind: str = "checkout") -> Verification:
    """Verify the fix on the real classes of a NeMo RL, whose files are read and not changed.

    Args:
        path: A checkout, or an installed `nemo_rl`.
        parameters: The numbers.
        kind: What the result calls it.

    Raises:
        InvalidInputError: There is no NeMo RL, or a file cannot be read.
        UnsupportedTargetError: The code cannot be simulated.
    """
    from nemo_rl_deadline_fix.source import Line, survey

    report = survey(path)
    if report.line is Line.GATE:
        subject = _subject(report.tree)
        if parameters.fail_row and hasattr(subject.controller, targets.GYM_ACTORS):
            found = "a version that reads every row of a group before it raises a row's error"
            raise _cannot_play("--fail-row", report.tree.root, found)
        return _verify(kind, subject, parameters)
    for road, wanted in (("--fail-row", parameters.fail_row), ("--hang", parameters.hang)):
        if wanted:
            raise _cannot_play(road, report.tree.root, report.detail.rstrip("."))
    judged = {
        "not_applicable": Verdict.NOT_APPLICABLE,
        "fixed": Verdict.ALREADY_FIXED,
        "unknown": Verdict.UNDECIDED,
    }.get(report.state.value, Verdict.OTHER_FORM)
    detail = report.detail.rstrip(".")
    return Verification(kind, str(report.tree.root), parameters, judged=judged, detail=detail)


def installed_package() -> Path:
    """The folder of the `nemo_rl` that Python can import; it is not imported.

    Raises:
        UnsupportedTargetError: There is none.
    """
    spec = importlib.util.find_spec("nemo_rl")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedTargetError(
            "cannot import nemo_rl",
            found="No module named 'nemo_rl'",
            supported="a NeMo RL installed in this Python environment",
            advice="run this in NeMo RL's environment, or use --rl PATH on its checkout",
        )
    return Path(spec.submodule_search_locations[0])


def subject_of(path: Path) -> Subject:
    """The real classes of a NeMo RL checkout, or of an installed `nemo_rl`.

    Raises:
        InvalidInputError: The path is no NeMo RL, or a file cannot be read.
        UnsupportedTargetError: There are no such classes, or they cannot be run by themselves.
    """
    from nemo_rl_deadline_fix.source import survey

    return _subject(survey(path).tree)


def refusal(subject: Subject) -> str | None:
    """Why the fix is not put on a subject: "" where it has its own, None where nothing is against it."""
    finding = classify(subject.controller, subject.registry)
    if finding.state is State.UNPATCHED:
        return None
    return "" if finding.state is State.ALREADY_FIXED else finding.found


def _cannot_play(what: str, path: object, found: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot play {what} on {path}",
        found=found,
        supported="NeMo RL's versions that have this stall, as pin 98b3b6c, and the embedded model",
        advice=f"leave {what} out, or leave the target out and see it on the embedded model",
    )


def _subject(tree: Tree) -> Subject:
    from nemo_rl_deadline_fix.replay import loading

    if tree.controller is None or tree.manager is None:
        raise cannot_simulate(str(tree.root), "one of the two files alone")
    return loading.load(tree.root, tree.controller.path, tree.manager.path)


def _verify(kind: str, subject: Subject, parameters: Parameters) -> Verification:
    before = _simulate(subject, parameters)
    runs, why_not = {Form.AS_IS: before}, refusal(subject)
    if why_not is None:
        runs[Form.CLOCKS] = _simulate(subjects.fixed(subject), parameters)
        if runs[Form.CLOCKS].stalls:
            # Another road to the same stall, on which clocks alone are no help.
            try:
                runs[Form.ACKNOWLEDGE] = _simulate(subjects.fixed(subject, acknowledge=True), parameters)
            except UnsupportedTargetError as error:
                raise _cannot_play("the acknowledging form", subject.path, error.found) from error
        stalls = before.stalls
    else:
        # Code that does not stall may be fixed, or the numbers stall nothing. Our model has no shards.
        stalls = bool(before.trouble) or _simulate(subjects.embedded(), replace(parameters, shards=1)).stalls
    return Verification(
        kind, subject.path, parameters, subject.files, runs, stalls=stalls, detail=why_not or ""
    )


def _simulate(subject: Subject, parameters: Parameters) -> Replay:
    # The simulation's own timeline says what the log would, in virtual seconds.
    logger.disabled, before = True, logger.disabled
    # A checkout's snapshot may make folders; our own model makes none.
    folder = tempfile.TemporaryDirectory(prefix="nemo-rl-deadline-fix-") if subject.path else nullcontext("")
    try:
        with folder as path:
            return simulation.run(subject, parameters, Path(path))
    except DeadlineFixError:
        raise
    except Exception as error:
        raise cannot_simulate(subject.path, error) from error
    finally:
        logger.disabled = before
