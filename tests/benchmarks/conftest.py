"""What the fix costs, as one table: `pytest tests/benchmarks`, optionally with `--tree PATH`.

Times are never a reason to fail. What is asserted is that the measured code did what it is for.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.comparing import Samples, Spread, Turns

HEADINGS = ("what", "takes", "compared with", "median (quartiles)", "goal", "reached")


@dataclass(frozen=True)
class Row:
    """One comparison, as the table shows it.

    Attributes:
        shown: How a number of `spread` is written.
        goal: What the median should not exceed; None where nothing was promised.
    """

    what: str
    takes: str
    against: str
    spread: Spread
    shown: Callable[[float], str]
    goal: float | None

    def cells(self) -> tuple[str, ...]:
        """The row's texts."""
        numbers = [self.shown(number) for number in (self.spread.median, self.spread.low, self.spread.high)]
        comparison = f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
        goal, reached = "", ""
        if self.goal is not None:
            goal, reached = f"≤ {self.shown(self.goal)}", "yes" if self.spread.median <= self.goal else "no"
        return self.what, self.takes, self.against, comparison, goal, reached


class Comparison:
    """Rounds of pytest-benchmark, in each of which all that is compared has its turn."""

    def __init__(self, benchmark: Any, rows: list[Row]) -> None:
        self._benchmark = benchmark
        self._rows = rows
        self.samples = Samples()

    def run(
        self,
        things: dict[str, Callable[[], float]],
        *,
        per: int = 1,
        rounds: int,
        around: Callable[[Callable[[], None]], None] = lambda turn: turn(),
    ) -> None:
        """Measure.

        Args:
            things: What is compared: each measures itself, in seconds.
            per: Operations in each measurement.
            rounds: How often everything has its turn.
            around: What calls a round.
        """
        self.samples.per = per
        turns = Turns(things, self.samples)
        for _ in range(2):
            around(turns)
        self.samples.clear()
        self._benchmark.pedantic(around, args=(turns,), rounds=rounds)
        self._benchmark.extra_info["seconds"] = {
            name: [sample / per for sample in samples] for name, samples in self.samples.seconds.items()
        }

    def ratio(self, what: str, name: str, against: str, *, goal: float | None = None) -> None:
        """Put into the table how many times as long one takes as the other."""
        self._add(what, name, against, self.samples.ratio(name, against), lambda x: f"{x:.2f}x", goal)

    def difference(self, what: str, name: str, against: str, *, goal: float | None = None) -> None:
        """Put into the table how much longer one takes than the other."""
        spread = self.samples.difference(name, against)
        self._add(what, name, against, spread, lambda x: f"{1e3 * x:+.1f} ms", goal)

    def absolute(self, what: str, name: str, *, goal: float | None = None) -> None:
        """Put into the table what one takes by itself."""
        self._add(what, name, "seconds of CPU", self.samples.each(name), _time, goal)

    def numbers(self, what: str, beside: str, values: list[float]) -> None:
        """Put numbers into the table that are not seconds."""
        self._rows.append(Row(what, "", beside, Spread.of(values), lambda x: f"{x:g}", None))

    def _add(
        self,
        what: str,
        name: str,
        against: str,
        spread: Spread,
        shown: Callable[[float], str],
        goal: float | None,
    ) -> None:
        self._rows.append(Row(what, _time(self.samples.each(name).median), against, spread, shown, goal))


@pytest.fixture
def compare(benchmark: Any, request: pytest.FixtureRequest) -> Comparison:
    """Measures in turns, and adds to the table that is printed at the end."""
    return Comparison(benchmark, request.config.stash.setdefault(_ROWS, []))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take a checkout, because the tests' own tree is small."""
    parser.addoption("--tree", type=Path, metavar="PATH", help="a NeMo RL checkout to measure `check` on")


def pytest_configure(config: pytest.Config) -> None:
    """Leave out pytest-benchmark's own table: it would show whole rounds, which mean nothing."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("the benchmarks need pytest-benchmark; pip install -e '.[benchmark]'")
    config.option.benchmark_quiet = True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, ready for a Markdown document."""
    rows = [row.cells() for row in config.stash.get(_ROWS, [])]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    terminalreporter.section("what it costs")
    terminalreporter.line(
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f} at the end"
    )
    terminalreporter.line("")
    for cells in (HEADINGS, tuple("-" * width for width in widths), *rows):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        terminalreporter.line(f"| {' | '.join(padded)} |")


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


_ROWS = pytest.StashKey[list[Row]]()
