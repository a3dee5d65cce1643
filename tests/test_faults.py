"""Every fault at every await of a Gym snapshot, on versions A, B and C of NeMo RL.

A case is a plan of ticks (turns of the snapshot pump), and a tick the calls that go wrong in it. Groups:
`once`, every fault at every call, and at every call that only a fault leads to; `twice`, the same again in
the next tick; `retry`, every fault in the tick after one that left the gate closed; `training`, the same as
once while a training pause holds the clocks, too.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
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
from tests.support.fixture_trees import SHAPES, Shape, applied_tree, edited, make_tree, pinned


@dataclass(frozen=True)
class Form:
    """Classes of one shape, and the way in which the fix is put on them.

    Attributes:
        shape: `embedded`, or one of the fixture trees.
        way: `wrapped` by the run-time fix, or `applied` to the source.
        shards: Number of Gym's shards.
    """

    shape: str
    way: str = "wrapped"
    shards: int = 1

    def __str__(self) -> str:
        return f"{self.shape}-{self.way}" + f"-{self.shards}-shards" * (self.shards > 1)

    @property
    def fixed(self) -> Subject:
        """The classes with the fix."""
        return subject_of(self.shape, self.way)

    @property
    def unfixed(self) -> Subject:
        """The classes with the defect."""
        return subject_of(self.shape)


ENDS = (Fault.RUNTIME_ERROR, Fault.HANG)
"""An error and a cancellation, where not every kind is tried."""

A, B, C, C2 = Form("A"), Form("B"), Form("C"), Form("C", shards=2)
CUTS = Form("prefix_cuts")
FORMS = (Form("embedded"), A, CUTS, B, C, C2, Form("A", "applied"), Form("prefix_cuts", "applied"))

NUMBER_OF_CASES = {A: 221, B: 865, C: 470, C2: 1271, CUTS: 453}


@dataclass(frozen=True)
class Case:
    """What goes wrong in the first ticks, whether training pauses meanwhile, and on how many shards."""

    plan: Plan
    training: bool = False
    shards: int = 1

    def __str__(self) -> str:
        ticks = ["+".join(f"{call}:{fault}" for call, fault in tick) for tick in self.plan]
        return f"{', then '.join(ticks)}{' while training pauses' * self.training}"

    def run(self, subject: Subject) -> faults.Run:
        """Take the snapshots."""
        return faults.play(subject, self.plan, training=self.training, shards=self.shards)


@functools.cache
def subject_of(shape: str, way: str = "unfixed") -> Subject:
    """The classes of the embedded model or of a fixture tree, as they are or with the fix put on some way."""
    if way == "wrapped":
        return subjects.fixed(subject_of(shape))
    if shape == "embedded":
        return subjects.embedded()
    make = {"unfixed": make_tree, "applied": applied_tree}[way]
    return _cut_out(make(_folder(), shape))


def _folder() -> Path:
    # The cases are found out on such trees, which is before any fixture could make a folder.
    folder = tempfile.mkdtemp(prefix="deadline-fix-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _cut_out(root: Path) -> Subject:
    return loading.load(root, root / targets.CONTROLLER_FILE, root / targets.MANAGER_FILE)


@functools.cache
def cases_of(subject: Subject, shards: int = 1, *, deep: bool = False) -> dict[str, tuple[Case, ...]]:
    """All cases by group, found out on classes with the defect.

    Args:
        subject: The classes.
        shards: Number of Gym's shards.
        deep: Whether every kind of fault is tried in every group, and several may meet in one tick.
    """
    one_each = faults.ticks(subject, pairs=Pairs.NONE, shards=shards)
    # What leaves the gate closed needs two faults in one tick: the snapshot's, and the abort's.
    ends = faults.ticks(subject, kinds=ENDS, shards=shards)
    once = faults.ticks(subject, pairs=Pairs.CROSSED, shards=shards) if deep else {*one_each, *ends}
    again = faults.ticks(subject, shards=shards) if deep else one_each
    kinds = tuple(Fault) if deep else ENDS
    return {
        "once": tuple(Case((tick,), shards=shards) for tick in once),
        # Not where the next tick has something pending to finish first, and makes another call.
        "twice": tuple(
            Case((tick, tick), shards=shards)
            for tick in again
            if not faults.play(subject, (tick, tick), shards=shards).unmet
        ),
        "retry": tuple(
            Case((first, then), shards=shards)
            for first in _closing(subject, ends, shards)
            for then in faults.ticks(subject, (first,), pairs=Pairs.NONE, kinds=kinds, shards=shards)
        ),
        "training": tuple(Case((tick,), training=True, shards=shards) for tick in again),
    }


def _closing(subject: Subject, ends: list[Tick], shards: int) -> list[Tick]:
    """Ticks that leave the gate closed: for each last call, one by an error and one by a cancellation."""
    found: dict[object, Tick] = {}
    for tick in ends:
        ended = faults.play(subject, (tick,), shards=shards).ticks[0]
        if not ended.gate_open:
            # Of two shards one is as good as the other.
            call = tick[-1][0].partition("#")[0]
            found.setdefault((call, tick[-1][1], ended.pending.partition("snapshot-")[0]), tick)
    return list(found.values())


def _follows(cases: tuple[Case, ...], fixed: Subject, unfixed: Subject | None) -> None:
    for case in cases:
        try:
            _follows_in(case, fixed, unfixed)
        except AssertionError as error:
            error.add_note(f"in this case: {case}")
            raise
    assert cases


def _follows_in(case: Case, fixed: Subject, unfixed: Subject | None) -> None:
    run = case.run(fixed)
    assert run.unmet == ()
    # At both ends of every await and after every tick: held exactly while the gate is closed, the clock of a
    # live deadline stands exactly then, and no task is left over; nor is a hold or a timer at the end.
    assert run.findings == ()
    assert run.recovered
    if not case.training:
        # What the rollout is given is what the gate was closed.
        assert run.fired_late == pytest.approx(run.closed_for, abs=0.0011)
    if unfixed is not None:
        # The results and exceptions, down to the objects that Gym answered and raised, the calls made of
        # Gym, and the time of each.
        assert (run.ticks, run.calls) == (case.run(unfixed).ticks, case.run(unfixed).calls)


@pytest.mark.parametrize(
    ("form", "group"),
    [(form, "once") for form in FORMS if form != C2]
    + [(form, "retry") for form in (A, B, C)]
    + [(A, "twice"), (A, "training")],
    ids=str,
)
def test_the_clocks_follow_the_gate(form: Form, group: str) -> None:
    """Whatever goes wrong, the hold is what the gate says, and nobody but the clocks notices the fix."""
    _follows(cases_of(form.unfixed, form.shards)[group], form.fixed, form.unfixed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "group"),
    [
        (form, group)
        for form in FORMS
        for group in ("once", "twice", "retry", "training")
        if form not in (B, C2)
    ]
    + [(B, "once"), (C2, "once"), (C2, "retry")],
    ids=str,
)
def test_the_clocks_follow_the_gate_where_more_goes_wrong(form: Form, group: str) -> None:
    """The same where faults of two kinds meet in one tick, and twice."""
    _follows(cases_of(form.unfixed, form.shards, deep=True)[group], form.fixed, form.unfixed)


def test_the_clocks_follow_the_gate_on_a_target(target: Target) -> None:
    """The same on what the suite is run on, with the cases that its own code has."""
    for cases in cases_of(target.before or target.after).values():
        _follows(cases, target.after, target.before)


@pytest.mark.parametrize("way", ["wrapped", "applied"])
@pytest.mark.parametrize("shape", sorted(set(SHAPES) - {"pinned", "prefix_cuts", "B", "C"}))
def test_the_clocks_follow_the_gate_in_other_shapes(shape: str, way: str) -> None:
    """Code that does the same in other words meets an error and a cancellation at each await as well."""
    ticks = faults.ticks(subject_of(shape), kinds=(Fault.RUNTIME_ERROR, Fault.HANG))

    _follows(tuple(Case((tick,)) for tick in ticks), subject_of(shape, way), subject_of(shape))


@pytest.mark.parametrize("form", [Form("embedded"), A, CUTS, B, C], ids=str)
def test_without_the_fix_every_case_has_a_finding(form: Form) -> None:
    """What the cases look at does go wrong as long as nobody holds the clocks."""
    for case in cases_of(form.unfixed, form.shards)["once"]:
        run = case.run(form.unfixed)
        assert run.findings != ()
        assert run.fired_late == pytest.approx(0.0, abs=0.0011)


@pytest.mark.parametrize("form", [form for form in FORMS if form != C], ids=str)
def test_every_await_in_the_source_has_been_gone_through(form: Form) -> None:
    """The calls that go wrong are all the awaits that the methods' source has, and no others."""
    gone_through = _gone_through(form)

    missed = sorted(faults.awaits(form.fixed) - gone_through)

    assert gone_through < faults.awaits(form.fixed) if missed else gone_through == faults.awaits(form.fixed)
    # Version C fences the engine last before it sends the prepare, so that nothing can fail in between.
    assert [name for name, _, _ in missed] == ([targets.PREPARE] if form.shape == "C" else [])


def test_an_await_that_no_case_goes_through_is_noticed() -> None:
    """A new await in a later NeMo RL that is no call of Gym, an engine or a thread does not go unseen."""
    new = (
        "            prepared = True\n",
        "            prepared = True\n            await asyncio.sleep(0)\n",
    )
    subject = _cut_out(make_tree(_folder(), Shape(made=(new,))))
    gone_through = {site for tick in faults.ticks(subject) for site in faults.play(subject, (tick,)).sites}

    (missed,) = faults.awaits(subject) - gone_through
    name, line, _ = missed
    text = edited(pinned(targets.CONTROLLER_FILE), new)
    assert (name, text.splitlines()[line - 1].strip()) == (targets.PREPARE, "await asyncio.sleep(0)")


def _gone_through(form: Form) -> set[Site]:
    shards = (form.shards, 1)
    return {
        site
        for number in shards
        for tick in faults.ticks(form.fixed, kinds=ENDS, shards=number)
        for site in faults.play(form.fixed, (tick,), shards=number).sites
    }


@pytest.mark.slow
def test_the_number_of_cases() -> None:
    """A case that is no longer found, or no longer asked for, does not go unseen."""
    counted = {
        form: sum(len(cases) for cases in cases_of(form.unfixed, form.shards, deep=True).values())
        for form in NUMBER_OF_CASES
    }
    assert counted == NUMBER_OF_CASES


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("form", [form for form in FORMS if form.shards == 1], ids=str)
def test_the_story_is_one_and_the_same_in_every_form(form: Form, overlap: Overlap) -> None:
    """No stall, nothing held at the end, and one timeline, whichever way the fix was put on."""
    run = simulation.run(form.fixed, Parameters(overlap=overlap))

    assert not run.stalls
    assert run.holders_left == ()
    assert _told(run) == _told(simulation.run(A.fixed, Parameters(overlap=overlap)))
    assert simulation.run(form.unfixed, Parameters(overlap=overlap)).stalls


def _told(run: Replay) -> tuple[object, ...]:
    # What happens at one time may take more turns of the loop in one version than in another.
    events = sorted((event.at, event.who, event.what) for event in run.events)
    return events, run.snapshots, run.attempts, run.bodies_started, run.bodies_finished
