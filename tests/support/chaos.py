"""Slow rows, failing rows and snapshots, in virtual time: how many snapshots are saved."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import groupby

from nemo_rl_deadline_fix.replay import clock
from tests.support.gym_agents import Key, Work
from tests.support.recovering_rl import Controller, Plan, World, with_fix

GROUPS, ROWS, AT_ONCE = 24, 3, 6
SLOW, FAILING = 0.10, 0.08
"""Share of the attempts that take longer than the budget, and of those that end in an HTTP 500."""
SNAPSHOTS, PREPARE_TIMEOUT_S, BUDGET_S = 11, 3.0, 4.0


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        saved: Of each snapshot, whether it was saved.
        restorable: Whether each of those can be restored.
        touched: Replies that somebody else than RL ACKed.
        wrong: Those of them that RL could have used.
        stale: Replies that are still un-ACKed at the end.
        dropped: Groups that were lost.
    """

    saved: list[bool]
    restorable: bool
    touched: list[Key]
    wrong: list[tuple[Key, str]]
    stale: list[Key]
    dropped: list[str]

    @property
    def streak(self) -> int:
        """The longest streak of failures: three in a row end a run."""
        return max((len(list(run)) for saved, run in groupby(self.saved) if not saved), default=0)


def run(seed: int, *, clocks: bool, acknowledge: bool, hangs: float = 0.0) -> Outcome:
    """Run all groups, several at once, and a snapshot again and again meanwhile.

    Args:
        seed: Decides how long each attempt takes, and which fail.
        clocks: Whether the clocks stand still while a snapshot parks the rollouts.
        acknowledge: Whether what RL has given up on is acknowledged.
        hangs: Share of the attempts that reach no turn boundary for 30 s.
    """
    return clock.run(_story(seed, clocks, acknowledge, hangs))


async def _story(seed: int, clocks: bool, acknowledge: bool, hangs: float) -> Outcome:
    world = World(
        with_fix(Controller, clocks=clocks, acknowledge=acknowledge),
        prepare_timeout_s=PREPARE_TIMEOUT_S,
        rollout_timeout_s=BUDGET_S,
        tries=3,
    )
    turn = asyncio.Semaphore(AT_ONCE)

    async def group(number: int) -> None:
        async with turn:
            plans = [_plan(f"{seed} {number} {row}", hangs) for row in range(ROWS)]
            await world.controller.group(f"group{number}", "agent", plans)

    groups = [asyncio.ensure_future(group(number)) for number in range(GROUPS)]
    saved = []
    for number in range(SNAPSHOTS):
        await asyncio.sleep(1.0)
        saved.append(await world.controller.snapshot(f"snapshot{number}", publish_s=1.0))
    await asyncio.gather(*groups)
    await asyncio.sleep(60.0)
    agent = world.agent
    return Outcome(
        saved,
        all(agent.restorable(name) for name in agent.snapshots),
        world.touched,
        world.wrong,
        agent.states("completed"),
        world.controller.dropped,
    )


def _plan(seed: str, hangs: float) -> Plan:
    def plan(number: int, attempt: int) -> Work:
        chance = random.Random(f"{seed} {attempt}")
        kind, turns = chance.random(), chance.randint(3, 8)
        if kind < SLOW:
            return Work(turns=30, turn_s=0.25)
        if kind < SLOW + FAILING:
            return Work(turns=turns // 2, turn_s=0.2, fails=True)
        if kind < SLOW + FAILING + hangs:
            return Work(turns=1, turn_s=30.0)
        return Work(turns=turns, turn_s=0.2)

    return plan
