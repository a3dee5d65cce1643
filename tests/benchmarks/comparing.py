"""Things compared within one run: timed in turns, so that a drift of the machine hits all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle


@dataclass
class Samples:
    """Seconds per thing that is compared, one sample per round.

    Attributes:
        per: What one sample is divided by: the number of operations in it.
    """

    per: int = 1
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def clear(self) -> None:
        """Forget what the warm-up measured."""
        self.seconds.clear()

    def each(self, name: str) -> Spread:
        """What one operation takes."""
        return Spread.of([sample / self.per for sample in self.seconds[name]])

    def ratio(self, name: str, against: str) -> Spread:
        """How many times as long one takes as the other, round by round."""
        return Spread.of([a / b for a, b in self._pairs(name, against)])

    def difference(self, name: str, against: str) -> Spread:
        """How many seconds one takes more than the other, round by round."""
        return Spread.of([(a - b) / self.per for a, b in self._pairs(name, against)])

    def _pairs(self, name: str, against: str) -> zip[tuple[float, float]]:
        return zip(self.seconds[name], self.seconds[against], strict=True)


@dataclass(frozen=True)
class Spread:
    """A median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some samples; a single one has none."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


class Turns:
    """One round after the other, in each of which everything has its turn, in alternating order."""

    def __init__(self, things: Mapping[str, Callable[[], float]], samples: Samples) -> None:
        self._orders = cycle((list(things.items()), list(things.items())[::-1]))
        self._samples = samples

    def __call__(self) -> None:
        """Take one round: each thing measures itself, in seconds."""
        for name, measure in next(self._orders):
            self._samples.seconds[name].append(measure())


def timed(operation: Callable[[], object]) -> Callable[[], float]:
    """A measurement of an operation in this process that never waits: its seconds of the processor.

    Other load on the machine takes the processor away for a while, which a wall clock would count.
    """

    def measure() -> float:
        start = time.process_time()
        operation()
        return time.process_time() - start

    return measure


def cpu_of(
    arguments: Sequence[str], environment: Mapping[str, str], exit_codes: Sequence[int] = (0,)
) -> Callable[[], float]:
    """A measurement of a whole Python process: its seconds of the processor, user's and system's."""

    def measure() -> float:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        with process.stdout as pipe:
            output = pipe.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode in exit_codes, output.decode()
        return usage.ru_utime + usage.ru_stime

    return measure
