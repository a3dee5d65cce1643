"""Switching the fix on and off in one process: states, import order, what must never happen."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.machinery
import importlib.util
import logging
import pickle
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import FrozenInstanceError
from functools import partialmethod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import wrapt
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import (
    DeadlineFixError,
    InvalidInputError,
    Report,
    State,
    UnsupportedTargetError,
    __version__,
    importing,
    install,
    installing,
    status,
    uninstall,
    wrapping,
)
from nemo_rl_deadline_fix.targets import CONTROLLER_CLASS, CONTROLLER_MODULE, MANAGER_MODULE, PREPARE
from tests.support.fixture_trees import make_tree
from tests.support.shadow import SHADOW, importable


class Registry:
    """Upstream's registry, as far as its shape matters."""

    def __init__(self) -> None:
        self._live: set[Any] = set()
        self.suspended = False

    def add(self, deadline: Any) -> None:
        self._live.add(deadline)
        if self.suspended:
            deadline.suspend()

    def discard(self, deadline: Any) -> None:
        self._live.discard(deadline)

    def suspend(self) -> None: ...
    def resume(self) -> None: ...


class NamedRegistry(Registry):
    """A registry that knows holders."""

    def suspend(self, holder: str = "generation_stand_down") -> None: ...


class RegistryThatNeedsMore(Registry):
    def __init__(self, loop: Any) -> None:
        super().__init__()


class RegistryWithAList(Registry):
    def __init__(self) -> None:
        super().__init__()
        self._live = []  # type: ignore[assignment]


class RegistryThatCounts(Registry):
    """One whose `add` does not ask `suspended`, so that a rollout born while held would run."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def add(self, deadline: Any) -> None:
        self._live.add(deadline)
        if self._depth:
            deadline.suspend()


class RegistryWithMore(Registry):
    """One with more of its own, which stays as it is."""

    def __len__(self) -> int:
        return len(self._live)


class RegistryThatKeepsElsewhere(Registry):
    def __init__(self) -> None:
        super().__init__()
        self._all: list[Any] = []

    def add(self, deadline: Any) -> None:
        self._all.append(deadline)
        if self.suspended:
            deadline.suspend()


class Affected:
    """A controller with the defect, as far as its shape matters."""

    _rollout_permitted: asyncio.Event
    _gym_actor: Any
    _rollout_manager: Any

    def __init__(self) -> None:
        self._gym_checkpoint_rollout_permitted = asyncio.Event()
        self._gym_checkpoint_rollout_permitted.set()

    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
        self._gym_checkpoint_rollout_permitted.clear()
        try:
            await self._gym_actor.prepare(checkpoint_id)
        except BaseException:
            self._gym_checkpoint_rollout_permitted.set()
            raise

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        await self._gym_actor.resume(checkpoint_id)
        self._gym_checkpoint_rollout_permitted.set()

    async def train(self) -> None:
        self._rollout_permitted.clear()
        self._rollout_manager.suspend_request_deadlines()


class ReopensElsewhere(Affected):
    """The gate is handed on, looked up by a string and reopened outside of the two methods."""

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        await self._gym_actor.resume(checkpoint_id)

    def recover(self) -> list[asyncio.Event]:
        gates = [self._rollout_permitted, self._gym_checkpoint_rollout_permitted]
        getattr(self, "_gym_checkpoint_rollout_permitted").set()  # noqa: B009 - the point of it
        return gates


class PrepareAlone:
    """A controller whose release has another name."""

    def __init__(self) -> None:
        self._gym_checkpoint_rollout_permitted = asyncio.Event()

    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
        self._gym_checkpoint_rollout_permitted.clear()


class WithoutFeature:
    _rollout_permitted: asyncio.Event

    async def train(self) -> None:
        self._rollout_permitted.clear()


class Fixed(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
        self._gym_checkpoint_rollout_permitted.clear()
        self._rollout_manager.suspend_request_deadlines("gym_checkpoint")
        await self._gym_actor.prepare(checkpoint_id)

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        await self._gym_actor.resume(checkpoint_id)
        self._reopen()

    def _reopen(self) -> None:
        self._gym_checkpoint_rollout_permitted.set()
        self._rollout_manager.resume_request_deadlines("gym_checkpoint")


class HalfFixed(Fixed):
    _release_prepared_gym_checkpoint = Affected._release_prepared_gym_checkpoint


class FixedByHand(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
        self._rollout_manager._request_deadlines.suspend("gym_checkpoint")
        self._gym_checkpoint_rollout_permitted.clear()
        await self._gym_actor.prepare(checkpoint_id)

    async def _release_prepared_gym_checkpoint(self, checkpoint_id: str, *, committed: bool) -> None:
        await self._gym_actor.resume(checkpoint_id)
        self._gym_checkpoint_rollout_permitted.set()
        self._rollout_manager._request_deadlines.resume("gym_checkpoint")


class OtherNames:
    _gym_checkpoint_rollout_permitted: asyncio.Event

    async def _snapshot(self) -> None:
        self._gym_checkpoint_rollout_permitted.clear()


class WithoutGate:
    _gym_actor: Any

    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id: str, checkpoint_dir: Any) -> Any:
        await self._gym_actor.prepare(checkpoint_id)


class OnTheCoordinatorLine:
    """A controller of newer lines: its snapshot is a context manager, and its gate is another one."""

    @asynccontextmanager
    async def _prepared_gym_checkpoint(self, checkpoint_id: str) -> Any:
        yield


class CoordinatorWithNames(OnTheCoordinatorLine):
    _rollout_manager: Any

    @asynccontextmanager
    async def _prepared_gym_checkpoint(self, checkpoint_id: str) -> Any:
        self._rollout_manager.suspend_request_deadlines("gym_checkpoint")
        try:
            yield
        finally:
            self._rollout_manager.resume_request_deadlines("gym_checkpoint")


async def a_prepare(self: Any, checkpoint_id: str = "", checkpoint_dir: Any = None) -> None:
    """A prepare to be put on a class in some way."""
    self._gym_checkpoint_rollout_permitted.clear()


def a_sync_prepare(self: Any, checkpoint_id: str = "", checkpoint_dir: Any = None) -> Any:
    """A prepare that is not async, although what it returns can be awaited."""
    return a_prepare(self)


class CallablePrepare:
    async def __call__(self, *args: Any) -> None: ...


NOT_PLAIN = {
    "property": property(lambda self: functools.partial(a_prepare, self)),
    "partialmethod": partialmethod(a_prepare, checkpoint_dir="folder"),
    "classmethod": classmethod(a_prepare),
    "staticmethod": staticmethod(a_prepare),
    "function": a_sync_prepare,
    "CallablePrepare": CallablePrepare(),
    "partial": functools.partial(a_prepare),
    "FunctionWrapper": wrapt.decorator(lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))(
        a_prepare
    ),
}


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Lets a test say which controller and registry class count as imported."""

    def imported(controller: Any, registry: Any = Registry) -> ModuleType:
        modules = {CONTROLLER_MODULE: (CONTROLLER_CLASS, controller)}
        modules[MANAGER_MODULE] = ("RequestDeadlineRegistry", registry)
        for name, (attribute, value) in modules.items():
            module = ModuleType(name)
            if value is not None:
                setattr(module, attribute, value)
            monkeypatch.setitem(sys.modules, name, module)
        return sys.modules[CONTROLLER_MODULE]

    monkeypatch.delitem(sys.modules, "nemo_rl", raising=False)
    return imported


@pytest.fixture
def shadow() -> Iterator[None]:
    """The package of upstream's shape can be imported, and is not yet."""
    with importable():
        yield


def fresh(controller: type, **more: Any) -> Any:
    """A copy of a class, so that a test that patches it changes nothing for the next."""
    body = {k: v for k, v in vars(controller).items() if k not in ("__dict__", "__weakref__")}
    return type(controller.__name__, controller.__bases__, {**body, **more})


def modified_class() -> Any:
    """The shadow controller's class, as Ray ships it."""
    return importlib.import_module(CONTROLLER_MODULE).SingleControllerActor.__ray_metadata__.modified_class


def prepare_of(controller: Any) -> Any:
    """What a class has under the name of the one wrapped method."""
    return getattr(controller, PREPARE)


def is_wrapped(controller: Any) -> bool:
    """Whether our wrapper is on the method itself."""
    return bool(prepare_of(controller).__code__.co_filename == wrapping.__file__)


def test_the_idempotence_contract(shadow: None) -> None:
    """However often and in whatever order it is switched on and off, it is on once or not at all."""
    assert status().state is State.UNPATCHED
    assert uninstall().state is State.UNPATCHED

    assert install().state is State.PENDING
    assert install().state is State.PENDING
    assert uninstall().state is State.UNPATCHED
    assert install().state is State.PENDING

    controller = modified_class()
    wrapper = prepare_of(controller)
    original = wrapper.__wrapped__
    assert status().state is State.PATCHED
    assert install().state is State.PATCHED
    assert install() == status()
    assert prepare_of(controller) is wrapper

    assert uninstall().state is State.UNPATCHED
    assert prepare_of(controller) is original
    assert uninstall().state is State.UNPATCHED

    assert install().state is State.PATCHED
    assert prepare_of(controller).__wrapped__ is original


def test_a_report_reads_in_80_columns_and_cannot_be_changed(imported: Callable[..., ModuleType]) -> None:
    """The report names module and class, wraps at words, and is frozen."""
    imported(fresh(Affected))
    report = install()
    target = f"{CONTROLLER_MODULE}:{CONTROLLER_CLASS}"
    assert str(report) == f"{target}: patched"
    with pytest.raises(FrozenInstanceError):
        report.state = State.UNPATCHED  # type: ignore[misc]
    text = str(Report(State.UNSUPPORTED, "something " * 12, ("take care " * 12,)))
    assert max(map(len, text.splitlines())) <= 80
    assert "\nwarning: take care take care" in text
    assert (
        text.split()
        == f"{target}: unsupported ({'something ' * 12})warning: {'take care ' * 12}".replace(
            ")warning", ") warning"
        ).split()
    )


@pytest.mark.parametrize(
    ("controller", "registry"),
    [
        (Affected, Registry),
        (Affected, None),
        (Affected, RegistryWithMore),
        (ReopensElsewhere, Registry),
        (PrepareAlone, Registry),
        (type("Derived", (Affected,), {}), Registry),
    ],
    ids=lambda value: getattr(value, "__name__", "no registry"),
)
def test_patched(imported: Callable[..., ModuleType], controller: type, registry: Any) -> None:
    """A gate and a plain async prepare are all it takes, whoever else changes the gate."""
    controller = fresh(controller)
    imported(controller, registry)
    before = prepare_of(controller)
    assert status().state is State.UNPATCHED
    assert install().state is State.PATCHED
    assert prepare_of(controller).__wrapped__ is before


@pytest.mark.parametrize(
    ("controller", "registry", "state", "detail"),
    [
        (WithoutFeature, Registry, State.NOT_APPLICABLE, "has no Gym snapshot code"),
        (None, Registry, State.NOT_APPLICABLE, "has no class SingleControllerActor"),
        ("text", Registry, State.NOT_APPLICABLE, "has no class SingleControllerActor"),
        (Fixed, NamedRegistry, State.ALREADY_FIXED, "suspends the deadlines itself"),
        (Fixed, None, State.ALREADY_FIXED, "suspends the deadlines itself"),
        (FixedByHand, NamedRegistry, State.ALREADY_FIXED, "suspends the deadlines itself"),
        (CoordinatorWithNames, NamedRegistry, State.ALREADY_FIXED, "by NeMo RL itself"),
    ],
)
def test_left_alone(
    imported: Callable[..., ModuleType], controller: Any, registry: Any, state: State, detail: str
) -> None:
    """Without the feature or with the fix in it, the class is not touched, and the report says why."""
    controller = fresh(controller) if isinstance(controller, type) else controller
    imported(controller, registry)
    before = dict(vars(controller)) if isinstance(controller, type) else None
    for report in (install(), status()):
        assert report.state is state
        assert detail in report.detail
        assert detail in " ".join(str(report).split())
    if before is not None:
        assert dict(vars(controller)) == before


@pytest.mark.parametrize(
    ("controller", "registry", "found"),
    [
        (OtherNames, Registry, "Gym snapshots in another form: _gym_checkpoint_rollout_permitted"),
        (WithoutGate, Registry, "has no _gym_checkpoint_rollout_permitted"),
        (
            OnTheCoordinatorLine,
            Registry,
            "affected, in a form that this package does not mend: newer versions of NeMo RL",
        ),
        (OnTheCoordinatorLine, NamedRegistry, "Gym snapshots in another form: _prepared_gym_checkpoint"),
        (OnTheCoordinatorLine, None, "Gym snapshots in another form: _prepared_gym_checkpoint"),
        (Fixed, Registry, "a part of a fix: _prepare_and_commit_gym_checkpoint suspends the deadlines"),
        (Fixed, Registry, "RequestDeadlineRegistry knows no holders by name"),
        (HalfFixed, NamedRegistry, "_release_prepared_gym_checkpoint does not resume them"),
        (Affected, NamedRegistry, "knows its holders by name"),
        (Affected, RegistryThatNeedsMore, "cannot be taken over: TypeError"),
        (Affected, RegistryWithAList, "has no set _live"),
        (Affected, RegistryThatCounts, "does not keep what is added, suspended"),
        (Affected, RegistryThatKeepsElsewhere, "does not keep what is added, suspended"),
        (Affected, type("Empty", (), {}), "cannot be taken over: TypeError"),
        *(
            (fresh(Affected, **{PREPARE: value}), Registry, f"but a {name}")
            for name, value in NOT_PLAIN.items()
        ),
    ],
)
def test_unsupported(
    imported: Callable[..., ModuleType],
    controller: type,
    registry: Any,
    found: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unknown shape is refused with what was found, what is supported and what to do, and not touched."""
    controller = fresh(controller)
    imported(controller, registry)
    before = dict(vars(controller))
    with caplog.at_level(logging.INFO), pytest.raises(UnsupportedTargetError) as caught:
        install()
    error = caught.value
    assert found in error.found
    assert error.supported
    assert error.advice
    text = str(error)
    assert text.startswith(f"cannot pause the rollout clocks of {CONTROLLER_MODULE}; found: ")
    assert "; supported: " in text
    assert "; do this: " in text
    assert "\n" not in text
    assert dict(vars(controller)) == before
    report = status()
    assert report.state is State.UNSUPPORTED
    assert found in report.detail
    # The registry was tried, and neither logs of that nor clocks are left.
    assert caplog.messages == []
    assert report.clocks == ()


def test_a_module_that_speaks_of_snapshots_is_never_without_the_feature(
    imported: Callable[..., ModuleType], tmp_path: Path
) -> None:
    """What the controller's module imports, and the files beside it, say that snapshots are elsewhere."""
    module: Any = imported(fresh(WithoutFeature))
    module.GymCheckpointCoordinator = object
    assert status().state is State.UNSUPPORTED
    assert "GymCheckpointCoordinator" in status().detail

    module = imported(None)
    module._recover_gym_checkpoint = None
    assert "another form: _recover_gym_checkpoint" in status().detail

    module = imported(fresh(WithoutFeature))
    folder = tmp_path / "nemo_rl" / "algorithms"
    (folder / "rollout_checkpointing").mkdir(parents=True)
    module.__file__ = str(folder / "single_controller.py")
    assert "nemo_rl/algorithms/rollout_checkpointing" in status().detail


@pytest.mark.parametrize(
    ("version", "state", "said"),
    [
        ("before", State.NOT_APPLICABLE, "has no Gym snapshot code"),
        ("A", State.PATCHED, ""),
        ("B", State.PATCHED, ""),
        ("C", State.PATCHED, ""),
        (
            "E",
            State.UNSUPPORTED,
            "affected, in a form that this package does not mend: newer versions of NeMo RL",
        ),
        (
            "F",
            State.UNSUPPORTED,
            "affected, in a form that this package does not mend: newer versions of NeMo RL",
        ),
        ("D", State.ALREADY_FIXED, "by NeMo RL itself"),
        (
            "N",
            State.UNSUPPORTED,
            "nemo_rl/algorithms/rollout_checkpointing: NeMo RL's documentation says that it is fixed",
        ),
    ],
)
@pytest.mark.parametrize("way", ["hook", "install"])
def test_every_version_of_nemo_rl(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, state: State, said: str, way: str
) -> None:
    """Rule 8: what `install()` and the import hook say of each line of NeMo RL there is."""
    with importable(make_tree(tmp_path, version)):
        if way == "hook":
            install()
        importlib.import_module(MANAGER_MODULE)
        importlib.import_module(CONTROLLER_MODULE)
        report = status()
        if way == "install" and state is State.UNSUPPORTED:
            with pytest.raises(UnsupportedTargetError) as caught:
                install()
            assert said in str(caught.value)
            assert ("do this: update NeMo RL" in str(caught.value)) is (version in "EF")
        elif way == "install":
            report = install()
    assert report.state is state
    assert said in report.detail
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == (way == "hook" and state is State.UNSUPPORTED)
    assert all("are NOT paused" in text and said in text for text in warned)


def test_a_controller_of_one_line_with_a_manager_of_another(imported: Callable[..., ModuleType]) -> None:
    """Version A's controller over version D's registry, which names its holders, is refused."""
    imported(fresh(Affected), NamedRegistry)
    with pytest.raises(UnsupportedTargetError, match="does not suspend the deadlines, .* holders by name"):
        install()


def test_errors_are_one_line_and_survive_a_trip() -> None:
    """An error is one line whatever it quotes, is one of ours, and comes whole out of another process."""
    error = InvalidInputError("cannot\nread", found="a\n  line", supported="text", advice="look")
    assert str(error) == "cannot read; found: a line; supported: text; do this: look"
    assert isinstance(error, DeadlineFixError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is InvalidInputError
    assert vars(copy) == vars(error)
    assert str(DeadlineFixError("cannot")) == "cannot"


def test_install_before_import(shadow: None) -> None:
    """Switched on first, the class is patched by the time its import ends."""
    install()
    controller = modified_class()
    assert status().state is State.PATCHED
    assert is_wrapped(controller)


def test_uninstall_before_import(shadow: None) -> None:
    """Switched on and off again before the import, the hook that still waits does nothing."""
    install()
    uninstall()
    controller = modified_class()
    assert status().state is State.UNPATCHED
    assert not is_wrapped(controller)


def test_import_again(shadow: None) -> None:
    """A module dropped and imported again is a new class, which is patched as the first was."""
    install()
    first = modified_class()
    del sys.modules[CONTROLLER_MODULE]
    assert status().state is State.PENDING

    second = modified_class()

    assert second is not first
    assert is_wrapped(second)
    assert status().state is State.PATCHED


@pytest.mark.parametrize("imported_before", [False, True])
def test_reload(shadow: None, imported_before: bool) -> None:
    """A module executed again in place has a new class too, and the fix on it."""
    if imported_before:
        modified_class()
    install()
    first = modified_class()

    importlib.reload(sys.modules[CONTROLLER_MODULE])

    assert modified_class() is not first
    assert is_wrapped(modified_class())


def test_import_that_fails_first(shadow: None, tmp_path: Path) -> None:
    """The hook survives an import that fails, and acts when a later one succeeds."""
    install()
    copy = tmp_path / "copy"
    shutil.copytree(SHADOW / "nemo_rl", copy / "nemo_rl")
    file = copy / "nemo_rl" / "algorithms" / "single_controller.py"
    source = file.read_text()
    with importable(copy):
        file.write_text(source + "\nraise OSError('half way')\n")
        with pytest.raises(OSError, match="half way"):
            modified_class()
        assert status().state is State.PENDING
        file.write_text(source + "\n# whole, and of another size for the bytecode cache\n")
        importlib.invalidate_caches()
        modified_class()
        assert status().state is State.PATCHED


def test_zip_import(tmp_path: Path) -> None:
    """Another loader makes no difference: out of a zip file."""
    archive = tmp_path / "shadow.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for file in (SHADOW / "nemo_rl").rglob("*.py"):
            target.write(file, file.relative_to(SHADOW))
    with importable(archive):
        install()
        modified_class()
        assert status().state is State.PATCHED


def test_lazy_import(shadow: None) -> None:
    """Another loader makes no difference: one that executes the module on first use."""
    install()
    importlib.import_module("nemo_rl.algorithms")
    spec: Any = importlib.util.find_spec(CONTROLLER_MODULE)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[CONTROLLER_MODULE] = module
    spec.loader.exec_module(module)
    assert module.SingleControllerActor is not None
    assert status().state is State.PATCHED


def test_import_by_a_foreign_finder(shadow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finder that came in front hides the controller from the hook, which catches up at the next import."""

    class Finder:
        @staticmethod
        def find_spec(name: Any, path: Any, target: Any = None) -> Any:
            return importlib.machinery.PathFinder.find_spec(name, path) if "nemo_rl" in name else None

    install()
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    modified_class()
    assert status().state is State.UNPATCHED

    importlib.util.find_spec("not_there")

    assert status().state is State.PATCHED
    assert is_wrapped(modified_class())


def test_install_in_mid_import(tmp_path: Path) -> None:
    """A half imported controller has no class yet; it is patched when it is complete."""
    shutil.copytree(SHADOW / "nemo_rl", tmp_path / "nemo_rl")
    file = tmp_path / "nemo_rl" / "algorithms" / "single_controller.py"
    call = "import nemo_rl_deadline_fix\nSTATE = nemo_rl_deadline_fix.install().state\n"
    file.write_text(file.read_text().replace("\nimport ray\n", f"\nimport ray\n{call}"))
    with importable(tmp_path):
        module: Any = importlib.import_module(CONTROLLER_MODULE)
        importlib.util.find_spec("not_there")

        assert module.STATE is State.PENDING
        assert status().state is State.PATCHED
        assert is_wrapped(modified_class())


def test_the_launchers_hook_is_enough(shadow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below `run`, whose hook's class is another one, install() brings none of its own."""
    acted: list[ModuleType] = []
    launchers: Any = type("ControllerHook", (importing.ControllerHook,), {})(acted.append)
    monkeypatch.setattr(sys, "meta_path", [launchers, *sys.meta_path])
    before = list(sys.meta_path)

    assert install().state is State.PENDING

    assert sys.meta_path == before
    assert acted == [importlib.import_module(CONTROLLER_MODULE)]


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.05])
def test_an_install_that_races_with_an_import_ends_patched(tmp_path: Path, after_s: float) -> None:
    """Another thread's import that has begun is waited for, wherever it is, and the class is patched."""
    shutil.copytree(SHADOW / "nemo_rl", tmp_path / "nemo_rl")
    file = tmp_path / "nemo_rl" / "algorithms" / "single_controller.py"
    file.write_text(file.read_text().replace("\nimport ray\n", "\nimport ray\ntime.sleep(0.2)\n"))
    with importable(tmp_path):
        # What takes long is the controller's own import.
        importlib.import_module(MANAGER_MODULE)
        thread = threading.Thread(target=importlib.import_module, args=(CONTROLLER_MODULE,))
        thread.start()
        time.sleep(after_s)
        report = install()
        thread.join()
        assert report.state in (State.PATCHED, State.PENDING)
        assert status().state is State.PATCHED
        assert is_wrapped(modified_class())


def test_an_import_that_is_past_the_hook_is_waited_for(shadow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The narrowest place of that race: the module was looked for, and is not among the imported ones yet."""
    passed, go_on = threading.Event(), threading.Event()

    class Slow:
        @staticmethod
        def find_spec(name: str, path: Any, target: Any = None) -> Any:
            if name != CONTROLLER_MODULE:
                return None
            passed.set()
            go_on.wait(10)
            return importlib.machinery.PathFinder.find_spec(name, path)

    monkeypatch.setattr(sys, "meta_path", [Slow, *sys.meta_path])
    thread = threading.Thread(target=importlib.import_module, args=(CONTROLLER_MODULE,))
    thread.start()
    passed.wait(10)
    threading.Timer(0.1, go_on.set).start()
    assert install().state is State.PATCHED
    thread.join()
    assert is_wrapped(modified_class())


def test_on_import_is_for_whoever_sees_the_import_end(shadow: None) -> None:
    """A start-up hook hands the module in, also while its import has not quite ended, and gets the report."""
    module = importlib.import_module(CONTROLLER_MODULE)
    spec: Any = module.__spec__
    spec._initializing = True
    report = installing.on_import(module)
    assert report.state is State.PATCHED
    assert is_wrapped(modified_class())
    assert installing.on_import(module) == report


def test_on_import_refuses_an_unknown_shape(imported: Callable[..., ModuleType]) -> None:
    """The start-up hook decides what to do about it; the class is as it was."""
    with pytest.raises(UnsupportedTargetError, match="another form"):
        installing.on_import(imported(fresh(OtherNames)))


def test_unsupported_in_the_hook(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown shape met by the hook is a warning and a state; the import is as good as ever."""
    shutil.copytree(SHADOW / "nemo_rl", tmp_path / "nemo_rl")
    file = tmp_path / "nemo_rl" / "algorithms" / "single_controller.py"
    file.write_text(file.read_text().replace(f"async def {PREPARE}", f"async def renamed{PREPARE}"))
    with importable(tmp_path):
        install()
        assert modified_class() is not None
        assert status().state is State.UNSUPPORTED
    [record] = [record for record in caplog.records if "are NOT paused" in record.message]
    assert record.levelno == logging.WARNING
    assert record.name == "nemo_rl.deadline_fix"
    assert "Gym snapshots in another form" in record.message
    assert "do this: " in record.message


def test_failure_in_the_hook(
    shadow: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a bug of ours breaks the import."""
    install()
    monkeypatch.setattr("nemo_rl_deadline_fix.installing.classify", None)
    assert modified_class() is not None
    [record] = [record for record in caplog.records if "are NOT paused" in record.message]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.6.0.dev0", True),
        ("0.7.0.dev3+g98b3b6c.d20261129", True),
        ("0.5.9", False),
        ("1.0.0rc1", False),
        ("unknown", False),
        (None, True),
    ],
)
def test_versions_warn_and_shapes_decide(
    imported: Callable[..., ModuleType],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    inside: bool,
) -> None:
    """A version outside of the tried range is a warning, never a refusal; none at all is fine."""
    imported(fresh(Affected))
    package = ModuleType("nemo_rl")
    vars(package)["__version__"] = version
    monkeypatch.setitem(sys.modules, "nemo_rl", package)

    report = install()

    assert report.state is State.PATCHED
    lines = [] if inside else [f"nemo_rl {version} is outside of the tried range >=0.6.0.dev0,<1"]
    assert [text.partition(";")[0] for text in report.warnings] == lines
    assert list(report.warnings) == [text for text in caplog.messages if "tried range" in text]


def test_one_line_says_that_it_is_on(shadow: None, caplog: pytest.LogCaptureFixture) -> None:
    """INFO with the version, once, when the class is patched, and not before NeMo RL is imported."""
    with caplog.at_level(logging.INFO, "nemo_rl.deadline_fix"):
        install()
        assert caplog.messages == []
        importlib.import_module(CONTROLLER_MODULE)
        install()
    [line] = caplog.messages
    assert line.startswith(f"deadline fix {__version__} is on: ")


def test_a_class_that_cannot_be_changed_is_refused(imported: Callable[..., ModuleType]) -> None:
    """The error is ours, and the class is what it was."""

    class Refuses(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("cannot be changed")

    controller = Refuses("Controller", (), dict(vars(Affected)))
    before = prepare_of(controller)
    imported(controller)
    with pytest.raises(UnsupportedTargetError, match="TypeError: cannot be changed"):
        install()
    assert prepare_of(controller) is before
    assert status().state is State.UNPATCHED


def test_uninstall_restores_what_was_there(imported: Callable[..., ModuleType]) -> None:
    """After switching off, the class holds the very objects that it held before."""
    controller = fresh(Affected)
    imported(controller)
    before = dict(vars(controller))
    install()
    assert dict(vars(controller)) != before
    assert uninstall().warnings == ()
    after = dict(vars(controller))
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def by_closure(inner: Any) -> Any:
    """A wrapper that says nothing of what it wraps."""

    async def foreign(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await inner(self, *args, **kwargs)

    return foreign


def by_functools(inner: Any) -> Any:
    """A wrapper that takes over every mark of what it wraps."""
    return functools.wraps(inner)(by_closure(inner))


def by_wrapt(inner: Any) -> Any:
    """A proxy, which passes itself off as what it wraps."""
    return wrapt.decorator(lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))(inner)


@pytest.mark.parametrize("wrap", [by_closure, by_functools, by_wrapt])
def test_foreign_wrapper_on_top(
    imported: Callable[..., ModuleType], caplog: pytest.LogCaptureFixture, wrap: Callable[[Any], Any]
) -> None:
    """Under somebody's wrapper ours stays on, and switching off says so in a warning."""
    controller = fresh(Affected)
    imported(controller)
    install()
    inner = vars(controller)[PREPARE]
    setattr(controller, PREPARE, wrap(inner))
    wrapped = dict(vars(controller))
    assert install().state is State.PATCHED
    report = uninstall()
    assert dict(vars(controller)) == wrapped
    assert report.state is State.PATCHED
    [warning] = report.warnings
    assert warning.startswith(f"{PREPARE} was wrapped again")
    assert warning in caplog.messages

    setattr(controller, PREPARE, inner)
    assert uninstall().state is State.UNPATCHED


def test_foreign_wrapper_below(imported: Callable[..., ModuleType]) -> None:
    """Somebody's wrapper that was there first is what is restored."""
    controller = fresh(Affected)
    foreign = by_functools(vars(controller)[PREPARE])
    setattr(controller, PREPARE, foreign)
    imported(controller)
    assert install().state is State.PATCHED
    uninstall()
    assert vars(controller)[PREPARE] is foreign


def test_a_method_of_a_base_class(imported: Callable[..., ModuleType]) -> None:
    """An inherited method is wrapped on the class that Ray ships and not on its base, and restored."""
    base = fresh(Affected)
    controller = type("Controller", (base,), {})
    imported(controller)
    before = dict(vars(base))
    assert install().state is State.PATCHED
    assert dict(vars(base)) == before
    assert PREPARE in vars(controller)
    uninstall()
    assert PREPARE not in vars(controller)


# Ray: what was shipped before, and what may come back without.


@pytest.mark.parametrize("shipped", ["in the job", "under Ray Client"])
def test_ray_ships_the_class_anew(shadow: None, shipped: str) -> None:
    """The class Ray made of the decorated one is patched, and Ray is made to forget that it was shipped.

    Ray Client needs a cluster of its own, so what it leaves on the actor class (its key) is put there here.
    """
    actor: Any = importlib.import_module(CONTROLLER_MODULE).SingleControllerActor
    metadata = actor.__ray_metadata__

    def ship() -> None:
        if shipped == "in the job":
            metadata.last_export_cluster_and_job = ("cluster", "job")
        else:
            actor.__ray_client_mode_key__ = "a key"

    def is_shipped() -> bool:
        return metadata.last_export_cluster_and_job is not None or "__ray_client_mode_key__" in vars(actor)

    bare_before = dict(vars(metadata.modified_class.__ray_actor_class__))
    ship()
    assert [text for text in install().warnings if "created before" in text] == [installing.LATE]
    assert not is_shipped()
    assert is_wrapped(metadata.modified_class)
    assert dict(vars(metadata.modified_class.__ray_actor_class__)) == bare_before

    ship()
    assert install().warnings == ()
    assert is_shipped()
    assert uninstall().warnings == (installing.RESTARTS,)
    assert not is_shipped()
    ship()
    assert uninstall().warnings == ()
    assert is_shipped()


def test_uninstall_says_that_an_actor_may_restart_without_the_fix(
    shadow: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the patched class was shipped, one WARNING says that a restarted actor comes back without."""
    actor: Any = importlib.import_module(CONTROLLER_MODULE).SingleControllerActor
    install()
    actor.__ray_metadata__.last_export_cluster_and_job = ("cluster", "job")
    caplog.clear()
    assert uninstall().warnings == (installing.RESTARTS,)
    assert caplog.messages == [installing.RESTARTS]


@pytest.mark.parametrize("of", ["the class that Ray made", "the class that was decorated"])
def test_a_class_that_was_decorated_again(shadow: None, caplog: pytest.LogCaptureFixture, of: str) -> None:
    """An actor class that the user made of the controller gets the fix, and its shipped copy is told of."""
    import ray

    module = importlib.import_module(CONTROLLER_MODULE)
    made: Any = module.SingleControllerActor.__ray_metadata__.modified_class
    again: Any = ray.remote(num_cpus=2)(made if "Ray" in of else made.__ray_actor_class__)
    again.__ray_metadata__.last_export_cluster_and_job = ("cluster", "job")

    report = install()

    assert report.warnings == (installing.LATE,)
    assert installing.LATE in caplog.messages
    assert again.__ray_metadata__.last_export_cluster_and_job is None
    assert is_wrapped(again.__ray_metadata__.modified_class)
    assert install().warnings == ()
    uninstall()
    assert not is_wrapped(again.__ray_metadata__.modified_class)
    assert not is_wrapped(modified_class())


UNPICKLE = f"""
import inspect, pickle, sys
before = "nemo_rl_deadline_fix.wrapping" in sys.modules
controller = pickle.load(sys.stdin.buffer)
function = controller.{PREPARE}
from nemo_rl_deadline_fix import status, uninstall
print(before, function.__name__, inspect.iscoroutinefunction(function))
print(status().state, status().detail, uninstall().state, sep="; ")
print(__import__("ray").is_initialized())
"""


@pytest.mark.parametrize("patched", [True, False])
def test_the_patched_class_survives_cloudpickle(
    shadow: None, monkeypatch: pytest.MonkeyPatch, patched: bool
) -> None:
    """Rule 9: in the copy that another process gets the wrapper is there, and its `status()` knows that."""
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    if patched:
        install()
    monkeypatch.setenv("PYTHONPATH", str(SHADOW))
    pickled = cloudpickle.dumps(modified_class())
    done = subprocess.run([sys.executable, "-c", UNPICKLE], input=pickled, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    there, state, ray_was_started = done.stdout.decode().splitlines()
    assert ray_was_started == "False"
    assert there == f"False {PREPARE} True"
    assert state == (
        "patched; as the driver shipped it to this actor; patched" if patched else "unpatched; ; unpatched"
    )


def as_actor(mocker: MockerFixture, name: str) -> None:
    """Stands for a process that Ray made for an actor of this class, as its public calls say it."""
    handle = type("Handle", (), {"__repr__": lambda self: f"Actor({name}, 0123)"})()
    mocker.patch("ray.is_initialized", return_value=True)
    mocker.patch("ray.get_runtime_context", return_value=SimpleNamespace(current_actor=handle))


def test_an_install_inside_an_unpatched_actor_is_never_called_patched(
    imported: Callable[..., ModuleType], mocker: MockerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 9: what is installed in the controller's own process comes too late, and is told so."""
    controller = fresh(Affected)
    imported(controller)
    as_actor(mocker, CONTROLLER_CLASS)

    report = install()

    assert report.state is State.UNPATCHED
    assert report.detail == installing.TOO_LATE
    assert caplog.messages == [installing.TOO_LATE]
    assert not is_wrapped(controller)
    assert status().state is State.UNPATCHED
    wrapping.shipped_here = True
    assert status().state is State.PATCHED
    assert install().detail == "as the driver shipped it to this actor"
    assert len(caplog.messages) == 1


def test_another_actor_may_be_a_driver(imported: Callable[..., ModuleType], mocker: MockerFixture) -> None:
    """A training script that itself runs in an actor switches the fix on as everybody does."""
    imported(fresh(Affected))
    as_actor(mocker, "TrainingJob")
    assert install().state is State.PATCHED


def test_a_refusal_names_the_version(
    imported: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 8: shape decides; the version of NeMo RL, where it tells one, explains."""
    imported(fresh(OtherNames))
    package: Any = ModuleType("nemo_rl")
    package.__version__ = "0.9.0+0123abc"
    monkeypatch.setitem(sys.modules, "nemo_rl", package)

    with pytest.raises(UnsupportedTargetError, match=r"permitted \(nemo_rl 0\.9\.0\+0123abc\); supported"):
        install()


def test_a_manager_that_keeps_its_registry_elsewhere_is_refused(imported: Callable[..., ModuleType]) -> None:
    """What the wrapper could not find in the actor is refused in the driver."""

    class Manager:
        def __init__(self) -> None:
            self._deadlines = Registry()

    imported(fresh(Affected))
    manager_module: Any = sys.modules[MANAGER_MODULE]
    manager_module.RolloutManager = Manager

    with pytest.raises(UnsupportedTargetError, match="RolloutManager has no _request_deadlines"):
        install()


def test_threads_that_install_at_once_wrap_once(imported: Callable[..., ModuleType]) -> None:
    """However many threads switch the fix on together, the method is wrapped once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            controller = fresh(Affected)
            imported(controller)
            start = threading.Barrier(6)

            def switch_on(start: threading.Barrier = start) -> None:
                start.wait()
                install()

            threads = [threading.Thread(target=switch_on) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not hasattr(prepare_of(controller).__wrapped__, "__wrapped__")
    finally:
        sys.setswitchinterval(before)
