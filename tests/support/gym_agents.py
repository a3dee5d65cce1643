"""NeMo Gym's agents as far as `stranded` goes, and RL's actor in front of them.

Our own model, written from the facts: the routes, the states, the receipts, what is refused and what
stays behind are Gym's. The agents answer to `handle`, which a test calls directly or puts behind HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

Key = tuple[str, int]
Clock = Callable[[], float]
RETRY_S = 0.1
"""How often RL's Gym actor asks an agent again that is not ready, in seconds."""

INSTANT_S = 1e-6
"""What is left of a deadline that has come, in seconds: sums of floats miss it by a hair."""
CLOCKS_DIFFER_S = 0.05
"""By how much the wall clock and the loop's may disagree about a deadline, in seconds."""


class GymError(Exception):
    """A request that an agent refuses: status 409 unless said otherwise."""

    def __init__(self, code: str, status: int = 409) -> None:
        super().__init__(code, status)
        self.code = code
        self.status = status


@dataclass
class Work:
    """What a run is to do.

    Attributes:
        turns: Number of turns.
        turn_s: Seconds of each; a park request takes effect between two.
        fails: Whether it ends in an HTTP 500.
    """

    turns: int = 1
    turn_s: float = 0.0
    fails: bool = False


@dataclass
class Execution:
    """One run: running, park_requested, parked or completed."""

    key: Key
    generation: int
    task: asyncio.Task[Any] | None
    state: str = "running"
    revision: int | None = None
    receipt: dict[str, Any] = field(default_factory=dict)
    awake: asyncio.Event = field(default_factory=asyncio.Event)


class AgentServer:
    """One agent and, where it is stateful, the sessions at its resources server.

    Args:
        name: Its server's name; it takes part as `agent-<name>`.
        clock: What deadlines are measured with.
        on_ack: Called with each key that is ACKed for the first time.
    """

    def __init__(self, name: str, clock: Clock, on_ack: Callable[[Key], None] = lambda key: None) -> None:
        self.name = name
        self.executions: dict[Key, Execution] = {}
        self.sessions: dict[Key, int] = {}
        self.snapshots: dict[str, tuple[dict[Key, int], dict[Key, int]]] = {}
        self._clock = clock
        self._on_ack = on_ack
        self._acknowledged: dict[Key, dict[str, Any]] = {}
        self._tombstones: set[Key] = set()
        self._accepting = True
        self._changed = asyncio.Event()

    async def run(self, key: Key, work: Work) -> dict[str, Any]:
        """Run to the end, parked time not counted; a reply that is kept is given out again.

        Raises:
            GymError: The run is refused, or failed.
        """
        execution = self._begin(key)
        if execution.state == "completed":
            return execution.receipt
        outcome = "failed"
        try:
            for turn in range(work.turns):
                await asyncio.sleep(work.turn_s)
                if turn + 1 < work.turns:
                    await self._boundary(execution)
            outcome = "failed" if work.fails else "completed"
        finally:
            self._finish(execution, outcome)
        if outcome == "failed":
            raise GymError("run_failed", 500)
        return execution.receipt

    def _begin(self, key: Key) -> Execution:
        if key in self._acknowledged or key in self._tombstones:
            raise GymError("stale_attempt")
        existing = self.executions.get(key)
        if existing is not None:
            if existing.state == "completed":
                return existing
            raise GymError("duplicate_execution")
        if not self._accepting:
            raise GymError("agent_admission_closed")
        execution = self.executions[key] = Execution(key, 1, asyncio.current_task())
        self.sessions[key] = 0
        self._notify()
        return execution

    async def _boundary(self, execution: Execution) -> None:
        self.sessions[execution.key] += 1
        execution.revision = self.sessions[execution.key]
        if execution.state != "park_requested":
            return
        execution.state = "parked"
        execution.awake.clear()
        self._notify()
        await execution.awake.wait()
        execution.state = "running"
        self._notify()

    def _finish(self, execution: Execution, outcome: str) -> None:
        if self.executions.get(execution.key) is not execution:
            return  # retired
        del self.sessions[execution.key]
        if outcome == "completed":
            execution.state = "completed"
            execution.receipt = self._receipt(execution)
        else:
            del self.executions[execution.key]
            self._tombstones.add(execution.key)
        self._notify()

    def _receipt(self, execution: Execution) -> dict[str, Any]:
        rollout_id, attempt_index = execution.key
        digest = hashlib.sha256(repr(execution.key).encode()).hexdigest()
        return {
            "rollout_id": rollout_id,
            "attempt_index": attempt_index,
            "execution_generation": execution.generation,
            "result_identity": digest[:8],
            "result_digest": digest,
        }

    def states(self, *states: str) -> list[Key]:
        """The executions that are in one of some states."""
        return [key for key, execution in self.executions.items() if execution.state in states]

    def status(self) -> dict[str, Any]:
        """What Gym's agent reports."""
        running = len(self.states("running", "park_requested"))
        unbounded = sum(e.state == "parked" and e.revision is None for e in self.executions.values())
        completed = len(self.states("completed"))
        return {
            "state": "accepting" if self._accepting else "preparing",
            "ready_to_commit": not (running or unbounded or completed),
            "running": running,
            "parked": len(self.states("parked")),
            "completed_unacknowledged": completed,
            "executions": [
                {
                    "rollout_id": execution.key[0],
                    "attempt_index": execution.key[1],
                    "generation": execution.generation,
                    "state": execution.state,
                    **({"completion_receipt": execution.receipt} if execution.receipt else {}),
                }
                for execution in self.executions.values()
            ],
        }

    async def prepare(self, deadline_ts: float) -> dict[str, Any]:
        """Close admission, ask everyone to park, and wait until nothing runs or time is up.

        Raises:
            GymError: Something keeps the snapshot from being taken.
        """
        self._accepting = False
        for execution in self.executions.values():
            if execution.state == "running":
                execution.state = "park_requested"
        while (report := self.status())["running"] and (left := deadline_ts - self._clock()) > INSTANT_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        if not report["ready_to_commit"]:
            raise GymError("agent_prepare_incomplete")
        return report

    def resume(self) -> None:
        """Reopen admission and wake the parked."""
        self._accepting = True
        for execution in self.executions.values():
            if execution.state == "park_requested":
                execution.state = "running"
            execution.awake.set()
        self._notify()

    def acknowledge(self, receipts: list[dict[str, Any]]) -> None:
        """Release replies, all or none; what was released before is released.

        Raises:
            GymError: A receipt is not exactly that of a finished reply, or one comes twice.
        """
        by_key = {(one["rollout_id"], one["attempt_index"]): one for one in receipts}
        for key, receipt in by_key.items():
            execution = self.executions.get(key)
            kept = execution.receipt if execution and execution.state == "completed" else None
            if self._acknowledged.get(key, kept) != receipt or len(by_key) != len(receipts):
                raise GymError("completed_execution_acknowledgement_error")
        for key, receipt in by_key.items():
            if self.executions.pop(key, None) is not None:
                self._acknowledged[key] = receipt
                self._on_ack(key)
        self._notify()

    def retire(self, key: Key) -> dict[str, Any]:
        """End a live run's outer task. Its session stays, and so do turns that serve themselves by calls."""
        execution = self.executions.get(key)
        if execution is not None and execution.state == "completed":
            return {"retired": False, "completed_unacknowledged": True}
        self._tombstones.add(key)
        if (
            self.executions.pop(key, None) is not None
            and execution is not None
            and execution.task is not None
        ):
            execution.task.cancel()
        self._notify()
        return {"retired": execution is not None}

    def commit(self, checkpoint_id: str) -> None:
        """Write what a restore compares: the parked runs' boundaries, and the sessions there are."""
        parked = {key: self.executions[key].revision or 0 for key in self.states("parked")}
        self.snapshots[checkpoint_id] = parked, dict(self.sessions)

    def restorable(self, checkpoint_id: str) -> bool:
        """Whether the sessions of a snapshot are exactly its agents' boundaries."""
        boundaries, sessions = self.snapshots[checkpoint_id]
        return boundaries == sessions

    async def handle(self, method: str, route: str, fields: dict[str, Any]) -> Any:
        """Answer one request.

        Args:
            method: GET or POST.
            route: Its path after the common beginning.
            fields: Query parameters or body.

        Raises:
            GymError: The request is refused.
        """
        match method, route:
            case "GET", "status":
                return {"checkpoint_id": fields["checkpoint_id"], **self.status()}
            case "GET", "completion-receipt":
                execution = self.executions.get((fields["rollout_id"], int(fields["attempt_index"])))
                if execution is None or execution.state != "completed":
                    raise GymError("completed_execution_acknowledgement_error")
                return {**execution.receipt, "manifest_capture_key": None, "terminal_model_call_id": None}
            case "POST", "acknowledge-completed":
                bare = ("manifest_capture_key", "terminal_model_call_id")
                receipts = [{k: v for k, v in one.items() if k not in bare} for one in fields["executions"]]
                self.acknowledge(receipts)
                return {"acknowledged": fields["executions"]}
            case "POST", "prepare":
                return await self.prepare(fields["deadline_ts"])
            case "POST", "commit":
                self.commit(fields["checkpoint_id"])
                return {}
            case "POST", "resume":
                self.resume()
                return {}
            case "POST", "retire":
                return self.retire((fields["rollout_id"], int(fields["attempt_index"])))
            case "POST", "run":
                work = Work(**fields["work"])
                return await self.run((fields["rollout_id"], int(fields["attempt_index"])), work)
        raise GymError(f"no route {method} {route}", 404)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


Fault = Callable[[], Awaitable[None]]


class NemoGym:
    """RL's actor in front of the agents.

    Args:
        agents: The agents by their servers' names, each with what answers a request to it.
        clock: What deadlines are measured with.
    """

    PREFIX = "/ng-control/v1/agent-checkpoint/"

    def __init__(self, agents: dict[str, Callable[..., Awaitable[Any]]], clock: Clock) -> None:
        self._agents = agents
        self._clock = clock
        self._dispatch_open = asyncio.Event()
        self._dispatch_open.set()
        self.requests: list[tuple[str, str]] = []
        self.faults: dict[str, list[Fault]] = {}

    async def _control(
        self,
        method: str,
        path: str,
        *,
        server_name: str,
        timeout_s: float | None = None,
        params: dict[str, Any] | None = None,
        json: dict[str, Any] | None = None,
    ) -> Any:
        route = path.removeprefix(self.PREFIX)
        self.requests.append((server_name, route))
        try:
            async with asyncio.timeout(timeout_s):
                if self.faults.get(route):
                    await self.faults[route].pop(0)()
                return await self._agents[server_name](method, route, params or json or {})
        except TimeoutError:
            raise RuntimeError(f"{method} {path} took longer than {timeout_s} s") from None

    async def _checkpoint_participants(self) -> tuple[Any, ...]:
        """The agents, and among them a model and an agent that take no part in snapshots."""
        return (
            _participant("policy_model", "responses_api_models", "export_restore"),
            _participant("bystander", "responses_api_agents", "none"),
            *(_participant(name, "responses_api_agents", "export_restore") for name in self._agents),
        )

    async def acknowledge_completed_executions(self, executions: list[dict[str, Any]]) -> None:
        by_agent: dict[str, list[dict[str, Any]]] = {}
        for one in executions:
            by_agent.setdefault(one["agent_name"].removeprefix("agent-"), []).append(one["receipt"])
        for name, receipts in by_agent.items():
            await self._post(name, "acknowledge-completed", executions=receipts)

    async def prepare_checkpoint(self, checkpoint_id: str, deadline_ts: float) -> Any:
        """Prepare each agent, asking again while it is not ready; on failure resume them all."""
        self._dispatch_open.clear()
        try:
            for name in self._agents:
                await self._prepare(name, deadline_ts)
        except BaseException as error:
            await self.resume_checkpoint(checkpoint_id, deadline_ts)
            # A request that was given what was left ends by another clock than the deadline's.
            if isinstance(error, Exception) and self._clock() >= deadline_ts - CLOCKS_DIFFER_S:
                raise TimeoutError(f"{checkpoint_id} exceeded its prepare deadline") from error
            raise
        return SimpleNamespace(ready=True)

    async def _prepare(self, name: str, deadline_ts: float) -> None:
        while (left := deadline_ts - self._clock()) > INSTANT_S:
            try:
                await self._post(name, "prepare", timeout_s=left, deadline_ts=deadline_ts)
            except GymError as error:
                if error.code != "agent_prepare_incomplete":
                    raise
                await asyncio.sleep(min(RETRY_S, max(0.0, deadline_ts - self._clock())))
            else:
                return
        raise TimeoutError(f"Gym agent {name} missed the prepare deadline")

    async def commit_checkpoint(self, checkpoint_id: str, deadline_ts: float, checkpoint_dir: str) -> Any:
        for name in self._agents:
            await self._post(name, "commit", checkpoint_id=checkpoint_id)
        return SimpleNamespace(checkpoint_id=checkpoint_id)

    async def resume_checkpoint(self, checkpoint_id: str, deadline_ts: float) -> None:
        for name in self._agents:
            await self._post(name, "resume")
        self._dispatch_open.set()

    abort_checkpoint = resume_checkpoint

    async def run_rollouts(self, agent: str, rows: list[tuple[Key, dict[str, Any]]]) -> AsyncIterator[Any]:
        """Stream each row's receipt as it finishes. Ends at the first row that fails; the others run on."""
        await self._dispatch_open.wait()
        tasks = [asyncio.create_task(self._run(agent, key, work)) for key, work in rows]
        for task in tasks:
            task.add_done_callback(_retrieve)
        for next_done in asyncio.as_completed(tasks):
            key = await next_done
            yield key, await self._get(agent, "completion-receipt", rollout_id=key[0], attempt_index=key[1])

    async def _run(self, agent: str, key: Key, work: dict[str, Any]) -> Key:
        await self._post(agent, "run", rollout_id=key[0], attempt_index=key[1], work=work)
        return key

    async def _post(self, name: str, route: str, *, timeout_s: float | None = None, **body: Any) -> Any:
        return await self._control(
            "POST", self.PREFIX + route, server_name=name, timeout_s=timeout_s, json=body
        )

    async def _get(self, name: str, route: str, **params: Any) -> Any:
        return await self._control("GET", self.PREFIX + route, server_name=name, params=params)


def _participant(name: str, component: str, mode: str) -> Any:
    return SimpleNamespace(
        participant=SimpleNamespace(component=component, server_name=name, participant_name=f"agent-{name}"),
        capabilities=SimpleNamespace(checkpoint_mode=mode),
    )


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class Handle:
    """An actor's handle in one process: calls start at once, and a stream runs on when nobody reads it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.tasks: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.actor, name)
        start = self._stream if name == "run_rollouts" else self._call
        return SimpleNamespace(remote=lambda *args, **kwargs: start(method(*args, **kwargs)))

    def _call(self, coroutine: Any) -> asyncio.Future[Any]:
        # As with Ray: who stops waiting, or is cancelled, cancels nothing in the actor.
        return asyncio.shield(self._spawn(coroutine))

    async def _stream(self, generator: AsyncIterator[Any]) -> AsyncIterator[Awaitable[Any]]:
        items: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def pump() -> None:
            try:
                async for item in generator:
                    future = loop.create_future()
                    future.set_result(item)
                    items.put_nowait(future)
            except Exception as error:
                future = loop.create_future()
                future.set_exception(error)
                future.exception()
                items.put_nowait(future)
            items.put_nowait(None)

        self._spawn(pump())
        while (item := await items.get()) is not None:
            yield item

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(_retrieve)
        return task
