"""The forest plot: a row for each variant with its difference to the baseline, how sure it is, and what follows."""

from dataclasses import dataclass
from html import escape

from matplotlib.ticker import MaxNLocator

from comparison.drawing import svg_style
from comparison.inference import MOST_SEEDS, Difference
from comparison.results import Results
from comparison.words import learned, learned_verdicts

COLOURS = {"better": "var(--c0)", "worse": "var(--c1)", "equal": "currentColor", "baseline": "currentColor"}
GREY = "var(--grey)"  # of what is not decided
OUTLIER = 20  # times the median distance from zero: what lies farther out would leave the others no room
ROW, BAR, CELL, VERDICT, LETTER = 26, 280, 112, 250, 7  # sizes in the file, in px
LONGEST = 36  # letters of a name or verdict in the file


@dataclass(frozen=True)
class Row:
    """What is known of one variant; mean, low and high in the unit of the axis."""

    name: str
    mean: float | None
    low: float | None
    high: float | None
    colour: str
    cells: list[str]
    verdict: str


@dataclass(frozen=True)
class Forest:
    """Rows over one axis, from start to end. band: the shaded part of it; zero: where a line stands, if any."""

    title: str
    axis: str
    columns: list[str]
    rows: list[Row]
    start: float
    end: float
    ticks: dict[float, str]
    zero: float | None
    band: tuple[float, float] | None
    note: str

    def place(self, x: float) -> str:
        """x on the axis, in percent of its width."""
        return f"{100 * (x - self.start) / (self.end - self.start):.2f}%"


def forest(results: Results) -> Forest:
    """Of differences in loss, lowest first; for a task, where a seed learns all or nothing, of shares of seeds."""
    return _of_shares(results) if learned(results) else _of_differences(results)


def ordered(results: Results) -> list[str]:
    """Variants with numbers, the lowest difference first, those that are not compared last."""

    def key(variant):
        one = results.summary[variant].difference
        return one.apart is not None, one.mean is None, one.mean

    return sorted(results.summary, key=key)


def verdict(difference: Difference, margin: float) -> str:
    """A verdict in words, with what would decide an undecided one, or why there is no comparison."""
    said = difference.verdict
    if said == "equal":
        return f"equal within {margin:g}"
    if said == "undecided":
        seeds = difference.seeds_needed
        return f"{said}; about {seeds} seeds would do" if seeds else f"{said}; {MOST_SEEDS:,} seeds would not do"
    return f"{said}: {difference.apart}" if difference.apart else said


def _of_differences(results: Results) -> Forest:
    shared = {at.x for at in results.summary[results.baseline].loss_by_context}
    longest = max((x for row in results.summary.values() for x in _by_context(row) if x in shared), default=0)
    far = longest > results.context
    rows, margin = [], results.margin
    for variant in ordered(results):
        row, one = results.summary[variant], results.summary[variant].difference
        base = variant == results.baseline
        cells = ["—" if base else _number(one.mean, "+z.3f"), _number(row.val_loss.mean, ".3f")]
        at = _by_context(row)  # of other tokens than the loss beside it, so only their change can stand there
        gained = at[longest] - at[results.context] if {longest, results.context} <= {*at} else None
        cells += [_number(gained, "+z.3f")] * far
        colour = COLOURS.get("baseline" if base else one.verdict, GREY)
        ends = (None, None) if base else (one.low, one.high)
        rows.append(Row(variant, one.mean, *ends, colour, cells, "baseline" if base else verdict(one, margin)))
    rows += _gone(results, 2 + far)
    extents = sorted(max(map(abs, found)) for row in rows if (found := _drawn(row)) and row.name != results.baseline)
    limit = max(OUTLIER * extents[(len(extents) - 1) // 2] if extents else 0, margin)
    ends = [x for row in rows for x in _drawn(row) if abs(x) <= limit] + [-margin, margin]
    room = 0.06 * (max(ends) - min(ends))
    start, end = min(ends) - room, max(ends) + room
    ticks = {x: f"{x:+g}" if x else "0" for x in _ticks(start, end)}
    title, axis = f"Difference to {results.baseline}", f"difference to {_short(results.baseline)} in {results.unit}"
    columns = ["difference", "loss"] + [f"change at {longest / results.context:g}×"] * far
    note = f"Bars: 95 % intervals. Shaded: up to {margin:g}, which counts as equal. Grey: not decided."
    if far:
        note += (
            f" Change: of the loss of the same tokens, with {longest / results.context:g} times the trained context."
        )
    return Forest(title, axis, columns, rows, start, end, ticks, 0.0, (-margin, margin), note)


def _of_shares(results: Results) -> Forest:
    shares, rows, verdicts = learned(results), [], learned_verdicts(results)
    own = shares[results.baseline]
    lengths = [at.x for row in results.summary.values() for at in row.learned]
    longest = max(lengths)
    for variant in sorted(results.summary, key=lambda variant: -_share(shares.get(variant))):
        at, row, base = shares.get(variant), results.summary[variant], variant == results.baseline
        said = "n/a" if at is None else "baseline" if base else verdicts.get(variant, "not compared")
        far = next((f"{one.count}/{one.n}" for one in row.learned if one.x == longest), "n/a")
        found = (None, None, None) if at is None else (100 * at.count / at.n, 100 * at.low, 100 * at.high)
        cells = ["n/a" if at is None else f"{at.count}/{at.n}", *[far] * (longest > own.x)]
        cells.append(_number(row.val_loss.mean, ".3f"))
        words = {"better": "more seeds", "worse": "fewer seeds"}.get(said, said)
        rows.append(Row(variant, *found, COLOURS.get(said, GREY), cells, words))
    columns = [f"length {own.x}", *[f"length {longest}"] * (longest > own.x), "loss"]
    rows += _gone(results, len(columns))
    axis = f"seeds that learned length {own.x}, in %"
    ticks = {x: f"{x:g}" for x in (0, 25, 50, 75, 100)}
    note = "Bars: exact 95 % intervals. Grey: not decided. Columns: seeds that learned each length, and the mean loss."
    return Forest("Seeds that learned the task", axis, columns, rows, -4, 104, ticks, None, None, note)


def _share(at) -> float:
    return -1 if at is None else at.count / at.n


def _gone(results: Results, cells: int) -> list[Row]:
    lost = [variant for variant in results.diverged if variant not in results.summary]
    return [Row(variant, None, None, None, GREY, ["n/a"] * cells, "diverged") for variant in lost]


def _by_context(row) -> dict[float, float]:
    return {at.x: at.mean for at in row.loss_by_context if at.mean is not None}


def _drawn(row: Row) -> list[float]:
    return [x for x in (row.mean, row.low, row.high) if x is not None]


def _ticks(start: float, end: float) -> list[float]:
    return [round(float(x), 9) for x in MaxNLocator(4).tick_values(start, end) if start <= x <= end]


def _number(x: float | None, form: str) -> str:
    return "n/a" if x is None else f"{x:{form}}"


def table(plot: Forest) -> str:
    """The plot as an HTML table, whose columns stay readable on a phone, and its note."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in plot.columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row.name)}</th><td class="bar"><svg width="100%" height="100%" role="img" '
        f'aria-label="{escape(_in_words(row))}">{_bar(plot, row)}</svg></td>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in row.cells)}"
        f'<td class="verdict" style="color: {row.colour}">{escape(row.verdict)}</td></tr>'
        for row in plot.rows
    )
    ticks = "".join(
        f'<text x="{plot.place(x)}" y="14" text-anchor="middle" fill="currentColor">{escape(said)}</text>'
        for x, said in plot.ticks.items()
    )
    return (
        f'<table class="forest columns-{len(plot.columns)}"><thead><tr><th scope="col">variant</th>'
        f'<th scope="col">{escape(plot.axis)}</th>{head}<th scope="col">verdict</th></tr></thead><tbody>{body}</tbody>'
        f'<tfoot><tr><td></td><td class="bar"><svg width="100%" height="100%" aria-hidden="true">{ticks}</svg></td>'
        f"{'<td></td>' * len(plot.columns)}<td></td></tr></tfoot></table><p class='note'>{escape(plot.note)}</p>"
    )


def svg(plot: Forest) -> str:
    """The plot as a file of its own."""
    names = [_short(row.name) for row in plot.rows]
    left = 12 + LETTER * max(map(len, [*names, "variant"]))
    cells = [left + BAR + 12 + CELL * (n + 1) for n in range(len(plot.columns))]
    said = cells[-1] + 20
    size = f"{said + VERDICT} {ROW * (len(names) + 3)}"
    parts = [_text(4, 17, "variant", 'font-weight="600"'), _text(said, 17, "verdict", 'font-weight="600"')]
    heads = zip(cells, plot.columns)
    parts += [_text(x, 17, name, 'text-anchor="end" font-weight="600"') for x, name in heads]
    for n, (name, row) in enumerate(zip(names, plot.rows), 1):
        y = n * ROW + 17
        parts.append(f'<svg x="{left}" y="{n * ROW}" width="{BAR}" height="{ROW}">{_bar(plot, row)}</svg>')
        parts += [_text(4, y, name), _text(said, y, _short(row.verdict), f'style="fill: {row.colour}"')]
        parts += [_text(x, y, cell, 'text-anchor="end"') for x, cell in zip(cells, row.cells)]
    y = ROW * (len(names) + 1)
    ticks = "".join(
        f'<text x="{plot.place(x)}" y="16" text-anchor="middle">{escape(said)}</text>' for x, said in plot.ticks.items()
    )
    parts.append(f'<svg x="{left}" y="{y}" width="{BAR}" height="{ROW}" overflow="visible">{ticks}</svg>')
    parts.append(_text(left + BAR / 2, y + 38, plot.axis, 'text-anchor="middle"'))
    words = escape("; ".join(f"{row.name}: {_in_words(row)}" for row in plot.rows))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" font-size="13" fill="currentColor" '
        f'aria-labelledby="title words"><title id="title">{escape(plot.title)}</title><desc id="words">{words}</desc>'
        f"{svg_style()}{''.join(parts)}</svg>"
    )


def _bar(plot: Forest, row: Row) -> str:
    parts = []
    if plot.band:
        low, high = map(plot.place, plot.band)
        width = f"{float(high[:-1]) - float(low[:-1]):.2f}%"
        parts.append(f'<rect x="{low}" width="{width}" height="100%" fill="currentColor" opacity="0.1"/>')
    for x in plot.ticks if plot.zero is None else [plot.zero]:
        faint = ' opacity="0.25"' * (plot.zero is None)
        x = plot.place(x)
        parts.append(f'<line x1="{x}" x2="{x}" y1="0" y2="100%" stroke="currentColor"{faint}/>')
    if row.low is not None:
        low, high = (plot.place(min(max(x, plot.start), plot.end)) for x in (row.low, row.high))
        parts.append(f'<line x1="{low}" x2="{high}" y1="50%" y2="50%" stroke="{row.colour}" stroke-width="2"/>')
    if row.mean is not None and plot.start <= row.mean <= plot.end:
        parts.append(f'<circle cx="{plot.place(row.mean)}" cy="50%" r="4" fill="{row.colour}"/>')
    elif row.mean is not None:
        x, anchor, arrow = ("0%", "start", "◂") if row.mean < plot.start else ("100%", "end", "▸")
        parts.append(f'<text x="{x}" y="50%" dy="5" text-anchor="{anchor}" fill="{row.colour}">{arrow}</text>')
    return "".join(parts)


def _in_words(row: Row) -> str:
    around = "" if row.low is None else f", {row.low:+.4g} to {row.high:+.4g}"
    return "no value" if row.mean is None else f"{row.mean:+.4g}{around}"


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{escape(said)}</text>'


def _short(said: str) -> str:
    return said if len(said) <= LONGEST else f"{said[: LONGEST - 1]}…"
