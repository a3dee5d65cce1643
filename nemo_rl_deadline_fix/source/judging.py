"""Tell which line of NeMo RL a tree is of and which state it is in, without importing or changing it.

One line has the gate that the fix follows, and is judged site by site. Others take no Gym snapshots, or take
them through a coordinator: there a gate of another name is closed for the length of a block, and this package
mends nothing. From some version on NeMo RL holds the clocks in that block itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.controller import controller_sites
from nemo_rl_deadline_fix.source.manager import manager_sites
from nemo_rl_deadline_fix.source.reading import Source, Tree, read_tree
from nemo_rl_deadline_fix.source.sites import Kind, Rule, Site, State, body_of
from nemo_rl_deadline_fix.targets import (
    CONTROLLER_CLASS,
    CONTROLLER_FILE,
    DOCUMENTED,
    GATE,
    MANAGER_CLASS,
    MANAGER_FILE,
    NIGHTLY_FILES,
    NOT_MENDED,
    PREPARE,
    REGISTRY,
    REGISTRY_CLASS,
    RELEASE,
    RESUME,
    SNAPSHOT_FILES,
    SNAPSHOT_NAMES,
    SUSPEND,
)

DISPATCH_GATE = "RolloutDispatchAdmissionGate"
"""The coordinator line's gate, a class beside the manager; `closed()` keeps it closed for a block."""
_LEGACY = "nemo_rl/algorithms/grpo.py"
"""What every NeMo RL has, those without a single controller too."""
_MIXED = "a controller of one line of NeMo RL with a manager of another"


class Line(StrEnum):
    """A line of NeMo RL, by how it takes its Gym snapshots."""

    NONE = "none"
    GATE = "gate"
    COORDINATOR = "coordinator"
    UNKNOWN = "unknown"


_Block = tuple[str, ast.AsyncWith]
Verdict = tuple[Line, State, str, list[Site]]
"""The line, the tree's state, why, and the sites that say so."""


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
        return self.line in (Line.GATE, Line.UNKNOWN)

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
        return _other_line(tree)
    if tree.manager is None:
        return Line.GATE, State.UNKNOWN, f"no {MANAGER_FILE} beside the controller", sites
    if DISPATCH_GATE in tree.manager.text:
        return Line.UNKNOWN, State.UNKNOWN, f"{sites[0].where}: {_MIXED}", sites
    sites = [*manager_sites(tree.manager), *sites]
    return Line.GATE, *_sum(sites), sites


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


def _other_line(tree: Tree) -> Verdict:
    """Judge a tree whose controller does not use the gate that the fix follows."""
    text = tree.controller.text if tree.controller else ""
    if there := [name for name in (PREPARE, RELEASE) if f"def {name}(" in text]:
        return Line.UNKNOWN, State.UNKNOWN, f"a {there[0]} without {GATE}", []
    speaking = [source.name for source in tree.sources if any(name in source.text for name in SNAPSHOT_NAMES)]
    speaking += [name for name in SNAPSHOT_FILES if (tree.root / name).exists()]
    if not speaking:
        return _without_snapshots(tree)
    blocks = list(_closed_blocks(tree.controller)) if tree.controller else []
    if tree.controller and tree.manager and blocks and f"class {DISPATCH_GATE}" in tree.manager.text:
        return _coordinator(tree.controller, tree.manager, blocks)
    nightly = [name for name in speaking if name in NIGHTLY_FILES]
    if nightly and tree.manager and _takes_names(tree.manager):
        detail = f"Gym snapshots in {nightly[0]}: {DOCUMENTED}"
        return Line.COORDINATOR, State.UNKNOWN, detail, []
    others = f" and {len(speaking) - 1} more" if len(speaking) > 1 else ""
    detail = f"Gym snapshots in a form that this package does not know: {speaking[0]}{others}"
    return Line.UNKNOWN, State.UNKNOWN, detail, []


def _without_snapshots(tree: Tree) -> Verdict:
    if missing := tree.left_out((CONTROLLER_FILE, *SNAPSHOT_FILES)):
        detail = f"git leaves {missing[0]} out of this sparse checkout"
        return Line.UNKNOWN, State.UNKNOWN, detail, []
    if tree.controller:
        return Line.NONE, State.NOT_APPLICABLE, f"{CONTROLLER_CLASS} has no Gym snapshot code", []
    if (tree.root / _LEGACY).exists():
        detail = f"no {CONTROLLER_FILE}: a NeMo RL without the single controller takes no Gym snapshots"
        return Line.NONE, State.NOT_APPLICABLE, detail, []
    detail = f"neither {CONTROLLER_FILE} nor {_LEGACY}: not a whole NeMo RL"
    return Line.UNKNOWN, State.UNKNOWN, detail, []


def _coordinator(controller: Source, manager: Source, blocks: list[_Block]) -> Verdict:
    sites = [_site(controller, *block) for block in blocks]
    held = {site.state for site in sites}
    named, calls = _takes_names(manager), len(_named_calls(controller.module))
    one_flag = {site.state for site in manager_sites(manager) if site.required} == {State.AFFECTED}
    if held == {State.AFFECTED} and one_flag and not calls:
        return Line.COORDINATOR, State.AFFECTED, f"{NOT_MENDED}; update NeMo RL", sites
    if held == {State.FIXED} and named and calls == 2 * len(sites):
        return Line.COORDINATOR, State.FIXED, f"by NeMo RL itself ({sites[0].where})", sites
    found = "clocks that are held in a way that is not known"
    if (held == {State.FIXED}) is not named:
        found = _MIXED
    return Line.COORDINATOR, State.UNKNOWN, f"{sites[0].where}: {found}", sites


def _classes(source: Source) -> list[ast.ClassDef]:
    return [node for node in source.module.body if isinstance(node, ast.ClassDef)]


def _closed_blocks(source: Source) -> Iterator[_Block]:
    """Every `async with gate.closed():`, with its method."""
    for owner in _classes(source):
        for method in owner.body:
            for node in ast.walk(method):
                if isinstance(node, ast.AsyncWith) and ".closed()" in ast.unparse(node.items[0]):
                    yield f"{owner.name}.{getattr(method, 'name', '')}", node


def _site(source: Source, name: str, block: ast.AsyncWith) -> Site:
    """Whether a block holds the clocks by name from its start, and releases them in a `finally`."""
    *before, last = block.body
    holds = [call for node in before for call in _named_calls(node, SUSPEND)]
    released = last.finalbody if isinstance(last, ast.Try) else []
    releases = [call for node in released for call in _named_calls(node, RESUME)]
    state, found, line = State.UNKNOWN, "another way to hold the clocks", block.lineno
    if not _named_calls(block):
        state, found = State.AFFECTED, "no call that stops the clocks"
    elif len(holds) == len(releases) == 1 and _arguments(holds[0]) == _arguments(releases[0]):
        state, found, line = State.FIXED, f"{SUSPEND}({_arguments(holds[0])})", holds[0].lineno
    expected = f"{SUSPEND} under a name in the block, {RESUME} under it in a finally"
    return Site(Rule.DF003, Kind.CLOSE, source.name, line, name, state, found, expected)


def _named_calls(code: ast.AST, *verbs: str) -> list[ast.Call]:
    """Calls that stop or start the clocks under a name."""
    return [
        node
        for node in ast.walk(code)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _arguments(node)
        if node.func.attr in (verbs or (SUSPEND, RESUME))
    ]


def _arguments(call: ast.Call) -> str:
    return ", ".join(map(ast.unparse, (*call.args, *call.keywords)))


def _takes_names(manager: Source) -> bool:
    """Whether the manager's methods take a holder, and the registry's keep it."""
    methods = {
        (owner.name, method.name): method
        for owner in _classes(manager)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and len(method.args.args) == 2
    }
    for verb, forward, keep in (("suspend", SUSPEND, "add"), ("resume", RESUME, "remove|discard")):
        kept, passed = methods.get((REGISTRY_CLASS, verb)), methods.get((MANAGER_CLASS, forward))
        if kept is None or passed is None:
            return False
        call = f"self.{REGISTRY}.{verb}({passed.args.args[1].arg})"
        if [ast.unparse(node) for node in body_of(passed)] != [call]:
            return False
        if not re.search(rf"\.({keep})\({kept.args.args[1].arg}\)", ast.unparse(kept)):
            return False
    return True
