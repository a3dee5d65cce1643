"""`run SCRIPT`: the script must not be able to tell that it was not Python that ran it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from nemo_rl_deadline_fix import InvalidInputError, launching

MODULE = ("-m", "nemo_rl_deadline_fix", "run")

# What a script can see of how it was started.
MIRROR = """
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps({
    "name": __name__,
    "argv": sys.argv,
    "path": sys.path,
    "file": os.path.normpath(__file__),
    "package": __package__ or "",
    "spec": __spec__ and __spec__.name,
    "main is this": main.__dict__ is globals(),
    "doc": __doc__,
    "cwd": os.getcwd(),
}))
"""


def python(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script through the launcher in a folder."""
    return python(folder, *MODULE, *arguments, **env)


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder with one and the same script in every form that Python can run."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "script.py").write_text(MIRROR)
    (tmp_path / "sub" / "script").write_text(MIRROR)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "script")
    for folder in ("folder", "package"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__main__.py").write_text(MIRROR)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "module.py").write_text(MIRROR)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", MIRROR)
    return tmp_path


FORMS = [
    ["script.py"],
    ["./script.py"],
    ["sub/script"],
    ["link.py"],
    ["folder"],
    ["archive.zip"],
    ["-m", "package"],
    ["-m", "package.module"],
    ["-m", "script"],
]


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_as_under_python(scripts, form):
    """Name, arguments, path, file, package and spec are what they are without the launcher."""
    arguments = ["--help", "-x", "++key=v", "-m", "run", "a b", ""]
    expected = python(scripts, *form, *arguments)
    done = run(scripts, *form, *arguments)
    assert done.stderr == ""
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads(expected.stdout)


@pytest.mark.parametrize("form", [["script.py"], ["folder"], ["-m", "package"]], ids=" ".join)
def test_safe_path(scripts, form):
    """Where Python was told to put nothing in front of the path, neither does the launcher."""
    expected = python(scripts, *form, PYTHONPATH=str(scripts), PYTHONSAFEPATH="1")
    done = run(scripts, *form, PYTHONPATH=str(scripts), PYTHONSAFEPATH="1")
    assert json.loads(done.stdout)["path"] == json.loads(expected.stdout)["path"]


def test_the_installed_command(scripts):
    """The console command does the same as `python -m`."""
    command = Path(sys.executable).with_name("nemo-rl-deadline-fix")
    expected = python(scripts, "script.py", "--help")
    done = subprocess.run(
        [command, "run", "script.py", "--help"], cwd=scripts, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads(expected.stdout)


ENDS = [
    "pass",
    "sys.exit()",
    "sys.exit(7)",
    "sys.exit('a reason')",
    "raise RuntimeError('out of memory')",
    "raise KeyboardInterrupt",
    "os._exit(9)",
    "sys.excepthook = lambda *_: print('hooked', file=sys.stderr); raise OSError('x')",
]


@pytest.mark.parametrize(
    ("end", "form"),
    [*((end, ["script.py"]) for end in ENDS), *((end, ["-m", "script"]) for end in ENDS[2:5])],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_exit_codes(tmp_path, end, form):
    """The script's exit code and last words are ours, and its traceback begins with its own frame."""
    (tmp_path / "script.py").write_text(f"import os, sys\ndef main():\n    {end}\nmain()\n")
    expected = python(tmp_path, *form)
    done = run(tmp_path, *form)
    assert done.returncode == expected.returncode
    assert done.stdout == expected.stdout
    assert ("Traceback" in done.stderr) == ("Traceback" in expected.stderr)
    if "KeyboardInterrupt" not in end:
        assert own_frames(done.stderr) == own_frames(expected.stderr)


def own_frames(text: str) -> str:
    """A traceback without the frames of runpy, which `python -m` shows above the script's."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if "<frozen runpy>" not in line)


def test_our_errors_raised_by_the_script(tmp_path):
    """An error of this package that the script lets out is the script's failure, not wrong usage."""
    error = "nemo_rl_deadline_fix.InvalidInputError('the script said so')"
    (tmp_path / "script.py").write_text(f"import nemo_rl_deadline_fix\nraise {error}\n")
    done = run(tmp_path, "script.py")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "InvalidInputError: the script said so" in done.stderr
    assert "launching.py" not in done.stderr


USAGE_ERRORS = [
    ([], "run needs a script; found: no argument"),
    (["-m"], "run needs a script; found: no argument"),
    ([""], "run needs a script; found: ''"),
    (["--verbose", "script.py"], "run needs a script; found: '--verbose'"),
    (["missing.py"], "cannot run missing.py; found: no such file"),
    (["script.py/more.py"], "cannot run script.py/more.py; found: Not a directory"),
    (["a\0b"], "found: ValueError: "),
    (["empty"], "cannot run empty; found: no __main__.py in it"),
    (["empty.zip"], "cannot run empty.zip; found: no __main__.py in it"),
    (["syntax.py"], "cannot run syntax.py; found: SyntaxError: "),
    (["binary.py"], "cannot run binary.py; found: "),
    (["latin.py"], "cannot run latin.py; found: SyntaxError: "),
    (["-m", "missing"], "cannot run missing; found: no module missing"),
    (["-m", "missing.child"], "cannot run missing.child; found: no module missing"),
    (["-m", "package.child"], "cannot run package.child; found: no module package.child"),
    (["-m", "json.decoder.child"], "found: no module json.decoder.child"),
    (["-m", "package"], "found: no module package.__main__"),
    (["-m", ".relative"], "cannot run .relative; found: a relative name"),
    (["-m", "syntax"], "cannot run syntax; found: SyntaxError: "),
    (["-m", "sys"], "found: sys has no Python code"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE_ERRORS, ids=str)
def test_usage_errors(tmp_path, monkeypatch, arguments, message):
    """What Python could not run is refused in one line that says what to do."""
    (tmp_path / "script.py").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    (tmp_path / "syntax.py").write_text("x = 1\nif:\n")
    (tmp_path / "binary.py").write_bytes(b"\x00\x01\x02")
    (tmp_path / "latin.py").write_bytes("name = 'é'\n".encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path[1:]])
    with pytest.raises(InvalidInputError) as caught:
        launching.read(arguments)
    assert message in str(caught.value)
    assert caught.value.supported
    assert caught.value.advice
    sys.modules.pop("package", None)


def test_unreadable_script(tmp_path, monkeypatch):
    """A file that may not be read is a usage error too."""

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(SourceFileLoader, "get_data", denied)
    script = tmp_path / "script.py"
    script.touch()
    with pytest.raises(InvalidInputError, match="found: Permission denied"):
        launching.read([str(script)])


@pytest.mark.parametrize("arguments", [[], ["-m", "missing"]], ids=str)
def test_a_usage_error_on_the_command_line(tmp_path, arguments):
    """One line on stderr, nothing on stdout, exit code 2, no traceback."""
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("nemo-rl-deadline-fix: ")
    assert "; do this: " in line


def test_syntax_error_in_what_the_script_imports(tmp_path):
    """Only the script's own syntax is ours to judge: what it imports fails with its traceback."""
    (tmp_path / "script.py").write_text("import broken\n")
    (tmp_path / "broken.py").write_text("if:\n")
    expected, done = python(tmp_path, "script.py"), run(tmp_path, "script.py")
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
    assert done.returncode == 1


def test_package_around_the_module_fails(tmp_path):
    """An error of a package around the module is that package's, with its traceback."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import not_there\n")
    (tmp_path / "package" / "module.py").touch()
    done = run(tmp_path, "-m", "package.module")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'not_there'" in done.stderr


STATUS = """
import sys
import nemo_rl_deadline_fix
print(nemo_rl_deadline_fix.status().state)
print(sorted({"ray", "nemo_rl", "torch", "rich", "click"} & set(sys.modules)))
"""


@pytest.mark.parametrize("form", [["script.py"], ["-m", "script"]], ids=["file", "module"])
def test_the_fix_is_on_and_the_tools_stay_out(tmp_path, form):
    """In the script's process the hook waits for NeMo RL, and no library of the command line is loaded."""
    (tmp_path / "script.py").write_text(STATUS)
    done = run(tmp_path, *form)
    assert done.stdout.splitlines() == ["pending", "[]"]


def test_package_around_the_module_imports_nemo_rl(tmp_path):
    """The hook is there before the packages around a module are imported, so theirs is patched too."""
    controller = tmp_path / "nemo_rl" / "algorithms"
    controller.mkdir(parents=True)
    (controller / "single_controller.py").write_text("class SingleControllerActor:\n    pass\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import nemo_rl.algorithms.single_controller\n")
    (tmp_path / "package" / "module.py").write_text(STATUS)
    done = run(tmp_path, "-m", "package.module")
    assert done.stdout.splitlines()[0] == "not_applicable"
    assert done.returncode == 0


PICKLES = """
import pickle, sys
from ray import cloudpickle

class Config:
    value = 41

def task():
    return Config.value + 1

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Config)) is Config
    sys.stdout.buffer.write(cloudpickle.dumps(task))
"""


def test_functions_of_the_script_can_be_pickled(tmp_path):
    """What the script defines goes to a worker by value, as it does from any `__main__`."""
    (tmp_path / "script.py").write_text(PICKLES)
    sent = subprocess.run(
        [sys.executable, *MODULE, "script.py"], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    worker = "import pickle, sys; print(pickle.load(sys.stdin.buffer)())"
    done = subprocess.run([sys.executable, "-c", worker], input=sent, capture_output=True, check=True)
    assert done.stdout.strip() == b"42"


@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "json.tool"]])
def test_a_working_directory_that_is_gone_is_one_line(tmp_path, monkeypatch, arguments):
    """Started from a directory that was deleted, the launcher says so instead of failing inside."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(InvalidInputError, match="no working directory"):
        launching.read(arguments)
