"""Run the real classes of a NeMo RL checkout without importing it.

Its files are executed statement by statement in a world of their own, in which everything outside of the
standard library is stood in for. So no torch, no GPU and no NeMo RL installation is needed, and nothing of
the checkout is changed. What runs is the checkout's own code: run this on code you trust.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay.building import GIVEN
from nemo_rl_deadline_fix.replay.clock import VirtualTime
from nemo_rl_deadline_fix.replay.subjects import SourceFile, Subject, cannot_simulate

_METHODS = (targets.PREPARE, targets.RELEASE, targets.RELEASE_COMMITTED)
_FORWARDS = (targets.SUSPEND, targets.RESUME)

# What an `__init__` may use: nothing of it touches the machine.
_HARMLESS = frozenset(
    "_thread asyncio builtins collections contextlib dataclasses functools itertools math threading typing "
    "uuid".split()
)
_NOT_BUILTINS = frozenset({"breakpoint", "compile", "eval", "exec", "exit", "input", "open", "print", "quit"})


def load(root: Path, controller: Path, manager: Path) -> Subject:
    """Execute the classes under test of a checkout.

    Args:
        root: The checkout's root, which the files' paths are given relative to.
        controller: Its `single_controller.py`.
        manager: Its `rollout_manager.py`.

    Returns:
        The checkout's own classes.

    Raises:
        UnsupportedTargetError: A class or method is missing, or does not run by itself.
    """
    failures = root / targets.FAILURES_FILE
    timeout: type[BaseException] = type(targets.TIMEOUT_CLASS, (Exception,), {})
    if failures.is_file():
        timeout = _World(failures).wanted(targets.TIMEOUT_CLASS)
    behind = _World(manager, {targets.TIMEOUT_CLASS: timeout})
    front = _World(controller)
    return Subject(
        kind="checkout",
        path=str(root),
        registry=behind.wanted(targets.REGISTRY_CLASS),
        deadline=behind.wanted(targets.DEADLINE_CLASS),
        timeout=timeout,
        manager=behind.wanted(targets.MANAGER_CLASS, _FORWARDS),
        controller=front.wanted(targets.CONTROLLER_CLASS, _METHODS),
        pending_release=front.wanted("_PendingGymCheckpointRelease"),
        initialise=initialiser(front.tree, front.names),
        files=tuple(SourceFile(str(world.path.relative_to(root)), world.ran()) for world in (front, behind)),
    )


@contextmanager
def stand_ins(controller: ModuleType) -> Iterator[Callable[[Any, Any], None]]:
    """Let an imported controller's methods run without a cluster, for the block's length.

    Args:
        controller: The imported `single_controller`.

    Yields:
        What initialises a bare controller, as a checkout's subject has it.
    """
    tree, world = parse(Path(str(controller.__file__))), vars(controller)
    foreign = _foreign_names(tree)
    before = {
        name: value
        for name, value in world.items()
        if value is time or (name in foreign and not _is_error(value))
    }
    world.update({name: VirtualTime if value is time else stand_in(name) for name, value in before.items()})
    try:
        yield initialiser(tree, world)
    finally:
        world.update(before)


def parse(path: Path) -> ast.Module:
    """A file's syntax tree.

    Raises:
        UnsupportedTargetError: This Python cannot parse it.
    """
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise cannot_simulate(str(path), error) from None


def methods(tree: ast.Module, name: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The methods of a class by name; none where there is no such class."""
    return {
        node.name: node
        for whole in tree.body
        if isinstance(whole, ast.ClassDef) and whole.name == name
        for node in whole.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def initialiser(tree: ast.Module, world: dict[str, Any]) -> Callable[[Any, Any], None]:
    """What the controller's own `__init__` does by itself: constants, events, locks, containers, config.

    Its top-level assignments are executed in order. One that needs a cluster is left out.

    Args:
        tree: The controller's file.
        world: The names that it has, with stand-ins for what is foreign.
    """
    usable = {name for name, value in world.items() if _is_harmless(value, world["__name__"])}
    usable |= {"self", "master_config", *dir(builtins)} - _NOT_BUILTINS
    init = methods(tree, targets.CONTROLLER_CLASS).get("__init__")
    steps = list(_steps(init.body if init else [], usable))

    def initialise(controller: Any, config: Any) -> None:
        scope = {**world, "self": controller, "master_config": config}
        for step in steps:
            with suppress(Exception):
                exec(step, scope)

    return initialise


class _World:
    """What one file defines, executed statement by statement: one that fails costs only what it defines."""

    def __init__(self, path: Path, given: dict[str, Any] | None = None) -> None:
        self.path = path
        self.tree = parse(path)
        module = ModuleType(path.stem)
        self.names: dict[str, Any] = module.__dict__
        self.names["__file__"] = str(path)
        self.names["__builtins__"] = {**vars(builtins), "__import__": _import}
        self._failed: dict[str, Exception] = {}
        # Dataclasses look their module up by name.
        sys.modules[module.__name__], before = module, sys.modules.get(module.__name__)
        try:
            for node in self.tree.body:
                self._execute(node)
        finally:
            del sys.modules[module.__name__]
            if before is not None:
                sys.modules[module.__name__] = before
        self.names.update(given or {})

    def _execute(self, node: ast.stmt) -> None:
        # A call would be there for what it does, and that is nothing to be done here.
        if not isinstance(node, ast.Expr):
            try:
                exec(_compiled(node, str(self.path)), self.names)
            except Exception as error:
                self._failed[getattr(node, "name", "")] = error

    def wanted(self, name: str, wanted: Sequence[str] = ()) -> type[Any]:
        """A class of the file.

        Raises:
            UnsupportedTargetError: It is not there, or a wanted method is not.
        """
        found = self.names.get(name)
        if not isinstance(found, type):
            raise cannot_simulate(str(self.path), self._failed.get(name, f"no class {name}"))
        if missing := [method for method in wanted if not hasattr(found, method)]:
            raise cannot_simulate(str(self.path), f"{name} without {' and '.join(missing)}")
        return found

    def ran(self) -> tuple[tuple[int, int], ...]:
        """Line ranges that a simulation runs."""
        whole = (targets.REGISTRY_CLASS, targets.DEADLINE_CLASS)
        nodes: list[ast.stmt] = [
            node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name in whole
        ]
        nodes += _reached(methods(self.tree, targets.MANAGER_CLASS), _FORWARDS)
        nodes += _reached(methods(self.tree, targets.CONTROLLER_CLASS), _METHODS)
        return tuple(sorted((node.lineno, node.end_lineno or node.lineno) for node in nodes))


class _StandIn(type):
    """Stands for something imported, a class or a function or a module: there is nothing it has to do."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """As a check or a conversion the value that it is given; as a result, one with these fields."""
        if args and not isinstance(args[0], str | float | int | None):
            return args[0]
        return _Answer(**kwargs)

    def __getattr__(cls, name: str) -> type[Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, key: Any) -> type[Any]:
        return cls


class _Answer(SimpleNamespace):
    def __call__(self, function: Any) -> Any:
        """As a decorator, leave what it decorates."""
        return function


def stand_in(name: str) -> type[Any]:
    """A class of that name that stands for something imported."""
    if name.endswith(("Error", "Exception", "Failure", "Aborted", "Lost")):
        return type(name, (Exception,), {})
    members = {
        "model_validate": staticmethod(lambda value: value),
        # Models may be made with options of their class.
        "__init_subclass__": classmethod(lambda cls, **_: None),
    }
    return _StandIn(name, (), members)


def _import(name: str, *args: Any) -> Any:
    level = args[3] if len(args) > 3 else 0
    if name == "time":
        return VirtualTime
    return builtins.__import__(name, *args) if _is_stdlib(name) and not level else stand_in(name)


def _compiled(node: ast.stmt, path: str) -> CodeType:
    # Without evaluating annotations, whose names may be foreign.
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(ast.Module([node], []), path, "exec", flags, dont_inherit=True)
    return code


def _reached(
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef], start: Iterable[str]
) -> Iterator[ast.stmt]:
    """The functions that some of them lead to by `self.name`, without those that a simulation gives."""
    pending, seen = list(start), set(GIVEN)
    while pending:
        name = pending.pop()
        if name in functions and name not in seen:
            seen.add(name)
            yield functions[name]
            pending += [node.attr for node in ast.walk(functions[name]) if isinstance(node, ast.Attribute)]


def _steps(nodes: Iterable[ast.stmt], usable: set[str]) -> Iterator[CodeType]:
    """The assignments and calls on attributes that use nothing but usable names, which they add to."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            # Outside of its function an annotation would be evaluated.
            node = ast.copy_location(ast.Assign([node.target], node.value), node)
        names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        harmless = {name.id for name in names} <= usable | stored
        if harmless and (isinstance(node, ast.Assign) or _is_call_on_attribute(node)):
            usable |= stored
            yield _compiled(node, "__init__")


def _foreign_names(tree: ast.Module) -> set[str]:
    """Names under which a file imports what is not in the standard library."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if not _is_stdlib((node.module or "") if isinstance(node, ast.ImportFrom) else alias.name)
    }


def _is_call_on_attribute(node: ast.stmt) -> bool:
    """Whether this is `self.attribute.method(...)`."""
    call = node.value if isinstance(node, ast.Expr) else None
    method = call.func if isinstance(call, ast.Call) else None
    return isinstance(method, ast.Attribute) and isinstance(method.value, ast.Attribute)


def _is_harmless(value: Any, own: str) -> bool:
    """Whether a value is a constant, the file's own, or of a module that does nothing to the machine."""
    home = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None) or "builtins"
    harmless = home == own or home.partition(".")[0] in _HARMLESS or value is VirtualTime
    return harmless and not isinstance(value, _StandIn)


def _is_stdlib(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
