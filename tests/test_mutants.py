"""The list of mutants cannot rot: each still fits the sources and asks for tests that are there.

`python -m tests.mutants` runs them, which takes minutes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import ROOT
from tests.mutations import MUTANTS, registry
from tests.mutations.mutant import DoesNotApplyError, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_and_is_still_code(mutant: Mutant) -> None:
    """What it replaces is there exactly once, it changes something, and Python can compile the result."""
    text = mutant.text(ROOT)
    assert text != (ROOT / mutant.file).read_text(encoding="utf-8")
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")


def test_the_list() -> None:
    """There are enough of them, no two are the same, each says what is wrong with it in one line."""
    assert len(MUTANTS) >= 100
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.edits) for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.why.endswith(".")
        assert "\n" not in mutant.why


def test_the_tests_they_ask_for_are_there() -> None:
    """Each names files and functions of this suite, so that pytest has something to run."""
    asked = {argument for mutant in MUTANTS for argument in mutant.tests if argument.startswith("tests/")}
    for argument in asked:
        file, _, name = argument.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else (ROOT / file).exists()
    assert all(mutant.tests[0] in asked for mutant in MUTANTS)


def test_the_exhaustive_orders_stand_alone() -> None:
    """Each of the two exhaustive tests has mutants that no other test is run for."""
    alone = [mutant.tests for mutant in MUTANTS]
    assert alone.count(registry.TWO_HOLDERS) >= 2
    assert alone.count(registry.THREE_HOLDERS) >= 2


@pytest.mark.parametrize(("text", "found"), [("", "0 times"), ("old old", "2 times")])
def test_a_mutant_that_does_not_fit_stops_everything(
    text: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any test is run, with its name and exit code 2: a list that does not fit proves nothing."""
    (tmp_path / "file").write_text(text)
    unfit = replace(MUTANTS[0], file=str(tmp_path / "file"), edits=(("old", "new"),))
    monkeypatch.setattr(mutants, "MUTANTS", (unfit,))
    monkeypatch.setattr(mutants, "_copy", lambda folder: pytest.fail("nothing must be run"))

    assert mutants.main([]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{unfit.name}: found {found} in {unfit.file}: ")


def test_edits_follow_one_another(tmp_path: Path) -> None:
    """A later replacement looks at the text that the earlier ones made."""
    (tmp_path / "file").write_text("a")
    mutant = replace(MUTANTS[0], file="file", edits=(("a", "bb"), ("bb", "c")))
    assert mutant.text(tmp_path) == "c"
    with pytest.raises(DoesNotApplyError):
        replace(mutant, edits=(("a", "bb"), ("b", "c"))).text(tmp_path)


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


@pytest.mark.parametrize(
    ("survives", "red", "bad"),
    [("", "tests/test_x.py::test_y", False), ("", "", True), ("equal", "", False), ("equal", "test_y", True)],
)
def test_what_counts_as_noticed(survives: str, red: str, bad: bool) -> None:
    """A mutant must be killed, or its survival explained, and an explanation must still be true."""
    judged, said = mutants._judged(replace(MUTANTS[0], survives=survives), red)
    assert judged is bad
    assert red in said
    assert ("SURVIVED" in said) is (not red and not survives)
