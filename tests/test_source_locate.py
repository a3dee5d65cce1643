"""Every place of the fix is found by what the code does there, and its state told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_rl_deadline_fix.source.locate import Kind, Rule, State, TreeReport, survey
from tests.fixture_trees import (
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
    assert rules.count(Rule.DF003) == (4 if name == "extra_reopen" else 3)


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
        "gate may be _gym_checkpoint_rollout_permitted",
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
        "does not use it",
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
    text = (root / CONTROLLER).read_text()
    start = text.index("    async def _prepare_and_commit_gym_checkpoint")
    text = "".join(
        line for line in text[:start].splitlines(keepends=True) if "_gym_checkpoint_rollout" not in line
    )
    (root / CONTROLLER).write_text(text.replace("_wait_for_rollout_admission", "_wait"))
    assert survey(root).state is State.NOT_APPLICABLE


def test_a_tree_without_the_controller_is_not_applicable(tmp_path: Path) -> None:
    """Older NeMo RL has no single controller."""
    root = make_tree(tmp_path)
    (root / CONTROLLER).unlink()
    report = survey(root)
    assert report.state is State.NOT_APPLICABLE
    assert report.controller is None


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
