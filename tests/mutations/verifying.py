"""Mutants of the proof: the model with the defect, and what `verify` makes of a replay."""

from __future__ import annotations

from tests.mutations.mutant import Mutant

REPORT = "nemo_rl_deadline_fix/replay/report.py"
MODEL = "nemo_rl_deadline_fix/replay/rl.py"
VERIFY = ("tests/test_verify.py",)
STORY = ("tests/test_regression.py",)

MUTANTS = (
    Mutant(
        "lost-while-parked-is-fine",
        REPORT,
        "A rollout that RL gave up while a snapshot had it parked is what the fix is there to prevent.",
        VERIFY,
        (("    if lost:\n", "    if False:\n"),),
    ),
    Mutant(
        "a-stall-is-fine",
        REPORT,
        "A second snapshot that fails is not held against the fix.",
        VERIFY,
        (("    if run.stalls:\n", "    if False:\n"),),
    ),
    Mutant(
        "a-hold-left-over-is-fine",
        REPORT,
        "Clocks that nobody runs again are not held against the fix.",
        VERIFY,
        (("    if run.holders_left:\n", "    if False:\n"),),
    ),
    Mutant(
        "nothing-shown-is-a-proof",
        REPORT,
        "Numbers under which nothing stalls even without the fix count as a proof of it.",
        VERIFY,
        (("        if not self.before.stalls:\n", "        if False:\n"),),
    ),
    Mutant(
        "a-finding-exits-with-zero",
        REPORT,
        "A script that calls `verify` goes on although it still stalls.",
        VERIFY,
        (("    Verdict.STILL_STALLS: 1,\n", "    Verdict.STILL_STALLS: 0,\n"),),
    ),
    Mutant(
        "model-without-the-defect",
        MODEL,
        "The embedded model stops its clocks itself, so that any fix looks good on it.",
        STORY,
        (
            (
                "        self._gym_checkpoint_rollout_permitted.clear()\n",
                "        self._rollout_manager.suspend_request_deadlines()\n"
                "        self._gym_checkpoint_rollout_permitted.clear()\n",
            ),
        ),
    ),
)
