"""`verify`: the main job, as a user sees it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.replay import clock, rl, verifying
from nemo_rl_deadline_fix.replay.gym import Prepared, Remote
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.simulation import finish_pending
from nemo_rl_deadline_fix.replay.subjects import build_controller, holders_left, leaf
from tests.support.fixture_trees import (
    CLEAR,
    CONTROLLER,
    MANAGER,
    PINNED,
    SET,
    Shape,
    applied_tree,
    make_tree,
)

FIXED = "The stall is there before and gone after: the fix holds for these numbers."


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one `verify`."""
    with pytest.raises(SystemExit) as left:
        app(["verify", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return int(left.value.code or 0), printed.out, printed.err


def verify_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and object of `verify --json`."""
    code, out, err = run(capsys, "--json", *arguments)
    assert err == ""
    return code, json.loads(out)


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a `verify` that is refused with exit code 2 and nothing on stdout."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("nemo-rl-deadline-fix: ")
    return line


# What is printed


def test_the_json_of_the_defaults_has_the_background_documents_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Snapshots, tries and the reviewer's scratch run, before and after."""
    code, found = verify_json(capsys)

    assert (code, found["schema_version"]) == (0, 2)
    assert found["target"] == {"kind": "embedded", "path": None, "files": []}
    assert (found["parameters"]["budget"], found["parameters"]["prepare_timeout"]) == (180.0, 300.0)
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
    assert before["attempts"][0] == {
        "index": 0,
        "outcome": "timeout",
        "at": 180.0,
        "state_when_given_up": "parked",
        "reward": None,
        "acknowledged": False,
        "error": "NeMo-Gym prompt group exceeded 180.0s",
    }
    assert before["scratch_run"] == [
        "prepare: ready_to_commit=True parked=1 (RL deadline registry suspended=False)",
        "RL outcome: {'timeout': 'NeMo-Gym prompt group exceeded 180.0s', 'state_when_rl_gave_up': 'parked'}",
        "bodies started=2 finished=2",
        "next prepare: ready_to_commit=False completed_unacknowledged=1",
    ]
    assert after["scratch_run"] == [
        "prepare: ready_to_commit=True parked=1 (RL deadline registry suspended=True)",
        "RL outcome: {'reply': {'reward': 1.0}}",
        "bodies started=1 finished=1",
        "next prepare: ready_to_commit=True completed_unacknowledged=0",
    ]
    assert before["holders_left"] == after["holders_left"] == []
    assert (found["stall_reproduced"], found["fixed"], found["verdict"]) == (True, True, "fixed")


def test_people_read_timelines_outcomes_in_words_a_summary_and_a_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every line of it is README's (test_readme); here is what each part says."""
    code, out, err = run(capsys)

    assert (code, err) == (0, "")
    before, _, after = out.partition("after: with the fix")
    for line in (
        "180.0  RL try 0     deadline fires while parked: RL stops reading",
        "750.0  RL           snapshot 2 failed: TimeoutError",
        "prepare: ready, 1 parked, RL's clocks running",
        "RL outcome: timed out after 180 s while parked",
        "next prepare: not ready, 1 finished but not ACKed",
    ):
        assert line in before.splitlines()
    for line in (
        "150.0  clock        stops with 30 s left",
        "210.0  clock        runs again until 240",
        "prepare: ready, 1 parked, RL's clocks stopped",
        "RL outcome: reply with reward 1",
        "Gym runs: 1 started, 1 finished",
        "before  1 of 2           timed out after 180 s while parked",
        "after   2 of 2           reply with reward 1",
    ):
        assert line in after.splitlines()
    assert out.splitlines()[-1] == FIXED


@pytest.mark.parametrize("columns", [80, 50])
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int
) -> None:
    """Lines break at words; only a word that is longer than the terminal is wide, as a path, sticks out."""
    monkeypatch.setenv("COLUMNS", str(columns))
    tree = make_tree(tmp_path / "a folder with a name" / "tree", "C")

    code, out, _ = run(capsys, "--rl", tree, "--shards", "3")

    assert code == 0
    for line in out.splitlines():
        assert line == line.rstrip()
        assert len(line) <= columns or len(line.split()) == 1, line


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), (None, True)])
def test_a_terminal_gets_colours(
    capsys: pytest.CaptureFixture[str],
    mocker: MockerFixture,
    monkeypatch: pytest.MonkeyPatch,
    no_color: str | None,
    coloured: bool,
) -> None:
    """A terminal sees what went wrong in red; NO_COLOR is respected, and a pipe gets none (above)."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    mocker.patch.object(sys.stdout, "isatty", return_value=True)

    _, out, _ = run(capsys)

    assert ("\x1b[31m180.0  RL try 0     deadline fires" in out) is coloured
    assert ("\x1b[" in out) is coloured


def test_a_terminal_that_cannot_show_the_path_is_no_traceback(tmp_path: Path) -> None:
    """What the encoding lacks is escaped, and the exit code is the verdict's."""
    make_tree(tmp_path / "café-✓")

    done = spawn("verify", "--rl", str(tmp_path / "café-✓"), PYTHONIOENCODING="latin-1", COLUMNS="40")

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"caf\xe9-\\u2713" in done.stdout


@pytest.mark.parametrize(
    ("redirection", "code", "lines"),
    [(">&-", 0, 0), ("> /dev/full", 2, 1), ("| head -c 1 > /dev/null", 0, 0)],
)
def test_an_output_that_takes_nothing_is_no_traceback(redirection: str, code: int, lines: int) -> None:
    """Closed, full or left early: at most one line, and the exit code of what happened."""
    command = f"{sys.executable} -m nemo_rl_deadline_fix verify {redirection}"

    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)

    assert done.returncode == code
    assert len(done.stderr.splitlines()) == lines, done.stderr


# Checkouts


@pytest.mark.parametrize("overlap", ["none", "sync", "training"])
def test_a_version_with_the_gate_is_simulated_before_and_after_apply(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, overlap: str
) -> None:
    """Its own classes stall at 180 s as they are, not with the fix, and not after `apply`."""
    affected, fixed = make_tree(tmp_path / "affected", "A"), applied_tree(tmp_path / "fixed", "A")

    code, found = verify_json(capsys, "--rl", affected, "--overlap", overlap)
    assert (code, found["verdict"]) == (0, "fixed")
    assert found["before"]["attempts"][0]["at"] == 180.0

    code, found = verify_json(capsys, "--rl", fixed, "--overlap", overlap)
    assert (code, found["verdict"], found["after"]) == (0, "already_fixed", None)
    assert found["before"]["attempts"][0]["outcome"] == "reply"


def test_the_files_that_ran_are_named_and_left_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    """The checkout's own two files ran, and nothing was written beside them."""
    before = {path: path.stat().st_mtime_ns for path in PINNED.rglob("*")}

    _, found = verify_json(capsys, "--rl", PINNED)

    assert found["target"]["files"] == [CONTROLLER, MANAGER]
    assert {path: path.stat().st_mtime_ns for path in PINNED.rglob("*")} == before


def test_two_shards_are_asked_side_by_side(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version C with two shards stalls and is fixed as with one, and makes its folders elsewhere."""
    tree, fixed = make_tree(tmp_path / "tree", "C"), applied_tree(tmp_path / "fixed", "C")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    code, found = verify_json(capsys, "--rl", tree, "--shards", "2")

    assert (code, found["verdict"]) == (0, "fixed")
    prepares = {event["who"] for event in found["after"]["events"] if event["kind"] == "prepare_ready"}
    assert prepares == {"Gym prepare", "Gym 2 prepare"}
    assert verify_json(capsys, "--rl", fixed, "--shards", "2")[1]["verdict"] == "already_fixed"
    assert list(Path.cwd().iterdir()) == []


def test_code_without_shards_is_not_simulated_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that would not count for anything are refused."""
    assert "found: code that asks one Gym actor" in one_line(capsys, "--shards", "2")


@pytest.mark.parametrize("shards", [1, 2])
def test_a_failed_abort_is_retried_under_the_same_id(tmp_path: Path, shards: int) -> None:
    """Version C keeps an abort that Gym did not confirm, and the loop's next turn finishes it."""
    subject = verifying.subject_of(make_tree(tmp_path / "tree", "C"))
    gyms = [_RefusingGym() for _ in range(shards)]

    async def main() -> tuple[list[bool], list[str]]:
        gate = asyncio.Event()
        gate.set()
        controller = build_controller(
            subject, gyms, Parameters(), gate=gate, acknowledge=_nobody, telemetry=[]
        )
        opened = []
        with pytest.raises(OSError, match="tried again") as failure:
            await controller._prepare_and_commit_gym_checkpoint("first", tmp_path / "first")
        assert isinstance(leaf(failure.value), ConnectionError)
        opened.append(gate.is_set())
        await finish_pending(controller)
        opened.append(gate.is_set())
        assert controller._pending_gym_checkpoint_abort is None
        return opened, [checkpoint_id for gym in gyms for checkpoint_id in gym.aborted]

    assert clock.run(main()) == ([False, True], ["first", "first"] * shards)


class _RefusingGym:
    """A shard that does not get ready, and does not hear the first abort."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.prepare_checkpoint = Remote(self._prepare)
        self.abort_checkpoint = Remote(self._abort)

    async def _prepare(self, checkpoint_id: str, _: float) -> Prepared:
        return Prepared(1, 0, 0, checkpoint_id)

    async def _abort(self, checkpoint_id: str, _: float) -> None:
        self.aborted.append(checkpoint_id)
        if len(self.aborted) == 1:
            raise ConnectionError("Gym is away")


async def _nobody() -> int:
    return 0


def test_a_later_version_is_simulated_with_the_attributes_of_its_own_init(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """New constants, locks, containers and settings are taken from `__init__`; nothing else of it runs."""
    later = Shape(
        made=(
            (
                "        self._gym_acknowledgements: list[Any] = []\n",
                "        self._gym_acknowledgements: list[Any] = []\n"
                "        self._limit_s: float = 2 * _LIMIT_S\n"
                "        self._seen: set[str] = set()\n"
                "        self._seen.add('nobody')\n"
                "        self._snapshot_lock = asyncio.Lock()\n"
                "        self._later = master_config.rollout_checkpointing.gym.later_enabled\n"
                "        self._workers = actor_args.workers\n"
                "        open('written', 'w')\n"
                "        self._file = open('written', 'w')\n"
                "        print('printed')\n",
            ),
            ("\n\n@ray.remote(", "\n\n_LIMIT_S = 30.0\n\n\n@ray.remote("),
            (
                "            await self._flush_completed_gym_acknowledgements()\n            answer",
                "            async with self._snapshot_lock:\n"
                "                if self._later or self._limit_s != 60 or 'nobody' not in self._seen:\n"
                "                    raise ValueError('another __init__')\n"
                "            await self._flush_completed_gym_acknowledgements()\n            answer",
            ),
        )
    )
    tree = make_tree(tmp_path, later)

    code, out, err = run(capsys, "--rl", tree)

    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == FIXED
    assert "printed" not in out
    assert not Path("written").exists()


def test_what_cannot_be_simulated_says_the_cause_and_not_its_wrapping(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A missing attribute is named, out of version B's group and out of C's abort that is still pending."""
    b, c = make_tree(tmp_path / "b", "B"), make_tree(tmp_path / "c", "C")
    replace(b / CONTROLLER, "self._generation_checkpoint_pause_id: Optional[str] = None", "pass")
    replace(c / CONTROLLER, "        operation = ", "        self._regions.clear()\n        operation = ")

    of_b, of_c = one_line(capsys, "--rl", b), one_line(capsys, "--rl", c)

    missing = "found: AttributeError: 'SingleControllerActor' object has no attribute"
    assert f"{missing} '_generation_checkpoint_pause_id';" in of_b
    assert f"{missing} '_regions';" in of_c
    assert "Group" not in of_b + of_c


@pytest.mark.parametrize(
    "edit",
    [
        ("class RequestDeadlineRegistry", "class Registry"),
        ("def _release_committed_gym_checkpoint", "def _release"),
        ("self._live: set", "self._deadlines: set"),
        ("prepare.ready", "prepare.is_ready"),
    ],
    ids=["registry renamed", "method renamed", "other layout", "other answer"],
)
def test_a_shape_that_cannot_be_run_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, edit: tuple[str, str]
) -> None:
    """Code that the simulation does not fit is refused, not guessed: one line, exit code 2."""
    tree = make_tree(tmp_path)
    replace(tree / (MANAGER if edit[0] in (tree / MANAGER).read_text() else CONTROLLER), *edit)

    line = one_line(capsys, "--rl", tree)

    assert "found: " in line
    assert "do this: " in line


def replace(path: Path, old: str, new: str) -> None:
    """Replace a text in a file that has it."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_decorated_method_in_a_tree_of_just_the_two_files_is_simulated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A decorator of an import changes nothing, and not even the timeout's own file is needed."""
    for name in (CONTROLLER, MANAGER):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes((PINNED / name).read_bytes())
    method = "    async def _prepare_and_commit_gym_checkpoint("
    replace(tmp_path / CONTROLLER, method, f'    @traced("snapshot")\n{method}')
    replace(tmp_path / CONTROLLER, "import ray\n", "import ray\nfrom nemo_rl.utils.tracing import traced\n")

    code, found = verify_json(capsys, "--rl", tmp_path)

    assert (code, found["verdict"]) == (0, "fixed")
    assert found["before"]["attempts"][0]["error"] == "NeMo-Gym prompt group exceeded 180.0s"


_BY_HAND = Shape(
    made=(
        (f"        prepared = False\n        {CLEAR}\n", "        prepared = False\n        self._shut()\n"),
        (
            f"            else:\n                {SET}\n",
            "            else:\n                self._reopen()\n",
        ),
        (f"stays closed.\n        {SET}\n", "stays closed.\n        self._reopen()\n"),
        (
            "    def _nemo_gym_checkpoint_actor(",
            "    def _shut(self):\n"
            f"        {CLEAR}\n"
            "        self._clocks(suspend=True)\n\n"
            "    def _reopen(self):\n"
            f"        {SET}\n"
            "        self._clocks(suspend=False)\n\n"
            "    def _clocks(self, suspend):\n"
            "        registry = self._rollout_manager._request_deadlines\n"
            "        registry.suspend() if suspend else registry.resume()\n\n"
            "    def _nemo_gym_checkpoint_actor(",
        ),
    )
)


@pytest.mark.parametrize(
    ("overlap", "verdict"),
    [("none", "already_fixed"), ("sync", "still_stalls"), ("training", "already_fixed")],
)
def test_a_fix_made_by_hand_is_judged_by_what_it_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, overlap: str, verdict: str
) -> None:
    """`check` cannot know it. Simulated, it helps alone; with one flag for all a weight sync undoes it."""
    tree = make_tree(tmp_path, _BY_HAND)

    code, found = verify_json(capsys, "--rl", tree, "--overlap", overlap)

    expected = (int(verdict == "still_stalls"), verdict)
    assert (code, found["verdict"]) == expected, found["message"]


def test_a_generic_registry_is_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With type parameters the registry is the same registry; where Python has none, that is one line."""
    tree = make_tree(tmp_path)
    replace(tree / MANAGER, "class RequestDeadlineRegistry:", "class RequestDeadlineRegistry[T]:")
    if sys.version_info < (3, 12):
        assert "syntax" in one_line(capsys, "--rl", tree)
        return

    code, found = verify_json(capsys, "--rl", tree)

    assert (code, found["verdict"]) == (0, "fixed"), found["message"]


# What comes of it


@pytest.mark.parametrize(
    ("version", "code", "verdict", "said"),
    [
        ("before", 0, "not_applicable", "Nothing to fix here: "),
        ("D", 0, "already_fixed", "Not simulated; fixed by NeMo RL itself "),
        ("E", 1, "affected", "Not simulated; affected, in a form that this package does not mend: newer "),
        ("F", 1, "affected", "newer versions of NeMo RL have the fix themselves (named holders); update"),
        ("N", 2, "undecided", "Could not tell, and not simulated: "),
        ("A's controller, D's manager", 2, "undecided", "Could not tell, and not simulated: "),
        ("D's controller, A's manager", 2, "undecided", "Could not tell, and not simulated: "),
    ],
)
def test_a_version_without_the_gate_is_judged_by_what_check_finds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, code: int, verdict: str, said: str
) -> None:
    """No other line of NeMo RL is simulated; each gets the exit code of its state, and the reason."""
    tree = make_tree(tmp_path, version)

    exit_code, found = verify_json(capsys, "--rl", tree)

    assert (exit_code, found["verdict"], found["before"]) == (code, verdict, None)
    assert said in found["message"]
    assert " ".join(run(capsys, "--rl", tree)[1].split()).endswith(" ".join(found["message"].split()))


def test_numbers_under_which_nothing_stalls_decide_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a stall before there is nothing to show: exit code 2, on fixed code as well."""
    embedded = verify_json(capsys, "--budget", "900")
    fixed = verify_json(capsys, "--budget", "900", "--rl", applied_tree(tmp_path))

    for code, found in (embedded, fixed):
        assert (code, found["verdict"], found["stall_reproduced"]) == (2, "undecided", False)


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


def test_a_rollout_that_is_really_too_slow_still_stalls_in_the_source_form(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The limit of the clocks is shown, not hidden: exit code 1 and the reason."""
    code, found = verify_json(capsys, "--work", "220", "--retry-work", "10", "--rl", applied_tree(tmp_path))

    assert (code, found["verdict"], found["fixed"]) == (1, "still_stalls", False)
    assert "too slow for its budget while it ran" in found["message"]


def test_a_fix_that_does_nothing_is_a_finding(
    capsys: pytest.CaptureFixture[str], mocker: MockerFixture
) -> None:
    """What still stalls after the fix has exit code 1 and says what was lost."""
    mocker.patch("nemo_rl_deadline_fix.replay.subjects.patch")

    code, found = verify_json(capsys)

    assert (code, found["verdict"], found["fixed"]) == (1, "still_stalls", False)
    assert "RL gave up on try 0 at 180 s while a snapshot had it parked" in found["message"]


def test_a_fix_that_never_releases_is_a_finding(
    capsys: pytest.CaptureFixture[str], mocker: MockerFixture
) -> None:
    """Nothing stalls in the two snapshots, but clocks that stay stopped are no fix: exit code 1."""

    def suspends_only(controller: type[Any], **_: Any) -> None:
        original = getattr(controller, targets.PREPARE)

        async def prepare(self: Any, *args: Any) -> Any:
            self._rollout_manager.suspend_request_deadlines()
            return await original(self, *args)

        setattr(controller, targets.PREPARE, prepare)

    mocker.patch("nemo_rl_deadline_fix.replay.subjects.patch", suspends_only)

    code, found = verify_json(capsys)

    assert (code, found["verdict"], found["fixed"]) == (1, "still_stalls", False)
    assert "the clocks are still held by (unnamed)" in found["message"]


def test_clocks_that_nobody_releases_are_left_held() -> None:
    """A registry that stays suspended without a holder's name is held all the same."""
    registry = rl.RequestDeadlineRegistry()
    assert holders_left(registry) == ()

    registry.suspend()

    assert holders_left(registry) == ("(unnamed)",)
    assert holders_left(SimpleNamespace(suspended=True, _holders={"b", "a"})) == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ("--budget 0", "a number of seconds above 0"),
        ("--budget -1", "a number of seconds above 0"),
        ("--budget nan", "a number of seconds above 0"),
        ("--snapshot-for inf", "at most 100,000 seconds"),
        ("--second-at 209", "at least 210, when the first snapshot is over"),
        ("--turn 0.001", "at least a ten-thousandth of the work"),
        ("--work 1e9", "at most 100,000 seconds"),
        ("--prepare-timeout 1e9", "at most 7,200 seconds"),
        ("--prepare-timeout 7201", "at most 7,200 seconds"),
        ("--retry-work 100000 --turn 1", "at least a ten-thousandth of the work"),
        ("--shards 0", "1 to 8"),
        ("--rl no/such/folder", ""),
        ("--rl . --installed", ""),
    ],
)
def test_impossible_values_get_one_line_with_the_limit_that_holds(
    capsys: pytest.CaptureFixture[str], arguments: str, limit: str
) -> None:
    """What cannot be simulated is refused with exit code 2, and a number within the limit is not."""
    assert f"supported: {limit};" in one_line(capsys, *arguments.split()) or not limit


# Installed


def spawn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "nemo_rl_deadline_fix", *arguments],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


@pytest.mark.parametrize(
    ("version", "code", "verdict"),
    [("A", 0, "fixed"), ("C", 0, "fixed"), ("before", 0, "not_applicable"), ("E", 1, "affected")],
)
def test_an_installed_nemo_rl_is_judged_as_its_checkout_and_not_imported(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    code: int,
    verdict: str,
) -> None:
    """`--installed` runs the same classes, and needs nothing of what NeMo RL needs to be imported."""
    tree = make_tree(tmp_path, version)
    (tree / CONTROLLER).write_text("import torch_that_is_not_here\n" + (tree / CONTROLLER).read_text())
    monkeypatch.syspath_prepend(tree)

    exit_code, found = verify_json(capsys, "--installed")

    assert (exit_code, found["target"]["kind"], found["verdict"]) == (code, "installed", verdict)
    assert found["target"]["path"] == str(tree)
    if verdict == "fixed":
        assert found["before"]["attempts"][0]["at"] == 180.0


def test_no_nemo_rl_installed_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`--installed` without NeMo RL says what to do, with exit code 2."""
    line = one_line(capsys, "--installed")

    assert "No module named 'nemo_rl'" in line
    assert "--rl PATH" in line
