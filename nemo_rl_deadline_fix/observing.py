"""What operators see of the clocks in this process: a status to read, and metrics to log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_rl_deadline_fix.registry import RequestDeadlineRegistry, known_registries
from nemo_rl_deadline_fix.targets import HOLDER, METRIC_PREFIX


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


def clocks() -> tuple[ClockReport, ...]:
    """The clocks of every registry in this process: in the actor one, from its first snapshot on."""
    return tuple(_report(registry) for registry in known_registries())


def metrics() -> dict[str, float]:
    """The clocks of this process as flat numbers, to be merged into a NeMo RL logger's metrics.

    Call it inside the controller actor, where the registry lives. Several registries are added up.

    Returns:
        `rollout/deadlines/` and: `suspended` (1 or 0), `holders`, `live`, `snapshots_total`,
        `paused_seconds_total`, `longest_hold_seconds`.
    """
    reports = clocks()
    numbers = {
        "suspended": float(any(report.stopped for report in reports)),
        "holders": float(sum(len(report.holders) for report in reports)),
        "live": float(sum(report.covered for report in reports)),
        "snapshots_total": float(sum(report.snapshots for report in reports)),
        "paused_seconds_total": sum((report.paused_seconds for report in reports), 0.0),
        "longest_hold_seconds": max((report.longest_hold_seconds for report in reports), default=0.0),
    }
    return {f"{METRIC_PREFIX}/{name}": number for name, number in numbers.items()}


def _report(registry: RequestDeadlineRegistry) -> ClockReport:
    stats = registry.stats
    return ClockReport(
        stopped=registry.suspended,
        holders=registry.held_seconds,
        covered=registry.live,
        snapshots=stats[HOLDER].holds if HOLDER in stats else 0,
        paused_seconds=registry.paused_seconds,
        longest_hold_seconds=max((one.longest_seconds for one in stats.values()), default=0.0),
    )
