"""Which plots a report has."""

import math
from collections.abc import Callable

import numpy as np

from comparison.drawing import Plot, Series
from comparison.forest import ordered
from comparison.results import Attention, PairedPoint, Point, Results

MOST_VARIANTS, WORST = 9, 2  # in a plot
MOST_LINES = 12  # of a plot: with more, models with other position options are only in the tables
FIRST = ("exact", "loss", "context", "position")  # those that are not folded away
BAND = "mean over seeds, bar or band: the values that they span"


def plots(results: Results) -> list[Plot]:
    """The plots with a line of two points at least, in the order of the page."""
    made = [_by_length(results), _loss(results), _by_context(results), _by_position(results), _difference(results)]
    made += [*_scheme_metrics(results), _gradient(results)]
    attention = {v: row.attention for v in shown(results) if (row := results.summary[v]).attention}
    made += [_attention(variant, seen, f"attention-{n}") for n, (variant, seen) in enumerate(attention.items())]
    return [plot for plot in made if any(sum(y is not None for _, y in line.points) > 1 for line in plot.series)]


def shown(results: Results) -> list[str]:
    """The variants that are drawn as lines: of many the baseline, the lowest differences and the two highest."""
    if len(results.summary) <= MOST_VARIANTS:
        return list(results.summary)
    others = [v for v in ordered(results) if v != results.baseline and not results.summary[v].difference.apart]
    lowest = others[: MOST_VARIANTS - 1 - WORST]
    return [results.baseline, *lowest, *others[len(lowest) :][-WORST:]]


def _loss(results: Results) -> Plot:
    series = _lines(results, lambda row: [at for at in row.curve if at.x >= row.curve[-1].x / 10])
    said = f"Without the first tenth of training; {BAND}."
    y = f"loss ({results.unit})"
    return Plot("loss", "Validation loss during training", "training tokens", y, said, series)


def _by_context(results: Results) -> Plot:
    series, context = _lines(results, lambda row: row.loss_by_context, others=True), results.context
    ends = [y for line in series for _, y in line.points if y is not None]
    own = {at.x: at.mean for at in results.summary[results.baseline].loss_by_context}
    guess, said = math.log(results.vocab_size), ""
    levels = [] if own.get(context) is None else [(own[context], "cropped")]
    if ends and guess < 1.1 * max(ends):
        levels.append((guess, "a uniform guess"))
    else:
        said = f" A uniform guess would lose {guess:.2f}."
    said = (
        f"The same tokens scored with more or less before them than the {context} tokens trained; {BAND}. "
        f"Cropped: a longer text cut off keeps {results.baseline}'s loss at {context}; only below it more text helps.{said}"
    )
    x, y, mark = "available context (tokens)", f"loss ({results.unit})", (context, "trained")
    return Plot("context", "Loss against context length", x, y, said, series, log_x=True, levels=levels, mark=mark)


def _by_position(results: Results) -> Plot:
    """As a difference, for what a place is worth is some hundredths of what one text is harder than the next."""
    baseline = results.baseline
    series = [line for line in _lines(results, lambda row: row.difference_by_position) if line.label != baseline]
    said = (
        f"Mean paired difference to {baseline} on the same tokens, by their position in windows longer than the trained "
        "context; bar or band: 95 % intervals where there are enough seeds. To the right of the dotted line are "
        "positions never trained."
    )
    x, y, mark = "position in the window (tokens)", f"difference ({results.unit})", (results.context, "trained")
    zero = [(0.0, "")]
    title = f"Difference to {baseline} by position in the window"
    return Plot("position", title, x, y, said, series, log_x=True, mark=mark, levels=zero)


def _by_length(results: Results) -> Plot:
    series = _lines(results, lambda row: row.exact_match, others=True)
    said = f"Share of examples answered without a mistake, by length; {BAND}."
    x, y = "length (symbols)", "exact match (share)"
    mark = results.trained_length and (results.trained_length, "longest trained")
    return Plot("exact", "Exact match by length", x, y, said, series, log_x=True, mark=mark)


def _difference(results: Results) -> Plot:
    baseline = results.baseline
    said = (
        f"Mean paired difference to {baseline}; bar or band: pointwise 95 % t-intervals where there are enough seeds. "
        f"Above zero a variant is behind {baseline}."
    )
    series = [line for line in _lines(results, lambda row: row.difference_curve) if line.label != baseline]
    title, y = f"Difference to {baseline} during training", f"difference ({results.unit})"
    return Plot("difference", title, "training tokens", y, said, series, levels=[(0.0, "")])


def _scheme_metrics(results: Results) -> list[Plot]:
    """For each metric of the schemes, its course during training, and where it has several entries those at the end."""
    made, metrics = [], {n: metric for row in results.summary.values() for n, metric in row.scheme_metrics.items()}
    for name, metric in metrics.items():
        series = _lines(results, lambda row: getattr(row.scheme_metrics.get(name), "largest", []))
        entries = _lines(results, lambda row: getattr(row.scheme_metrics.get(name), "at_end", []))
        y, said = f"{name} ({metric.words})", f"Largest entry of {name}, {metric.words}; {BAND}."
        made.append(Plot(f"{name}-largest", f"{name} during training", "training tokens", y, said, series))
        if any(len(line.points) > 1 for line in entries):
            said = f"Each entry of {name}, {metric.words}, at the end of training; {BAND}."
            made.append(Plot(f"{name}-at-end", f"{name} at the end", "index of the entry", y, said, entries))
    return made


def _gradient(results: Results) -> Plot:
    series = _lines(results, lambda row: row.grad_norm, band=False)
    said, y = "Norm of the gradient before clipping, mean over seeds.", "norm of the gradient (nats per token)"
    return Plot("gradient", "Gradient norm", "training tokens", y, said, series)


def _attention(variant: str, seen: Attention, name: str) -> Plot:
    bins = [str(a) if a == b else f"{a}–{b}" for a, b in seen.distances]
    series, heads = [], []
    for layer, mass in enumerate(100 * np.array(seen.mass)):  # (heads, bins), in %
        series.append(Series(f"layer {layer}", list(enumerate(mass.mean(axis=0))), colour=layer))
        heads += [[f"layer {layer}, head {head}", *shares] for head, shares in enumerate(mass.tolist())]
    flat = [100 * share for share in uniform(seen.distances)]
    series.append(Series("uniform", list(enumerate(flat)), colour=None, dash=2))
    said = (
        "Share of the attention on tokens that far back: for each layer the mean over its heads, of the first seed; "
        "uniform: what a head that looks at all tokens alike would show. The table has each head."
    )
    title, x, y = f"Attention by distance: {variant}", "first distance of a bin (tokens back)", "share of attention (%)"
    table, ticks = (
        (["head, % by tokens back", *bins], [*heads, ["uniform", *flat]]),
        [str(a) for a, _ in seen.distances],
    )
    return Plot(name, title, x, y, said, series, ticks=ticks, table=table)


def uniform(distances: list[tuple[int, int]]) -> list[float]:
    """The share of each bin if a query weighs all tokens up to itself alike, as a mean over all queries.

    The query with m tokens before it gives each distance up to m a share of 1/(m + 1).
    """
    m = np.arange(distances[-1][1] + 1)
    return [float((np.clip(m - first + 1, 0, last - first + 1) / (m + 1)).mean()) for first, last in distances]


def _lines(
    results: Results, points_of: Callable[..., list[Point | PairedPoint]], others: bool = False, band: bool = True
) -> list[Series]:
    """A line for each variant with points; others: in other dashes for its models with other position options too."""
    lines = []
    for colour, variant in enumerate(shown(results)):
        row = results.summary[variant]
        more = {f"{variant} + {name}": other for name, other in row.evaluated_with.items()} if others else {}
        for dash, (label, numbers) in enumerate({variant: row, **more}.items()):
            if points := points_of(numbers):
                edges = [None if at.low is None or at.low == at.high else (at.low, at.high) for at in points]
                lines.append(Series(label, [(at.x, at.mean) for at in points], edges if band else None, colour, dash))
    return lines if len(lines) <= MOST_LINES else [line for line in lines if not line.dash]
