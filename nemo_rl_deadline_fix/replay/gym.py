"""NeMo Gym as far as a snapshot goes: the agent participant, and RL's actor in front of it.

Our own model of the states, reports and refusals of Gym's agent participant and of RL's `NemoGym`
actor. It stands for servers and actors that need a cluster; the classes under test are RL's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nemo_rl_deadline_fix.replay.clock import now
from nemo_rl_deadline_fix.replay.events import Kind, Tell

RETRY_S = 0.1
"""How often RL's Gym actor asks again after a "not ready", in seconds."""


class ExecutionState(StrEnum):
    """State of one `/run`."""

    RUNNING = "running"
    PARK_REQUESTED = "park_requested"
    PARKED = "parked"
    COMPLETED = "completed"


@dataclass
class Execution:
    """One try of one rollout inside Gym."""

    index: int
    state: ExecutionState = ExecutionState.RUNNING
    at_boundary: bool = False
    awake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Prepared:
    """What a participant reports: how many executions stand where."""

    running: int
    parked: int
    completed_unacknowledged: int
    unbounded: int = 0

    @property
    def ready_to_commit(self) -> bool:
        """Whether a snapshot can be taken of this."""
        return not (self.running or self.unbounded or self.completed_unacknowledged)

    # RL's name for the same thing in the result of its Gym actor.
    ready = ready_to_commit


@dataclass(frozen=True)
class Committed:
    """What Gym wrote."""

    checkpoint_id: str


class Participant:
    """The executions of one agent server, parked at turn boundaries while a snapshot is taken."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._changed = asyncio.Condition()
        self._accepting = True
        self._live: dict[int, Execution] = {}
        self._acknowledged: set[int] = set()
        self.finished = 0

    async def run(self, index: int, work_s: float, turn_s: float) -> float:
        """Run one try to its end, turn by turn; its reply is kept until it is acknowledged.

        Args:
            index: The try's attempt index.
            work_s: Seconds of work in all, parked time not counted.
            turn_s: Seconds of one turn; at the end of each a park request takes effect.

        Returns:
            The reward.

        Raises:
            RuntimeError: Admission is closed, or this try ran before.
        """
        if not self._accepting or index in self._live or index in self._acknowledged:
            raise RuntimeError(f"Gym refuses try {index}")
        execution = self._live[index] = Execution(index)
        self._tell("Gym /run", f"try {index} starts", Kind.RUN_STARTS, index)
        left = work_s
        while left > 0:
            turn = min(turn_s, left)
            await asyncio.sleep(turn)
            left -= turn
            if left > 0:
                await self._boundary(execution)
        await self._set(execution, ExecutionState.COMPLETED)
        self.finished += 1
        self._tell(
            "Gym /run", f"try {index} finishes; its reply is kept until it is ACKed", Kind.RUN_FINISHES, index
        )
        return 1.0

    async def prepare(self, deadline_ts: float) -> Prepared:
        """Close admission, ask everyone to park, and wait until nothing runs or time is up."""
        self._accepting = False
        for execution in self._live.values():
            if execution.state is ExecutionState.RUNNING:
                execution.state = ExecutionState.PARK_REQUESTED
        async with self._changed:
            while (report := self.report()).running and (left := deadline_ts - now()) > 0:
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    break
        return report if report.ready_to_commit else self.report()

    async def resume(self) -> None:
        """Reopen admission and wake everyone who is parked."""
        self._accepting = True
        for execution in self._live.values():
            if execution.state is ExecutionState.PARK_REQUESTED:
                execution.state = ExecutionState.RUNNING
            execution.awake.set()

    def acknowledge(self, index: int) -> None:
        """Let go of a kept reply.

        Raises:
            RuntimeError: There is none for this try.
        """
        if index in self._acknowledged:
            return
        if self.state(index) != ExecutionState.COMPLETED:
            raise RuntimeError(f"Gym has no completed reply of try {index}")
        del self._live[index]
        self._acknowledged.add(index)
        self._tell("Gym /run", f"try {index} is ACKed; its reply is released", Kind.RUN_ACKED, index)

    def state(self, index: int) -> str:
        """State of a try by its word; "not started" before it has one, "acknowledged" after the last."""
        if index in self._acknowledged:
            return "acknowledged"
        execution = self._live.get(index)
        return str(execution.state) if execution else "not started"

    def report(self) -> Prepared:
        """How many executions stand where."""
        states = [(execution.state, execution.at_boundary) for execution in self._live.values()]
        return Prepared(
            running=sum(
                state in (ExecutionState.RUNNING, ExecutionState.PARK_REQUESTED) for state, _ in states
            ),
            parked=sum(state is ExecutionState.PARKED for state, _ in states),
            completed_unacknowledged=sum(state is ExecutionState.COMPLETED for state, _ in states),
            unbounded=sum(state is ExecutionState.PARKED and not bounded for state, bounded in states),
        )

    async def _boundary(self, execution: Execution) -> None:
        execution.at_boundary = True
        if execution.state is not ExecutionState.PARK_REQUESTED:
            return
        execution.awake.clear()
        await self._set(execution, ExecutionState.PARKED)
        index = execution.index
        self._tell("Gym /run", f"try {index} is parked at a turn boundary", Kind.RUN_PARKED, index)
        await execution.awake.wait()
        await self._set(execution, ExecutionState.RUNNING)
        self._tell("Gym /run", f"try {index} resumes", Kind.RUN_RESUMES, index)

    async def _set(self, execution: Execution, state: ExecutionState) -> None:
        execution.state = state
        async with self._changed:
            self._changed.notify_all()


class Remote:
    """A method of an actor: `.remote(...)` starts it, and awaiting what that returns waits for it."""

    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call the method."""
        return self._method(*args, **kwargs)


class GymActor:
    """RL's actor in front of Gym, with the calls that the controller makes of it.

    Args:
        participant: The one agent server behind it.
        tell: Takes an event for the timeline.
        commit_until: Tells, when a commit begins, at what time it ends (seconds of the story).
        prepared: Called with every last report of a prepare.
    """

    def __init__(
        self,
        participant: Participant,
        tell: Tell,
        commit_until: Callable[[], float],
        prepared: Callable[[Prepared], None],
    ) -> None:
        self._participant = participant
        self._tell = tell
        self._commit_until = commit_until
        self._prepared = prepared
        self._dispatch_open = asyncio.Event()
        self._dispatch_open.set()
        self.prepare_checkpoint = Remote(self._prepare)
        self.commit_checkpoint = Remote(self._commit)
        self.resume_checkpoint = Remote(self._resume)
        self.abort_checkpoint = Remote(self._resume)

    async def run_rollout(self, index: int, work_s: float, turn_s: float) -> float:
        """Send a try to Gym; sent during a snapshot it waits here until that is over."""
        if not self._dispatch_open.is_set():
            self._tell("Gym actor", f"try {index} waits until the snapshot is over", Kind.RUN_WAITS, index)
        await self._dispatch_open.wait()
        return await self._participant.run(index, work_s, turn_s)

    async def _prepare(self, checkpoint_id: str, deadline_ts: float) -> Prepared:
        self._dispatch_open.clear()
        told = False
        while True:
            report = await self._participant.prepare(deadline_ts)
            if report.ready_to_commit:
                self._finish(report, "ready", Kind.PREPARE_READY)
                return report
            left = deadline_ts - now()
            if left <= 0:
                break
            if not told:
                # Said once: from here on it asks ten times a second.
                self._tell_prepare(report, "not ready, asks again", Kind.PREPARE_NOT_READY)
                told = True
            await asyncio.sleep(min(RETRY_S, left))
        self._finish(report, "gives up", Kind.PREPARE_GIVES_UP)
        await self._resume(checkpoint_id, deadline_ts)
        raise TimeoutError(
            f"snapshot {checkpoint_id}: not ready before the prepare deadline, "
            f"completed_unacknowledged={report.completed_unacknowledged}"
        )

    def _finish(self, report: Prepared, what: str, kind: Kind) -> None:
        self._prepared(report)
        self._tell_prepare(report, what, kind)

    def _tell_prepare(self, report: Prepared, what: str, kind: Kind) -> None:
        self._tell(
            "Gym prepare",
            f"{what} (parked={report.parked} completed_unacknowledged={report.completed_unacknowledged})",
            kind,
        )

    async def _commit(self, checkpoint_id: str, deadline_ts: float, checkpoint_dir: str) -> Committed:
        await asyncio.sleep(max(0.0, self._commit_until() - now()))
        return Committed(checkpoint_id)

    async def _resume(self, checkpoint_id: str, deadline_ts: float) -> None:
        await self._participant.resume()
        self._dispatch_open.set()
