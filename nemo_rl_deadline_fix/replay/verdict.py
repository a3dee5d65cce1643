"""What was simulated on a target, and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import Replay
from nemo_rl_deadline_fix.replay.subjects import SourceFile


class Form(StrEnum):
    """A form of the code under test; the values are the words used in JSON."""

    AS_IS = "before"
    CLOCKS = "after"


class Verdict(StrEnum):
    """What a verification comes to; the values are the words used in JSON."""

    FIXED = "fixed"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    STILL_STALLS = "still_stalls"
    OTHER_FORM = "affected"
    UNDECIDED = "undecided"


EXIT_CODES = {
    Verdict.FIXED: 0,
    Verdict.ALREADY_FIXED: 0,
    Verdict.NOT_APPLICABLE: 0,
    Verdict.STILL_STALLS: 1,
    Verdict.OTHER_FORM: 1,
    Verdict.UNDECIDED: 2,
}


@dataclass(frozen=True)
class Verification:
    """One target, simulated in one form after another, or judged without.

    Attributes:
        kind: `embedded`, `checkout` or `installed`.
        path: Where the target is; "" for the embedded model.
        parameters: The numbers.
        files: The files and lines that ran.
        runs: What happened in each form. With the fix only where the package can put it on this code.
        stalls_elsewhere: Whether code with the defect stalls with these numbers.
        judged: The verdict where nothing was simulated.
        detail: Why it is that, or why the fix was not put on.
    """

    kind: str
    path: str
    parameters: Parameters
    files: tuple[SourceFile, ...] = ()
    runs: Mapping[Form, Replay] = field(default_factory=dict)
    stalls_elsewhere: bool = True
    judged: Verdict = Verdict.NOT_APPLICABLE
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        return self._verdict_and_sentence()[0]

    @property
    def sentence(self) -> str:
        """The verdict in words, with its reason."""
        return self._verdict_and_sentence()[1]

    def _verdict_and_sentence(self) -> tuple[Verdict, str]:
        before, after = self.runs.get(Form.AS_IS), self.runs.get(Form.CLOCKS)
        if before is None:
            return self.judged, _JUDGED[self.judged].format(self.detail)
        if after is None:
            return self._alone(before)
        if not before.stalls:
            return Verdict.UNDECIDED, f"Could not tell: {_no_stall(before)}"
        if after.trouble:
            return Verdict.STILL_STALLS, f"STILL STALLS with the fix: {after.trouble}."
        return (
            Verdict.FIXED,
            "The stall is there before and gone after: the fix holds for these numbers.",
        )

    def _alone(self, run: Replay) -> tuple[Verdict, str]:
        if run.trouble:
            refused = f" This package does not put its fix on it: {self.detail}." if self.detail else ""
            return Verdict.STILL_STALLS, f"STILL STALLS: {run.trouble}.{refused}"
        if not self.stalls_elsewhere:
            return Verdict.UNDECIDED, f"Could not tell: {_no_stall(run)}"
        return (
            Verdict.ALREADY_FIXED,
            "Already fixed: this code as it is does not stall with numbers that stall NeMo RL without a fix.",
        )


_JUDGED = {
    Verdict.NOT_APPLICABLE: "Nothing to fix here: {}.",
    Verdict.ALREADY_FIXED: "Not simulated; fixed {}.",
    Verdict.OTHER_FORM: "Not simulated; affected, {}.",
    Verdict.UNDECIDED: "Could not tell, and not simulated: {}.",
}


def _no_stall(run: Replay) -> str:
    first = run.snapshots[0]
    if first.outcome != "committed" and not first.error.startswith("TimeoutError"):
        return f"the first snapshot fails for another reason ({first.error})."
    if run.trouble:
        return (
            "without the fix RL gave up on a parked try, but the second snapshot came too early to meet its "
            "reply. Let it come later (--second-at)."
        )
    return (
        "with these numbers nothing stalls even without the fix. Let the snapshot outlast what is left of "
        "the budget (--snapshot-for), or try the defaults."
    )
