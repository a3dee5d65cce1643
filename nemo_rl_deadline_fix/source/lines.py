"""The other lines of NeMo RL: those without Gym snapshots, and those that take them through a coordinator.

There the gate has another name and closes for the length of a block, so nothing is mended here. From some
version on NeMo RL holds the clocks in that block itself; earlier ones of the same line have the defect.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum

from nemo_rl_deadline_fix.source.manager import manager_sites
from nemo_rl_deadline_fix.source.reading import Source, Tree
from nemo_rl_deadline_fix.source.sites import Kind, Rule, Site, State, body_of
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_FILE,
    MANAGER_CLASS,
    MANAGER_FILE,
    REGISTRY_CLASS,
    RESUME,
    SNAPSHOT_FILES,
    SNAPSHOT_NAMES,
    SUSPEND,
)
