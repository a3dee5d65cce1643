"""The fixture tree of each NeMo RL behaves as that version was measured to."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nemo_rl_deadline_fix.targets import MANAGER_MODULE
from tests.conftest import virtual
from tests.support.fixture_trees import make_tree
from tests.support.tree_import import imported


class Gym:
    """A Gym actor that answers every call, or ends it as `ends` has it for the call's name, once.

    Ends are "raises", "not ready", and "cancelled": then the snapshot's task is cancelled in the call.
    """

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.task: asyncio.Task[Any] | None = None
        self.participants: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        async def answer(what: Any, *args: Any, **_: Any) -> Any:
            self.calls.append((name, what, *args))
            end = self.ends.pop(name, None)
            if end == "raises":
                raise OSError(f"{name} failed")
            if end == "cancelled" and self.task is not None:
                self.task.cancel()
                await asyncio.get_running_loop().create_future()
            if name == "checkpoint_prepare":
                return SimpleNamespace(prepared=True, blockers={})
            if name == "prepare_checkpoint":
                return {"checkpoint_id": what, "ready": end != "not ready"}
            return {"checkpoint_id": what, "participants": self.participants}

        return SimpleNamespace(remote=answer)


class Engine:
    """A generation engine that does at once whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda **_: None


def config(*, cuts: bool = False, level: str = "turn") -> Any:
    """A run's configuration, as far as the trees read it."""
    gym = SimpleNamespace(prepare_timeout_s=300.0, generation_prefix_cuts_enabled=cuts)
    return SimpleNamespace(
        rollout_checkpointing=SimpleNamespace(gym=gym),
        rollout_recovery=SimpleNamespace(target_level=level),
        token_capture=SimpleNamespace(control_timeout_s=60.0),
    )


def build(
    module: ModuleType, environment: Any, *, cuts: bool = False, level: str = "turn", **more: Any
) -> Any:
    """A controller of a tree, made by its own constructor outside of Ray."""
    manager = importlib.import_module(MANAGER_MODULE)
    arguments: dict[str, Any] = {
        "rollout_manager": manager.RolloutManager(read_rows=None),
        "env_handles": {"nemo_gym": environment},
        "gen": Engine(),
        "weight_synchronizer": None,
        "gym_checkpoint_topology": SimpleNamespace(validate_checkpoint_participants=lambda _: None),
        "gym_checkpoint_restore_operation_id": None,
    }
    controller = module.SingleControllerActor.__ray_metadata__.modified_class
    return controller(config(cuts=cuts, level=level), SimpleNamespace(**arguments | more))


async def publish() -> None:
    """Publish a snapshot, without trouble."""


class Left(Enum):
    """What a snapshot leaves: the gate, and what is pending."""

    OPEN = "gate open, nothing pending"
    CLOSED = "gate closed, nothing pending"
    ABORT = "gate closed, abort pending"
    RELEASE = "gate closed, release pending"


@dataclass(frozen=True)
class End:
    """How calls of a snapshot end, and what A and B leave then, and C."""

    ends: dict[str, str]
    left: Left
    left_by_c: Left
    publishes: bool = True


ENDS = {
    "published and released": End({}, Left.OPEN, Left.OPEN),
    "flush raises": End({"acknowledge_completed_executions": "raises"}, Left.OPEN, Left.OPEN),
    "prepare raises": End({"prepare_checkpoint": "raises"}, Left.OPEN, Left.OPEN),
    "prepare is cancelled": End({"prepare_checkpoint": "cancelled"}, Left.OPEN, Left.OPEN),
    "prepare is not ready": End({"prepare_checkpoint": "not ready"}, Left.OPEN, Left.OPEN),
    "prepare and abort raise": End(
        {"prepare_checkpoint": "raises", "abort_checkpoint": "raises"}, Left.OPEN, Left.ABORT
    ),
    "commit raises": End({"commit_checkpoint": "raises"}, Left.OPEN, Left.OPEN),
    "commit is cancelled": End({"commit_checkpoint": "cancelled"}, Left.OPEN, Left.OPEN),
    "commit and abort raise": End(
        {"commit_checkpoint": "raises", "abort_checkpoint": "raises"}, Left.CLOSED, Left.ABORT
    ),
    "commit raises, abort is cancelled": End(
        {"commit_checkpoint": "raises", "abort_checkpoint": "cancelled"}, Left.CLOSED, Left.ABORT
    ),
    "publish raises": End({}, Left.OPEN, Left.OPEN, publishes=False),
    "publish and abort raise": End({"abort_checkpoint": "raises"}, Left.CLOSED, Left.ABORT, publishes=False),
    "release raises": End({"resume_checkpoint": "raises"}, Left.RELEASE, Left.RELEASE),
    "release is cancelled": End({"resume_checkpoint": "cancelled"}, Left.RELEASE, Left.RELEASE),
}
"""The states that were measured on NeMo RL's own methods, end by end."""


@dataclass(frozen=True)
class Run:
    """A version with the gate, the number of its Gym shards, and whether generations are cut."""

    version: str
    shards: int
    cuts: bool

    def __str__(self) -> str:
        return f"{self.version}-{self.shards}" + "-cuts" * self.cuts


RUNS = (Run("A", 1, False), Run("B", 1, True), Run("C", 1, False), Run("C", 2, True))


@dataclass
class Stage:
    """A controller over its Gyms, the last of which a test may give trouble."""

    controller: Any
    gyms: list[Gym]

    async def tick(self, checkpoint_id: str, folder: Path, *, publishes: bool = True) -> None:
        """One turn of the snapshot pump, which is cancelled or fails as the last Gym has it."""

        async def fails() -> None:
            raise OSError("no space left")

        save = self.controller._save_rollout_checkpoint(
            checkpoint_id, folder / checkpoint_id, publish if publishes else fails
        )
        task = self.gyms[-1].task = asyncio.ensure_future(save)
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()

    def left(self) -> Left:
        """What is left now."""
        release = self.controller._pending_gym_checkpoint_release is not None
        abort = getattr(self.controller, "_pending_gym_checkpoint_abort", None) is not None
        closed = not self.controller._gym_checkpoint_rollout_permitted.is_set()
        return {
            (False, False, False): Left.OPEN,
            (True, False, False): Left.CLOSED,
            (True, True, False): Left.ABORT,
            (True, False, True): Left.RELEASE,
        }[closed, abort, release]

    def snapshot_calls(self) -> list[tuple[str, str]]:
        """The last Gym's calls by name and snapshot, but for ACKs."""
        return [call[:2] for call in self.gyms[-1].calls if not call[0].startswith("acknowledge")]


def stage(module: ModuleType, run: Run, **more: Any) -> Stage:
    """A controller of a version with as many Gyms as asked for."""
    gyms = [Gym() for _ in range(run.shards)]
    environment: Any = gyms[0]
    if run.shards > 1:
        shards = importlib.import_module("nemo_rl.environments.nemo_gym")
        environment = shards.NemoGymShardSet({f"shard-{number}": gym for number, gym in enumerate(gyms)})
    controller = build(module, environment, cuts=run.cuts, **more)
    controller._gym_acknowledgements.append({"agent_name": "agent"})
    return Stage(controller, gyms)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_each_end_of_a_snapshot_leaves_what_was_measured(run: Run, tmp_path: Path) -> None:
    """Gate, pending release and pending abort after each end, and what the next tick does first."""

    async def play(end: End) -> None:
        played = stage(module, run)
        played.gyms[-1].ends.update(end.ends)

        await played.tick("first", tmp_path, publishes=end.publishes)

        left = played.left()
        assert left is (end.left_by_c if run.version == "C" else end.left)
        # All that was to go wrong did, but for an abort that was not needed.
        assert set(played.gyms[-1].ends) <= ({"abort_checkpoint"} if left is Left.OPEN else set())
        played.gyms[-1].ends.clear()
        before = len(played.snapshot_calls())
        await played.tick("second", tmp_path)
        assert played.left() is Left.OPEN
        first = played.snapshot_calls()[before]
        assert first == {
            Left.ABORT: ("abort_checkpoint", "first"),
            Left.RELEASE: ("resume_checkpoint", "first"),
        }.get(left, ("prepare_checkpoint", "second"))

    with imported(make_tree(tmp_path / "tree", run.version)) as module:
        for name, end in ENDS.items():
            try:
                asyncio.run(play(end))
            except AssertionError as error:
                error.add_note(f"where {name}")
                raise


@pytest.mark.parametrize("run", [run for run in RUNS if run.version == "C"], ids=str)
def test_c_keeps_the_gate_closed_until_every_restored_shard_is_released(run: Run, tmp_path: Path) -> None:
    """`run()` releases what was restored, before anything is live; where a shard fails it stays closed."""

    async def play(*ends: tuple[str, str]) -> tuple[Left, list[tuple[str, str]]]:
        played = stage(module, run, gym_checkpoint_restore_operation_id="restored")
        played.gyms[-1].ends.update(ends)
        await asyncio.wait([asyncio.ensure_future(played.controller.run())])
        return played.left(), played.snapshot_calls()

    with imported(make_tree(tmp_path, "C")) as module:
        assert asyncio.run(play()) == (Left.OPEN, [("resume_checkpoint", "restored")])
        assert asyncio.run(play(("resume_checkpoint", "raises")))[0] is Left.CLOSED


def test_two_shards_of_c_write_their_own_part_and_the_first_one_the_models(tmp_path: Path) -> None:
    """Each shard commits into its own folder; then the first does so for the models, told of all agents."""

    async def play() -> Any:
        played = stage(module, Run("C", 2, False))
        for number, gym in enumerate(played.gyms):
            gym.participants = [
                answers.GymParticipantCommitResult(
                    answers.GymParticipantIdentity("responses_api_agents", f"agent-{number}"),
                    answers.GymAgentCommitResponse(f"index-{number}"),
                    Path("manifest.json"),
                )
            ]
        _, committed = await played.controller._prepare_and_commit_gym_checkpoint("one", tmp_path / "one")
        return committed, [
            [call for call in gym.calls if call[0] == "commit_checkpoint"] for gym in played.gyms
        ]

    with imported(make_tree(tmp_path / "tree", "C")) as module:
        answers = importlib.import_module("nemo_rl.environments.gym_checkpoint")
        committed, (first, second) = asyncio.run(play())

    assert [call[3:] for call in second] == [
        (str(tmp_path / "one/shards/shard-1"), ["responses_api_agents", "resources_servers"], None)
    ]
    assert [call[3:] for call in first[1:]] == [
        (str(tmp_path / "one"), ["responses_api_models"], ["index-0", "index-1"], [])
    ]
    assert [str(part.manifest) for part in committed.participants] == [
        "shards/shard-0/manifest.json",
        "manifest.json",
        "shards/shard-1/manifest.json",
    ]


COORDINATED = {
    "E": (["prepare", "renew", "commit", "resume"], False),
    "F": (["retire", "prepare", "renew", "commit", "resume"], False),
    "D": (["retire", "prepare", "renew", "commit", "resume"], True),
}
"""Per version of the coordinator line: its calls of Gym, and whether the clocks stand in each of them."""


@pytest.mark.parametrize("version", COORDINATED)
@pytest.mark.parametrize("end", [None, "checkpoint_prepare", "checkpoint_commit"])
def test_of_the_coordinator_line_only_d_stops_the_clocks(
    version: str, end: str | None, tmp_path: Path
) -> None:
    """F and D retire what RL gave up on; D holds until Gym is resumed, also where a call fails."""

    async def play() -> tuple[list[str], list[bool], list[bool]]:
        clocks: list[bool] = []
        gates: list[bool] = []

        class Observed(Gym):
            def __getattr__(self, name: str) -> Any:
                clocks.append(bool(registry.suspended))
                gates.append(controller._rollout_dispatch_admission_gate._closed)
                return super().__getattr__(name)

        gym = Observed()
        gym.ends.update({end: "raises"} if end else {})
        controller = build(module, gym)
        registry = controller._rollout_manager._request_deadlines
        controller._dropped_gym_episodes["nemo_gym"] = [module.GymCheckpointEpisode("rollout", 0)]
        await asyncio.wait(
            [asyncio.ensure_future(controller._save_rollout_checkpoint("one", tmp_path, publish))]
        )
        assert not registry.suspended
        async with asyncio.timeout(1.0), controller._rollout_dispatch_admission_gate.admission():
            return [call[0].removeprefix("checkpoint_") for call in gym.calls], clocks, gates

    with imported(make_tree(tmp_path / "tree", version)) as module:
        calls, clocks, gates = virtual(play())

    expected, stand = COORDINATED[version]
    cut_short = {None: expected, "checkpoint_prepare": expected[: expected.index("renew")]}
    assert calls == cut_short.get(end, expected[:-1]) + ["resume"] * (end is not None)
    assert set(clocks) == {stand}
    assert set(gates) == {True}


def test_the_coordinator_is_made_where_turns_are_to_be_recovered(tmp_path: Path) -> None:
    """With the default level there is neither a coordinator nor a gate, and a snapshot asks no Gym."""
    with imported(make_tree(tmp_path / "tree", "D")) as module:
        gym = Gym()
        controller = build(module, gym, level="sibling")

        assert asyncio.run(controller._save_rollout_checkpoint("one", tmp_path, publish))

    assert controller._gym_checkpoint_coordinator is None
    assert gym.calls == []


def test_the_package_of_the_nightly_stops_the_clocks(tmp_path: Path) -> None:
    """As its documentation has it: held under a name of its own, released at the end."""

    async def play() -> tuple[Any, bool, list[str]]:
        gym = Gym()
        controller = build(module, gym)
        registry = controller._rollout_manager._request_deadlines
        held = []

        async def look() -> None:
            held.extend(registry._suspension_holders)

        await controller._save_rollout_checkpoint(tmp_path, look)
        return held, registry.suspended, [call[0] for call in gym.calls]

    with imported(make_tree(tmp_path / "tree", "N")) as module:
        assert asyncio.run(play()) == (
            ["gym_checkpoint"],
            False,
            ["checkpoint_prepare", "checkpoint_commit", "checkpoint_resume"],
        )
