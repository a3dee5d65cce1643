"""Gym snapshots one after another, each await of which can be made to go wrong.

Nothing here lists the awaits. A run finds out which calls a snapshot makes, `ticks` tries every fault at
every one of them, and `awaits` reads from the source of the controller's methods whether that was all.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay import clock
from nemo_rl_deadline_fix.replay.clock import now
from nemo_rl_deadline_fix.replay.parameters import Parameters
from nemo_rl_deadline_fix.replay.subjects import Subject, build_controller, holders_left
from tests.support.await_sites import Site, all_sites, methods_of, site, waiting

STEP_S = 1.0
"""Seconds that each awaited call takes."""

BUDGET_S = 10_000.0
"""Budget of the rollout that is under way all the time; its end is awaited last."""


class Fault(StrEnum):
    """What goes wrong at an await; the values are the words used in the cases' names."""

    OS_ERROR = "OSError"
    TIMEOUT_ERROR = "TimeoutError"
    RUNTIME_ERROR = "RuntimeError"
    CANCEL = "cancel"
    HANG = "hang"
    BAD_ANSWER = "bad-answer"


ERRORS = {Fault.OS_ERROR: OSError, Fault.TIMEOUT_ERROR: TimeoutError, Fault.RUNTIME_ERROR: RuntimeError}

Tick = tuple[tuple[str, Fault], ...]
"""One turn of the snapshot pump: the calls that go wrong in it, in order. Empty where none does."""

Plan = tuple[Tick, ...]
"""Turns of the pump, one after another."""


@dataclass(frozen=True)
class Ended:
    """How a tick ended, in terms that compare between two classes of the same shape."""

    outcome: Any
    cancels: int
    pending: str
    gate_open: bool
    at: float


@dataclass(frozen=True)
class Run:
    """What happened in a run.

    Attributes:
        ticks: How each ended, those of the plan first.
        calls: When, what and with which arguments; one tuple for each tick.
        unmet: Planned faults whose call was not made.
        sites: The awaits that were gone through.
        findings: Where gate, hold and clock did not agree, and what was left over.
        recovered: Whether the last tick took a whole snapshot.
        fired_late: Seconds after its budget's end at which the rollout's deadline fired.
        closed_for: Seconds during which the gate was closed.
    """

    ticks: tuple[Ended, ...]
    calls: tuple[tuple[tuple[float, str, tuple[Any, ...]], ...], ...]
    unmet: tuple[str, ...]
    sites: frozenset[Site]
    findings: tuple[str, ...]
    recovered: bool
    fired_late: float
    closed_for: float


@functools.cache
def play(subject: Subject, plan: Plan, *, training: bool = False, shards: int = 1) -> Run:
    """Take snapshots by a plan, then without faults until one has been taken as a whole.

    Nothing in a run is left to chance, so a run that was made once is known.

    Args:
        subject: The classes under test.
        plan: What goes wrong.
        training: Whether a training pause holds the clocks all through the plan.
        shards: Number of Gym's shards; more than one only for code that knows shards.

    Returns:
        What happened.
    """
    scene = _Scene(subject, plan, shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", scene.to_thread)
        return clock.run(scene.play(training))


class Pairs(Enum):
    """Which faults may meet in one tick."""

    NONE = "none"
    ALIKE = "of the same kind"
    CROSSED = "of the same kind, and an error with a cancellation in either order"

    def may_meet(self, first: Fault, second: Fault) -> bool:
        """Whether these two may, in this order."""
        alike = self is not Pairs.NONE and first is second
        crossed = self is Pairs.CROSSED and {first, second} == {Fault.RUNTIME_ERROR, Fault.HANG}
        return alike or crossed


def ticks(
    subject: Subject,
    before: Plan = (),
    *,
    pairs: Pairs = Pairs.ALIKE,
    kinds: tuple[Fault, ...] = tuple(Fault),
    shards: int = 1,
) -> list[Tick]:
    """Every way in which the tick after some others can go wrong.

    Args:
        subject: The classes to find that out on.
        before: The ticks before it.
        pairs: Which faults may meet in one tick.
        kinds: The kinds of fault to try.
        shards: Number of Gym's shards.

    Returns:
        The ticks: a fault at each call that is made, and at each that is made only after a fault.
    """
    found: list[Tick] = []
    pending: list[Tick] = [()]
    while pending:
        tick = pending.pop(0)
        if tick:
            found.append(tick)
        calls = [call for _, call, _ in play(subject, (*before, tick), shards=shards).calls[len(before)]]
        after = calls.index(tick[-1][0]) + 1 if tick else 0
        for call in calls[after:]:
            for kind in kinds:
                if kind is Fault.BAD_ANSWER and call.partition("#")[0] not in ("prepare", "commit"):
                    continue
                if tick and not pairs.may_meet(tick[-1][1], kind):
                    continue
                pending.append((*tick, (call, kind)))
    return found


def awaits(subject: Subject) -> frozenset[Site]:
    """Every await that a run on these classes may come through, by their source."""
    return all_sites(_Scene(subject, (), 1).controller)


class _Scene:
    """A bare controller, a Gym and an engine whose every call is a point where a fault may be."""

    def __init__(self, subject: Subject, plan: Plan, shards: int) -> None:
        self._subject = subject
        self._plan = plan
        self._planned: dict[str, Fault] = {}
        self._unmet: list[str] = []
        self._calls: list[list[tuple[float, str, tuple[Any, ...]]]] = []
        self._waited: set[tuple[CodeType, int]] = set()
        self._findings: list[str] = []
        self._labels: dict[int, tuple[str, Any]] = {}
        self._gate = _Gate(self._look)
        gym = SimpleNamespace(
            **{
                f"{call}_checkpoint": SimpleNamespace(remote=functools.partial(_Call, self._gym(call)))
                for call in ("prepare", "commit", "resume", "abort")
            }
        )
        self.controller = build_controller(
            subject,
            [gym] * shards,
            Parameters(),
            gate=self._gate,
            acknowledge=lambda: self._point("flush", 0),
            telemetry=[],
        )
        # A tree that can cut prefixes does, so that its awaits for that are gone through as well.
        self.controller._generation_prefix_cuts_enabled = True
        self.controller._gen = _Engine()
        self.controller._clear_generation_cut_staging_rows = lambda _: self._point("clear", None)
        self._methods = methods_of(self.controller)
        self._manager = getattr(self.controller, targets.MANAGER)
        self._registry = getattr(self._manager, targets.REGISTRY)

    async def play(self, training: bool) -> Run:
        self._training = training
        self._tick_task: asyncio.Task[Any]
        self._deadline = self._subject.deadline(BUDGET_S, "rollout", registry=self._registry)
        self._rollout = asyncio.create_task(self._roll_out())
        await asyncio.sleep(0)
        if training:
            self._manager.suspend_request_deadlines()
        ended = [await self._tick(number, tick) for number, tick in enumerate(self._plan)]
        self._training = False
        if training:
            self._manager.resume_request_deadlines()
        recovered = False
        # One tick to release what is pending, one to take a snapshot.
        for number in range(len(self._plan), len(self._plan) + 2):
            if not recovered:
                ended.append(await self._tick(number, ()))
                recovered = isinstance(ended[-1].outcome, tuple) and ended[-1].outcome[0] == "taken"
        if leaked := asyncio.all_tasks() - {asyncio.current_task(), self._rollout}:
            self._findings.append(f"tasks left over: {leaked}")
        if holders := holders_left(self._registry):
            self._findings.append(f"{holders} hold at the end")
        # A clock that nobody runs again must not keep everybody waiting.
        await asyncio.wait({self._rollout}, timeout=2 * BUDGET_S)
        fired_late = self._rollout.result() - BUDGET_S if self._rollout.done() else math.inf
        timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if timers:
            self._findings.append(f"timers left over: {timers}")
        return Run(
            tuple(ended),
            tuple(tuple(calls) for calls in self._calls),
            tuple(self._unmet),
            frozenset(site(*place) for place in self._waited),
            tuple(self._findings),
            recovered,
            fired_late,
            self._gate.closed_for,
        )

    async def to_thread(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for `asyncio.to_thread`; no thread is needed to go wrong, and no folder is made."""
        name: str = function.__name__
        return await self._point(name, None if name == "mkdir" else function(*args, **kwargs))

    async def _roll_out(self) -> float:
        try:
            async with self._deadline:
                await asyncio.get_running_loop().create_future()
        except self._subject.timeout:
            pass
        return now()

    async def _tick(self, number: int, tick: Tick) -> Ended:
        self._planned = dict(tick)
        self._calls.append([])
        self._tick_task = task = asyncio.create_task(self._outcome(f"snapshot-{number}"))
        outcome = await task
        self._unmet += [f"{call}:{fault} in tick {number}" for call, fault in self._planned.items()]
        self._look(f"after tick {number}")
        pending = {
            end: left.checkpoint_id
            for end in ("abort", "release")
            if (left := getattr(self.controller, f"_pending_gym_checkpoint_{end}", None)) is not None
        }
        return Ended(outcome, task.cancelling(), str(pending), self._gate.is_set(), now())

    async def _outcome(self, checkpoint_id: str) -> Any:
        # Looked at inside of the task, where a cancellation is still the object that was raised.
        try:
            result = await self._pump(checkpoint_id)
        except BaseException as error:
            return _described(error, self._labels)
        return result and ("taken", [self._labels.get(id(part), (part,))[0] for part in result])

    async def _pump(self, checkpoint_id: str) -> Any:
        """One turn of upstream's pump: finish what is pending, or take a snapshot."""
        controller, path = self.controller, Path(checkpoint_id)
        # Version C keeps a failed abort and finishes that first.
        abort = getattr(controller, "_abort_prepared_gym_checkpoint", None)
        if abort is not None and controller._pending_gym_checkpoint_abort is not None:
            await abort(controller._pending_gym_checkpoint_abort.checkpoint_id)
        pending = controller._pending_gym_checkpoint_release
        if pending is not None:
            return await controller._release_committed_gym_checkpoint(pending)
        result = await controller._prepare_and_commit_gym_checkpoint(checkpoint_id, path)
        try:
            await self._point("publish", None)
        except BaseException:
            if abort is not None:
                await abort(checkpoint_id)
            else:
                await controller._release_prepared_gym_checkpoint(checkpoint_id, committed=False)
            raise
        await controller._release_committed_gym_checkpoint(
            self._subject.pending_release(checkpoint_id, path, False)
        )
        return result

    def _gym(self, call: str) -> Callable[..., Awaitable[Any]]:
        async def remote(checkpoint_id: str, *args: Any) -> Any:
            answer = SimpleNamespace(ready=True, checkpoint_id=checkpoint_id, participants=[])
            return await self._point(call, answer, checkpoint_id, *args)

        return remote

    async def _point(self, call: str, answer: Any, *args: Any) -> Any:
        """Where every awaited call comes through: look, take a while, and go wrong or answer."""
        calls = self._calls[-1]
        again = sum(name.partition("#")[0] == call for _, name, _ in calls)
        name = f"{call}#{again + 1}" if again else call
        calls.append((now(), name, args))
        self._look(f"{name} begins")
        # As soon as the snapshot waits.
        asyncio.get_running_loop().call_soon(self._note_where_it_waits)
        fault = self._planned.pop(name, None)
        try:
            await self._go_wrong(fault, f"tick {len(self._calls)}: {name}")
            await asyncio.sleep(STEP_S)
            # An assertion in here would be one more exception that the controller gets.
            if fault not in (None, Fault.BAD_ANSWER):
                self._findings.append(f"{fault} did nothing at {name}")
        except BaseException as error:
            self._label(error, f"raised at {name}")
            raise
        finally:
            self._look(f"{name} ends")
        if fault is Fault.BAD_ANSWER:
            answer = SimpleNamespace(ready=False, checkpoint_id="another", participants=[])
        self._label(answer, f"answer of {name}")
        return answer

    def _note_where_it_waits(self) -> None:
        self._waited.update(waiting(self._methods, self._tick_task))

    async def _go_wrong(self, fault: Fault | None, message: str) -> None:
        # It is the snapshot that is cancelled, also where it waits for several calls at once.
        if fault is Fault.CANCEL:
            self._tick_task.cancel()
        elif fault is Fault.HANG:
            asyncio.get_running_loop().call_later(10 * STEP_S, self._tick_task.cancel)
            await asyncio.get_running_loop().create_future()
        elif fault in ERRORS:
            await asyncio.sleep(STEP_S)
            raise ERRORS[fault](message)

    def _label(self, thing: Any, label: str) -> None:
        # Kept with its label, so that no other object gets its id.
        self._labels.setdefault(id(thing), (label, thing))

    def _look(self, when: str) -> None:
        """Gate, hold and clock agree, or that is a finding."""
        closed = not self._gate.is_set()
        holders = set(holders_left(self._registry))
        others = holders - {targets.HOLDER}
        stands = self._deadline._timeout.when() is None
        if (targets.HOLDER in holders) != closed or len(others) != self._training:
            self._findings.append(f"{when}: gate {'closed' if closed else 'open'}, held by {holders}")
        if stands != (closed or self._training):
            self._findings.append(f"{when}: gate {'closed' if closed else 'open'}, clock stands: {stands}")


class _Call:
    """A call of an actor, which may be made and never waited for, as an object reference of Ray may."""

    def __init__(self, method: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self._begin = functools.partial(method, *args)

    def __await__(self) -> Any:
        return self._begin().__await__()


class _Gate(asyncio.Event):
    """The gate, open, that adds up for how long it is closed, and has somebody look after each change."""

    def __init__(self, look: Callable[[str], None]) -> None:
        super().__init__()
        super().set()
        self.closed_for = 0.0
        self._closed_at = 0.0
        self._look = look

    def set(self) -> None:
        if not self.is_set():
            self.closed_for += now() - self._closed_at
            self._look_soon("reopened")
        super().set()

    def clear(self) -> None:
        if self.is_set():
            self._closed_at = now()
            self._look_soon("closed")
        super().clear()

    def _look_soon(self, changed: str) -> None:
        # Ahead of anybody who waits: whoever changed the gate has reached an await or the end by then.
        asyncio.get_running_loop().call_soon(self._look, f"as soon as the gate is {changed}")


class _Engine:
    """A generation engine that does at once whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        def told(**_: Any) -> None:
            return None

        told.__name__ = name
        return told


def _described(error: BaseException | None, labels: dict[int, tuple[str, Any]]) -> Any:
    """An exception with its causes and members, which compares by what it is and where it was raised."""
    if error is None:
        return None
    described: dict[str, Any] = {"kind": [kind.__name__ for kind in type(error).__mro__]}
    if id(error) in labels:
        described["label"] = labels[id(error)][0]
    if isinstance(error, BaseExceptionGroup):
        described["message"] = error.message
        described["members"] = [_described(member, labels) for member in error.exceptions]
    else:
        described["args"] = error.args
    described["cause"] = _described(error.__cause__, labels)
    described["context"] = _described(error.__context__, labels)
    described["context hidden"] = error.__suppress_context__
    described["notes"] = getattr(error, "__notes__", [])
    return described
