"""Break the fix on purpose, in one way after another, and show that the suite goes red for each.

    python -m tests.mutants [NAME ...] [--list] [--jobs N]

The mutants are in `tests.mutations`, each with the few tests that have to notice it. They are put into
copies of the repo, one at a time; the repo itself is not touched. Exit code 0: all were noticed; 1: one was
not; 2: that could not be found out.

They are written by hand because what has to be broken is not what mutation tools break. mutmut and
cosmic-ray exchange operators, constants and keywords. They have no "counts instead of naming", "resumes
in finally", "holds one await later" or "lost a hunk of the diff".
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations import MUTANTS
from tests.support.mutant import DoesNotApplyError, Mutant

ROOT = Path(__file__).parent.parent
PACKAGE = "nemo_rl_deadline_fix"
PARTS = (PACKAGE, "tests", "patches", ".github", "pyproject.toml", "README.md", "CHANGELOG.md")
"""What the tests need of the repo."""

PLUGINS = ("pytest_timeout", "pytest_mock")
"""What the suite needs; loading all that happen to be installed would be half of most runs."""

TEST_S, SUBSET_S = 30, 240
"""Seconds after which one test counts as red, and after which a subset is given up."""


class UndecidedError(Exception):
    """Something else than green or red came out, so that a mutant proves nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants of these names, or all of them; see the module for the exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="mutants to run; by default all")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=os.cpu_count() or 1,
        help="runs at a time (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant {' and no '.join(sorted(unknown))}; --list shows all")
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name}  ({mutant.file})\n    {mutant.why}")
        return 0
    try:
        return run(chosen, max(1, options.jobs))
    except (DoesNotApplyError, UndecidedError) as error:
        print(error, file=sys.stderr)
        return 2


def run(mutants: Sequence[Mutant], jobs: int) -> int:
    """Run mutants in so many copies of the repo at a time, and print what became of each.

    Args:
        mutants: The mutants.
        jobs: How many at a time.

    Returns:
        0 if all were noticed, else 1.

    Raises:
        DoesNotApplyError: A mutant does not fit the present sources; nothing was run.
        UndecidedError: The tests are not green without a mutant, or end neither green nor red with one.
    """
    texts = {mutant: mutant.text(ROOT) for mutant in mutants}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(_copy(Path(folder).resolve() / str(number)))

        def red_without(tests: tuple[str, ...]) -> str:
            copy = copies.get()
            try:
                return _first_red(copy, tests)
            finally:
                copies.put(copy)

        def red_with(mutant: Mutant) -> str:
            copy = copies.get()
            file = copy / mutant.file
            whole = file.read_bytes()
            try:
                file.write_text(texts[mutant], encoding="utf-8")
                return _first_red(copy, mutant.tests)
            finally:
                file.write_bytes(whole)
                copies.put(copy)

        try:
            subsets = list(dict.fromkeys(mutant.tests for mutant in mutants))
            for tests, red in zip(subsets, pool.map(red_without, subsets), strict=True):
                if red:
                    raise UndecidedError(f"red without any mutant: {red}, in {' '.join(tests)}")
            print(f"{len(subsets)} subsets of the suite are green without a mutant", flush=True)
            survivors = 0
            for mutant, red in zip(mutants, pool.map(red_with, mutants), strict=True):
                survivors += not red
                print(
                    f"{mutant.name}: {f'killed by {red}' if red else f'SURVIVED: {mutant.why}'}", flush=True
                )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    killed = len(mutants) - survivors
    print(f"{len(mutants)} mutants: {killed} killed, {survivors} survived; {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


def _copy(folder: Path) -> Path:
    """Copy the repo, and make sure that Python takes the package from there."""
    folder.mkdir(parents=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*_cache", "*.tmp")
            )
        elif (ROOT / part).exists():
            shutil.copy2(ROOT / part, folder / part)
    # Bytecode that is known by the source's hash. Known by its time and size, a mutant of the same
    # size that is written within the same second would not be run at all.
    compileall.compile_dir(
        folder / PACKAGE, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
    )
    line = [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]
    done = subprocess.run(line, cwd=folder.parent, env=_environment(folder), capture_output=True, text=True)
    if not done.stdout.startswith(f"{folder / PACKAGE}{os.sep}"):
        raise UndecidedError(f"the copy's package is not what is imported: {done.stdout or done.stderr}")
    return folder


def _environment(copy: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    # Processes that tests start take the copy's package as well.
    return {**kept, "PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _first_red(copy: Path, tests: tuple[str, ...]) -> str:
    """The first test of a subset that is red, or "" where all are green."""
    line = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "--color=no", "-p", "no:cacheprovider"]
    line += ["-o", "addopts=--strict-markers -m 'not slow'"]
    process = subprocess.Popen(
        [*line, *(f"-p{name}" for name in PLUGINS), "-o", f"timeout={TEST_S}", *tests],
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SUBSET_S)
    except subprocess.TimeoutExpired:
        raise UndecidedError(f"no end within {SUBSET_S} s: {' '.join(tests)}") from None
    finally:
        if process.poll() is None:
            # With what it has started.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode == 0:
        return ""
    red = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, flags=re.MULTILINE)
    # A file that cannot even be imported is no test that has noticed something.
    if process.returncode != 1 or red is None:
        raise UndecidedError(f"neither green nor red: {' '.join(tests)}\n{output[-1000:]}")
    return red[1]


if __name__ == "__main__":
    sys.exit(main())
