"""What importing the package costs a training process, and what it promises to type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_rl_deadline_fix

PACKAGE = "nemo_rl_deadline_fix"
TOOLS = ["ray", "nemo_rl", "torch", "rich", "click", "omegaconf", "hydra", "async_solipsism"]
HEAVY = ["packaging", "asyncio", "logging"]
RUNTIME_HALF = [
    "registry",
    "gate",
    "observing",
    "stranded",
    "targets",
    "shapes",
    "wrapping",
    "installing",
    "launching",
    "importing",
    "errors",
]


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after it ran some code."""
    # The interpreter's own start-up may import anything (an editable install does), so it does not count.
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_is_light() -> None:
    """Importing the package loads nothing of others, and of the standard library not even asyncio."""
    loaded = loaded_after(f"import {PACKAGE}")
    assert PACKAGE in loaded
    assert loaded.isdisjoint(TOOLS + HEAVY)


def test_runtime_half_stays_on_its_side_of_the_wall() -> None:
    """All that runs in a training process, `install()` included, loads none of the tools' libraries."""
    imports = "\n".join(f"import {PACKAGE}.{name}" for name in RUNTIME_HALF)
    calls = (
        f"{PACKAGE}.install()\n{PACKAGE}.status()\n{PACKAGE}.uninstall()\n{PACKAGE}.RequestDeadlineRegistry()"
    )
    loaded = loaded_after(f"{imports}\n{calls}")
    assert loaded.isdisjoint(TOOLS)
    # Besides `packaging` the standard library alone. Its private modules, in C, have names of their own.
    allowed = {PACKAGE, "packaging", *sys.stdlib_module_names}
    assert {name for name in loaded if not name.startswith("_")} <= allowed


def test_exports() -> None:
    """`__all__` is sorted, each name resolves to an object of this package, and `dir()` shows it."""
    assert nemo_rl_deadline_fix.__all__ == sorted(nemo_rl_deadline_fix.__all__)
    for name in nemo_rl_deadline_fix.__all__:
        assert getattr(nemo_rl_deadline_fix, name).__module__.startswith(f"{PACKAGE}.")
        assert name in dir(nemo_rl_deadline_fix)
    assert nemo_rl_deadline_fix.__version__


def test_unknown_name() -> None:
    """A name that is not exported is an ordinary AttributeError."""
    with pytest.raises(AttributeError, match=f"module '{PACKAGE}' has no attribute 'instal'"):
        nemo_rl_deadline_fix.instal  # noqa: B018


def test_type_checkers_see_what_is_resolved() -> None:
    """The imports that only type checkers read name the same homes as the table used at run time."""
    tree = ast.parse(Path(nemo_rl_deadline_fix.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    stubs = {
        alias.name: node.module.removeprefix(f"{PACKAGE}.")
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(PACKAGE)
        for alias in node.names
    }
    assert stubs == nemo_rl_deadline_fix._HOMES
    assert sorted(stubs) == nemo_rl_deadline_fix.__all__
