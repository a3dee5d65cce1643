"""Patches that git and patch accept, files written all or none, and what the commands print and return."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.checkout import plan, plan_revert, write
from tests.support.fixture_trees import CLEAR, CONTROLLER, MANAGER, SHAPES, applied_tree, contents, make_tree

BOM = b"\xef\xbb\xbf"
PINNED_AFTER = {name: text.encode() for name, text in SHAPES["pinned"].after.items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of the pinned shape."""
    return make_tree(tmp_path / "checkout")


def command(*arguments: object) -> int:
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as left:
        app([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def run(
    line: list[str], root: Path, patch: bytes = b"", ceiling: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a tool at a tree's root, outside of any repository above it, or above the ceiling."""
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ceiling or root.parent)}
    return subprocess.run(line, cwd=root, input=patch, capture_output=True, env=env, check=False)


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--binary"]], ids=["git", "patch"])
@pytest.mark.parametrize(
    "encode",
    [
        lambda raw: raw,
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: BOM + raw,
        lambda raw: raw.split(b"\n    async def _release_committed")[0].rstrip(b"\n"),
    ],
    ids=["plain", "CRLF", "byte order mark", "no last newline"],
)
def test_the_patch_leads_where_apply_leads(
    root: Path, tool: list[str], encode: Callable[[bytes], bytes]
) -> None:
    """`git apply` and `patch -p1` at the root make of the tree what apply makes of it, byte for byte."""
    for name in (CONTROLLER, MANAGER):
        (root / name).write_bytes(encode((root / name).read_bytes()))
    planned = plan(root)
    assert run(tool, root, planned.patch()).returncode == 0
    assert contents(root) == {old.name: new.raw for old, new in planned.changes}


def test_modes_are_kept(root: Path) -> None:
    """An executable file stays one, and one that others may not read stays closed."""
    (root / CONTROLLER).chmod(0o755)
    (root / MANAGER).chmod(0o640)
    write(plan(root).changes)
    assert [stat.S_IMODE((root / name).stat().st_mode) for name in (CONTROLLER, MANAGER)] == [0o755, 0o640]
    assert contents(root) == PINNED_AFTER


def test_nothing_but_the_two_files_is_touched(root: Path) -> None:
    """No file is left over, and no other one is written."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    write(plan(root).changes)
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    assert {str(path.relative_to(root)) for path in after if after[path] != before[path]} == {
        CONTROLLER,
        MANAGER,
    }


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_between_two_files_puts_the_first_one_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """All files or none, also when the user interrupts."""
    before, replace, done = contents(root), Path.replace, []

    def fail_at_the_second(path: Path, target: Path) -> Path:
        done.append(target)
        if len(done) == 2:
            raise error
        return replace(path, target)

    planned = plan(root)
    monkeypatch.setattr(Path, "replace", fail_at_the_second)
    with pytest.raises((InvalidInputError, KeyboardInterrupt)):
        write(planned.changes)
    assert len(done) > 2
    assert contents(root) == before
    assert not list(root.rglob("*.tmp"))


@pytest.mark.parametrize("revert", [False, True])
def test_a_tree_that_is_half_written_does_no_harm(
    root: Path, monkeypatch: pytest.MonkeyPatch, revert: bool
) -> None:
    """At no time a controller that gives names stands beside a manager that takes none."""
    if revert:
        write(plan(root).changes)
    planned, replace, states = (plan_revert if revert else plan)(root), Path.replace, []

    def look_after(path: Path, target: Path) -> Path:
        result = replace(path, target)
        named = [
            b"holder" in (root / MANAGER).read_bytes(),
            b'deadlines("' in (root / CONTROLLER).read_bytes(),
        ]
        states.append(named)
        return result

    monkeypatch.setattr(Path, "replace", look_after)
    write(planned.changes)
    assert states == [[True, False], [not revert, not revert]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_signal_in_mid_write_waits_until_all_is_written(
    root: Path, mocker: MockerFixture, number: signal.Signals, step: str
) -> None:
    """Both files are written and no other is left over when it does what it would have done."""
    seen: list[dict[str, bytes]] = []
    planned = plan(root)
    owner, real = (os, os.fsync) if step == "fsync" else (Path, Path.replace)

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(number)
        return real(*arguments)

    mocker.patch.object(owner, step, interrupted)
    old = signal.signal(number, lambda *_: seen.append(contents(root)))
    try:
        write(planned.changes)
    finally:
        signal.signal(number, old)
    assert seen == [PINNED_AFTER]
    assert not list(root.rglob("*.tmp"))


def test_a_failure_before_the_first_file_leaves_nothing_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is noticed while the new files are written beside the old ones."""
    before = contents(root)

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    planned = plan(root)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidInputError, match=r"cannot be written; found: No space left on device"):
        write(planned.changes)
    assert contents(root) == before
    assert not list(root.rglob("*.tmp"))


def test_a_file_that_changed_since_the_plan_is_not_overwritten(root: Path) -> None:
    """Somebody's edit in between is kept, and the other file is not changed either."""
    planned = plan(root)
    with (root / MANAGER).open("a") as file:
        file.write("# mine\n")
    before = contents(root)
    with pytest.raises(InvalidInputError, match="changed by someone else in the meantime"):
        write(planned.changes)
    assert contents(root) == before


def test_a_read_only_file_is_refused_in_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever made it read-only meant it, also for root and in a folder that allows replacing it."""
    before = contents(root)
    (root / MANAGER).chmod(0o444)
    assert command("apply", root) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"{root / MANAGER} cannot be written; found: the file is read-only" in err
    assert contents(root) == before


def test_a_link_inside_of_the_tree_is_written_through(root: Path) -> None:
    """The link stays a link, and the file that it names gets the fix."""
    (root / MANAGER).rename(root / "nemo_rl" / "manager.py")
    (root / MANAGER).symlink_to("../manager.py")
    write(plan(root).changes)
    assert (root / MANAGER).is_symlink()
    assert contents(root) == PINNED_AFTER


def test_a_link_out_of_the_tree_is_not_followed(root: Path, tmp_path: Path) -> None:
    """Apply writes only inside of the tree it is given."""
    (root / MANAGER).rename(tmp_path / "elsewhere.py")
    (root / MANAGER).symlink_to(tmp_path / "elsewhere.py")
    before = contents(root)
    assert command("apply", root) == 2
    assert contents(root) == before


def test_a_dirty_git_tree_is_fine(root: Path) -> None:
    """Apply does not ask git."""
    run(["git", "init", "-q"], root)
    run(["git", "add", "nemo_rl"], root)
    with (root / CONTROLLER).open("a") as file:
        file.write("# work in progress\n")
    assert command("apply", root) == 0
    assert (root / CONTROLLER).read_bytes() == PINNED_AFTER[CONTROLLER] + b"# work in progress\n"


def test_check_begins_with_a_verdict_and_the_next_command(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1 while affected; the command is the user's path again, and the places are lines of the tree."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(root.parent)
    assert command("check", "checkout") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("affected: ")
    assert lines[2] == "    nemo-rl-deadline-fix apply checkout"
    gate = (root / CONTROLLER).read_text().splitlines().index(f"        {CLEAR}")
    assert f"{CONTROLLER}:{gate + 1}: DF003 affected:" in lines
    assert max(len(line) for line in lines if str(root) not in line) <= 80
    assert command(*lines[2].split()[1:]) == 0
    assert command("check", "checkout") == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("fixed: ")


def test_check_advises_to_play_what_it_does_not_know(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fix in another hand: exit 2, in no more than three lines what was found and what to do."""
    monkeypatch.setenv("COLUMNS", "80")
    write(plan(root).changes)
    text = (root / CONTROLLER).read_text().replace('deadlines("gym_checkpoint")', 'deadlines("gym")')
    (root / CONTROLLER).write_text(text)
    (root.parent / "my tree").symlink_to(root)
    assert command("check", root.parent / "my tree") == 2
    lines = capsys.readouterr().out.splitlines()
    assert re.match(rf"unknown: {CONTROLLER}:\d+:", lines[0])
    assert lines[lines.index("") - 1] == f"    nemo-rl-deadline-fix verify --rl '{root.parent / 'my tree'}'"
    assert lines.index("") <= 4
    assert command("apply", root) == 2
    assert capsys.readouterr().err.endswith(f"; do this: nemo-rl-deadline-fix verify --rl {root}\n")


def test_check_as_json_is_one_object(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a schema version, the state and the places, and stdout holds nothing else."""
    assert command("check", "--json", root / "nemo_rl") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["schema_version"] == 2
    assert report["state"] == "affected"
    assert report["root"] == str(root)
    assert {site["rule"] for site in report["sites"]} == {"DF001", "DF002", "DF003", "DF004", None}
    assert {site["file"] for site in report["sites"]} == {CONTROLLER, MANAGER}
    assert all(site["line"] > 1 and site["expected"] and site["found"] for site in report["sites"])
    assert report["line"] == "gate"
    assert report["files"] == [str(root / CONTROLLER), str(root / MANAGER)]


@pytest.mark.parametrize("name", ["check", "diff", "apply"])
def test_a_file_that_cannot_be_parsed_is_told_in_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Exit 2 with file and line; never a traceback."""
    (root / MANAGER).write_text("def f(:\n")
    assert command(name, root) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"nemo-rl-deadline-fix: {root / MANAGER}:1: syntax error")
    assert err.count("\n") == 1


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_warnings_about_the_users_code_are_not_ours(root: Path, action: str) -> None:
    """An escape that Python warns of is not what was asked for, nor a syntax error under -W error."""
    with (root / MANAGER).open("a") as file:
        file.write('\n\nTAG = "<\\d+>"\n')
    line = [sys.executable, "-m", "nemo_rl_deadline_fix", "check", "--json", str(root)]
    env = {**os.environ, "PYTHONWARNINGS": action if action == "error" else "always"}
    done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    assert json.loads(done.stdout)["state"] == "affected"


@pytest.mark.parametrize("folder", ["third_party/RL", "a folder/RL"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_patch_for_a_folder_of_a_larger_repository_applies_there(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], folder: str, inside: bool
) -> None:
    """`git apply` skips paths outside of its folder without a word, so they begin at the repository's top."""
    root = make_tree(tmp_path / folder)
    run(["git", "init", "-q"], tmp_path)
    assert command("diff", root) == 1
    patch, said = capfdbinary.readouterr()
    assert f"{folder}/ is a folder of a larger git repository".encode() in said
    assert run(["git", "apply"], root if inside else tmp_path, patch, tmp_path.parent).returncode == 0
    assert contents(root) == PINNED_AFTER
    assert run(["patch", "-R", "-p1", "-F0"], tmp_path, patch).returncode == 0
    assert command("check", root) == 1


def test_diff_prints_the_patch_and_nothing_else(
    root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Exit 1 with a patch on stdout; on a fixed tree exit 0 and nothing there."""
    assert command("diff", root) == 1
    out, err = capfdbinary.readouterr()
    assert out == plan(root).patch()
    assert err == b""
    write(plan(root).changes)
    assert command("diff", root) == 0
    out, err = capfdbinary.readouterr()
    assert out == b""
    assert err == b"nothing to change: fixed\n"


def test_apply_dry_run_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the files that would change, for the fix and for its revert."""
    before = contents(root)
    assert command("apply", "--dry-run", root) == 0
    assert capsys.readouterr().out == f"would fix {MANAGER}\nwould fix {CONTROLLER}\n"
    assert contents(root) == before
    write(plan(root).changes)
    assert command("apply", "--revert", "--dry-run", root) == 0
    assert capsys.readouterr().out.count("would revert") == 2
    assert contents(root) == PINNED_AFTER


def test_apply_and_revert_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when there is nothing to do."""
    root = applied_tree(tmp_path)
    assert command("apply", root) == 0
    assert capsys.readouterr().out == "nothing to change: fixed\n"
    assert command("apply", "--revert", root) == 0
    assert capsys.readouterr().out.count("reverted ") == 2
    assert command("apply", "--revert", root) == 0
    assert capsys.readouterr().out == "nothing to revert: affected\n"


def test_only_the_optional_rule_can_be_left_out(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--without DF004` works for diff and apply; any other is refused."""
    before = contents(root)
    assert command("apply", "--without", "DF003", root) == 2
    assert "'DF003' is not 'DF004'" in capsys.readouterr().err
    assert contents(root) == before
    assert command("apply", "--without", "DF004", root) == 0
    assert b"max(self._remaining" not in contents(root)[MANAGER]


def test_check_takes_overrides_only_with_a_config(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second argument without --config is a mistake, told in one line."""
    assert command("check", root, "a=b") == 2
    assert "check takes one PATH" in capsys.readouterr().err


def test_check_hands_a_config_and_its_overrides_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --config every other argument is an override, the first one included."""
    seen: list[object] = []

    def check_config(config: Path, overrides: list[str], as_json: bool) -> int:
        seen.extend([config, overrides, as_json])
        return 1

    monkeypatch.setattr("nemo_rl_deadline_fix.cli.run_config.check_config", check_config)
    assert command("check", "--config", tmp_path / "run.yaml", "--json", "a.b=1", "++c=2", "~d") == 1
    assert seen == [tmp_path / "run.yaml", ["a.b=1", "++c=2", "~d"], True]
