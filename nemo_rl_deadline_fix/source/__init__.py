"""The fix as a change to a checkout's source: where it belongs, what belongs there, and writing it."""

from nemo_rl_deadline_fix.source.locate import State, TreeReport, survey

__all__ = ["State", "TreeReport", "survey"]
