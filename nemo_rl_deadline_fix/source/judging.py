"""Tell which line of NeMo RL a tree is of and which state it is in, without importing or changing it.

One line has the gate that the fix follows, and is judged site by site. Others take no Gym snapshots, or take
them through a coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.controller import controller_sites
from nemo_rl_deadline_fix.source.coordinator import (
    DISPATCH_GATE,
    MIXED,
    coordinator_sites,
    coordinator_state,
)
from nemo_rl_deadline_fix.source.manager import manager_sites, takes_names
from nemo_rl_deadline_fix.source.reading import Source, Tree, read_tree
from nemo_rl_deadline_fix.source.sites import Site, State
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_FILE,
    DOCUMENTED,
    MANAGER_FILE,
    METHODS,
    NIGHTLY_FILES,
    SNAPSHOT_FILES,
    SNAPSHOT_NAMES,
)

_LEGACY = "nemo_rl/algorithms/grpo.py"
"""What every NeMo RL has, those without a single controller too."""


class Line(StrEnum):
    """A line of NeMo RL, by how it takes its Gym snapshots."""

    NONE = "none"
    GATE = "gate"
    COORDINATOR = "coordinator"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TreeReport:
    """What a tree is to the fix.

    Attributes:
        tree: The files that were read.
        line: The line of NeMo RL that it is of. Only those with the gate are changed.
        state: The state of the tree as a whole.
        detail: Why, in one readable line; "" where the state says it all.
        sites: Every site that was looked at, in the order of rules and lines.
    """

    tree: Tree
    line: Line
    state: State
    detail: str
    sites: tuple[Site, ...]

    @property
    def playable(self) -> bool:
        """Whether `verify --rl` may tell what cannot be told from the source."""
        return self.line is Line.GATE and self.tree.manager is not None


def survey(path: Path) -> TreeReport:
    """Find the sites of the fix in a NeMo RL tree and tell the state of each.

    Args:
        path: The checkout's root, its `nemo_rl` folder, an installed package's folder, or one of the
            two files.

    Raises:
        InvalidInputError: There is no tree, or a file of it cannot be read or parsed.
    """
    return examine(read_tree(path))


def examine(tree: Tree) -> TreeReport:
    """As `survey`, for a tree that is read already.

    Raises:
        InvalidInputError: A file of it cannot be parsed.
    """
    try:
        line, state, detail, sites = _judge(tree)
    except RecursionError:
        raise InvalidInputError(
            f"cannot read the code of {tree.root}", found="expressions nested too deeply"
        ) from None
    return TreeReport(tree, line, state, detail, tuple(sites))


_Judged = tuple[Line, State, str, list[Site]]


def _judge(tree: Tree) -> _Judged:
    if tree.controller and (sites := controller_sites(tree.controller)):
        return _with_the_gate(tree.manager, sites)
    if speaking := _speaking_of_snapshots(tree):
        return _in_another_form(tree, speaking)
    return _without_snapshots(tree)


def _with_the_gate(manager: Source | None, sites: list[Site]) -> _Judged:
    if manager is None:
        return Line.GATE, State.UNKNOWN, f"no {MANAGER_FILE} beside the controller", sites
    if DISPATCH_GATE in manager.text:
        return Line.UNKNOWN, State.UNKNOWN, f"{sites[0].where}: {MIXED}", sites
    sites = [*manager_sites(manager), *sites]
    return Line.GATE, *_sum(sites), sites


def _in_another_form(tree: Tree, speaking: list[str]) -> _Judged:
    controller, manager = tree.controller, tree.manager
    if controller and manager and f"class {DISPATCH_GATE}" in manager.text:
        both = any(f"def {name}(" in controller.text for name in METHODS)
        if not both and (sites := coordinator_sites(controller)):
            return Line.COORDINATOR, *coordinator_state(controller, manager, sites), sites
    nightly = [name for name in speaking if name in NIGHTLY_FILES]
    if nightly and manager and takes_names(manager):
        detail = f"Gym snapshots in {nightly[0]}: {DOCUMENTED}"
        return Line.COORDINATOR, State.UNKNOWN, detail, []
    others = f" and {len(speaking) - 1} more" if len(speaking) > 1 else ""
    detail = f"Gym snapshots in a form that this package does not know: {speaking[0]}{others}"
    return Line.UNKNOWN, State.UNKNOWN, detail, []


def _sum(sites: list[Site]) -> tuple[State, str]:
    """The state of a tree that has the gate, and the first place that is not as the others."""
    required = [site for site in sites if site.required]
    states = {site.state for site in required}
    if len(states) == 1 and State.UNKNOWN not in states:
        return states.pop(), ""
    state, odd = State.PARTLY_FIXED, State.AFFECTED
    if State.UNKNOWN in states:
        state = odd = State.UNKNOWN
    first, *others = [site for site in required if site.state is odd]
    more = f", and {len(others)} more" if others else ""
    return state, f"{first.where}: {first.found}{more}"


def _speaking_of_snapshots(tree: Tree) -> list[str]:
    """The files that tell of Gym snapshots, in whatever form."""
    sources = tree.sources.values()
    speaking = [source.name for source in sources if any(name in source.text for name in SNAPSHOT_NAMES)]
    return speaking + [name for name in SNAPSHOT_FILES if (tree.root / name).exists()]


def _without_snapshots(tree: Tree) -> _Judged:
    state, line = State.UNKNOWN, Line.UNKNOWN
    listed = tree.git("ls-files", "-t", "--", CONTROLLER_FILE, *SNAPSHOT_FILES).splitlines()
    if missing := [name.removeprefix("S ") for name in listed if name.startswith("S ")]:
        return line, state, f"git leaves {missing[0]} out of this sparse checkout", []
    if not tree.controller and not (tree.root / _LEGACY).exists():
        return line, state, f"neither {CONTROLLER_FILE} nor {_LEGACY}: not a whole NeMo RL", []
    there = f"class {CONTROLLER_CLASS}" in (tree.controller.text if tree.controller else "")
    detail = f"{CONTROLLER_CLASS} has no Gym snapshot code" if there else f"there is no {CONTROLLER_CLASS}"
    if not tree.controller:
        detail = f"no {CONTROLLER_FILE}: a NeMo RL without the single controller takes no Gym snapshots"
    return Line.NONE, State.NOT_APPLICABLE, detail, []
