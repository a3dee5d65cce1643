"""Whole processes: what they take of a processor, and how much that is above a bare interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_rl_deadline_fix import launching
from tests.benchmarks.comparing import cpu_of
from tests.benchmarks.conftest import Comparison
from tests.support.fixture_trees import PINNED

BARE = "a bare interpreter"
MODULE = ("-m", "nemo_rl_deadline_fix")
NOTHING = "import click; click.command()(lambda: None)([])"
STARTED = "import sys; assert type(sys.meta_path[0]).__name__ == 'ControllerHook'"
COMMAND_S, START_S = 0.25, 0.005


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which everything is compiled from the second run on, as pip installs it."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment | {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


def test_import(compare: Comparison, environment: dict[str, str]) -> None:
    """The package is imported, alone and with what `install()` needs."""
    package = "import sys, nemo_rl_deadline_fix as fix; "
    loaded = "'nemo_rl_deadline_fix.installing' in sys.modules"
    things = {
        BARE: cpu_of(["-c", "pass"], environment),
        "import": cpu_of(["-c", f"{package} assert not {loaded}"], environment),
        "asyncio": cpu_of(["-c", "import asyncio, logging"], environment),
        "install": cpu_of(["-c", f"{package} fix.install(); assert {loaded}"], environment),
    }
    compare.run(things, rounds=30)
    compare.difference("import nemo_rl_deadline_fix", "import", BARE, goal=0.015)
    compare.difference("import it and install()", "install", BARE)
    compare.difference("the asyncio and logging in that", "asyncio", BARE)


def test_start_up(compare: Comparison, environment: dict[str, str]) -> None:
    """Every Python below `run` starts with our start-up file, and most do nothing else with it."""
    launched = launching.environment(environment, best_effort=False)
    things = {
        BARE: cpu_of(["-c", "pass"], environment),
        "start": cpu_of(["-c", STARTED], launched),
        "run": cpu_of([*MODULE, "run", "-c", STARTED], environment),
    }
    compare.run(things, rounds=40)
    compare.difference("the start of a Python below run", "start", BARE, goal=START_S)
    compare.difference("run itself, until it is that Python", "run", "start")


def test_commands(compare: Comparison, environment: dict[str, str], pytestconfig: pytest.Config) -> None:
    """`verify` and `check` as a user runs them, and beside them a command that does nothing."""
    things = {
        BARE: cpu_of(["-c", "pass"], environment),
        "nothing": cpu_of(["-c", NOTHING], environment),
        "help": cpu_of([*MODULE, "--help"], environment),
        "verify": cpu_of([*MODULE, "verify"], environment),
        "check": cpu_of([*MODULE, "check", str(PINNED)], environment, exit_codes=(1,)),
    }
    checkout: Path | None = pytestconfig.getoption("--tree")
    if checkout is not None:
        things["check --tree"] = cpu_of([*MODULE, "check", str(checkout)], environment, exit_codes=(0, 1))
    compare.run(things, rounds=15)
    compare.absolute("verify", "verify", goal=COMMAND_S)
    compare.absolute("check, the small tree of the tests", "check", goal=COMMAND_S)
    if checkout is not None:
        compare.absolute("check, a whole checkout", "check --tree", goal=COMMAND_S)
    compare.ratio("verify", "verify", BARE)
    compare.ratio("--help", "help", BARE)
    compare.ratio("a click command that does nothing", "nothing", BARE)
