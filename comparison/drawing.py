"""How a plot is drawn: as SVG whose colours follow the reader's light or dark mode."""

import math
import re
from dataclasses import dataclass
from html import escape
from io import StringIO

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

# Distinguishable to colour-blind readers (Okabe & Ito 2008), darkened or brightened to 3:1 against the page.
LIGHT = ("#0072b2", "#c24e00", "#007a5a", "#a6407f", "#8a6d00", "#3a3a3a", "#2a8bc4", "#b3261e")
DARK = ("#56b4e9", "#ff9b54", "#2fc79a", "#e58cc3", "#e6cf4a", "#d0d0d0", "#9ad4f5", "#ff8a80")
DASHES, MARKERS = ("-", "--", ":", "-."), "os^Dv<>P"
DARK_MODE = "@media (prefers-color-scheme: dark)"
INK = "#010203"  # a placeholder for the colour of the surrounding text
# of matplotlib's SVG: all up to the drawing itself, and what the page sets or no reader needs
UNUSED = r"""\A.*?<svg.*?> | <metadata>.*?</metadata> | <defs>\s*<style.*?</style>\s*</defs> | <!--.*?-->
    | [ ]font-family:[^;]*; | \btransform="rotate\(-0[ ][^"]*" """
WIDTH, HEIGHT = 4.8, 3.4  # inches; small, so that letters stay readable on a phone


@dataclass(frozen=True)
class Series:
    """One line: points (x, y), and the lower and upper edge of its band. None leaves a gap.

    colour and dash: indices, the same for one line in all plots.
    """

    label: str
    points: list[tuple[float, float | None]]
    band: list[tuple[float, float] | None] | None = None
    colour: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Plot:
    """Lines over one pair of axes, and what they show in words."""

    name: str
    title: str
    x: str
    y: str
    description: str
    series: list[Series]
    log_x: bool = False
    zero: bool = False  # a line at 0
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


def palette() -> str:
    """CSS that gives the plots' colours, in light and in dark mode."""
    light, dark = (" ".join(f"--c{i}: {c};" for i, c in enumerate(colours)) for colours in (LIGHT, DARK))
    return f":root {{ color-scheme: light dark; {light} }}\n{DARK_MODE} {{ :root {{ {dark} }} }}\n"


def inline_svg(plot: Plot) -> str:
    """The plot as an <svg> for an HTML page that has `palette` in its style, with its title and description."""
    drawn, title, words = _draw(plot), f"{plot.name}-title", f"{plot.name}-description"
    size = re.search(r'viewBox="[^"]*"', drawn)[0]
    text = re.sub(UNUSED, "", drawn, flags=re.S | re.X)
    text = re.sub(r'(?<= id=")|(?<=href="#)|(?<=url\(#)', f"{plot.name}-", text)  # one page holds many plots
    for i, colour in enumerate(LIGHT):
        text = text.replace(colour, f"var(--c{i})")
    text = re.sub(r"\s*\n\s*", " ", text.replace(INK, "currentColor").replace("xlink:href", "href"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="{title} {words}" '
        f'stroke-linejoin="round"><title id="{title}">{escape(plot.title)}</title>'
        f'<desc id="{words}">{escape(plot.description)}</desc>'
    )
    return head + text.strip()


def svg_file(plot: Plot) -> str:
    """The plot as a file of its own."""
    style = (
        f"<style>{palette()}svg {{ color: #1a1a1a; font-family: system-ui, sans-serif; }}\n"
        f"{DARK_MODE} {{ svg {{ color: #e6e6e6; }} }}</style>"
    )
    return inline_svg(plot).replace("<title", f"{style}<title", 1)


def _draw(plot: Plot) -> str:
    look = {
        "svg.fonttype": "none",  # letters stay text
        "svg.hashsalt": plot.name,  # the same numbers give the same file
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.markersize": 3,
    }
    with matplotlib.rc_context(look):
        figure = Figure(figsize=(WIDTH, HEIGHT + 0.17 * -(-len(plot.series) // 3)), layout="constrained")
        axes = figure.subplots()
        for series in plot.series:
            colour = LIGHT[series.colour % len(LIGHT)]
            style = DASHES[(series.dash + series.colour // len(LIGHT)) % len(DASHES)]
            xs, ys = zip(*series.points)  # matplotlib takes None as a gap
            marker = MARKERS[series.colour % len(MARKERS)] if len(xs) <= 40 else None
            axes.plot(xs, ys, style, color=colour, marker=marker, linewidth=1.3, label=series.label)
            if series.band:
                low, high = zip(*(edges or (math.nan, math.nan) for edges in series.band))
                axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
        if plot.zero:
            axes.axhline(0, color=INK, linewidth=0.7)
        if plot.mark:
            x, meaning = plot.mark
            axes.axvline(x, color=INK, linewidth=0.7, linestyle=":")
            axes.annotate(meaning, (x, 1), (3, -2), ("data", "axes fraction"), "offset points", va="top", fontsize=8)
        axes.set(xlabel=plot.x, ylabel=plot.y, xscale="log" if plot.log_x else "linear")
        xs = [x for series in plot.series for x, _ in series.points]
        if plot.ticks:
            axes.set_xticks(range(len(plot.ticks)), plot.ticks)
        elif plot.log_x:
            doublings = [min(xs) * 2**n for n in range(1 + int(math.log2(max(xs) / min(xs)) + 1e-9))]
            axes.set_xticks(doublings, [f"{x:g}" for x in doublings])
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.2, color=INK, linewidth=0.5)
        if len(plot.series) > 1:
            figure.legend(loc="outside lower center", ncols=min(3, len(plot.series)), frameon=False, fontsize=8)
        out = StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()
