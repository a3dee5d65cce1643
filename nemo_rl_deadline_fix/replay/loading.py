"""Run the real classes of a NeMo RL checkout without importing it.

Its two files are executed statement by statement in a world of their own, in which everything outside of the
standard library is stood in for. So no torch, no GPU and no NeMo RL installation is needed, and nothing of
the checkout is changed. What runs is the checkout's own code: run this on code you trust.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from nemo_rl_deadline_fix import targets
from nemo_rl_deadline_fix.replay.clock import VirtualTime
from nemo_rl_deadline_fix.replay.subjects import Subject, cannot_simulate

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
    behind, front = _World(manager), _World(controller)
    return Subject(
        path=str(root),
        files=tuple(str(path.relative_to(root)) for path in (controller, manager)),
        registry=behind.wanted(targets.REGISTRY_CLASS),
        deadline=behind.wanted(targets.DEADLINE_CLASS),
        timeout=behind.wanted(targets.TIMEOUT_CLASS),
        manager=behind.wanted(targets.MANAGER_CLASS, targets.SUSPEND, targets.RESUME),
        controller=front.wanted(targets.CONTROLLER_CLASS, *targets.METHODS, targets.RELEASE_COMMITTED),
        pending_release=front.wanted("_PendingGymCheckpointRelease"),
        initialise=front.initialise,
    )


class _World:
    """What one file defines, executed statement by statement: one that fails costs only what it defines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, Exception] = {}
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            raise cannot_simulate(str(path), error) from None
        # Dataclasses look their module up by name.
        module = sys.modules[f"{__name__}.{path.stem}"] = ModuleType(f"{__name__}.{path.stem}")
        self._names = vars(module)
        self._names.update(__file__=str(path), __builtins__={**vars(builtins), "__import__": _import})
        try:
            for node in tree.body:
                self._execute(node)
        finally:
            del sys.modules[module.__name__]
        usable = {name for name, value in self._names.items() if _is_harmless(value, module.__name__)}
        usable |= {"self", "master_config", *dir(builtins)} - _NOT_BUILTINS
        self._steps = list(_steps(_init_of(tree), usable))

    def _execute(self, node: ast.stmt) -> None:
        # A call would be there for what it does, and that is nothing to be done here.
        if not isinstance(node, ast.Expr):
            try:
                exec(_compiled(node, str(self._path)), self._names)
            except Exception as error:
                self._failed[getattr(node, "name", "")] = error

    def wanted(self, name: str, *methods: str) -> type[Any]:
        """A class of the file.

        Raises:
            UnsupportedTargetError: It is not there, or one of these methods is not.
        """
        found = self._names.get(name)
        if not isinstance(found, type):
            raise cannot_simulate(str(self._path), self._failed.get(name, f"no class {name}"))
        if missing := [method for method in methods if not hasattr(found, method)]:
            raise cannot_simulate(str(self._path), f"{name} without {' and '.join(missing)}")
        return found

    def initialise(self, controller: Any, config: Any) -> None:
        """Do what the controller's own `__init__` does by itself: constants, events, containers, config.

        Its top-level assignments are executed in order. One that needs a cluster is left out.
        """
        scope = {**self._names, "self": controller, "master_config": config}
        for step in self._steps:
            with suppress(Exception):
                exec(step, scope)


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
        return _stand_in(name)

    def __getitem__(cls, key: Any) -> type[Any]:
        return cls


class _Answer(SimpleNamespace):
    def __call__(self, function: Any) -> Any:
        """As a decorator, leave what it decorates."""
        return function


def _stand_in(name: str) -> type[Any]:
    """A class of that name that stands for something imported."""
    if name.endswith(("Error", "Exception", "Failure", "Aborted", "Lost", targets.TIMEOUT_CLASS)):
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
    known = not level and name.partition(".")[0] in sys.stdlib_module_names
    return builtins.__import__(name, *args) if known else _stand_in(name)


def _compiled(node: ast.stmt, path: str) -> CodeType:
    # Without evaluating annotations, whose names may be foreign.
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(ast.Module([node], []), path, "exec", flags, dont_inherit=True)
    return code


def _init_of(tree: ast.Module) -> list[ast.stmt]:
    """The body of the controller's `__init__`; empty where there is none."""
    return [
        step
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == targets.CONTROLLER_CLASS
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for step in method.body
    ]


def _steps(nodes: Iterable[ast.stmt], usable: set[str]) -> Iterator[CodeType]:
    """The assignments and calls on attributes that use nothing but usable names, which they add to."""
    for node in nodes:
        match node:
            case ast.AnnAssign(target, _, ast.expr() as value):
                # Outside of its function an annotation would be evaluated.
                node = ast.copy_location(ast.Assign([target], value), node)
            case ast.Assign() | ast.Expr(ast.Call(ast.Attribute(ast.Attribute()))):
                pass
            case _:
                continue
        names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        if {name.id for name in names} <= usable | stored:
            usable |= stored
            yield _compiled(node, "__init__")


def _is_harmless(value: Any, own: str) -> bool:
    """Whether a value is a constant, the file's own, or of a module that does nothing to the machine."""
    home = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None) or "builtins"
    harmless = home == own or home.partition(".")[0] in _HARMLESS or value is VirtualTime
    return harmless and not isinstance(value, _StandIn)
