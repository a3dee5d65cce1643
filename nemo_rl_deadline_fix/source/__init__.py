"""The fix as a change to a checkout's source: where it belongs, what belongs there, and writing it."""

from nemo_rl_deadline_fix.source.judging import Line, TreeReport, survey
from nemo_rl_deadline_fix.source.sites import OPTIONAL, Rule, Site, State

__all__ = ["OPTIONAL", "Line", "Rule", "Site", "State", "TreeReport", "survey"]
