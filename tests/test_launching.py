"""`run`: Python itself, with the fix switched on in it and in every Python that it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix import InvalidInputError, launching
from nemo_rl_deadline_fix.cli import app
from tests.support import launches
from tests.support.launches import LAUNCHES, Launch

ROOT = Path(__file__).parent.parent
SHADOW = ROOT / "tests" / "support" / "shadow"
RUN = (sys.executable, "-m", "nemo_rl_deadline_fix", "run")
IS_ON = "deadline fix .* is on: "
CONTROLLER = "nemo_rl.algorithms.single_controller"


def started(folder: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    """A command that runs in a folder, with pipes to it."""
    # Where the package itself is found by PYTHONPATH, as a mutant is, it has to be found here, too.
    paths = [path for path in (variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH")) if path]
    environment = os.environ | variables | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="backslashreplace",
    )


def ended(process: subprocess.Popen[str], stdin: str = "") -> tuple[int, str, str]:
    """Exit code, output and error output of a command."""
    out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out, err


def run(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, output and error output of what the launcher starts in a folder."""
    return ended(started(folder, *RUN, *arguments, **variables))


def below_run(
    folder: Path, *arguments: str, best_effort: bool = False, **variables: str
) -> tuple[int, str, str]:
    """The same of a Python in the environment that the launcher makes, without starting that first."""
    variables = launching.environment(variables, best_effort=best_effort)
    command = arguments if arguments[0].startswith("/") else (sys.executable, *arguments)
    return ended(started(folder, *command, **variables))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the launches name."""
    place = tmp_path_factory.mktemp("launches")
    launches.make(place)
    return place


def compare(place: Path, launch: Launch) -> None:
    """Start it with and without the launcher, at the same time; both must say and be the same."""
    plain = started(place, sys.executable, *launch.arguments, **launch.variables)
    launched = started(place, *RUN, *launch.arguments, **launch.variables)
    expected, found = ended(plain, launch.stdin), ended(launched, launch.stdin)

    assert [without_times(part) for part in found] == [without_times(part) for part in expected]


def without_times(part: object) -> str:
    """What differs between any two runs taken out: times and addresses."""
    return re.sub(r"\d+\.\d+s|0x[0-9a-f]{8,}", "X", str(part))


@pytest.mark.parametrize("name", [name for name, launch in LAUNCHES.items() if launch.quick])
def test_as_under_python(place: Path, name: str) -> None:
    """What is started cannot tell the launcher from Python, nor can who started it."""
    compare(place, LAUNCHES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, launch in LAUNCHES.items() if not launch.quick])
def test_as_under_python_in_every_other_way(place: Path, name: str) -> None:
    """The same, for all the ways to start Python that there are."""
    compare(place, LAUNCHES[name])


def controller(folder: Path, *, prepare: str = "async def", extra: str = "") -> Path:
    """A NeMo RL in a folder, as small as the fix still takes it; `prepare` spoils its shape."""
    algorithms = folder / "nemo_rl" / "algorithms"
    algorithms.mkdir(parents=True)
    (folder / "nemo_rl" / "__init__.py").touch()
    (algorithms / "__init__.py").touch()
    (algorithms / "single_controller.py").write_text(
        "import asyncio\n"
        f"{extra}\n"
        "class SingleControllerActor:\n"
        "    def __init__(self, manager):\n"
        "        self._rollout_manager = manager\n"
        "        self._gym_checkpoint_rollout_permitted = asyncio.Event()\n"
        f"    {prepare} _prepare_and_commit_gym_checkpoint(self, checkpoint_id, folder):\n"
        "        self._gym_checkpoint_rollout_permitted.clear()\n"
        "    async def _release_prepared_gym_checkpoint(self, checkpoint_id, *, committed):\n"
        "        self._gym_checkpoint_rollout_permitted.set()\n"
    )
    return folder


IMPORT = f"import {CONTROLLER} as module\n"
STATUS = f"{IMPORT}import nemo_rl_deadline_fix\nprint(nemo_rl_deadline_fix.status().state)\n"
CHILD = (
    f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', '{IMPORT.strip()}']).returncode)\n"
)
PROCESS = (
    "import multiprocessing\ndef work():\n"
    + "".join(f"    {line}\n" for line in STATUS.splitlines())
    + "if __name__ == '__main__':\n"
    "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
    "    child.start()\n    child.join()\n    print(child.exitcode)\n"
)


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("-c", STATUS), "patched\n"),
        (("-c", CHILD), "0\n"),
        (("process.py",), "patched\n0\n"),
        (("--exec", "sh", "-c", f'"{sys.executable}" -c "{STATUS}"'), "patched\n"),
        (("--exec", "--", sys.executable, "-c", STATUS), "patched\n"),
    ],
    ids=["here", "child", "spawned", "command", "command after two dashes"],
)
def test_the_fix_is_on_wherever_the_controller_is_imported(
    tmp_path: Path, arguments: tuple[str, ...], out: str
) -> None:
    """In what is started and in its children; one line says so."""
    (tmp_path / "process.py").write_text(PROCESS)

    found = run(controller(tmp_path), *arguments, PYTHONPATH=".")

    assert found[:2] == (0, out)
    [line] = found[2].splitlines()
    assert re.match(f"nemo-rl-deadline-fix: {IS_ON}", line)


LOGGED = """
import logging
logging.basicConfig(format="LOG %(levelname)s %(name)s: %(message)s", level={root!r})
logging.getLogger("nemo_rl").setLevel({own!r})
"""


@pytest.mark.parametrize(
    ("root", "own", "seen"),
    [
        ("WARNING", "INFO", f"LOG INFO nemo_rl.deadline_fix: {IS_ON}"),
        ("INFO", "NOTSET", f"LOG INFO nemo_rl.deadline_fix: {IS_ON}"),
        ("WARNING", "NOTSET", f"nemo-rl-deadline-fix: {IS_ON}"),
        ("INFO", "WARNING", ""),
    ],
)
def test_the_line_is_seen_unless_the_user_said_no(tmp_path: Path, root: str, own: str, seen: str) -> None:
    """It goes through logging, as NeMo RL set it up, and past a logging that would drop it by default."""
    found = below_run(controller(tmp_path), "-c", LOGGED.format(root=root, own=own) + IMPORT, PYTHONPATH=".")

    assert found[:2] == (0, "")
    assert bool(found[2]) == bool(seen)
    assert re.match(seen, found[2])


def test_nothing_to_fix_goes_on_with_a_line(tmp_path: Path) -> None:
    """Where NeMo RL has no Gym snapshots the run goes on, and is told why nothing was changed."""
    controller(tmp_path)
    (tmp_path / "nemo_rl/algorithms/single_controller.py").write_text("class SingleControllerActor: ...\n")

    code, out, err = below_run(tmp_path, "-c", IMPORT + "print('went on')", PYTHONPATH=".")

    assert (code, out) == (0, "went on\n")
    assert re.match("nemo-rl-deadline-fix: deadline fix .* changed nothing: not_applicable", err)


SWALLOWING = f"try:\n    {IMPORT}except Exception: pass\nprint('went on')\n"


@pytest.mark.parametrize("lacking", [False, True], ids=["unknown shape", "package missing"])
def test_fails_closed(tmp_path: Path, lacking: bool) -> None:
    """Asked for and not possible: one line and exit code 2, which no `except Exception` swallows."""
    python = python_of(controller(tmp_path, prepare="async def" if lacking else "def"), lacking)

    code, out, err = below_run(tmp_path, python, "-c", SWALLOWING, PYTHONPATH=".")

    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith("nemo-rl-deadline-fix: ")
    assert "; found: " in line
    assert "; do this: " in line
    assert line.endswith("or go on without the fix by `run --best-effort`")


@pytest.mark.parametrize("lacking", [False, True], ids=["unknown shape", "package missing"])
def test_goes_on_where_that_was_asked_for(tmp_path: Path, lacking: bool) -> None:
    """With --best-effort it is a warning, in a child as well."""
    python = python_of(controller(tmp_path, prepare="async def" if lacking else "def"), lacking)

    code, out, err = below_run(tmp_path, python, "-c", CHILD, best_effort=True, PYTHONPATH=".")

    assert (code, out) == (0, "0\n")
    [line] = err.splitlines()
    assert line.startswith(
        "nemo-rl-deadline-fix: deadline fix: rollout clocks are NOT paused during Gym snapshots: "
    )
    assert "best-effort" not in line


def python_of(folder: Path, lacking: bool) -> str:
    """This Python, or one that lacks our package."""
    if not lacking:
        return sys.executable
    venv.create(folder / "bare", symlinks=True, with_pip=False)
    return str(folder / "bare" / "bin" / "python")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            "def",
            "nemo-rl-deadline-fix: deadline fix: rollout clocks are NOT paused during Gym snapshots: ",
        ),
        ("async def", ""),
    ],
    ids=["unknown shape", "fixed"],
)
def test_a_ray_worker_goes_on(tmp_path: Path, prepare: str, said: str) -> None:
    """It serves more than the controller, so it logs an error; and nothing where all is well.

    What is patched in a worker says nothing of its actor, whose class came from the driver.
    """
    (tmp_path / "default_worker.py").write_text(f"{IMPORT}print('went on')\n")

    code, out, err = below_run(controller(tmp_path, prepare=prepare), "default_worker.py")

    assert (code, out) == (0, "went on\n")
    assert err.count("\n") == bool(said)
    assert err.startswith(said)


def test_a_child_fails_closed_too(tmp_path: Path) -> None:
    """The child's exit code is 2, and what its parent makes of that is the parent's."""
    code, out, err = below_run(controller(tmp_path, prepare="def"), "-c", CHILD, PYTHONPATH=".")

    assert (code, out) == (0, "2\n")
    assert len(err.splitlines()) == 1


def test_pythons_without_the_package_see_and_hear_nothing(tmp_path: Path) -> None:
    """Where the controller is not imported, nothing is missing."""
    python = python_of(tmp_path, lacking=True)

    assert below_run(tmp_path, python, "-c", "import json; print(json.dumps(1))") == (0, "1\n", "")


def test_an_error_of_the_controller_s_own_import_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    """The traceback has no frame of ours."""
    controller(tmp_path, extra="import not_there")
    plain = ended(started(tmp_path, sys.executable, "-c", IMPORT, PYTHONPATH="."))

    assert below_run(tmp_path, "-c", IMPORT, PYTHONPATH=".") == plain


FOREIGN = """
import asyncio, importlib.machinery, logging, sys
class Loader(importlib.machinery.SourceFileLoader): pass
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "nemo_rl":
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.loader = Loader(name, spec.origin)
            return spec
sys.meta_path.insert(0, Finder())
"""


def test_an_import_hook_in_front_of_ours(tmp_path: Path) -> None:
    """What typeguard and jaxtyping do: the controller comes past ours, and is fixed at the next import."""
    found = below_run(controller(tmp_path), "-c", FOREIGN + STATUS, PYTHONPATH=".")

    assert found[:2] == (0, "patched\n")
    assert re.match(f"nemo-rl-deadline-fix: {IS_ON}", found[2])


def test_ours_goes_to_the_front_again(tmp_path: Path) -> None:
    """With any import in between, the controller does not come past ours."""
    program = f"{FOREIGN}import wave\n{IMPORT}print(type(module.__loader__), type(sys.meta_path[1]))"

    code, out, err = below_run(controller(tmp_path), "-c", program, PYTHONPATH=".")

    assert (code, out) == (0, "<class '__main__.Loader'> <class '__main__.Finder'>\n")
    assert re.match(f"nemo-rl-deadline-fix: {IS_ON}", err)


def test_a_controller_that_came_past_is_told_at_the_end(tmp_path: Path) -> None:
    """Where no other import follows, the end is the first moment at which it can be known."""
    code, _, err = below_run(controller(tmp_path), "-c", FOREIGN + IMPORT, PYTHONPATH=".")

    assert code == 0
    [line] = err.splitlines()
    assert line.startswith("nemo-rl-deadline-fix: NeMo RL's controller was imported past the fix")


def test_the_script_s_neighbours_are_the_script_s(tmp_path: Path) -> None:
    """Modules beside it are neither imported by us nor shadowed by what we import."""
    neighbours = ["email", "packaging", "csv", "wrapt", "click"]
    controller(tmp_path)
    for name in neighbours:
        (tmp_path / f"{name}.py").write_text(f"print('the {name} beside the script')\n")
    (tmp_path / "script.py").write_text(f"{IMPORT}print('imported')\nimport {', '.join(neighbours)}\n")
    expected = ["imported", *(f"the {name} beside the script" for name in neighbours)]

    code, out, err = run(tmp_path, "script.py")

    assert (code, out.splitlines()) == (0, expected)
    assert re.match(f"nemo-rl-deadline-fix: {IS_ON}", err)


# Of the start-up file, in any Python that may meet it.

SEEN = """
import json, sys
print(json.dumps([sys.path, sorted(sys.modules), str(sys.modules.get("sitecustomize")), sys.warnoptions]))
"""
NEXT = {
    "none": None,
    "one": "import sys\nsys.path.append('/of/the/next')\n",
    "one that fails": "raise LookupError('broken')\n",
    "one that lacks a module": "import not_there\n",
}


def pythons() -> list[Any]:
    """The Pythons to try: this one, and the oldest that there may be."""
    found = [pytest.param(Path(sys.executable), id="this")]
    for version in ("2.7", "3.6", "3.9"):
        [*others] = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
        lacks = pytest.mark.skipif(not others, reason=f"pyenv has no Python {version} here")
        found.append(pytest.param(others[0] if others else None, id=version, marks=lacks))
    return found


def slow(python: str | None, text: str) -> tuple[pytest.MarkDecorator, ...]:
    """The default run has this Python with every text, and the others with one."""
    return () if python == "this" or text == "one" else (pytest.mark.slow,)


@pytest.mark.parametrize(
    ("python", "text"),
    [
        pytest.param(
            *python.values, text, id=f"{python.id}-{name}", marks=python.marks + slow(python.id, name)
        )
        for python in pythons()
        for name, text in NEXT.items()
    ],
)
def test_start_up_leaves_no_trace(tmp_path: Path, python: Path, text: str | None) -> None:
    """On any Python: the same path and modules, and the sitecustomize that is shadowed runs as before."""
    (tmp_path / "site").mkdir()
    if text is not None:
        (tmp_path / "site" / "sitecustomize.py").write_text(text)
    plain = started(tmp_path, str(python), "-c", SEEN, PYTHONPATH="site")
    with_ours = f"{launching.STARTUP}{os.pathsep}site"
    launched = started(tmp_path, str(python), "-c", SEEN, PYTHONPATH=with_ours)

    expected, found = ended(plain), ended(launched)

    assert found[0] == 0
    assert found[2] == expected[2]
    path, modules, *rest = json.loads(found[1])
    assert [path, *rest] == [json.loads(expected[1])[at] for at in (0, 2, 3)]
    # `atexit` is part of the interpreter.
    assert set(modules) - set(json.loads(expected[1])[1]) <= {"atexit"}


CHAINING = """
import os, sys
sys.path.remove(os.path.dirname(__file__))
del sys.modules["sitecustomize"]
print("first")
import sitecustomize
"""
LOADING = f"""
import importlib.util
print("first")
spec = importlib.util.spec_from_file_location("next_one", {launching.STARTUP + "/sitecustomize.py"!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


@pytest.mark.parametrize(("text", "stays"), [(CHAINING, "last"), (LOADING, "first")], ids=["import", "load"])
def test_sitecustomizes_run_in_the_order_of_the_path(tmp_path: Path, text: str, stays: str) -> None:
    """Another start-up file that runs the next one, as ddtrace's does, has ours and then the last one."""
    for name, content in {"first": text, "last": "print('last')\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(content)
    path = os.pathsep.join(["first", launching.STARTUP, "last", "."])
    program = f"{STATUS}import sitecustomize; print(sitecustomize.__file__.split('/')[-2])"

    code, out, err = ended(started(controller(tmp_path), sys.executable, "-c", program, PYTHONPATH=path))

    assert (code, out.splitlines()) == (0, ["first", "last", "patched", stays])
    assert re.match(f"nemo-rl-deadline-fix: {IS_ON}", err)


@pytest.mark.slow
def test_an_environment_with_a_sitecustomize_of_its_own(tmp_path: Path) -> None:
    """A venv's sitecustomize and usercustomize run as without us."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False, system_site_packages=True)
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    for name in ("sitecustomize", "usercustomize"):
        (packages / f"{name}.py").write_text(f"print(__name__, '{name}')\n")
    command = (str(tmp_path / "venv" / "bin" / "python"), "-c", SEEN)
    plain = ended(started(tmp_path, *command))

    launched = run(tmp_path, "--exec", *command)

    assert launched[0] == 0
    assert launched[1].replace(' "atexit",', "") == plain[1].replace(' "atexit",', "")
    assert launched[1].startswith("sitecustomize sitecustomize\nusercustomize usercustomize\n")


# Of what is started, and with what.


@pytest.mark.parametrize(
    ("given", "made"),
    [(None, []), ("", []), ("a:b", ["a", "b"]), (":a:", ["", "a", ""]), (".", ["."])],
)
def test_the_user_s_path_keeps_its_meaning(given: str | None, made: list[str]) -> None:
    """Our folder comes first, then what was there; no empty entry, which would mean the current folder."""
    given_variables = {} if given is None else {"PYTHONPATH": given}

    variables = launching.environment({**given_variables, "HOME": "/home"}, best_effort=False)

    assert variables.pop("PYTHONPATH").split(os.pathsep) == [launching.STARTUP, *made]
    assert variables == {"HOME": "/home"}


def test_a_run_within_a_run_is_told_anew_how_strict_to_be() -> None:
    """--best-effort of an outer run is not that of an inner one."""
    outer = launching.environment({}, best_effort=True)

    inner = launching.environment(outer, best_effort=False)

    assert outer[launching.BEST_EFFORT] == "1"
    assert launching.BEST_EFFORT not in inner


def test_a_folder_that_the_path_cannot_name_is_refused(mocker: MockerFixture) -> None:
    """A colon in the package's path would silently switch the fix off."""
    mocker.patch.object(launching, "STARTUP", "/odd:place/startup")

    with pytest.raises(InvalidInputError, match=r"found: /odd:place/startup"):
        launching.environment({}, best_effort=False)


@pytest.mark.parametrize(
    ("arguments", "dropping"),
    [
        ("-I x.py", "-I"),
        ("-Is x.py", "-Is"),
        ("-uE -m x", "-uE"),
        ("-X dev -S", "-S"),
        ("-Xdev -W ignore -sS x", "-sS"),
        ("--check-hash-based-pycs always -I x", "-I"),
        ("-X -I x.py", None),
        ("-WIES x.py", None),
        ("-XI x.py", None),
        ("-mI x", None),
        ("-cI", None),
        ("-um x -I", None),
        ("-c code -I", None),
        ("-m x -I", None),
        ("x.py -I", None),
        ("- -I", None),
        ("-- -I", None),
        ("-u -P -s -B -OO -q -i", None),
        ("--help -I", "-I"),
        ("", None),
    ],
)
def test_options_that_would_drop_the_fix_are_seen(arguments: str, dropping: str | None) -> None:
    """-I, -E and -S, also in one word with others, where they are Python's and not the program's."""
    assert launching.dropping_option(arguments.split(" ")) == dropping


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "run needs something to start; found: no argument; supported: run SCRIPT"),
        (("--exec",), "run needs something to start"),
        (("--exec", "--"), "run needs something to start"),
        (("-Is", "x.py"), "Python would start without the fix because of -Is; found: "),
        (("--exec", "no-such-command"), "cannot start no-such-command; found: No such file or directory"),
    ],
)
def test_what_cannot_be_started_is_one_line(
    capsys: pytest.CaptureFixture[str], mocker: MockerFixture, arguments: tuple[str, ...], message: str
) -> None:
    """With what to do and exit code 2; this process keeps its signals."""
    mocker.patch("signal.signal")

    with pytest.raises(SystemExit) as left:
        app(["run", *arguments])

    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"nemo-rl-deadline-fix: {message}")


def test_a_command_gets_the_signals_that_a_shell_would_give_it(tmp_path: Path) -> None:
    """Python ignores SIGPIPE, and a program that inherited this would complain of a closed pipe."""
    assert run(tmp_path, "--exec", "sh", "-c", "yes | head -n 1") == (0, "y\n", "")


def test_the_installed_command(place: Path) -> None:
    """The console command does the same as `python -m`."""
    command = str(Path(sys.executable).with_name("nemo-rl-deadline-fix"))

    assert ended(started(place, command, "run", "failed.py")) == run(place, "failed.py")


def test_ctrl_c_reaches_what_was_started(tmp_path: Path) -> None:
    """It is one process, so a signal to the launcher is a signal to the script."""
    process = started(tmp_path, *RUN, "-uc", "import time; print('up'); time.sleep(30)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"

    process.send_signal(signal.SIGINT)

    code, _, err = ended(process)
    assert code == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt\n")
