"""What is shipped: the wheel, the sdist, and the types a user's program sees."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import nemo_rl_deadline_fix

# A wheel, an sdist and a program that is type-checked take their time.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
VERSION = nemo_rl_deadline_fix.__version__

USER = """
from nemo_rl_deadline_fix import (
    ClockReport, RequestDeadlineRegistry, State, UnsupportedTargetError, install, metrics, status, uninstall,
)

def switch_on() -> bool:
    try:
        report = install(acknowledge=True)
    except UnsupportedTargetError as error:
        print(error.found, error.advice)
        return False
    return report.state is State.PATCHED and report.detail + report.stranded == ""

def pause(registry: RequestDeadlineRegistry) -> float:
    with registry.hold("mine"):
        holders: list[str] = sorted(registry.holders)
    clocks: tuple[ClockReport, ...] = status().clocks
    numbers: dict[str, float] = metrics()
    uninstall()
    return sum(clock.paused_seconds for clock in clocks) + sum(numbers.values()) + len(holders)

reveal_type(install)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the sdist, built from this tree."""
    folder = tmp_path_factory.mktemp("dist")
    for kind in ("--wheel", "--sdist"):
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(folder), str(ROOT)],
            check=True,
            capture_output=True,
            timeout=100,
        )
    return folder


def _package_files() -> set[str]:
    """What belongs to the package, without what tools leave in a working tree."""
    files = (path.relative_to(ROOT) for path in (ROOT / "nemo_rl_deadline_fix").rglob("*") if path.is_file())
    return {
        str(path) for path in files if not any(part.startswith((".", "__pycache__")) for part in path.parts)
    }


def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    """Every module and py.typed, the metadata and the license; no tests, no patches."""
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"nemo_rl_deadline_fix-{VERSION}.dist-info/"

    assert wheel.name == f"nemo_rl_deadline_fix-{VERSION}-py3-none-any.whl"
    assert names - {name for name in names if name.startswith(info)} == _package_files()
    assert "nemo_rl_deadline_fix/py.typed" in names
    assert {
        info + name for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    } == {name for name in names if name.startswith(info)}


def test_the_sdist_holds_what_the_suite_needs(dist: Path) -> None:
    """Package, tests, patches, picture and CI; nothing that a tool left behind."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names}

    assert tops == {
        ".ci",
        ".github",
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "nemo_rl_deadline_fix",
        "patches",
        "pyproject.toml",
        "tests",
    }
    assert _package_files() <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_metadata_says_what_users_need(dist: Path) -> None:
    """Name, license, Python range, extras, and the command's entry point."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        info = f"nemo_rl_deadline_fix-{VERSION}.dist-info/"
        metadata = archive.read(info + "METADATA").decode()
        entry_points = archive.read(info + "entry_points.txt").decode()

    for line in (
        "Name: nemo-rl-deadline-fix",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.11",
        "Requires-Dist: ray>=2.55",
        "Provides-Extra: plot",
        "Provides-Extra: test",
    ):
        assert line in metadata.splitlines()
    assert "nemo-rl-deadline-fix = nemo_rl_deadline_fix.__main__:main" in entry_points
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()


def test_a_users_program_type_checks(tmp_path: Path) -> None:
    """Strict mypy finds no fault in a program that uses the public names, and knows their types."""
    program = tmp_path / "program.py"
    program.write_text(USER)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )

    assert "Success: no issues found" in done.stdout, done.stdout
    report = "nemo_rl_deadline_fix.installing.Report"
    assert f'Revealed type is "def (acknowledge: bool | None =) -> {report}"' in done.stdout
