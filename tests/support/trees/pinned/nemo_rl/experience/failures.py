"""Ways in which a rollout may fail: the few of them that deadlines need."""


class RolloutFailure(Exception):
    """One attempt at a rollout failed."""


class RolloutInfraFailure(RolloutFailure):
    """The machinery failed, not the prompt."""


class RolloutTimeout(RolloutInfraFailure):
    """Something took longer than its budget."""


class RolloutStall(RuntimeError):
    """Nothing was committed for too long."""
