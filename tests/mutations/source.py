"""Mutants of the source form: what is written into a tree, and what counts as fixed in one."""

from __future__ import annotations

from tests.mutations.mutant import Edit, Mutant

REWRITE = "nemo_rl_deadline_fix/source/rewrite.py"
EDITS = "nemo_rl_deadline_fix/source/edits.py"
GATES = "nemo_rl_deadline_fix/source/gates.py"
LOCATE = "nemo_rl_deadline_fix/source/locate.py"
HOLDS = "nemo_rl_deadline_fix/source/holds.py"
CHECKOUT = "nemo_rl_deadline_fix/source/checkout.py"
# What is written is judged by what it does wherever the writer itself does not refuse it.
FAULTS = ("tests/test_faults.py::test_the_clocks_follow_the_gate", "-k", "pinned-applied")
STORY = ("tests/test_faults.py::test_the_story_is_one_and_the_same_in_every_form", "-k", "applied")
BY_HAND = ("tests/test_source_rewrite.py::test_apply_writes_what_was_written_out_by_hand",)
REVERT = ("tests/test_source_rewrite.py::test_what_was_edited_since_is_not_reverted",)
OUTSIDE = ("tests/test_source_locate.py::test_a_hold_outside_of_the_gates_step_does_not_count",)
UNKNOWN = ("tests/test_source_locate.py::test_a_shape_that_is_not_understood_is_unknown",)

_SUSPENDS = "Insert(site.line, (call.format(SUSPEND),), WHY_HERE)"
_HOLD = 'self._rollout_manager.suspend_request_deadlines(\\"gym_checkpoint\\")'
_LET_GO = 'self._rollout_manager.resume_request_deadlines(\\"gym_checkpoint\\")'


def _written(old: str, new: str) -> Edit:
    """The fix with another text in place of one part of it."""
    result = "_rewritten(source, sites, rules, State.AFFECTED)"
    return (
        f"    return {result}\n",
        f'    return {result}.replace(\n        "{old}",\n        "{new}",\n    )\n',
    )


MUTANTS = (
    Mutant(
        "written-in-finally",
        REWRITE,
        "The clocks run again when prepare and commit end, and the snapshot is still to be published.",
        FAULTS,
        (
            _written(
                "            raise\\n\\n    async def _release_prepared",
                f"            raise\\n        finally:\\n            {_LET_GO}\\n\\n"
                "    async def _release_prepared",
            ),
        ),
    ),
    Mutant(
        "written-without-the-names",
        EDITS,
        "The registry takes a name, and any resume restarts every deadline.",
        STORY,
        (
            (
                '(f"self.{HOLDERS}.discard(holder)", f"if self.{HOLDERS}:\\n    return")',
                '(f"self.{HOLDERS}.discard(holder)",)',
            ),
        ),
    ),
    Mutant(
        "written-holder-is-not-passed-on",
        REWRITE,
        "The manager takes a name and holds under the engine's.",
        STORY,
        (("        arguments = [] if self._taken_out else [", "        arguments = [] and ["),),
    ),
    Mutant(
        "written-default-is-the-snapshots-name",
        REWRITE,
        "A weight sync's argument-free resume frees the snapshot's hold.",
        STORY,
        (
            (
                """default=cst.SimpleString(f'"{DEFAULT_HOLDER}"'),""",
                """default=cst.SimpleString('"gym_checkpoint"'),""",
            ),
        ),
    ),
    Mutant(
        "written-failure-path-in-the-wrong-branch",
        REWRITE,
        "A failed prepare reopens the gate, and the clocks stand still until the next snapshot.",
        FAULTS,
        (
            _written(
                f"                {_LET_GO}\\n            if len",
                f"            if len(recovery_errors) > 1:\\n                {_LET_GO}\\n            if len",
            ),
        ),
    ),
    Mutant(
        "written-hold-after-the-gate",
        EDITS,
        "A call that fails leaves a gate that nobody opens.",
        BY_HAND,
        ((_SUSPENDS, _SUSPENDS.replace("WHY_HERE)", "WHY_HERE, after=True)")),),
    ),
    Mutant(
        "written-hold-after-an-await",
        EDITS,
        "A deadline that is due in the turn of the close fires although its rollout is parked.",
        BY_HAND,
        (
            (
                _SUSPENDS,
                'Insert(site.line, ("await asyncio.sleep(0)", call.format(SUSPEND)), WHY_HERE, after=True)',
            ),
        ),
    ),
    Mutant(
        "written-hold-before-an-await",
        EDITS,
        "The clocks stop while rollouts are still admitted and run.",
        BY_HAND,
        ((_SUSPENDS, 'Insert(site.line, (call.format(SUSPEND), "await asyncio.sleep(0)"), WHY_HERE)'),),
    ),
    Mutant(
        "written-floor-of-nothing",
        EDITS,
        "A reply of the loop turn in which the pause ends loses against a deadline with nothing left.",
        BY_HAND,
        (("max(self.{REMAINING}, {SMALLEST_BUDGET_S})", "max(self.{REMAINING}, 0.0)"),),
    ),
    Mutant(
        "writer-does-not-look-again",
        CHECKOUT,
        "A tree that would be half fixed is written all the same.",
        ("tests/test_source_rewrite.py::test_a_result_that_would_not_be_fixed_is_refused",),
        (("    if {*rules} >= ALL_RULES - {Rule.DF004} and", "    if False and"),),
    ),
    Mutant(
        "hold-after-an-await-is-fixed",
        GATES,
        "A suspend that comes one await after the close counts as being in its step.",
        OUTSIDE,
        (("if _awaits(statement) or _leaves(statement):\n", "if _leaves(statement):\n"),),
    ),
    Mutant(
        "hold-before-an-await-is-fixed",
        GATES,
        "A suspend that comes one await before the close counts as being in its step.",
        OUTSIDE,
        (("if _awaits(earlier) or _leaves(earlier):\n", "if _leaves(earlier):\n"),),
    ),
    Mutant(
        "hold-under-a-condition-is-fixed",
        HOLDS,
        "A suspend that is not sure to run counts.",
        OUTSIDE,
        (
            (
                "            if isinstance(part, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):\n",
                "            if True:\n",
            ),
            ("            sure = own and self._is_managers(", "            sure = self._is_managers("),
        ),
    ),
    Mutant(
        "hold-under-the-shared-name-is-fixed",
        LOCATE,
        "A weight sync frees it, and `check` says that all is well.",
        OUTSIDE,
        (("    named = [call for call in calls if call.name != shared]\n", "    named = calls\n"),),
    ),
    Mutant(
        "release-under-another-name-is-fixed",
        LOCATE,
        "The hold is never let go, and `check` says that all is well.",
        ("tests/test_source_locate.py::test_names_that_do_not_match_are_unknown",),
        (("    if held and held != {first.name}:\n", "    if False:\n"),),
    ),
    Mutant(
        "one-fixed-place-is-enough",
        LOCATE,
        "A half fixed tree counts as fixed.",
        ("tests/test_source_locate.py::test_a_place_that_lost_its_fix_is_missed",),
        (("    if states == {State.FIXED}:\n", "    if State.FIXED in states:\n"),),
    ),
    Mutant(
        "calls-apart-from-the-gate-are-fine",
        LOCATE,
        "A resume under the snapshot's name that is nowhere near the gate frees the clocks, unseen.",
        ("tests/test_source_locate.py",),
        (("        harmless = suspends is None or (suspends and misplaced)\n", "        harmless = True\n"),),
    ),
    Mutant(
        "gate-that-is-handed-on-goes-unseen",
        GATES,
        "A gate that is handed on may be opened anywhere, and `apply` writes the fix all the same.",
        UNKNOWN,
        (('        yield _unclear(method, node, f"{GATE} is handed on")\n', "        return\n"),),
    ),
    Mutant(
        "count-in-place-of-the-flag-is-taken",
        "nemo_rl_deadline_fix/source/deadlines.py",
        "A registry that counts is rewritten as though it had the flag.",
        UNKNOWN,
        (
            (
                "        trouble = _flag_trouble(_body(function), verb)\n",
                '        trouble = ""\n',
            ),
        ),
    ),
    Mutant(
        "revert-does-not-look-again",
        CHECKOUT,
        "Somebody's edits of the fix's lines go with the fix.",
        REVERT,
        (
            (
                "        if source.with_text(with_fix(source, again.sites, present)) != now.raw:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "revert-takes-lines-out-unseen",
        REWRITE,
        "Somebody's edits of the fix's lines go with the fix.",
        REVERT,
        (
            (
                "        if [_code(node) for node in old] != [_code(node) for node in new]:\n",
                "        if False:\n",
            ),
        ),
        "the plan puts the fix in again and compares, which refuses the same trees; all that is lost is the "
        "line in the message",
    ),
)
