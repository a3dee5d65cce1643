"""The script: one rollout that is parked by a slow snapshot, and the snapshot after it.

The same script runs on any subject: the embedded model, classes cut out of a checkout, an installed
NeMo RL. RL's part in front of it (the stream that gives up and tries again, the snapshot loop) and all
of Gym are our own; the registry, the deadline and the controller's methods are the subject's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay import clock
from nemo_rl_deadline_fix.replay.clock import now
from nemo_rl_deadline_fix.replay.events import Event, Kind, Tell
from nemo_rl_deadline_fix.replay.gym import GymActor, Participant, Prepared
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.records import Attempt, Replay, Snapshot
from nemo_rl_deadline_fix.replay.subjects import Subject

MAX_TRIES = 5
"""NeMo RL's default number of tries for one prompt after infrastructure failures."""


def replay(subject: Subject, parameters: Parameters) -> Replay:
    """Play the story once.

    Args:
        subject: The classes under test.
        parameters: The story's numbers.

    Returns:
        What happened. Anything the subject raises that the story does not expect comes out.
    """
    return clock.run(_Stage(subject, parameters).play())


def dress(
    subject: Subject,
    gym: Any,
    parameters: Parameters,
    *,
    gate: asyncio.Event,
    acknowledge: Callable[[], Awaitable[int]],
    telemetry: list[dict[str, float]],
) -> Any:
    """A bare controller over a bare manager, with what the snapshot's methods look up on it.

    Args:
        subject: Whose classes to build.
        gym: The actor in front of Gym.
        parameters: Where the configuration's numbers come from.
        gate: The gate of Gym snapshots, open.
        acknowledge: Stands for the flush of ACKs.
        telemetry: Takes the metrics that the controller logs.

    Returns:
        The controller.
    """
    manager: Any = object.__new__(subject.manager)
    setattr(manager, targets.REGISTRY, subject.registry())
    controller: Any = object.__new__(subject.controller)
    outfit = {
        targets.MANAGER: manager,
        targets.GATE: gate,
        "_rollout_permitted": _open_gate(),
        "_nemo_gym_checkpoint_actor": lambda: gym,
        "_flush_completed_gym_acknowledgements": acknowledge,
        "_pending_gym_checkpoint_release": None,
        targets.TELEMETRY: lambda metrics, **_: telemetry.append(dict(metrics)),
        "_train_steps": 0,
        "_prepare_timeout_s": parameters.prepare_timeout,
        "_env_handles": {"nemo_gym": gym},
        "_master_config": _config(parameters),
        "_gym_checkpoint_topology": SimpleNamespace(validate_checkpoint_participants=lambda _: None),
        "_gym_participant_checkpointing_enabled": True,
        "_generation_prefix_cuts_enabled": False,
        "_generation_checkpoint_id": None,
    }
    for name, value in outfit.items():
        setattr(controller, name, value)
    return controller


class _Stage:
    """The actors of one replay, and the record of what they do."""

    def __init__(self, subject: Subject, parameters: Parameters) -> None:
        self._subject = subject
        self._parameters = parameters
        self._events: list[Event] = []
        self._snapshots: list[Snapshot] = []
        self._attempts: list[Attempt] = []
        self._telemetry: list[dict[str, float]] = []
        self._report = Prepared(0, 0, 0)
        self._suspended_at_report = False
        self._first_ends = parameters.snapshot_at + parameters.snapshot_for
        self._started = 0
        self._completed: list[int] = []

    async def play(self) -> Replay:
        self._set_stage()
        rollout = asyncio.create_task(self._rollout())
        others = [asyncio.create_task(other) for other in self._overlap()]
        await self._snapshot(1, self._parameters.snapshot_at)
        await self._snapshot(2, self._parameters.second_at)
        await asyncio.gather(rollout, *others)
        # Only now is it known how many bodies there are: a late try starts after the last snapshot.
        await asyncio.gather(*self._bodies)
        attempts = tuple(
            replace(attempt, acknowledged=self._participant.state(attempt.index) == "acknowledged")
            for attempt in self._attempts
        )
        return Replay(
            tuple(self._events),
            tuple(self._snapshots),
            attempts,
            self._started,
            self._participant.finished,
            holders_left(self._registry),
            tuple(self._telemetry),
        )

    def _set_stage(self) -> None:
        self._participant = Participant(self._tell)
        self._gym = GymActor(self._participant, self._tell, self._commit_until, self._prepared)
        self._bodies: set[asyncio.Task[float]] = set()
        self._controller = dress(
            self._subject,
            self._gym,
            self._parameters,
            gate=_Gate(self._tell),
            acknowledge=self._acknowledge,
            telemetry=self._telemetry,
        )
        self._manager = getattr(self._controller, targets.MANAGER)
        self._registry = getattr(self._manager, targets.REGISTRY)
        # The subject's own deadline, which also says when its clock stops and runs.
        tell = self._tell

        class Deadline(self._subject.deadline):  # type: ignore[misc,name-defined]
            def suspend(self) -> None:
                super().suspend()
                # One that has expired has nothing to bank.
                if self._remaining is not None:
                    tell("clock", f"stops with {self._remaining:g} s left", Kind.CLOCK_STOPS)

            def resume(self) -> None:
                banked = self._remaining
                super().resume()
                if banked is not None:
                    tell("clock", f"runs again until {self._timeout.when():g}", Kind.CLOCK_RUNS)

        self._deadline = Deadline

    async def _rollout(self) -> None:
        """RL's stream: read a try until its budget is spent, then leave it and start the next."""
        parameters = self._parameters
        for index in range(MAX_TRIES):
            who = f"RL try {index}"
            self._tell(who, f"starts with a budget of {parameters.budget:g} s", Kind.TRY_STARTS, index)
            self._started += 1
            # A streaming call runs to its end in Gym's actor, whether RL reads on or not.
            body = asyncio.create_task(
                self._gym.run_rollout(index, parameters.work_of(index), parameters.turn)
            )
            self._bodies.add(body)
            try:
                async with self._deadline(
                    parameters.budget, "NeMo-Gym prompt group", registry=self._registry
                ):
                    reward = await asyncio.shield(body)
            except self._subject.timeout as error:
                state = self._participant.state(index)
                what = f"deadline fires while {state}: RL stops reading"
                self._tell(who, what, Kind.DEADLINE_FIRES, index)
                self._attempts.append(Attempt(index, "timeout", now(), state, None, False, str(error)))
                continue
            self._tell(who, f"reply with reward {reward:g}, sealed", Kind.REPLY_READ, index)
            self._attempts.append(Attempt(index, "reply", now(), None, reward, False, ""))
            self._completed.append(index)
            await self._acknowledge()
            return

    async def _acknowledge(self) -> int:
        """Send every sealed reply's ACK, as RL does after a seal and again before a snapshot."""
        count = len(self._completed)
        while self._completed:
            self._participant.acknowledge(self._completed.pop())
        return count

    async def _snapshot(self, number: int, at: float) -> None:
        """RL's snapshot loop: prepare and commit, publish, release."""
        await asyncio.sleep(max(0.0, at - now()))
        started, name = now(), f"snapshot-{number}"
        self._tell("RL", f"snapshot {number} begins", Kind.SNAPSHOT_BEGINS, number)
        outcome, error = "committed", ""
        try:
            await self._controller._prepare_and_commit_gym_checkpoint(name, Path(name))
            # Publishing takes a while, too, with admission still closed.
            await asyncio.sleep(max(0.0, self._end_of(started) - now()))
            pending = self._subject.pending_release(name, Path(name), False)
            await self._controller._release_committed_gym_checkpoint(pending)
        except (OSError, RuntimeError) as failure:
            outcome, error = "failed", f"{type(failure).__name__}: {failure}"
            what = f"snapshot {number} failed: {type(failure).__name__}"
            self._tell("RL", what, Kind.SNAPSHOT_FAILED, number)
        else:
            self._tell("RL", f"snapshot {number} committed", Kind.SNAPSHOT_COMMITTED, number)
        report = self._report
        self._snapshots.append(
            Snapshot(
                at=started,
                ready_to_commit=report.ready_to_commit,
                parked=report.parked,
                completed_unacknowledged=report.completed_unacknowledged,
                deadlines_suspended=self._suspended_at_report,
                ended_at=now(),
                outcome=outcome,
                error=error,
            )
        )

    def _overlap(self) -> list[Coroutine[Any, Any, None]]:
        part = self._parameters.snapshot_for / 6
        if self._parameters.overlap is Overlap.SYNC:
            return [self._at(self._first_ends - 4 * part, "weight sync ends", self._resume)]
        if self._parameters.overlap is Overlap.TRAINING:
            return [
                self._at(self._first_ends - part, "engine switches to training", self._suspend),
                self._at(self._first_ends + part, "weight sync ends, engine serves again", self._resume),
            ]
        return []

    def _suspend(self) -> None:
        self._manager.suspend_request_deadlines()

    def _resume(self) -> None:
        self._manager.resume_request_deadlines()

    async def _at(self, when: float, what: str, do: Callable[[], None]) -> None:
        await asyncio.sleep(when - now())
        self._tell("RL", what, Kind.OVERLAP)
        do()

    def _end_of(self, started: float) -> float:
        # The second snapshot has nothing to write that would take long.
        return started + self._parameters.snapshot_for if started < self._first_ends else started

    def _commit_until(self) -> float:
        begun = self._parameters.snapshot_at
        return begun + 0.9 * self._parameters.snapshot_for if now() < self._first_ends else now()

    def _prepared(self, report: Prepared) -> None:
        self._report = report
        self._suspended_at_report = bool(self._registry.suspended)

    def _tell(self, who: str, what: str, kind: Kind = Kind.OTHER, number: int | None = None) -> None:
        self._events.append(Event(now(), who, what, kind, number))


class _Gate(asyncio.Event):
    """The gate of Gym snapshots, which says when it is closed and reopened."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        super().set()
        self._tell = tell

    def set(self) -> None:
        if not self.is_set():
            self._tell("RL", "admission reopens", Kind.ADMISSION_REOPENS)
        super().set()

    def clear(self) -> None:
        if self.is_set():
            self._tell("RL", "admission closes", Kind.ADMISSION_CLOSES)
        super().clear()


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


def _config(parameters: Parameters) -> Any:
    gym = SimpleNamespace(
        prepare_timeout_s=parameters.prepare_timeout,
        participant_checkpointing_enabled=True,
        generation_prefix_cuts_enabled=False,
    )
    return SimpleNamespace(rollout_checkpointing=SimpleNamespace(gym=gym))


def holders_left(registry: Any) -> tuple[str, ...]:
    """Who still holds a registry's clocks: by name where it knows names."""
    names = getattr(registry, "holders", None) or getattr(registry, "_holders", None) or ()
    if registry.suspended and not names:
        return ("(unnamed)",)
    return tuple(sorted(names))
