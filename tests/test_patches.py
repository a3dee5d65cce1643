"""The diffs for upstream fit in one place, are what `apply` writes, and bring tests that need them."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_rl_deadline_fix.source import State, survey
from nemo_rl_deadline_fix.source.checkout import plan, write
from tests.support.fixture_trees import (
    CONTROLLER,
    FORWARDS,
    MANAGER,
    PATCHES,
    SHAPES,
    contents,
    make_tree,
    patched_tree,
    the_patch,
)
from tests.test_source_checkout import run

FIT = ["pinned", "prefix_cuts", "code_between", "extra_reopen", "refit_suspends"]
"""Shapes in which the lines that 0001 quotes are as they are at its base commit."""
WAYS = {
    "git": ("git apply {}",),
    "patch": ("patch -p1 -F0 --dry-run -i {}", "patch -p1 -F0 -i {}"),
}
"""The ways to apply a diff that the documents recommend; a second command only after the first succeeded."""


def put_on(root: Path, way: str, number: str = "0001") -> str:
    """Apply a diff in one of the ways; return what was said, or "" where it was refused."""
    said = ""
    for command in WAYS[way]:
        done = run([*command.format(the_patch(number)).split()], root)
        if done.returncode != 0:
            return ""
        said += done.stdout.decode() + "done"
    return said


def as_applied(patched: dict[str, bytes]) -> dict[str, str]:
    """What 0001 made, with the two forwards' docstrings as they were: `apply` leaves docstrings alone."""
    texts = {name: raw.decode() for name, raw in patched.items()}
    old, new = (re.findall(rf'^[{sign}]( +""".*"""\n)', the_patch("0001").read_text(), re.M) for sign in "-+")
    assert len(old) == len(new) == len(FORWARDS)
    for before, after in zip(old, new, strict=True):
        assert texts[MANAGER].count(after) == 1
        texts[MANAGER] = texts[MANAGER].replace(after, before)
    return texts


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["pinned", "prefix_cuts"])
def test_0001_makes_of_a_tree_what_apply_makes_of_it(tmp_path: Path, name: str, way: str) -> None:
    """Byte for byte, but for the two docstrings, with and without prefix-cut code around the places."""
    root = make_tree(tmp_path / "patched", name)
    assert "fuzz" not in put_on(root, way)
    assert as_applied(contents(root)) == SHAPES[name].after
    assert survey(root).state is State.FIXED


def at_the_pin(root: Path) -> None:
    """Fill a tree's files with comments until every hunk of 0001 is at the line that it names."""
    for file, line, old in _hunks(the_patch("0001").read_text()):
        text = (root / file).read_text()
        at = text.index(old) + 1
        filling = line - 1 - text[:at].count("\n")
        assert filling >= 0
        (root / file).write_text(text[:at] + "        # ...\n" * filling + text[at:])


def drifted(text: str, seed: int) -> str:
    """A file that has moved on: lines come, go and are renamed beside the hunks and in them.

    Or, with an odd seed, lines of hunks stand a second time where they are no code, and all places shift. A
    place that has changed while its old lines stand elsewhere is what no diff can tell apart.
    """
    choose = random.Random(seed)
    quoted = [old for file, _, old in _hunks(the_patch("0001").read_text()) if old in text]
    lines = text.splitlines(keepends=True)
    if seed % 2:
        for old in choose.sample(quoted, 2):
            at = choose.choice([10, len(lines)])
            lines[at:at] = ["NOTES = r'''\n", *old.splitlines(keepends=True), "'''\n"]
        return "".join(lines[:10] + ["# One more.\n"] * choose.randrange(40) + lines[10:])
    near = [text[: text.index(old) + 1].count("\n") for old in quoted]
    for _ in range(choose.randrange(1, 5)):
        at = choose.choice(near) + choose.randrange(-2, 4)
        what = choose.randrange(3)
        if what == 0:
            lines[at:at] = ["        # One more.\n"] * choose.choice([1, 2, 40])
        elif what == 1 and lines[at].strip() in ("", "# ..."):
            del lines[at]
        else:
            lines[at] = lines[at].replace("prepared", "is_ready").replace("recovery_errors", "errors")
    return "".join(lines)


@pytest.mark.parametrize("way", WAYS)
def test_0001_goes_where_it_belongs_or_nowhere(tmp_path: Path, way: str) -> None:
    """On its base without an offset; on a tree that has moved on the exact place, or a refusal."""
    root = make_tree(tmp_path / "base")
    at_the_pin(root)
    base = {name: raw.decode() for name, raw in contents(root).items()}
    assert "offset" not in put_on(root, way)
    assert survey(root).state is State.FIXED
    taken = refused = 0
    for seed in range(16):
        before = {name: drifted(text, seed) for name, text in base.items()}
        for name, text in before.items():
            (root / name).write_text(text)
        if put_on(root, way):
            patched = as_applied(contents(root))
            for name, text in before.items():
                (root / name).write_text(text)
            write(plan(root).changes)
            assert patched == {name: raw.decode() for name, raw in contents(root).items()}, seed
            taken += 1
        else:
            assert {name: raw.decode() for name, raw in contents(root).items()} == before, seed
            refused += 1
    assert taken > 3
    assert refused > 3


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
        for file, _, old in _hunks(the_patch("0001").read_text()):
            assert (root / file).read_text().count(old) == 1, old


def _hunks(patch: str) -> list[tuple[str, int, str]]:
    """Each hunk's file, its first line there, and the lines that it wants to find, after a line end."""
    found = []
    for part in patch.split("diff --git a/")[1:]:
        file = part.split(" ", 1)[0]
        for line, hunk in re.findall(r"^@@ -(\d+).*\n((?:[ +-].*\n)+)", part, flags=re.MULTILINE):
            old = [text[1:] for text in hunk.splitlines(keepends=True) if not text.startswith("+")]
            found.append((file, int(line), "\n" + "".join(old)))
    return found


def test_0001_quotes_little() -> None:
    """At most two lines of context a hunk, but for the two methods that stand together."""
    patch = the_patch("0001").read_text()
    assert [file for file, *_ in _hunks(patch)] == [CONTROLLER] * 3 + [MANAGER] * 5
    for *_, old in _hunks(patch)[:-1]:
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


@pytest.mark.slow
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
