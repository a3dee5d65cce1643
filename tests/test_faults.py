"""Every fault at every await of a Gym snapshot, on every form of the fix.

`pytest tests/test_faults.py --collect-only -q` prints the table of cases. A case is named after its form,
its group and its ticks (turns of the snapshot pump), and a tick after the calls that go wrong in it.
Groups: `once`, every fault at every call, and at every call that only a fault leads to; `twice`, the same
again in the next tick; `retry`, every fault in the tick after one that left the gate closed; `training`,
the same as once while a training pause holds the clocks, too.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay import loading, simulation, subjects
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.subjects import Subject
from tests.conftest import Target
from tests.support import faults
from tests.support.await_sites import Site
from tests.support.faults import Fault, Pairs, Plan, Tick
from tests.support.fixture_trees import SHAPES, Shape, applied_tree, edited, make_tree, patched_tree, pinned

FORMS = (
    "embedded-wrapped",
    *(f"{shape}-{way}" for shape in ("pinned", "prefix_cuts") for way in ("wrapped", "applied", "patched")),
)

NUMBER_OF_CASES = {"embedded": 179, "pinned": 221, "prefix_cuts": 453}


@dataclass(frozen=True)
class Case:
    """What goes wrong in the first ticks, and the name of the group that asks for it."""

    group: str
    plan: Plan

    def __str__(self) -> str:
        ticks = ["+".join(f"{call}:{fault}" for call, fault in tick) for tick in self.plan]
        return "-".join([self.group, *ticks])

    def run(self, subject: Subject) -> faults.Run:
        """Play it."""
        return faults.play(subject, self.plan, training=self.group == "training")


@functools.cache
def subject_of(shape: str, way: str = "unfixed") -> Subject:
    """The classes of the embedded model or of a fixture tree, as they are or with the fix put on some way."""
    if way == "wrapped":
        return subjects.fixed(subject_of(shape))
    if shape == "embedded":
        return subjects.embedded()
    make = {"unfixed": make_tree, "applied": applied_tree, "patched": patched_tree}[way]
    return _cut_out(make(_folder(), shape))


def _folder() -> Path:
    # The cases are found out on such trees, which is before any fixture could make a folder.
    folder = tempfile.mkdtemp(prefix="deadline-fix-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _cut_out(root: Path) -> Subject:
    return loading.load(root, root / targets.CONTROLLER_FILE, root / targets.MANAGER_FILE)


@functools.cache
def cases_of(subject: Subject) -> tuple[Case, ...]:
    """All cases, found out on classes with the defect."""
    alike = faults.ticks(subject)
    cases = [Case("once", (tick,)) for tick in faults.ticks(subject, pairs=Pairs.CROSSED)]
    cases += [Case("twice", (tick, tick)) for tick in alike]
    for first in _closing(subject, alike):
        cases += [Case("retry", (first, then)) for then in faults.ticks(subject, (first,), pairs=Pairs.NONE)]
    cases += [Case("training", (tick,)) for tick in alike]
    return tuple(cases)


def _closing(subject: Subject, alike: list[Tick]) -> list[Tick]:
    """Ticks that leave the gate closed: for each last call, one by an error and one by a cancellation."""
    found: dict[object, Tick] = {}
    for tick in alike:
        last, fault = tick[-1]
        ended = faults.play(subject, (tick,)).ticks[0]
        if not ended.gate_open and fault in (Fault.RUNTIME_ERROR, Fault.HANG):
            found.setdefault((last, fault, ended.pending), tick)
    return list(found.values())


def _cases_of_form(form: str) -> tuple[Case, ...]:
    return cases_of(subject_of(form.partition("-")[0]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make every case a test of its own."""
    if "case" in metafunc.fixturenames:
        cases = [(form, case) for form in FORMS for case in _cases_of_form(form)]
        metafunc.parametrize(("form", "case"), cases, ids=[f"{form}-{case}" for form, case in cases])


@pytest.fixture(autouse=True)
def _switched_off() -> Iterator[None]:
    """Nothing is switched on here, and a thousand tests would each pay for looking."""
    return


def _follows(case: Case, fixed: Subject, unfixed: Subject | None) -> None:
    run = case.run(fixed)
    assert run.unmet == ()
    # At both ends of every await and after every tick: held exactly while the gate is closed, the clock of a
    # live deadline stands exactly then, and no task is left over; nor is a hold or a timer at the end.
    assert run.findings == ()
    assert run.recovered
    if case.group != "training":
        # What the rollout is given is what the gate was closed.
        assert run.fired_late == pytest.approx(run.closed_for, abs=0.0011)
    if unfixed is not None:
        # The results and exceptions, down to the objects that Gym answered and raised, the calls made of
        # Gym, and the time of each.
        assert (run.ticks, run.calls) == (case.run(unfixed).ticks, case.run(unfixed).calls)


def test_the_clocks_follow_the_gate(form: str, case: Case) -> None:
    """Whatever goes wrong, the hold is what the gate says, and nobody but the clocks notices the fix."""
    shape, way = form.split("-")
    _follows(case, subject_of(shape, way), subject_of(shape))


def test_the_clocks_follow_the_gate_on_a_target(target: Target) -> None:
    """The same on what the suite is run on, with the cases that its own code has."""
    for case in cases_of(target.before or target.after):
        try:
            _follows(case, target.after, target.before)
        except AssertionError as error:
            error.add_note(f"in case {case}")
            raise


@pytest.mark.parametrize("way", ["wrapped", "applied"])
@pytest.mark.parametrize("shape", sorted(set(SHAPES) - {"pinned", "prefix_cuts", "C"}))
def test_the_clocks_follow_the_gate_in_other_shapes(shape: str, way: str) -> None:
    """Code that does the same in other words meets an error and a cancellation at each await as well."""
    ticks = faults.ticks(subject_of(shape), kinds=(Fault.RUNTIME_ERROR, Fault.HANG))
    assert ticks
    for tick in ticks:
        _follows(Case("once", (tick,)), subject_of(shape, way), subject_of(shape))


@pytest.mark.parametrize("shape", ["embedded", "pinned", "prefix_cuts"])
def test_without_the_fix_every_case_has_a_finding(shape: str) -> None:
    """What the cases look at does go wrong as long as nobody holds the clocks."""
    for case in cases_of(subject_of(shape)):
        run = case.run(subject_of(shape))
        assert run.findings != ()
        assert run.fired_late == pytest.approx(0.0, abs=0.0011) or case.group == "training"


@pytest.mark.parametrize("form", FORMS)
def test_every_await_in_the_source_has_been_gone_through(form: str) -> None:
    """The calls that go wrong are all the awaits that the methods' source has, and no others."""
    subject = subject_of(*form.split("-"))

    assert _gone_through(subject) == faults.awaits(subject) != frozenset()


def test_an_await_that_no_case_goes_through_is_noticed() -> None:
    """A new await in a later NeMo RL that is no call of Gym, an engine or a thread does not go unseen."""
    new = (
        "            prepared = True\n",
        "            prepared = True\n            await asyncio.sleep(0)\n",
    )
    subject = _cut_out(make_tree(_folder(), Shape(made=(new,))))

    (missed,) = faults.awaits(subject) - _gone_through(subject)
    name, line, _ = missed
    text = edited(pinned(targets.CONTROLLER_FILE), new)
    assert (name, text.splitlines()[line - 1].strip()) == (targets.PREPARE, "await asyncio.sleep(0)")


def _gone_through(subject: Subject) -> set[Site]:
    return {site for tick in faults.ticks(subject) for site in faults.play(subject, (tick,)).sites}


def test_the_number_of_cases() -> None:
    """A case that is no longer found, or no longer asked for, does not go unseen."""
    assert {shape: len(cases_of(subject_of(shape))) for shape in NUMBER_OF_CASES} == NUMBER_OF_CASES
    assert sum(len(_cases_of_form(form)) for form in FORMS) == 2201


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("form", FORMS)
def test_the_story_is_one_and_the_same_in_every_form(form: str, overlap: Overlap) -> None:
    """No stall, nothing held at the end, and one timeline, whichever way the fix was put on."""
    shape, way = form.split("-")
    run = simulation.run(subject_of(shape, way), Parameters(overlap=overlap))

    assert not run.stalls
    assert run.holders_left == ()
    wrapped = simulation.run(subject_of("pinned", "wrapped"), Parameters(overlap=overlap))
    assert _told(run) == _told(wrapped)
    assert simulation.run(subject_of(shape), Parameters(overlap=overlap)).stalls


def _told(run: Replay) -> tuple[object, ...]:
    return run.events, run.snapshots, run.attempts, run.bodies_started, run.bodies_finished
