"""The manager of rollouts, built in the driver and pickled to the controller, and its deadlines."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from nemo_rl.experience.failures import RolloutTimeout


class RequestDeadlineRegistry:
    """Live deadlines under one flag: whoever resumes, resumes them all."""

    def __init__(self) -> None:
        self._live: set[_Deadline] = set()
        self.suspended = False

    def add(self, deadline: _Deadline) -> None:
        self._live.add(deadline)
        if self.suspended:
            deadline.suspend()

    def discard(self, deadline: _Deadline) -> None:
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
    """A budget around `asyncio.timeout` that can be banked."""

    def __init__(
        self, seconds: float | None, description: str, registry: RequestDeadlineRegistry | None = None
    ) -> None:
        self._seconds = seconds
        self._description = description
        self._registry = registry
        self._timeout: asyncio.Timeout | None = None
        self._remaining: float | None = None

    async def __aenter__(self) -> _Deadline:
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        if self._registry is not None:
            self._registry.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._registry is not None:
            self._registry.discard(self)
        assert self._timeout is not None
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise RolloutTimeout(f"{self._description} exceeded {self._seconds}s") from error

    def suspend(self) -> None:
        if self._timeout is None or self._remaining is not None or self._timeout.expired():
            return
        when = self._timeout.when()
        if when is not None:
            self._remaining = max(0.0, when - asyncio.get_running_loop().time())
            self._timeout.reschedule(None)

    def resume(self) -> None:
        if self._timeout is None or self._remaining is None:
            return
        left, self._remaining = self._remaining, None
        self._timeout.reschedule(asyncio.get_running_loop().time() + left)


class GymRollouts:
    """Reads one prompt group from Gym's actor and ACKs what it has read."""

    def __init__(self, gym: Any, timeout_s: float, deadline_registry: RequestDeadlineRegistry) -> None:
        self._gym = gym
        self._timeout_s = timeout_s
        self._deadline_registry = deadline_registry

    async def run(self, rollout_id: str, attempt: int) -> dict[str, Any]:
        reply: dict[str, Any] = {}
        async with _Deadline(self._timeout_s, "NeMo-Gym prompt group", registry=self._deadline_registry):
            async for row in self._gym.run_rollouts.remote(rollout_id, attempt):
                reply = await row
                await self._gym.acknowledge_completed_executions.remote([(rollout_id, attempt)])
        return reply


class RolloutManager:
    """Owns the registry and hands it to what runs the rollouts."""

    def __init__(self, gym: Any, timeout_s: float) -> None:
        self._request_deadlines = RequestDeadlineRegistry()
        self._rollouts = GymRollouts(gym, timeout_s, deadline_registry=self._request_deadlines)

    def suspend_request_deadlines(self) -> None:
        self._request_deadlines.suspend()

    def resume_request_deadlines(self) -> None:
        self._request_deadlines.resume()

    async def run(self, rollout_id: str, attempt: int) -> dict[str, Any]:
        return await self._rollouts.run(rollout_id, attempt)
