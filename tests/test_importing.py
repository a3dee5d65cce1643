"""The import hook: it acts once for each execution of the controller, whatever else takes part in imports."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nemo_rl_deadline_fix.importing import CONTROLLER_MODULE, ControllerHook
from nemo_rl_deadline_fix.targets import CONTROLLER_MODULE as SAME
from tests.support.shadow import importable

FILES = {
    "nemo_rl/__init__.py": "",
    "nemo_rl/algorithms/__init__.py": "",
    "nemo_rl/algorithms/single_controller.py": "from . import sibling\nclass SingleControllerActor: ...\n",
    "nemo_rl/algorithms/sibling.py": "",
}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A NeMo RL with nothing in it, importable."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with importable(tmp_path):
        yield tmp_path


@pytest.fixture
def acted() -> list[ModuleType]:
    """The modules that the hook acted on."""
    return []


@pytest.fixture
def hook(acted: list[ModuleType]) -> Iterator[ControllerHook]:
    """A hook that waits, and writes down what it acted on if that was complete."""
    before = list(sys.meta_path)

    def act(module: ModuleType) -> None:
        assert hasattr(module, "SingleControllerActor")
        acted.append(module)

    hook = ControllerHook(act)
    hook.enter()
    yield hook
    sys.meta_path[:] = before


class InFront:
    """A finder that answers for NeMo RL before ours is asked, as typeguard's does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("nemo_rl") else None


def test_it_waits_for_the_one_name() -> None:
    """The module that must stand alone has the name in itself; it is the one that everyone shares."""
    assert CONTROLLER_MODULE == SAME


def test_it_acts_when_the_module_is_complete(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """Once, and the loader is of the kind that it would be without us."""
    module = importlib.import_module(CONTROLLER_MODULE)

    assert acted == [module]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert hook.missed() is None


def test_it_acts_again_on_a_reload_and_on_another_import(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """Each execution makes a new class, which has to be fixed."""
    module = importlib.import_module(CONTROLLER_MODULE)
    importlib.reload(module)
    del sys.modules[CONTROLLER_MODULE]
    again = importlib.import_module(CONTROLLER_MODULE)

    assert acted == [module, module, again]


def test_looking_the_module_up_is_no_import(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """Who asks where the controller is gets the answer, and nothing is acted on."""
    spec = importlib.util.find_spec(CONTROLLER_MODULE)

    assert spec is not None
    assert spec.origin == str(path / "nemo_rl/algorithms/single_controller.py")
    assert acted == []


def test_a_loader_that_serves_other_modules_as_well(
    path: Path, hook: ControllerHook, acted: list[ModuleType], tmp_path: Path
) -> None:
    """A zip has one loader for all its modules; only the controller counts."""
    archive = tmp_path / "rl.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for name, text in FILES.items():
            made.writestr(name, text)
    with importable(archive):
        module = importlib.import_module(CONTROLLER_MODULE)

        assert acted == [module]
        assert str(archive) in str(module.__file__)


def test_it_goes_to_the_front_at_the_next_import(path: Path, hook: ControllerHook) -> None:
    """Two finders came in front of it; all stay, and it is first again."""
    others = [InFront(), InFront()]
    sys.meta_path[:0] = others

    importlib.util.find_spec("not_there")

    assert [*sys.meta_path[:3]] == [hook, *others]


def test_it_catches_up_with_a_controller_that_came_past(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """Not while the controller is being executed, but at the next import after it, and once."""
    sys.meta_path.insert(0, InFront())
    module = importlib.import_module(CONTROLLER_MODULE)
    assert (acted, hook.missed()) == ([], module)

    importlib.util.find_spec("not_there")
    importlib.util.find_spec("not_there")

    assert acted == [module]
    assert hook.missed() is None


def test_half_a_module_is_not_acted_on(path: Path, hook: ControllerHook, acted: list[ModuleType]) -> None:
    """A controller that came past asks for others while it is executed: it is not complete then."""
    file = path / "nemo_rl/algorithms/single_controller.py"
    file.write_text("import importlib.util\nimportlib.util.find_spec('not_there')\n" + file.read_text())
    sys.meta_path.insert(0, InFront())

    module = importlib.import_module(CONTROLLER_MODULE)
    importlib.util.find_spec("not_there")

    assert acted == [module]


def test_a_loader_without_attributes_of_its_own(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """It cannot tell when it is done, so the next import does."""

    class Slotted(Loader):
        __slots__ = ()

        def create_module(self, spec: ModuleSpec) -> None:
            return None

        def exec_module(self, module: ModuleType) -> None:
            vars(module)["SingleControllerActor"] = object

    class Finder:
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            return ModuleSpec(name, Slotted()) if name == CONTROLLER_MODULE else None

    sys.meta_path.append(Finder())
    (path / "nemo_rl/algorithms/single_controller.py").unlink()
    module = importlib.import_module(CONTROLLER_MODULE)

    importlib.util.find_spec("not_there")

    assert acted == [module]


def test_a_stand_in_was_not_imported(hook: ControllerHook, acted: list[ModuleType]) -> None:
    """What a test puts into `sys.modules` is left alone."""
    sys.modules[CONTROLLER_MODULE] = SimpleNamespace()  # type: ignore[assignment]
    try:
        importlib.util.find_spec("not_there")
    finally:
        del sys.modules[CONTROLLER_MODULE]

    assert acted == []


def test_what_it_raises_breaks_the_import(path: Path) -> None:
    """As it must where a run is not to go on; the next try does the same."""

    def refuse(module: ModuleType) -> None:
        raise SystemExit(2)

    hook = ControllerHook(refuse)
    hook.enter()
    try:
        for _ in range(2):
            with pytest.raises(SystemExit):
                importlib.import_module(CONTROLLER_MODULE)
            assert CONTROLLER_MODULE not in sys.modules
    finally:
        hook.leave()


def test_it_leaves(path: Path, hook: ControllerHook, acted: list[ModuleType]) -> None:
    """From then on imports are as they were."""
    hook.leave()
    hook.leave()

    importlib.import_module(CONTROLLER_MODULE)

    assert acted == []
    assert hook not in sys.meta_path


def test_what_was_there_before_it_came_is_not_acted_on(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """Who lets it wait has looked at that one already."""
    hook.leave()
    importlib.import_module(CONTROLLER_MODULE)

    hook.enter()
    importlib.util.find_spec("not_there")

    assert (acted, hook.missed()) == ([], None)


def test_it_leaves_an_import_that_has_begun(
    path: Path, hook: ControllerHook, acted: list[ModuleType]
) -> None:
    """A loader that it was attached to says nothing more."""
    spec = importlib.util.find_spec(CONTROLLER_MODULE)
    assert spec is not None
    assert spec.loader is not None
    hook.leave()

    spec.loader.exec_module(importlib.util.module_from_spec(spec))

    assert acted == []


def test_two_of_them(path: Path, hook: ControllerHook, acted: list[ModuleType]) -> None:
    """Each asks only those behind it, so they do not ask each other for ever; and each acts."""
    ControllerHook(acted.append).enter()

    module = importlib.import_module(CONTROLLER_MODULE)

    assert acted == [module, module]
