"""Importing a fixture tree in the process of a test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from nemo_rl_deadline_fix.targets import CONTROLLER_MODULE, MANAGER_MODULE


@contextmanager
def imported(root: Path) -> Iterator[ModuleType]:
    """A tree's controller module, with the manager's, under their own names as long as the block runs."""
    theirs = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nemo_rl"}
    for name in theirs:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        importlib.import_module(MANAGER_MODULE)
        yield importlib.import_module(CONTROLLER_MODULE)
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]:
            del sys.modules[name]
        sys.modules.update(theirs)
