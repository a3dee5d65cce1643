"""Rollouts under a budget: a registry of deadlines, the deadline, and the manager."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Optional

from nemo_rl.experience.failures import RolloutTimeout


@dataclass(frozen=True)
class RolloutTimeouts:
    """Budgets in seconds; None means without limit."""

    rollout_s: Optional[float] = None
    env_s: Optional[float] = None


class RequestDeadlineRegistry:
    """All deadlines that run at present, so that their clocks can be stopped together."""

    def __init__(self) -> None:
        self._live: set["_Deadline"] = set()
        self.suspended = False

    def add(self, deadline: "_Deadline") -> None:
        self._live.add(deadline)
        if self.suspended:
            deadline.suspend()

    def discard(self, deadline: "_Deadline") -> None:
        self._live.discard(deadline)

    def suspend(self) -> None:
        if self.suspended:
            return
        self.suspended = True
        for deadline in self._live:
            deadline.suspend()

    def resume(self) -> None:
        if not self.suspended:
            return
        self.suspended = False
        for deadline in self._live:
            deadline.resume()


class _Deadline:
    """A budget whose end is a RolloutTimeout, and whose clock can be stopped.

    With ``seconds=None`` there is no limit. A deadline that is given a registry is
    suspended and resumed by it.
    """

    def __init__(
        self,
        seconds: Optional[float],
        description: str,
        registry: Optional[RequestDeadlineRegistry] = None,
    ) -> None:
        self._seconds = seconds
        self._description = description
        self._timeout: Optional[asyncio.Timeout] = None
        self._registry = registry
        self._remaining: Optional[float] = None

    async def __aenter__(self) -> "_Deadline":
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        if self._registry is not None:
            self._registry.add(self)
        return self

    async def __aexit__(self, kind, error, traceback) -> Optional[bool]:
        assert self._timeout is not None
        if self._registry is not None:
            self._registry.discard(self)
        try:
            return await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as expiry:
            # Only the end of this budget gets the name; other timeouts are not ours.
            if self._timeout.expired():
                message = f"{self._description} exceeded {self._seconds}s"
                raise RolloutTimeout(message) from expiry
            raise

    def suspend(self) -> None:
        """Stop the clock and keep what is left of the budget."""
        timeout = self._timeout
        if timeout is None or self._remaining is not None or timeout.expired():
            return
        when = timeout.when()
        if when is None:
            return
        self._remaining = max(0.0, when - asyncio.get_running_loop().time())
        timeout.reschedule(None)

    def resume(self) -> None:
        """Start the clock again with the budget that was kept."""
        if self._timeout is None or self._remaining is None:
            return
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._remaining)
        self._remaining = None


class AsyncNemoGymRolloutImpl:
    """Reads the rows of one prompt group from Gym, all under one budget."""

    def __init__(
        self,
        read_rows: Callable[[Any], Awaitable[Any]],
        timeouts: RolloutTimeouts = RolloutTimeouts(),
        deadline_registry: Optional[RequestDeadlineRegistry] = None,
    ) -> None:
        self._read_rows = read_rows
        self._timeouts = timeouts
        self._deadline_registry = deadline_registry

    async def run_rollout(self, input_sample: Any) -> Any:
        async with _Deadline(
            self._timeouts.rollout_s,
            "NeMo-Gym prompt group",
            registry=self._deadline_registry,
        ):
            return await self._read_rows(input_sample)


class RolloutManager:
    """Runs rollouts; its owner may stop the clocks of all that are under way."""

    def __init__(
        self,
        read_rows: Callable[[Any], Awaitable[Any]],
        timeouts: Optional[RolloutTimeouts] = None,
    ) -> None:
        self._request_deadlines = RequestDeadlineRegistry()
        self._impl = AsyncNemoGymRolloutImpl(
            read_rows,
            timeouts=timeouts if timeouts is not None else RolloutTimeouts(),
            deadline_registry=self._request_deadlines,
        )
        self._weight_version = 0

    def suspend_request_deadlines(self) -> None:
        """Stop the clocks of all rollouts in flight."""
        self._request_deadlines.suspend()

    def resume_request_deadlines(self) -> None:
        """Let the clocks of all rollouts in flight run on."""
        self._request_deadlines.resume()

    def set_weight_version(self, version: int) -> None:
        self._weight_version = version

    async def run_rollout(self, input_sample: Any) -> Any:
        return await self._impl.run_rollout(input_sample)
