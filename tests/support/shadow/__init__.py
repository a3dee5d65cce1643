"""Puts a package of NeMo RL's shape, `nemo_rl`, on the path for as long as a test needs it.

It runs on real Ray: a manager that is built in the driver, the controller and Gym as actors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHADOW = Path(__file__).parent


@contextmanager
def importable(root: Path = SHADOW) -> Iterator[None]:
    """Make `nemo_rl` importable from a folder, and forget its modules at the end."""
    before = {name: sys.modules.pop(name) for name in _loaded()}
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))
        for name in _loaded():
            del sys.modules[name]
        sys.modules.update(before)


def _loaded() -> list[str]:
    return [name for name in sys.modules if name == "nemo_rl" or name.startswith("nemo_rl.")]
