"""The simulation: one rollout, or one group of three, that a slow snapshot parks, and the snapshot after it.

It runs on any subject: the embedded model, classes of a checkout, an installed NeMo RL. RL's part in front of
it (the stream that gives up and tries again, the snapshot loop) and all of Gym are our own; the registry, the
deadline and the controller's methods are the subject's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay import clock
from nemo_rl_deadline_fix.replay.clock import now
from nemo_rl_deadline_fix.replay.gym import GymActor, Participant, Prepared, Run, RunFailedError, State
from nemo_rl_deadline_fix.replay.ledger import RolloutRecoveryLedger
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.records import Attempt, EventKind, Replay, Replies, Snapshot, Timeline
from nemo_rl_deadline_fix.replay.subjects import Subject, build_controller, holders_left, leaf

MAX_TRIES = 5
"""NeMo RL's default number of tries for one prompt after infrastructure failures."""
GROUP = "prompt"
"""The group's id."""
ROWS = 3
"""How many rows the group has where one of them fails."""
REWARD = 1.0


def run(subject: Subject, parameters: Parameters, folder: Path = Path()) -> Replay:
    """Simulate once, on a virtual clock.

    Args:
        subject: The classes under test.
        parameters: The numbers.
        folder: Where the snapshots' folders would be; only code of several shards makes any.

    Returns:
        What happened. Anything the subject raises that is no failed snapshot comes out.
    """

    async def main() -> Replay:
        return await Simulation(subject, parameters, folder).run()

    return clock.run(main())


class Simulation:
    """One subject between a rollout, a Gym and a snapshot loop, with a record of what they do."""

    def __init__(self, subject: Subject, parameters: Parameters, folder: Path) -> None:
        self._subject = subject
        self._parameters = parameters
        self._folder = folder
        self._record = Timeline()
        self._snapshots: list[Snapshot] = []
        self._attempts: list[Attempt] = []
        self._telemetry: list[dict[str, float]] = []
        self._reports: list[Prepared] = []
        self._suspended_at_report = False
        self._commits_until = 0.0
        self._bodies: dict[asyncio.Task[Run], Run] = {}
        self._ledger = RolloutRecoveryLedger()
        self._read = 0
        gyms = [self._gym(number) for number in range(1, parameters.shards + 1)]
        self._actor, self._participant = gyms[0], gyms[0].participant
        self._controller = build_controller(
            subject,
            gyms,
            parameters,
            gate=_Gate(self._record),
            acknowledge=_flush,
            ledger=self._ledger,
            telemetry=self._telemetry,
        )
        self._manager = getattr(self._controller, targets.MANAGER)
        self._registry = getattr(self._manager, targets.REGISTRY)
        self._deadline = _recorded(subject.deadline, self._record)

    def _gym(self, number: int) -> GymActor:
        return GymActor(
            Participant(self._record),
            self._record,
            commits_until=lambda: self._commits_until,
            prepared=self._prepared,
            who=f"Gym {number}" if number > 1 else "Gym",
        )

    async def run(self) -> Replay:
        """Run to the end of the last snapshot and of every try; once per object."""
        parameters = self._parameters
        rollout = asyncio.create_task(self._rollout())
        others = [asyncio.create_task(other) for other in self._overlap()]
        await self._snapshot(1, parameters.snapshot_at, parameters.snapshot_for)
        # The second snapshot has little to write.
        await self._snapshot(2, parameters.second_at, 0.0)
        await asyncio.gather(rollout, *others)
        # Only now is it known how many bodies there are: a late try starts after the last snapshot.
        await asyncio.gather(*(_to_its_end(body) for body, run in self._bodies.items() if not run.hangs))
        released = self._participant.count(State.ACKNOWLEDGED)
        return Replay(
            events=tuple(self._record),
            snapshots=tuple(self._snapshots),
            attempts=tuple(
                replace(attempt, acknowledged=self._is_released(attempt.index)) for attempt in self._attempts
            ),
            bodies_started=len(self._bodies),
            bodies_finished=self._participant.count(State.COMPLETED, State.ACKNOWLEDGED, State.FAILED),
            replies=Replies(self._read, released - self._read, self._participant.count(State.COMPLETED)),
            holders_left=holders_left(self._registry),
            telemetry=tuple(self._telemetry),
        )

    def _is_released(self, index: int) -> bool:
        """Whether Gym keeps no reply of a try any more."""
        states = {self._participant.state(run) for run in self._bodies.values() if run.index == index}
        return State.ACKNOWLEDGED in states and State.COMPLETED not in states

    async def _rollout(self) -> None:
        """RL's stream: read a try until its budget is spent or a row fails, then start the next."""
        self._ledger.reserve_group(None, GROUP, ROWS if self._parameters.fail_row else 1)
        for index in range(MAX_TRIES):
            self._ledger.prepare_incomplete_retry(None, GROUP)
            attempt = await self._try(index, partial(self._record, f"RL try {index}"))
            self._attempts.append(attempt)
            if attempt.outcome == "reply":
                break
            self._ledger.abandon_unsealed(None, GROUP)
        self._ledger.discard_group(None, GROUP)

    async def _try(self, index: int, record: Callable[..., None]) -> Attempt:
        budget = self._parameters.budget
        record(f"starts with a budget of {budget:g} s", EventKind.TRY_STARTS, index)
        runs = [self._run(index, row) for row in self._ledger.mark_group_dispatched(None, GROUP)]
        # A streaming call runs to its end in Gym's actor, whether RL reads on or not.
        bodies = {asyncio.create_task(self._actor.run_rollout(run)): run for run in runs}
        self._bodies |= bodies
        try:
            async with self._deadline(budget, "NeMo-Gym prompt group", registry=self._registry):
                # Ends at the first row that fails.
                for body in asyncio.as_completed(bodies):
                    self._seal(await body, record)
        except self._subject.timeout as error:
            states = map(self._participant.state, runs)
            state = next((one for one in states if one is not State.ACKNOWLEDGED), State.ACKNOWLEDGED)
            record(f"deadline fires while {state}: RL stops reading", EventKind.DEADLINE_FIRES, index)
            return Attempt(index, "timeout", now(), state, None, False, str(error))
        except RunFailedError as error:
            record(f"a row fails: {error}; RL stops reading", EventKind.ROW_FAILS, index)
            return Attempt(index, "failed", now(), None, None, False, str(error))
        return Attempt(index, "reply", now(), None, REWARD, False, "")

    def _run(self, index: int, row: int) -> Run:
        """What a row does in a try: the first row fails, where one is to fail, and the last hangs."""
        parameters = self._parameters
        return Run(
            rollout_id=f"{GROUP}_g{row}",
            index=index,
            work_s=parameters.work_of(index),
            turn_s=parameters.turn,
            row=row if parameters.fail_row else None,
            fails=parameters.fail_row and (index, row) == (0, 0),
            hangs=parameters.hang and index == 0 and row == (ROWS - 1) * parameters.fail_row,
        )

    def _seal(self, run: Run, record: Callable[..., None]) -> None:
        """Take a reply and ACK it."""
        about = "" if run.row is None else f" of row {run.row}"
        what = f"reply{about} with reward {REWARD:g}, sealed"
        record(what, EventKind.REPLY_READ, run.index, run.row)
        self._read += 1
        self._ledger.seal(None, run.key, "agent-agent", run.receipt)
        self._participant.acknowledge(run.key)
        self._ledger.mark_completed_executions_acknowledged(None, [run.key])

    async def _snapshot(self, number: int, at: float, lasts: float) -> None:
        """Take a snapshot at a time, or as soon as the one before is over."""
        await asyncio.sleep(max(0.0, at - now()))
        started = now()
        self._reports.clear()
        self._record("RL", f"snapshot {number} begins", EventKind.SNAPSHOT_BEGINS, number)
        outcome, error, what = "committed", "", f"snapshot {number} committed"
        try:
            await self._take(f"snapshot-{number}", started, lasts)
        except Exception as failure:
            # Gym's and RL's failures. Anything else is code that was never meant to run like this.
            if not isinstance(leaf(failure), OSError | RuntimeError):
                raise
            outcome, error = "failed", f"{type(failure).__name__}: {failure}"
            what = f"snapshot {number} failed: {type(leaf(failure)).__name__}"
        self._record("RL", what, EventKind[f"SNAPSHOT_{outcome.upper()}"], number)
        reports = self._reports
        if 0 < len(reports) < self._parameters.shards:
            raise InvalidInputError(
                f"cannot simulate --shards {self._parameters.shards}",
                found="code that asks one Gym actor",
                advice="leave --shards out",
            )
        self._snapshots.append(
            Snapshot(
                at=started,
                ready_to_commit=bool(reports) and all(report.ready_to_commit for report in reports),
                parked=sum(report.parked for report in reports),
                completed_unacknowledged=sum(report.completed_unacknowledged for report in reports),
                deadlines_suspended=self._suspended_at_report,
                ended_at=now(),
                outcome=outcome,
                error=error,
            )
        )

    async def _take(self, name: str, started: float, lasts: float) -> None:
        """A turn of RL's snapshot loop: finish what is pending, prepare and commit, publish, release."""
        controller, path = self._controller, self._folder / name
        self._commits_until = started + 0.9 * lasts
        await finish_pending(controller)
        await controller._prepare_and_commit_gym_checkpoint(name, path)
        # Publishing takes a while, too, with admission still closed.
        await asyncio.sleep(max(0.0, started + lasts - now()))
        await controller._release_committed_gym_checkpoint(self._subject.pending_release(name, path, False))

    def _overlap(self) -> list[Coroutine[Any, Any, None]]:
        parameters = self._parameters
        ends, part = parameters.snapshot_at + parameters.snapshot_for, parameters.snapshot_for / 6
        suspend, resume = self._manager.suspend_request_deadlines, self._manager.resume_request_deadlines
        if parameters.overlap is Overlap.SYNC:
            return [self._at(ends - 4 * part, "weight sync ends", resume)]
        if parameters.overlap is Overlap.TRAINING:
            return [
                self._at(ends - part, "engine switches to training", suspend),
                self._at(ends + part, "weight sync ends, engine serves again", resume),
            ]
        return []

    async def _at(self, when: float, what: str, do: Callable[[], None]) -> None:
        await asyncio.sleep(when - now())
        self._record("RL", what, EventKind.OVERLAP)
        do()

    def _prepared(self, report: Prepared) -> None:
        self._reports.append(report)
        self._suspended_at_report = bool(self._registry.suspended)


async def finish_pending(controller: Any) -> None:
    """What a turn of NeMo RL's snapshot loop begins with: a pending abort, then a pending release, by its id.

    Args:
        controller: The controller; versions that keep no pending aborts have no such attribute.
    """
    if (abort := getattr(controller, "_pending_gym_checkpoint_abort", None)) is not None:
        await controller._abort_prepared_gym_checkpoint(abort.checkpoint_id)
    if (release := controller._pending_gym_checkpoint_release) is not None:
        await controller._release_committed_gym_checkpoint(release)


async def _to_its_end(body: asyncio.Task[Run]) -> None:
    with suppress(RunFailedError):
        await body


async def _flush() -> int:
    """How many ACKs a snapshot has to send first: none, because every seal is followed by its own."""
    return 0


class _Gate(asyncio.Event):
    """The gate of Gym snapshots, open, that records when it is closed and reopened."""

    def __init__(self, record: Timeline) -> None:
        super().__init__()
        super().set()
        self._record = record

    def set(self) -> None:
        if not self.is_set():
            self._record("RL", "admission reopens", EventKind.ADMISSION_REOPENS)
        super().set()

    def clear(self) -> None:
        if self.is_set():
            self._record("RL", "admission closes", EventKind.ADMISSION_CLOSES)
        super().clear()


def _recorded(deadline: type[Any], record: Timeline) -> type[Any]:
    """The subject's own deadline, which also records when its clock stops and runs."""

    class Recorded(deadline):  # type: ignore[misc]
        def suspend(self) -> None:
            super().suspend()
            # One that has expired has nothing to bank.
            if self._remaining is not None:
                record("clock", f"stops with {self._remaining:g} s left", EventKind.CLOCK_STOPS)

        def resume(self) -> None:
            banked = self._remaining
            super().resume()
            if banked is not None:
                record("clock", f"runs again until {self._timeout.when():g}", EventKind.CLOCK_RUNS)

    return Recorded
