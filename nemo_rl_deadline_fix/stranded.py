"""Acknowledge in Gym the finished replies that NeMo RL has given up on, so that snapshots can be prepared.

A finished reply that nobody ACKs keeps Gym from getting ready, in every snapshot from then on. RL's own
ledger proves which replies it can never use. While a snapshot is prepared, each of Gym's agents is asked
for its finished executions, and those that the ledger has given up are ACKed, in the way RL itself ACKs.

Nothing is retired, cancelled or touched otherwise. A live run would go on unseen, and a snapshot after
its retirement could be saved and not be restored.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.observing import count_stranded, log, log_telemetry, now

LOOK_EVERY_S = 0.5
PAUSE_PER_LOOK = 10
"""How many times as long as a look the pause after it is: a look at 10,000 executions costs Gym 0.3 s."""
GRACE_S = 150.0
"""How long a reply unknown to the ledger is left alone, in seconds; at most half of the prepare timeout."""
CALL_S = 10.0
"""Time limit of one call to an agent, in seconds."""
RECEIPTS_AT_ONCE = 16
BATCH = 100
"""Replies per ACK."""
CHUNK = 250
"""Replies that are judged on one view of the ledger before other tasks have their turn."""
REMEMBERED = 10_000
"""Attempts of discarded groups that are remembered at most; the oldest are forgotten first."""

Key = tuple[str, int]
"""An execution's rollout id and attempt index."""
Entry = tuple[Key, Any]
"""An execution and its receipt."""


class Verdict(StrEnum):
    """What RL can still do with a finished reply."""

    WANTED = "wanted"
    GIVEN_UP = "given_up"
    UNKNOWN = "unknown"


def verdict(ledger: Any, remembered: Collection[Key], outbox: Collection[Key], key: Key) -> Verdict:
    """Say what RL can still do with a reply. Pure: one view of the ledger, which is asked first.

    RL seals a reply only for a sibling's current attempt, and only while that is dispatched; a new attempt
    follows only an abandoned or failed one. So what is given up once stays given up.

    Args:
        ledger: RL's `RolloutRecoveryLedger`.
        remembered: Unused attempts of groups that have left the ledger.
        outbox: What RL is about to ACK itself.
        key: The reply's rollout id, `<group>_g<sibling>`, and attempt index.

    Returns:
        `GIVEN_UP` on proof, `UNKNOWN` where nothing is known of the group or sibling, else `WANTED`.
    """
    if key in outbox:
        return Verdict.WANTED
    rollout_id, attempt_index = key
    group_id, _, number = rollout_id.rpartition("_g")
    group = ledger._groups.get(group_id)
    if group is None:
        return Verdict.GIVEN_UP if key in remembered else Verdict.UNKNOWN
    if not number.isdecimal() or number != str(int(number)) or int(number) >= len(group.siblings):
        return Verdict.UNKNOWN
    current = group.siblings[int(number)].attempts[-1]
    if attempt_index == current.attempt_index:
        unusable = current.status in targets.UNUSABLE_ATTEMPTS
    else:
        unusable = attempt_index < current.attempt_index
    return Verdict.GIVEN_UP if unusable else Verdict.WANTED


class Memory(dict[Key, None]):
    """The unused attempts of groups that have left the ledger, oldest first."""

    def follow(self, ledger: Any) -> None:
        """Take part in each `discard_group` of this ledger object from now on."""
        if not isinstance(ledger.discard_group, _DiscardGroup):
            ledger.discard_group = _DiscardGroup(ledger, ledger.discard_group, self)

    def remember(self, group: Any) -> None:
        """Take a group's attempts, but for those whose replies RL has sealed."""
        for number, sibling in enumerate(group.siblings):
            *superseded, current = sibling.attempts
            unused = superseded if current.status == targets.SEALED_ATTEMPT else sibling.attempts
            self.update(dict.fromkeys((f"{group.group_id}_g{number}", one.attempt_index) for one in unused))
        while len(self) > REMEMBERED:
            del self[next(iter(self))]


class _DiscardGroup:
    """Shadows a ledger's `discard_group` on the object: the original first, then what left is remembered."""

    def __init__(self, ledger: Any, discard: Callable[..., Any], memory: Memory) -> None:
        self._ledger = ledger
        self._discard = discard
        self._memory = memory

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        named: dict[str, Any] = {}
        # Whatever goes wrong here costs the memory of a group, never RL's own call.
        with suppress(Exception):
            groups = self._ledger._groups
            ids = (one for one in (*args, *kwargs.values()) if isinstance(one, str))
            named = {group_id: groups[group_id] for group_id in ids if group_id in groups}
        result = self._discard(*args, **kwargs)
        with suppress(Exception):
            for group_id in named.keys() - self._ledger._groups.keys():
                self._memory.remember(named[group_id])
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled or deep-copied ledger gets its own method back, not one that acts on this ledger.
        return getattr, (self._ledger, "discard_group")


@dataclass
class State:
    """What one controller remembers from snapshot to snapshot.

    Attributes:
        memory: Unused attempts of discarded groups.
        seen: For each agent, its finished replies that RL does not want, and since when (loop time).
    """

    memory: Memory = field(default_factory=Memory)
    seen: dict[tuple[str, str], dict[Key, float]] = field(default_factory=dict)


@dataclass
class Snapshot:
    """The watch over Gym's agents while one snapshot is prepared, and what it did.

    Attributes:
        controller: Whose ledger decides.
        state: What the controller remembers.
        checkpoint_id: The snapshot's id.
        grace_s: How long an unknown reply is left alone, in seconds.
        tasks: One for each Gym actor, and one for each agent that was found behind it.
        running: For each agent, how many runs had not reached a turn boundary at the last look.
        acknowledged: The replies that were ACKed.
        unknown: How many of them the ledger did not know.
        failed: How many calls failed.
    """

    controller: Any
    state: State
    checkpoint_id: str
    grace_s: float
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    acknowledged: list[Key] = field(default_factory=list)
    unknown: int = 0
    failed: int = 0

    async def find_agents(self, label: str, actor: Any) -> None:
        """Watch each agent behind a Gym actor in a task of its own: one that hangs holds up no other."""
        while True:
            try:
                found = await actor._checkpoint_participants.remote()
                agents = [Agent(self, label, actor, one.participant) for one in found if _takes_part(one)]
                break
            except Exception as error:
                self.refused("the question for Gym's agents", error)
            await asyncio.sleep(LOOK_EVERY_S)
        self.tasks += [asyncio.create_task(agent.watch()) for agent in agents]

    def unwanted(self, keys: Sequence[Key]) -> list[tuple[Key, Verdict]]:
        """Those of some replies that RL does not want, on one view of the ledger: no await in here."""
        ledger = getattr(self.controller, targets.LEDGER)
        outbox = {_identity(entry) for entry in ledger.pending_completed_execution_acknowledgements()}
        judged = ((key, verdict(ledger, self.state.memory, outbox, key)) for key in keys)
        return [(key, said) for key, said in judged if said is not Verdict.WANTED]

    def is_due(self, said: Verdict, seen_s: float) -> bool:
        """Whether an unwanted reply may be ACKed that was seen un-ACKed for so many seconds."""
        return said is Verdict.GIVEN_UP or seen_s >= self.grace_s

    def refused(self, what: str, error: BaseException) -> None:
        """Count a call that failed; the first one is logged."""
        self.failed += 1
        if self.failed == 1:
            line = "Stranded replies: %s failed and is tried again at the next look: %s: %s"
            log(logging.WARNING, line, what, type(error).__name__, error)

    def end(self) -> None:
        """Stop watching, and say what was done."""
        # A cancelled task takes no other step than its own end.
        for task in self.tasks:
            task.cancel()
        numbers = {"acknowledged": len(self.acknowledged), "unknown": self.unknown, "failed": self.failed}
        count_stranded(**numbers)
        log(logging.INFO, "Stranded replies in this snapshot: %s", self)
        metrics = {name: float(number) for name, number in numbers.items()}
        log_telemetry(self.controller, metrics, targets.STRANDED_PREFIX)

    def __str__(self) -> str:
        first = [f"{rollout_id} attempt {attempt}" for rollout_id, attempt in self.acknowledged[:3]]
        left = len(self.acknowledged) - len(first)
        keys = f" ({', '.join(first)}{f' and {left} more' if left else ''})" if first else ""
        running = sum(self.running.values())
        return (
            f"{len(self.acknowledged)} acknowledged{keys}; of these unknown to NeMo RL's ledger: "
            f"{self.unknown}; failed calls: {self.failed}"
            + (f"; runs that had not come to a turn boundary: {running}" if running else "")
        )


@dataclass
class Agent:
    """One agent, watched while one snapshot is prepared.

    Attributes:
        snapshot: The snapshot.
        label: The Gym actor's label.
        actor: The Gym actor in front of the agent.
        identity: The agent's `server_name` and `participant_name`.
    """

    snapshot: Snapshot
    label: str
    actor: Any
    identity: Any

    async def watch(self) -> None:
        """Look at once, and again and again, until cancelled or until the agent is prepared."""
        pause = LOOK_EVERY_S
        while True:
            try:
                started = now()
                status = await self._get("status", checkpoint_id=self.snapshot.checkpoint_id)
                due = await self._look(status["executions"])
                pause = max(LOOK_EVERY_S, PAUSE_PER_LOOK * (now() - started))
                self.snapshot.running[self.identity.server_name] = int(status.get("running", 0))
                for keys in _pieces(due, BATCH):
                    await self._acknowledge(keys)
                if status.get("ready_to_commit") and status.get("state") == targets.AGENT_CLOSED:
                    # Admission is closed and every run is parked: none can finish before the snapshot ends.
                    return
            except Exception as error:
                self.snapshot.refused(f"the look at agent {self.identity.server_name}", error)
            await asyncio.sleep(pause)

    async def _look(self, executions: Sequence[Mapping[str, Any]]) -> list[Key]:
        """Judge the finished replies, a chunk at a time; returns those that are due at their second look."""
        finished = [
            (one["rollout_id"], one["attempt_index"]) for one in executions if one["state"] == "completed"
        ]
        before, seen = self._seen, dict[Key, float]()
        due: list[Key] = []
        for keys in _pieces(finished, CHUNK):
            at = now()
            for key, said in self.snapshot.unwanted(keys):
                seen[key] = before.get(key, at)
                if key in before and self.snapshot.is_due(said, at - seen[key]):
                    due.append(key)
            await asyncio.sleep(0)
        self.snapshot.state.seen[self.label, self.identity.server_name] = seen
        return due

    async def _acknowledge(self, keys: Sequence[Key]) -> None:
        """ACK replies with the agent's own receipts, in one batch; one by one where the batch is refused."""
        limit = asyncio.Semaphore(RECEIPTS_AT_ONCE)
        answers = await asyncio.gather(*(self._receipt(key, limit) for key in keys), return_exceptions=True)
        entries: list[Entry] = []
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, BaseException):
                self.snapshot.refused(f"the receipt of {key[0]} attempt {key[1]}", answer)
            else:
                entries.append((key, answer))
        if not await self._send(entries) and len(entries) > 1:
            for entry in entries:
                await self._send([entry])

    async def _receipt(self, key: Key, limit: asyncio.Semaphore) -> Any:
        """The agent's receipt of exactly this attempt, fetched as RL does: the status' copy lacks fields."""
        async with limit:
            receipt = await self._get("completion-receipt", rollout_id=key[0], attempt_index=key[1])
        if (receipt["rollout_id"], receipt["attempt_index"]) != key:
            raise ValueError("the agent sent that of another execution")
        return receipt

    async def _send(self, entries: Sequence[Entry]) -> bool:
        """ACK in one call what is still due; False where that is refused, which changes nothing in Gym."""
        seen, at = self._seen, now()
        unwanted = self.snapshot.unwanted([key for key, _receipt in entries])
        due = {key: said for key, said in unwanted if self.snapshot.is_due(said, at - seen.get(key, at))}
        name = self.identity.participant_name
        payload = [{"receipt": receipt, "agent_name": name} for key, receipt in entries if key in due]
        if not payload:
            return True
        try:
            await self.actor.acknowledge_completed_executions.remote(payload)
        except Exception as error:
            self.snapshot.refused(f"an ACK ({len(payload)} in it)", error)
            return False
        self.snapshot.acknowledged += due
        self.snapshot.unknown += sum(said is Verdict.UNKNOWN for said in due.values())
        for key in due:
            self.snapshot.state.memory.pop(key, None)
        return True

    @property
    def _seen(self) -> dict[Key, float]:
        return self.snapshot.state.seen.get((self.label, self.identity.server_name), {})

    async def _get(self, route: str, **params: Any) -> Any:
        return await self.actor._control.remote(
            "GET",
            f"{targets.AGENT_ROUTES}/{route}",
            server_name=self.identity.server_name,
            timeout_s=CALL_S,
            params=params,
        )


async def prepare_and_commit(
    original: Callable[..., Awaitable[Any]], controller: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run the controller's prepare and commit beside a watch over Gym's agents.

    Args:
        original: What prepares and commits, the clocks' part included.
        controller: The controller it is called on.
        *args: The call's arguments, passed on untouched; the first is the snapshot's id.
        **kwargs: The call's keyword arguments, passed on untouched.

    Returns:
        What the original returns; whatever it raises comes out as it is, cancellation included.
    """
    snapshot = _begin(controller, kwargs.get("checkpoint_id", args[0] if args else ""))
    try:
        return await original(controller, *args, **kwargs)
    finally:
        if snapshot is not None:
            snapshot.end()


def _begin(controller: Any, checkpoint_id: str) -> Snapshot | None:
    """Start the watch; None, and one ERROR for the controller, where something is missing."""
    try:
        actors = _actors(controller)
        reason = _unfit(controller, actors)
        if not reason:
            if not hasattr(controller, _STATE):
                setattr(controller, _STATE, State())
            state: State = getattr(controller, _STATE)
            state.memory.follow(getattr(controller, targets.LEDGER))
            snapshot = Snapshot(controller, state, checkpoint_id, _grace_s(controller))
            snapshot.tasks += [
                asyncio.create_task(snapshot.find_agents(label, actor)) for label, actor in actors
            ]
            return snapshot
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    with suppress(Exception):
        if not hasattr(controller, _STAYS_OUT):
            log(logging.ERROR, "What NeMo RL has given up on is NOT acknowledged in this run: %s", reason)
            setattr(controller, _STAYS_OUT, True)
    return None


_STATE = "_nemo_rl_deadline_fix_stranded"
_STAYS_OUT = "_nemo_rl_deadline_fix_stays_out"


def _actors(controller: Any) -> list[tuple[str, Any]]:
    several = getattr(controller, targets.GYM_ACTORS, None)
    if several is None:
        return [("", getattr(controller, targets.GYM_ACTOR)())]
    return [(str(label), actor) for label, actor in several()]


def _unfit(controller: Any, actors: Sequence[tuple[str, Any]]) -> str:
    """Why to stay out of this controller's snapshots; "" where there is no reason."""
    if hasattr(sys.modules.get(targets.GYM_CHECKPOINT_MODULE), targets.RETIRE_PATH):
        return "this NeMo RL retires what it gives up by itself"
    if hasattr(controller, targets.COORDINATED):
        return "this NeMo RL prepares its snapshots through a coordinator"
    owners = [("ledger", getattr(controller, targets.LEDGER, None), targets.LEDGER_NAMES)]
    owners += [("Gym actor", actor, targets.GYM_ACTOR_NAMES) for _label, actor in actors]
    missing = (
        f"its {what} has no {name}" for what, one, names in owners for name in names if not hasattr(one, name)
    )
    return ", ".join(dict.fromkeys(missing))


def _takes_part(found: Any) -> bool:
    kind, mode = found.participant.component, found.capabilities.checkpoint_mode
    return bool(kind == targets.AGENT_COMPONENT and mode == targets.CHECKPOINT_MODE)


def _grace_s(controller: Any) -> float:
    with suppress(Exception):
        return min(GRACE_S, float(controller._master_config.rollout_checkpointing.gym.prepare_timeout_s) / 2)
    return GRACE_S


def _identity(entry: Any) -> Key:
    """Whose ACK it is: a tuple begins with that, an object has it, or has a receipt that does."""
    if isinstance(entry, tuple):
        return entry[0], entry[1]
    receipt = getattr(entry, "receipt", entry)
    return receipt.rollout_id, receipt.attempt_index


def _pieces(keys: Sequence[Key], size: int) -> Iterator[Sequence[Key]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))
