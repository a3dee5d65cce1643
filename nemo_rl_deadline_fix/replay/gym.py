"""NeMo Gym as far as a snapshot goes: the agent participant, and RL's actor in front of it.

Our own model of the states, reports and refusals of Gym's agent participant and of RL's `NemoGym` actor. It
stands for servers and actors that need a cluster; the classes under test are RL's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay.clock import now
from nemo_rl_deadline_fix.replay.ledger import Key, Receipt
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
    FAILED = "failed"


_KEPT = State.COMPLETED


class RunFailedError(RuntimeError):
    """Gym's answer to a run that failed."""


@dataclass(frozen=True)
class Run:
    """What RL sends to Gym: one row of a prompt group in one try.

    Attributes:
        rollout_id: The row's.
        index: The try's attempt index.
        work_s: Seconds of work in all, parked time not counted.
        turn_s: Seconds of one turn; at the end of each a park request takes effect.
        row: The row's number where there are several.
        fails: Whether it ends halfway, in an HTTP 500.
        hangs: Whether its last turn never ends.
    """

    rollout_id: str
    index: int
    work_s: float
    turn_s: float
    row: int | None = None
    fails: bool = False
    hangs: bool = False

    @property
    def key(self) -> Key:
        """What Gym and RL's ledger know it by."""
        return self.rollout_id, self.index

    @property
    def receipt(self) -> Receipt:
        """What Gym gives for its reply."""
        return {
            "rollout_id": self.rollout_id,
            "attempt_index": self.index,
            "execution_generation": 1,
            "result_identity": f"{self.rollout_id}/{self.index}",
            "result_digest": "",
        }

    def __str__(self) -> str:
        return f"try {self.index}" + ("" if self.row is None else f" row {self.row}")


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
        self._states: dict[Run, State] = {}
        self._changed = asyncio.Event()
        self._accepting = asyncio.Event()
        self._accepting.set()

    async def run(self, run: Run) -> Run:
        """Work turn by turn; the reply is kept until it is ACKed.

        Returns:
            The run, once it has a reply.

        Raises:
            RunFailedError: It failed.
            RuntimeError: Admission is closed, or this try ran before.
        """
        if not self._accepting.is_set() or run in self._states:
            raise RuntimeError(f"Gym refuses {run}")
        self._set(run, State.RUNNING, f"{run} starts", EventKind.RUN_STARTS)
        work_s = run.work_s / 2 if run.fails else run.work_s
        while work_s > 0:
            turn = min(run.turn_s, work_s)
            work_s -= turn
            await asyncio.sleep(math.inf if run.hangs and work_s <= 0 else turn)
            if work_s > 0 and self.state(run) is State.PARK_REQUESTED:
                self._set(run, State.PARKED, f"{run} is parked at a turn boundary", EventKind.RUN_PARKED)
                await self._accepting.wait()
                self._set(run, State.RUNNING, f"{run} resumes", EventKind.RUN_RESUMES)
        if run.fails:
            self._set(run, State.FAILED, f"{run} fails: HTTP 500", EventKind.RUN_FAILS)
            raise RunFailedError("HTTP 500")
        what = f"{run} finishes; its reply is kept until it is ACKed"
        self._set(run, State.COMPLETED, what, EventKind.RUN_FINISHES)
        return run

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

    def acknowledge(self, key: Key, about: str = "") -> None:
        """Release a kept reply.

        Args:
            key: Its rollout id and attempt index.
            about: What the timeline says about it.

        Raises:
            RuntimeError: There is none of this key.
        """
        run = next((one for one, state in self._states.items() if (one.key, state) == (key, _KEPT)), None)
        if run is None:
            raise RuntimeError(f"Gym has no completed reply of {key}")
        self._set(
            run, State.ACKNOWLEDGED, f"{run}{about} is ACKed; its reply is released", EventKind.RUN_ACKED
        )

    def state(self, run: Run) -> State:
        """State of a run."""
        return self._states.get(run, State.NOT_STARTED)

    def count(self, *states: State) -> int:
        """How many runs are in one of some states."""
        return sum(state in states for state in self._states.values())

    def status(self) -> dict[str, Any]:
        """Gym's answer to a request for the status, as far as a watch over finished replies reads it."""
        return {
            "state": "accepting" if self._accepting.is_set() else targets.AGENT_CLOSED,
            "ready_to_commit": self.report().ready_to_commit,
            "running": self.report().running,
            "executions": [
                {**run.receipt, "state": str(state)}
                for run, state in self._states.items()
                if state not in (State.ACKNOWLEDGED, State.FAILED)
            ],
        }

    def receipt(self, key: Key) -> Receipt:
        """Gym's answer to a request for the receipt of a kept reply."""
        return next(run.receipt for run, state in self._states.items() if (run.key, state) == (key, _KEPT))

    def report(self) -> Prepared:
        """How many runs stand where."""
        return Prepared(
            running=self.count(State.RUNNING, State.PARK_REQUESTED),
            parked=self.count(State.PARKED),
            completed_unacknowledged=self.count(State.COMPLETED),
        )

    def _turn(self, state: State, into: State) -> None:
        self._states.update({run: into for run, now_in in self._states.items() if now_in is state})

    def _set(self, run: Run, state: State, what: str, kind: EventKind) -> None:
        self._states[run] = state
        self._record(what, kind, run.index, run.row)
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
        self.acknowledge_completed_executions = Remote(self._acknowledge)
        self._checkpoint_participants = Remote(self._participants)
        self._control = Remote(self._request)

    async def run_rollout(self, run: Run) -> Run:
        """Send a run to Gym; sent during a snapshot it waits here until that is over."""
        if not self._dispatch_open.is_set():
            what = f"{run} waits until the snapshot is over"
            self.record(f"{self.who} actor", what, EventKind.RUN_WAITS, run.index, run.row)
        await self._dispatch_open.wait()
        return await self.participant.run(run)

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
        counts += f", {report.running} running" * bool(report.running)
        self.record(f"{self.who} prepare", f"{what} ({counts})", kind)

    async def _commit(self, checkpoint_id: str, *_: Any) -> Committed:
        await asyncio.sleep(max(0.0, self.commits_until() - now()))
        return Committed(checkpoint_id)

    async def _resume(self, checkpoint_id: str, *_: Any) -> None:
        self.participant.resume()
        self._dispatch_open.set()

    async def _participants(self) -> list[Any]:
        names = SimpleNamespace(
            component=targets.AGENT_COMPONENT, server_name="agent", participant_name="agent-agent"
        )
        mode = SimpleNamespace(checkpoint_mode=targets.CHECKPOINT_MODE)
        return [SimpleNamespace(participant=names, capabilities=mode)]

    async def _request(self, _: str, path: str, *, params: dict[str, Any], **__: Any) -> dict[str, Any]:
        if path == f"{targets.AGENT_ROUTES}/status":
            return self.participant.status()
        return self.participant.receipt((params["rollout_id"], params["attempt_index"]))

    async def _acknowledge(self, executions: list[dict[str, Any]]) -> None:
        # RL ACKs what it reads where it reads it, so this is somebody else.
        for one in executions:
            receipt = one["receipt"]
            key = receipt["rollout_id"], receipt["attempt_index"]
            self.participant.acknowledge(key, ", given up by RL,")
