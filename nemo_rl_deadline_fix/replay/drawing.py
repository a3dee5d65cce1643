"""The drawing of lanes with matplotlib, from top to bottom: upright in points, along in seconds."""

from __future__ import annotations

import io
from collections import defaultdict
from itertools import count
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from nemo_rl_deadline_fix.replay.lanes import ADMISSION, CLOSED, Kind, Span, lanes, seconds, spans
from nemo_rl_deadline_fix.replay.verdict import Verification

# In points: ten inches wide, which is a README's width on a screen.
WIDTH, LEFT, RIGHT, MARGIN = 720.0, 100.0, 16.0, 12.0
SPACE = WIDTH - LEFT - RIGHT
HEADING, TITLE, AXIS, LEGEND = 40.0, 30.0, 24.0, 46.0
BAR, CLOCK, ROW, GAP, PAD = 13.0, 28.0, 12.0, 6.0, 4.0
# What is over at once still leaves a stroke.
STROKE = 2.0
SIZE, SMALL = 8.8, 8.0

INK, BAD, GOOD, GREY = "#1a1a1a", "#992f00", "#00604a", "#616161"
_MAKER = "nemo-rl-deadline-fix verify --plot"
SETTINGS: dict[Any, Any] = {
    # The same picture is the same file.
    "svg.hashsalt": "nemo-rl-deadline-fix",
    # Glyphs as outlines: no viewer has to have the font, and nothing gets wider than it was measured.
    "svg.fonttype": "path",
    "text.hinting": "none",
    "text.parse_math": False,
    "font.size": SIZE,
    "hatch.linewidth": 0.6,
}


def render(verification: Verification, kind: str) -> bytes:
    """The picture as a file's bytes, the same ones each time.

    Args:
        verification: What was found; there must be a replay to show.
        kind: `svg` or `png`.
    """
    metadata: dict[str, Any] = {"Software": _MAKER}
    if kind == "svg":
        metadata = {"Date": None, "Creator": _MAKER, "Title": _heading(verification)}
    data = io.BytesIO()
    # Neither the user's settings nor ours get into the other's pictures.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        figure(verification).savefig(data, format=kind, dpi=144, metadata=metadata)
    return data.getvalue()


def figure(verification: Verification) -> Figure:
    """The whole picture, a panel for each form, with the settings of matplotlib that are in force."""
    runs = verification.runs
    end = 1.025 * max(event.at for run in runs.values() for event in run.events)
    point = end / SPACE
    picture = Figure(facecolor="white")
    sheet = picture.add_axes((0, 0, 1, 1), xlim=(-LEFT * point, end + RIGHT * point))
    sheet.axis("off")
    left = (MARGIN - LEFT) * point
    targets = {"embedded": "the embedded model", "checkout": "a checkout's own classes"}
    target = targets.get(verification.kind, "the installed NeMo RL")
    about = f"Times as nemo-rl-deadline-fix verify computed them on {target}"
    _write(sheet, left, 17, _heading(verification), "heading", size=12, weight="bold")
    _write(sheet, left, 33, about, "about", color=GREY)
    y, used = HEADING, {CLOSED.legend: CLOSED}
    (_, _, what), *rows = verification.summary()
    for (form, run), (_, saved, outcome) in zip(runs.items(), rows, strict=True):
        shown = lanes(run, verification.parameters.budget)
        kinds = [span.kind for lane in shown.values() for span in lane]
        used |= {kind.legend: kind for kind in kinds}
        what = what.removeprefix("RL outcome of ")
        title = f"{verification.title(form)}. {saved} snapshots saved; {what}: {outcome}"
        failed = any(snapshot.outcome != "committed" for snapshot in run.snapshots)
        color = BAD if failed or run.trouble else GOOD
        title = title[0].upper() + title[1:]
        _write(sheet, left, y + 15, title, f"{form} title", color=color, size=10.5, weight="bold")
        top = y = y + TITLE
        for name, lane in shown.items():
            y = _draw_lane(sheet, form, name, lane, y, end)
        _draw_axis(sheet, form, list(spans(run, ADMISSION)), top - GAP, y, end)
        y += AXIS
    swatches = [Patch(label=kind.legend, **_look(kind)) for kind in used.values()]
    place = {"bbox_to_anchor": (LEFT / WIDTH, 0), "ncols": 5}
    legend = picture.legend(handles=swatches, loc="lower left", frameon=False, fontsize=SMALL, **place)
    for swatch, kind in zip(legend.get_patches(), used, strict=True):
        swatch.set_gid(_gid(f"legend {kind}"))
    sheet.set_ylim(y + LEGEND, 0)
    picture.set_size_inches(WIDTH / 72, (y + LEGEND) / 72)
    return picture


def _heading(verification: Verification) -> str:
    snapshot, budget = verification.parameters.snapshot_for, verification.parameters.budget
    return f"A Gym snapshot of {seconds(snapshot)} s against a rollout budget of {seconds(budget)} s"


def _draw_lane(sheet: Axes, form: str, name: str, lane: list[Span], top: float, end: float) -> float:
    """Draw a lane's name, bars and captions; return where it ends."""
    point = end / SPACE
    bottom = top + (BAR if all(span.heights == (1, 1) for span in lane) else CLOCK)
    middle = (top + bottom) / 2
    _write(sheet, -2 * PAD * point, middle, name, f"{form} {name} name", ha="right")
    bars = [(span.begin, max(min(span.end, end), span.begin + STROKE * point)) for span in lane]
    rows = defaultdict(list, {0: bars.copy()})
    for number, (span, (left, right)) in enumerate(zip(lane, bars, strict=True)):
        gid = f"{form} {name} {span.kind.legend} {number}"
        first, last = (bottom - (bottom - top) * part for part in span.heights)
        corners = (left, left, right, right), (bottom, first, last, bottom)
        sheet.fill(*corners, gid=_gid(gid), zorder=2, **_look(span.kind))
        # A clock that ran on has failed where nothing was left.
        if span.kind.bad and span.end <= end and last in (top, bottom):
            y = middle if last == top else bottom
            (cross,) = sheet.plot(span.end, y, "X", color=BAD, markersize=9, gid=_gid(f"{gid} cross"))
            cross.set(markeredgecolor="white", markeredgewidth=0.8, zorder=5)
        if span.caption:
            x, row = _place(span, right, rows, end)
            y = bottom + ROW * row - 4 if row else middle
            look = {"color": BAD, "weight": "bold"} if span.kind.bad else {}
            _write(sheet, x, y, span.caption, f"{gid} caption", **look)
    return bottom + ROW * max(rows) + GAP


def _place(
    span: Span, right: float, rows: dict[int, list[tuple[float, float]]], end: float
) -> tuple[float, int]:
    """A caption's left edge and row: right of its bar in row 0 if that is free, else in the first that is.

    Below the bars it begins where its span does, or ends where that failed, and is always in the picture.
    """
    gap = PAD * end / SPACE
    font = FontProperties(weight="bold" if span.kind.bad else "normal")
    width = float(TextPath((0, 0), span.caption, SIZE, font).get_extents().width) * end / SPACE

    def free(row: int) -> bool:
        return all(left + width + gap <= begin or over + gap <= left for begin, over in rows[row])

    # A failure's cross is wider than a bar's end.
    row, left = 0, right + (2 * gap if span.kind.bad else gap)
    if left + width > end or not free(0):
        begin = max(span.begin, right - width) if span.kind.bad and span.end <= end else span.begin
        left = max(0.0, min(begin, end - width))
        row = next(row for row in count(1) if free(row))
    rows[row].append((left, left + width))
    return left, row


def _draw_axis(sheet: Axes, gid: str, bands: list[Span], top: float, bottom: float, end: float) -> None:
    for number, band in enumerate(bands):
        xs = (band.begin, band.begin, min(band.end, end), min(band.end, end))
        ys = (bottom, top, top, bottom)
        sheet.fill(xs, ys, gid=_gid(f"{gid} closed {number}"), zorder=0.1, **_look(band.kind))
    for tick in MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10]).tick_values(0, end):
        if tick <= end:
            sheet.plot((tick, tick), (top, bottom), color="#efefef", linewidth=0.6, zorder=0.2)
            look = {"ha": "center", "color": GREY, "size": SMALL}
            _write(sheet, tick, bottom + 8, f"{tick:.10g} s", f"{gid} tick {tick:.10g}", **look)


def _look(kind: Kind) -> dict[str, Any]:
    return {"facecolor": kind.face, "edgecolor": kind.edge, "hatch": kind.hatch, "linewidth": 0.9}


def _write(sheet: Axes, x: float, y: float, words: str, gid: str, **look: Any) -> None:
    sheet.text(x, y, words, gid=_gid(gid), va="center_baseline", zorder=6, **{"color": INK, **look})


def _gid(words: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in words.lower()).split())
