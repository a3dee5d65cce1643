"""Run the real classes of a NeMo RL checkout without importing it.

The classes and methods that the story needs are cut out of the source files and executed with light
stand-ins for what they import. So no torch, no GPU and no NeMo RL installation is needed, and nothing
of the checkout is changed. What runs is the checkout's own code: run this on code you trust.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay.clock import VirtualTime
from nemo_rl_deadline_fix.replay.subjects import SourceFile, Subject, not_replayable

_Node = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

# What the story gives the controller itself, because it stands for a ledger and a cluster.
_PLAYED = {"_nemo_gym_checkpoint_actor", "_flush_completed_gym_acknowledgements", targets.TELEMETRY}


def subject(root: Path, controller: Path, manager: Path) -> Subject:
    """Cut the classes under test out of a checkout.

    Args:
        root: The checkout's root, which the files' paths are told relative to.
        controller: Its `single_controller.py`.
        manager: Its `rollout_manager.py`.

    Returns:
        The checkout's own classes.

    Raises:
        UnsupportedTargetError: A class or method is missing, or does not run by itself.
    """
    deadlines = _Source(manager)
    cut = deadlines.closure([targets.REGISTRY_CLASS, targets.DEADLINE_CLASS])
    forwards = deadlines.members(targets.MANAGER_CLASS, (targets.SUSPEND, targets.RESUME), ())
    timeout = _timeout_class(root, deadlines)
    world = deadlines.run([*cut, forwards], {targets.TIMEOUT_CLASS: timeout})

    snapshots = _Source(controller)
    wanted = (targets.PREPARE, targets.RELEASE, targets.RELEASE_COMMITTED)
    methods = snapshots.members(targets.CONTROLLER_CLASS, wanted, _PLAYED)
    classes = snapshots.closure(
        snapshots.names_in([methods]) | {"_PendingGymCheckpointRelease"}, optional=True
    )
    stage = snapshots.run([*classes, methods], {"time": VirtualTime})
    return Subject(
        kind="checkout",
        path=str(root),
        files=tuple(
            SourceFile(str(source.path.relative_to(root)), source.ran) for source in (snapshots, deadlines)
        ),
        registry=world[targets.REGISTRY_CLASS],
        deadline=world[targets.DEADLINE_CLASS],
        timeout=timeout,
        manager=world[targets.MANAGER_CLASS],
        controller=stage[targets.CONTROLLER_CLASS],
        pending_release=stage.get("_PendingGymCheckpointRelease", _PendingRelease),
    )


class _PendingRelease:
    def __init__(self, checkpoint_id: str, snapshot_path: Path, trainer_anchored: bool) -> None:
        self.checkpoint_id = checkpoint_id
        self.snapshot_path = snapshot_path
        self.trainer_anchored = trainer_anchored


def _timeout_class(root: Path, deadlines: _Source) -> type[BaseException]:
    """The checkout's `RolloutTimeout`, where its file is there; else one that stands in for it."""
    path = root / targets.FAILURES_FILE
    if path.is_file():
        failures = _Source(path)
        world = failures.run(failures.closure([targets.TIMEOUT_CLASS]), {})
        found: type[BaseException] = world[targets.TIMEOUT_CLASS]
        return found
    return type(targets.TIMEOUT_CLASS, (Exception,), {})


class _Source:
    """One source file, and what was cut out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_bytes(), str(path))
        self.top: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            for name in _bound(node):
                self.top[name] = node
        self.ran: tuple[tuple[int, int], ...] = ()

    def closure(self, names: Iterable[str], *, optional: bool = False) -> list[ast.stmt]:
        """Top-level statements that define the names and what those use in turn, in file order."""
        pending, found = list(names), {}
        while pending:
            name = pending.pop()
            node = self.top.get(name)
            if node is None and not optional:
                raise not_replayable(str(self.path), f"no {name} at top level")
            if node is None or id(node) in found or isinstance(node, ast.Import | ast.ImportFrom):
                continue
            found[id(node)] = node
            pending.extend(used for used in _loaded(node) if used in self.top)
        return [node for node in self.tree.body if id(node) in found]

    def members(self, name: str, wanted: Iterable[str], played: Iterable[str]) -> ast.ClassDef:
        """The class reduced to the wanted methods, the methods those call, and its plain attributes."""
        whole = self.top.get(name)
        if not isinstance(whole, ast.ClassDef):
            raise not_replayable(str(self.path), f"no class {name}")
        methods = {node.name: node for node in whole.body if isinstance(node, _Node)}
        missing = [method for method in wanted if method not in methods]
        if missing:
            raise not_replayable(str(self.path), f"{name} without {' and '.join(missing)}")
        pending, kept = list(wanted), set()
        while pending:
            method = pending.pop()
            if method in kept or method in played:
                continue
            kept.add(method)
            pending.extend(used for used in _self_attributes(methods[method]) if used in methods)
        body: list[ast.stmt] = [
            node
            for node in whole.body
            if (isinstance(node, _Node) and node.name in kept)
            or (isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None)
        ]
        return ast.copy_location(ast.ClassDef(name, [], [], body, [], type_params=[]), whole)

    def names_in(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Names that the nodes look up."""
        return {name for node in nodes for name in _loaded(node)}

    def run(self, nodes: list[ast.stmt], given: dict[str, Any]) -> dict[str, Any]:
        """Execute the nodes as a module of their own, and say which lines those were."""
        module = ModuleType(self.path.stem)
        world: dict[str, Any] = module.__dict__
        world.update(
            {name: self._stand_in(name) for name in self.names_in(nodes) if name not in self._made(nodes)}
        )
        world.update(given)
        future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
        code = ast.fix_missing_locations(ast.Module([future, *nodes], []))
        # Dataclasses look their module up by name.
        sys.modules[module.__name__], before = module, sys.modules.get(module.__name__)
        try:
            exec(compile(code, str(self.path), "exec"), world)
        except Exception as error:
            raise not_replayable(str(self.path), f"{type(error).__name__}: {error}") from error
        finally:
            if before is None:
                del sys.modules[module.__name__]
            else:
                sys.modules[module.__name__] = before
        self.ran += tuple(_lines(nodes))
        return world

    def _made(self, nodes: list[ast.stmt]) -> set[str]:
        return {name for node in nodes for name in _bound(node)}

    def _stand_in(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        node = self.top.get(name)
        if isinstance(node, ast.Import | ast.ImportFrom) and _is_stdlib(node):
            world: dict[str, Any] = {}
            exec(compile(ast.Module([node], []), str(self.path), "exec"), world)
            return world[name]
        if name.endswith(("Error", "Exception", "Failure", "Aborted", "Lost")):
            return type(name, (Exception,), {})
        return StandIn(name)


class StandIn:
    """Stands for something imported: it validates, calls and subscripts to what it is given, or to itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def model_validate(self, value: Any) -> Any:
        """As pydantic's; the story's results have the fields already."""
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do nothing, as a check that has nothing to complain of; as a decorator, leave what it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getitem__(self, key: Any) -> StandIn:
        return self

    def __or__(self, other: Any) -> StandIn:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


def _bound(node: ast.stmt) -> list[str]:
    """Names that a top-level statement binds."""
    if isinstance(node, _Node):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        assigned = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in assigned if isinstance(target, ast.Name)]
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
            if field in ("annotation", "returns"):
                continue
            pending.extend(
                part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST)
            )
    return names


def _self_attributes(node: ast.AST) -> set[str]:
    return {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self"
    }


def _is_stdlib(node: ast.Import | ast.ImportFrom) -> bool:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _lines(nodes: list[ast.stmt]) -> list[tuple[int, int]]:
    """Line ranges that run; a class cut down to some methods counts by those."""
    ranges: list[tuple[int, int]] = []
    for node in nodes:
        parts: list[ast.stmt] = [node]
        if isinstance(node, ast.ClassDef) and node.name in (targets.MANAGER_CLASS, targets.CONTROLLER_CLASS):
            parts = [member for member in node.body if isinstance(member, _Node)]
        ranges.extend((part.lineno, part.end_lineno or part.lineno) for part in parts)
    return sorted(ranges)
