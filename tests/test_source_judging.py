"""Every site of the fix is found by what the code does there, and nothing unknown is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.source import Rule, State, TreeReport, survey
from nemo_rl_deadline_fix.source.checkout import Plan, plan, plan_revert
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
    older_tree,
)

Edits = tuple[str, list[Replacement]]
GATE = "self._gym_checkpoint_rollout_permitted"
BY_NAME = 'getattr(self, "_gym_checkpoint_rollout_permitted")'
START = "        self._gym_acknowledgements: list[Any] = []\n"
ACTOR = "    def _nemo_gym_checkpoint_actor"


def edited_tree(folder: Path, edits: Edits, *, fixed: bool = False) -> Path:
    """A pinned tree in which some text of one file was replaced."""
    root, (file, replacements) = make_tree(folder / "tree", fixed=fixed), edits
    (root / file).write_text(edited((root / file).read_text(), *replacements))
    return root


def looked_at(folder: Path, file: str, *edits: Replacement, fixed: bool = False) -> TreeReport:
    """Survey such a tree."""
    return survey(edited_tree(folder, (file, [*edits]), fixed=fixed))


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_affected_before_and_fixed_after(tmp_path: Path, name: str) -> None:
    """The state follows the fix in every shape, for tree and sites; 0.1.0's text is a fix as well."""
    before = survey(make_tree(tmp_path / "before", name))
    after = survey(make_tree(tmp_path / "after", name, fixed=True))
    older = survey(older_tree(tmp_path / "older", name))
    for report, state in ((before, State.AFFECTED), (after, State.FIXED), (older, State.FIXED)):
        assert report.state is state
        assert {site.state for site in report.sites if site.rule} == {state}
    rules = [site.rule for site in before.sites if site.rule]
    assert rules.count(Rule.DF001) == rules.count(Rule.DF002) == 2
    assert rules.count(Rule.DF004) == 1
    assert rules.count(Rule.DF003) == {"extra_reopen": 4, "C": 6}.get(name, 3)


def test_sites_are_told_with_the_line_they_are_on(tmp_path: Path) -> None:
    """An editor that follows one lands on the gate, the definition or the call."""
    root = make_tree(tmp_path)
    lines = {name: (root / name).read_text().splitlines() for name in (CONTROLLER, MANAGER)}
    signs = {
        "close": CLEAR,
        "reopen": SET,
        "call": "_request_deadlines()",
        "rearm": "reschedule(",
    }
    for site in survey(root).sites:
        name, _, line = site.where.rpartition(":")
        assert signs.get(site.kind, "def ") in lines[name][int(line) - 1]


@pytest.mark.parametrize("fixed", [False, True])
def test_calls_of_training_and_refit_are_information(tmp_path: Path, fixed: bool) -> None:
    """They alone are shown, argument-free as they are, and do not count for the tree."""
    report = survey(make_tree(tmp_path, "refit_suspends", fixed=fixed))
    calls = [site for site in report.sites if site.kind == "call"]
    assert [(site.name.rpartition(".")[2], site.found.rpartition(".")[2]) for site in calls] == [
        ("_train_chunk", "suspend_request_deadlines()"),
        ("_sync_weights", "suspend_request_deadlines()"),
        ("_sync_weights", "resume_request_deadlines()"),
    ]
    assert {site.state for site in calls} == {State.INFORMATION}
    assert not any(site.required for site in calls)


@pytest.mark.parametrize(
    "edit",
    [
        (f"        {HOLD}\n", ""),
        (HOLD, HOLD.replace('"gym_checkpoint"', "")),
        (f"\n                {LET_GO}\n", "\n"),
        (f"        {SET}\n        {LET_GO}\n", f"        {SET}\n"),
    ],
    ids=["no hold", "a hold under the shared name", "failure keeps it", "release keeps it"],
)
def test_a_site_that_lost_its_fix_is_missed(tmp_path: Path, edit: Replacement) -> None:
    """Any one missing site keeps the tree from counting as fixed, and is named."""
    report = looked_at(tmp_path, CONTROLLER, edit, fixed=True)
    assert report.state is State.PARTLY_FIXED
    (odd,) = [site for site in report.sites if site.required and site.state is not State.FIXED]
    assert odd.where in report.detail
    assert odd.file == CONTROLLER


def test_df004_does_not_count_for_the_tree(tmp_path: Path) -> None:
    """A maintainer may drop it, so a tree without it is fixed."""
    edit = ("        self._remaining = max(self._remaining, 0.001)\n", "")
    report = looked_at(tmp_path, MANAGER, edit, fixed=True)
    assert report.state is State.FIXED
    (edge,) = [site for site in report.sites if site.rule is Rule.DF004]
    assert edge.state is State.AFFECTED


@pytest.mark.parametrize(
    "place",
    [
        "\n\nclass Watch:\n    def __init__(self, c):\n        self.c = c\n        OPEN\n",
        "\n\nclass Outer:\n    class Inner:\n        def open(self, c):\n            OPEN\n",
        "\n\nif True:\n\n    def open(c):\n        OPEN\n",
    ],
    ids=["another class", "a nested class", "under an if"],
)
def test_a_gate_that_is_opened_anywhere_in_the_file_is_found(tmp_path: Path, place: str) -> None:
    """A fixed tree that gets one more place is not fixed any more, wherever the place is."""
    root = make_tree(tmp_path, fixed=True)
    with (root / CONTROLLER).open("a") as file:
        file.write(place.replace("OPEN", "c._gym_checkpoint_rollout_permitted.set()"))
    report = survey(root)
    assert report.state is State.PARTLY_FIXED
    (odd,) = [site for site in report.sites if site.state is State.AFFECTED]
    assert odd.expected.startswith("c._rollout_manager.resume_request_deadlines(")


def test_the_tree_is_never_imported(tmp_path: Path) -> None:
    """Code that would leave a trace when run leaves none."""
    root = make_tree(tmp_path)
    with (root / CONTROLLER).open("a") as file:
        file.write(f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    assert survey(root).state is State.AFFECTED
    assert not (tmp_path / "ran").exists()


def _helper(body: str) -> list[Replacement]:
    return [(HOLD, "self._hold_clocks()"), (ACTOR, f"    def _hold_clocks(self) -> None:\n{body}\n{ACTOR}")]


NOT_AFFECTED: dict[str, Edits] = {
    "one-line if": (
        CONTROLLER,
        [(f"            else:\n                {SET}\n", f"            if not prepared: {SET}\n")],
    ),
    "two on a line": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        {CLEAR}; prepared = None")],
    ),
    "in a continued line": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        prepared = None; \\\n        {CLEAR}")],
    ),
    "handed on": (
        CONTROLLER,
        [(f"        {CLEAR}", "        shut(self._gym_checkpoint_rollout_permitted)")],
    ),
    "bound method": (
        CONTROLLER,
        [(f"        {CLEAR}", "        shut = self._gym_checkpoint_rollout_permitted.clear\n        shut()")],
    ),
    "replaced": (
        CONTROLLER,
        [(f"        {CLEAR}", "        self._gym_checkpoint_rollout_permitted = asyncio.Event()")],
    ),
    "in a loop over gates": (
        CONTROLLER,
        [
            (
                f"        {CLEAR}",
                "        for gate in (self._gym_checkpoint_rollout_permitted,):\n            gate.clear()",
            )
        ],
    ),
    "never closed": (CONTROLLER, [(f"        {CLEAR}\n", "")]),
    "another call": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        self._rollout_manager.stop_deadlines_for_gym()\n        {CLEAR}")],
    ),
    "count": (
        MANAGER,
        [("        if self.suspended:\n            return\n", "        self._holds += 1\n")],
    ),
    "no flag": (
        MANAGER,
        [("        self.suspended = False\n\n    def add", "\n    def add")],
    ),
    "another registry": (
        MANAGER,
        [("class RequestDeadlineRegistry:", "class DeadlineRegistry:")],
    ),
    "a manager that does more": (
        MANAGER,
        [
            (
                "        self._request_deadlines.suspend()\n",
                "        self._request_deadlines.suspend()\n        print()\n",
            )
        ],
    ),
    "a holder without default": (
        MANAGER,
        [
            (
                "    def suspend_request_deadlines(self) ->",
                "    def suspend_request_deadlines(self, holder) ->",
            )
        ],
    ),
    "positional only": (
        MANAGER,
        [("    def suspend_request_deadlines(self) ->", "    def suspend_request_deadlines(self, /) ->")],
    ),
    "async": (
        MANAGER,
        [("    def resume_request_deadlines(self) ->", "    async def resume_request_deadlines(self) ->")],
    ),
    "a holder that is not used": (
        MANAGER,
        [
            (
                "    def suspend_request_deadlines(self) ->",
                "    def suspend_request_deadlines(self, holder='') ->",
            )
        ],
    ),
    "a depth beside the flag": (
        MANAGER,
        [
            (
                "        if self.suspended:\n            return\n",
                "        if self.suspended:\n            self._depth += 1\n            return\n",
            )
        ],
    ),
    "a depth before the flag falls": (
        MANAGER,
        [
            (
                "            return\n        self.suspended = False\n",
                "            return\n        self._depth -= 1\n        self.suspended = False\n",
            )
        ],
    ),
    "a word after the loop": (
        MANAGER,
        [("            deadline.resume()\n\n", "            deadline.resume()\n        print()\n\n")],
    ),
    "some deadlines only": (
        MANAGER,
        [
            (
                "        self.suspended = True\n        for deadline in self._live:",
                "        self.suspended = True\n        for deadline in self._live - self._few:",
            )
        ],
    ),
    "by getattr": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        {CLEAR}\n        {BY_NAME}.set()")],
    ),
    "name in a constant": (
        CONTROLLER,
        [("@ray.remote", 'GATE = "_gym_checkpoint_rollout_permitted"\n\n\n@ray.remote')],
    ),
    "in a list of gates": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        gates = [{GATE}]\n        gates[0].set()\n        {CLEAR}")],
    ),
    "given out": (
        CONTROLLER,
        [(ACTOR, f"    def gate(self) -> Any:\n        return {GATE}\n\n{ACTOR}")],
    ),
    "kept by __init__": (
        CONTROLLER,
        [(START, f"        self._gates = {{1: {GATE}}}\n{START}")],
    ),
    "closed by __init__": (CONTROLLER, [(START, f"        {CLEAR}\n{START}")]),
    "rebound": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        gate = {GATE}\n        gate = self._other\n        gate.clear()")],
    ),
    "walrus": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        (gate := {GATE}).clear()")],
    ),
    "a method of its own": (CONTROLLER, [(f"        {CLEAR}", f"        {GATE}.close()")]),
    "whose gate is not known": (
        CONTROLLER,
        [(f"        {CLEAR}", f"        {CLEAR}\n        find()._gym_checkpoint_rollout_permitted.set()")],
    ),
    "waits and opens": (
        CONTROLLER,
        [("                await gate.wait()\n", "                gate.set()\n")],
    ),
}


BY_HAND: dict[str, Edits] = {
    "keyword": (CONTROLLER, [(HOLD, HOLD.replace("(", "(holder="))]),
    "after the gate": (CONTROLLER, [(HOLD + "\n        " + CLEAR, CLEAR + "\n        " + HOLD)]),
    "helper": (CONTROLLER, _helper(f"        {HOLD}\n")),
    "registry": (
        CONTROLLER,
        [(HOLD, HOLD.replace("suspend_request_deadlines", "_request_deadlines.suspend"))],
    ),
    "first in try": (
        CONTROLLER,
        [
            (f"{CLEAR}\n        try:", f"{CLEAR}\n        try:\n            {HOLD}"),
            (f"        {HOLD}\n        {CLEAR}", f"        {CLEAR}"),
        ],
    ),
    "await between": (
        CONTROLLER,
        [(f"        {HOLD}\n", f"        {HOLD}\n        await asyncio.sleep(0)\n")],
    ),
    "conditional": (CONTROLLER, [(HOLD, f"if timeout_s:\n            {HOLD}")]),
    "maybe not reached": (
        CONTROLLER,
        [(f"{HOLD}\n        {CLEAR}", f"{CLEAR}\n        assert gym_actor\n        {HOLD}")],
    ),
    "names by operator": (
        MANAGER,
        [
            ("self._holders.add(holder)", "self._holders |= {holder}"),
            ("self._holders.discard(holder)", "self._holders -= {holder}"),
        ],
    ),
    "passed by keyword": (
        MANAGER,
        [("_request_deadlines.resume(holder)", "_request_deadlines.resume(holder=holder)")],
    ),
    "another name": (CONTROLLER, [(HOLD, HOLD.replace("gym_checkpoint", "gym"))]),
    "shared name spelt out": (CONTROLLER, [(HOLD, HOLD.replace("gym_checkpoint", "generation_stand_down"))]),
}


def _all_named(new: str) -> list[Replacement]:
    """Every call of the fix with another text for the name."""
    return [
        (old, old.replace('"gym_checkpoint"', new))
        for old in (HOLD, f"                {LET_GO}", f"\n        {LET_GO}")
    ]


NOT_FIXED: dict[str, Edits] = {
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
    "another's name": (
        MANAGER,
        [("self._holders.add(holder)", 'self._holders.add("generation_stand_down")')],
    ),
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
        [('def suspend(self, holder: str = "generation_stand_down")', "def suspend(self, holder=False)")],
    ),
    "the snapshot's name for all": (
        MANAGER,
        [
            (
                f'{verb}(self, holder: str = "generation_stand_down")',
                f'{verb}(self, holder: str = "gym_checkpoint")',
            )
            for verb in ("def suspend", "def resume", "suspend_request_deadlines", "resume_request_deadlines")
        ],
    ),
    "defaults that differ": (
        MANAGER,
        [
            (
                'resume_request_deadlines(self, holder: str = "generation_stand_down")',
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


@pytest.mark.parametrize("name", NOT_AFFECTED)
def test_code_that_is_not_known_is_unknown_and_not_changed(tmp_path: Path, name: str) -> None:
    """Nothing is guessed: the report names the first place, and nothing is written."""
    _unknown_and_not_changed(edited_tree(tmp_path, NOT_AFFECTED[name]), plan)


@pytest.mark.parametrize("name", [*BY_HAND, *NOT_FIXED])
def test_a_fix_that_is_not_ours_is_unknown_and_not_changed(tmp_path: Path, name: str) -> None:
    """Made by hand, right or wrong, in our words or others': playing it tells, so that is the advice."""
    _unknown_and_not_changed(edited_tree(tmp_path, (BY_HAND | NOT_FIXED)[name], fixed=True), plan_revert)


def _unknown_and_not_changed(root: Path, make: Callable[[Path], Plan]) -> None:
    report = survey(root)
    assert report.state is State.UNKNOWN, report.detail
    first = next(site for site in report.sites if site.required and site.state is State.UNKNOWN)
    assert report.detail.startswith(f"{first.where}: {first.found}")
    with pytest.raises(UnsupportedTargetError, match=rf"cannot change .*verify --rl {root}$"):
        make(root)
