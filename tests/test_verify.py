"""`verify`: the main job, as a user sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_rl_deadline_fix.__main__ import main
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.replay.story import holders_left
from nemo_rl_deadline_fix.targets import RELEASE
from nemo_rl_deadline_fix.wrapping import patch

TREES = Path(__file__).parent / "support" / "trees"
PINNED = TREES / "pinned"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return int(left.value.code or 0), printed.out, printed.err


def verify_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and object of `verify --json`."""
    code, out, err = run(capsys, "verify", "--json", *arguments)
    assert err == ""
    return code, json.loads(out)


def test_defaults_tell_the_background_documents_story(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON of the defaults holds the figures of the background document, before and after."""
    code, found = verify_json(capsys)

    assert code == 0
    assert found["schema_version"] == 1
    assert found["target"] == {"kind": "embedded", "path": None, "files": []}
    assert found["parameters"]["budget"] == 180.0
    assert found["parameters"]["prepare_timeout"] == 300.0
    before, after = found["before"], found["after"]
    assert before["snapshots"][0] == {
        "at": 150.0,
        "ready_to_commit": True,
        "parked": 1,
        "completed_unacknowledged": 0,
        "deadlines_suspended": False,
        "ended_at": 210.0,
        "outcome": "committed",
        "error": "",
    }
    second = before["snapshots"][1]
    assert (second["at"], second["ended_at"], second["outcome"]) == (450.0, 750.0, "failed")
    assert (second["ready_to_commit"], second["completed_unacknowledged"]) == (False, 1)
    assert {key: before["attempts"][0][key] for key in ("index", "outcome", "at", "state_when_given_up")} == {
        "index": 0,
        "outcome": "timeout",
        "at": 180.0,
        "state_when_given_up": "parked",
    }
    assert before["attempts"][0]["acknowledged"] is False
    (reply,) = after["attempts"]
    assert (reply["outcome"], reply["reward"], reply["acknowledged"]) == ("reply", 1.0, True)
    assert reply["at"] < 240.0
    assert after["snapshots"][0]["deadlines_suspended"] is True
    assert (after["snapshots"][1]["ready_to_commit"], after["snapshots"][1]["completed_unacknowledged"]) == (
        True,
        0,
    )
    assert before["holders_left"] == after["holders_left"] == []
    assert (found["stall_reproduced"], found["fixed"], found["verdict"]) == (True, True, "fixed")


def test_human_output_has_timelines_the_scratch_runs_lines_and_a_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a person reads: who did what when, the reviewer's lines, one line of verdict."""
    code, out, err = run(capsys, "verify")

    assert (code, err) == (0, "")
    for line in (
        "prepare: ready_to_commit=True parked=1 (RL deadline registry suspended=False)",
        "RL outcome: {'timeout': 'NeMo-Gym prompt group exceeded 180.0s', 'state_when_rl_gave_up': 'parked'}",
        "next prepare: ready_to_commit=False completed_unacknowledged=1",
        "prepare: ready_to_commit=True parked=1 (RL deadline registry suspended=True)",
        "RL outcome: {'reply': {'reward': 1.0}}",
        "bodies started=1 finished=1",
        "next prepare: ready_to_commit=True completed_unacknowledged=0",
    ):
        assert line in out.splitlines()
    before, _, after = out.partition("after: with the fix")
    assert "180.0  RL try 0     deadline fires while parked: RL stops reading" in before
    assert "750.0  RL           snapshot 2 failed: TimeoutError" in before
    assert "150.0  clock        stops with 30 s left" in after
    assert "210.0  clock        runs again until 240" in after
    assert out.splitlines()[-1] == (
        "The stall is there before and gone after: the fix holds for these numbers."
    )


@pytest.mark.parametrize("overlap", ["none", "sync", "training"])
def test_a_checkout_is_replayed_with_its_own_classes(
    capsys: pytest.CaptureFixture[str], overlap: str
) -> None:
    """`--rl` cuts the classes out of the checkout and names the files and lines that ran."""
    code, found = verify_json(capsys, "--rl", str(PINNED), "--overlap", overlap)

    assert (code, found["verdict"]) == (0, "fixed")
    assert found["target"]["kind"] == "checkout"
    assert found["target"]["path"] == str(PINNED)
    files = {entry["path"]: entry["lines"] for entry in found["target"]["files"]}
    assert set(files) == {
        "nemo_rl/algorithms/single_controller.py",
        "nemo_rl/experience/rollout_manager.py",
    }
    controller = (PINNED / "nemo_rl/algorithms/single_controller.py").read_text().splitlines()
    ran = [
        line
        for first, last in files["nemo_rl/algorithms/single_controller.py"]
        for line in controller[first - 1 : last]
    ]
    assert "        self._gym_checkpoint_rollout_permitted.clear()" in ran
    assert found["before"]["attempts"][0]["at"] == 180.0


def test_a_checkout_stays_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Replaying a checkout writes nothing into it, bytecode included."""
    before = {path: path.read_bytes() for path in PINNED.rglob("*.py")}

    verify_json(capsys, "--rl", str(PINNED))

    assert {path: path.read_bytes() for path in PINNED.rglob("*.py")} == before


def test_a_tree_without_the_feature_has_nothing_to_fix(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A NeMo RL from before Gym snapshots is told so in one line, exit code 0."""
    for name in ("nemo_rl/algorithms/single_controller.py", "nemo_rl/experience/rollout_manager.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("class SingleControllerActor:\n    pass\n\n\nclass RolloutManager:\n    pass\n")

    code, out, err = run(capsys, "verify", "--rl", str(tmp_path))

    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "Nothing to fix here: this tree has no Gym snapshot code."


@pytest.mark.parametrize(
    "edit",
    [
        ("prepared = False", "prepared = self._fence.is_open()"),
        ("class RequestDeadlineRegistry", "class Registry"),
        ("def _release_committed_gym_checkpoint", "def _let_go"),
        ("self._live: set", "self._deadlines: set"),
    ],
    ids=["unknown attribute", "registry renamed", "method renamed", "other layout"],
)
def test_a_shape_that_cannot_be_run_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, edit: tuple[str, str]
) -> None:
    """Code that the replay does not know is refused, not guessed: one line, exit code 2."""
    changed = 0
    for path in PINNED.rglob("*.py"):
        text = path.read_text()
        changed += edit[0] in text
        copy = tmp_path / path.relative_to(PINNED)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(*edit))
    assert changed

    code, out, err = run(capsys, "verify", "--rl", str(tmp_path))

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("nemo-rl-deadline-fix: ")
    assert "found: " in line
    assert "do this: " in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("--budget", "0"),
        ("--budget", "-1"),
        ("--budget", "nan"),
        ("--snapshot-for", "inf"),
        ("--second-at", "209"),
        ("--turn", "0.001"),
        ("--work", "1e9"),
        ("--prepare-timeout", "7201"),
        ("--retry-work", "100000", "--turn", "1"),
        ("--rl", "no/such/folder"),
        ("--rl", str(PINNED), "--installed"),
    ],
    ids=" ".join,
)
def test_impossible_values_get_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """What cannot be replayed is said in one line, with exit code 2 and nothing on stdout."""
    code, out, err = run(capsys, "verify", *arguments)

    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_numbers_under_which_nothing_stalls_decide_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a stall before, there is nothing to show: exit code 2."""
    code, found = verify_json(capsys, "--budget", "900")

    assert (code, found["verdict"], found["stall_reproduced"]) == (2, "undecided", False)


def test_a_rollout_that_is_really_too_slow_still_stalls(capsys: pytest.CaptureFixture[str]) -> None:
    """The limit of the fix is shown, not hidden: exit code 1 and the reason."""
    code, found = verify_json(capsys, "--work", "220", "--retry-work", "10")

    assert (code, found["verdict"], found["fixed"]) == (1, "still_stalls", False)
    assert "too slow for its budget while it ran" in found["message"]


def test_what_still_stalls_after_the_fix_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fix that does nothing, verify says so with exit code 1."""
    monkeypatch.setattr("nemo_rl_deadline_fix.replay.subjects.patch", lambda controller: None)

    code, found = verify_json(capsys)

    assert (code, found["verdict"], found["fixed"]) == (1, "still_stalls", False)
    assert "RL gave up on try 0 at 180 while a snapshot had it parked" in found["message"]


def test_a_fix_that_never_lets_go_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stalls in the two snapshots, but clocks that stay stopped are no fix: exit code 1."""

    def stops_only(controller: type[Any]) -> None:
        patch(controller)
        setattr(controller, RELEASE, vars(controller)[RELEASE].__wrapped__)

    monkeypatch.setattr("nemo_rl_deadline_fix.replay.subjects.patch", stops_only)

    code, found = verify_json(capsys)

    assert (code, found["verdict"], found["fixed"]) == (1, "still_stalls", False)
    assert "the clocks are still held by gym_checkpoint" in found["message"]


def command(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a package tree on its path."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "nemo_rl_deadline_fix", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_an_installed_nemo_rl_is_verified_through_install() -> None:
    """`--installed` imports NeMo RL, replays it as it is, and again after install()."""
    done = command("verify", "--installed", "--json", path=PINNED)

    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (found["target"]["kind"], found["verdict"]) == ("installed", "fixed")
    assert found["before"]["attempts"][0]["at"] == 180.0


def test_no_nemo_rl_installed_is_one_line(tmp_path: Path) -> None:
    """`--installed` without NeMo RL says what to do, with exit code 2."""
    done = command("verify", "--installed", path=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "No module named 'nemo_rl'" in line
    assert "--rl PATH" in line


def test_a_tree_of_just_the_two_files_is_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nothing else of the checkout is needed: not even the file that defines the timeout."""
    for name in ("nemo_rl/algorithms/single_controller.py", "nemo_rl/experience/rollout_manager.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True)
        copy.write_bytes((PINNED / name).read_bytes())

    code, found = verify_json(capsys, "--rl", str(tmp_path))

    assert (code, found["verdict"]) == (0, "fixed")
    assert found["before"]["attempts"][0]["error"] == "NeMo-Gym prompt group exceeded 180.0s"


def test_a_second_snapshot_that_comes_too_early_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    """Where RL gave up on a parked try and nothing was there yet to block, the advice is the right one."""
    numbers = "--snapshot-at 5 --snapshot-for 313 --work 90 --turn 30 --second-at 318".split()
    code, found = verify_json(capsys, *numbers)

    assert (code, found["verdict"]) == (2, "undecided")
    assert found["before"]["attempts"][0]["state_when_given_up"] == "parked"
    assert "--second-at" in found["message"]


def test_a_late_ack_is_no_stall(capsys: pytest.CaptureFixture[str]) -> None:
    """A reply that is read and ACKed just after a prepare gave up blocks nothing."""
    numbers = (
        "--budget 3600 --snapshot-at 180 --snapshot-for 30 --second-at 210 --prepare-timeout 60 --work 300 "
        "--turn 450"
    ).split()
    code, found = verify_json(capsys, *numbers)

    assert (code, found["verdict"]) == (2, "undecided")
    assert found["after"]["attempts"][0]["acknowledged"] is True


def test_clocks_that_nobody_lets_go_are_left_held() -> None:
    """A registry that stays suspended without a holder's name is held all the same."""

    class Leaking(rl.RequestDeadlineRegistry):
        _holders: frozenset[str] = frozenset()

        def resume(self) -> None:
            super().resume()
            self.suspended = True

    assert holders_left(Leaking()) == ()
    leaking = Leaking()
    leaking.suspend()
    leaking.resume()
    assert holders_left(leaking) == ("(unnamed)",)


def test_a_decorated_method_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A decorator that comes from an import is stood in for by one that changes nothing."""
    for path in PINNED.rglob("*.py"):
        copy = tmp_path / path.relative_to(PINNED)
        copy.parent.mkdir(parents=True, exist_ok=True)
        method = "    async def _prepare_and_commit_gym_checkpoint("
        copy.write_text(path.read_text().replace(method, f'    @traced("snapshot")\n{method}'))

    code, found = verify_json(capsys, "--rl", str(tmp_path))

    assert (code, found["verdict"]) == (0, "fixed")


@pytest.mark.parametrize(
    ("redirection", "code", "lines"),
    [(">&-", 0, 0), ("> /dev/full", 2, 1), ("| head -c 1 > /dev/null", 0, 0)],
)
@pytest.mark.parametrize(
    "arguments", ["verify --json", "check --json tests/support/trees/pinned", "--version"]
)
def test_an_output_that_takes_nothing_is_no_traceback(
    arguments: str, redirection: str, code: int, lines: int
) -> None:
    """Closed, full or left early: at most one line, and the exit code of what happened."""
    done = subprocess.run(
        f"{sys.executable} -m nemo_rl_deadline_fix {arguments} {redirection}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=TREES.parents[2],
    )

    expected = 1 if arguments.startswith("check") and code == 0 and redirection == ">&-" else code
    assert done.returncode == expected
    assert len(done.stderr.splitlines()) == lines, done.stderr
