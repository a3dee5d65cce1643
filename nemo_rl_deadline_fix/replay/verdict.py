"""What was simulated on a target, and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import Replay


class Form(StrEnum):
    """A form of the code under test; the values are the words used in JSON."""

    AS_IS = "before"
    CLOCKS = "after"
    ACKNOWLEDGE = "acknowledge"


class Verdict(StrEnum):
    """What a verification comes to; the values are the words used in JSON."""

    FIXED = "fixed"
    ALREADY_FIXED = "already_fixed"
    NOT_APPLICABLE = "not_applicable"
    STILL_STALLS = "still_stalls"
    OTHER_FORM = "affected"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        """0 for fine, 1 for a finding, 2 where that could not be told."""
        return {Verdict.STILL_STALLS: 1, Verdict.OTHER_FORM: 1, Verdict.UNDECIDED: 2}.get(self, 0)


_TITLES = {
    Form.AS_IS: "as the code is",
    Form.CLOCKS: "with the fix",
    Form.ACKNOWLEDGE: "with the fix and --acknowledge",
}
_JUDGED = {
    Verdict.NOT_APPLICABLE: "Nothing to fix here: {}.",
    Verdict.ALREADY_FIXED: "Not simulated; fixed {}.",
    Verdict.OTHER_FORM: "Not simulated; affected, {}.",
    Verdict.UNDECIDED: "Could not tell, and not simulated: {}.",
}
_GONE = Verdict.FIXED, "The stall is there before and gone after: the fix holds for these numbers."
_GONE_WITH_ACKNOWLEDGE = (
    Verdict.FIXED,
    "The stall is there before and with the clocks alone, and gone with --acknowledge: the fix holds for "
    "these numbers.",
)
_NEVER_THERE = (
    Verdict.ALREADY_FIXED,
    "Already fixed: this code as it is does not stall with numbers that stall NeMo RL without a fix.",
)


@dataclass(frozen=True)
class Verification:
    """One target, simulated in one form after another, or judged without.

    Attributes:
        kind: `embedded`, `checkout` or `installed`.
        path: Where the target is; "" for the embedded model.
        parameters: The numbers.
        files: The files that were executed.
        runs: What happened in each form. With the fix only where the package can put it on this code.
        stalls: Whether code with the defect stalls with these numbers.
        judged: The verdict where nothing was simulated.
        detail: Why it is that, or why the fix was not put on.
    """

    kind: str
    path: str
    parameters: Parameters
    files: tuple[str, ...] = ()
    runs: Mapping[Form, Replay] = field(default_factory=dict)
    stalls: bool = True
    judged: Verdict = Verdict.NOT_APPLICABLE
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        return self._conclusion()[0]

    @property
    def sentence(self) -> str:
        """The verdict in words, with its reason."""
        return self._conclusion()[1]

    def title(self, form: Form) -> str:
        """What one of the simulated forms is called; one that is alone has no before and after."""
        return f"{self._name(form)}: {_TITLES[form]}" if len(self.runs) > 1 else _TITLES[form]

    def summary(self) -> list[tuple[str, str, str]]:
        """One row for each form, after a heading."""
        replies = Form.ACKNOWLEDGE in self.runs
        rows = [("", "snapshots saved", "replies" if replies else "RL outcome of try 0")]
        for form, run in self.runs.items():
            outcome = run.replies_in_words if replies else run.attempts[0].in_words
            rows.append((self._name(form), run.saved, outcome))
        return rows

    def _name(self, form: Form) -> str:
        # Where there are three, the clocks are only a part of the fix.
        return "clocks" if form is Form.CLOCKS and Form.ACKNOWLEDGE in self.runs else form.value

    def _conclusion(self) -> tuple[Verdict, str]:
        if not self.runs:
            return self.judged, _JUDGED[self.judged].format(self.detail)
        runs = list(self.runs.values())
        if not self.stalls:
            return Verdict.UNDECIDED, f"Could not tell: {_why_no_stall(runs[0])}"
        if runs[-1].trouble:
            fix = ("", " with the fix", " with the fix and --acknowledge")[len(runs) - 1]
            refused = f" This package does not put its fix on it: {self.detail}." if self.detail else ""
            return Verdict.STILL_STALLS, f"STILL STALLS{fix}: {runs[-1].trouble}.{refused}"
        return (_NEVER_THERE, _GONE, _GONE_WITH_ACKNOWLEDGE)[len(runs) - 1]


def _why_no_stall(run: Replay) -> str:
    first = run.snapshots[0]
    if first.outcome != "committed" and not first.error.startswith("TimeoutError"):
        return f"the first snapshot fails for another reason ({first.error})."
    if run.replies.stranded:
        return (
            "without the fix RL gave up on a reply, but the second snapshot came too early to meet it. Let "
            "it come later (--second-at)."
        )
    return (
        "with these numbers nothing stalls even without the fix. Let the snapshot outlast what is left of "
        "the budget (--snapshot-for), or try the defaults."
    )
