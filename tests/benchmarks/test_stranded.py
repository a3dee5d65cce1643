"""What it costs to look for what NeMo RL has given up on, and what it is worth."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_rl_deadline_fix import stranded
from nemo_rl_deadline_fix.replay.ledger import RolloutRecoveryLedger
from tests.benchmarks.comparing import timed
from tests.benchmarks.conftest import Comparison
from tests.support import chaos

SEEDS = (11, 21, 22, 23, 24)
ROWS = 8


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Answers:
    """A Gym actor whose answers come as Ray brings them: pickled until they are awaited."""

    def __init__(self, executions: list[dict[str, Any]]) -> None:
        # Gym lists what is parked with a boundary a second time.
        parked = [dict(one) for one in executions if one["state"] == "parked"]
        status = {"executions": executions, "selected_boundaries": parked, "running": 0}
        self._status = pickle.dumps(status, 5)

    async def call(self, method: str, path: str, *, params: dict[str, Any], **_: Any) -> Any:
        await asyncio.sleep(0)
        return pickle.loads(self._status) if path.endswith("status") else params

    async def acknowledge(self, executions: list[Any]) -> None:
        await asyncio.sleep(0)


def executions(ledger: RolloutRecoveryLedger, count: int, finished: int) -> list[dict[str, Any]]:
    """Executions as an agent reports them, all of them dispatched; so many of them are finished."""
    listed: list[dict[str, Any]] = []
    for number in range(count // ROWS):
        group_id = f"3f2b8c1e-9d4a-4c1f-8a77-{number:012d}"
        ledger.reserve_group(None, group_id, ROWS)
        ledger.mark_group_dispatched(None, group_id)
        for row in range(ROWS):
            state = "completed" if len(listed) < finished else "parked"
            listed.append(
                {
                    "rollout_id": f"{group_id}_g{row}",
                    "attempt_index": 0,
                    "generation": 1,
                    "state": state,
                    "parked_boundary_state": "parked_with_boundary",
                    "boundary_index": 3,
                    "turn_index": 3,
                    "boundary_kind": "turn_complete",
                    "resource_state_revisions": {"resources": 3},
                    "age_seconds": 12.345,
                }
            )
    return listed


def look(count: int, finished: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Two measurements of one look: its seconds, and for how long it kept other tasks from running."""
    ledger = RolloutRecoveryLedger()
    actor = Answers(executions(ledger, count, finished))
    remote = SimpleNamespace(_control=SimpleNamespace(remote=actor.call))
    controller = SimpleNamespace(_rollout_recovery_ledger=ledger)
    snapshot = stranded.Snapshot(controller, stranded.State(), "id", 150.0)
    agent = stranded.Agent(
        snapshot, "", remote, SimpleNamespace(server_name="agent", participant_name="agent")
    )

    async def once() -> None:
        status = await agent._get("status", checkpoint_id="id")
        assert await agent._look(status["executions"]) == []

    async def longest_turn() -> float:
        turns = [time.process_time()]
        task = asyncio.ensure_future(once())
        while not task.done():
            await asyncio.sleep(0)
            turns.append(time.process_time())
        await task
        return max(after - before for before, after in pairwise(turns))

    return timed(lambda: asyncio.run(once())), lambda: asyncio.run(longest_turn())


@pytest.mark.parametrize(("count", "goal_s", "held_goal_s"), [(2_000, 0.06, 0.01), (10_000, None, 0.02)])
@pytest.mark.parametrize("finished", ["all parked", "all finished"])
def test_look(compare: Comparison, count: int, finished: str, goal_s: float, held_goal_s: float) -> None:
    """One look at so many executions: how long it takes, and how long the controller's loop is held."""
    took, held = look(count, count if finished == "all finished" else 0)
    compare.run({"a look": took, "the loop is held": held}, rounds=30)
    compare.absolute(f"a look at {count:,} executions, {finished}", "a look", goal=goal_s)
    compare.absolute(f"longest turn in it, {count:,}, {finished}", "the loop is held", goal=held_goal_s)


@pytest.mark.parametrize("hangs", [0.0, 0.02])
def test_chaos(compare: Comparison, hangs: float) -> None:
    """Snapshots saved of eleven, and the longest streak of failures, over five seeds; in virtual time."""
    compare.run({"one": timed(lambda: chaos.run(11, clocks=True, acknowledge=True, hangs=hangs))}, rounds=1)
    for clocks, acknowledge in ((False, False), (True, False), (False, True), (True, True)):
        outcomes = [chaos.run(s, clocks=clocks, acknowledge=acknowledge, hangs=hangs) for s in SEEDS]
        assert all(outcome.wrong == [] and outcome.restorable for outcome in outcomes)
        name = {(0, 0): "as is", (1, 0): "clocks", (0, 1): "acknowledge", (1, 1): "both"}[clocks, acknowledge]
        compare.numbers(
            f"snapshots saved of {chaos.SNAPSHOTS}{', some rows hang' if hangs else ''}: {name}",
            f"longest streak of failures {max(outcome.streak for outcome in outcomes)}",
            [sum(outcome.saved) for outcome in outcomes],
        )
