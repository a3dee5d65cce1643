"""`verify` on the stall's other roads: too slow, a row that fails, and the hanging run, which stays."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import stranded
from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.replay import drawing, lanes, verifying
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.records import EventKind, Replay
from nemo_rl_deadline_fix.replay.verdict import Form, Verdict, Verification
from tests.support.fixture_trees import applied_tree, make_tree

SLOW, FAIL_ROW, HANG = Parameters(work=220), Parameters(fail_row=True), Parameters(hang=True)
GONE = "The stall is there before and with the clocks alone, and gone with --acknowledge: the fix holds"
STAYS = "the snapshot at 450 s failed on a run that never reaches a turn boundary"


@cache
def simulated(parameters: Parameters) -> Verification:
    """The embedded model on one road."""
    return verifying.of_embedded(parameters)


def at(run: Replay, *kinds: EventKind) -> list[tuple[float, str]]:
    """When events of some kinds were, and what they said."""
    return [(event.at, event.what) for event in run.events if event.kind in kinds]


def verify(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one `verify`."""
    with pytest.raises(SystemExit) as left:
        app(["verify", *map(str, arguments)])
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def verify_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and object of `verify --json`."""
    code, out, err = verify(capsys, "--json", *arguments)
    assert err == ""
    return code, json.loads(out)


# In virtual time


def test_the_default_story_needs_no_third_form() -> None:
    """The clocks are enough for it, so nothing is acknowledged and there are two forms."""
    assert list(simulated(Parameters()).runs) == [Form.AS_IS, Form.CLOCKS]


@pytest.mark.parametrize(
    ("parameters", "given_up_at", "released"),
    [
        (SLOW, 240.0, ["try 0, given up by RL, is ACKed; its reply is released"]),
        (
            FAIL_ROW,
            85.0,
            [f"try 0 row {n}, given up by RL, is ACKed; its reply is released" for n in (1, 2)],
        ),
    ],
    ids=["too slow", "a row fails"],
)
def test_acknowledged_at_the_second_look_the_snapshot_is_saved(
    parameters: Parameters, given_up_at: float, released: list[str]
) -> None:
    """With the clocks alone the second snapshot times out; acknowledged it is ready after 0.6 s."""
    clocks, acknowledge = (simulated(parameters).runs[form] for form in (Form.CLOCKS, Form.ACKNOWLEDGE))

    assert clocks.attempts[0].at == acknowledge.attempts[0].at == given_up_at
    assert [attempt.acknowledged for attempt in clocks.attempts] == [False, True]
    assert [attempt.acknowledged for attempt in acknowledge.attempts] == [True, True]
    assert [snapshot.ended_at for snapshot in clocks.snapshots] == [210.0, 750.0]
    assert [snapshot.ended_at for snapshot in acknowledge.snapshots] == [210.0, 450.6]
    late = [event for event in at(acknowledge, EventKind.RUN_ACKED) if event[0] > 450]
    assert sorted(late) == [(450.5, what) for what in released]
    assert simulated(parameters).verdict is Verdict.FIXED


def test_one_failed_row_needs_no_deadline() -> None:
    """RL stops reading at the row's failure; in no form a deadline fires, and no reply of RL's is touched."""
    for form, run in simulated(FAIL_ROW).runs.items():
        assert at(run, EventKind.DEADLINE_FIRES) == []
        assert at(run, EventKind.RUN_FAILS, EventKind.ROW_FAILS) == [
            (85.0, "try 0 row 0 fails: HTTP 500"),
            (85.0, "a row fails: HTTP 500; RL stops reading"),
        ]
        assert [attempt.outcome for attempt in run.attempts] == ["failed", "reply"]
        assert (run.bodies_started, run.bodies_finished, run.replies.read) == (6, 6, 3)
        given_up = (run.replies.acknowledged, run.replies.stranded)
        assert given_up == ((2, 0) if form is Form.ACKNOWLEDGE else (0, 2))


def test_a_hanging_run_stays_in_every_form() -> None:
    """The first snapshot parks it; from then on none is saved, whatever is put on, and that is said."""
    verification = simulated(HANG)

    for run in verification.runs.values():
        assert [snapshot.outcome for snapshot in run.snapshots] == ["committed", "failed"]
        assert (run.bodies_started, run.bodies_finished) == (2, 1)
        assert (run.replies.read, run.replies.acknowledged, run.replies.stranded) == (1, 0, 0)
        gives_up = (750.0, "gives up (0 parked, 0 not ACKed, 1 running)")
        assert at(run, EventKind.PREPARE_GIVES_UP) == [gives_up]
    assert list(verification.runs) == list(Form)
    assert verification.verdict is Verdict.STILL_STALLS
    assert STAYS in verification.sentence


def test_the_packages_own_watch_is_what_acknowledges(mocker: MockerFixture) -> None:
    """Without its verdict on the ledger the third form stalls as the second does."""
    mocker.patch.object(stranded, "verdict", return_value=stranded.Verdict.WANTED)

    found = verifying.of_embedded(FAIL_ROW)

    assert found.runs[Form.ACKNOWLEDGE].snapshots[-1].ended_at == 750.0
    assert found.verdict is Verdict.STILL_STALLS
    assert "with the fix and --acknowledge" in found.sentence


def test_a_group_that_left_before_the_first_snapshot_is_acknowledged_after_the_grace() -> None:
    """Nobody could remember it, so its replies are unknown for half of the prepare timeout."""
    parameters = Parameters(fail_row=True, snapshot_at=300, second_at=450)

    run = verifying.of_embedded(parameters).runs[Form.ACKNOWLEDGE]

    first = run.snapshots[0]
    assert (first.at, first.outcome) == (300.0, "committed")
    assert {when for when, what in at(run, EventKind.RUN_ACKED) if "given up" in what} == {450.0}


@pytest.mark.parametrize(
    ("parameters", "replies"),
    [
        (Parameters(fail_row=True, hang=True), (3, 1, 0)),
        (Parameters(fail_row=True, budget=50), (0, 14, 0)),
        # What finishes after the last snapshot is the next one's.
        (Parameters(fail_row=True, retry_work=400), (0, 2, 12)),
    ],
    ids=["a row fails, another hangs", "a row fails unread", "every retry is too slow"],
)
def test_roads_together(parameters: Parameters, replies: tuple[int, int, int]) -> None:
    """Whatever else goes wrong, what was given up before a snapshot is acknowledged in it."""
    run = simulated(parameters).runs[Form.ACKNOWLEDGE]

    assert (run.replies.read, run.replies.acknowledged, run.replies.stranded) == replies
    assert run.hangs is parameters.hang
    assert run.snapshots[1].outcome == ("failed" if parameters.hang else "committed")


def test_a_second_snapshot_before_the_reply_is_told_to_come_later() -> None:
    """Nothing stalls yet, though a reply will be stranded: the advice is the right one."""
    early = verifying.of_embedded(Parameters(fail_row=True, snapshot_at=10, snapshot_for=5, second_at=16))

    assert early.verdict is Verdict.UNDECIDED
    assert "Let it come later (--second-at)" in early.sentence


# As users see it


@pytest.mark.parametrize(
    ("arguments", "code", "rows"),
    [
        (
            ["--work", "220"],
            0,
            [
                "before       1 of 2           0 read, 5 given up and not ACKed",
                "clocks       1 of 2           1 read, 1 given up and not ACKed",
                "acknowledge  2 of 2           1 read, 1 given up and ACKed",
            ],
        ),
        (
            ["--fail-row"],
            0,
            [
                "before       1 of 2           3 read, 2 given up and not ACKed",
                "clocks       1 of 2           3 read, 2 given up and not ACKed",
                "acknowledge  2 of 2           3 read, 2 given up and ACKed",
            ],
        ),
        (
            ["--hang"],
            1,
            [
                "before       1 of 2           1 read, a run hangs",
                "clocks       1 of 2           1 read, a run hangs",
                "acknowledge  1 of 2           1 read, a run hangs",
            ],
        ),
    ],
    ids=["too slow", "a row fails", "a run hangs"],
)
def test_people_read_three_timelines_a_summary_and_a_verdict(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    rows: list[str],
) -> None:
    """One below the other, within 80 columns, and the exit code says whether the fix holds."""
    monkeypatch.setenv("COLUMNS", "80")

    exit_code, out, err = verify(capsys, *arguments)

    assert (exit_code, err) == (code, "")
    lines = out.splitlines()
    titles = ["before: as the code is", "clocks: with the fix", "acknowledge: with the fix and --acknowledge"]
    assert [line for line in lines if line in titles] == titles
    summary = lines.index("             snapshots saved  replies")
    assert lines[summary + 1 : summary + 4] == rows
    assert max(map(len, lines)) <= 80
    assert (GONE if code == 0 else f"STILL STALLS with the fix and --acknowledge: {STAYS}") in " ".join(lines)


def test_the_timelines_name_the_failed_row_and_the_hanging_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What is special about a road stands in its timeline and in the lines below it."""
    _, failed, _ = verify(capsys, "--fail-row")
    _, hung, _ = verify(capsys, "--hang")

    assert " 85.0  Gym /run     try 0 row 0 fails: HTTP 500" in failed
    assert "RL outcome: a row failed after 85 s, HTTP 500" in failed
    assert failed.count("next prepare: not ready, 2 finished but not ACKed\n") == 2
    assert hung.count("0 finished but not ACKed; a run never reaches a turn\n  boundary\n") == 3


def test_programs_get_the_third_form_and_what_became_of_the_replies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`acknowledge` beside `before` and `after`; null where the clocks are enough."""
    code, found = verify_json(capsys, "--fail-row")

    assert (code, found["verdict"], found["fixed"]) == (0, "fixed", True)
    assert (found["parameters"]["fail_row"], found["parameters"]["hang"]) == (True, False)
    assert found["after"]["replies"] == {"read": 3, "acknowledged": 0, "stranded": 2}
    assert found["acknowledge"]["replies"] == {"read": 3, "acknowledged": 2, "stranded": 0}
    assert found["acknowledge"]["scratch_run"][1] == "RL outcome: {'failed': 'HTTP 500'}"
    acked = [event for event in found["acknowledge"]["events"] if event["at"] == 450.5]
    assert sorted((event["number"], event["row"]) for event in acked) == [(0, 1), (0, 2)]
    assert {"acknowledged": 2.0, "unknown": 0.0, "failed": 0.0} in found["acknowledge"]["telemetry"]
    assert verify_json(capsys)[1]["acknowledge"] is None


@pytest.mark.slow
def test_the_picture_has_a_panel_for_each_form_and_a_lane_for_each_row() -> None:
    """Its titles tell of snapshots and replies; what RL gave up is kept until it is ACKed, or for ever."""
    verification = simulated(FAIL_ROW)

    before, _, acknowledge = (lanes.lanes(run, 180) for run in verification.runs.values())
    titles = [
        (text.get_text(), text.get_color())
        for text in drawing.figure(verification).axes[0].texts
        if str(text.get_gid()).endswith("-title")
    ]

    rows = [f"Gym try {number} row {row}" for number in (0, 1) for row in (0, 1, 2)]
    assert [name for name in before if name.startswith("Gym try")] == rows
    assert [span.caption for span in before["Gym try 0 row 0"]] == ["85 s: try 0 row 0 fails: HTTP 500"]
    assert before["Gym try 0 row 1"][-1].caption == "220 s: finished, reply never read and never ACKed"
    assert acknowledge["Gym try 0 row 1"][-1].caption == "220 s: finished, ACKed 450.5 s"
    kept = "1 of 2 snapshots saved; replies: 3 read, 2 given up and not ACKed"
    saved = "2 of 2 snapshots saved; replies: 3 read, 2 given up and ACKed"
    assert titles == [
        (f"Before: as the code is. {kept}", drawing.BAD),
        (f"Clocks: with the fix. {kept}", drawing.BAD),
        (f"Acknowledge: with the fix and --acknowledge. {saved}", drawing.GOOD),
    ]


@pytest.mark.slow
def test_the_picture_shows_that_a_run_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is never over is shown to its end, as a failure, and the file is written."""
    hung = lanes.lanes(simulated(HANG).runs[Form.ACKNOWLEDGE], 180)["Gym /run, try 0"]

    assert [span.caption for span in hung if span.kind.bad] == ["210 s: never again at a turn boundary"]
    code, _, err = verify(capsys, "--hang", "--plot", tmp_path / "hang.svg")
    assert (code, err) == (1, f"wrote {tmp_path / 'hang.svg'}\n")


# Checkouts


@pytest.mark.parametrize("version", ["A", *(pytest.param(one, marks=pytest.mark.slow) for one in "BC")])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--work", "220"], 0), (["--fail-row"], 0), (["--hang"], 1)],
    ids=["too slow", "a row fails", "a run hangs"],
)
def test_a_checkouts_own_controller_carries_the_models_ledger(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, arguments: list[str], code: int
) -> None:
    """Its own classes go all roads; a failed row is none where every row is read first."""
    tree = make_tree(tmp_path, version)
    if (version, arguments) == ("C", ["--fail-row"]):
        exit_code, out, err = verify(capsys, "--rl", tree, *arguments)
        assert (exit_code, out, err.count("\n")) == (2, "", 1)
        assert f"cannot play --fail-row on {tree}; found: a version that reads every row" in err
        return

    exit_code, found = verify_json(capsys, "--rl", tree, *arguments)

    assert (exit_code, found["acknowledge"]["snapshots"][1]["outcome"]) == (
        code,
        "failed" if code else "committed",
    )


def test_two_shards_are_watched_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Version C with two Gym actors is acknowledged as with one."""
    code, found = verify_json(capsys, "--rl", make_tree(tmp_path, "C"), "--shards", "2", "--work", "220")

    assert (code, found["acknowledge"]["snapshots"][1]["ended_at"]) == (0, 450.6)


def test_the_source_form_leaves_the_other_roads_open(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A tree with the diff in it stalls on a failed row, and no all-clear is given."""
    code, found = verify_json(capsys, "--rl", applied_tree(tmp_path), "--fail-row")

    assert (code, found["verdict"], found["after"]) == (1, "still_stalls", None)
    assert "a row of try 0 failed, which strands its siblings' replies" in found["message"]


@pytest.mark.parametrize("road", ["--fail-row", "--hang"])
@pytest.mark.parametrize("version", ["before", "D", "E", "N"])
def test_a_line_that_is_not_simulated_gets_no_all_clear_for_a_road(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, road: str
) -> None:
    """What `check` finds is about the clocks; a road that cannot be played is one line, exit code 2."""
    code, out, err = verify(capsys, "--rl", make_tree(tmp_path, version), road)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"cannot play {road} on " in err
    assert "found: " in err
    assert f"do this: leave {road} out" in err


def test_a_controller_that_cannot_carry_the_ledger_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One that asks the ledger for what the model's has not is refused with the cause."""
    tree = make_tree(tmp_path)
    controller = tree / "nemo_rl/algorithms/single_controller.py"
    flush = "            await self._flush_completed_gym_acknowledgements()\n"
    text = controller.read_text()
    assert flush in text
    asks = flush + "            if hasattr(self, '_rollout_recovery_ledger'):\n"
    asks += "                self._rollout_recovery_ledger.later()\n"
    controller.write_text(text.replace(flush, asks, 1))

    code, out, err = verify(capsys, "--rl", tree, "--work", "220")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot play the acknowledging form on" in err
    assert "found: AttributeError: 'RolloutRecoveryLedger' object has no attribute 'later'" in err
