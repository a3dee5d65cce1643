"""`check --config`: print what a run's config says about the stall."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from nemo_rl_deadline_fix.cli.printing import print_json, printable, show
from nemo_rl_deadline_fix.config.findings import Exposure, Finding, assess, shown
from nemo_rl_deadline_fix.config.loading import DEFAULT, load

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def check_config(config: Path, overrides: list[str], as_json: bool) -> int:
    """Tell on stdout whether a run of NeMo RL is exposed to the stall, and what to change.

    Args:
        config: The run's YAML.
        overrides: Hydra-style overrides, as NeMo RL's command line takes them.
        as_json: One JSON object instead of text.

    Returns:
        0 if there is nothing to change (an info is not counted), 1 if there is an error or a warning, 2 if
        a wrong value hides whether the run is exposed.

    Raises:
        InvalidInputError: It could not be decided; exit code 2 at the edge.
    """
    exposure = assess(load(config, overrides))
    if as_json:
        print_json(_as_dict(config, exposure))
    else:
        _print(exposure)
    return exposure.exit_code


def _as_dict(config: Path, exposure: Exposure) -> dict[str, Any]:
    return {
        "config": str(config),
        "exposed": exposure.exposed,
        "values": [dataclasses.asdict(setting) for setting in exposure.values],
        "findings": [_finding(finding) for finding in exposure.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    # Key, value and origin stand among the others, as in "values".
    flat = dataclasses.asdict(finding)
    return {"id": flat.pop("id"), "severity": flat.pop("severity"), **flat.pop("setting"), **flat}


def _print(exposure: Exposure) -> None:
    _show(f"{exposure.verdict[0].upper()}{exposure.verdict[1:]}.", "bold")
    show()
    for setting in exposure.values:
        if setting.origin != DEFAULT:
            _show(f"{setting.key} = {shown(setting.value)} ({setting.origin})")
    for finding in exposure.findings:
        show()
        _show(f"{finding.id} {finding.severity}: {finding.message}", _COLOURS[finding.severity])
        _show(f"  here: {finding.why}")
        _show(f"  then: {finding.consequence}")
        _show(f"  do this: {finding.advice}")


def _show(text: str, style: str = "") -> None:
    show(printable(text), style, later="    ")
