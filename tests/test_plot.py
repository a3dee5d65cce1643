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
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.errors import InvalidInputError
from nemo_rl_deadline_fix.replay import drawing, lanes, plot, verifying
from nemo_rl_deadline_fix.replay.lanes import Kind, Span
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from nemo_rl_deadline_fix.replay.records import EventKind
from nemo_rl_deadline_fix.replay.verdict import Form, Verification
from tests.support.fixture_trees import make_tree

COMMITTED = Path(__file__).parents[1] / ".github" / "stall-and-fix.svg"
CLOCK = "clock, budget left"
NUMBERS = {
    "default": Parameters(),
    "training": Parameters(overlap=Overlap.TRAINING),
    "scratch": Parameters(0.05, 0.03, 0.1, 0.2, 0.3, 0.045, None, 0.001),
    "five tries": Parameters(budget=100, work=1000, retry_work=900),
    "squeezed": Parameters(work=10_000, prepare_timeout=7_200),
    "short prepare": Parameters(prepare_timeout=5),
    "all at once": Parameters(snapshot_at=0.01, snapshot_for=0.01, second_at=0.02, work=1000, budget=900),
    "read while held": Parameters(work=155),
    "huge": Parameters(budget=1e5, snapshot_at=9e4, snapshot_for=1e4, second_at=1e5, work=99_999),
}


@cache
def simulated(name: str = "default") -> Verification:
    """The embedded model with one set of numbers."""
    return verifying.of_embedded(NUMBERS[name])


@cache
def picture() -> bytes:
    """The default simulation as SVG."""
    return drawing.render(simulated(), "svg")


def shown(name: str = "default") -> list[dict[str, list[Span]]]:
    """The lanes of each form."""
    verification = simulated(name)
    return [lanes.lanes(run, verification.parameters.budget) for run in verification.runs.values()]


def captions(shown: dict[str, list[Span]]) -> list[tuple[str, list[str]]]:
    """The lanes in their order, each with its words."""
    return [(name, [span.caption for span in lane if span.caption]) for name, lane in shown.items()]


def places(lane: list[Span]) -> list[tuple[Kind, float, float]]:
    """What a lane's spans are, and from when to when."""
    return [(span.kind, span.begin, span.end) for span in lane]


def run(*arguments: str | Path) -> int:
    """Run the command line; its exit code."""
    with pytest.raises(SystemExit) as left:
        app([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


# What is shown


def test_the_words_carry_the_numbers_of_the_simulation() -> None:
    """A lane for each actor, from top to bottom, with every caption of it, before and after."""
    before, after = (captions(form) for form in shown())

    assert before == [
        ("RL snapshots", ["210 s: snapshot 1 committed", "750 s: snapshot 2 failed: TimeoutError"]),
        ("RL try 0", ["180 s: deadline fires while parked: RL stops reading"]),
        ("RL try 1", ["329 s: reply with reward 1, sealed"]),
        ("Gym /run, try 0", ["160 to 210 s: parked", "220 s: finished, reply never read and never ACKed"]),
        ("Gym /run, try 1", ["180 to 210 s: held back", "329 s: finished, ACKed 329 s"]),
        ("Gym prepare", ["750 s: gives up (0 parked, 1 not ACKed)", "160 s: ready (1 parked, 0 not ACKed)"]),
        (CLOCK, ["160 to 180 s: runs on while parked"]),
    ]
    assert after == [
        ("RL snapshots", ["210 s: snapshot 1 committed", "450 s: snapshot 2 committed"]),
        ("RL try 0", ["220 s: reply with reward 1, sealed"]),
        ("Gym /run, try 0", ["160 to 210 s: parked", "220 s: finished, ACKed 220 s"]),
        ("Gym prepare", ["160 s: ready (1 parked, 0 not ACKed)", "450 s: ready (0 parked, 0 not ACKed)"]),
        (CLOCK, ["150 to 210 s: stopped with 30 s left"]),
    ]


def test_the_clock_counts_the_seconds_that_nobody_held() -> None:
    """Without the fix the budget runs out during the snapshot; with it the clock is flat there."""
    before, after = (
        [(span.kind, span.begin, span.end, *(180 * part for part in span.heights)) for span in form[CLOCK]]
        for form in shown()
    )

    assert before == [
        (lanes.BUDGET, 0, 160, 180, 20),
        (lanes.RUNS_ON, 160, 180, 20, 0),
        (lanes.BUDGET, 180, 329, 180, 31),
    ]
    assert after == [
        (lanes.BUDGET, 0, 150, 180, 30),
        (lanes.STOPPED, 150, 210, 30, 30),
        (lanes.BUDGET, 210, 220, 30, 20),
    ]


def test_a_training_switch_stops_the_clock_beyond_the_snapshot() -> None:
    """What else happens is named, and the fixed clock stays stopped until both have released it."""
    _, after = shown("training")

    assert captions(after)[-2:] == [
        ("RL engine", ["200 s: engine switches to training", "220 s: weight sync ends, engine serves again"]),
        (CLOCK, ["150 to 220 s: stopped with 30 s left"]),
    ]


def test_the_spans_are_where_the_simulation_has_them() -> None:
    """Running, parked for a while but not for no time, kept for ever, and not ready."""
    before, _ = shown()
    _, five_tries = shown("five tries")
    short_prepare, _ = shown("short prepare")

    gym = sorted(places(before["Gym /run, try 0"]), key=lambda place: place[1])
    assert [place[0] for place in gym] == [lanes.RUNNING, lanes.PARKED, lanes.RUNNING, lanes.STRANDED]
    assert [place[1:] for place in gym] == [(0, 160), (160, 210), (210, 220), (220, inf)]
    assert places(five_tries["Gym /run, try 1"])[-2:] == [
        (lanes.PARKED, 160, 210),
        (lanes.STRANDED, 1050, inf),
    ]
    assert places(short_prepare["Gym prepare"])[0] == (lanes.NOT_READY, 150, 155)


def test_a_clock_that_is_stopped_when_the_reply_is_read_never_runs_again() -> None:
    """What is left then is what was left when it stopped."""
    _, after = shown("read while held")

    assert places(after[CLOCK]) == [(lanes.BUDGET, 0, 150), (lanes.STOPPED, 150, 155)]


def test_gym_is_ready_when_its_last_shard_is(tmp_path: Path) -> None:
    """A shard without rollouts is ready at once, and in vain where another one never is."""
    runs = verifying.of_checkout(make_tree(tmp_path, "C"), Parameters(shards=2)).runs

    prepare = lanes.lanes(runs[Form.AS_IS], 180)["Gym prepare"]

    assert places(prepare)[1:] == [(lanes.NOT_READY, 450, 750), (lanes.PREPARED, 160, 210)]
    assert prepare[-1].caption == "160 s: ready (1 parked, 0 not ACKed)"


def test_a_gate_that_stays_closed_is_closed_to_the_end() -> None:
    """Where admission never reopens, neither its band nor the saving is over."""
    run = simulated().runs[Form.CLOCKS]
    events = tuple(event for event in run.events if event.kind is not EventKind.ADMISSION_REOPENS)
    run = replace(run, events=events)

    assert places(list(lanes.spans(run, lanes.ADMISSION))) == [(lanes.CLOSED, 450, inf)]
    assert places(lanes.lanes(run, 180)["Gym prepare"]) == [(lanes.PREPARED, 450, inf)]


def test_every_form_has_a_title_and_none_praises_what_went_wrong() -> None:
    """Titles say how many snapshots were saved and how try 0 ended; those of failures are red."""
    alone = replace(simulated(), runs={Form.AS_IS: simulated().runs[Form.AS_IS]})

    assert list(simulated().runs) == [Form.AS_IS, Form.CLOCKS]
    assert titles(simulated()) == [
        ("Before: as the code is. 1 of 2 snapshots saved; try 0: timed out after 180 s while parked", "red"),
        ("After: with the fix. 2 of 2 snapshots saved; try 0: reply with reward 1", "green"),
    ]
    assert [color for _, color in titles(simulated("short prepare"))] == ["red", "red"]
    assert titles(alone)[0][0].startswith("As the code is. 1 of 2 snapshots saved; ")


def titles(verification: Verification) -> list[tuple[str, str]]:
    """The panels' titles with their colours."""
    colors = {drawing.BAD: "red", drawing.GOOD: "green"}
    texts = drawing.figure(verification).axes[0].texts
    return [
        (text.get_text(), colors[str(text.get_color())])
        for text in texts
        if str(text.get_gid()).endswith("-title")
    ]


# How it is drawn


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("default", "all at once") else pytest.mark.slow)
        for name in NUMBERS
    ],
)
def test_every_word_has_a_place_of_its_own(name: str) -> None:
    """Whatever the numbers, no word leaves the picture or meets another one, a bar or the legend."""
    with mpl.rc_context(drawing.SETTINGS):
        figure = drawing.figure(simulated(name))
        (sheet,), legends = figure.axes, figure.legends
        texts = [(text.get_gid(), text.get_window_extent()) for text in [*sheet.texts, *legends]]
        bars = [
            (patch.get_gid(), patch.get_window_extent())
            for patch in sheet.patches
            if "-closed-" not in str(patch.get_gid())
        ]

    assert len(texts) > 20
    assert len(bars) > 5
    assert min(place.width for _, place in bars) > drawing.STROKE
    for gid, box in texts:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, gid
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, gid
    for (one, first), (other, second) in (*itertools.combinations(texts, 2), *itertools.product(texts, bars)):
        side_by_side = first.x1 <= second.x0 or second.x1 <= first.x0
        # Two pixels of a line's extent are leading, not ink.
        assert side_by_side or first.y0 >= second.y1 - 2 or second.y0 >= first.y1 - 2, (one, other)


def shapes(svg: bytes) -> dict[str, list[float]]:
    """The named shapes of a picture with their coordinates."""
    found = {}
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        path = group.find("{http://www.w3.org/2000/svg}path")
        gid = group.get("id", "")
        if path is not None and re.match(r"(before|after|legend)-", gid):
            found[gid] = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return found


def test_the_bars_are_drawn_to_scale() -> None:
    """A parked minute is as wide as a minute of the axis, and begins where the axis says."""
    drawn = {gid: (min(places[::2]), max(places[::2])) for gid, places in shapes(picture()).items()}

    left, right = drawn["before-closed-1"]
    second = (right - left) / 300
    for gid, begin, end in (
        ("before-rl-try-0-rl-reads-this-try-0", 0, 180),
        ("before-gym-run-try-0-parked-2", 160, 210),
        ("after-clock-budget-left-clock-stopped-1", 150, 210),
    ):
        assert drawn[gid] == pytest.approx([left + (at - 450) * second for at in (begin, end)], abs=0.01), gid


def test_the_readme_picture_is_what_the_command_draws_now() -> None:
    """The committed picture has the same words, bars and places; ids and glyphs are matplotlib's own."""
    now, then = picture(), COMMITTED.read_bytes()

    # matplotlib keeps the words as comments beside their outlines.
    assert re.findall(b"<!-- (.*?) -->", now) == re.findall(b"<!-- (.*?) -->", then)
    assert list(shapes(now)) == list(shapes(then))
    for gid, places in shapes(now).items():
        assert places == pytest.approx(shapes(then)[gid], abs=0.5), gid


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


@pytest.mark.slow
def test_the_file_is_the_same_each_time_and_needs_no_backend(tmp_path: Path) -> None:
    """Another process with another hash seed and an absent backend draws the same bytes, without pyplot."""
    done = spawn(tmp_path, PYTHONHASHSEED="7", MPLBACKEND="module://matplotlib_inline.backend_inline")

    assert (done.returncode, done.stderr) == (0, "wrote there.svg\n[]\n")
    assert (tmp_path / "there.svg").read_bytes() == picture()
    assert b"<dc:date>" not in picture()


def test_settings_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    """A matplotlibrc in another encoding is not a missing matplotlib, and the advice names it."""
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")

    done = spawn(tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    line, _ = done.stderr.splitlines()
    assert "found: UnicodeDecodeError: " in line
    assert line.endswith("do this: mend matplotlib, or the matplotlibrc that it reads here")


@pytest.mark.slow
def test_nobodys_settings_leak() -> None:
    """The user's matplotlib settings neither change the picture nor are changed by it."""
    with mpl.rc_context({"font.family": "monospace", "svg.fonttype": "none"}):
        before = dict(mpl.rcParams)
        drawn = drawing.render(simulated(), "svg")
        assert dict(mpl.rcParams) == before

    assert drawn == picture()


# The file and the option


@pytest.mark.slow
def test_a_png_is_wide_enough_to_read_and_the_option_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture comes beside the timelines, with the verdict's exit code; a PNG is one by content."""
    assert run("verify", "--plot", tmp_path / "x.PNG") == 0

    printed, data = capsys.readouterr(), (tmp_path / "x.PNG").read_bytes()
    assert "the fix holds" in printed.out
    assert printed.err == f"wrote {tmp_path / 'x.PNG'}\n"
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20], "big") >= 1000
    assert [file.name for file in tmp_path.iterdir()] == ["x.PNG"]


@pytest.mark.parametrize(
    ("name", "prepare", "says"),
    [
        # None in its place is how Python knows a module that cannot be had.
        (
            "x.svg",
            lambda _, mocker: mocker.patch.dict(sys.modules, {"matplotlib": None}),
            "do this: pip install 'nemo-rl-deadline-fix[plot]'",
        ),
        ("x.pdf", lambda *_: None, "found: suffix .pdf; supported: .svg or .png;"),
        (".svg", lambda *_: None, "found: no suffix;"),
        ("missing/x.svg", lambda *_: None, "found: No such file or directory;"),
        ("x.svg", lambda folder, _: os.mkfifo(folder / "x.svg"), "found: it is not a regular file, or"),
        # For root every file is writable.
        (
            "x.svg",
            lambda folder, mocker: (
                (folder / "x.svg").touch(),
                mocker.patch.object(os, "access", lambda _, mode: mode != os.W_OK),
            ),
            "or is write-protected;",
        ),
        ("x.svg", lambda folder, _: (folder / "x.svg").symlink_to("x.svg"), "do this: give --plot another"),
        (
            "x.svg",
            lambda _, mocker: mocker.patch.object(Path, "open", side_effect=PermissionError(13, "No access")),
            "found: No access;",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line_before_any_work(
    name: str,
    prepare: Callable[[Path, MockerFixture], object],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mocker: MockerFixture,
) -> None:
    """Exit 2, one line, nothing simulated, and the folder as it was."""
    prepare(tmp_path, mocker)
    before = {file: file.lstat().st_mtime_ns for file in tmp_path.iterdir()}
    simulate = mocker.patch.object(verifying, "of_embedded")

    assert run("verify", "--plot", tmp_path / name) == 2

    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("nemo-rl-deadline-fix: ")
    assert says in printed.err
    assert {file: file.lstat().st_mtime_ns for file in tmp_path.iterdir()} == before
    simulate.assert_not_called()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_picture(
    tmp_path: Path, mocker: MockerFixture, error: BaseException
) -> None:
    """A full disk or Control-C at the last moment costs neither the old picture nor a stray file."""
    path = tmp_path / "x.svg"
    path.write_text("old")
    mocker.patch.object(drawing, "render", return_value=b"new")
    mocker.patch.object(Path, "replace", side_effect=error)

    with pytest.raises((InvalidInputError, KeyboardInterrupt)):
        plot.plot(simulated(), path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_picture_is_replaced_through_a_link_and_keeps_its_mode(
    tmp_path: Path, mocker: MockerFixture
) -> None:
    """The link stays a link, and what it leads to is the new picture; a new one has any new file's mode."""
    (tmp_path / "real.svg").write_text("old")
    (tmp_path / "real.svg").chmod(0o640)
    (tmp_path / "x.svg").symlink_to("real.svg")
    (tmp_path / "other").write_text("")
    mocker.patch.object(drawing, "render", return_value=b"new")

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
