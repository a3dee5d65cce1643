"""A controller that runs prompt groups through Gym's agents and takes snapshots: the ledger is its memory.

Our own model, written from the facts, on top of the embedded model's controller: when RL gives a try up, when
it tries again, what it seals and ACKs. Of the fix it knows only how to put it on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import stranded
from nemo_rl_deadline_fix.replay.ledger import Receipt, RolloutRecoveryLedger, as_object
from nemo_rl_deadline_fix.replay.rl import (
    RolloutManager,
    RolloutTimeout,
    SingleControllerActor,
    _Deadline,
    _PendingGymCheckpointRelease,
)
from nemo_rl_deadline_fix.targets import PREPARE
from nemo_rl_deadline_fix.wrapping import patch
from tests.support.gym_agents import AgentServer, Clock, GymError, Handle, Key, NemoGym, Work

Plan = Callable[[int, int], Work]
"""What a row does, by its number and its attempt index."""


def as_tuple(agent: str, receipt: Receipt) -> Any:
    """An outbox entry of version A."""
    identity = receipt["result_identity"], receipt["result_digest"]
    place = receipt["rollout_id"], receipt["attempt_index"]
    return (*place, agent, receipt["execution_generation"], *identity, None, None)


def as_flat_object(agent: str, receipt: Receipt) -> Any:
    """An outbox entry that has the receipt's fields itself."""
    return SimpleNamespace(agent_name=agent, **receipt)


class Controller(SingleControllerActor):
    """Versions A and B: one Gym actor.

    Args:
        gym: The Gym actor's handle.
        clock: What deadlines are measured with.
        prepare_timeout_s: How long a prepare may take, in seconds.
        rollout_timeout_s: A group's budget, in seconds.
        tries: How often a group is tried before it is dropped.
        entry: Makes an entry of the outbox.
    """

    def __init__(
        self,
        gym: Any,
        clock: Clock,
        *,
        prepare_timeout_s: float = 4.0,
        rollout_timeout_s: float | None = None,
        tries: int = 2,
        entry: Callable[[str, Receipt], Any] = as_object,
    ) -> None:
        super().__init__(RolloutManager(), gym, prepare_timeout_s)
        self._clock = clock
        self._rollout_timeout_s = rollout_timeout_s
        self._tries = tries
        self._rollout_recovery_ledger = RolloutRecoveryLedger(entry)
        prepare = SimpleNamespace(prepare_timeout_s=prepare_timeout_s)
        self._master_config = SimpleNamespace(rollout_checkpointing=SimpleNamespace(gym=prepare))
        self._acknowledging = asyncio.Lock()
        self._drains: set[asyncio.Task[None]] = set()
        self._train_steps = 7
        self.telemetry: list[tuple[dict[str, float], int, str]] = []
        self.sending: set[Key] = set()
        self.saved: list[bool] = []
        self.dropped: list[str] = []
        self.done: list[str] = []

    def _log_telemetry_metrics(self, metrics: dict[str, float], *, step: int, prefix: str) -> None:
        self.telemetry.append((metrics, step, prefix))

    async def group(self, group_id: str, agent: str, rows: Sequence[Plan], *, atomic: bool = False) -> None:
        """Run one prompt group to its end: all its rows are sealed, or it is dropped."""
        ledger = self._rollout_recovery_ledger
        ledger.reserve_group(None, group_id, len(rows), atomic=atomic)
        for _ in range(self._tries):
            await self._gym_checkpoint_rollout_permitted.wait()
            ledger.prepare_incomplete_retry(None, group_id)
            try:
                await self._try(group_id, agent, rows)
            except (RolloutTimeout, GymError):
                ledger.abandon_unsealed(None, group_id)
            else:
                self.done.append(group_id)
                break
        else:
            self.dropped.append(group_id)
        ledger.discard_group(None, group_id)

    async def _try(self, group_id: str, agent: str, plans: Sequence[Plan]) -> None:
        ledger = self._rollout_recovery_ledger
        numbers = ledger.mark_group_dispatched(None, group_id)
        keys = [ledger._groups[group_id].keys()[number] for number in numbers]
        rows = [
            (key, asdict(plans[number](number, key[1]))) for number, key in zip(numbers, keys, strict=True)
        ]
        registry = self._rollout_manager._request_deadlines
        async with _Deadline(self._rollout_timeout_s, "NeMo-Gym prompt group", registry):
            async for reference in self.gym_of(agent).run_rollouts.remote(agent, rows):
                key, receipt = await reference
                ledger.seal(None, tuple(key), f"agent-{agent}", receipt)
                self.drain()
        if ledger._groups[group_id].atomic:
            ledger.seal_group(None, group_id)

    def drain(self) -> None:
        """Send what is in the outbox, as well as it goes."""

        async def flush() -> None:
            with suppress(Exception):
                await self._flush_completed_gym_acknowledgements()

        task = asyncio.ensure_future(flush())
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _flush_completed_gym_acknowledgements(self) -> int:
        ledger = self._rollout_recovery_ledger
        async with self._acknowledging:
            pending = ledger.pending()
            for gym, names in self.gyms():
                mine = {key: one for key, one in pending.items() if one[0].removeprefix("agent-") in names}
                if mine:
                    payload = [{"agent_name": name, "receipt": receipt} for name, receipt in mine.values()]
                    self.sending = set(mine)
                    try:
                        await gym.acknowledge_completed_executions.remote(payload)
                    finally:
                        self.sending = set()
                    ledger.mark_completed_executions_acknowledged(None, list(mine))
        return len(pending)

    def gyms(self) -> list[tuple[Any, Any]]:
        """The Gym actors, each with the names of the agents that are behind it."""
        return [(self._gym, _Everyone())]

    def gym_of(self, agent: str) -> Any:
        return next(gym for gym, names in self.gyms() if agent in names)

    async def snapshot(self, checkpoint_id: str, publish_s: float = 0.0) -> bool:
        """Take a snapshot; whether it was saved."""
        try:
            await self._prepare_and_commit_gym_checkpoint(checkpoint_id, "a directory")
        except TimeoutError:
            return False
        await asyncio.sleep(publish_s)
        await self._release_committed_gym_checkpoint(
            _PendingGymCheckpointRelease(checkpoint_id, "a directory", False)
        )
        return True

    def _deadline_ts(self) -> float:
        return self._clock() + self._prepare_timeout_s


class _Everyone:
    def __contains__(self, name: object) -> bool:
        return True


class ShardedController(Controller):
    """Version C: several Gym actors, each with agents of its own, prepared side by side."""

    def __init__(self, gyms: dict[str, tuple[Any, list[str]]], clock: Clock, **options: Any) -> None:
        super().__init__(None, clock, **options)
        self._shards = gyms

    _nemo_gym_checkpoint_actor = None  # type: ignore[assignment]

    def _nemo_gym_checkpoint_instances(self) -> list[tuple[str, Any]]:
        return [(label, gym) for label, (gym, _names) in self._shards.items()]

    def gyms(self) -> list[tuple[Any, Any]]:
        return list(self._shards.values())

    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
        self._gym_checkpoint_rollout_permitted.clear()
        await self._flush_completed_gym_acknowledgements()
        prepares = [
            gym.prepare_checkpoint.remote(checkpoint_id, self._deadline_ts()) for gym, _ in self.gyms()
        ]
        answers = await asyncio.gather(*prepares, return_exceptions=True)
        errors = [one for one in answers if isinstance(one, BaseException)]
        if errors:
            await self._release_prepared_gym_checkpoint(checkpoint_id, committed=False)
            raise errors[0]
        for gym, _ in self.gyms():
            await gym.commit_checkpoint.remote(checkpoint_id, self._deadline_ts(), str(checkpoint_dir))
        return answers

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        for gym, _ in self.gyms():
            await gym.resume_checkpoint.remote(checkpoint_id, self._deadline_ts())
        self._gym_checkpoint_rollout_permitted.set()


class World:
    """A controller, one Gym actor and its agents, all in this process and on this loop.

    Attributes:
        touched: Keys that were ACKed by somebody else than RL, in this order.
        wrong: Those of them that RL could still have used, with the reason.
    """

    def __init__(
        self, controller: type[Controller], agents: Sequence[str] = ("agent",), **options: Any
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.agents = {name: AgentServer(name, clock, self._acknowledged) for name in agents}
        self.gym = NemoGym({name: agent.handle for name, agent in self.agents.items()}, clock)
        self.controller = controller(Handle(self.gym), clock, **options)
        self.touched: list[Key] = []
        self.wrong: list[tuple[Key, str]] = []

    @property
    def agent(self) -> AgentServer:
        """The only agent."""
        (agent,) = self.agents.values()
        return agent

    def _acknowledged(self, key: Key) -> None:
        if key in self.controller.sending:
            return
        self.touched.append(key)
        ledger = self.controller._rollout_recovery_ledger
        if key in ledger.pending():
            self.wrong.append((key, "in the outbox"))
        for there, attempt, current in ledger.attempts():
            if there == key and current and attempt.status in ("reserved", "dispatched", "sealed"):
                self.wrong.append((key, attempt.status))


def with_fix(
    controller: type[Controller], *, clocks: bool = True, acknowledge: bool = True
) -> type[Controller]:
    """A subclass of a controller with the fix on it, with one half of it, or with none."""
    subclass = type(controller.__name__, (controller,), {})
    if clocks:
        patch(subclass, acknowledge=acknowledge)
    elif acknowledge:
        original = getattr(subclass, PREPARE)

        async def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await stranded.prepare_and_commit(original, self, *args, **kwargs)

        setattr(subclass, PREPARE, prepare)
    return subclass
