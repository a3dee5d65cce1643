"""What each command says of every NeMo RL of the version map: the word, the exit code and the reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.replay.parameters import Overlap
from tests.support.fixture_trees import CONTROLLER, MANAGER, VERSIONS, make_tree
from tests.support.tree_import import imported

MENDED = ("A", "B", "C")
"""Versions whose snapshots close the gate that the fix follows."""
NOT_IMPORTABLE = "D's controller, A's manager"
"""Its controller imports a class that its manager does not have."""


@dataclass(frozen=True)
class Verdict:
    """What the commands say of a version.

    Attributes:
        state: The word of `check`, and of `check --json`.
        check: Its exit code.
        says: What it says besides.
        diff: Exit code of `diff`; 1 is a patch.
        apply: Exit code of `apply`.
        verify: Exit code of `verify --rl`.
        verify_says: What that says.
        install: State that `install()` reports; "" where it raises.
    """

    state: str
    check: int
    says: str
    diff: int
    apply: int
    verify: int
    verify_says: str
    install: str = ""


_AFFECTED = Verdict("affected", 1, "", 1, 0, 0, "The stall is there before and gone after", "patched")
_ANOTHER_FORM = "in a form that this package does not mend"
_UNMENDED = Verdict("affected", 1, _ANOTHER_FORM, 2, 2, 1, _ANOTHER_FORM)
_ITSELF = "by NeMo RL itself"
_DOCUMENTED = "documentation says that it is fixed"
_UNKNOWN = Verdict("unknown", 2, "", 2, 2, 2, "")
VERDICTS = {
    "before": Verdict("not_applicable", 0, "", 0, 0, 0, "", "not_applicable"),
    "A": _AFFECTED,
    "B": _AFFECTED,
    "C": _AFFECTED,
    "E": _UNMENDED,
    "F": _UNMENDED,
    "D": Verdict("fixed", 0, _ITSELF, 0, 0, 0, f"fixed {_ITSELF}", "already_fixed"),
    "N": Verdict("unknown", 2, _DOCUMENTED, 2, 2, 2, _DOCUMENTED),
    "A's controller, D's manager": _UNKNOWN,
    NOT_IMPORTABLE: _UNKNOWN,
}


_OVERLAPS = [("--overlap", overlap.value) for overlap in Overlap]
STORIES: dict[str, list[tuple[str, ...]]] = {
    **{version: [()] for version in VERDICTS},
    "A": list(_OVERLAPS),
    "B": list(_OVERLAPS),
    "C": [(*overlap, "--shards", shards) for overlap in _OVERLAPS for shards in ("1", "2")],
}
"""Options of each `verify --rl` by version: all overlaps, and C with one Gym shard and with two."""


@dataclass(frozen=True)
class Said:
    """A command's exit code and output; `text` has what both streams say on one line."""

    code: int
    out: str
    text: str


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command of the package in this process."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as left:
            app([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Said(left.value.code, captured.out, " ".join((captured.out + captured.err).split()))

    return run


def texts(root: Path) -> dict[str, str]:
    """The two files that the fix is written to."""
    return {name: (root / name).read_text() for name in (CONTROLLER, MANAGER)}


def test_every_version_has_a_verdict() -> None:
    """No version is left out of the table below."""
    assert VERDICTS.keys() == VERSIONS.keys()


@pytest.mark.parametrize("version", VERDICTS)
def test_check_tells_the_state(version: str, tmp_path: Path, command: Command) -> None:
    """Word and exit code, as text and as JSON."""
    root, verdict = make_tree(tmp_path / "tree", version), VERDICTS[version]

    as_text, as_json = command("check", root), command("check", root, "--json")

    assert (as_text.code, as_json.code) == (verdict.check, verdict.check)
    assert f"{verdict.state}:" in as_text.text
    assert verdict.says in as_text.text
    answer = json.loads(as_json.out)
    assert answer["state"] == verdict.state
    assert verdict.says in (answer["detail"] or "")


@pytest.mark.parametrize("version", VERDICTS)
def test_diff_and_apply_change_the_versions_that_can_be_mended(
    version: str, tmp_path: Path, command: Command
) -> None:
    """A patch and the fix for A, B and C; for others nothing is written, and the reason is told."""
    root, verdict = make_tree(tmp_path / "tree", version), VERDICTS[version]
    before = texts(root)

    diff = command("diff", root)
    assert texts(root) == before
    applied = command("apply", root)

    assert (diff.code, applied.code) == (verdict.diff, verdict.apply)
    assert diff.out.startswith("diff --git ") == (verdict.diff == 1)
    if version in MENDED:
        assert texts(root) == texts(make_tree(tmp_path / "fixed", version, fixed=True))
        assert command("check", root).code == 0
        assert command("apply", "--revert", root).code == 0
    else:
        assert verdict.says in diff.text
        assert verdict.says in applied.text
    assert texts(root) == before


@pytest.mark.parametrize("version", VERDICTS)
def test_verify_plays_the_versions_that_can_be_mended(version: str, tmp_path: Path, command: Command) -> None:
    """A, B and C as they are and with the fix applied, in all overlaps; of others it says why not."""
    root, verdict = make_tree(tmp_path / "tree", version), VERDICTS[version]

    for story in STORIES[version]:
        verified = command("verify", "--rl", root, *story)
        assert verified.code == verdict.verify
        assert verdict.verify_says in verified.text

    if version in MENDED:
        command("apply", root)
        for story in STORIES[version]:
            assert command("verify", "--rl", root, *story).code == 0


@pytest.mark.parametrize("version", [version for version in VERDICTS if version != NOT_IMPORTABLE])
def test_install_patches_the_versions_that_can_be_mended(version: str, tmp_path: Path) -> None:
    """A, B and C; it says so where there is nothing to do, and raises where it can do nothing."""
    verdict = VERDICTS[version]

    with imported(make_tree(tmp_path, version)):
        if verdict.install:
            assert nemo_rl_deadline_fix.install().state == verdict.install
        else:
            with pytest.raises(UnsupportedTargetError) as raised:
                nemo_rl_deadline_fix.install()
            if verdict is _UNMENDED:
                assert _ANOTHER_FORM in str(raised.value)
        nemo_rl_deadline_fix.uninstall()


def test_a_controller_that_git_was_told_to_leave_out_is_missed(tmp_path: Path, command: Command) -> None:
    """Older NeMo RL has none, and there is nothing to fix there; in a sparse checkout nobody can tell."""
    root = make_tree(tmp_path / "tree", "before")
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-C", str(root)]
    sparse = ["sparse-checkout", "set", "--no-cone", "/*", f"!{CONTROLLER}"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "tree"], sparse):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    assert not (root / CONTROLLER).exists()

    checked = command("check", root)

    assert checked.code == 2
    assert "unknown:" in checked.text


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("nemo_rl/environments/gym_checkpoint_coordinator.py", "GymCheckpointCoordinator"),
        # A form that NeMo RL had for a while, of which only this file is known.
        ("nemo_rl/environments/nemo_gym_checkpoint.py", "NemoGymCheckpointCoordinator"),
        ("nemo_rl/environments/checkpointing/nemo_gym.py", "Checkpointing"),
        (CONTROLLER, "_prepared_gym_checkpoint"),
        (MANAGER, "RolloutDispatchAdmissionGate"),
    ],
)
def test_whatever_speaks_of_gym_snapshots_is_never_nothing_to_fix(
    file: str, name: str, tmp_path: Path, command: Command
) -> None:
    """One trace of another form, in whichever file, is enough to be told that nobody can decide."""
    root = make_tree(tmp_path / "tree", "before")
    (root / file).parent.mkdir(exist_ok=True)
    with (root / file).open("a") as opened:
        opened.write(f"\n\nclass {name}:\n    pass\n")

    checked = command("check", root)

    assert checked.code == 2
    assert "unknown:" in checked.text
    assert file in checked.text
