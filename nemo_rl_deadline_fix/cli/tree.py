"""`check`, `diff` and `apply`: the state of a NeMo RL tree, the fix as a patch, and the fix written."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from nemo_rl_deadline_fix.cli.printing import print_json, printable, say, show
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source import OPTIONAL, Line, Rule, State, TreeReport, survey

EXIT_CODES = {
    State.FIXED: 0,
    State.NOT_APPLICABLE: 0,
    State.AFFECTED: 1,
    State.PARTLY_FIXED: 1,
    State.UNKNOWN: 2,
}
_MEANING = {
    State.FIXED: "the rollout clocks stop while a Gym snapshot keeps admission closed",
    State.AFFECTED: "a slow Gym snapshot makes RL give up on parked rollouts, and blocks later snapshots",
}
_SITE_KEYS = ("rule", "kind", "file", "line", "name", "state", "required", "expected", "found")
_COLOURS = ("green", "red", "yellow")
"""By exit code."""

_PATH_HELP = (
    "PATH: a NeMo RL checkout, its nemo_rl folder, an installed one, or one of the two files. "
    "By default the current folder."
)
_path = click.argument("path", metavar="[PATH]", default=".", type=click.Path(path_type=Path))
_without = click.option(
    "--without",
    multiple=True,
    type=click.Choice([rule.value for rule in OPTIONAL]),
    metavar="RULE",
    help="Leave out an optional rule (DF004: the edge of nothing left).",
)


@click.command(epilog=_PATH_HELP)
@click.argument("arguments", metavar="[PATH | KEY=VALUE ...]", nargs=-1)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Judge a run's YAML config instead of a tree; KEY=VALUE are the run's overrides.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check(arguments: tuple[str, ...], config: Path | None, as_json: bool) -> int:
    """Tell which state a NeMo RL tree is in, place by place; or with --config whether a run is exposed.

    The tree is parsed, never imported. Exit code 0: fixed, or not applicable; 1: affected, or partly
    fixed; 2: could not decide.
    """
    if config is not None:
        from nemo_rl_deadline_fix.cli.run_config import check_config

        if paths := [given for given in arguments if "=" not in given and not given.startswith("~")]:
            raise InvalidInputError(
                f"check takes a PATH or --config, not both: {paths[0]} and --config {config}",
                supported="KEY=VALUE, +KEY=VALUE, ++KEY=VALUE and ~KEY together with --config FILE",
            )
        return check_config(config, list(arguments), as_json)
    if len(arguments) > 1:
        raise InvalidInputError(
            "check takes one PATH",
            found=" ".join(arguments),
            supported="KEY=VALUE together with --config FILE",
        )
    path = Path(arguments[0] if arguments else ".")
    report = survey(path)
    if as_json:
        print_json(_as_dict(report))
    else:
        _print(report, path)
    return EXIT_CODES[report.state]


@click.command(epilog=_PATH_HELP)
@_path
@_without
def diff(path: Path, without: tuple[str, ...]) -> int:
    """Print the fix for a tree as a patch that `git apply` accepts at the tree's root.

    Where the tree is a folder of a larger git repository, the patch's paths begin at the top of that, as in
    git's own patches, and `git apply` accepts it anywhere in it.

    Exit code 0: nothing to change; 1: the patch on stdout; 2: could not be made.
    """
    from nemo_rl_deadline_fix.source.checkout import plan

    planned = plan(path, rules=_rules(without))
    if not planned.changes:
        say(_nothing_to("change", planned.report))
        return 0
    folder = planned.report.tree.git("rev-parse", "--show-prefix")
    # As bytes: a patch keeps the line ends and the encoding of the files it is for.
    sys.stdout.flush()
    sys.stdout.buffer.write(planned.patch(folder))
    sys.stdout.buffer.flush()
    if folder:
        say(
            f"{printable(folder)} is a folder of a larger git repository: the patch's paths begin at the top "
            "of that; `git apply` takes it anywhere in there, `patch -p1` at the top"
        )
    return 1


@click.command(epilog=_PATH_HELP)
@_path
@_without
@click.option("--revert", is_flag=True, help="Take out exactly what apply puts in.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
def apply(path: Path, without: tuple[str, ...], revert: bool, dry_run: bool) -> int:
    """Write the fix into a tree: all files or none, and nothing outside of the tree.

    Exit code 0: written, or nothing to do; 2: could not be done, and nothing was changed.
    """
    from nemo_rl_deadline_fix.source.checkout import plan, plan_revert, write

    if revert and without:
        raise InvalidInputError("--revert takes out all rules that are there", found="--without")
    planned = plan_revert(path) if revert else plan(path, rules=_rules(without))
    if not planned.changes:
        show(_nothing_to("revert" if revert else "change", planned.report))
        return 0
    if not dry_run:
        write(planned.changes)
    verb = "revert" if revert else "fix"
    done = f"would {verb}" if dry_run else {"fix": "fixed", "revert": "reverted"}[verb]
    for source, _ in planned.changes:
        print(f"{done} {source.name}")
    return 0


def _rules(without: tuple[str, ...]) -> frozenset[Rule]:
    return frozenset(Rule).difference(without)


def _nothing_to(do: str, report: TreeReport) -> str:
    return f"nothing to {do}: {report.state}" + (f" ({report.detail})" if report.detail else "")


def _next(report: TreeReport, path: Path) -> str:
    """The command that comes next, as it can be pasted; "" where there is none."""
    if report.state is State.UNKNOWN and report.playable:
        command = "verify --rl"
    elif report.state in (State.AFFECTED, State.PARTLY_FIXED) and report.line is Line.GATE:
        command = "apply"
    else:
        return ""
    return f"nemo-rl-deadline-fix {command} {shlex.quote(str(path))}"


def _print(report: TreeReport, path: Path) -> None:
    verdict = f"{report.state}: {report.detail or _MEANING.get(report.state, '')}"
    show(printable(verdict), f"bold {_style(report.state)}")
    if command := _next(report, path):
        # Not folded, so that it can be pasted.
        print(f"    {printable(command)}")
    if report.sites:
        print(f"\nin {printable(str(report.tree.root))}:")
    for site in report.sites:
        rule = f"{site.rule} " if site.rule else ""
        optional = ", optional" if site.rule in OPTIONAL else ""
        head = f"{site.where}: {rule}{site.state}{optional}:"
        show(printable(f"{head} {site.name}: {site.found}"), _style(site.state), later="    ")
        if site.state in (State.AFFECTED, State.UNKNOWN):
            show(printable(f"expected: {site.expected}"), first="    ", later="      ")


def _style(state: State) -> str:
    return _COLOURS[EXIT_CODES[state]] if state in EXIT_CODES else "dim"


def _as_dict(report: TreeReport) -> dict[str, Any]:
    return {
        "root": str(report.tree.root),
        "line": report.line,
        "state": report.state,
        "detail": report.detail,
        "files": [str(source.path) for source in report.tree.sources.values()],
        "sites": [{key: getattr(site, key) for key in _SITE_KEYS} for site in report.sites],
    }
