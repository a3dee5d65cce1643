"""What every test shares: a virtual clock, the targets under test, and a package switched off afterwards.

The regression suite runs on every target there is: the embedded model always, an installed NeMo RL where
Python can import one, and a checkout where `--rl PATH` names it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import platform
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import nemo_rl_deadline_fix
from nemo_rl_deadline_fix import observing, wrapping
from nemo_rl_deadline_fix.errors import DeadlineFixError
from nemo_rl_deadline_fix.replay import clock, subjects, verifying
from nemo_rl_deadline_fix.replay.subjects import Subject
from tests.support.shadow import SHADOW

T = TypeVar("T")


def virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop whose clock jumps to the next timer instead of waiting for it."""
    return clock.run(coroutine)


@dataclass(frozen=True)
class Target:
    """A target of the regression suite.

    Attributes:
        before: Its classes as they are; None where they have the fix themselves.
        after: Its classes with the fix.
    """

    before: Subject | None
    after: Subject

    def unfixed(self) -> Subject:
        """The classes with the defect; skips the test where there are none."""
        if self.before is None:
            pytest.skip("this target has the fix itself, so there is no stall to show")
        return self.before


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take a checkout to run the regression suite on."""
    parser.addoption(
        "--rl", type=Path, metavar="PATH", help="a NeMo RL checkout to run the regression suite on"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a checkout that cannot be tested in one line, before any test runs."""
    path = config.getoption("--rl")
    config.stash[_CHECKOUT] = None
    if path is not None:
        try:
            config.stash[_CHECKOUT] = _target(verifying.subject_of(path))
        except DeadlineFixError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Say what is under test."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("nemo-rl-deadline-fix", "ray")]
    checkout = config.stash[_CHECKOUT]
    return (
        f"under test: {', '.join(versions)}, Python {platform.python_version()}; targets: embedded model, "
        f"installed NeMo RL {'yes' if _installed() else 'none'}, "
        f"checkout {checkout.after.path if checkout else 'none (--rl PATH)'}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run whoever asks for `target` on every target there is."""
    if "target" in metafunc.fixturenames:
        kinds = ["embedded"]
        kinds += ["installed"] * _installed()
        kinds += ["checkout"] * (metafunc.config.stash[_CHECKOUT] is not None)
        metafunc.parametrize("target", kinds, indirect=True)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One of the targets under test."""
    if request.param == "installed":
        try:
            yield _target(verifying.subject_of(verifying.installed_package()))
        except DeadlineFixError as error:
            pytest.skip(str(error))
    elif request.param == "checkout":
        checkout = request.config.stash[_CHECKOUT]
        assert checkout is not None
        yield checkout
    else:
        yield _target(subjects.embedded())


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One local Ray for all tests; its workers can import the shadow package and these tests, not ours."""
    folder = tmp_path_factory.mktemp("importable")
    (folder / "tests").symlink_to(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(SHADOW), str(folder))))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        import ray

        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield ray
        ray.shutdown()


@pytest.fixture(autouse=True)
def _switched_off() -> Iterator[None]:
    """Whatever a test installs is taken off again, and its registries count no longer.

    Before it as well, because fixtures of a whole module may run a simulation between two tests.
    """
    _switch_off()
    yield
    _switch_off()


def _switch_off() -> None:
    wrapping.shipped_here = wrapping.acknowledges_here = False
    nemo_rl_deadline_fix.uninstall()
    observing._watches.clear()
    observing._stranded.clear()


_CHECKOUT = pytest.StashKey[Target | None]()


def _target(subject: Subject) -> Target:
    if verifying.refusal(subject) is None:
        return Target(subject, subjects.fixed(subject))
    return Target(None, subject)


def _installed() -> bool:
    return importlib.util.find_spec("nemo_rl") is not None
