"""What every command has in common: usage, exit codes, and output that cannot be written or shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import DeadlineFixError, cli
from nemo_rl_deadline_fix.__main__ import main
from nemo_rl_deadline_fix.cli import printing
from tests.support.fixture_trees import PINNED

COMMAND = (sys.executable, "-m", "nemo_rl_deadline_fix")
COMMANDS = {
    "help": ("--help",),
    "check": ("check", str(PINNED)),
    "diff": ("diff", str(PINNED)),
    "verify": ("verify",),
    "json": ("verify", "--json"),
}


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and error output of a command."""
    with pytest.raises(SystemExit) as left:
        cli.app(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code, *capsys.readouterr()


def spawn(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with what a shell makes of its output."""
    # Unbuffered, nothing would be left for Python to write at exit.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", f'"$@" {shell}', "bash", *COMMAND, *arguments],
        env=environment | variables,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chek",), "cannot read the arguments of `nemo-rl-deadline-fix`; found: No such command 'chek'"),
        (("check", "--jsn"), "cannot read the arguments of `nemo-rl-deadline-fix check`; found: No such"),
        (("verify", "--budget", "x"), "found: Invalid value for '--budget': 'x' is not a valid float"),
        (("verify", "--budget"), "found: Option '--budget' requires an argument"),
        (("diff", "a", "b"), "found: Got unexpected extra argument (b)"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """What was wrong and where to read on, with exit code 2."""
    code, out, err = ended(capsys, *arguments)

    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith("nemo-rl-deadline-fix: cannot read the arguments of ")
    assert message in line
    assert "--help`" in line.partition("; do this: see `")[2]


@pytest.mark.parametrize("command", ["", "check", "diff", "apply", "verify", "run"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(capsys: pytest.CaptureFixture[str], command: str, option: str) -> None:
    """Both forms work everywhere, on stdout, in 80 columns."""
    code, out, err = ended(capsys, *command.split(), option)

    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: nemo-rl-deadline-fix {command}".rstrip())
    assert max(map(len, out.splitlines())) <= 80


def test_no_command_asks_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The bare name shows what there is, each command's purpose in full."""
    code, out, _ = ended(capsys)

    assert code == 0
    assert all(f"\n  {name} " in out for name in ("check", "diff", "apply", "verify", "run"))
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "offered"),
    [("che", ["check"]), ("verify --over", ["--overlap"]), ("verify --overlap s", ["sync"])],
)
def test_shell_completion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, offered: list[str]
) -> None:
    """Commands, options and values are completed."""
    monkeypatch.setenv("_NEMO_RL_DEADLINE_FIX_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"nemo-rl-deadline-fix {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))

    code, out, _ = ended(capsys)

    assert code == 0
    assert [line.partition(",")[2] for line in out.splitlines()] == offered


@pytest.mark.parametrize("name", ["help", "diff", "verify", "json"])
def test_a_closed_pipe_is_no_finding(name: str) -> None:
    """The reader went away, as `head` does: nothing is said, and the code is that of the signal."""
    done = spawn(*COMMANDS[name], shell="| exec 3<&0; echo ${PIPESTATUS[0]}")

    assert int(done.stdout) == 128 + signal.SIGPIPE
    # What `diff` has to say of the tree is said before.
    assert [
        line for line in done.stderr.splitlines() if str(PINNED) not in line and "patch's" not in line
    ] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line(name: str) -> None:
    """Output that was not written is no result, whatever the result was."""
    done = spawn(*COMMANDS[name], shell=">/dev/full")

    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line == "nemo-rl-deadline-fix: cannot write the output; found: No space left on device"


@pytest.mark.parametrize(("shell", "code"), [(">&-", 1), ("2>&-", 1), (">&- 2>&-", 1), ("2>/dev/full", 1)])
def test_nobody_listens(shell: str, code: int) -> None:
    """With a stream closed, or errors on a full disk, the exit code is still the result's."""
    done = spawn(*COMMANDS["check"], shell=shell)

    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["2>&-", "2>/dev/full"])
def test_an_error_that_nobody_hears(shell: str) -> None:
    """The line is lost, the exit code is not, and the line does not go to stdout instead."""
    done = spawn("check", "/not/there", shell=shell)

    assert (done.returncode, done.stdout) == (2, "")


def test_ctrl_c(tmp_path: Path) -> None:
    """A command that waits for its input ends at once, with 130 and no traceback."""
    fifo = tmp_path / "run.yaml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [*COMMAND, "check", "--config", str(fifo)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Ends when the command opens it to read; then there is nothing to read yet.
    with fifo.open("w"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (cli.INTERRUPTED, "", "")


def test_ctrl_c_while_the_command_line_is_imported(mocker: MockerFixture) -> None:
    """The imports take most of a command's time, so that is when most people press it."""
    mocker.patch.object(cli, "app", side_effect=KeyboardInterrupt)

    with pytest.raises(SystemExit) as left:
        main()

    assert left.value.code == cli.INTERRUPTED


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DeadlineFixError("no", found="x"), "no; found: x"),
        (OSError(5, "Input/output error"), "cannot write the output; found: Input/output error"),
        (PermissionError(13, "Permission denied", "a.py"), "cannot use a.py; found: Permission denied"),
        (RecursionError("deep"), "the input is nested too deeply; found: RecursionError"),
        (KeyError("k"), "internal error; found: KeyError: 'k' (mock.py:"),
    ],
    ids=str,
)
def test_no_error_is_a_traceback_or_a_finding(
    mocker: MockerFixture, capsys: pytest.CaptureFixture[str], error: Exception, message: str
) -> None:
    """Also what nobody thought of ends in one line and with 2, because 1 means a finding."""
    mocker.patch.object(cli, "_run", side_effect=error)

    code, out, err = ended(capsys, "check")

    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"nemo-rl-deadline-fix: {message}")


@pytest.mark.parametrize(
    "source",
    ["x = " + "-" * 100_000 + "1\n", "x = a" + ".a" * 50_000 + "\n", "x = " + "(" * 400 + ")" * 400 + "\n"],
    ids=["operators", "attributes", "brackets"],
)
def test_code_that_is_nested_too_deeply_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """Python's parser gives up on it in several ways; none of them is ours."""
    file = tmp_path / "nemo_rl/algorithms/single_controller.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)

    code, _, err = ended(capsys, "check", str(tmp_path))

    assert code == 2
    assert len(err.splitlines()) <= 1


@pytest.mark.parametrize(
    "name",
    [
        "café ✓.yaml",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("run\udcff.yaml", "bell\a.yaml")),
    ],
)
def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, name: str) -> None:
    """The message is right, in the terminal's encoding, and so is the exit code."""
    file = tmp_path / name
    file.write_text("policy: {}\ngrpo: {}\nasync_rl: {rollout_failure: {nemo_gym: {rollout_timeout_s: 9}}}\n")

    done = spawn("check", "--config", str(file), "--json", PYTHONIOENCODING="latin-1")
    text = spawn("check", "--config", str(file), PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (text.returncode, text.stderr) == (0, "")
    assert json.loads(done.stdout)["config"] == str(file)
    assert text.stdout.isascii()
    assert " = 9 (" in " ".join(text.stdout.split())


@pytest.mark.parametrize("columns", ["0", "1", "40", "60", "x"])
def test_text_folds_at_words_and_fits(columns: str) -> None:
    """No word is broken and no line ends in a blank, whatever the terminal says of its width."""
    done = spawn("verify", COLUMNS=columns, PYTHONIOENCODING="latin-1")

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert done.stderr == ""
    assert "The stall is there before and gone after" in " ".join(done.stdout.split())
    assert [line for line in lines if line != line.rstrip()] == []
    # A table keeps what its columns need at least.
    assert max(map(len, lines)) <= (60 if columns in ("1", "40", "60") else 80)


def test_a_table_keeps_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last column folds below itself; the one that is asked for stands at its right edge."""
    monkeypatch.setenv("COLUMNS", "32")

    printing.show_table([("t", "who", "what"), ("9.0", "RL", "a deadline that fires")], right=0)

    assert capsys.readouterr().out.splitlines() == [
        "  t  who  what",
        "9.0  RL   a deadline that fires",
    ]


def test_colours_are_for_terminals(mocker: MockerFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Styled on a terminal, plain in a pipe and where NO_COLOR is set."""
    printing.show("plain", "bold red")
    mocker.patch.object(sys.stdout, "isatty", return_value=True)
    printing.show("styled", "bold red")
    printing.show("styled", "dim")
    mocker.patch.dict(os.environ, {"NO_COLOR": "1"})
    printing.show("plain", "bold red")

    assert capsys.readouterr().out.splitlines() == [
        "plain",
        "\x1b[31m\x1b[1mstyled\x1b[0m",
        "\x1b[2mstyled\x1b[0m",
        "plain",
    ]
