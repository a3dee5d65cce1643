"""How a rollout can fail."""


class RolloutTimeout(Exception):  # noqa: N818 -- upstream's name
    """A rollout used up its budget."""
