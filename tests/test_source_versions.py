"""The lines of NeMo RL are told apart, and only what is known to be so is fixed or has nothing to fix.

What every command says of every version is in `test_versions.py`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from nemo_rl_deadline_fix.source import Line, State, survey
from tests.support.fixture_trees import CONTROLLER, MANAGER, VERSIONS, contents, edited, make_tree
from tests.test_source_checkout import command, run

LINES = {
    "before": Line.NONE,
    **dict.fromkeys("ABC", Line.GATE),
    **dict.fromkeys("EFDN", Line.COORDINATOR),
    "A's controller, D's manager": Line.UNKNOWN,
    "D's controller, A's manager": Line.UNKNOWN,
}


@pytest.mark.parametrize("name", VERSIONS)
def test_each_version_is_told_by_its_line(tmp_path: Path, name: str) -> None:
    """By how it takes its snapshots; `verify --rl` may help with the known gate alone."""
    report = survey(make_tree(tmp_path, name))
    assert report.line is LINES[name]
    assert report.playable is (LINES[name] is Line.GATE)


@pytest.mark.parametrize(("name", "advice"), [("E", "update NeMo RL"), ("N", "says that it is fixed")])
def test_what_is_not_mended_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, advice: str
) -> None:
    """It names nothing that a user of the wheel does not have, and no command that would not help."""
    root = make_tree(tmp_path, name)
    assert command("apply", root) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        rf"nemo-rl-deadline-fix: cannot change {root}; found: [^;]*(; update NeMo RL)?\n", err
    )
    assert err.endswith(f"{advice}\n")


def test_a_version_that_fixed_itself_says_where_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place is the hold of NeMo RL's own, and `--revert` does not take that out."""
    root = make_tree(tmp_path, "D")
    before = contents(root)
    report = survey(root)
    found = re.search(rf"{CONTROLLER}:(\d+)", report.detail)
    assert found is not None
    assert "suspend_request_deadlines(" in (root / CONTROLLER).read_text().splitlines()[int(found[1]) - 1]
    assert command("apply", "--revert", root) == 0
    assert capsys.readouterr().out.startswith("nothing to revert: fixed")
    assert contents(root) == before


RELEASE = "resume_request_deadlines(\n                    _GYM_CHECKPOINT_DEADLINE_HOLDER"
HOLD = "suspend_request_deadlines(\n                _GYM_CHECKPOINT_DEADLINE_HOLDER"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (CONTROLLER, "            finally:\n", "            except OSError:\n"),
        (CONTROLLER, RELEASE, "resume_request_deadlines("),
        (CONTROLLER, HOLD, "suspend_request_deadlines("),
        (
            CONTROLLER,
            RELEASE,
            "resume_request_deadlines('a'",
        ),
        (MANAGER, "_request_deadlines.resume(holder)", "_request_deadlines.resume()"),
        (MANAGER, "self._suspension_holders.add(holder)", "self._suspension_count += 1"),
        (MANAGER, "class RolloutDispatchAdmissionGate", "class RolloutAdmissionGate"),
    ],
)
def test_what_only_looks_like_nemo_rls_own_fix_is_unknown(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    """A release that may not run, another name, a name that is dropped: never an all-clear."""
    root = make_tree(tmp_path, "D")
    (root / file).write_text(edited((root / file).read_text(), (old, new)))
    assert survey(root).state is State.UNKNOWN


def test_a_second_block_without_a_hold_is_unknown(tmp_path: Path) -> None:
    """The gate may be closed in more than one place, and each has to stop the clocks."""
    root = make_tree(tmp_path, "D")
    with (root / CONTROLLER).open("a") as file:
        file.write("\n    async def _other(self, gate: Any) -> None:\n        async with gate.closed():\n")
        file.write("            await self._save()\n")
    assert survey(root).state is State.UNKNOWN


def test_a_gate_under_another_name_is_unknown(tmp_path: Path) -> None:
    """The snapshot methods are there, so the tree is not one without the feature."""
    root = make_tree(tmp_path)
    text = (root / CONTROLLER).read_text().replace("_gym_checkpoint_rollout_permitted", "_gym_gate")
    (root / CONTROLLER).write_text(text)
    assert survey(root).state is State.UNKNOWN


def test_a_controller_without_its_manager_is_unknown(tmp_path: Path) -> None:
    """One of the two files alone cannot be judged."""
    root = make_tree(tmp_path)
    (root / MANAGER).unlink()
    assert survey(root).state is State.UNKNOWN


def test_no_controller_is_nothing_to_fix_only_in_a_whole_nemo_rl(tmp_path: Path) -> None:
    """Older releases have none; a folder with neither the controller nor the older trainer says nothing."""
    root = make_tree(tmp_path, "before")
    (root / CONTROLLER).unlink()
    report = survey(root)
    assert (report.state, report.line, report.tree.controller) == (State.NOT_APPLICABLE, Line.NONE, None)
    (root / "nemo_rl/algorithms/grpo.py").unlink()
    assert survey(root).state is State.UNKNOWN


def test_what_git_leaves_out_of_a_sparse_checkout_is_missed(tmp_path: Path) -> None:
    """The file is in the repository and not in this folder, so nothing can be said."""
    root, file = make_tree(tmp_path, "before"), "nemo_rl/environments/gym_checkpoint_coordinator.py"
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).touch()
    for line in ("init -q", "add -f nemo_rl", f"update-index --skip-worktree {file}"):
        assert run(["git", *line.split()], root).returncode == 0
    (root / file).unlink()
    report = survey(root)
    assert report.state is State.UNKNOWN
    assert f"git leaves {file} out" in report.detail


def test_without_git_a_tree_is_judged_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("git") is None
    assert survey(make_tree(tmp_path / "before", "before")).state is State.NOT_APPLICABLE
    assert command("diff", make_tree(tmp_path / "A", "A")) == 1
