"""`check --config`: print what a run's config says about the stall."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_rl_deadline_fix.exposure import Exposure, assess, shown
from nemo_rl_deadline_fix.runconfig import load

SCHEMA_VERSION = 1
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
        print(json.dumps(_plain(_as_dict(config, exposure)), indent=2, default=str))
    else:
        _print(exposure)
    return int(exposure.counts)


def _as_dict(config: Path, exposure: Exposure) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "config": str(config),
        "exposed": exposure.exposed,
        "values": [dataclasses.asdict(setting) for setting in exposure.values],
        "findings": [dataclasses.asdict(finding) for finding in exposure.findings],
    }


def _plain(value: Any) -> Any:
    # JSON has no infinity and no NaN; a config may.
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _print(exposure: Exposure) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width of its own; paths should survive a grep.
        console.width = max(console.width, 160)
    verdict = exposure.verdict[0].upper() + exposure.verdict[1:] + "."
    console.print(Text(verdict, style="bold"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("key", "value", "origin"):
        table.add_column(heading, overflow="fold")
    for setting in exposure.values:
        style = "dim" if setting.origin == "default" else ""
        table.add_row(
            Text(setting.key), Text(shown(setting.value)), Text(_ascii(setting.origin)), style=style
        )
    console.print()
    console.print(table)
    for finding in exposure.findings:
        console.print()
        head = Text.assemble(
            (f"{finding.id} {finding.severity}", _COLOURS[finding.severity]),
            f" {_ascii(finding.key)} = {shown(finding.value)} ({_ascii(finding.origin)})",
        )
        console.print(head, soft_wrap=True)
        console.print(Text(f"  {_ascii(finding.message)}"), soft_wrap=True)
        console.print(Text(f"  do this: {_ascii(finding.advice)}"), soft_wrap=True)


def _ascii(text: str) -> str:
    # A path or a key may hold what a terminal cannot show, or should not run.
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
