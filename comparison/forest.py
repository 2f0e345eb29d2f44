"""The forest plot: a row for each variant with its difference to the baseline, how sure it is, and what follows."""

from dataclasses import dataclass
from html import escape

from matplotlib.ticker import MaxNLocator

from comparison.drawing import svg_style
from comparison.formats import shortened
from comparison.results import Results
from comparison.verdicts import Finding, findings, learned

COLOURS = {"better": "var(--c0)", "worse": "var(--c1)", "equal": "currentColor", "baseline": "currentColor"}
GREY = "var(--grey)"  # of what is not decided
OUTLIER = 20  # times the median distance from zero: what lies farther out would leave the others no room
ROW, BAR, CELL, VERDICT, LETTER = 26, 280, 112, 250, 7  # sizes in the file, in px
LONGEST = 36  # letters of a name or verdict in the file


@dataclass(frozen=True)
class Forest:
    """A row for each variant, over one axis from start to end. columns: cells by variant, under their heading.

    margin: of what counts as equal, on both sides of zero; None where zero is no difference.
    """

    axis: str
    rows: dict[str, Finding]
    columns: dict[str, dict[str, str]]
    start: float
    end: float
    ticks: dict[float, str]
    margin: float | None
    note: str

    def cells(self, variant: str) -> list[str]:
        """What each column says of a variant."""
        return [column.get(variant, "n/a") for column in self.columns.values()]

    def place(self, x: float) -> str:
        """x on the axis, in percent of its width; what lies outside is at its end."""
        return f"{100 * (min(max(x, self.start), self.end) - self.start) / (self.end - self.start):.2f}%"


def forest(results: Results) -> Forest:
    """Of differences in loss, lowest first; for a task, where a seed learns all or nothing, of shares of seeds."""
    return _of_task(results) if learned(results) else _of_losses(results)


def _of_losses(results: Results) -> Forest:
    rows, margin = findings(results), results.margin
    differences = {variant: f"{one.value:+z.3f}" for variant, one in rows.items() if one.value is not None}
    columns = {"difference": differences | {results.baseline: "—"}, "loss": _losses(results)}
    note = f"Bars: 95 % intervals. Shaded: up to {margin:g}, which counts as equal. Grey: not decided."
    series = {variant: {at.x: at.mean for at in row.loss_by_context} for variant, row in results.summary.items()}
    known = {variant: {x: loss for x, loss in losses.items() if loss is not None} for variant, losses in series.items()}
    longest = max((x for losses in known.values() for x in losses), default=0)
    if longest > results.context:  # the losses are of other tokens than those beside, so only their change can be shown
        both, times = {longest, results.context}, f"{longest / results.context:g}"
        columns[f"change at {times}×"] = {
            variant: f"{losses[longest] - losses[results.context]:+z.3f}"
            for variant, losses in known.items()
            if both <= losses.keys()
        }
        note += f" Change: of the loss of the same tokens, with {times} times the trained context."
    start, end = _limits([_drawn(one) for one in rows.values() if one.kind != "baseline"], margin)
    ticks = [round(float(x), 9) for x in MaxNLocator(4).tick_values(start, end) if start <= x <= end]
    axis = f"difference to {shortened(results.baseline, LONGEST)} in {results.unit}"
    return Forest(axis, rows, columns, start, end, {x: f"{x:+g}" if x else "0" for x in ticks}, margin, note)


def _limits(drawn: list[list[float]], margin: float) -> tuple[float, float]:
    """Ends of an axis that has room for zero, the margin and all that is drawn but outliers."""
    extents = sorted(max(map(abs, numbers)) for numbers in drawn if numbers)
    limit = max(OUTLIER * extents[(len(extents) - 1) // 2] if extents else 0, margin)
    inside = [x for numbers in drawn for x in numbers if abs(x) <= limit] + [-margin, margin]
    room = 0.06 * (max(inside) - min(inside))
    return min(inside) - room, max(inside) + room


def _of_task(results: Results) -> Forest:
    trained, columns = results.trained_length, {}
    seeds = [(variant, at) for variant, row in results.summary.items() for at in row.learned]
    for x in sorted({trained, max(at.x for _, at in seeds)}):
        columns[f"length {x}"] = {variant: f"{at.count}/{at.n}" for variant, at in seeds if at.x == x}
    columns["loss"] = _losses(results)
    axis, ticks = f"seeds that learned length {trained}, in %", {x: f"{x}" for x in (0, 25, 50, 75, 100)}
    note = "Bars: exact 95 % intervals. Grey: not decided. Columns: seeds that learned each length, and the mean loss."
    return Forest(axis, findings(results), columns, -4, 104, ticks, None, note)


def _losses(results: Results) -> dict[str, str]:
    return {variant: f"{row.val_loss.mean:.3f}" for variant, row in results.summary.items()}


def table(plot: Forest) -> str:
    """The plot as an HTML table, whose columns stay readable on a phone, and its note."""
    names = ("variant", plot.axis, *plot.columns, "verdict")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="bar"><svg width="100%" height="100%" role="img" '
        f'aria-label="{escape(one.numbers)}">{_bar(plot, one)}</svg></td>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in plot.cells(name))}"
        f'<td class="verdict" style="color: {_colour(one)}">{escape(one.said)}</td></tr>'
        for name, one in plot.rows.items()
    )
    return (
        f'<table class="forest columns-{len(plot.columns)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f'<tfoot><tr><td></td><td class="bar"><svg width="100%" height="100%" aria-hidden="true">{_ticks(plot)}</svg></td>'
        f"{'<td></td>' * len(plot.columns)}<td></td></tr></tfoot></table>"
        f'<p class="note">{escape(plot.note)}</p>'
    )


def svg(plot: Forest) -> str:
    """The plot as a file of its own."""
    left = 12 + LETTER * max(len(shortened(name, LONGEST)) for name in ("variant", *plot.rows))
    ends = [left + BAR + 12 + CELL * (n + 1) for n in range(len(plot.columns))]
    said, y = ends[-1] + 20, ROW * (len(plot.rows) + 1)
    bold, right = 'font-weight="600"', 'text-anchor="end"'
    parts = [_text(4, 17, "variant", bold), _text(said, 17, "verdict", bold)]
    parts += [_text(x, 17, name, f"{right} {bold}") for x, name in zip(ends, plot.columns)]
    for n, (name, one) in enumerate(plot.rows.items(), 1):
        verdict = one.said if len(one.said) <= LONGEST else one.kind
        parts.append(f'<svg x="{left}" y="{n * ROW}" width="{BAR}" height="{ROW}">{_bar(plot, one)}</svg>')
        parts.append(_text(4, n * ROW + 17, shortened(name, LONGEST)))
        parts.append(_text(said, n * ROW + 17, verdict, f'style="fill: {_colour(one)}"'))
        parts += [_text(x, n * ROW + 17, cell, right) for x, cell in zip(ends, plot.cells(name))]
    parts.append(f'<svg x="{left}" y="{y}" width="{BAR}" height="{ROW}" overflow="visible">{_ticks(plot)}</svg>')
    parts.append(_text(left + BAR / 2, y + 38, plot.axis, 'text-anchor="middle"'))
    words = "; ".join(f"{name}: {one.numbers}" for name, one in plot.rows.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {said + VERDICT} {y + 2 * ROW}" role="img" font-size="13" '
        f'fill="currentColor" aria-labelledby="title words"><title id="title">{escape(plot.axis)}</title>'
        f'<desc id="words">{escape(words)}</desc>{svg_style()}{"".join(parts)}</svg>'
    )


def _bar(plot: Forest, one: Finding) -> str:
    parts, colour = [], _colour(one)
    if plot.margin:
        low, high = plot.place(-plot.margin), plot.place(plot.margin)
        width = f"{float(high[:-1]) - float(low[:-1]):.2f}%"
        parts.append(f'<rect x="{low}" width="{width}" height="100%" fill="currentColor" opacity="0.1"/>')
    for x in map(plot.place, [0] if plot.margin else plot.ticks):
        parts.append(f'<line x1="{x}" x2="{x}" y1="0" y2="100%" stroke="currentColor" opacity="0.4"/>')
    if one.low is not None:
        low, high = plot.place(one.low), plot.place(one.high)
        parts.append(f'<line x1="{low}" x2="{high}" y1="50%" y2="50%" stroke="{colour}" stroke-width="2"/>')
    if one.value is not None and plot.start <= one.value <= plot.end:
        parts.append(f'<circle cx="{plot.place(one.value)}" cy="50%" r="4" fill="{colour}"/>')
    elif one.value is not None:
        anchor, arrow = ("start", "◂") if one.value < plot.start else ("end", "▸")
        look = f'dy="5" text-anchor="{anchor}" style="fill: {colour}"'
        parts.append(_text(plot.place(one.value), "50%", arrow, look))
    return "".join(parts)


def _ticks(plot: Forest) -> str:
    ticks = plot.ticks.items()
    return "".join(_text(plot.place(x), 15, said, 'text-anchor="middle" fill="currentColor"') for x, said in ticks)


def _colour(one: Finding) -> str:
    return COLOURS.get(one.kind, GREY)


def _drawn(one: Finding) -> list[float]:
    return [x for x in (one.value, one.low, one.high) if x is not None]


def _text(x: float | str, y: float | str, said: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{escape(said)}</text>'
