"""A package of NeMo RL's shape: own text, upstream's names, small enough to run in a second."""

__version__ = "0.6.0rc0+shadow"
