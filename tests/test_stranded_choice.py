"""Whether to acknowledge is a choice, made where the fix is switched on, which travels into the actor."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import (
    State,
    install,
    installing,
    launching,
    metrics,
    observing,
    status,
    uninstall,
    wrapping,
)
from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.replay import rl
from nemo_rl_deadline_fix.targets import CONTROLLER_CLASS, CONTROLLER_MODULE, MANAGER_MODULE, REGISTRY_CLASS

LINE = "what NeMo RL gives up on is acknowledged while a snapshot is prepared"


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """The controller of a NeMo RL that counts as imported."""
    found = type(CONTROLLER_CLASS, (rl.SingleControllerActor,), {})
    for name, attribute, value in (
        (CONTROLLER_MODULE, CONTROLLER_CLASS, found),
        (MANAGER_MODULE, REGISTRY_CLASS, rl.RequestDeadlineRegistry),
    ):
        module = ModuleType(name)
        setattr(module, attribute, value)
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize(
    ("calls", "on"),
    [
        ([None], False),
        ([True], True),
        ([None, True], True),
        ([True, None], True),
        ([True, False], False),
        ([False, True], True),
    ],
)
def test_last_choice_holds(
    controller: type[Any], calls: list[bool | None], on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that says nothing leaves it as it was, so a script's own install() does not take it back."""
    caplog.set_level("INFO")
    for choice in calls:
        assert install(acknowledge=choice).state is State.PATCHED

    assert wrapping.acknowledges(controller) is on
    assert (status().stranded == LINE) is on
    assert (LINE in caplog.messages[-1]) is on
    assert (LINE in " ".join(str(status()).split())) is on


def test_choice_waits_for_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen before NeMo RL is imported, it is there afterwards; and it goes with the fix."""
    monkeypatch.delitem(sys.modules, CONTROLLER_MODULE, raising=False)
    assert install(acknowledge=True).state is State.PENDING
    found = type(CONTROLLER_CLASS, (rl.SingleControllerActor,), {})
    module = ModuleType(CONTROLLER_MODULE)
    setattr(module, CONTROLLER_CLASS, found)
    monkeypatch.setitem(sys.modules, CONTROLLER_MODULE, module)

    installing.on_import(module)

    assert wrapping.acknowledges(found)
    uninstall()
    assert not wrapping.acknowledges(found)
    assert status().stranded == ""


def test_choice_below_somebody_elses_wrapper(controller: type[Any]) -> None:
    """It is made where our wrapper is, and nothing is wrapped twice."""
    install()
    ours = controller._prepare_and_commit_gym_checkpoint

    async def theirs(self: Any, *args: Any) -> Any:
        return await ours(self, *args)

    controller._prepare_and_commit_gym_checkpoint = theirs

    install(acknowledge=True)

    assert controller._prepare_and_commit_gym_checkpoint is theirs
    assert wrapping.acknowledges(controller)


@pytest.mark.parametrize("choice", [False, True])
def test_choice_travels_into_the_actor(choice: bool) -> None:
    """Where the class arrives, the wrapper does as it was told to, and status() says so."""
    there = pickle.loads(pickle.dumps(wrapping._Fix(choice)))
    observing.count_stranded(acknowledged=3, unknown=1, failed=2)

    said = status()

    assert there.acknowledge is choice
    assert said.state is State.PATCHED
    totals = "3 so far; of these unknown to its ledger: 1; failed calls: 2"
    assert said.stranded == (f"{LINE}: {totals}" if choice else "")
    assert metrics()["rollout/stranded/acknowledged_total"] == 3.0


def test_run_acknowledge(mocker: MockerFixture) -> None:
    """`run --acknowledge` says so in the environment; `run` alone takes a stale variable out."""
    become = mocker.patch("os.execvpe", side_effect=SystemExit(0))
    mocker.patch.dict("os.environ", {launching.ACKNOWLEDGE: "1"})

    for options in (["--acknowledge", "--best-effort"], []):
        with pytest.raises(SystemExit):
            app(["run", *options, "train.py"])

    with_it, without = (call.args[2] for call in become.call_args_list)
    assert with_it[launching.ACKNOWLEDGE] == "1"
    assert launching.ACKNOWLEDGE not in without


SCRIPT = """
import sys, types
import nemo_rl.algorithms.single_controller as module
from nemo_rl_deadline_fix import install, wrapping
install()
print(wrapping.acknowledges(module.SingleControllerActor))
"""


@pytest.mark.parametrize("option", [pytest.param((), marks=pytest.mark.slow), ("--acknowledge",)])
def test_launched_process(tmp_path: Path, option: tuple[str, ...]) -> None:
    """In the launched process the controller has the choice, also when the script calls install() itself."""
    package = tmp_path / "nemo_rl" / "algorithms"
    package.mkdir(parents=True)
    source = "from nemo_rl_deadline_fix.replay.rl import SingleControllerActor as Base\n"
    (package / "single_controller.py").write_text(f"{source}class SingleControllerActor(Base): pass\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "nemo_rl_deadline_fix", "run", *option]

    done = subprocess.run([*launcher, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == str(bool(option)), done.stderr
    assert (LINE in done.stderr) is bool(option)
