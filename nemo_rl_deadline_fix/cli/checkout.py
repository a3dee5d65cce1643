"""`check`, `diff` and `apply`: the state of a NeMo RL tree, the fix as a patch, and the fix written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.source.locate import Site, State, TreeReport, survey
from nemo_rl_deadline_fix.source.sites import Rule

SCHEMA_VERSION = 1
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

TreePath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="A NeMo RL checkout, its nemo_rl folder, an installed one, or one of the two files.",
    ),
]
Without = Annotated[
    list[Rule] | None,
    typer.Option(metavar="RULE", help="Leave out an optional rule (DF004: the edge of nothing left)."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    # Hydra's overrides begin with +, ++ or ~, which are no options here.
    app.command()(check)
    app.command()(diff)
    app.command()(apply)


def check(
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", help="As for diff; by default the current folder. Not with --config."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Only with --config: the run's overrides."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judge a run's YAML config instead of a tree."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Tell which state a NeMo RL tree is in, place by place; or with --config whether a run is exposed.

    The tree is parsed, never imported. Exit code 0: fixed, or not applicable; 1: affected, or partly
    fixed; 2: could not decide.
    """
    given = [] if path is None else [path, *(overrides or ())]
    if config is not None:
        from nemo_rl_deadline_fix.cli.exposure import check_config

        raise typer.Exit(check_config(config, given, as_json))
    if overrides:
        raise InvalidInputError(
            "check takes one PATH", found=" ".join(given), supported="KEY=VALUE together with --config FILE"
        )
    report = survey(Path(path if path is not None else "."))
    if as_json:
        print(json.dumps(_as_dict(report), indent=2))
    else:
        _print(report)
    raise typer.Exit(EXIT_CODES[report.state])


def diff(path: TreePath = Path(), without: Without = None) -> None:
    """Print the fix for a tree as a patch that `git apply` and `patch -p1` accept at the tree's root.

    Exit code 0: nothing to change; 1: the patch on stdout; 2: could not be made.
    """
    from nemo_rl_deadline_fix.source.checkout import plan

    planned = plan(path, rules=_rules(without))
    if not planned.changes:
        _say(f"nothing to change: {planned.report.state}{_reason(planned.report)}")
        raise typer.Exit(0)
    # As bytes: a patch keeps the line ends and the encoding of the files it is for.
    sys.stdout.flush()
    sys.stdout.buffer.write(planned.patch)
    sys.stdout.buffer.flush()
    raise typer.Exit(1)


def apply(
    path: TreePath = Path(),
    without: Without = None,
    revert: Annotated[bool, typer.Option("--revert", help="Take out exactly what apply puts in.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written; write nothing.")
    ] = False,
) -> None:
    """Write the fix into a tree: all files or none, and nothing outside of the tree.

    Exit code 0: written, or nothing to do; 2: could not be done, and nothing was changed.
    """
    from nemo_rl_deadline_fix.source.checkout import plan, plan_revert, write

    if revert and without:
        raise InvalidInputError("--revert takes out all rules that are there", found="--without")
    planned = plan_revert(path) if revert else plan(path, rules=_rules(without))
    if not planned.changes:
        print(
            f"nothing to {'revert' if revert else 'change'}: {planned.report.state}{_reason(planned.report)}"
        )
        return
    if not dry_run:
        write(planned.changes)
    verb = "revert" if revert else "fix"
    done = f"would {verb}" if dry_run else {"fix": "fixed", "revert": "reverted"}[verb]
    for change in planned.changes:
        print(f"{done} {_shown(change.source.path)}")


def _rules(without: list[Rule] | None) -> frozenset[Rule]:
    needed = [rule for rule in without or () if rule not in _OPTIONAL_RULES]
    if needed:
        raise InvalidInputError(
            f"{' and '.join(needed)} cannot be left out",
            found="a rule that the fix needs",
            supported=f"--without {' or '.join(_OPTIONAL_RULES)}",
        )
    return frozenset(Rule) - frozenset(without or ())


def _reason(report: TreeReport) -> str:
    return f" ({report.detail})" if report.detail else ""


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _shown(file: Path) -> str:
    # From here where that is shorter, so that a terminal or an editor can follow it.
    try:
        here = Path.cwd()
    except OSError:
        # Somebody deleted the folder that we stand in.
        return _printable(file)
    return _printable(file.relative_to(here) if file.is_relative_to(here) else file)


def _printable(path: Path) -> str:
    # A file name may hold what the terminal's encoding does not.
    encoding = sys.stdout.encoding or "utf-8"
    return str(path).encode(encoding, "backslashreplace").decode(encoding)


def _print(report: TreeReport) -> None:
    print(f"{_printable(report.root)}: {report.state}: {report.detail or _MEANING[report.state]}")
    for site in report.sites:
        rule = site.rule or "-"
        optional = "" if site.required or site.rule is None else ", optional"
        print(f"{_shown(site.file)}:{site.line}: {rule} {site.state}{optional}: {site.name}: {site.found}")
        if site.state in (State.AFFECTED, State.UNKNOWN):
            print(f"    expected: {site.expected}")
    if report.state in (State.AFFECTED, State.PARTLY_FIXED):
        _say("see `nemo-rl-deadline-fix diff` for the change, `nemo-rl-deadline-fix apply` to make it")


def _as_dict(report: TreeReport) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
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
