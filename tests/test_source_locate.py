"""Every place of the fix is found by what the code does there, and its state told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_rl_deadline_fix.source.locate import Kind, Rule, State, TreeReport, survey
from tests.support.fixture_trees import (
    CLEAR,
    CONTROLLER,
    HOLD,
    LET_GO,
    MANAGER,
    SET,
    SHAPES,
    Replacement,
    edited,
    make_tree,
)

GATE = "self._gym_checkpoint_rollout_permitted"
BY_NAME = 'getattr(self, "_gym_checkpoint_rollout_permitted")'
START = "        self._gym_acknowledgements: list[Any] = []\n"
ACTOR = "    def _nemo_gym_checkpoint_actor"


def looked_at(folder: Path, *edits: Replacement, file: str = CONTROLLER, fixed: bool = False) -> TreeReport:
    """Survey a pinned tree in which some text of one file was replaced."""
    root = make_tree(folder / "tree", fixed=fixed)
    (root / file).write_text(edited((root / file).read_text(), *edits))
    return survey(root)


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_affected_before_and_fixed_after(tmp_path: Path, name: str) -> None:
    """The state follows the fix in every shape, for the tree and for each place."""
    before = survey(make_tree(tmp_path / "before", name))
    after = survey(make_tree(tmp_path / "after", name, fixed=True))
    assert before.state is State.AFFECTED
    assert after.state is State.FIXED
    for report, state in ((before, State.AFFECTED), (after, State.FIXED)):
        assert {site.state for site in report.sites if site.rule} == {state}
    rules = [site.rule for site in before.sites if site.rule]
    assert rules.count(Rule.DF001) == rules.count(Rule.DF002) == 2
    assert rules.count(Rule.DF004) == 1
    assert rules.count(Rule.DF003) == {"extra_reopen": 4, "C": 6}.get(name, 3)


def test_places_are_told_with_the_line_they_are_on(tmp_path: Path) -> None:
    """An editor that follows a place lands on the gate, the definition or the call."""
    root = make_tree(tmp_path)
    lines = {name: (root / name).read_text().splitlines() for name in (CONTROLLER, MANAGER)}
    signs = {
        Kind.CLOSE: CLEAR,
        Kind.REOPEN: SET,
        Kind.CALL: "_request_deadlines()",
        Kind.REARM: "reschedule(",
    }
    for site in survey(root).sites:
        name, _, line = site.where(root).rpartition(":")
        assert signs.get(site.kind, "def ") in lines[name][int(line) - 1]


@pytest.mark.parametrize("fixed", [False, True])
def test_calls_of_training_and_refit_are_information(tmp_path: Path, fixed: bool) -> None:
    """They alone are shown, argument-free as they are, and do not count for the tree."""
    report = survey(make_tree(tmp_path, "refit_suspends", fixed=fixed))
    calls = [site for site in report.sites if site.kind is Kind.CALL]
    assert [(site.name.rpartition(".")[2], site.found.rpartition(".")[2]) for site in calls] == [
        ("_train_chunk", "suspend_request_deadlines()"),
        ("_sync_weights", "suspend_request_deadlines()"),
        ("_sync_weights", "resume_request_deadlines()"),
    ]
    assert {site.state for site in calls} == {State.INFORMATION}
    assert not any(site.required for site in calls)


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        (CONTROLLER, (f"        {HOLD}\n", "")),
        (CONTROLLER, (f"\n                {LET_GO}\n", "\n")),
        (CONTROLLER, (f"        {SET}\n        {LET_GO}\n", f"        {SET}\n")),
        (
            MANAGER,
            ("        self._request_deadlines.resume(holder)", "        self._request_deadlines.resume()"),
        ),
    ],
    ids=["no hold", "failure keeps it", "release keeps it", "name is dropped"],
)
def test_a_place_that_lost_its_fix_is_missed(tmp_path: Path, file: str, edit: Replacement) -> None:
    """Any one missing place keeps the tree from counting as fixed, and is named."""
    report = looked_at(tmp_path, edit, file=file, fixed=True)
    assert report.state in (State.PARTLY_FIXED, State.UNKNOWN)
    (odd,) = [site for site in report.sites if site.required and site.state is not State.FIXED]
    assert odd.where(report.root) in report.detail
    assert odd.file == report.root / file


def test_df004_does_not_count_for_the_tree(tmp_path: Path) -> None:
    """A maintainer may drop it, so a tree without it is fixed."""
    edit = ("        self._remaining = max(self._remaining, 0.001)\n", "")
    report = looked_at(tmp_path, edit, file=MANAGER, fixed=True)
    assert report.state is State.FIXED
    (edge,) = [site for site in report.sites if site.rule is Rule.DF004]
    assert edge.state is State.AFFECTED


@pytest.mark.parametrize(
    "edits",
    [
        [(HOLD, HOLD.replace("(", "(holder="))],
        [(HOLD + "\n        " + CLEAR, CLEAR + "\n        " + HOLD)],
        [
            (HOLD, HOLD.replace('"gym_checkpoint"', "GYM")),
            ("@ray.remote", 'GYM = "gym_checkpoint"\n\n\n@ray.remote'),
        ],
        [
            (HOLD, "self._hold_clocks()"),
            (
                "    def _nemo_gym_checkpoint_actor",
                f"    def _hold_clocks(self) -> None:\n        {HOLD}\n\n    def _nemo_gym_checkpoint_actor",
            ),
        ],
        [(HOLD, 'self._rollout_manager._request_deadlines.suspend("gym_checkpoint")')],
        [
            (f"{CLEAR}\n        try:", f"{CLEAR}\n        try:\n            {HOLD}"),
            (f"        {HOLD}\n        {CLEAR}", f"        {CLEAR}"),
        ],
        [
            (
                "        prepared = False\n",
                "        manager = self._rollout_manager\n        prepared = False\n",
            ),
            (HOLD, HOLD.replace("self._rollout_manager", "manager")),
        ],
    ],
    ids=["keyword", "after the gate", "constant", "helper", "registry", "first in try", "alias"],
)
def test_a_fix_in_another_hand_is_recognized(tmp_path: Path, edits: list[Replacement]) -> None:
    """What counts is a named call in the gate's step, not how it is written."""
    assert looked_at(tmp_path, *edits, fixed=True).state is State.FIXED


@pytest.mark.parametrize(
    "body",
    [
        "        self._holds = {}\n        self.suspended = False\n",
        "        self.suspended = False\n        self._holds = {}\n",
    ],
)
def test_a_registry_with_other_holders_is_recognized(tmp_path: Path, body: str) -> None:
    """A registry that takes and uses a holder has names, whatever it keeps them in."""
    comment = "        # By name: one holder's resume must not end another one's pause.\n"
    edits = [
        (comment + "        self._holders: set[str] = set()\n        self.suspended = False\n", body),
        ("        self._holders.add(holder)\n", "        self._holds[holder] = True\n"),
        ("        self._holders.discard(holder)\n", "        self._holds.pop(holder, None)\n"),
        ("        if self._holders:\n", "        if self._holds:\n"),
    ]
    assert looked_at(tmp_path, *edits, file=MANAGER, fixed=True).state is State.FIXED


@pytest.mark.parametrize(
    "edits",
    [
        [
            (
                f"        {HOLD}\n        {CLEAR}",
                f"        {CLEAR}\n        await asyncio.sleep(0)\n        {HOLD}",
            )
        ],
        [(f"        {HOLD}\n", f"        {HOLD}\n        await asyncio.sleep(0)\n")],
        [(HOLD, HOLD.replace('"gym_checkpoint"', ""))],
        [(HOLD, f"if timeout_s:\n            {HOLD}")],
        [(HOLD, HOLD.replace('"gym_checkpoint"', '"engine"'))],
    ],
    ids=["await between", "await before", "shared name", "conditional", "shared name spelt out"],
)
def test_a_hold_outside_of_the_gates_step_does_not_count(tmp_path: Path, edits: list[Replacement]) -> None:
    """After an await, under a condition, or under training's name, the clocks are not held with the gate."""
    report = looked_at(tmp_path, *edits, fixed=True)
    assert report.state is State.PARTLY_FIXED
    (odd,) = [site for site in report.sites if site.required and site.state is State.AFFECTED]
    assert odd.kind is Kind.CLOSE


REFUSED: dict[str, tuple[str, list[Replacement], str]] = {
    "one-line if": (
        CONTROLLER,
        [(f"            else:\n                {SET}\n", f"            if not prepared: {SET}\n")],
        "stands on the line of its if",
    ),
    "two on a line": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        {CLEAR}; prepared = None")],
        "shares its line",
    ),
    "handed on": (
        CONTROLLER,
        [(f"        {CLEAR}", "        shut(self._gym_checkpoint_rollout_permitted)")],
        "is handed on",
    ),
    "bound method": (
        CONTROLLER,
        [(f"        {CLEAR}", "        shut = self._gym_checkpoint_rollout_permitted.clear\n        shut()")],
        "otherwise than as a statement",
    ),
    "replaced": (
        CONTROLLER,
        [(f"        {CLEAR}", "        self._gym_checkpoint_rollout_permitted = asyncio.Event()")],
        "is replaced",
    ),
    "in a loop over gates": (
        CONTROLLER,
        [
            (
                f"        {CLEAR}",
                "        for gate in (self._gym_checkpoint_rollout_permitted,):\n            gate.clear()",
            )
        ],
        "is kept under another name",
    ),
    "never closed": (CONTROLLER, [(f"        {CLEAR}\n", "")], "a statement that closes"),
    "another call": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        self._rollout_manager.stop_deadlines_for_gym()\n        {CLEAR}")],
        "stop_deadlines_for_gym",
    ),
    "count": (
        MANAGER,
        [("        if self.suspended:\n            return\n", "        self._holds += 1\n")],
        "does not begin with",
    ),
    "no flag": (
        MANAGER,
        [("        self.suspended = False\n\n    def add", "\n    def add")],
        "no `self.suspended",
    ),
    "another registry": (
        MANAGER,
        [("class RequestDeadlineRegistry:", "class DeadlineRegistry:")],
        "no class RequestDeadlineRegistry",
    ),
    "a manager that does more": (
        MANAGER,
        [
            (
                "        self._request_deadlines.suspend()\n",
                "        self._request_deadlines.suspend()\n        print()\n",
            )
        ],
        "that does more",
    ),
    "a holder without default": (
        MANAGER,
        [
            (
                "    def suspend_request_deadlines(self) ->",
                "    def suspend_request_deadlines(self, holder) ->",
            )
        ],
        "without one default",
    ),
    "positional only": (
        MANAGER,
        [("    def suspend_request_deadlines(self) ->", "    def suspend_request_deadlines(self, /) ->")],
        "of another kind",
    ),
    "async": (
        MANAGER,
        [("    def resume_request_deadlines(self) ->", "    async def resume_request_deadlines(self) ->")],
        "of another kind",
    ),
    "a holder that is not used": (
        MANAGER,
        [
            (
                "    def suspend_request_deadlines(self) ->",
                "    def suspend_request_deadlines(self, holder='') ->",
            )
        ],
        "that does more, or other",
    ),
    "a depth beside the flag": (
        MANAGER,
        [
            (
                "        if self.suspended:\n            return\n",
                "        if self.suspended:\n            self._depth += 1\n            return\n",
            )
        ],
        "does not begin with",
    ),
    "a depth before the flag falls": (
        MANAGER,
        [
            (
                "            return\n        self.suspended = False\n",
                "            return\n        self._depth -= 1\n        self.suspended = False\n",
            )
        ],
        "does not set self.suspended",
    ),
    "a word after the loop": (
        MANAGER,
        [("            deadline.resume()\n\n", "            deadline.resume()\n        print()\n\n")],
        "that does more",
    ),
    "some deadlines only": (
        MANAGER,
        [
            (
                "        self.suspended = True\n        for deadline in self._live:",
                "        self.suspended = True\n        for deadline in self._live - self._few:",
            )
        ],
        "that does more",
    ),
    "by getattr": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        {CLEAR}\n        {BY_NAME}.set()")],
        "in a string",
    ),
    "name in a constant": (
        CONTROLLER,
        [("@ray.remote", 'GATE = "_gym_checkpoint_rollout_permitted"\n\n\n@ray.remote')],
        "outside of any function",
    ),
    "in a list of gates": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        gates = [{GATE}]\n        gates[0].set()\n        {CLEAR}")],
        "is kept under another name",
    ),
    "given out": (
        CONTROLLER,
        [(ACTOR, f"    def gate(self) -> Any:\n        return {GATE}\n\n{ACTOR}")],
        "is kept under another name",
    ),
    "kept by __init__": (
        CONTROLLER,
        [(START, f"        self._gates = {{1: {GATE}}}\n{START}")],
        "is kept under another name",
    ),
    "closed by __init__": (CONTROLLER, [(START, f"        {CLEAR}\n{START}")], "is more than made and set"),
    "rebound": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        gate = {GATE}\n        gate = self._other\n        gate.clear()")],
        "is kept under another name",
    ),
    "walrus": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        (gate := {GATE}).clear()")],
        "is kept under another name",
    ),
    "a method of its own": (CONTROLLER, [(f"        {CLEAR}", f"        {GATE}.close()")], "is used"),
    "whose gate is not known": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        {CLEAR}\n        find()._gym_checkpoint_rollout_permitted.set()")],
        "no name of its own",
    ),
    "waits and opens": (
        CONTROLLER,
        [("                await gate.wait()\n", "                gate.set()\n")],
        "is kept under another name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_shape_that_is_not_understood_is_unknown(tmp_path: Path, name: str) -> None:
    """Nothing is guessed: the report says where, what was expected and what was found."""
    file, edits, found = REFUSED[name]
    report = looked_at(tmp_path, *edits, file=file)
    assert report.state is State.UNKNOWN
    assert "expected" in report.detail
    assert found in report.detail


def test_names_that_do_not_match_are_unknown(tmp_path: Path) -> None:
    """A resume under a name that nobody holds would leave the clocks stopped."""
    report = looked_at(tmp_path, (HOLD, HOLD.replace("gym_checkpoint", "gym")), fixed=True)
    assert report.state is State.UNKNOWN
    assert "held as 'gym' and released as 'gym_checkpoint'" in report.detail


def test_a_tree_without_the_feature_is_not_applicable(tmp_path: Path) -> None:
    """No gate and no snapshot methods: nothing to fix, even if deadlines can be paused."""
    root = make_tree(tmp_path)
    text = (
        "class SingleControllerActor:\n"
        "    def _switch_to_training(self):\n"
        "        self._rollout_permitted.clear()\n"
        "        self._rollout_manager.suspend_request_deadlines()\n"
    )
    (root / CONTROLLER).write_text(text)
    assert survey(root).state is State.NOT_APPLICABLE


def test_a_tree_without_the_controller_is_not_applicable(tmp_path: Path) -> None:
    """Older NeMo RL has no single controller."""
    root = make_tree(tmp_path)
    (root / CONTROLLER).unlink()
    report = survey(root)
    assert report.state is State.NOT_APPLICABLE
    assert report.controller is None


@pytest.mark.parametrize("name", ["_prepared_gym_checkpoint", "GymCheckpointCoordinator"])
@pytest.mark.parametrize("file", [CONTROLLER, MANAGER])
def test_snapshots_in_another_form_are_unknown(name: str, file: str, tmp_path: Path) -> None:
    """A tree that speaks of Gym snapshots is never one with nothing to fix."""
    root = make_tree(tmp_path)
    (root / CONTROLLER).write_text("class SingleControllerActor:\n    pass\n")
    with (root / file).open("a") as text:
        text.write(f"\n{name} = None\n")
    report = survey(root)
    assert report.state is State.UNKNOWN
    assert file in report.detail


def test_a_coordinator_outside_of_the_controller_is_unknown(tmp_path: Path) -> None:
    """Newer lines keep their snapshots in files of their own."""
    root = make_tree(tmp_path)
    (root / CONTROLLER).unlink()
    (root / "nemo_rl/environments/gym_checkpoint_coordinator.py").write_text("")
    report = survey(root)
    assert report.state is State.UNKNOWN
    assert "gym_checkpoint_coordinator.py" in report.detail


def test_a_renamed_gate_is_unknown(tmp_path: Path) -> None:
    """The snapshot methods are there, so the tree is not one without the feature."""
    root = make_tree(tmp_path)
    text = (root / CONTROLLER).read_text().replace("_gym_checkpoint_rollout_permitted", "_gym_gate")
    (root / CONTROLLER).write_text(text)
    report = survey(root)
    assert report.state is State.UNKNOWN
    assert "no statement that closes or reopens" in report.detail


def test_a_controller_without_its_manager_is_unknown(tmp_path: Path) -> None:
    """One of the two files alone cannot be judged."""
    root = make_tree(tmp_path)
    (root / MANAGER).unlink()
    assert survey(root).state is State.UNKNOWN


def test_the_tree_is_never_imported(tmp_path: Path) -> None:
    """Code that would leave a trace when run leaves none."""
    root = make_tree(tmp_path)
    with (root / CONTROLLER).open("a") as file:
        file.write(f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    assert survey(root).state is State.AFFECTED
    assert not (tmp_path / "ran").exists()


IN_OTHERS = {
    "another class": (
        "\n\nclass Watch:\n    def __init__(self, c):\n        self.c = c\n"
        "        c._gym_checkpoint_rollout_permitted.set()\n"
    ),
    "a nested class": (
        "\n\nclass Outer:\n    class Inner:\n        def open(self, c):\n"
        "            c._gym_checkpoint_rollout_permitted.set()\n"
    ),
    "under an if": "\n\nif True:\n\n    def open(c):\n        c._gym_checkpoint_rollout_permitted.set()\n",
}


@pytest.mark.parametrize("name", IN_OTHERS)
def test_a_gate_that_is_opened_anywhere_in_the_file_is_found(tmp_path: Path, name: str) -> None:
    """A fixed tree that gets one more place is not fixed any more, wherever the place is."""
    root = make_tree(tmp_path, fixed=True)
    with (root / CONTROLLER).open("a") as file:
        file.write(IN_OTHERS[name])
    report = survey(root)
    assert report.state is State.PARTLY_FIXED
    (odd,) = [site for site in report.sites if site.state is State.AFFECTED]
    assert odd.receiver == "c"


def _all_named(new: str) -> list[Replacement]:
    """Every call of the fix with another text for the name."""
    return [
        (old, old.replace('"gym_checkpoint"', new))
        for old in (HOLD, f"                {LET_GO}", f"\n        {LET_GO}")
    ]


NOT_FIXED: dict[str, tuple[str, list[Replacement]]] = {
    "lambda": (CONTROLLER, [(HOLD, f"later = lambda: {HOLD}")]),
    "later": (CONTROLLER, [(HOLD, f"asyncio.get_running_loop().call_later(60, lambda: {HOLD})")]),
    "short circuit": (CONTROLLER, [(HOLD, f"self.debug and {HOLD}")]),
    "ternary": (
        CONTROLLER,
        [(f"                {LET_GO}", f"                x = {LET_GO} if prepared else 0")],
    ),
    "comprehension": (CONTROLLER, [(HOLD, f"[{HOLD} for _ in ()]")]),
    "another manager": (CONTROLLER, [(HOLD, HOLD.replace("_rollout_manager", "_gen"))]),
    "a parameter": (CONTROLLER, _all_named("checkpoint_id")),
    "an f-string": (CONTROLLER, _all_named('f"gym-{checkpoint_id}"')),
    "an imported name": (CONTROLLER, _all_named("GYM")),
    "an attribute": (CONTROLLER, _all_named("self.GYM")),
    "a constant that is bound again": (
        CONTROLLER,
        [*_all_named("GYM"), ("@ray.remote", 'GYM = "a"\nGYM = input()\n\n\n@ray.remote')],
    ),
    "one name differs": (
        CONTROLLER,
        [(f"                {LET_GO}", f"                {LET_GO}".replace("gym_checkpoint", "gym"))],
    ),
    "resumed at once": (CONTROLLER, [(f"        {HOLD}\n", f"        {HOLD}\n        {LET_GO}\n")]),
    "resumed early": (CONTROLLER, [("prepared = True\n", f"prepared = True\n            {LET_GO}\n")]),
    "resumed in finally": (
        CONTROLLER,
        [
            (
                "            raise\n\n    async def _release_prepared",
                f"            raise\n        finally:\n            {LET_GO}\n\n"
                "    async def _release_prepared",
            )
        ],
    ),
    "held elsewhere too": (
        CONTROLLER,
        [(f"{ACTOR}(self) -> Any:\n", f"{ACTOR}(self) -> Any:\n        {HOLD}\n")],
    ),
    "resumed by a reference": (
        CONTROLLER,
        [("prepared = True\n", f"prepared = True\n            soon({LET_GO.partition('(')[0]}, 1)\n")],
    ),
    "resumed by its name": (
        CONTROLLER,
        [("prepared = True\n", 'prepared = True\n            call(self, "resume_request_deadlines")\n')],
    ),
    "the registry under another name": (
        CONTROLLER,
        [
            (
                "prepared = True\n",
                "prepared = True\n            r = self._rollout_manager._request_deadlines\n",
            )
        ],
    ),
    "a helper that is called elsewhere too": (
        CONTROLLER,
        [
            (f"                {LET_GO}", "                self._free()"),
            ("prepared = True\n", "prepared = True\n            self._free()\n"),
            (ACTOR, f"    def _free(self) -> None:\n        {LET_GO}\n\n{ACTOR}"),
        ],
    ),
    "a helper of another class": (
        CONTROLLER,
        [
            (f"                {LET_GO}", "                self._free()"),
            ("@ray.remote", f"class Other:\n    def _free(self):\n        {LET_GO}\n\n\n@ray.remote"),
        ],
    ),
    "a helper that may return": (
        CONTROLLER,
        [
            (f"                {LET_GO}", "                self._free()"),
            (
                ACTOR,
                "    def _free(self) -> None:\n        if self.off:\n            return\n"
                f"        {LET_GO}\n\n{ACTOR}",
            ),
        ],
    ),
    "a count of holders": (MANAGER, [("self._holders.add(holder)", "self._holders += 1")]),
    "another's name": (MANAGER, [("self._holders.add(holder)", 'self._holders.add("engine")')]),
    "a holder that is only printed": (MANAGER, [("self._holders.add(holder)", "print(holder)")]),
    "a holder that may be missed": (
        MANAGER,
        [("self._holders.discard(holder)", "self._holders.remove(holder)")],
    ),
    "holders that nobody asks": (MANAGER, [("        if self._holders:\n            return\n", "")]),
    "holders of two kinds": (MANAGER, [("self._holders.add(holder)", "self._others.add(holder)")]),
    "holders that are not made": (MANAGER, [("        self._holders: set[str] = set()\n", "")]),
    "holders that are taken elsewhere": (
        MANAGER,
        [("        self._live.discard(deadline)\n", "        self._holders.clear()\n")],
    ),
    "the live ones as holders": (
        MANAGER,
        [
            ("self._holders.add(holder)", "self._live.add(holder)"),
            ("self._holders.discard(holder)", "self._live.discard(holder)"),
            ("if self._holders:", "if self._live:"),
        ],
    ),
    "a flag for a holder": (
        MANAGER,
        [('def suspend(self, holder: str = "engine")', "def suspend(self, holder=False)")],
    ),
    "the snapshot's name for all": (
        MANAGER,
        [
            (f'{verb}(self, holder: str = "engine")', f'{verb}(self, holder: str = "gym_checkpoint")')
            for verb in ("def suspend", "def resume", "suspend_request_deadlines", "resume_request_deadlines")
        ],
    ),
    "defaults that differ": (
        MANAGER,
        [
            (
                'resume_request_deadlines(self, holder: str = "engine")',
                'resume_request_deadlines(self, holder="x")',
            )
        ],
    ),
    "another name is passed": (
        MANAGER,
        [("_request_deadlines.resume(holder)", '_request_deadlines.resume("x" or holder)')],
    ),
    "passed to another parameter": (
        MANAGER,
        [("_request_deadlines.resume(holder)", "_request_deadlines.resume(who=holder)")],
    ),
    "passed sometimes": (
        MANAGER,
        [
            (
                "        self._request_deadlines.resume(holder)",
                "        if holder:\n            self._request_deadlines.resume(holder)",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", NOT_FIXED)
def test_what_only_looks_like_the_fix_is_unknown(tmp_path: Path, name: str) -> None:
    """A named call that may not run, or not alone, or a name that is not kept, is never called fixed."""
    file, edits = NOT_FIXED[name]
    report = looked_at(tmp_path, *edits, file=file, fixed=True)
    assert report.state is State.UNKNOWN, report.detail


@pytest.mark.parametrize("step", ["if prepared:\n            return None", "assert gym_actor"])
def test_a_hold_that_may_not_be_reached_does_not_count(tmp_path: Path, step: str) -> None:
    """Between the gate's close and the hold nothing may leave the function."""
    edit = (f"        {HOLD}\n        {CLEAR}", f"        {CLEAR}\n        {step}\n        {HOLD}")
    assert looked_at(tmp_path, edit, fixed=True).state is State.PARTLY_FIXED


@pytest.mark.parametrize(
    ("suspend", "resume"),
    [
        ("self._holders |= {holder}", "self._holders -= {holder}"),
        ("self._holders[holder] = 1", "self._holders.pop(holder, None)"),
    ],
)
def test_other_ways_to_keep_names_are_recognized(tmp_path: Path, suspend: str, resume: str) -> None:
    """By operator or as keys; a nested `if` in place of the early return is the same too."""
    edits = [("self._holders.add(holder)", suspend), ("self._holders.discard(holder)", resume)]
    assert looked_at(tmp_path, *edits, file=MANAGER, fixed=True).state is State.FIXED


def test_a_class_constant_and_a_keyword_are_recognized(tmp_path: Path) -> None:
    """The name may stand in the class, and be passed on by keyword."""
    edits = [*_all_named("self.GYM"), ("    def __init__(\n", '    GYM = "gym"\n\n    def __init__(\n')]
    report = looked_at(tmp_path, *edits, fixed=True)
    assert report.state is State.FIXED, report.detail
    passed = ("_request_deadlines.resume(holder)", "_request_deadlines.resume(holder=holder)")
    assert looked_at(tmp_path / "2", passed, file=MANAGER, fixed=True).state is State.FIXED
