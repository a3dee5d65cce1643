"""Mutants of the diff for upstream: a hunk that was lost, or that does the wrong thing."""

from __future__ import annotations

from tests.mutations.mutant import Mutant

FILE = "patches/0001-fix-sc-pause-request-deadlines-during-gym-snapshots.diff"
# The unit tests that come with the diff have to notice, in the tree that a maintainer has.
TESTS = ("tests/test_patches.py::test_0002_is_red_before_0001_and_green_after",)
FAULTS = ("tests/test_faults.py::test_the_clocks_follow_the_gate", "-k", "pinned-patched")

_HOLD = '            self._rollout_manager.suspend_request_deadlines("gym_checkpoint")\n'
_LET_GO = 'self._rollout_manager.resume_request_deadlines("gym_checkpoint")\n'
_CLOSE = (
    "@@ -1957,2 +1957,4 @@\n"
    "         prepared = False\n"
    "+        # Rollouts park until admission reopens. Their deadlines must not run meanwhile.\n"
    '+        self._rollout_manager.suspend_request_deadlines("gym_checkpoint")\n'
    "         self._gym_checkpoint_rollout_permitted.clear()\n"
)
_FAILURE = (
    "@@ -2022,2 +2024,3 @@\n"
    "                 self._gym_checkpoint_rollout_permitted.set()\n"
    f"+                {_LET_GO}"
    "             if len(recovery_errors) > 1:\n"
)
_RELEASE = (
    f"@@ -2041,2 +2044,3 @@\n         self._gym_checkpoint_rollout_permitted.set()\n+        {_LET_GO} \n"
)
_FLOOR = (
    "@@ -464,2 +470,5 @@\n"
    "             return\n"
    "+        # Expiry at once would come ahead of a reply that becomes ready in this same\n"
    "+        # turn of the event loop. A timer comes after it.\n"
    "+        self._remaining = max(self._remaining, 0.001)\n"
    "         self._timeout.reschedule(asyncio.get_running_loop().time() + self._remaining)\n"
)

MUTANTS = (
    Mutant(
        "diff-without-the-hold",
        FILE,
        "The clocks run while rollouts are parked.",
        TESTS,
        ((_CLOSE, ""),),
    ),
    Mutant(
        "diff-holds-after-the-flush",
        FILE,
        "While replies are ACKed the gate is closed and the clocks run.",
        FAULTS,
        (
            (
                _CLOSE,
                "@@ -1960,2 +1960,3 @@\n"
                "             await self._flush_completed_gym_acknowledgements()\n"
                f"+{_HOLD}"
                "             answer = await gym_actor.prepare_checkpoint.remote(\n",
            ),
        ),
    ),
    Mutant(
        "diff-failure-keeps-the-hold",
        FILE,
        "A prepare that fails stops the clocks until the next snapshot.",
        TESTS,
        ((_FAILURE, ""),),
    ),
    Mutant(
        "diff-release-keeps-the-hold",
        FILE,
        "The first snapshot stops the clocks for good.",
        TESTS,
        ((_RELEASE, ""),),
    ),
    Mutant(
        "diff-resumes-in-finally",
        FILE,
        "The clocks run again when prepare and commit end, and the snapshot is still to be published.",
        FAULTS,
        (
            (
                _FAILURE,
                "@@ -2026,3 +2027,5 @@\n"
                "             raise\n"
                "+        finally:\n"
                f"+            {_LET_GO}"
                " \n"
                "     async def _release_prepared_gym_checkpoint(\n",
            ),
        ),
    ),
    Mutant(
        "diff-releases-the-shared-name",
        FILE,
        "The snapshot's release frees training's hold and not its own.",
        TESTS,
        ((_RELEASE, _RELEASE.replace('"gym_checkpoint"', "")),),
    ),
    Mutant(
        "diff-with-one-flag",
        FILE,
        "Any resume restarts every deadline, whoever holds.",
        TESTS,
        (
            ("@@ -393,3 +396,6 @@\n", "@@ -393,3 +396,4 @@\n"),
            ("+        if self._holders:\n+            return\n", ""),
        ),
    ),
    Mutant(
        "diff-drops-the-name",
        FILE,
        "The manager takes a name and lets the engine's go.",
        TESTS,
        (
            (
                "+        self._request_deadlines.resume(holder)\n",
                "+        self._request_deadlines.resume()\n",
            ),
        ),
    ),
    Mutant(
        "diff-without-the-floor",
        FILE,
        "A reply of the loop turn in which the pause ends loses against a deadline with nothing left.",
        TESTS,
        ((_FLOOR, ""),),
    ),
)
