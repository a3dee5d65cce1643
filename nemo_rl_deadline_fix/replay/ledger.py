"""RL's recovery ledger as far as `stranded` goes: groups, siblings, attempts, and the outbox of ACKs.

Our own model, written from the facts: the names, the states and what each step refuses are upstream's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

Key = tuple[str, int]
Receipt = dict[str, Any]


@dataclass
class Attempt:
    """One physical attempt: reserved, dispatched, sealed, failed or abandoned."""

    attempt_index: int
    status: str = "reserved"


@dataclass
class Sibling:
    """One row of a group; its last attempt is the current one."""

    attempts: list[Attempt] = field(default_factory=lambda: [Attempt(0)])


@dataclass
class Group:
    """One prompt group. An atomic one is sealed, abandoned and tried again as a whole."""

    group_id: str
    siblings: list[Sibling]
    atomic: bool = False

    def rollout_id(self, number: int) -> str:
        """Of one sibling."""
        return f"{self.group_id}_g{number}"

    def current(self, number: int) -> Attempt:
        """The last attempt of one sibling."""
        return self.siblings[number].attempts[-1]

    def keys(self) -> list[Key]:
        """The rollout id and attempt index of each current attempt."""
        return [(self.rollout_id(n), self.current(n).attempt_index) for n in range(len(self.siblings))]


def as_object(agent: str, receipt: Receipt) -> Any:
    """An outbox entry as later versions of NeMo RL have it: it has a receipt."""
    return SimpleNamespace(agent_name=agent, receipt=SimpleNamespace(**receipt))


class RolloutRecoveryLedger:
    """What RL can still use. `cut` stands for upstream's token of a consistent cut, and is not checked."""

    def __init__(self, entry: Callable[[str, Receipt], Any] = as_object) -> None:
        self._groups: dict[str, Group] = {}
        self._entry = entry
        self._pending: dict[Key, tuple[str, Receipt]] = {}

    def reserve_group(self, cut: Any, group_id: str, rows: int, *, atomic: bool = False) -> Group:
        """Begin a group with its first attempts."""
        if group_id in self._groups:
            raise ValueError(f"group {group_id} is there already")
        group = self._groups[group_id] = Group(group_id, [Sibling() for _ in range(rows)], atomic)
        return group

    def mark_group_dispatched(self, cut: Any, group_id: str) -> list[int]:
        """Dispatch the reserved attempts; returns their siblings' numbers."""
        group = self._groups[group_id]
        numbers = [n for n in range(len(group.siblings)) if group.current(n).status == "reserved"]
        for number in numbers:
            group.current(number).status = "dispatched"
        return numbers

    def seal(self, cut: Any, key: Key, agent: str, receipt: Receipt) -> None:
        """Take one sibling's reply, and owe its ACK. A row of an atomic group is only ACKed."""
        group, number = self._find(key)
        current = group.current(number)
        if current.attempt_index != key[1] or current.status != "dispatched":
            raise ValueError(f"cannot seal {key} while attempt {current.attempt_index} is {current.status}")
        if not group.atomic:
            current.status = "sealed"
        self._pending[key] = agent, receipt

    def seal_group(self, cut: Any, group_id: str) -> None:
        """Take an atomic group whose rows are all there."""
        for sibling in self._groups[group_id].siblings:
            sibling.attempts[-1].status = "sealed"

    def abandon_unsealed(self, cut: Any, group_id: str) -> None:
        """Give up what is not sealed; of an atomic group that is not complete, everything."""
        group = self._groups[group_id]
        complete = all(sibling.attempts[-1].status == "sealed" for sibling in group.siblings)
        for sibling in group.siblings:
            if sibling.attempts[-1].status != "sealed" or (group.atomic and not complete):
                sibling.attempts[-1].status = "abandoned"

    def prepare_incomplete_retry(self, cut: Any, group_id: str) -> None:
        """Give each abandoned or failed sibling a new attempt."""
        for sibling in self._groups[group_id].siblings:
            current = sibling.attempts[-1]
            if current.status in ("abandoned", "failed"):
                sibling.attempts.append(Attempt(current.attempt_index + 1))
            elif current.status == "dispatched":
                raise ValueError(f"cannot retry {group_id} while a row of it is dispatched")

    def discard_group(self, cut: Any, group_id: str) -> None:
        """Forget a group."""
        if group_id not in self._groups:
            raise ValueError(f"unknown group {group_id}")
        del self._groups[group_id]

    def pending_completed_execution_acknowledgements(self) -> list[Any]:
        """The outbox, sorted."""
        return [self._entry(*self._pending[key]) for key in sorted(self._pending)]

    def pending(self) -> dict[Key, tuple[str, Receipt]]:
        """The outbox as the model itself needs it."""
        return dict(self._pending)

    def mark_completed_executions_acknowledged(self, cut: Any, keys: list[Key]) -> None:
        """Take what Gym has confirmed out of the outbox."""
        for key in keys:
            self._pending.pop(key, None)

    def attempts(self) -> Iterator[tuple[Key, Attempt, bool]]:
        """Each attempt there is, and whether it is its sibling's current one."""
        for group in self._groups.values():
            for number, sibling in enumerate(group.siblings):
                for attempt in sibling.attempts:
                    key = group.rollout_id(number), attempt.attempt_index
                    yield key, attempt, attempt is sibling.attempts[-1]

    def _find(self, key: Key) -> tuple[Group, int]:
        group_id, _, number = key[0].rpartition("_g")
        return self._groups[group_id], int(number)
