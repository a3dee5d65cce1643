"""The drawing of lanes: every word gets its place in points first, then matplotlib draws.

The widths of the words are measured before anything is drawn, so that the captions of any story stay apart
and inside the picture, with as many rows as that takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Polygon, Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from nemo_rl_deadline_fix.replay import lanes
from nemo_rl_deadline_fix.replay.lanes import Caption, Lane, Panel, SpanKind
from nemo_rl_deadline_fix.replay.verdict import Verification

# All in points: ten inches wide, which is a README's width on a screen.
WIDTH, LEFT, RIGHT = 720.0, 100.0, 16.0
SPACE = WIDTH - LEFT - RIGHT
HEADING, TITLE, BANDS, AXIS, LEGEND = 40.0, 24.0, 14.0, 24.0, 36.0
BAR, CLOCK, ROW, GAP, PAD = 13.0, 28.0, 12.0, 6.0, 4.0
# What is over at once still leaves a stroke.
STROKE = 2.0
SIZE, SMALL = 8.8, 8.0

INK, BAD, GOOD, GREY = "#1a1a1a", "#992f00", "#00604a", "#616161"

# Okabe and Ito's colours, light enough to write on: (face, edge, hatch). What is hatched stands still.
STYLES = {
    SpanKind.CLOSED: ("#e4e4e4", "#e4e4e4", ""),
    SpanKind.SNAPSHOT: ("#cbcbcb", "#6f6f6f", ""),
    SpanKind.READING: ("#a9d3ee", "#0072b2", ""),
    SpanKind.RUNNING: ("#a3dcc8", "#009e73", ""),
    SpanKind.PARKED: ("#ffffff", "#009e73", "////"),
    SpanKind.WAITING: ("#ffffff", "#6f6f6f", "----"),
    SpanKind.KEPT: ("#f9d78f", "#b87a00", ""),
    SpanKind.PREPARED: ("#e2f4ee", "#009e73", ""),
    SpanKind.NOT_READY: ("#f6b899", "#d55e00", ""),
    SpanKind.BUDGET: ("#e6c8da", "#a6447d", ""),
    SpanKind.STOPPED: ("#ffffff", "#a6447d", "\\\\\\\\"),
}
LEGEND_ROWS = (
    (SpanKind.READING, SpanKind.RUNNING, SpanKind.PREPARED, SpanKind.BUDGET, SpanKind.KEPT),
    (SpanKind.CLOSED, SpanKind.PARKED, SpanKind.WAITING, SpanKind.STOPPED),
)


def heading(verification: Verification) -> str:
    """What the picture is about."""
    parameters = verification.parameters
    return (
        f"A Gym snapshot of {lanes.seconds(parameters.snapshot_for)} against a rollout budget of "
        f"{lanes.seconds(parameters.budget)}"
    )


def figure(verification: Verification) -> Figure:
    """The whole picture, with the settings of matplotlib that are in force.

    Args:
        verification: What was found; there must be a replay to show.
    """
    end = 1.025 * max(event.at for run in verification.runs.values() for event in run.events)
    panels = [_Panel(panel, end) for panel in lanes.panels(verification)]
    height = HEADING + sum(TITLE + panel.height + AXIS for panel in panels) + LEGEND
    picture = Figure(figsize=(WIDTH / 72, height / 72), facecolor="white")
    FigureCanvasAgg(picture)
    sheet = picture.add_axes((0, 0, 1, 1))
    sheet.set(xlim=(0, WIDTH), ylim=(height, 0))
    sheet.axis("off")
    target = {"embedded": "the embedded model", "checkout": "a checkout's own classes"}
    about = (
        "Times in seconds, as nemo-rl-deadline-fix verify computed them on "
        f"{target.get(verification.kind, 'the installed NeMo RL')}"
    )
    _write(sheet, 12, 17, heading(verification), "heading", size=12, weight="bold")
    _write(sheet, 12, 33, about, "about", GREY)
    top = HEADING
    for panel in panels:
        color = BAD if panel.panel.bad else GOOD
        _write(sheet, 12, top + 15, panel.panel.title, f"{panel.panel.name}-title", color, 10.5, "bold")
        top += TITLE
        box = (LEFT / WIDTH, 1 - (top + panel.height) / height, SPACE / WIDTH, panel.height / height)
        panel.draw(picture.add_axes(box))
        top += panel.height + AXIS
    _draw_legend(sheet, top + 8)
    return picture


@dataclass(frozen=True)
class _Placed:
    """A caption with its left edge and its row, both in the lane; row 0 is the bar's own."""

    caption: Caption
    left: float
    row: int


class _Panel:
    """One replay's lanes, with a place for every word."""

    def __init__(self, panel: Panel, end: float) -> None:
        self.panel = panel
        self._end = end
        self._scale = SPACE / end
        self._places: list[tuple[Lane, float, list[_Placed]]] = []
        self.height = BANDS
        for lane in panel.lanes:
            placed = self._place(lane)
            self._places.append((lane, self.height, placed))
            rows = max((entry.row for entry in placed), default=0)
            self.height += _tall(lane) + ROW * rows + GAP

    def draw(self, axes: Axes) -> None:
        """Draw the lanes on axes of this panel's size."""
        axes.set(xlim=(0, SPACE), ylim=(self.height, 0))
        axes.set_axis_off()
        self._draw_ticks(axes)
        self._draw_bands(axes)
        for lane, top, placed in self._places:
            self._draw_lane(axes, lane, top, placed)

    def _x(self, at: float | None) -> float:
        return SPACE if at is None else at * self._scale

    def _right(self, begin: float, end: float | None) -> float:
        return max(self._x(end), self._x(begin) + STROKE)

    def _place(self, lane: Lane) -> list[_Placed]:
        """Over its bar if it fits and may be there, else right of it, else in the first free row below."""
        bars = [(self._x(span.begin), self._right(span.begin, span.end)) for span in lane.spans]
        bars += [(self._x(curve[0][0]), self._x(curve[-1][0])) for curve in lane.curve]
        rows: list[list[tuple[float, float]]] = [bars]
        over: list[tuple[float, float]] = []
        placed = []
        for caption in sorted(lane.captions, key=lambda entry: entry.begin):
            begin, end = self._x(caption.begin), self._right(caption.begin, caption.end)
            width = _width(caption.text, caption.bad)
            inside = begin + PAD if caption.end is None or not caption.bad else end - 3 * PAD - width
            fits = begin + PAD <= inside and inside + width + PAD <= end
            if caption.inside and fits and _free(over, inside, width):
                over.append((inside, inside + width))
                placed.append(_Placed(caption, inside, 0))
                continue
            # A failure's cross is wider than a bar's end.
            left = end + (2 * PAD if caption.bad else PAD)
            row = 0
            while left + width > SPACE or not _free(rows[row], left, width):
                row += 1
                if row == len(rows):
                    rows.append([])
                left = max(0.0, min(begin, SPACE - width))
            rows[row].append((left, left + width))
            placed.append(_Placed(caption, left, row))
        return placed

    def _draw_ticks(self, axes: Axes) -> None:
        name = self.panel.name
        ticks = MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10]).tick_values(0, self._end)
        for tick in ticks:
            if 0 <= tick <= self._end:
                x = self._x(tick)
                axes.plot([x, x], [0, self.height], color="#efefef", linewidth=0.6, zorder=0.2)
                words = f"{tick:.10g}"
                left = x - _width(words, bold=False) * SMALL / SIZE / 2
                _write(axes, left, self.height + 8, words, f"{name}-tick-{words}", GREY, SMALL)
        _write(axes, 8 - LEFT + 4, self.height + 8, "seconds", f"{name}-unit", GREY, SMALL)

    def _draw_bands(self, axes: Axes) -> None:
        name, words, written = self.panel.name, SpanKind.CLOSED.value, list[tuple[float, float]]()
        width = _width(words, bold=False) * SMALL / SIZE
        for number, (begin, end) in enumerate(self.panel.closed):
            left, right = self._x(begin), self._x(end)
            _bar(axes, left, 0, right - left, self.height, SpanKind.CLOSED, f"{name}-closed-{number}")
            middle = min(max(0.0, (left + right - width) / 2), SPACE - width)
            # A snapshot that is over at once leaves no band to name.
            if right - left > PAD and _free(written, middle, width):
                written.append((middle, middle + width))
                _write(axes, middle, 6.5, words, f"{name}-closed-{number}-name", GREY, SMALL)

    def _draw_lane(self, axes: Axes, lane: Lane, top: float, placed: list[_Placed]) -> None:
        gid, height = f"{self.panel.name}-{_slug(lane.name)}", CLOCK if lane.curve else BAR
        middle = top + height / 2
        _write(axes, -_width(lane.name, bold=False) - 2 * PAD, middle, lane.name, f"{gid}-name")
        most = max((left for curve in lane.curve for _, left in curve), default=1.0)
        for number, curve in enumerate(lane.curve):
            points = [(self._x(at), top + height * (1 - left / most)) for at, left in curve]
            area = [(points[0][0], top + height), *points, (points[-1][0], top + height)]
            face, edge, _ = STYLES[SpanKind.BUDGET]
            shape = Polygon(area, closed=True, facecolor=face, edgecolor=edge, linewidth=0.9, zorder=1)
            shape.set_gid(f"{gid}-curve-{number}")
            axes.add_patch(shape)
        for number, span in enumerate(lane.spans):
            begin, end = self._x(span.begin), self._right(span.begin, span.end)
            # The clock's bars are as high as what is left of the budget; never quite nothing.
            tall = height if span.budget_left is None else max(STROKE, height * span.budget_left / most)
            name = f"{gid}-{_slug(span.kind.name)}-{number}"
            _bar(axes, begin, top + height - tall, end - begin, tall, span.kind, name)
        for at in lane.crosses:
            y = top + height if lane.curve else middle
            (cross,) = axes.plot([self._x(at)], [y], marker="X", markersize=9, color=BAD, clip_on=False)
            cross.set(markeredgecolor="white", markeredgewidth=0.8, zorder=5, gid=f"{gid}-cross")
        for number, entry in enumerate(placed):
            caption = entry.caption
            y = top + _tall(lane) + ROW * (entry.row - 0.45) if entry.row else middle
            color = BAD if caption.bad else INK
            weight = "bold" if caption.bad else "normal"
            _write(axes, entry.left, y, caption.text, f"{gid}-caption-{number}", color, weight=weight)


def _tall(lane: Lane) -> float:
    # A clock's crosses are on its zero line and need some room below it.
    return CLOCK + 3 if lane.curve else BAR


def _draw_legend(sheet: Axes, top: float) -> None:
    for row, kinds in enumerate(LEGEND_ROWS):
        y = top + 15 * row
        for column, kind in enumerate(kinds):
            x = LEFT + SPACE / 5 * column
            _bar(sheet, x, y - 5, 14, 10, kind, f"legend-{_slug(kind.name)}-swatch")
            _write(sheet, x + 18, y, kind.value, f"legend-{_slug(kind.name)}", size=SMALL)


def _bar(axes: Axes, x: float, y: float, width: float, height: float, kind: SpanKind, gid: str) -> None:
    face, edge, hatch = STYLES[kind]
    bar = Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.9)
    bar.set(gid=gid, zorder=0.1 if kind is SpanKind.CLOSED else 2)
    axes.add_patch(bar)


def _write(
    axes: Axes,
    x: float,
    y: float,
    words: str,
    gid: str,
    color: str = INK,
    size: float = SIZE,
    weight: str = "normal",
) -> None:
    text = axes.text(x, y, words, color=color, fontsize=size, fontweight=weight, va="center_baseline")
    text.set(parse_math=False, gid=gid, zorder=6)


def _width(words: str, bold: bool) -> float:
    font = FontProperties(size=SIZE, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(words, font, ismath=False)
    return float(width)


def _free(taken: list[tuple[float, float]], left: float, width: float) -> bool:
    # A hair less than the gap, so that what is set exactly one gap apart is free.
    gap = PAD - 0.01
    return all(left >= end + gap or left + width + gap <= begin for begin, end in taken)


def _slug(name: str) -> str:
    return "-".join(name.lower().replace("/", " ").replace(",", " ").replace("_", " ").split())
