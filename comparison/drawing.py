"""How a plot is drawn: as SVG whose colours follow the reader's light or dark mode."""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from io import StringIO

import matplotlib
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from comparison.formats import shortened

# Distinguishable to colour-blind readers (Okabe & Ito 2008), darkened or brightened to 4.5:1 against the page.
LIGHT = ("#0072b2", "#c24e00", "#007a5a", "#a6407f", "#8a6d00", "#3a3a3a", "#1d76ab", "#b3261e")
DARK = ("#56b4e9", "#ff9b54", "#2fc79a", "#e58cc3", "#e6cf4a", "#d0d0d0", "#9ad4f5", "#ff8a80")
GREY = ("#6b7078", "#9aa0a8")  # in light and in dark mode
DASHES, MARKERS = ("-", "--", ":", "-."), "os^Dv<>P"
DARK_MODE = "@media (prefers-color-scheme: dark)"
INK = "#010203"  # a placeholder for the colour of the surrounding text
# of matplotlib's SVG: all up to the drawing itself, and what the page sets or no reader needs
UNUSED = r"""\A.*?<svg.*?> | <metadata>.*?</metadata> | <defs>\s*<style.*?</style>\s*</defs> | <!--.*?-->
    | [ ]font-family:[^;]*; | \btransform="rotate\(-0[ ][^"]*" """
WIDTH, HEIGHT = 4.8, 3.4  # inches; small, so that letters stay readable on a phone
LONGEST = 20  # letters of a label
LETTER = 5.0  # points that one takes
STEP = 2.5  # points between two bars at one x


@dataclass(frozen=True)
class Series:
    """One line: points (x, y), and the lower and upper edge of its band. None leaves a gap.

    colour and dash: indices, the same for one line in all plots; colour None: that of the text.
    """

    label: str
    points: list[tuple[float, float | None]]
    band: list[tuple[float, float] | None] | None = None
    colour: int | None = 0
    dash: int = 0


@dataclass(frozen=True)
class Plot:
    """Lines over one pair of axes, and what they show in words.

    One or two lines are drawn in their bands; of more, each band is a bar at the end of its line. Where x has names, each
    point has its bar.
    """

    name: str
    title: str
    x: str
    y: str
    description: str
    series: list[Series]
    log_x: bool = False
    levels: list[tuple[float, str]] = field(default_factory=list)  # horizontal lines and what they mean
    mark: tuple[float, str] | None = None  # a vertical line and what it means
    ticks: list[str] | None = None  # names of x = 0, 1, 2 …
    table: tuple[list[str], list[list]] | None = None  # header and rows, in place of those of the lines

    def numbers(self) -> tuple[list[str], list[list]]:
        """Header and rows of a table of the plot: x, then the y of each line, None where it has none."""
        if self.table:
            return self.table
        lines = [dict(series.points) for series in self.series]
        xs = sorted({x for line in lines for x in line})
        header = [self.x, *(series.label for series in self.series)]
        return header, [[x, *(line.get(x) for line in lines)] for x in xs]

    @cached_property
    def svg(self) -> str:
        """The <svg> for an HTML page that has `palette` in its style, with its title and description."""
        drawn, title, words = _draw(self), f"{self.name}-title", f"{self.name}-description"
        size = re.search(r'viewBox="[^"]*"', drawn)[0]
        text = re.sub(UNUSED, "", drawn, flags=re.S | re.X)
        text = re.sub(r'(?<= id=")|(?<=href="#)|(?<=url\(#)', f"{self.name}-", text)  # one page holds many plots
        for i, colour in enumerate(LIGHT):
            text = text.replace(colour, f"var(--c{i})")
        text = re.sub(r"\s*\n\s*", " ", text.replace(INK, "currentColor").replace("xlink:href", "href"))
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="{title} {words}" '
            f'stroke-linejoin="round"><title id="{title}">{escape(self.title)}</title>'
            f'<desc id="{words}">{escape(self.description)}</desc>'
        )
        return head + text.strip()


def palette() -> str:
    """CSS that gives the plots' colours, in light and in dark mode."""
    light, dark = (
        f"--grey: {grey}; " + " ".join(f"--c{i}: {c};" for i, c in enumerate(colours))
        for colours, grey in zip((LIGHT, DARK), GREY)
    )
    return f":root {{ color-scheme: light dark; {light} }}\n{DARK_MODE} {{ :root {{ {dark} }} }}\n"


def svg_file(plot: Plot) -> str:
    """The plot as a file of its own."""
    return plot.svg.replace("<title", f"{svg_style()}<title", 1)


def svg_style() -> str:
    """What a picture in a file of its own needs to follow the reader's mode."""
    return (
        f"<style>{palette()}svg {{ color: #1a1a1a; font-family: system-ui, sans-serif; }}\n"
        f"{DARK_MODE} {{ svg {{ color: #e6e6e6; }} }}</style>"
    )


def _draw(plot: Plot) -> str:
    look = {
        "svg.fonttype": "none",  # letters stay text
        "svg.hashsalt": plot.name,  # the same numbers give the same file
        "font.size": 9,
        "text.parse_math": False,  # a folder's name may have a $
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.markersize": 3,
    }
    with matplotlib.rc_context(look):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        labels = [series.label for series in plot.series] + [meaning for _, meaning in plot.levels]
        names = LETTER * max(len(shortened(label, LONGEST)) for label in labels)
        room = 1 - (8 + STEP * len(plot.series) + names) / (72 * WIDTH)  # beside the labels at the lines' ends
        aslant = 20 * (len("".join(plot.ticks or [])) > 40)  # degrees, for names that are no numbers
        axes = figure.add_axes((0.16, 0.13 + aslant / 200, room - 0.16, 0.81 - aslant / 200))
        banded = [series for series in plot.series if series.band and any(series.band)]
        for n, series in enumerate(plot.series):
            colour = _colour(series)
            style = DASHES[(series.dash + (series.colour or 0) // len(LIGHT)) % len(DASHES)]
            aside = axes.transData + _points(figure, STEP * n * bool(plot.ticks and banded))
            xs, ys = zip(*series.points)  # matplotlib takes None as a gap
            marker = MARKERS[(series.colour or 0) % len(MARKERS)] if len(xs) <= 40 else None
            axes.plot(xs, ys, style, color=colour, marker=marker, linewidth=1.3, transform=aside, clip_on=False)
            axes.update_datalim([(x, y) for x, y in series.points if y is not None])  # which shifted lines don't
            if series in banded:
                _spread(axes, series, colour, bool(plot.ticks), len(banded) <= 2, n)
        if plot.mark:
            x, meaning = plot.mark
            axes.axvline(x, color=INK, linewidth=0.7, linestyle=":")
            axes.annotate(meaning, (x, 1), (3, -2), ("data", "axes fraction"), "offset points", va="top", fontsize=8)
        for y, meaning in plot.levels:
            axes.axhline(y, color=INK, linewidth=0.7, linestyle=":" if meaning else "-")
        axes.set(xlabel=plot.x, ylabel=plot.y, xscale="log" if plot.log_x else "linear")
        axes.autoscale_view()
        xs = [x for series in plot.series for x, _ in series.points]
        if plot.ticks:
            place = {"rotation": aslant, "ha": "right" if aslant else "center"}
            axes.set_xticks(range(len(plot.ticks)), [shortened(name, LONGEST) for name in plot.ticks], **place)
        elif plot.log_x:
            times = int(math.log2(max(xs) / min(xs)) + 1e-9)
            doublings = [max(xs) / 2**n for n in range(0, times + 1, 1 + times // 8)]  # no label over the next
            axes.set_xticks(doublings, [f"{x:g}" for x in doublings])
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        left, bottom, width, height = axes.get_position().bounds
        outside = max(0, -axes.yaxis.get_tightbbox().x0 / figure.bbox.width)  # of the label, beside long ticks
        axes.set_position((left + outside, bottom, width - outside, height))
        axes.grid(alpha=0.2, color=INK, linewidth=0.5)
        _label_ends(plot, figure, axes)
        out = StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()


def _colour(series: Series) -> str:
    return INK if series.colour is None else LIGHT[series.colour % len(LIGHT)]


def _points(figure: Figure, right: float) -> ScaledTranslation:
    return ScaledTranslation(right / 72, 0, figure.dpi_scale_trans)


def _spread(axes, series: Series, colour: str, every: bool, few: bool, n: int) -> None:
    known = [(x, edges) for (x, y), edges in zip(series.points, series.band) if y is not None]
    bars = [(x, *edges) for x, edges in (known if few or every else known[-1:]) if edges]
    if few and not every:
        axes.fill_between(*zip(*bars), color=colour, alpha=0.2, linewidth=0)
        return
    aside = axes.transData + _points(axes.figure, STEP * (n + (not every)))  # one beside the other
    look = {"colors": colour, "linewidths": 1, "clip_on": False, "transform": aside}
    axes.add_collection(LineCollection([[(x, low), (x, high)] for x, low, high in bars], **look), autolim=False)
    axes.update_datalim([(x, y) for x, *edges in bars for y in edges])


def _label_ends(plot: Plot, figure: Figure, axes) -> None:
    """Each line's name beside its last point, moved up or down as far as the others leave no room."""
    (low, high), height = axes.get_ylim(), 0.052  # of a label, as a part of that of the axes
    axes.set_ylim(low, high)
    ends: dict[float, list[tuple[float, str, str]]] = {}
    for series in plot.series:
        if known := [(x, y) for x, y in series.points if y is not None]:
            ends.setdefault(known[-1][0], []).append((known[-1][1], series.label, _colour(series)))
    ends.setdefault(max(ends), []).extend((y, meaning, INK) for y, meaning in plot.levels if meaning)
    aside = axes.get_xaxis_transform() + _points(figure, 8 + STEP * len(plot.series))
    for x, some in ends.items():
        some.sort()
        places = _apart([(y - low) / (high - low) for y, *_ in some], min(height, 1 / len(some)))
        for (y, label, colour), at in zip(some, places):
            line = dict(arrowstyle="-", color=colour, linewidth=0.5, shrinkA=1, shrinkB=2, relpos=(0, 0.5))
            axes.annotate(
                shortened(label, LONGEST), (x, y), (x, at), textcoords=aside, color=colour, fontsize=8, va="center",
                arrowprops=line, annotation_clip=False,
            )  # fmt: skip


def _apart(wanted: list[float], room: float) -> list[float]:
    """Ascending places, at least room apart, between 0 and 1, as near to those wanted as can be (least squares)."""
    below = room * np.arange(len(wanted))  # what the places below take
    free = wanted - below
    if (np.diff(free) < 0).any():
        from scipy.optimize import isotonic_regression  # takes a quarter of a second, which few pages need

        free = isotonic_regression(free).x
    return list(free.clip(0, 1 - below[-1]) + below)
