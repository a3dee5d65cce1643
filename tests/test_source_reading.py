"""Trees are found from what users name, and what cannot be read is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.reading import read_tree
from tests.support.fixture_trees import CONTROLLER, MANAGER, make_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of the pinned shape."""
    return make_tree(tmp_path / "checkout")


@pytest.mark.parametrize(
    "inside", [".", "nemo_rl", "nemo_rl/algorithms", CONTROLLER, MANAGER, "nemo_rl/experience/failures.py"]
)
def test_a_tree_is_found_from_its_root_its_package_and_its_files(root: Path, inside: str) -> None:
    """Every path that a user may name leads to the same root and the same two files."""
    tree = read_tree(root / inside)
    assert tree.root == root
    assert tree.controller is not None
    assert tree.controller.path == root / CONTROLLER
    assert tree.manager is not None
    assert tree.manager.path == root / MANAGER


def test_a_checkout_may_be_called_like_the_package(tmp_path: Path) -> None:
    """`git clone … nemo_rl` makes a folder of that name around the package."""
    root = make_tree(tmp_path / "nemo_rl")
    assert read_tree(root).root == root
    assert read_tree(root / "nemo_rl").root == root


def test_a_path_is_taken_relative_to_the_current_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of the package, a plain dot is enough."""
    monkeypatch.chdir(root / "nemo_rl" / "experience")
    assert read_tree(Path()).root == root


@pytest.mark.parametrize("path", ["nowhere", "empty", "empty/notes.txt", "other"])
def test_what_is_no_tree_is_refused_with_what_would_be(tmp_path: Path, path: str) -> None:
    """A missing path, folders without NeMo RL and a stray file get the list of what is accepted."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "nemo_rl").mkdir(parents=True)
    (tmp_path / "empty" / "notes.txt").touch()
    with pytest.raises(InvalidInputError, match=r"no NeMo RL tree at .*supported: a NeMo RL checkout"):
        read_tree(tmp_path / path)


def test_a_file_the_tree_lacks_is_none(root: Path) -> None:
    """A tree without the controller is still a tree."""
    (root / CONTROLLER).unlink()
    assert read_tree(root).controller is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"x = 1\n<<<<<<< HEAD\nx = 2\n=======\nx = 3\n>>>>>>> topic\n", r"manager\.py:2: conflict marker"),
        (b"x = 1\ny = '\xff\xfe'\n", "is not text"),
        (b"\x7fELF\x02\x01\x01\x00\x00\xb8\xff", "is not text"),
        (b"# -*- coding: klingon -*-\n", "is not text"),
        (b"# coding: rot13\n", "is not text"),
    ],
)
def test_a_file_that_is_no_clean_source_is_refused(root: Path, raw: bytes, said: str) -> None:
    """Conflict markers, binary and unknown encodings are told with the file, and with the line if any."""
    (root / MANAGER).write_bytes(raw)
    with pytest.raises(InvalidInputError, match=said):
        read_tree(root)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", r":1: syntax error"),
        ("x = 1\nif x:\ny\n", r":3: syntax error"),
        ("x = '\0'\n", "parsed|error"),
    ],
)
def test_a_syntax_error_is_told_with_its_line(root: Path, text: str, said: str) -> None:
    """What does not parse is refused when it is parsed, in one line."""
    (root / CONTROLLER).write_text(text)
    source = read_tree(root).controller
    assert source is not None
    with pytest.raises(InvalidInputError, match=said):
        _ = source.module


def test_rules_of_text_are_no_conflict_markers(root: Path) -> None:
    """A line of equals signs underlines a heading as often as it parts a conflict."""
    with (root / MANAGER).open("a") as file:
        file.write('"""Heading\n=======\n"""\n')
    assert read_tree(root).manager is not None


def test_a_link_that_leads_out_of_the_tree_is_refused(root: Path, tmp_path: Path) -> None:
    """Nothing outside of the tree is read as if it were part of it."""
    (root / MANAGER).rename(tmp_path / "elsewhere.py")
    (root / MANAGER).symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(InvalidInputError, match="leads out of the tree"):
        read_tree(root)


def test_a_linked_folder_that_leads_out_of_the_tree_is_refused(root: Path, tmp_path: Path) -> None:
    """The same for a folder on the way."""
    (root / "nemo_rl" / "experience").rename(tmp_path / "experience")
    (root / "nemo_rl" / "experience").symlink_to(tmp_path / "experience")
    with pytest.raises(InvalidInputError, match="leads out of the tree"):
        read_tree(root)


def test_a_checkout_reached_by_a_link_is_read(root: Path, tmp_path: Path) -> None:
    """A link to the whole tree leads nowhere out of it, and its name is kept in what is printed."""
    (tmp_path / "link").symlink_to(root)
    assert read_tree(tmp_path / "link").root == tmp_path / "link"


def test_dead_links_folders_and_pipes_in_place_of_a_file_are_refused(root: Path) -> None:
    """Whatever stands there instead of a file, the answer is one line and comes at once."""
    (root / MANAGER).unlink()
    (root / MANAGER).symlink_to("nowhere.py")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_tree(root)
    (root / MANAGER).unlink()
    (root / MANAGER).mkdir()
    with pytest.raises(InvalidInputError, match="is not a file"):
        read_tree(root)
    (root / MANAGER).rmdir()
    os.mkfifo(root / MANAGER)
    with pytest.raises(InvalidInputError, match="is not a file"):
        read_tree(root)


def test_a_file_that_may_not_be_read_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission error comes out as one line that names the file."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(
        InvalidInputError, match=r"single_controller\.py cannot be read; found: Permission denied"
    ):
        read_tree(root)
