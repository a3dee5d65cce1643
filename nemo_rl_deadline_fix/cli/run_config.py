"""`check --config`: print what a run's config says about the stall."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from nemo_rl_deadline_fix.cli.printing import console, print_json, printable
from nemo_rl_deadline_fix.config.exposure import Exposure, assess, shown
from nemo_rl_deadline_fix.config.runconfig import load

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def check_config(config: Path, overrides: list[str], as_json: bool) -> int:
    """Tell on stdout whether a run of NeMo RL is exposed to the stall, and what to change.

    Args:
        config: The run's YAML.
        overrides: Hydra-style overrides, as NeMo RL's command line takes them.
        as_json: One JSON object instead of text.

    Returns:
        0 if there is nothing to change (an info is not counted), 1 if there is an error or a warning.

    Raises:
        InvalidInputError: It could not be decided; exit code 2 at the edge.
    """
    exposure = assess(load(config, overrides))
    if as_json:
        print_json(_as_dict(config, exposure))
    else:
        _print(exposure)
    return int(exposure.counts)


def _as_dict(config: Path, exposure: Exposure) -> dict[str, Any]:
    return {
        "config": str(config),
        "exposed": exposure.exposed,
        "values": [dataclasses.asdict(setting) for setting in exposure.values],
        "findings": [dataclasses.asdict(finding) for finding in exposure.findings],
    }


def _print(exposure: Exposure) -> None:
    out = console()
    verdict = exposure.verdict[0].upper() + exposure.verdict[1:] + "."
    out.print(Text(verdict, style="bold"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("key", "value", "origin"):
        table.add_column(heading, overflow="fold")
    for setting in exposure.values:
        style = "dim" if setting.origin == "default" else ""
        table.add_row(
            Text(setting.key), Text(shown(setting.value)), Text(printable(setting.origin)), style=style
        )
    out.print()
    out.print(table)
    for finding in exposure.findings:
        out.print()
        head = Text.assemble(
            (f"{finding.id} {finding.severity}", _COLOURS[finding.severity]),
            f" {printable(finding.key)} = {shown(finding.value)} ({printable(finding.origin)})",
        )
        out.print(head, soft_wrap=True)
        out.print(Text(f"  {printable(finding.message)}"), soft_wrap=True)
        out.print(Text(f"  do this: {printable(finding.advice)}"), soft_wrap=True)
