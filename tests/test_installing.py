"""Switching the fix on and off in one process: states, import order, what must never happen."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from types import ModuleType
from typing import Any

import pytest
import wrapt

from nemo_rl_deadline_fix import (
    DeadlineFixError,
    InvalidInputError,
    Report,
    State,
    UnsupportedTargetError,
    install,
    status,
    uninstall,
)
from nemo_rl_deadline_fix.targets import CONTROLLER_CLASS, CONTROLLER_MODULE, MANAGER_MODULE, METHODS
from tests.support.shadow import SHADOW, importable

PREPARE, RELEASE = METHODS
TARGETS = [f"{CONTROLLER_MODULE}:{CONTROLLER_CLASS}.{name}" for name in METHODS]


class Registry:
    """Upstream's registry, as far as its shape matters."""

    def __init__(self):
        self._live = set()
        self.suspended = False

    def add(self, deadline): ...
    def discard(self, deadline): ...
    def suspend(self): ...
    def resume(self): ...


class NamedRegistry(Registry):
    """A registry that knows holders."""

    def suspend(self, holder="engine"): ...


class Affected:
    """A controller with the defect, as far as its shape matters."""

    def __init__(self):
        self._gym_checkpoint_rollout_permitted = asyncio.Event()
        self._gym_checkpoint_rollout_permitted.set()

    async def _wait_for_rollout_admission(self):
        for gate in (self._rollout_permitted, self._gym_checkpoint_rollout_permitted):
            await gate.wait()

    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        self._gym_checkpoint_rollout_permitted.clear()
        try:
            await self._gym_actor.prepare(checkpoint_id)
        except BaseException:
            self._gym_checkpoint_rollout_permitted.set()
            raise

    async def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):
        await self._gym_actor.resume(checkpoint_id)
        self._gym_checkpoint_rollout_permitted.set()

    async def train(self):
        self._rollout_permitted.clear()
        self._rollout_manager.suspend_request_deadlines()


class WithoutFeature:
    async def train(self):
        self._rollout_permitted.clear()


class OnTheCoordinatorLine:
    async def _prepared_gym_checkpoint(self, checkpoint_id):
        pass


class Fixed(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        self._gym_checkpoint_rollout_permitted.clear()
        self._rollout_manager.suspend_request_deadlines("gym_checkpoint")
        await self._gym_actor.prepare(checkpoint_id)

    async def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):
        await self._gym_actor.resume(checkpoint_id)
        self._gym_checkpoint_rollout_permitted.set()
        self._rollout_manager.resume_request_deadlines("gym_checkpoint")


class HalfFixed(Fixed):
    _release_prepared_gym_checkpoint = Affected._release_prepared_gym_checkpoint


class ClosesInHelper(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        self._close_admission()
        await self._gym_actor.prepare(checkpoint_id)

    def _close_admission(self):
        self._gym_checkpoint_rollout_permitted.clear()


class ClosesByLocalName(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        gate = self._gym_checkpoint_rollout_permitted
        gate.clear()
        await self._gym_actor.prepare(checkpoint_id)


class ReopensInClosure(Affected):
    async def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):
        async with self._phases.on_success(lambda: self._gym_checkpoint_rollout_permitted.set()):
            await self._gym_actor.resume(checkpoint_id)


class ReopensByString(Affected):
    def give_up(self):
        getattr(self, "_gym_checkpoint_rollout_permitted").set()  # noqa: B009 - the point of it


class HandsTheGateOn(Affected):
    def _gates(self):
        return self._rollout_permitted, self._gym_checkpoint_rollout_permitted


class FixedByHand(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        self._rollout_manager._request_deadlines.suspend("gym_checkpoint")
        self._gym_checkpoint_rollout_permitted.clear()
        await self._gym_actor.prepare(checkpoint_id)

    async def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):
        await self._gym_actor.resume(checkpoint_id)
        self._gym_checkpoint_rollout_permitted.set()
        self._rollout_manager._request_deadlines.resume("gym_checkpoint")


class CountingRegistry(Registry):
    def __init__(self):
        super().__init__()
        self._depth = 0


class PrivateRegistry(Registry):
    def _forget(self, deadline): ...


class SharesHelper(ClosesInHelper):
    async def drain(self):
        self._close_admission()


class ReopensElsewhere(Affected):
    async def recover(self):
        self._gym_checkpoint_rollout_permitted.set()


class ReopensElsewhereByLocalName(Affected):
    async def recover(self):
        gate = self._gym_checkpoint_rollout_permitted
        if not gate.is_set():
            gate.set()


class NeverCloses(Affected):
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        await self._gym_actor.prepare(checkpoint_id)


class NeverReopens(Affected):
    async def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):
        await self._gym_actor.resume(checkpoint_id)


class NotAsync(Affected):
    def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):
        self._gym_checkpoint_rollout_permitted.set()


class HalfTheFeature:
    async def _prepare_and_commit_gym_checkpoint(self, checkpoint_id, checkpoint_dir):
        self._gym_checkpoint_rollout_permitted.clear()


class OtherNames:
    async def _snapshot(self):
        self._gym_checkpoint_rollout_permitted.clear()


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Any:
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


def fresh(controller: type) -> type:
    """A copy of a class, so that a test that patches it changes nothing for the next."""
    body = {k: v for k, v in vars(controller).items() if k not in ("__dict__", "__weakref__")}
    return type(controller.__name__, controller.__bases__, body)


def methods(controller: type) -> list[Any]:
    """What the class has under the names of the two methods."""
    return [getattr(controller, name) for name in METHODS]


def modified_class() -> type:
    """The shadow controller's class, as Ray ships it."""
    return importlib.import_module(CONTROLLER_MODULE).SingleControllerActor.__ray_metadata__.modified_class


def test_the_idempotence_contract(shadow):
    """However often and in whatever order it is switched on and off, it is on once or not at all."""
    assert status().state is State.UNPATCHED
    assert uninstall().state is State.UNPATCHED

    assert install().state is State.PENDING
    assert install().state is State.PENDING
    assert uninstall().state is State.UNPATCHED
    assert install().state is State.PENDING

    controller = modified_class()
    wrappers = methods(controller)
    originals = [wrapper.__wrapped__ for wrapper in wrappers]
    assert status().state is State.PATCHED
    assert install().state is State.PATCHED
    assert install() == status()
    assert methods(controller) == wrappers

    assert uninstall().state is State.UNPATCHED
    assert methods(controller) == originals
    assert uninstall().state is State.UNPATCHED
    assert methods(controller) == originals

    assert install().state is State.PATCHED
    assert [wrapper.__wrapped__ for wrapper in methods(controller)] == originals


def test_a_report_has_one_entry_per_target_and_cannot_be_changed(imported):
    """The report names module, class and method, reads as lines of text, and is frozen."""
    imported(fresh(Affected))
    report = install()
    assert [entry.target for entry in report.targets] == TARGETS
    assert str(report) == "\n".join(f"{target}: patched" for target in TARGETS)
    for part, field in ((report, "targets"), (report.targets[0], "state")):
        with pytest.raises(FrozenInstanceError):
            setattr(part, field, None)
    text = str(Report(report.targets, ("take care",)))
    assert text.endswith("\nwarning: take care")


@pytest.mark.parametrize(
    ("controller", "registry"),
    [
        (Affected, Registry),
        (Affected, None),
        (ClosesInHelper, Registry),
        (ClosesByLocalName, Registry),
        (ReopensInClosure, Registry),
    ],
    ids=lambda value: getattr(value, "__name__", "no registry"),
)
def test_patched(imported, controller, registry):
    """Every shape that changes the gate in the two methods, or in helpers of theirs alone, is patched."""
    controller = fresh(controller)
    imported(controller, registry)
    before = methods(controller)
    assert status().state is State.UNPATCHED
    assert install().state is State.PATCHED
    assert all(new is not old for new, old in zip(methods(controller), before, strict=True))


@pytest.mark.parametrize(
    ("controller", "registry", "state", "detail"),
    [
        (WithoutFeature, Registry, State.NOT_APPLICABLE, "has no Gym snapshot code"),
        (None, Registry, State.NOT_APPLICABLE, "has no class SingleControllerActor"),
        ("text", Registry, State.NOT_APPLICABLE, "has no class SingleControllerActor"),
        (Fixed, NamedRegistry, State.ALREADY_FIXED, "suspends the deadlines itself"),
        (Fixed, None, State.ALREADY_FIXED, "suspends the deadlines itself"),
        (FixedByHand, NamedRegistry, State.ALREADY_FIXED, "suspends the deadlines itself"),
    ],
)
def test_left_alone(imported, controller, registry, state, detail):
    """Without the feature or with the fix in it, the class is not touched, and the report says why."""
    controller = fresh(controller) if isinstance(controller, type) else controller
    imported(controller, registry)
    before = dict(vars(controller)) if isinstance(controller, type) else None
    for report in (install(), status()):
        assert {entry.state for entry in report.targets} == {state}
        assert detail in report.targets[0].detail
        assert detail in str(report)
    if before is not None:
        assert dict(vars(controller)) == before


@pytest.mark.parametrize(
    ("controller", "registry", "found"),
    [
        (ReopensElsewhere, Registry, "also opened or closed in recover"),
        (ReopensElsewhereByLocalName, Registry, "also opened or closed in recover"),
        (SharesHelper, Registry, "also opened or closed in _close_admission"),
        (NeverCloses, Registry, f"{PREPARE} does not close"),
        (NeverReopens, Registry, f"{RELEASE} does not reopen"),
        (NotAsync, Registry, f"{RELEASE} is not an async function"),
        (HalfTheFeature, Registry, f"has no method {RELEASE}"),
        (OtherNames, Registry, f"has no method {PREPARE} and no {RELEASE}"),
        (OnTheCoordinatorLine, Registry, "Gym snapshots in another form: _prepared_gym_checkpoint"),
        (Fixed, Registry, "RequestDeadlineRegistry knows no holders"),
        (ReopensByString, Registry, "is handed on in give_up"),
        (HandsTheGateOn, Registry, "is handed on in _gates"),
        (Affected, CountingRegistry, "cannot adopt a CountingRegistry"),
        (Affected, PrivateRegistry, "lacks its _forget"),
        (HalfFixed, NamedRegistry, "_release_prepared_gym_checkpoint does not resume them"),
        (Affected, NamedRegistry, "knows holders already"),
        (Affected, type("Empty", (), {"suspend": lambda self: None}), "has no add and no discard"),
    ],
)
def test_unsupported(imported, controller, registry, found):
    """An unknown shape is refused with what was found, what is supported and what to do, and not touched."""
    controller = fresh(controller)
    imported(controller, registry)
    before = dict(vars(controller))
    with pytest.raises(UnsupportedTargetError) as caught:
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
    assert found in report.targets[0].detail


def test_errors_are_one_line_and_survive_a_trip():
    """An error is one line whatever it quotes, is one of ours, and comes whole out of another process."""
    error = InvalidInputError("cannot\nread", found="a\n  line", supported="text", advice="look")
    assert str(error) == "cannot read; found: a line; supported: text; do this: look"
    assert isinstance(error, DeadlineFixError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is InvalidInputError
    assert vars(copy) == vars(error)
    assert str(DeadlineFixError("cannot")) == "cannot"


def test_install_before_import(shadow):
    """Switched on first, the class is patched by the time its import ends."""
    install()
    controller = modified_class()
    assert status().state is State.PATCHED
    assert all(method.__wrapped__ is not None for method in methods(controller))
    assert "nemo_rl_deadline_fix" in methods(controller)[0].__code__.co_filename


def test_uninstall_before_import(shadow):
    """Switched on and off again before the import, the hook that still waits does nothing."""
    install()
    uninstall()
    controller = modified_class()
    assert status().state is State.UNPATCHED
    assert "nemo_rl_deadline_fix/" not in methods(controller)[0].__code__.co_filename


def test_import_again(shadow):
    """A module dropped and imported again is a new class: the status says so, and another call patches it."""
    install()
    first = modified_class()
    del sys.modules[CONTROLLER_MODULE]
    assert status().state is State.UNPATCHED

    second = modified_class()
    assert second is not first
    assert status().state is State.UNPATCHED
    assert install().state is State.PATCHED

    del sys.modules[CONTROLLER_MODULE]
    assert install().state is State.PENDING
    third = modified_class()
    assert third is not second
    assert status().state is State.PATCHED


def test_reload(shadow):
    """A module executed again in place has a new class too."""
    install()
    module = importlib.import_module(CONTROLLER_MODULE)
    importlib.reload(module)
    assert status().state is State.UNPATCHED
    assert install().state is State.PATCHED


def test_import_that_fails_first(shadow, tmp_path):
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


def test_zip_import(tmp_path):
    """Another loader makes no difference: out of a zip file."""
    archive = tmp_path / "shadow.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for file in (SHADOW / "nemo_rl").rglob("*.py"):
            target.write(file, file.relative_to(SHADOW))
    with importable(archive):
        install()
        modified_class()
        assert status().state is State.PATCHED


def test_lazy_import(shadow):
    """Another loader makes no difference: one that executes the module on first use."""
    install()
    importlib.import_module("nemo_rl.algorithms")
    spec = importlib.util.find_spec(CONTROLLER_MODULE)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[CONTROLLER_MODULE] = module
    spec.loader.exec_module(module)
    assert module.SingleControllerActor is not None
    assert status().state is State.PATCHED


def test_import_by_a_foreign_finder(shadow, monkeypatch):
    """A finder that comes before the hook's hides the import from it: the status says so, a call patches."""

    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            if name == CONTROLLER_MODULE:
                return importlib.machinery.PathFinder.find_spec(name, path)
            return None

    install()
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    modified_class()
    assert status().state is State.UNPATCHED
    assert install().state is State.PATCHED


def test_install_in_mid_import(shadow, monkeypatch):
    """A half imported module has no class yet: pending where a hook waits for its end, else an error."""
    module = ModuleType(CONTROLLER_MODULE)
    module.__spec__ = importlib.machinery.ModuleSpec(CONTROLLER_MODULE, None)
    module.__spec__._initializing = True
    monkeypatch.setattr("nemo_rl_deadline_fix.installing._hook_waits", False)
    monkeypatch.setitem(sys.modules, CONTROLLER_MODULE, module)
    with pytest.raises(UnsupportedTargetError, match="still being imported"):
        install()
    monkeypatch.setattr("nemo_rl_deadline_fix.installing._hook_waits", True)
    assert install().state is State.PENDING


def test_unsupported_in_the_hook(tmp_path, caplog):
    """An unknown shape met by the hook is a warning and a state; the import is as good as ever."""
    shutil.copytree(SHADOW / "nemo_rl", tmp_path / "nemo_rl")
    file = tmp_path / "nemo_rl" / "algorithms" / "single_controller.py"
    extra = "\n    async def recover(self):\n        self._gym_checkpoint_rollout_permitted.set()\n"
    file.write_text(file.read_text() + extra)
    with importable(tmp_path):
        install()
        assert modified_class() is not None
        assert status().state is State.UNSUPPORTED
    [record] = [record for record in caplog.records if "NOT be paused" in record.message]
    assert record.levelno == logging.WARNING
    assert record.name == "nemo_rl.deadline_fix"
    assert "also opened or closed in recover" in record.message
    assert "do this: " in record.message


def test_failure_in_the_hook(shadow, caplog, monkeypatch):
    """Not even a bug of ours breaks the import."""
    install()
    monkeypatch.setattr("nemo_rl_deadline_fix.installing.classify", None)
    assert modified_class() is not None
    [record] = [record for record in caplog.records if "NOT be paused" in record.message]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_never_half_patched(imported):
    """When the second method cannot be replaced, the first is what it was, and the error is ours."""

    class Refuses(type):
        def __setattr__(cls, name, value):
            if name == RELEASE:
                raise TypeError("cannot be changed")
            super().__setattr__(name, value)

    controller = Refuses("Controller", (), dict(vars(Affected)))
    before = methods(controller)
    imported(controller)
    with pytest.raises(UnsupportedTargetError, match="TypeError: cannot be changed"):
        install()
    assert methods(controller) == before
    assert status().state is State.UNPATCHED


def test_one_method_lost_its_wrapper(imported):
    """When somebody put one original back, the state is not patched, and another call completes it."""
    controller = fresh(Affected)
    imported(controller)
    install()
    kept = vars(controller)[PREPARE]
    setattr(controller, RELEASE, vars(controller)[RELEASE].__wrapped__)
    assert status().state is State.UNPATCHED
    assert install().state is State.PATCHED
    assert vars(controller)[PREPARE] is kept


def test_uninstall_restores_what_was_there(imported):
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

    async def foreign(self, *args, **kwargs):
        return await inner(self, *args, **kwargs)

    return foreign


def by_functools(inner: Any) -> Any:
    """A wrapper that takes over every mark of what it wraps."""
    return functools.wraps(inner)(by_closure(inner))


def by_wrapt(inner: Any) -> Any:
    """A proxy, which passes itself off as what it wraps."""
    return wrapt.decorator(lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))(inner)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("wrap", [by_closure, by_functools, by_wrapt])
def test_foreign_wrapper_on_top(imported, caplog, name, wrap):
    """Under somebody's wrapper ours stays on both methods, with a warning: on one alone it would do harm."""
    controller = fresh(Affected)
    imported(controller)
    install()
    inner = vars(controller)[name]
    foreign = wrap(inner)
    setattr(controller, name, foreign)
    wrapped = dict(vars(controller))
    assert install().state is State.PATCHED
    report = uninstall()
    assert dict(vars(controller)) == wrapped
    assert report.state is State.PATCHED
    [warning] = report.warnings
    assert warning.startswith(f"{name} was wrapped again")
    assert warning in caplog.messages

    setattr(controller, name, inner)
    assert uninstall().state is State.UNPATCHED


def test_foreign_wrapper_below(imported):
    """Somebody's wrapper that was there first is what is restored."""
    controller = fresh(Affected)
    original = vars(controller)[PREPARE]
    foreign = by_functools(original)
    setattr(controller, PREPARE, foreign)
    imported(controller)
    assert install().state is State.PATCHED
    uninstall()
    assert vars(controller)[PREPARE] is foreign


def test_methods_of_a_base_class(imported):
    """Inherited methods are wrapped on the class that Ray ships, not on the base, and go without a trace."""
    base = fresh(Affected)
    controller = type("Controller", (base,), {})
    imported(controller)
    before = dict(vars(base))
    assert install().state is State.PATCHED
    assert dict(vars(base)) == before
    assert set(METHODS) <= set(vars(controller))
    uninstall()
    assert not set(METHODS) & set(vars(controller))
    assert methods(controller) == methods(base)


def test_ray_ships_the_class_anew(shadow):
    """The class Ray made of the decorated one is patched, and Ray is made to forget that it was exported."""
    actor = importlib.import_module(CONTROLLER_MODULE).SingleControllerActor
    metadata = actor.__ray_metadata__
    bare = metadata.modified_class.__ray_actor_class__
    metadata.last_export_cluster_and_job = ("cluster", "job")
    bare_before = dict(vars(bare))
    report = install()
    [warning] = report.warnings
    assert "created before" in warning
    assert metadata.last_export_cluster_and_job is None
    assert all("nemo_rl_deadline_fix" in m.__code__.co_filename for m in methods(metadata.modified_class))
    assert dict(vars(bare)) == bare_before

    metadata.last_export_cluster_and_job = ("cluster", "job")
    assert install().warnings == ()
    assert metadata.last_export_cluster_and_job is not None
    uninstall()
    assert metadata.last_export_cluster_and_job is None
    metadata.last_export_cluster_and_job = ("cluster", "job")
    uninstall()
    assert metadata.last_export_cluster_and_job is not None


UNPICKLE = f"""
import inspect, pickle, sys
controller = pickle.load(sys.stdin.buffer)
for name in {METHODS}:
    function = getattr(controller, name)
    inner = inspect.getclosurevars(function).nonlocals
    body = inner["body"]
    assert inner["original"] is function.__wrapped__
    assert body is getattr(sys.modules["nemo_rl_deadline_fix.gate"], body.__name__)
    print(function.__name__, inspect.iscoroutinefunction(function), body.__module__, body.__name__)
"""


def test_the_patched_class_survives_cloudpickle(shadow, monkeypatch):
    """In the copy that another process gets, the wrappers are still there and lead to our module there."""
    from ray import cloudpickle

    install()
    monkeypatch.setenv("PYTHONPATH", str(SHADOW))
    pickled = cloudpickle.dumps(modified_class())
    done = subprocess.run([sys.executable, "-c", UNPICKLE], input=pickled, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [
        f"{PREPARE} True nemo_rl_deadline_fix.gate prepare_and_commit",
        f"{RELEASE} True nemo_rl_deadline_fix.gate release_prepared",
    ]


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.6.0.dev0", True),
        ("0.6.0rc0", True),
        ("0.6.0", True),
        ("0.6.1+98b3b6c", True),
        ("0.7.0.dev3+g98b3b6c.d20261129", True),
        ("0.5.9", False),
        ("1.0.0rc1", False),
        ("1.0.0", False),
        ("unknown", False),
        (None, True),
        (7, True),
    ],
)
def test_versions_warn_and_shapes_decide(imported, caplog, version, inside):
    """A version outside of the tried range is a warning, never a refusal; none at all is fine."""
    imported(fresh(Affected))
    package = ModuleType("nemo_rl")
    package.__version__ = version
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nemo_rl", package)
        report = install()
        assert report.state is State.PATCHED
        warnings = [text for text in report.warnings if text.startswith("nemo_rl ")]
        assert status().warnings == report.warnings
    assert len(warnings) == (not inside)
    if not inside:
        assert f"nemo_rl {version} is outside of the tried range" in warnings[0]
    assert [text in caplog.messages for text in warnings] == [True] * len(warnings)


def test_versions_of_distributions(imported, monkeypatch):
    """What is installed but not imported is asked for its metadata."""
    imported(fresh(Affected))
    versions = {"ray": "1.0", "nemo-rl": "0.0.1"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert [text.split(" is ")[0] for text in install().warnings] == ["ray 1.0", "nemo_rl 0.0.1"]


def test_a_manager_that_keeps_its_registry_elsewhere_is_refused(imported):
    """What the wrapper could not find in the actor is refused in the driver."""

    class Manager:
        def __init__(self):
            self._deadlines = Registry()

    imported(fresh(Affected))
    sys.modules[MANAGER_MODULE].RolloutManager = Manager

    with pytest.raises(UnsupportedTargetError, match="RolloutManager has no _request_deadlines"):
        install()


def test_threads_that_install_at_once_wrap_once(imported):
    """However many threads switch the fix on together, each method is wrapped once."""
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
            for wrapper in methods(controller):
                assert not hasattr(wrapper.__wrapped__, "__wrapped__")
    finally:
        sys.setswitchinterval(before)


def test_in_the_actor_status_tells_what_the_driver_shipped(imported, monkeypatch):
    """The actor's class is patched while the module it imports is not: what runs is what counts."""
    imported(fresh(Affected))
    monkeypatch.setattr("nemo_rl_deadline_fix.gate.runs_here", True)

    assert status().state is State.PATCHED
    assert status().targets[0].detail == "as the driver shipped it to this actor"
    assert uninstall().state is State.UNPATCHED
