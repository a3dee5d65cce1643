"""What is acknowledged on real Ray and over real HTTP: controller and Gym in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.gym_over_http import ControllerOnRay, GymOnRay
from tests.support.recovering_rl import with_fix

PREPARE_TIMEOUT_S = 2.0
PATIENCE_S = 60.0
MODES = {
    "as is": (False, False),
    "clocks": (True, False),
    "acknowledge": (False, True),
    "both": (True, True),
}

# Ray's own, at import and shutdown; nothing of ours can be meant by them.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.slow]

QUICK = {"turns": 2, "turn_s": 0.1}
FAILS = {"turns": 1, "turn_s": 0.1, "fails": True}
LATE = {"turns": 4, "turn_s": 0.2}
SLOW = {"turns": 12, "turn_s": 0.1}
HUNG = {"turns": 1, "turn_s": 30.0}

ONE_FAILED_ROW = [[(FAILS, QUICK), (LATE, QUICK), (LATE, QUICK)]]
STORY: dict[str, Any] = {
    "first": True,
    "groups": ONE_FAILED_ROW,
    "parked": False,
    "settle_s": 1.0,
    "faults": {},
    "snapshots": 2,
    "publish_s": 0.0,
    "between_s": 0.0,
}


Play = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def play(ray: Any) -> Iterator[Play]:
    """Plays a story on new actors, with one half of the fix on the controller's class, both or none."""
    actors = []

    def play(
        mode: str, agents: tuple[str, ...] = ("agent",), options: dict[str, Any] | None = None, **changes: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        clocks, acknowledge = MODES[mode]
        gym = ray.remote(num_cpus=0)(GymOnRay).remote(list(agents))
        actors.append(gym)
        given = {"prepare_timeout_s": PREPARE_TIMEOUT_S, **(options or {})}
        controller_class = with_fix(ControllerOnRay, clocks=clocks, acknowledge=acknowledge)
        controller = ray.remote(num_cpus=1)(controller_class).remote(gym, given)
        actors.append(controller)
        told = ray.get(controller.play.remote({**STORY, **changes}), timeout=PATIENCE_S)
        return told, ray.get(gym.report.remote(), timeout=PATIENCE_S)

    yield play
    for actor in actors:
        ray.kill(actor)


def test_one_failed_row(play: Play) -> None:
    """One HTTP 500 strands its siblings' replies; both snapshots after it are saved within a second each."""
    told, gym = play("both")

    assert told["saved"] == [True, True]
    assert max(told["took"]) < PREPARE_TIMEOUT_S
    assert told["done"] == ["group0"]
    assert gym["completed"] == []
    assert [key for key in gym["acknowledged"] if key[1] == 0] == [("group0_g1", 0), ("group0_g2", 0)]


ROWS: dict[str, tuple[dict[str, Any], dict[str, list[bool]]]] = {
    "one row fails": (
        {},
        {"as is": [False] * 2, "clocks": [False] * 2, "acknowledge": [True] * 2, "both": [True] * 2},
    ),
    "really too slow at its first try": (
        {"groups": [[(SLOW, QUICK)]], "options": {"rollout_timeout_s": 0.6}},
        {"as is": [False] * 2, "clocks": [False] * 2, "acknowledge": [True] * 2, "both": [True] * 2},
    ),
    "dropped prompt": (
        {"options": {"tries": 1}},
        {"as is": [False] * 2, "clocks": [False] * 2, "acknowledge": [True] * 2, "both": [True] * 2},
    ),
    "given up while parked": (
        # Its first turn is over after 0.2 s, its budget at 1 s, and the first snapshot after 1.5 s.
        {
            "groups": [[({"turns": 4, "turn_s": 0.2}, QUICK)]],
            "parked": True,
            "settle_s": 0.1,
            "publish_s": 1.5,
            "between_s": 1.0,
            "options": {"rollout_timeout_s": 1.0},
        },
        {"as is": [True, False], "clocks": [True, True], "acknowledge": [True, True], "both": [True, True]},
    ),
    "ACK fails once": (
        {"faults": {"acknowledge-completed": (1, False)}},
        {"as is": [False] * 2, "both": [True] * 2},
    ),
    "status fails twice": (
        {"faults": {"status": (2, False)}},
        {"as is": [False] * 2, "both": [True] * 2},
    ),
    "receipt hangs": (
        {"faults": {"completion-receipt": (1, True)}, "options": {"prepare_timeout_s": 13.0}, "snapshots": 1},
        {"both": [True]},
    ),
    "unknown reply": ({"first": False}, {"as is": [False] * 2, "both": [True] * 2}),
    "many replies": (
        {"groups": [[(FAILS, QUICK), *[(LATE, QUICK)] * 150]], "settle_s": 3.0},
        {"as is": [False] * 2, "both": [True] * 2},
    ),
    "hung run": (
        {"groups": [[(FAILS, QUICK), (HUNG, QUICK)]]},
        {"as is": [False] * 2, "both": [False] * 2},
    ),
    "two agents, one broken": (
        {"agents": ("broken", "agent"), "faults": {"status": (1, True)}},
        {"both": [True] * 2},
    ),
}


@pytest.mark.parametrize(("row", "mode"), [(row, mode) for row, (_, saved) in ROWS.items() for mode in saved])
def test_rows(play: Play, row: str, mode: str) -> None:
    """Each road to a stranded reply, with the fix and without: which snapshots are saved."""
    changes, saved = ROWS[row]

    told, gym = play(mode, **changes)

    assert told["saved"] == saved[mode]
    assert all(gym["restorable"])
    if saved[mode][-1]:
        assert gym["completed"] == []
