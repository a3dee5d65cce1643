"""README's commands are run, and what it shows as output is output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines()
]
OURS = [command for command in COMMANDS if command.startswith("nemo-rl-deadline-fix")]

# In README's order, because the later ones find what the earlier ones did.
EXIT_CODES = {
    "check path/to/NeMo-RL": 1,
    "run examples/run_grpo_single_controller.py --config run.yaml": 0,
    "verify": 0,
    "check --config run.yaml ++async_rl.rollout_failure.nemo_gym.rollout_timeout_s=180": 1,
    "diff path/to/NeMo-RL": 1,
    "apply --dry-run path/to/NeMo-RL": 0,
    "apply path/to/NeMo-RL": 0,
    "verify --rl path/to/NeMo-RL": 0,
    "apply --revert path/to/NeMo-RL": 0,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what README's commands name: a config, a script, a checkout."""
    place = tmp_path_factory.mktemp("readme")
    (place / "run.yaml").write_text(
        "async_rl:\n  rollout_failure:\n    nemo_gym:\n      rollout_timeout_s: null\n"
        "rollout_checkpointing:\n  snapshot_attempt_interval_s: 900\n"
        "  gym:\n    participant_checkpointing_enabled: true\n"
    )
    (place / "examples").mkdir()
    (place / "examples/run_grpo_single_controller.py").write_text("import sys\nprint(sys.argv[1:])\n")
    shutil.copytree(ROOT / "tests/support/trees/pinned", place / "path/to/NeMo-RL")
    return place


def shell(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """One line of README in a shell, with this environment's commands."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        shell=True,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, "COLUMNS": "80"},
    )


def test_every_command_of_ours_does_what_readme_says(place: Path) -> None:
    """Each `nemo-rl-deadline-fix` line of README runs, in README's order, with the exit code it promises."""
    found: dict[str, int] = {}
    for command in OURS:
        done = shell(command, place)
        assert "Traceback" not in done.stderr, done.stderr
        found[command.removeprefix("nemo-rl-deadline-fix ")] = done.returncode
        if " run " in command:
            assert done.stdout == "['--config', 'run.yaml']\n"

    assert len(found) == len(OURS)
    assert found == EXIT_CODES


def test_every_other_command_is_ci_s() -> None:
    """What sets up, checks and tests the project is what CI runs."""
    ci = (ROOT / ".ci/run").read_text().replace("--quiet ", "")
    for command in COMMANDS:
        if command not in OURS:
            for part in command.split(" && "):
                assert re.search(rf"(^ *|&& ){re.escape(part)}( |$)", ci, re.MULTILINE), part


def test_what_readme_shows_of_verify_is_how_it_ends(place: Path) -> None:
    """The summary shown is today's, line for line."""
    printed = shell("nemo-rl-deadline-fix verify", place).stdout
    (shown,) = [text for kind, text in BLOCKS if kind == "text" and "snapshots saved" in text]

    assert printed.endswith(f"\n\n{shown}")


def test_files_and_links_of_readme_are_there() -> None:
    """Every relative link of README leads to a file."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]

    assert ".github/stall-and-fix.svg" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
