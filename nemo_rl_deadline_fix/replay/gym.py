"""NeMo Gym as far as a snapshot goes: the agent participant, and RL's actor in front of it.

Our own model of the states, reports and refusals of Gym's agent participant and of RL's `NemoGym` actor. It
stands for servers and actors that need a cluster; the classes under test are RL's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from nemo_rl_deadline_fix.replay.clock import now
from nemo_rl_deadline_fix.replay.records import EventKind, Timeline

RETRY_S = 0.1
"""How often RL's Gym actor asks again after a "not ready", in seconds."""


class State(StrEnum):
    """State of one `/run`; the values are the words used in timelines and in JSON."""

    NOT_STARTED = "not started"
    RUNNING = "running"
    PARK_REQUESTED = "park_requested"
    PARKED = "parked"
    COMPLETED = "completed"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True)
class Prepared:
    """What a prepare comes to: how many runs stand where; with an id it is the Gym actor's answer."""

    running: int
    parked: int
    completed_unacknowledged: int
    checkpoint_id: str = ""
    participants: tuple[Any, ...] = ()

    @property
    def ready_to_commit(self) -> bool:
        """Whether a snapshot can be taken of this."""
        return not (self.running or self.completed_unacknowledged)

    # RL's name for the same thing in the answer of its Gym actor.
    ready = ready_to_commit


@dataclass(frozen=True)
class Committed:
    """What Gym wrote."""

    checkpoint_id: str
    participants: tuple[Any, ...] = ()


class Participant:
    """The runs of one agent server, parked at turn boundaries while a snapshot is taken."""

    def __init__(self, record: Timeline) -> None:
        self._record = partial(record, "Gym /run")
        self._states: dict[int, State] = {}
        self._changed = asyncio.Event()
        self._accepting = asyncio.Event()
        self._accepting.set()

    async def run(self, index: int, work_s: float, turn_s: float) -> float:
        """Run one try to its end, turn by turn; its reply is kept until it is ACKed.

        Args:
            index: The try's attempt index.
            work_s: Seconds of work in all, parked time not counted.
            turn_s: Seconds of one turn; at the end of each a park request takes effect.

        Returns:
            The reward.

        Raises:
            RuntimeError: Admission is closed, or this try ran before.
        """
        if not self._accepting.is_set() or index in self._states:
            raise RuntimeError(f"Gym refuses try {index}")
        self._set(index, State.RUNNING)
        self._record(f"try {index} starts", EventKind.RUN_STARTS, index)
        while work_s > 0:
            turn = min(turn_s, work_s)
            await asyncio.sleep(turn)
            work_s -= turn
            if work_s > 0 and self.state(index) is State.PARK_REQUESTED:
                self._set(index, State.PARKED)
                self._record(f"try {index} is parked at a turn boundary", EventKind.RUN_PARKED, index)
                await self._accepting.wait()
                self._set(index, State.RUNNING)
                self._record(f"try {index} resumes", EventKind.RUN_RESUMES, index)
        self._set(index, State.COMPLETED)
        what = f"try {index} finishes; its reply is kept until it is ACKed"
        self._record(what, EventKind.RUN_FINISHES, index)
        return 1.0

    async def prepare(self, deadline_ts: float) -> Prepared:
        """Close admission, ask everyone to park, and wait until nothing runs or time is up."""
        self._accepting.clear()
        self._turn(State.RUNNING, State.PARK_REQUESTED)
        while (report := self.report()).running and (left := deadline_ts - now()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return report

    def resume(self) -> None:
        """Reopen admission and wake everyone who is parked."""
        self._accepting.set()
        self._turn(State.PARK_REQUESTED, State.RUNNING)

    def acknowledge(self, index: int) -> None:
        """Release a kept reply.

        Raises:
            RuntimeError: There is none for this try.
        """
        if self.state(index) is not State.COMPLETED:
            raise RuntimeError(f"Gym has no completed reply of try {index}")
        self._set(index, State.ACKNOWLEDGED)
        self._record(f"try {index} is ACKed; its reply is released", EventKind.RUN_ACKED, index)

    def state(self, index: int) -> State:
        """State of a try."""
        return self._states.get(index, State.NOT_STARTED)

    def count(self, *states: State) -> int:
        """How many tries are in one of some states."""
        return sum(state in states for state in self._states.values())

    def report(self) -> Prepared:
        """How many runs stand where."""
        return Prepared(
            running=self.count(State.RUNNING, State.PARK_REQUESTED),
            parked=self.count(State.PARKED),
            completed_unacknowledged=self.count(State.COMPLETED),
        )

    def _turn(self, state: State, into: State) -> None:
        self._states.update({index: into for index, now_in in self._states.items() if now_in is state})

    def _set(self, index: int, state: State) -> None:
        self._states[index] = state
        self._changed.set()


class Remote:
    """A method of an actor: what `.remote(...)` returns makes the call when it is awaited, and not before."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    def remote(self, *args: Any, **kwargs: Any) -> Remote:
        """The call; one that nobody awaits, because something failed before, is not made."""
        return Remote(partial(self._call, *args, **kwargs))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._call().__await__()


@dataclass
class GymActor:
    """RL's actor in front of one shard of Gym, with the calls that the controller makes of it.

    Attributes:
        participant: The one agent server behind it.
        record: Takes an event for the timeline.
        commits_until: Returns, when a commit begins, at what time it ends (seconds of the simulation).
        prepared: Called with every last report of a prepare.
        who: What its events begin with.
    """

    participant: Participant
    record: Timeline
    commits_until: Callable[[], float]
    prepared: Callable[[Prepared], None]
    who: str = "Gym"

    def __post_init__(self) -> None:
        self._dispatch_open = asyncio.Event()
        self._dispatch_open.set()
        self.prepare_checkpoint = Remote(self._prepare)
        self.commit_checkpoint = Remote(self._commit)
        self.resume_checkpoint = self.abort_checkpoint = Remote(self._resume)

    async def run_rollout(self, index: int, work_s: float, turn_s: float) -> float:
        """Send a try to Gym; sent during a snapshot it waits here until that is over."""
        if not self._dispatch_open.is_set():
            what = f"try {index} waits until the snapshot is over"
            self.record(f"{self.who} actor", what, EventKind.RUN_WAITS, index)
        await self._dispatch_open.wait()
        return await self.participant.run(index, work_s, turn_s)

    async def _prepare(self, checkpoint_id: str, deadline_ts: float) -> Prepared:
        self._dispatch_open.clear()
        asked_before = False
        while True:
            report = await self.participant.prepare(deadline_ts)
            left = deadline_ts - now()
            if report.ready_to_commit or left <= 0:
                break
            if not asked_before:
                # Recorded once: from here on it asks ten times a second.
                self._record_prepare(report, "not ready, asks again", EventKind.PREPARE_NOT_READY)
                asked_before = True
            await asyncio.sleep(min(RETRY_S, left))
        self.prepared(report)
        if report.ready_to_commit:
            self._record_prepare(report, "ready", EventKind.PREPARE_READY)
            return replace(report, checkpoint_id=checkpoint_id)
        self._record_prepare(report, "gives up", EventKind.PREPARE_GIVES_UP)
        await self._resume(checkpoint_id)
        raise TimeoutError(
            f"snapshot {checkpoint_id}: not ready before the prepare deadline, "
            f"completed_unacknowledged={report.completed_unacknowledged}"
        )

    def _record_prepare(self, report: Prepared, what: str, kind: EventKind) -> None:
        counts = f"{report.parked} parked, {report.completed_unacknowledged} not ACKed"
        self.record(f"{self.who} prepare", f"{what} ({counts})", kind)

    async def _commit(self, checkpoint_id: str, *_: Any) -> Committed:
        await asyncio.sleep(max(0.0, self.commits_until() - now()))
        return Committed(checkpoint_id)

    async def _resume(self, checkpoint_id: str, *_: Any) -> None:
        self.participant.resume()
        self._dispatch_open.set()
