"""`check`, `diff` and `apply`: the state of a NeMo RL tree, the fix as a patch, and the fix written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nemo_rl_deadline_fix.cli.printing import print_json, printable, say
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.locate import Site, State, TreeReport, survey
from nemo_rl_deadline_fix.source.sites import Rule

EXIT_CODES = {
    State.FIXED: 0,
    State.NOT_APPLICABLE: 0,
    State.AFFECTED: 1,
    State.PARTLY_FIXED: 1,
    State.UNKNOWN: 2,
}
_MEANING = {
    State.FIXED: "the rollout clocks stop while a Gym snapshot keeps admission closed",
    State.AFFECTED: "a slow Gym snapshot can make RL give up a parked rollout and block later snapshots",
    State.PARTLY_FIXED: "some places of the fix are missing",
    State.NOT_APPLICABLE: "nothing to fix",
    State.UNKNOWN: "could not decide",
}
_OPTIONAL_RULES = (Rule.DF004,)

_PATH_HELP = "PATH: a NeMo RL checkout, its nemo_rl folder, an installed one, or one of the two files."
_path = click.argument("path", metavar="[PATH]", default=".", type=click.Path(path_type=Path))
_without = click.option(
    "--without",
    multiple=True,
    type=click.Choice([rule.value for rule in Rule]),
    metavar="RULE",
    help="Leave out an optional rule (DF004: the edge of nothing left).",
)


@click.command(epilog=_PATH_HELP + " By default the current folder.")
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
    report = survey(Path(arguments[0] if arguments else "."))
    if as_json:
        print_json(_as_dict(report))
    else:
        _print(report)
    return EXIT_CODES[report.state]


@click.command(epilog=_PATH_HELP)
@_path
@_without
def diff(path: Path, without: tuple[str, ...]) -> int:
    """Print the fix for a tree as a patch that `git apply` accepts at the tree's root.

    Exit code 0: nothing to change; 1: the patch on stdout; 2: could not be made.
    """
    from nemo_rl_deadline_fix.source.checkout import plan

    planned = plan(path, rules=_rules(without))
    if not planned.changes:
        say(f"nothing to change: {planned.report.state}{_reason(planned.report)}")
        return 0
    # As bytes: a patch keeps the line ends and the encoding of the files it is for.
    sys.stdout.flush()
    sys.stdout.buffer.write(planned.patch)
    sys.stdout.buffer.flush()
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
        nothing = f"nothing to {'revert' if revert else 'change'}"
        print(f"{nothing}: {planned.report.state}{_reason(planned.report)}")
        return 0
    if not dry_run:
        write(planned.changes)
    verb = "revert" if revert else "fix"
    done = f"would {verb}" if dry_run else {"fix": "fixed", "revert": "reverted"}[verb]
    for change in planned.changes:
        print(f"{done} {_shown(change.source.path)}")
    return 0


def _rules(without: tuple[str, ...]) -> frozenset[Rule]:
    left_out = {Rule(name) for name in without}
    needed = sorted(left_out.difference(_OPTIONAL_RULES))
    if needed:
        raise InvalidInputError(
            f"{' and '.join(needed)} cannot be left out",
            found="a rule that the fix needs",
            supported=f"--without {' or '.join(_OPTIONAL_RULES)}",
        )
    return frozenset(Rule) - left_out


def _reason(report: TreeReport) -> str:
    return f" ({report.detail})" if report.detail else ""


def _shown(file: Path) -> str:
    # From here where that is shorter, so that a terminal or an editor can follow it.
    try:
        here = Path.cwd()
    except OSError:
        # Somebody deleted the folder that we stand in.
        return printable(str(file))
    return printable(str(file.relative_to(here) if file.is_relative_to(here) else file))


def _print(report: TreeReport) -> None:
    print(f"{printable(str(report.root))}: {report.state}: {report.detail or _MEANING[report.state]}")
    for site in report.sites:
        rule = site.rule or "-"
        optional = "" if site.required or site.rule is None else ", optional"
        print(f"{_shown(site.file)}:{site.line}: {rule} {site.state}{optional}: {site.name}: {site.found}")
        if site.state in (State.AFFECTED, State.UNKNOWN):
            print(f"    expected: {site.expected}")
    if report.state in (State.AFFECTED, State.PARTLY_FIXED):
        say("see `nemo-rl-deadline-fix diff` for the change, `nemo-rl-deadline-fix apply` to make it")


def _as_dict(report: TreeReport) -> dict[str, Any]:
    return {
        "root": str(report.root),
        "state": report.state,
        "detail": report.detail,
        "files": [str(file) for file in (report.controller, report.manager) if file is not None],
        "sites": [_site(site, report.root) for site in report.sites],
    }


def _site(site: Site, root: Path) -> dict[str, Any]:
    return {
        "rule": site.rule,
        "kind": site.kind,
        "file": site.where(root).rpartition(":")[0],
        "line": site.line,
        "name": site.name,
        "state": site.state,
        "required": site.required,
        "expected": site.expected,
        "found": site.found,
    }
