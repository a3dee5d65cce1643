"""A virtual loop that looks at a controller after every step: each callback, and each piece of a task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from nemo_rl_deadline_fix.replay.clock import VirtualLoop
from nemo_rl_deadline_fix.targets import GATE, HOLDER, MANAGER, REGISTRY

T = TypeVar("T")


class SteppedLoop(VirtualLoop):
    """A loop that calls `after_step` after every step."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Ready(self)
        self.after_step: Callable[[], None] = lambda: None
        # After the last step of a turn, before the clock jumps.
        self._jumping.select = _after(self, self._jumping.select)  # type: ignore[method-assign]


def _after(loop: SteppedLoop, select: Callable[..., Any]) -> Callable[..., Any]:
    def looked(timeout: float | None = None) -> Any:
        loop.after_step()
        return select(timeout)

    return looked


class _Ready(deque[Any]):
    # Within a turn the loop takes the next step from here.
    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def popleft(self) -> Any:
        self._loop.after_step()
        return super().popleft()


class Rule1:
    """The first rule, looked at after every step: the snapshot holds if and only if the gate is closed.

    Attributes:
        broken: Where it did not hold: when, whether the gate was closed, and who held.
        seen: Whether the gate was closed at each look since the process's first prepare.
        changes: When the gate was seen closed and open again, in turns.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self.broken: list[tuple[float, bool, list[str]]] = []
        self.seen: set[bool] = set()
        self.changes: list[float] = []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        loop.after_step = self._look

    @property
    def closed_s(self) -> float:
        """For how many seconds the gate was closed, until it was last seen open."""
        return sum(self.changes[1::2]) - sum(self.changes[: len(self.changes) // 2 * 2 : 2])

    def _look(self) -> None:
        registry = getattr(getattr(self._controller, MANAGER), REGISTRY)
        now = asyncio.get_running_loop().time()
        closed = not getattr(self._controller, GATE).is_set()
        if closed != bool(len(self.changes) % 2):
            self.changes.append(now)
        if not hasattr(registry, "holders"):
            # Nobody has called the wrapper yet.
            return
        self.seen.add(closed)
        if (HOLDER in registry.holders) != closed or registry.suspended != bool(registry.holders):
            self.broken.append((now, closed, list(registry.holders)))


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own that can be watched."""
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(story)
