"""Tell which state a NeMo RL tree is in, site by site, without importing or changing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.controller import controller_sites
from nemo_rl_deadline_fix.source.lines import DISPATCH_GATE, Line, Verdict, other_line
from nemo_rl_deadline_fix.source.manager import manager_sites
from nemo_rl_deadline_fix.source.reading import Tree, read_tree
from nemo_rl_deadline_fix.source.sites import Site, State
from nemo_rl_deadline_fix.targets import GATE, MANAGER_FILE, PREPARE, RELEASE


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
    def root(self) -> Path:
        """The folder that holds `nemo_rl`."""
        return self.tree.root

    @property
    def controller(self) -> Path | None:
        """The controller's file, or None where the tree has none."""
        return self.tree.controller.path if self.tree.controller else None

    @property
    def manager(self) -> Path | None:
        """The rollout manager's file, or None where the tree has none."""
        return self.tree.manager.path if self.tree.manager else None


def survey(path: Path) -> TreeReport:
    """Find the sites of the fix in a NeMo RL tree and tell the state of each.

    Args:
        path: The checkout's root, its `nemo_rl` folder, an installed package's folder, or one of the
            two files.

    Returns:
        One state per site and one for the tree.

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
        line, state, detail, sites = _verdict(tree)
    except RecursionError:
        raise InvalidInputError(
            f"cannot read the code of {tree.root}", found="expressions nested too deeply"
        ) from None
    return TreeReport(tree, line, state, detail, tuple(sites))


def _verdict(tree: Tree) -> Verdict:
    sites = controller_sites(tree.controller) if tree.controller else []
    if not sites:
        return _without_gate(tree)
    if tree.manager is None:
        return Line.GATE, State.UNKNOWN, f"no {MANAGER_FILE} beside the controller", sites
    if DISPATCH_GATE in tree.manager.text:
        found = "a controller of one line of NeMo RL with a manager of another"
        return Line.UNKNOWN, State.UNKNOWN, f"{sites[0].where}: {found}", sites
    sites = [*manager_sites(tree.manager), *sites]
    return Line.GATE, *_sum(sites), sites


def _without_gate(tree: Tree) -> Verdict:
    text = tree.controller.text if tree.controller else ""
    if there := [name for name in (PREPARE, RELEASE) if f"def {name}(" in text]:
        return Line.UNKNOWN, State.UNKNOWN, f"a {there[0]} without {GATE}", []
    return other_line(tree)


def _sum(sites: list[Site]) -> tuple[State, str]:
    required = [site for site in sites if site.required]
    states = {site.state for site in required}
    if len(states) == 1 and State.UNKNOWN not in states:
        return states.pop(), ""
    state = State.UNKNOWN if State.UNKNOWN in states else State.PARTLY_FIXED
    odd = State.UNKNOWN if state is State.UNKNOWN else State.AFFECTED
    first, *others = [site for site in required if site.state is odd]
    more = f", and {len(others)} more" if others else ""
    return state, f"{first.where}: {first.found}{more}"
