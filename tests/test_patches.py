"""The diffs for upstream fit in one place, are what `apply` writes, and bring tests that need them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_rl_deadline_fix.source import State, survey
from tests.support.fixture_trees import (
    CONTROLLER,
    MANAGER,
    PATCHES,
    SHAPES,
    applied_tree,
    contents,
    make_tree,
    patched_tree,
    the_patch,
)
from tests.test_source_checkout import run

FIT = ["pinned", "prefix_cuts", "code_between", "extra_reopen", "refit_suspends"]
"""Shapes in which the lines that 0001 quotes are as they are at its base commit."""


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "-i"]], ids=["git", "patch"])
@pytest.mark.parametrize("name", ["pinned", "prefix_cuts"])
def test_0001_makes_of_a_tree_what_apply_makes_of_it(tmp_path: Path, name: str, tool: list[str]) -> None:
    """Byte for byte, with and without prefix-cut code around the places."""
    root = make_tree(tmp_path / "patched", name)
    done = run([*tool, str(the_patch("0001"))], root)
    assert done.returncode == 0, done.stderr
    assert b"fuzz" not in done.stdout
    assert contents(root) == contents(applied_tree(tmp_path / "applied", name))
    assert survey(root).state is State.FIXED


@pytest.mark.parametrize(
    "tool", [["git", "apply"], ["patch", "-p1", "-N", "-r", "-", "-i"]], ids=["git", "patch"]
)
def test_0001_refuses_a_tree_that_has_it(tmp_path: Path, tool: list[str]) -> None:
    """Nothing is put in twice."""
    root = patched_tree(tmp_path)
    before = contents(root)
    assert run([*tool, str(the_patch("0001"))], root).returncode == 1
    assert contents(root) == before


@pytest.mark.parametrize("name", SHAPES)
def test_0001_goes_onto_shapes_that_keep_its_lines_and_onto_no_other(tmp_path: Path, name: str) -> None:
    """Where it does not fit nothing is changed, and `diff` writes the patch for that tree."""
    root = make_tree(tmp_path, name)
    before = contents(root)
    done = run(["git", "apply", str(the_patch("0001"))], root)
    assert (done.returncode == 0) == (name in FIT)
    assert (contents(root) == before) == (name not in FIT)


def test_each_hunk_of_0001_fits_in_exactly_one_place(tmp_path: Path) -> None:
    """Whatever a hunk's line numbers say, its lines are found once in their file."""
    for name in ("pinned", "prefix_cuts"):
        root = make_tree(tmp_path / name, name)
        for file, old in _hunks(the_patch("0001").read_text()):
            assert (root / file).read_text().count(old) == 1, old


def _hunks(patch: str) -> list[tuple[str, str]]:
    found = []
    for part in patch.split("diff --git a/")[1:]:
        file = part.split(" ", 1)[0]
        for hunk in re.split(r"^@@ .*\n", part, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            found.append((file, "\n" + "".join(line[1:] for line in lines if not line.startswith("+"))))
    return found


def test_0001_quotes_little(tmp_path: Path) -> None:
    """At most two lines of context a hunk, but for the two methods that stand together."""
    patch = the_patch("0001").read_text()
    assert [file for file, _ in _hunks(patch)] == [CONTROLLER] * 3 + [MANAGER] * 5
    for _, old in _hunks(patch)[:-1]:
        assert old.count("\n") <= 4
    assert "Signed-off-by" not in patch
    assert "@@ -1957," in patch
    assert "@@ -2022," in patch
    assert "@@ -2041," in patch


def test_0002_adds_files_only() -> None:
    """It changes none of upstream's, and each has the licence header of this year."""
    patch = the_patch("0002").read_text()
    files = re.findall(r"^diff --git a/(\S+) b/\1\nnew file mode 100644\n", patch, flags=re.MULTILINE)
    assert files == [
        "tests/unit/experience/test_request_deadline_holders.py",
        "tests/unit/single_controller/test_gym_checkpoint_deadlines.py",
    ]
    assert patch.count("diff --git") == patch.count("+# Copyright (c) 2026, NVIDIA CORPORATION.") == 2
    assert "\n-" not in patch.replace("\n--- /dev/null", "")


def unit_tests(root: Path) -> dict[str, str]:
    """Outcome by name of 0002's tests, run on a tree in a process of their own."""
    line = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "tests/unit"]
    env = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(line, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=100)
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, flags=re.MULTILINE)
    return {name: outcome for outcome, name in outcomes}


def test_0002_is_red_before_0001_and_green_after(tmp_path: Path) -> None:
    """All of its tests really run, on a tree of the base's shape; each fails without the fix."""
    root = make_tree(tmp_path)
    assert run(["git", "apply", str(the_patch("0002"))], root).returncode == 0
    before = unit_tests(root)
    assert run(["git", "apply", str(the_patch("0001"))], root).returncode == 0
    after = unit_tests(root)
    assert len(before) == len(after) == 14
    assert set(before.values()) == {"FAILED"}
    assert set(after.values()) == {"PASSED"}


def test_the_readme_names_the_diffs_that_are_there() -> None:
    """Every file it speaks of exists, and every file is spoken of."""
    text = (PATCHES / "README.md").read_text()
    named = set(re.findall(r"`(\d{4}-[\w-]+\.diff)`", text))
    assert named == {path.name for path in PATCHES.glob("*.diff")}
