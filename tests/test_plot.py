"""`verify --plot`: what the picture shows, that it is legible, and that the file is complete or not there."""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.transforms import Bbox
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay import drawing, lanes, plot, verifying
from nemo_rl_deadline_fix.replay.lanes import Lane, Span, SpanKind
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.verdict import Form, Verification
from tests.support.fixture_trees import make_tree

COMMITTED = Path(__file__).parents[1] / ".github" / "stall-and-fix.svg"

NUMBERS = {
    "default": Parameters(),
    "training": Parameters(overlap=Overlap.TRAINING),
    "scratch": Parameters(0.05, 0.03, 0.1, 0.2, 0.3, 0.045, None, 0.001),
    "five tries": Parameters(budget=100, work=1000, retry_work=900),
    "squeezed": Parameters(work=10_000, prepare_timeout=7_200),
    "short prepare": Parameters(prepare_timeout=5),
    "all at once": Parameters(snapshot_at=0.01, snapshot_for=0.01, second_at=0.02, work=1000, budget=900),
    "huge": Parameters(budget=1e5, snapshot_at=9e4, snapshot_for=1e4, second_at=1e5, work=99_999),
}


@cache
def simulated(name: str = "default") -> Verification:
    """The embedded model with one set of numbers."""
    return verifying.of_embedded(NUMBERS[name])


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The default simulation as SVG."""
    path = tmp_path_factory.mktemp("picture") / "x.svg"
    plot.plot(simulated(), path)
    return path.read_bytes()


def by_name(panel: lanes.Panel) -> dict[str, Lane]:
    """A panel's lanes by their names."""
    return {lane.name: lane for lane in panel.lanes}


def run(*arguments: str | Path) -> int:
    """Run the command line; its exit code."""
    with pytest.raises(SystemExit) as left:
        app([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


# What is shown


def test_the_words_carry_the_numbers_of_the_simulation() -> None:
    """A lane for each actor, from top to bottom, with every caption of it, before over after."""
    panels = lanes.panels(simulated())
    before, after = (
        {lane.name: [caption.text for caption in lane.captions] for lane in panel.lanes} for panel in panels
    )

    assert [(panel.title, panel.bad) for panel in panels] == [
        ("Before, the code as it is: RL gives up on try 0 while it is parked, snapshot 2 fails", True),
        ("After, with the fix: try 0 replies, every snapshot is committed", False),
    ]
    assert before == {
        "RL snapshots": ["snapshot 1 committed 210 s", "snapshot 2 fails 750 s"],
        "RL try 0": ["deadline fires 180 s while parked: RL stops reading"],
        "RL try 1": ["reply 329 s, reward 1"],
        "Gym /run, try 0": ["parked 160 to 210 s", "finished 220 s, reply never read and never ACKed"],
        "Gym /run, try 1": ["held back 180 to 210 s", "finished 329 s, ACKed"],
        "Gym prepare": ["ready 160 s, parked=1", "completed_unacknowledged=1 for 300 s"],
        "clock, budget left": ["runs on while try 0 is parked"],
    }
    assert after == {
        "RL snapshots": ["snapshot 1 committed 210 s", "snapshot 2 committed 450 s"],
        "RL try 0": ["reply 220 s, reward 1"],
        "RL try 1": ["not needed"],
        "Gym /run, try 0": ["parked 160 to 210 s", "finished 220 s, ACKed"],
        "Gym prepare": ["ready 160 s, parked=1", "ready 450 s, completed_unacknowledged=0"],
        "clock, budget left": ["stopped 150 to 210 s with 30 s left"],
    }


def test_the_clock_counts_the_seconds_that_nobody_held() -> None:
    """Without the fix the budget runs out during the snapshot; with it the clock is flat there."""
    before, after = (by_name(panel)["clock, budget left"] for panel in lanes.panels(simulated()))

    assert before.curve == (((0, 180), (180, 0)), ((180, 180), (329, 31)))
    assert (before.spans, before.crosses) == ((), (180,))
    assert after.curve == (((0, 180), (150, 30), (210, 30), (220, 20)),)
    assert (after.spans, after.crosses) == ((Span(150, 210, SpanKind.STOPPED, 30),), ())


def test_the_spans_are_where_the_simulation_has_them() -> None:
    """Parked, held back, kept for ever, not ready: each at its times, and so are the bands."""
    before, after = lanes.panels(simulated())

    assert before.closed == ((150, 210), (450, 750))
    assert after.closed == ((150, 210), (450, 450))
    gym = by_name(before)
    assert set(gym["Gym /run, try 0"].spans) == {
        Span(0, 160, SpanKind.RUNNING),
        Span(160, 210, SpanKind.PARKED),
        Span(210, 220, SpanKind.RUNNING),
        Span(220, None, SpanKind.KEPT),
    }
    assert gym["Gym prepare"].spans == (
        Span(150, 160, SpanKind.RUNNING),
        Span(160, 210, SpanKind.PREPARED),
        Span(450, 750, SpanKind.NOT_READY),
    )


def test_a_training_switch_stops_the_clock_beyond_the_snapshot() -> None:
    """What else happens is named, and the fixed clock stays stopped until both have released it."""
    _, after = lanes.panels(simulated("training"))

    clock = by_name(after)["clock, budget left"]
    assert clock.spans == (Span(150, 220, SpanKind.STOPPED, 30),)
    assert [caption.text for caption in clock.captions] == [
        "stopped 150 to 220 s with 30 s left",
        "engine switches to training 200 s",
        "weight sync ends, engine serves again 220 s",
    ]


def test_no_title_praises_what_went_wrong() -> None:
    """A try that still runs fails a prepare, one that is too slow is given up, and one form stands alone."""
    before, _ = lanes.panels(simulated("short prepare"))
    _, after = lanes.panels(simulated("squeezed"))
    alone = {
        form: lanes.panels(Verification("checkout", "", Parameters(), runs={Form.AS_IS: replay}))[0].title
        for form, replay in simulated().runs.items()
    }

    assert by_name(before)["Gym prepare"].captions[0].text == "a try still running for 5 s"
    assert before.bad
    assert after.bad
    assert after.title.endswith("RL gives up on try 0 while it is running, every snapshot is committed")
    assert alone[Form.AS_IS].startswith("The code as it is: RL gives up")
    assert alone[Form.CLOCKS].startswith("The code as it is, which has the fix: try 0 replies")


def test_gym_is_ready_when_its_last_shard_is(tmp_path: Path) -> None:
    """The second shard has nothing to park and is ready at once; the snapshot waits for the first."""
    tree = make_tree(tmp_path, "C")

    panel, _ = lanes.panels(verifying.of_checkout(tree, Parameters(shards=2)))

    assert by_name(panel)["Gym prepare"].captions[0].text == "ready 160 s, parked=1"


def test_every_try_is_simulated_to_its_end() -> None:
    """Also one that begins when the snapshots are over."""
    for replay in simulated("five tries").runs.values():
        assert replay.bodies_started == replay.bodies_finished == 5


# How it is drawn


@pytest.mark.parametrize("name", NUMBERS)
def test_every_word_has_a_place_of_its_own(name: str) -> None:
    """Whatever the numbers, no word leaves the picture, meets another or crosses a bar's end."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["text.hinting"] = "none"
        figure = drawing.figure(simulated(name))
        texts = {text.get_gid(): text.get_window_extent() for axes in figure.axes for text in axes.texts}
        bars = {
            patch.get_gid(): patch.get_window_extent()
            for axes in figure.axes[1:]
            for patch in axes.patches
            if "-closed-" not in (patch.get_gid() or "")
        }

    assert len(texts) > 20
    assert len(bars) > 5
    for gid, box in texts.items():
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, gid
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, gid
    for (one, first), (other, second) in itertools.combinations(texts.items(), 2):
        side_by_side = first.x1 <= second.x0 or second.x1 <= first.x0
        assert side_by_side or not _same_height(first, second), (one, other)
    for gid, box in texts.items():
        lane, _, caption = (gid or "").rpartition("-caption-")
        for bar, place in bars.items():
            if caption and (bar or "").startswith(lane) and _same_height(box, place):
                inside = place.x0 <= box.x0 and box.x1 <= place.x1
                assert inside or box.x1 <= place.x0 or place.x1 <= box.x0, (gid, bar)


def _same_height(first: Bbox, second: Bbox) -> bool:
    # Two pixels of a line's extent are leading, not ink.
    return bool(first.y0 < second.y1 - 2 and second.y0 < first.y1 - 2)


def shapes(svg: bytes) -> dict[str, list[float]]:
    """The named shapes of a picture with their coordinates."""
    found = {}
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        path = group.find("{http://www.w3.org/2000/svg}path")
        gid = group.get("id", "")
        if path is not None and re.match(r"(before|after|legend)-", gid):
            found[gid] = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return found


def words(svg: bytes) -> list[str]:
    """The words of a picture, which matplotlib keeps as comments beside their outlines."""
    return re.findall(r"<!-- (.*?) -->", svg.decode())


def test_the_bars_are_drawn_to_scale(picture: bytes) -> None:
    """A parked minute is as wide as a minute of the axis, and begins where the axis says."""
    drawn = shapes(picture)

    left, _, right, *_ = drawn["before-closed-1"]
    scale = (right - left) / 300
    zero = left - 450 * scale
    for gid, begin, end in (
        ("before-rl-try-0-reading-0", 0, 180),
        ("before-gym-run-try-0-parked-1", 160, 210),
        ("after-clock-budget-left-stopped-0", 150, 210),
    ):
        xs = drawn[gid][::2]
        assert min(xs) == pytest.approx(zero + begin * scale, abs=0.01), gid
        assert max(xs) == pytest.approx(zero + end * scale, abs=0.01), gid


def test_the_readme_picture_is_what_the_command_draws_now(picture: bytes) -> None:
    """The committed picture has the same words, bars and places; ids and glyphs are matplotlib's own."""
    then = COMMITTED.read_bytes()

    assert words(picture) == words(then)
    drawn, committed = shapes(picture), shapes(then)
    assert list(drawn) == list(committed)
    for gid, places in drawn.items():
        assert places == pytest.approx(committed[gid], abs=0.5), gid


def spawn(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`verify --json --plot there.svg` in a process of its own, which also prints whether pyplot is there."""
    script = (
        "import sys; from nemo_rl_deadline_fix.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print([m for m in sys.modules if m.startswith('matplotlib.pyplot')], file=sys.stderr)"
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, "verify", "--json", "--plot", "there.svg"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# The second is one that matplotlib looks for by itself when it reads the name.
@pytest.mark.parametrize("backend", ["nonsense", "module://matplotlib_inline.backend_inline"])
def test_the_file_is_the_same_each_time_and_needs_no_backend(
    tmp_path: Path, picture: bytes, backend: str
) -> None:
    """Another process with another hash seed and an absent backend draws the same bytes, without pyplot."""
    done = spawn(tmp_path, PYTHONHASHSEED="7", MPLBACKEND=backend)

    assert (done.returncode, done.stderr) == (0, "wrote there.svg\n[]\n")
    assert (tmp_path / "there.svg").read_bytes() == picture
    assert b"<dc:date>" not in picture


def test_settings_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    """A matplotlibrc in another encoding is named, and is not a missing matplotlib."""
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")

    done = spawn(tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    line, _ = done.stderr.splitlines()
    assert "found: a matplotlibrc that is not UTF-8" in line
    assert "pip install" not in line


def test_nobodys_settings_leak(tmp_path: Path, picture: bytes) -> None:
    """The user's matplotlib settings neither change the picture nor are changed by it."""
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none"}):
        before = dict(mpl.rcParams)
        plot.plot(simulated(), tmp_path / "set.svg")
        assert dict(mpl.rcParams) == before

    assert (tmp_path / "set.svg").read_bytes() == picture


def test_a_png_is_wide_enough_to_read(tmp_path: Path) -> None:
    """A PNG is one by content, and has at least a thousand pixels a line."""
    plot.plot(simulated(), tmp_path / "x.PNG")

    data = (tmp_path / "x.PNG").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20], "big") >= 1000


# The file and the option


@pytest.fixture
def quickly(mocker: MockerFixture) -> None:
    """The drawing itself is left out where a test is about the file."""
    mocker.patch.object(plot, "_render", return_value=b"new")


@pytest.mark.usefixtures("quickly")
def test_the_option_draws_says_so_and_still_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture comes beside the timelines, with the verdict's exit code."""
    assert run("verify", "--plot", tmp_path / "x.svg") == 0

    printed = capsys.readouterr()
    assert "the fix holds" in printed.out
    assert printed.err == f"wrote {tmp_path / 'x.svg'}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["x.svg"]


def test_without_matplotlib_there_is_one_clear_line_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mocker: MockerFixture
) -> None:
    """The line says what is missing and how to get it; nothing is simulated and nothing written."""
    simulate = mocker.patch.object(verifying, "of_embedded")
    # None in its place is how Python knows a module that cannot be had.
    mocker.patch.dict(sys.modules, {"matplotlib": None})

    assert run("verify", "--plot", tmp_path / "x.svg") == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "nemo-rl-deadline-fix: --plot needs matplotlib; found: no matplotlib; supported: matplotlib 3.8 or "
        "newer; do this: pip install 'nemo-rl-deadline-fix[plot]'\n"
    )
    assert list(tmp_path.iterdir()) == []
    simulate.assert_not_called()


def test_a_broken_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that fails with something else says what it failed with."""
    (tmp_path / "matplotlib.py").write_text("raise AttributeError('numpy has no attribute x')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(InvalidInputError, match="found: AttributeError: numpy has no attribute x;"):
        plot.check(tmp_path / "x.svg")


def _write_protected(folder: Path, mocker: MockerFixture) -> str:
    (folder / "x.svg").write_text("old")
    # For root every file is writable.
    mocker.patch.object(os, "access", lambda _, mode: mode != os.W_OK)
    return "x.svg"


def _unwritable_folder(_: Path, mocker: MockerFixture) -> str:
    mocker.patch.object(Path, "open", side_effect=PermissionError(errno.EACCES, "Permission denied"))
    return "x.svg"


def _folder(folder: Path, _: MockerFixture) -> str:
    (folder / "x.svg").mkdir()
    return "x.svg"


def _pipe(folder: Path, _: MockerFixture) -> str:
    os.mkfifo(folder / "x.svg")
    return "x.svg"


def _link_loop(folder: Path, _: MockerFixture) -> str:
    (folder / "x.svg").symlink_to("x.svg")
    return "x.svg"


@pytest.mark.parametrize(
    ("prepare", "found"),
    [
        (lambda *_: "x.pdf", "found: suffix .pdf; supported: .svg or .png;"),
        (lambda *_: ".svg", "found: no suffix;"),
        (lambda *_: "missing/x.svg", "found: No such file or directory;"),
        (_folder, "found: it is a folder;"),
        (_pipe, "found: it is not a regular file;"),
        (_write_protected, "found: it is write-protected;"),
        (_link_loop, "do this: give --plot another path"),
        (_unwritable_folder, "found: Permission denied;"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line_before_any_work(
    prepare: Callable[[Path, MockerFixture], str],
    found: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mocker: MockerFixture,
) -> None:
    """Exit 2, one line, nothing simulated, and the folder as it was."""
    path = tmp_path / prepare(tmp_path, mocker)
    before = {file: file.lstat().st_mtime_ns for file in tmp_path.iterdir()}
    simulate = mocker.patch.object(verifying, "of_embedded")

    assert run("verify", "--plot", path) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("nemo-rl-deadline-fix: cannot ")
    assert printed.err.count("\n") == 1
    assert found in printed.err
    assert {file: file.lstat().st_mtime_ns for file in tmp_path.iterdir()} == before
    simulate.assert_not_called()


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_picture(
    tmp_path: Path, mocker: MockerFixture, error: BaseException
) -> None:
    """A full disk or Control-C at the last moment costs neither the old picture nor a stray file."""
    path = tmp_path / "x.svg"
    path.write_text("old")
    mocker.patch.object(Path, "replace", side_effect=error)

    with pytest.raises((InvalidInputError, KeyboardInterrupt)):
        plot.plot(simulated(), path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("quickly")
def test_an_old_picture_is_replaced_through_a_link_and_keeps_its_mode(tmp_path: Path) -> None:
    """The link stays a link, and what it leads to is the new picture; a new one has any new file's mode."""
    (tmp_path / "real.svg").write_text("old")
    (tmp_path / "real.svg").chmod(0o640)
    (tmp_path / "x.svg").symlink_to("real.svg")
    (tmp_path / "other").write_text("")

    plot.plot(simulated(), tmp_path / "x.svg")
    plot.plot(simulated(), tmp_path / "new.svg")

    assert (tmp_path / "x.svg").is_symlink()
    assert (tmp_path / "real.svg").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "real.svg").stat().st_mode) == 0o640
    assert (tmp_path / "new.svg").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_nothing_simulated_is_nothing_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mocker: MockerFixture
) -> None:
    """A target without the feature keeps its exit code, and one line on stderr says there is no picture."""
    mocker.patch.object(verifying, "of_embedded", return_value=Verification("checkout", "x", Parameters()))
    path = tmp_path / "x.svg"

    assert run("verify", "--plot", path) == 0

    assert capsys.readouterr().err == f"no picture {path}: nothing was simulated\n"
    assert list(tmp_path.iterdir()) == []
