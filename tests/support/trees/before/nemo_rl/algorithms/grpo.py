"""Training without a controller actor: the loop that was there first."""

from __future__ import annotations

from typing import Any


def grpo_train(policy: Any, dataloader: Any) -> int:
    """Train on each batch; return how many there were."""
    steps = 0
    for batch in dataloader:
        policy.train(batch)
        steps += 1
    return steps
