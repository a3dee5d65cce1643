"""The fix on real Ray: the controller and Gym run in processes of their own.

Each story is one rollout with a budget, a snapshot that outlasts it, and a second snapshot. The rollout's
first turn lasts until the snapshot is asked for, so only the budget and the snapshot take real time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix import State
from nemo_rl_deadline_fix.installing import TOO_LATE
from tests.support.shadow import SHADOW, importable

BUDGET_S = 0.8
PUBLISH_S = 1.2
PREPARE_TIMEOUT_S = 0.3
PATIENCE_S = 60.0

# Ray's own, at import and shutdown; nothing of ours can be meant by them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

Story = dict[str, Any]

# A driver as a user would write it. It knows nothing of the fix.
DRIVER = f"""
import json, sys
import ray
from nemo_rl.algorithms.single_controller import SingleControllerActor
from nemo_rl.environments.nemo_gym import NemoGym
from nemo_rl.experience.rollout_manager import RolloutManager

address, options = sys.argv[1], json.loads(sys.argv[2])
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
gym = NemoGym.remote()
controller = SingleControllerActor.options(**options).remote(
    RolloutManager(gym, {BUDGET_S}), gym, {PREPARE_TIMEOUT_S}
)
print(json.dumps(ray.get(controller.story.remote("rollout", {PUBLISH_S}), timeout={PATIENCE_S})))
"""


@pytest.fixture
def make(ray: Any) -> Iterator[Callable[[], Any]]:
    """Creates a controller actor with a Gym of its own."""
    actors = []

    def make() -> Any:
        gym = import_module("nemo_rl.environments.nemo_gym").NemoGym.remote()
        actors.append(gym)
        manager = import_module("nemo_rl.experience.rollout_manager").RolloutManager(gym, BUDGET_S)
        actor_class = import_module("nemo_rl.algorithms.single_controller").SingleControllerActor
        controller = actor_class.remote(manager, gym, PREPARE_TIMEOUT_S)
        actors.append(controller)
        # Ray keeps one copy of the class per job, the newest, and an actor takes it when its process starts.
        ray.get(controller.__ray_ready__.remote(), timeout=PATIENCE_S)
        return controller

    with importable():
        yield make
    for actor in actors:
        ray.kill(actor)


@pytest.fixture
def play(make: Callable[[], Any]) -> Callable[[], Any]:
    """Plays the story on a controller actor of its own; gives Ray's reference."""
    return lambda: make().story.remote("rollout", PUBLISH_S)


def status_in(ray: Any, controller: Any, *, install: bool = False) -> tuple[str, str]:
    """What `status()` says inside of an actor, or what `install()` does."""

    def ask(_: Any) -> tuple[str, str]:
        report = nemo_rl_deadline_fix.install() if install else nemo_rl_deadline_fix.status()
        return str(report.state), report.detail

    # By value, as everything of a driver's script; this module cannot be imported in the actor.
    answer: tuple[str, str] = ray.get(controller.__ray_call__.remote(ask), timeout=PATIENCE_S)
    return answer


def assert_stalled(story: Story) -> None:
    """The defect in full: given up while parked, tried again, second snapshot not ready."""
    first, second = story["snapshots"]
    assert first["ready_to_commit"]
    assert first["parked"] == 1
    assert not first["suspended"]
    given_up, retried = story["attempts"]
    assert given_up["timeout"] == f"NeMo-Gym prompt group exceeded {BUDGET_S}s"
    assert given_up["state_when_given_up"] == "parked"
    assert retried["reply"]["reward"] == 1.0
    assert not second["ready_to_commit"]
    assert "'completed_unacknowledged': 1" in second["error"]
    assert story["telemetry"] == []


def assert_fixed(story: Story) -> None:
    """One try, its reply read and ACKed, second snapshot ready, nothing held at the end."""
    first, second = story["snapshots"]
    assert first["ready_to_commit"]
    assert first["parked"] == 1
    assert first["suspended"]
    assert story["attempts"] == [{"index": 0, "reply": {"reward": 1.0, "attempt": 0}}]
    assert second["ready_to_commit"]
    assert second["completed_unacknowledged"] == 0
    # The actor's registry is upstream's as before, with names, and nothing is left behind in it.
    assert story["registry"] == "nemo_rl.experience.rollout_manager.RequestDeadlineRegistry"
    assert story["same_registry"]
    assert story["holders"] == {}
    assert story["gate_open"]
    first_hold, second_hold = [entry["metrics"]["held_seconds"] for entry in story["telemetry"]]
    assert first_hold > BUDGET_S > second_hold


def test_without_the_fix_one_slow_snapshot_stops_the_next(ray: Any, play: Callable[[], Any]) -> None:
    """RL gives a parked rollout up, Gym keeps its reply un-ACKed, and the second snapshot fails."""
    assert_stalled(ray.get(play(), timeout=PATIENCE_S))


def test_install_before_import(ray: Any, play: Callable[[], Any]) -> None:
    """Switched on before NeMo RL is imported, the driver's patch reaches the actor."""
    assert nemo_rl_deadline_fix.install().state is State.PENDING

    assert_fixed(ray.get(play(), timeout=PATIENCE_S))

    assert nemo_rl_deadline_fix.status().state is State.PATCHED


@pytest.mark.slow
def test_install_after_import(ray: Any, play: Callable[[], Any]) -> None:
    """Switched on after NeMo RL is imported, it reaches the actor as well."""
    import_module("nemo_rl.algorithms.single_controller")
    report = nemo_rl_deadline_fix.install()
    assert report.state is State.PATCHED
    assert report.warnings == ()

    assert_fixed(ray.get(play(), timeout=PATIENCE_S))


@pytest.mark.slow
def test_install_after_the_first_actor_then_uninstall(
    ray: Any, play: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Live actors stay as they were made, with a warning; each new one is made as things are then."""
    made_before = play()
    report = nemo_rl_deadline_fix.install()
    made_after = play()
    nemo_rl_deadline_fix.uninstall()
    made_at_last = play()

    [warning] = report.warnings
    assert "created before" in warning
    assert warning in caplog.messages
    before, after, at_last = ray.get([made_before, made_after, made_at_last], timeout=PATIENCE_S)
    assert_stalled(before)
    assert_fixed(after)
    assert_stalled(at_last)


def test_status_is_true_inside_of_the_actor(ray: Any, make: Callable[[], Any]) -> None:
    """Rule 9: from its start an actor knows whether it has the fix; an `install()` in it changes nothing."""
    without = make()
    assert status_in(ray, without)[0] == "unpatched"
    assert status_in(ray, without, install=True) == ("unpatched", TOO_LATE)
    assert status_in(ray, without) == ("unpatched", TOO_LATE)

    nemo_rl_deadline_fix.install()
    fixed = make()
    nemo_rl_deadline_fix.uninstall()

    assert status_in(ray, fixed) == ("patched", "as the driver shipped it to this actor")
    assert status_in(ray, without) == ("unpatched", TOO_LATE)


# A spawned child is the driver, and a Ray task makes the controller, on a cluster that was there before.
# NeMo RL hands its environment on as this one does.
NESTED_DRIVER = f"""
import json, multiprocessing, os, sys

def drive(address):
    import ray
    import nemo_rl.algorithms.single_controller
    import nemo_rl_deadline_fix

    @ray.remote
    def play():
        from nemo_rl.algorithms.single_controller import SingleControllerActor
        from nemo_rl.environments.nemo_gym import NemoGym
        from nemo_rl.experience.rollout_manager import RolloutManager
        gym = NemoGym.remote()
        controller = SingleControllerActor.remote(RolloutManager(gym, {BUDGET_S}), gym, {PREPARE_TIMEOUT_S})
        story = ray.get(controller.story.remote("rollout", {PUBLISH_S}), timeout={PATIENCE_S})
        return story, os.path.basename(sys.argv[0])

    variables = {{"env_vars": dict(os.environ)}}
    ray.init(address=address, runtime_env=variables, log_to_driver=False, logging_level="ERROR")
    played = ray.get(play.remote(), timeout={PATIENCE_S})
    print(json.dumps([nemo_rl_deadline_fix.status().state, *played]))

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=drive, args=sys.argv[1:2])
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def drive(
    tmp_path: Path, ray: Any, options: dict[str, Any], *launcher: str, driver: str = DRIVER
) -> subprocess.CompletedProcess[str]:
    """Run a driver's script in a process and a folder of its own, on the same Ray."""
    (tmp_path / "train.py").write_text(driver)
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, *launcher, "train.py", address, json.dumps(options)]
    env = {**os.environ, "PYTHONPATH": str(SHADOW)}
    return subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1.5 * PATIENCE_S, check=False
    )


def test_launcher(ray: Any, tmp_path: Path) -> None:
    """A script that knows nothing of the fix has it when it is started through `run`, and says so once."""
    done = drive(tmp_path, ray, {}, "-m", "nemo_rl_deadline_fix", "run")

    assert done.returncode == 0, done.stderr
    assert_fixed(json.loads(done.stdout))
    assert done.stderr.count("deadline fix") == 1


@pytest.mark.slow
def test_launcher_reaches_children_and_tasks(ray: Any, tmp_path: Path) -> None:
    """The fix is on in a spawned child, and a controller that a Ray task makes has it."""
    done = drive(tmp_path, ray, {}, "-m", "nemo_rl_deadline_fix", "run", driver=NESTED_DRIVER)

    assert done.returncode == 0, done.stderr
    state, story, program = json.loads(done.stdout)
    assert state == "patched"
    assert_fixed(story)
    # By this name the start-up file knows a worker.
    assert program == "default_worker.py"


@pytest.mark.slow
def test_package_missing_in_the_actor(ray: Any, tmp_path: Path) -> None:
    """Where the actor's Python lacks the package, the error that comes back names it."""
    # A Python with everything this one has, but not the package.
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "nemo_rl_deadline_fix" not in path.name:
            (libraries / path.name).symlink_to(path)
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(str(libraries))

    done = drive(
        tmp_path,
        ray,
        {"runtime_env": {"py_executable": str(python)}},
        "-m",
        "nemo_rl_deadline_fix",
        "run",
    )

    assert done.returncode == 1
    assert "No module named 'nemo_rl_deadline_fix'" in done.stderr
    assert "ActorDiedError" in done.stderr or "RayTaskError" in done.stderr
