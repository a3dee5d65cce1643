"""Run a training script with the fix switched on, as if Python itself had been given the script."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.installing import install

USAGE = "usage: nemo-rl-deadline-fix run [-m] SCRIPT [ARGS...]"


@dataclass(frozen=True)
class Script:
    """A script that can start.

    Attributes:
        argv: Its name and its own arguments, as they were given.
        first_path: What Python would put in front of `sys.path`.
        start: Runs it as `__main__`.
        from_first_path: Whether Python finds its code there, so that the entry is needed (folder, zip).
    """

    argv: tuple[str, ...]
    first_path: str
    start: Callable[[], object]
    from_first_path: bool = False


def read(arguments: list[str]) -> Script:
    """Tell the script from its arguments, switch the fix on, and make sure that the script can start.

    The fix comes first, because looking a module up already imports the packages around it.

    Args:
        arguments: `[-m] SCRIPT [ARGS...]`. Everything after SCRIPT belongs to it, untouched.

    Returns:
        What `run` takes.

    Raises:
        InvalidInputError: No script was named, or Python cannot run it.
    """
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or not rest[0] or (not as_module and rest[0].startswith("-")):
        raise InvalidInputError(
            "run needs a script",
            found=repr(rest[0]) if rest else "no argument",
            supported=USAGE.removeprefix("usage: "),
            advice="name the script (or -m MODULE) before its own arguments",
        )
    install()
    name, argv = rest[0], tuple(rest)
    if not as_module:
        _working_directory()
        first_path, main, code = _read_path(name)
        return Script(argv, first_path, partial(_execute, main, code), main.__spec__ is not None)
    # As `python -m` does: modules of the working directory come first.
    first_path = _working_directory()
    _put_first(first_path)
    _check_module(name)
    return Script(argv, first_path, partial(runpy.run_module, name, run_name="__main__", alter_sys=True))


def run(script: Script) -> None:
    """Run a script as `__main__`, with `sys.argv` and `sys.path[0]` as Python sets them.

    Args:
        script: What `read` returned.

    Raises:
        SystemExit: The script's own. Or 1 for an exception of the script, which `sys.excepthook` has
            then shown, beginning with the script's own frame as it does under Python.
    """
    sys.argv = list(script.argv)
    _put_first(script.first_path, needed=script.from_first_path)
    try:
        script.start()
    except Exception as error:
        trace = _from_script_on(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from None


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:
        raise InvalidInputError(
            "cannot run a script from here",
            found=f"no working directory ({error.strerror})",
            advice="change to a directory that exists",
        ) from error


def _put_first(path: str, *, needed: bool = False) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = path
    elif needed:
        # Told to be safe (-P, -I), Python has put nothing in front of the path yet.
        sys.path.insert(0, path)


def _execute(main: ModuleType, code: CodeType) -> None:
    # Not runpy: it makes `__file__` relative, and takes `__main__` away before the exit handlers run.
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _from_script_on(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback below this module and runpy; all of it where nothing is below."""
    ours = {run.__code__.co_filename, runpy.run_module.__code__.co_filename}
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename in ours:
        inner = inner.tb_next
    return inner or trace


def _read_path(name: str) -> tuple[str, ModuleType, CodeType]:
    """The first entry of `sys.path`, the module and the code of a file, folder or zip."""
    path = os.path.abspath(name)  # noqa: PTH100 - Python's own rules, here and below
    try:
        os.stat(path)  # noqa: PTH116
        importer = pkgutil.get_importer(path)
        if importer is not None:
            spec = importer.find_spec("__main__")
            code = _code_of(spec, "__main__")
        elif name.endswith(".pyc"):
            spec = spec_from_loader("__main__", SourcelessFileLoader("__main__", path))
            code = _code_of(spec, "__main__")
        else:
            loader = SourceFileLoader("__main__", path)
            spec = spec_from_loader("__main__", loader)
            # Not `get_code`: it would leave a bytecode cache behind.
            code = loader.source_to_code(loader.get_data(path), path)
    except FileNotFoundError:
        raise _bad_path(name, "no such file") from None
    except OSError as error:
        raise _bad_path(name, error.strerror or str(error)) from error
    except (ImportError, SyntaxError, ValueError) as error:
        raise _bad_path(name, f"{type(error).__name__}: {error}") from error
    if spec is None or code is None:
        raise _bad_path(name, "no __main__.py in it")
    main = module_from_spec(spec)
    if importer is not None:
        return path, main, code
    # Of a plain file Python tells no spec.
    vars(main).update(__file__=path, __spec__=None, __package__=None, __cached__=None)
    return os.path.dirname(os.path.realpath(path)), main, code  # noqa: PTH120


def _code_of(spec: ModuleSpec | None, name: str) -> CodeType | None:
    get_code = getattr(spec and spec.loader, "get_code", None)
    return get_code(name) if get_code else None


def _bad_path(name: str, found: str) -> InvalidInputError:
    return InvalidInputError(
        f"cannot run {name}",
        found=found,
        supported="a Python file, or a folder or zip with a __main__.py",
        advice="check the path, or use -m for a module",
    )


def _check_module(name: str) -> None:
    problem = _module_problem(name)
    if problem:
        raise InvalidInputError(
            f"cannot run {name}",
            found=problem,
            supported="a module that Python can import and run",
            advice="check its name, and that it is installed or under the working directory",
        )


def _module_problem(name: str) -> str:
    """Why Python could not run a module, or "". An error of a package around it is that package's own."""
    if name.startswith("."):
        return "a relative name"
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
        code = _code_of(spec, name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return f"no module {error.name}"
    except (SyntaxError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    if spec is None:
        return f"no module {name}"
    return "" if code is not None else f"{name} has no Python code"
