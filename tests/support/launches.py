"""What Python can be given, to be compared with and without the launcher in front of it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIRROR = """
import json, os, sys
main = sys.modules["__main__"]
flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0].islower()}
print(json.dumps({
    "name": __name__, "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "doc": __doc__,
    "file": globals().get("__file__"), "package": __package__, "spec": __spec__ and __spec__.name,
    "loader": type(__loader__).__name__, "builtins": type(__builtins__).__name__,
    "main is this": main.__dict__ is globals(), "names": sorted(globals()), "cwd": os.getcwd(),
    "warnoptions": sys.warnoptions, "xoptions": sys._xoptions, "flags": repr(flags),
    "modules": sorted(set(sys.modules) - {"atexit"}), "executable": sys.executable, "prefix": sys.prefix,
}, indent=1))
"""
"""What a script can see of how it was started. `atexit` is loaded by our start-up, which is no secret."""

SPAWN = """
import multiprocessing, sys
class Answer:
    def __init__(self, value): self.value = value
def work(number): return Answer(number * 2)
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        print([(type(one).__name__, one.value) for one in pool.map(work, [1, 2])])
"""

FILES = {
    "script.py": '"""Its text."""\n' + MIRROR,
    "sub/script": MIRROR,
    "folder/__main__.py": MIRROR,
    "package/__init__.py": "",
    "package/__main__.py": MIRROR,
    "package/module.py": MIRROR,
    "failing/__init__.py": "import not_there\n",
    "failing/module.py": "",
    "empty/note.txt": "",
    "syntax.py": "x = 1\nif:\n",
    "imports_syntax.py": "import syntax\n",
    "binary.py": "\0\1\2",
    "skip.py": "not Python\nprint('after the first line')\n",
    "pool.py": SPAWN,
    "failed.py": "def inner():\n    1 / 0\ndef main():\n    try: inner()\n    except ZeroDivisionError as e:"
    " raise ValueError('no') from e\nmain()\n",
    "atexits.py": "import atexit, pickle\nclass State: pass\n@atexit.register\ndef save():\n"
    "    pickle.dumps(State())\n    print('saved')\n",
    "profiled.py": "if not hasattr(__builtins__, 'profile'):\n    __builtins__.profile = lambda f: f\n"
    "@profile\ndef f(): return type(__builtins__).__name__\nprint(f())\n",
    "neighbours/copy.py": "print('the copy beside the script')\n",
    "neighbours/click.py": "print('the click beside the script')\n",
    "neighbours/script.py": "import click, copy\n",
    "test_it.py": "import unittest\nclass Test(unittest.TestCase):\n    def test_it(self): self.fail('no')\n",
    "docs.py": '"""\n>>> 1 + 1\n2\n"""\n',
    "site/sitecustomize.py": "import sys\nsys.customized = __file__\n",
    "rc.py": "print('started', __name__)\n",
}


@dataclass(frozen=True)
class Launch:
    """One way to start Python.

    Attributes:
        arguments: Python's own.
        stdin: What it reads.
        variables: What is in its environment besides.
        quick: Whether the default run of the suite has it.
    """

    arguments: tuple[str, ...]
    stdin: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False


def make(folder: Path) -> None:
    """Write the files that the launches name."""
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (folder / "latin.py").write_bytes("name = 'é'\n".encode("latin-1"))
    (folder / "link.py").symlink_to(folder / "sub" / "script")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", MIRROR)
    zipfile.ZipFile(folder / "empty.zip", "w").close()


def _code(text: str, *arguments: str, quick: bool = False, **variables: str) -> Launch:
    return Launch(("-c", text, *arguments), variables=variables, quick=quick)


_OPTIONS = ["--help", "-x", "++key=v", "-m", "run", "--exec", "-I", "a b", ""]
_EXIT = "import os, signal, sys, threading, time\n"

LAUNCHES = {
    # what is started
    "script": Launch(("script.py", *_OPTIONS), quick=True),
    "script with a dot": Launch(("./script.py",)),
    "script without an ending": Launch(("sub/script",)),
    "script by a link": Launch(("link.py",)),
    "folder": Launch(("folder", *_OPTIONS)),
    "zip": Launch(("archive.zip", *_OPTIONS), quick=True),
    "package": Launch(("-m", "package", *_OPTIONS), quick=True),
    "module": Launch(("-m", "package.module", *_OPTIONS)),
    "module, in one word": Launch(("-mscript", "-E")),
    "code": _code(MIRROR, *_OPTIONS, quick=True),
    "code, in one word": Launch(("-cprint(1)", "-S")),
    "stdin": Launch(("-", *_OPTIONS), stdin=MIRROR, quick=True),
    "after two dashes": Launch(("--", "script.py", "-I")),
    "run by runpy": _code("import runpy; runpy.run_path('script.py', run_name='__main__')"),
    "run by runpy as a module": _code("import runpy; runpy.run_module('package', run_name='x')"),
    "pdb": Launch(("-m", "pdb", "-c", "continue", "profiled.py"), stdin="quit\n"),
    "unittest": Launch(("-m", "unittest", "test_it")),
    "pytest": Launch(
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"),
        variables={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ),
    "doctest": Launch(("-m", "doctest", "-v", "docs.py")),
    "trace": Launch(("-m", "trace", "--listfuncs", "profiled.py")),
    "interactive": Launch(("-i", "profiled.py"), stdin="print(f.__module__)\n1 / 0\n"),
    "interactive with a start-up file": Launch(
        ("-iq",), stdin="2 + 2\n", variables={"PYTHONSTARTUP": "rc.py"}
    ),
    "inspect by the environment": Launch(
        ("profiled.py",), stdin="print(f())\n", variables={"PYTHONINSPECT": "1"}
    ),
    # Python's options
    "dev": Launch(("-X", "dev", "script.py"), quick=True),
    "dev, in one word": Launch(("-Xdev", "script.py")),
    "unbuffered": Launch(("-u", "script.py", "-u")),
    "optimized": Launch(("-OO", "script.py")),
    "many letters": Launch(("-uBqb", "-m", "script")),
    "safe path": Launch(("-P", "script.py"), quick=True),
    "safe path for a module": Launch(("-P", "-m", "package"), variables={"PYTHONPATH": "."}),
    "safe path for a folder": Launch(("-P", "folder")),
    "no user site": Launch(("-s", "script.py")),
    "first line skipped": Launch(("-x", "skip.py")),
    "warnings": Launch(("-W", "error", "-c", "import warnings; warnings.warn('x')")),
    "warnings, in one word": Launch(("-Wignore::UserWarning", "script.py", "-S")),
    "hash-based": Launch(("--check-hash-based-pycs", "never", "script.py")),
    "utf-8": Launch(("-X", "utf8=0", "script.py")),
    "version": Launch(("-VV",)),
    "help": Launch(("-q", "--help")),
    "unknown option": Launch(("--best-effrot", "script.py")),
    # Python's environment
    "path of the user": Launch(
        ("script.py",), variables={"PYTHONPATH": "sub:/nowhere::package:"}, quick=True
    ),
    "empty path": Launch(("script.py",), variables={"PYTHONPATH": ""}),
    "safe path by the environment": Launch(
        ("-m", "package"), variables={"PYTHONPATH": ".", "PYTHONSAFEPATH": "1"}
    ),
    "sitecustomize": _code(
        "import sys, sitecustomize as s; print(sys.customized, s.__spec__.origin, s.__name__)",
        PYTHONPATH="site",
        quick=True,
    ),
    "hash seed": _code("print(hash('x'))", PYTHONHASHSEED="7"),
    "encoding": _code("print('é ✓')", PYTHONIOENCODING="latin-1:backslashreplace"),
    "optimized by the environment": Launch(("script.py",), variables={"PYTHONOPTIMIZE": "1"}),
    # how it ends
    "exit": _code("import sys; sys.exit(7)", quick=True),
    "exit with a text": _code("import sys; sys.exit('a reason')"),
    "exit at once": _code("import os; os._exit(9)"),
    "error": Launch(("failed.py",), quick=True),
    "error in a module": Launch(("-m", "failed")),
    "error in a package around a module": Launch(("-m", "failing.module")),
    "error group": _code("raise ExceptionGroup('all', [OSError(1, 'x'), KeyError('k')])"),
    "error in a thread": _code("import threading; t = threading.Thread(target=int, args=['x']); t.start()"),
    "excepthook": _code("import sys; sys.excepthook = lambda *_: print('hooked'); raise OSError('x')"),
    "too deep": _code(
        "def f(n=0):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f())"
    ),
    "interrupted": _code(f"{_EXIT}os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"),
    "killed": _code(f"{_EXIT}os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", quick=True),
    "aborted": _code("import os; os.abort()"),
    "signals": _code("import signal; print([signal.getsignal(s) for s in signal.valid_signals()])"),
    "signals of a child": _code("import subprocess; subprocess.run(['sh', '-c', 'yes | head -n 1'])"),
    "exit handler": Launch(("atexits.py",)),
    "exit handler of a module": Launch(("-m", "atexits"), quick=True),
    "a thread at the end": _code(f"{_EXIT}threading.Timer(0.05, print, ['late']).start(); print('main')"),
    "output lost": _code("import sys; print('x' * 99999); sys.stdout.close(); sys.exit(3)"),
    # what cannot start
    "missing script": Launch(("missing.py",)),
    "a file as a folder": Launch(("script.py/more.py",)),
    "nothing to run in a folder": Launch(("empty",)),
    "nothing to run in a zip": Launch(("empty.zip",)),
    "syntax error": Launch(("syntax.py",), quick=True),
    "syntax error in an import": Launch(("imports_syntax.py",)),
    "binary": Launch(("binary.py",)),
    "another encoding": Launch(("latin.py",)),
    "missing module": Launch(("-m", "missing.child")),
    "missing child": Launch(("-m", "package.child")),
    "relative module": Launch(("-m", ".relative")),
    "built-in module": Launch(("-m", "sys")),
    "no module": Launch(("-m",)),
    # what it does
    "builtins": Launch(("profiled.py",)),
    "spawn": Launch(("pool.py", "spawn")),
    "spawn from a module": Launch(("-m", "pool", "spawn")),
    "spawn with a sitecustomize": Launch(("pool.py", "spawn"), variables={"PYTHONPATH": "site"}, quick=True),
    "forkserver": Launch(("pool.py", "forkserver")),
    "fork": Launch(("pool.py", "fork"), variables={"PYTHONWARNINGS": "ignore"}),
    "a child": _code("import subprocess, sys; subprocess.run([sys.executable, 'script.py'])"),
    "an isolated child": _code("import subprocess, sys; subprocess.run([sys.executable, '-I', 'script.py'])"),
    "neighbours": Launch(("neighbours/script.py",)),
    "its own source": _code("import inspect, package.module; print(inspect.getsource(package.module)[:9])"),
}
