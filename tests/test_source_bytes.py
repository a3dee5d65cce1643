"""The fix is written into every shape as a reviewer would want it, byte for byte, and taken out again."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.source import Rule, State, survey
from nemo_rl_deadline_fix.source.checkout import ALL_RULES, plan, plan_revert, write
from nemo_rl_deadline_fix.source.sites import Place
from tests.support.fixture_trees import (
    CLEAR,
    CLOSE_FIX,
    CONTROLLER,
    FORWARDS,
    HOLD,
    LET_GO,
    MANAGER,
    SET,
    SHAPES,
    WHY,
    Shape,
    applied_tree,
    contents,
    edited,
    make_tree,
    older_tree,
    pinned,
)

FILES = (CONTROLLER, MANAGER)
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("name", SHAPES)
def test_apply_writes_what_was_written_out_by_hand(tmp_path: Path, name: str) -> None:
    """Before and after, for each shape."""
    root = applied_tree(tmp_path, name)
    assert {file: raw.decode() for file, raw in contents(root).items()} == SHAPES[name].after


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("make", [applied_tree, older_tree])
def test_a_fixed_tree_has_nothing_to_change_and_reverts_to_what_it_was(
    tmp_path: Path, name: str, make: Callable[[Path, str], Path]
) -> None:
    """Whether this version wrote the fix or 0.1.0; reverted, it has nothing to revert."""
    root = make(tmp_path, name)
    assert plan(root).changes == ()
    write(plan_revert(root).changes)
    assert {file: raw.decode() for file, raw in contents(root).items()} == SHAPES[name].before
    assert plan_revert(root).changes == ()


def test_a_place_that_is_fixed_already_is_left_alone(tmp_path: Path) -> None:
    """A tree in which one place is fixed by hand gets the others, and no second call there."""
    root = make_tree(tmp_path, Shape(made=(CLOSE_FIX,), fix=()))
    assert survey(root).state is State.PARTLY_FIXED
    write(plan(root).changes)
    assert contents(root)[CONTROLLER].decode() == SHAPES["pinned"].after[CONTROLLER]


@pytest.mark.parametrize(("make", "name"), [(applied_tree, "generation_stand_down"), (older_tree, "engine")])
def test_a_half_fixed_registry_is_completed_under_its_own_name(
    tmp_path: Path, make: Callable[[Path], Path], name: str
) -> None:
    """The set of holders is made once, and the four defaults stay one name."""
    root = make(tmp_path)
    after = contents(root)
    resume = f'    def resume(self, holder: str = "{name}") -> None:\n        self._holders.discard(holder)\n'
    text = edited(
        (root / MANAGER).read_text(),
        (resume + "        if self._holders:\n            return\n", "    def resume(self) -> None:\n"),
    )
    (root / MANAGER).write_text(text)
    assert survey(root).state is State.PARTLY_FIXED
    write(plan(root).changes)
    assert contents(root) == after


def test_two_versions_texts_in_one_tree_are_not_touched(tmp_path: Path) -> None:
    """With one default of 0.1.0 among ours, calls without a name would hold as two: nothing is guessed."""
    root = applied_tree(tmp_path)
    old = 'def resume(self, holder: str = "generation_stand_down")'
    text = edited((root / MANAGER).read_text(), (old, 'def resume(self, holder: str = "engine")'))
    (root / MANAGER).write_text(text)
    assert survey(root).state is State.UNKNOWN
    for make in (plan, plan_revert):
        with pytest.raises(UnsupportedTargetError, match="cannot change"):
            make(root)


def test_without_df004_the_deadline_is_not_touched(tmp_path: Path) -> None:
    """The optional rule can be left out; the tree counts as fixed, and apply does not bring it back."""
    root = make_tree(tmp_path)
    write(plan(root, rules=ALL_RULES - {Rule.DF004}).changes)
    assert "max(self._remaining" not in (root / MANAGER).read_text()
    assert survey(root).state is State.FIXED
    assert plan(root).changes == ()
    write(plan_revert(root).changes)
    assert contents(root)[MANAGER].decode() == pinned(MANAGER)


@pytest.mark.parametrize(
    ("encode", "says"),
    [
        (lambda raw: raw.replace(b"\n", b"\r\n"), "CRLF"),
        (lambda raw: BOM + raw, "byte order mark"),
        (lambda raw: BOM + raw.replace(b"\n", b"\r\n").rstrip(b"\r\n"), "all at once"),
        (lambda raw: raw.rstrip(b"\n"), "no last newline"),
        (lambda raw: b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + raw, "another encoding"),
        (lambda raw: raw.replace(b"\n\n", b"\n \t\n\x0c\n", 3), "odd white space"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_byte_outside_of_the_changed_lines_stays(
    tmp_path: Path, encode: Callable[[bytes], bytes], says: str
) -> None:
    """Encoding, byte order mark, newlines, a missing last one and odd space come through, there and back."""
    root = make_tree(tmp_path)
    for name in FILES:
        (root / name).write_bytes(encode((root / name).read_bytes()))
    before = contents(root)
    write(plan(root).changes)
    after = contents(root)
    assert after != before
    plain = {name: text.encode() for name, text in SHAPES["pinned"].after.items()}
    assert {name: raw == encode(plain[name]) for name, raw in after.items()} == dict.fromkeys(FILES, True)
    write(plan_revert(root).changes)
    assert contents(root) == before


@pytest.mark.parametrize(
    ("file", "anchor"),
    [
        (CONTROLLER, f"        {CLEAR}\n"),
        (CONTROLLER, "        prepared = False\n"),
        (CONTROLLER, "            if not prepare.ready:"),
        (CONTROLLER, f"        {SET}\n\n"),
        (MANAGER, "        self.suspended = False\n\n"),
        (MANAGER, "        self._timeout.reschedule(asyncio"),
        (MANAGER, "        self._request_deadlines.suspend()"),
        (MANAGER, FORWARDS[0]),
    ],
)
@pytest.mark.parametrize("mark", ["\f", "\f    \f"])
def test_form_feeds_stay_where_they_are(tmp_path: Path, file: str, anchor: str, mark: str) -> None:
    """In the indentation of a line that the fix goes beside, of its neighbour, and of any other."""
    root = make_tree(tmp_path)
    (root / file).write_text(edited((root / file).read_text(), (anchor, mark + anchor)))
    before = contents(root)
    write(plan(root).changes)
    after = contents(root)
    assert after[file].replace(mark.encode(), b"").decode() == SHAPES["pinned"].after[file]
    assert after[file].count(mark.encode()) == 1
    write(plan_revert(root).changes)
    assert contents(root) == before


def test_tabs_are_met_with_tabs(tmp_path: Path) -> None:
    """A file that is indented by tabs gets no line that is indented by spaces."""
    root = make_tree(tmp_path)
    for name in FILES:
        (root / name).write_text((root / name).read_text().replace("    ", "\t"))
    before = contents(root)
    write(plan(root).changes)
    for name, raw in contents(root).items():
        assert ast.unparse(ast.parse(raw.replace(b"\t", b"    "))) == ast.unparse(
            ast.parse(SHAPES["pinned"].after[name])
        )
        assert not re.search(rb"^\t* ", raw, re.MULTILINE)
    write(plan_revert(root).changes)
    assert contents(root) == before


@pytest.mark.parametrize("ends", [(b"\n", b"\r\n"), (b"\r\n", b"\n")])
def test_a_new_line_ends_as_the_line_beside_it(tmp_path: Path, ends: tuple[bytes, bytes]) -> None:
    """In a file of mixed line ends, every second line as on Windows, both ways."""
    root = make_tree(tmp_path)
    for name in FILES:
        end = itertools.cycle(ends)
        lines = [line + next(end) for line in (root / name).read_bytes().splitlines()]
        (root / name).write_bytes(b"".join(lines))
    before = contents(root)
    write(plan(root).changes)
    after = contents(root)
    for name, raw in after.items():
        assert raw.replace(b"\r\n", b"\n").decode() == SHAPES["pinned"].after[name]
    lines = after[CONTROLLER].splitlines(keepends=True)
    ours = [at for at, line in enumerate(lines) if HOLD.encode() in line or LET_GO.encode() in line]
    gates = [at + 1 if HOLD.encode() in lines[at] else at - 1 for at in ours]
    assert [lines[at].endswith(b"\r\n") for at in ours] == [lines[at].endswith(b"\r\n") for at in gates]
    write(plan_revert(root).changes)
    assert contents(root) == before


@pytest.mark.parametrize("fixed", [False, True])
def test_lone_carriage_returns_are_refused(tmp_path: Path, fixed: bool) -> None:
    """What is put in could not be taken out again, so neither is done."""
    root = make_tree(tmp_path, fixed=fixed)
    (root / MANAGER).write_bytes((root / MANAGER).read_bytes().replace(b"\n", b"\r"))
    with pytest.raises(UnsupportedTargetError, match="lone carriage return"):
        (plan_revert if fixed else plan)(root)


def test_a_missing_last_newline_at_the_changed_line_stays_missing(tmp_path: Path) -> None:
    """The gate's last reopening may be the last line of the file."""
    root = make_tree(tmp_path)
    text = pinned(CONTROLLER)
    end = text.index("    async def _release_committed_gym_checkpoint")
    (root / CONTROLLER).write_text(text[:end].rstrip("\n"))
    write(plan(root).changes)
    assert (root / CONTROLLER).read_text().endswith(f"{SET}\n        {LET_GO}")
    write(plan_revert(root).changes)
    assert (root / CONTROLLER).read_text() == text[:end].rstrip("\n")


def test_a_call_that_does_not_fit_its_line_is_wrapped(tmp_path: Path) -> None:
    """As NeMo RL's formatter does it, at 88 columns."""
    pad = " " * 28
    deep = (
        "        if prepared:\n            while prepared:\n                with self.lock:\n"
        f"                    if prepared:\n                        if prepared:\n{pad}{SET}  # deep\n"
    )
    shape = Shape(made=(("        prepared = False\n", "        prepared = False\n" + deep),))
    root = make_tree(tmp_path, shape)
    before = contents(root)
    write(plan(root).changes)
    call = LET_GO.replace('("gym_checkpoint")', f'(\n{pad}    "gym_checkpoint"\n{pad})')
    assert f"{SET}  # deep\n{pad}{call}\n" in (root / CONTROLLER).read_text()
    write(plan_revert(root).changes)
    assert contents(root) == before


def test_a_signature_on_several_lines_stays_so(tmp_path: Path) -> None:
    """The holder gets a line of its own where the others have one."""
    root = make_tree(tmp_path)
    before = edited(
        pinned(MANAGER),
        (
            "    def suspend_request_deadlines(self) -> None:",
            "    def suspend_request_deadlines(\n        self,\n    ) -> None:",
        ),
    )
    (root / MANAGER).write_text(before)
    write(plan(root).changes)
    assert (
        '(\n        self,\n        holder: str = "generation_stand_down",\n    ) -> None:'
        in (root / MANAGER).read_text()
    )
    write(plan_revert(root).changes)
    assert (root / MANAGER).read_text() == before


def test_comments_above_a_gate_stay_above_both_lines(tmp_path: Path) -> None:
    """A comment that explains the gate still stands over it, and ours follows."""
    note = "# Nobody is admitted from here on."
    shape = Shape(made=((f"        {CLEAR}", f"\n        {note}\n        {CLEAR}"),))
    root = make_tree(tmp_path, shape)
    write(plan(root).changes)
    wanted = f"prepared = False\n\n        {note}\n        {WHY}\n        {HOLD}\n        {CLEAR}\n"
    assert wanted in (root / CONTROLLER).read_text()


def test_the_formatter_of_nemo_rl_leaves_the_result_unchanged(tmp_path: Path) -> None:
    """Formatted at 88 columns before, formatted after, every shape."""
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    for name in SHAPES:
        applied_tree(tmp_path / name, name)
    for command in (
        ["format", "--check"],
        ["check", "--select=D,F,I", "--ignore=D1", "--config=lint.pydocstyle.convention='google'"],
    ):
        line = [str(ruff), *command, "--target-version=py311", "--isolated", "--no-cache", str(tmp_path)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_result_that_would_not_be_fixed_is_refused(tmp_path: Path, mocker: MockerFixture) -> None:
    """What would be written is judged first, so that a mistake of ours does not reach the tree."""
    mocker.patch.object(Place, "put_into", lambda place, text: text)
    with pytest.raises(UnsupportedTargetError, match="a tree that would be affected afterwards"):
        plan(make_tree(tmp_path))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (CONTROLLER, WHY, "# Rollouts park here."),
        (CONTROLLER, HOLD, HOLD.replace("(", "(holder=")),
        (CONTROLLER, f"{SET}\n        {LET_GO}", f"{SET}\n        # Go on.\n        {LET_GO}"),
        (CONTROLLER, f"        {HOLD}\n", f"        {HOLD}\n        # Now.\n"),
        (CONTROLLER, f"        {HOLD}\n", f"        {HOLD}\n        print()\n"),
        (CONTROLLER, f"\n        {SET}\n        {LET_GO}", f"\n        {SET}\n        {LET_GO}  # go"),
        (MANAGER, "0.001", "0.002"),
        (MANAGER, "        self._holders.add(holder)\n", "        self._holders |= {holder}\n"),
        (
            MANAGER,
            'def suspend(self, holder: str = "generation_stand_down")',
            'def suspend(self, holder: str = "training")',
        ),
        (MANAGER, "set[str] = set()", "set[str] = set([])"),
        (
            MANAGER,
            'def resume_request_deadlines(self, holder: str = "generation_stand_down")',
            'def resume_request_deadlines(self, *, holder: str = "generation_stand_down")',
        ),
        (
            MANAGER,
            "        if self._holders:\n            return\n",
            "        if len(self._holders):\n            return\n",
        ),
    ],
)
def test_what_was_edited_since_is_not_reverted(tmp_path: Path, file: str, old: str, new: str) -> None:
    """A changed line of the fix is somebody's work; nothing is taken out then, not even elsewhere."""
    root = applied_tree(tmp_path)
    (root / file).write_text(edited((root / file).read_text(), (old, new)))
    before = contents(root)
    with pytest.raises(UnsupportedTargetError, match=r"cannot (take the fix out of .*edited since|change )"):
        write(plan_revert(root).changes)
    assert contents(root) == before


def test_edits_elsewhere_survive_a_revert(tmp_path: Path) -> None:
    """Only the fix's own lines are taken out."""
    root = applied_tree(tmp_path)
    for name in FILES:
        with (root / name).open("a") as file:
            file.write("\n\nMINE = 1\n")
    write(plan_revert(root).changes)
    assert {name: raw.decode() for name, raw in contents(root).items()} == {
        name: pinned(name) + "\n\nMINE = 1\n" for name in FILES
    }
