"""The coordinator line of NeMo RL: it closes a gate of another name for the length of a block.

This package mends nothing there. From some version on NeMo RL holds the clocks in that block itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nemo_rl_deadline_fix.source.manager import manager_sites, takes_names
from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import Rule, Site, State
from nemo_rl_deadline_fix.targets import NOT_MENDED, RESUME, SUSPEND

DISPATCH_GATE = "RolloutDispatchAdmissionGate"
"""Its gate, a class beside the manager; `closed()` keeps it closed for a block."""
MIXED = "a controller of one line of NeMo RL with a manager of another"


def coordinator_sites(controller: Source) -> list[Site]:
    """Every `async with gate.closed():`, and whether it holds the clocks."""
    return [
        _site(controller, f"{owner.name}.{getattr(method, 'name', '')}", node)
        for owner in controller.module.body
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        for node in ast.walk(method)
        if isinstance(node, ast.AsyncWith) and ".closed()" in ast.unparse(node.items[0])
    ]


def coordinator_state(controller: Source, manager: Source, sites: list[Site]) -> tuple[State, str]:
    """The state of a tree with such blocks, and why: affected or fixed only where nothing else is there."""
    held = {site.state for site in sites}
    named, calls = takes_names(manager), len(list(_named_calls(controller.module)))
    one_flag = {site.state for site in manager_sites(manager) if site.required} == {State.AFFECTED}
    if held == {State.AFFECTED} and one_flag and not calls:
        return State.AFFECTED, f"{NOT_MENDED}; update NeMo RL"
    if held == {State.FIXED} and named and calls == 2 * len(sites):
        return State.FIXED, f"by NeMo RL itself ({sites[0].where})"
    mixed = (held == {State.FIXED}) is not named
    found = MIXED if mixed else "clocks that are held in a way that is not known"
    return State.UNKNOWN, f"{sites[0].where}: {found}"


def _site(source: Source, name: str, block: ast.AsyncWith) -> Site:
    """Whether a block holds the clocks by name from its start, and releases them in a `finally`."""
    *before, last = block.body
    released = last.finalbody if isinstance(last, ast.Try) else []
    holds = list(_named_calls(*before, verbs=(SUSPEND,)))
    releases = list(_named_calls(*released, verbs=(RESUME,)))
    state, found, line = State.UNKNOWN, "another way to hold the clocks", block.lineno
    if not any(_named_calls(block)):
        state, found = State.AFFECTED, "no call that stops the clocks"
    elif len(holds) == len(releases) == 1 and _arguments(holds[0]) == _arguments(releases[0]):
        state, found, line = State.FIXED, f"{SUSPEND}({_arguments(holds[0])})", holds[0].lineno
    expected = f"{SUSPEND} under a name in the block, {RESUME} under it in a finally"
    return Site(Rule.DF003, "close", source.name, line, name, state, found, expected)


def _named_calls(*code: ast.AST, verbs: tuple[str, ...] = (SUSPEND, RESUME)) -> Iterator[ast.Call]:
    """Calls that stop or start the clocks under a name."""
    for node in (node for part in code for node in ast.walk(part)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in verbs and _arguments(node):
            yield node


def _arguments(call: ast.Call) -> str:
    return ", ".join(map(ast.unparse, (*call.args, *call.keywords)))
