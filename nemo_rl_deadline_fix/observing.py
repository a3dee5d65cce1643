"""What operators see of the clocks in this process: log lines, a report to read, metrics to log."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_rl_deadline_fix.targets import HOLDER, METRIC_PREFIX, STRANDED_PREFIX, TELEMETRY, UNACKNOWLEDGED

if TYPE_CHECKING:
    from nemo_rl_deadline_fix.registry import RequestDeadlineRegistry

WARN_AFTER_ENV = "NEMO_RL_DEADLINE_FIX_WARN_AFTER_S"
"""Environment variable: seconds after which a lasting hold is reported at WARNING."""

logger = logging.getLogger("nemo_rl.deadline_fix")

_watches: set[weakref.ref[Watch]] = set()
_stranded: dict[str, int] = {}


@dataclass(frozen=True)
class ClockReport:
    """One registry's clocks, as of now.

    Attributes:
        stopped: Whether anyone holds them.
        holders: Who holds them, and for how many seconds so far.
        covered: Number of live deadlines, which stand still while the clocks are stopped.
        snapshots: Number of Gym snapshots that held them so far.
        paused_seconds: Seconds in total for which they stood, and so were given back to every rollout.
        longest_hold_seconds: The longest single hold so far, in seconds.
    """

    stopped: bool
    holders: Mapping[str, float]
    covered: int
    snapshots: int
    paused_seconds: float
    longest_hold_seconds: float

    def __str__(self) -> str:
        names = ", ".join(f"{name} for {seconds:.0f} s" for name, seconds in self.holders.items())
        return (
            f"clocks: {f'stopped by {names}' if self.stopped else 'running'}; {self.covered} rollouts "
            f"covered, {self.snapshots} snapshots so far, {self.paused_seconds:.0f} s given back, "
            f"longest hold {self.longest_hold_seconds:.0f} s"
        )


class Watch:
    """Counts the holds of one registry's clocks, logs them, and warns of one that lasts.

    Args:
        registry: The registry.
        warn_after_s: Seconds after which a lasting hold is reported at WARNING, and again each time the
            wait has doubled. By default the environment variable `WARN_AFTER_ENV`, else 300.

    Raises:
        ValueError: `warn_after_s` is not a positive, finite number.
    """

    def __init__(self, registry: RequestDeadlineRegistry, warn_after_s: float | None = None) -> None:
        self.warn_after_s = _warn_after_s(warn_after_s)
        self._registry = registry
        self._warning: asyncio.TimerHandle | None = None
        self._snapshots = 0
        self._stopped_at = self._paused_s = self._longest_s = 0.0
        _watches.add(weakref.ref(self, _watches.discard))

    def held(self, holder: str, at: float, *, first: bool) -> None:
        """Count a hold that has begun, at a loop time; with the first one the clocks stop."""
        self._snapshots += holder == HOLDER
        if first:
            self._stopped_at = at
            self._warn_in(self.warn_after_s)
            live = self._registry.live
            log(logging.INFO, "Rollout clocks stopped by %s: %d live deadline(s)", holder, live)

    def released(self, holder: str, since: float, at: float, *, last: bool) -> None:
        """Count a hold that has ended, from one loop time to another; after the last one the clocks run."""
        self._longest_s = max(self._longest_s, at - since)
        if not last:
            return
        paused_s = at - self._stopped_at
        self._paused_s += paused_s
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None
        line = "Rollout clocks run again, released by %s after %.3f s: %d live deadline(s)"
        log(logging.INFO, line, holder, paused_s, self._registry.live)

    def report(self) -> ClockReport:
        """The clocks as of now. Another thread may ask."""
        # The total first: a hold that ends between the two lines is then counted once, and not twice.
        paused_s = self._paused_s
        holders = self._registry.holders.copy()
        at = now()
        held_s = {name: at - since for name, since in holders.items()}
        return ClockReport(
            stopped=bool(holders),
            holders=held_s,
            covered=self._registry.live,
            snapshots=self._snapshots,
            paused_seconds=paused_s + (at - self._stopped_at if holders else 0.0),
            longest_hold_seconds=max([self._longest_s, *held_s.values()]),
        )

    def _warn_in(self, seconds: float) -> None:
        # A timer handle, not a task: it keeps no loop alive, and the last release cancels it.
        loop = running_loop()
        self._warning = loop.call_later(seconds, self._warn, seconds) if loop else None

    def _warn(self, waited: float) -> None:
        report = self.report()
        names = ", ".join(f"{name} (for {seconds:.0f} s)" for name, seconds in report.holders.items())
        line = (
            "Rollout clocks have been stopped for %.0f s, by %s: %d live deadline(s) wait. Usual causes: a "
            "snapshot whose release is pending or whose abort failed, or a training pause that no weight "
            "sync has ended. NeMo RL keeps admission closed and tries again at its next snapshot; the clocks "
            "run again when the last holder releases them."
        )
        log(logging.WARNING, line, now() - self._stopped_at, names, report.covered)
        self._warn_in(2 * waited)


def clocks() -> tuple[ClockReport, ...]:
    """The clocks of every registry in this process: in the actor one, from its first snapshot on."""
    return tuple(watch.report() for one in _watches.copy() if (watch := one()) is not None)


def metrics() -> dict[str, float]:
    """The clocks of this process as flat numbers, to be merged into a NeMo RL logger's metrics.

    Call it inside the controller actor, where the registry lives; any thread may. Several registries are
    added up.

    Returns:
        `rollout/deadlines/` and: `suspended` (1 or 0), `holders`, `live`, `snapshots_total`,
        `paused_seconds_total`, `longest_hold_seconds`. Where a snapshot acknowledged what NeMo RL had given
        up on, or tried to, also `rollout/stranded/` and: `acknowledged_total`, `unknown_total` (of these, to
        NeMo RL's ledger), `failed_total` (calls).
    """
    reports = clocks()
    numbers = {
        "suspended": any(report.stopped for report in reports),
        "holders": sum(len(report.holders) for report in reports),
        "live": sum(report.covered for report in reports),
        "snapshots_total": sum(report.snapshots for report in reports),
        "paused_seconds_total": sum(report.paused_seconds for report in reports),
        "longest_hold_seconds": max((report.longest_hold_seconds for report in reports), default=0.0),
    }
    deadlines = {f"{METRIC_PREFIX}/{name}": float(number) for name, number in numbers.items()}
    totals = {f"{STRANDED_PREFIX}/{name}_total": float(number) for name, number in _stranded.copy().items()}
    return deadlines | totals


def count_stranded(**numbers: int) -> None:
    """Add what was done for one snapshot about stranded replies: `acknowledged`, `unknown`, `failed`."""
    _stranded.update({name: _stranded.get(name, 0) + number for name, number in numbers.items()})


def stranded_so_far() -> str:
    """What `count_stranded` has counted in this process, in words."""
    acknowledged, unknown, failed = (_stranded.get(name, 0) for name in ("acknowledged", "unknown", "failed"))
    return f"{acknowledged} so far; of these unknown to its ledger: {unknown}; failed calls: {failed}"


def warn_of_timeout(error: BaseException) -> None:
    """Say what a prepare that ran out of time usually waited for; of another error nothing. Never raises."""
    with suppress(Exception):
        errors = [error]
        for one in errors:
            errors += [two for two in (one.__cause__, *getattr(one, "exceptions", ())) if two is not None]
        if any(isinstance(one, TimeoutError) or UNACKNOWLEDGED in str(one) for one in errors):
            log(
                logging.WARNING,
                "A Gym snapshot could not be prepared in time. The usual reason is a finished reply that "
                "NeMo RL gave up on and nobody acknowledges (%s at one of Gym's agents): then every "
                "later snapshot fails as well. To acknowledge such replies: install(acknowledge=True), "
                "or `nemo-rl-deadline-fix run --acknowledge`",
                UNACKNOWLEDGED,
            )


def log_telemetry(controller: Any, metrics: dict[str, float], prefix: str = METRIC_PREFIX) -> None:
    """Log numbers under a prefix where a controller logs its snapshots, if it does. It never raises."""
    try:
        telemetry = getattr(controller, TELEMETRY, None)
        if telemetry is not None:
            telemetry(metrics, step=getattr(controller, "_train_steps", 0), prefix=prefix)
    except Exception as error:
        log(logging.DEBUG, "Telemetry under %s was not logged", prefix, error=error)


def log(level: int, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log a line, with an error's traceback. It never raises: a user's handler must not stop a snapshot."""
    with suppress(Exception):
        logger.log(level, message, *args, exc_info=error)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def now() -> float:
    """The running loop's time; where no loop runs, the clock that asyncio's own loops run on."""
    loop = running_loop()
    return time.monotonic() if loop is None else loop.time()


def _warn_after_s(given: float | None) -> float:
    if given is not None:
        if not 0 < given < float("inf"):
            raise ValueError(f"warn_after_s is a positive number of seconds, not {given!r}")
        return given
    text = os.environ.get(WARN_AFTER_ENV, "")
    with suppress(ValueError):
        seconds = float(text or 300.0)
        if 0 < seconds < float("inf"):
            return seconds
    log(logging.WARNING, "%s=%r is not a positive number of seconds; using 300", WARN_AFTER_ENV, text)
    return 300.0
