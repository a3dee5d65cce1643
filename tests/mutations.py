"""Wrong versions of the fix, as data: what is broken, and which tests must go red for it.

`tests.mutants` runs them. Each is a mistake that somebody could make, or a fix that somebody could propose
instead.
"""

from __future__ import annotations

from tests.support.mutant import Mutant

PACKAGE = "nemo_rl_deadline_fix"
DIFF = "patches/0001-fix-sc-pause-request-deadlines-during-gym-snapshots.diff"
PATCHES = ("tests/test_patches.py::test_0002_is_red_before_0001_and_green_after",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "diff-without-the-hold",
        "The clocks run while rollouts are parked.",
        PATCHES,
        DIFF,
        line=r"suspend_request_deadlines\(\"gym_checkpoint\"\)",
    ),
)
