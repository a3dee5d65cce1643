"""Run the real classes of a NeMo RL checkout without importing it.

The classes and methods that a simulation needs are cut out of the source files and executed with light
stand-ins for what they import. So no torch, no GPU and no NeMo RL installation is needed, and nothing of the
checkout is changed. What runs is the checkout's own code: run this on code you trust.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay.building import GIVEN
from nemo_rl_deadline_fix.replay.clock import VirtualTime
from nemo_rl_deadline_fix.replay.subjects import SourceFile, Subject, cannot_simulate

_PENDING_RELEASE = "_PendingGymCheckpointRelease"
_METHODS = (targets.PREPARE, targets.RELEASE, targets.RELEASE_COMMITTED)
# What NeMo RL's loop calls besides, in the versions that have it.
_MORE_METHODS = ("_abort_prepared_gym_checkpoint",)

# An `__init__` may use these without doing anything to the machine.
_HARMLESS = frozenset(
    "asyncio collections contextlib dataclasses functools itertools math threading time typing uuid".split()
)
_UNUSED_BUILTINS = frozenset(
    {"breakpoint", "compile", "eval", "exec", "exit", "input", "open", "print", "quit"}
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def load(root: Path, controller: Path, manager: Path) -> Subject:
    """Cut the classes under test out of a checkout.

    Args:
        root: The checkout's root, which the files' paths are given relative to.
        controller: Its `single_controller.py`.
        manager: Its `rollout_manager.py`.

    Returns:
        The checkout's own classes.

    Raises:
        UnsupportedTargetError: A class or method is missing, or does not run by itself.
    """
    deadlines = Source(manager)
    cut = deadlines.closure([targets.REGISTRY_CLASS, targets.DEADLINE_CLASS])
    forwards = deadlines.members(targets.MANAGER_CLASS, (targets.SUSPEND, targets.RESUME))
    timeout = _timeout_class(root)
    behind = deadlines.run([*cut, forwards], {targets.TIMEOUT_CLASS: timeout})

    snapshots = Source(controller)
    methods = snapshots.members(targets.CONTROLLER_CLASS, _METHODS, _MORE_METHODS)
    classes = snapshots.closure(_loaded(methods) | {_PENDING_RELEASE}, optional=True)
    front = snapshots.run([*classes, methods], {})
    return Subject(
        kind="checkout",
        path=str(root),
        files=tuple(
            SourceFile(str(source.path.relative_to(root)), source.ran) for source in (snapshots, deadlines)
        ),
        registry=behind[targets.REGISTRY_CLASS],
        deadline=behind[targets.DEADLINE_CLASS],
        timeout=timeout,
        manager=behind[targets.MANAGER_CLASS],
        controller=front[targets.CONTROLLER_CLASS],
        pending_release=front.get(_PENDING_RELEASE, _pending_release),
        initialise=snapshots.initialise(),
    )


@contextmanager
def stand_ins(controller: ModuleType) -> Iterator[Callable[[Any, Any], None]]:
    """Let an imported controller's methods run without a cluster, for the block's length.

    Args:
        controller: The imported `single_controller`.

    Yields:
        What initialises a bare controller, as a checkout's subject has it.
    """
    source = Source(Path(str(controller.__file__)))
    methods = source.members(targets.CONTROLLER_CLASS, _METHODS, _MORE_METHODS)
    used = [methods, *source.closure(_loaded(methods), optional=True)]
    world = vars(controller)
    before = {name: world[name] for name in source.stand_ins(used) if not _is_error(world.get(name))}
    world.update({name: VirtualTime if name == "time" else stand_in(name) for name in before})
    try:
        yield source.initialise()
    finally:
        world.update(before)


class Source:
    """One source file, and what was cut out of it.

    Raises:
        UnsupportedTargetError: This Python cannot parse it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            raise cannot_simulate(str(path), error) from None
        self.top = {name: node for node in self.tree.body for name in _bound(node)}
        self.ran: tuple[tuple[int, int], ...] = ()

    def methods(self, name: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        """The methods of a class by name; none where there is no such class."""
        whole = self.top.get(name)
        if not isinstance(whole, ast.ClassDef):
            return {}
        return {node.name: node for node in whole.body if isinstance(node, _Function)}

    def closure(self, names: Iterable[str], *, optional: bool = False) -> list[ast.stmt]:
        """Top-level statements that define the names and what those use in turn, in file order."""
        pending, found = list(names), set[int]()
        while pending:
            name = pending.pop()
            node = self.top.get(name)
            if node is None and not optional:
                raise cannot_simulate(str(self.path), f"no {name} at top level")
            if node is None or id(node) in found or isinstance(node, ast.Import | ast.ImportFrom):
                continue
            found.add(id(node))
            pending.extend(used for used in _loaded(node) if used in self.top)
        return [node for node in self.tree.body if id(node) in found]

    def members(self, name: str, wanted: Iterable[str], more: Iterable[str] = ()) -> ast.ClassDef:
        """The class reduced to the wanted methods, more if there are, what those call, and its attributes."""
        whole, methods = self.top.get(name), self.methods(name)
        if not isinstance(whole, ast.ClassDef):
            raise cannot_simulate(str(self.path), f"no class {name}")
        if missing := [method for method in wanted if method not in methods]:
            raise cannot_simulate(str(self.path), f"{name} without {' and '.join(missing)}")
        pending, kept = [*wanted, *(method for method in more if method in methods)], set[str]()
        while pending:
            method = pending.pop()
            if method not in kept and method not in GIVEN:
                kept.add(method)
                pending.extend(used for used in _self_attributes(methods[method]) if used in methods)
        body: list[ast.stmt] = [
            node
            for node in whole.body
            if (isinstance(node, _Function) and node.name in kept)
            or (isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None)
        ]
        return ast.copy_location(ast.ClassDef(name, [], [], body, [], type_params=[]), whole)

    def run(self, nodes: list[ast.stmt], given: dict[str, Any]) -> dict[str, Any]:
        """Execute the nodes as a module of their own, and keep which lines those were."""
        made = {name for node in nodes for name in _bound(node)}
        used = {name for node in nodes for name in _loaded(node)} - made
        module = ModuleType(self.path.stem)
        world: dict[str, Any] = module.__dict__
        world.update({name: self._imported(name) for name in used} | given)
        future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
        code = ast.fix_missing_locations(ast.Module([future, *nodes], []))
        # Dataclasses look their module up by name.
        sys.modules[module.__name__], before = module, sys.modules.get(module.__name__)
        try:
            exec(compile(code, str(self.path), "exec"), world)
        except Exception as error:
            raise cannot_simulate(str(self.path), error) from error
        finally:
            if before is None:
                del sys.modules[module.__name__]
            else:
                sys.modules[module.__name__] = before
        self.ran += tuple(_lines(nodes))
        return world

    def initialise(self) -> Callable[[Any, Any], None]:
        """What the controller's own `__init__` does by itself: constants, events, locks, containers, config.

        Its top-level assignments are executed in order. One that needs a cluster is left out.
        """
        usable = set(dir(builtins)) - _UNUSED_BUILTINS
        world: dict[str, Any] = {"__name__": self.path.stem}
        for name, node in self.top.items():
            if isinstance(node, ast.Import | ast.ImportFrom) and _comes_from(node, _HARMLESS):
                world[name] = self._imported(name)
                usable.add(name)
        _execute(_steps(self.tree.body, usable, self.path), world)
        init = self.methods(targets.CONTROLLER_CLASS).get("__init__")
        usable |= {"self", "master_config"}
        steps = _steps(init.body if init else [], usable, self.path)
        return lambda controller, config: _execute(
            steps, {**world, "self": controller, "master_config": config}
        )

    def stand_ins(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Names that the nodes use and that something foreign is imported under, or the real clock."""
        used = {name for node in nodes for name in _loaded(node)}
        return {
            name
            for name in used
            if isinstance(node := self.top.get(name), ast.Import | ast.ImportFrom)
            and (name == "time" or not _comes_from(node, sys.stdlib_module_names))
        }

    def _imported(self, name: str) -> Any:
        """What a name that is not defined here stands for."""
        if hasattr(builtins, name):
            return getattr(builtins, name)
        if name == "time":
            return VirtualTime
        node = self.top.get(name)
        if isinstance(node, ast.Import | ast.ImportFrom) and _comes_from(node, sys.stdlib_module_names):
            world: dict[str, Any] = {}
            exec(compile(ast.Module([node], []), str(self.path), "exec"), world)
            return world[name]
        if name.endswith(("Error", "Exception", "Failure", "Aborted", "Lost")):
            return type(name, (Exception,), {})
        return stand_in(name)


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def stand_in(name: str) -> type[Any]:
    """A class that stands for something imported: it validates and calls to what it is given."""
    return _StandIn(name, (), {"model_validate": staticmethod(lambda value: value)})


class _StandIn(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """As a check or a conversion with nothing to do; as a result, with the fields that it is given."""
        if args and not isinstance(args[0], str | float | int | None):
            return args[0]
        return _Answer(**kwargs)

    def __getitem__(cls, key: Any) -> type[Any]:
        return cls


class _Answer(SimpleNamespace):
    def __call__(self, function: Any) -> Any:
        """As a decorator, leave what it decorates."""
        return function


def _pending_release(checkpoint_id: str, snapshot_path: Path, trainer_anchored: bool) -> SimpleNamespace:
    """For a version that has no class for it."""
    return SimpleNamespace(
        checkpoint_id=checkpoint_id, snapshot_path=snapshot_path, trainer_anchored=trainer_anchored
    )


def _timeout_class(root: Path) -> type[BaseException]:
    """The checkout's `RolloutTimeout`, where its file is there; else one that stands in for it."""
    path = root / targets.FAILURES_FILE
    if path.is_file():
        failures = Source(path)
        found: type[BaseException] = failures.run(failures.closure([targets.TIMEOUT_CLASS]), {})[
            targets.TIMEOUT_CLASS
        ]
        return found
    return type(targets.TIMEOUT_CLASS, (Exception,), {})


def _steps(nodes: Iterable[ast.stmt], usable: set[str], path: Path) -> list[CodeType]:
    """The assignments and calls on attributes that use nothing but usable names, which they add to."""
    steps = []
    for node in nodes:
        if not _loaded(node) <= usable:
            continue
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            # Outside of its function an annotation would be evaluated.
            node = ast.copy_location(ast.Assign([node.target], node.value), node)
        if isinstance(node, ast.Assign) or _is_call_on_attribute(node):
            usable.update(_bound(node))
            steps.append(compile(ast.Module([node], []), str(path), "exec", dont_inherit=True))
    return steps


def _execute(steps: Iterable[CodeType], scope: dict[str, Any]) -> None:
    for step in steps:
        with suppress(Exception):
            exec(step, scope)


def _is_call_on_attribute(node: ast.stmt) -> bool:
    """Whether this is `self.attribute.method(...)`."""
    call = node.value if isinstance(node, ast.Expr) else None
    method = call.func if isinstance(call, ast.Call) else None
    return isinstance(method, ast.Attribute) and isinstance(method.value, ast.Attribute)


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement binds."""
    if isinstance(node, _Definition):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        assigned = node.targets if isinstance(node, ast.Assign) else [node.target]
        inside = [inner for target in assigned for inner in ast.walk(target)]
        return [one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    return []


def _loaded(node: ast.AST) -> set[str]:
    """Names that a node looks up when it runs: annotations do not count, they are not evaluated."""
    names: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        inner = pending.pop()
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            names.add(inner.id)
        for field, value in ast.iter_fields(inner):
            if field not in ("annotation", "returns"):
                parts = value if isinstance(value, list) else [value]
                pending.extend(part for part in parts if isinstance(part, ast.AST))
    return names


def _self_attributes(node: ast.AST) -> set[str]:
    return {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self"
    }


def _comes_from(node: ast.Import | ast.ImportFrom, packages: frozenset[str]) -> bool:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        modules = ["" if node.level else node.module or ""]
    return all(module.partition(".")[0] in packages for module in modules)


def _lines(nodes: list[ast.stmt]) -> list[tuple[int, int]]:
    """Line ranges that run; a class cut down to some methods counts by those."""
    ranges: list[tuple[int, int]] = []
    for node in nodes:
        parts: list[ast.stmt] = [node]
        if isinstance(node, ast.ClassDef) and node.name in (targets.MANAGER_CLASS, targets.CONTROLLER_CLASS):
            parts = [member for member in node.body if isinstance(member, _Function)]
        ranges.extend((part.lineno, part.end_lineno or part.lineno) for part in parts)
    return sorted(ranges)
