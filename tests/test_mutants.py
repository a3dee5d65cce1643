"""The list of mutants cannot rot: each still fits the sources and asks for tests that are there.

`python -m tests.mutants` runs them, which takes minutes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from tests import mutants
from tests.mutants import ROOT
from tests.mutations import MUTANTS
from tests.support.mutant import DoesNotApplyError, Mutant

SOURCE = '''
class Registry:
    def resume(self, holder):
        """Doc."""
        # Why.
        if holder in self._holders:  # here
            self._holders.discard(
                holder
            )

def resume(holder):
    if holder in other:
        pass
'''


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_and_is_still_code(mutant: Mutant) -> None:
    """Its line is there exactly once, it changes something, and Python can compile the result."""
    text = mutant.text(ROOT)

    assert text != (ROOT / mutant.file).read_text(encoding="utf-8")
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")


def test_the_list() -> None:
    """No two are the same, and each says what is wrong with it in one line."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.function, mutant.line, mutant.put) for mutant in MUTANTS}) == len(
        MUTANTS
    )
    for mutant in MUTANTS:
        assert mutant.why.endswith(".")
        assert "\n" not in mutant.why


def test_the_tests_they_ask_for_are_there() -> None:
    """Each names files and functions of this suite, so that pytest has something to run."""
    for argument in {argument for mutant in MUTANTS for argument in mutant.tests}:
        if argument.startswith("tests/"):
            file, _, name = argument.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name.partition('[')[0]}(" in text if name else text


@pytest.mark.parametrize(
    ("line", "put", "before", "after"),
    [
        (
            r"if holder in (self\._holders)",
            r"if holder not in self._holders",
            "if holder in",
            "if holder not in",
        ),
        (r"self\._holders\.discard\(holder\)", "self._holders.clear()", "discard", ".clear()"),
        (r"self\._holders\.discard\(holder\)", "", "discard", "pass"),
    ],
)
def test_a_line_is_found_by_what_it_means(
    line: str, put: str, before: str, after: str, tmp_path: Path
) -> None:
    """Comments, layout and functions of the same name elsewhere do not matter."""
    (tmp_path / "file.py").write_text(SOURCE)

    text = Mutant("name", "Why.", (), "file.py", "Registry.resume", line, put).text(tmp_path)

    method, _, function = text.partition("def resume(holder):")
    assert before not in method
    assert after in method
    assert function == SOURCE.partition("def resume(holder):")[2]


def test_a_hunk_of_a_diff_is_lost(tmp_path: Path) -> None:
    """The one that has the line goes, the others stay."""
    (tmp_path / "a.diff").write_text("--- a\n+++ a\n@@ -1 +1,2 @@\n x\n+new\n@@ -9 +10 @@\n-y\n+z\n")

    text = Mutant("name", "Why.", (), "a.diff", line=r"\+new").text(tmp_path)

    assert text == "--- a\n+++ a\n@@ -9 +10 @@\n-y\n+z\n"


@pytest.mark.parametrize(("line", "found"), [("nowhere", "found 0 times"), ("holder", "found 2 times")])
def test_a_mutant_that_does_not_fit_stops_everything(
    line: str, found: str, tmp_path: Path, mocker: MockerFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any test is run, with its name and exit code 2: a list that does not fit proves nothing."""
    (tmp_path / "file.py").write_text(SOURCE)
    unfit = replace(MUTANTS[0], file=str(tmp_path / "file.py"), function="Registry.resume", line=line)
    mocker.patch.object(mutants, "MUTANTS", (unfit,))
    copy = mocker.patch.object(mutants, "_copy")

    assert mutants.main([]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{unfit.name}: {found} in ")
    copy.assert_not_called()
    with pytest.raises(DoesNotApplyError):
        unfit.text(tmp_path)


def test_names_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` runs nothing and tells what is asked for; a name that is none is a usage error."""
    assert mutants.main(["--list", MUTANTS[0].name]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{MUTANTS[0].name}  ({MUTANTS[0].file})",
        f"    {MUTANTS[0].why}",
    ]
    with pytest.raises(SystemExit) as left:
        mutants.main(["no-such"])
    assert left.value.code == 2
    assert "no mutant no-such" in capsys.readouterr().err
