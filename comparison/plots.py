"""Which plots a report has."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from comparison.drawing import Plot, Series
from comparison.results import Attention, PairedPoint, Point, Results
from comparison.verdicts import findings

MOST_VARIANTS, WORST = 9, 2  # in a plot
MOST_LINES = 12  # of a plot: with more, models with other position options are only in the tables
FIRST = ("exact", "loss", "context", "position")  # those that are not folded away
BAND = "mean over seeds, bar or band: the values that they span"


def plots(results: Results) -> list[Plot]:
    """The plots with a line of two points at least, in the order of the page."""
    loss, mark = f"loss ({results.unit})", results.trained_length and (results.trained_length, "longest trained")
    right = _lines(results, lambda row: row.exact_match, others=True)
    said = f"Share of examples answered without a mistake, by length; {BAND}."
    x, y = "length (symbols)", "exact match (share)"
    made = [Plot("exact", "Exact match by length", x, y, said, right, log_x=True, mark=mark)]
    late = _lines(results, lambda row: [at for at in row.curve if at.x >= row.curve[-1].x / 10])
    said = f"Without the first tenth of training; {BAND}."
    made.append(Plot("loss", "Validation loss during training", "training tokens", loss, said, late))
    made += [_by_context(results), _by_position(results), _during_training(results), *_scheme_metrics(results)]
    norm, said = "norm of the gradient (nats per token)", f"Norm of the gradient before clipping; {BAND}."
    norms = _lines(results, lambda row: row.grad_norm)
    made.append(Plot("gradient", "Gradient norm", "training tokens", norm, said, norms))
    attention = {v: row.attention for v in shown(results) if (row := results.summary[v]).attention}
    made += [_attention(variant, seen, f"attention-{n}") for n, (variant, seen) in enumerate(attention.items())]
    return [plot for plot in made if any(sum(y is not None for _, y in line.points) > 1 for line in plot.series)]


def shown(results: Results) -> list[str]:
    """The variants that are drawn as lines: of many the baseline, the best and the two worst of those compared."""
    if len(results.summary) <= MOST_VARIANTS:
        return list(results.summary)
    return [results.baseline, *few([variant for variant, one in findings(results).items() if one.is_compared])]


def few(ranked: list[str]) -> list[str]:
    """The best and the worst of names of variants, as many as a plot has room for beside the baseline."""
    best = MOST_VARIANTS - 1 - WORST
    return ranked[:best] + ranked[best:][-WORST:]


def _by_context(results: Results) -> Plot:
    series, context = _lines(results, lambda row: row.loss_by_context, others=True), results.context
    said = (
        f"The same tokens scored with more or less before them than the {context} that `{results.baseline}` was trained "
        f"with; {BAND}. Cropped: a longer text cut off keeps its loss at {context}; only below it more text helps."
    )
    cropped = {at.x: at.mean for at in results.summary[results.baseline].loss_by_context}.get(context)
    levels = [] if cropped is None else [(cropped, "cropped")]
    guess, highest = math.log(results.vocab_size), max((y for line in series for _, y in line.points if y), default=0)
    if guess < 1.1 * highest:
        levels.append((guess, "a uniform guess"))
    else:
        said += f" A uniform guess would lose {guess:.2f}."
    x, y, mark = "available context (tokens)", f"loss ({results.unit})", (context, "trained")
    return Plot("context", "Loss against context length", x, y, said, series, log_x=True, levels=levels, mark=mark)


def _by_position(results: Results) -> Plot:
    """As a difference, for what a place is worth is some hundredths of what one text is harder than the next."""
    said = (
        " on the same tokens, by their position in windows longer than the trained context. To the right of the dotted "
        f"line are positions that `{results.baseline}` was never trained on"
    )
    title, x, mark = "by position in the window", "position in the window (tokens)", (results.context, "trained")
    plot = _differences(results, "position", title, x, said, lambda row: row.difference_by_position)
    return replace(plot, log_x=True, mark=mark)


def _during_training(results: Results) -> Plot:
    said = f". Above zero a variant is behind `{results.baseline}`"
    title, x = "during training", "training tokens"
    return _differences(results, "difference", title, x, said, lambda row: row.difference_curve)


def _differences(results: Results, name: str, title: str, x: str, said: str, points_of: Callable) -> Plot:
    baseline = results.baseline
    series = [line for line in _lines(results, points_of) if line.label != baseline]
    title, y = f"Difference to {baseline} {title}", f"difference ({results.unit})"
    said = f"Mean paired difference to `{baseline}`{said}. Bar or band: 95 % intervals where there are enough seeds."
    return Plot(name, title, x, y, said, series, levels=[(0.0, "")])


def _scheme_metrics(results: Results) -> list[Plot]:
    """For each metric of the schemes, its course during training, and its entries at the end."""
    made, metrics = [], {n: metric for row in results.summary.values() for n, metric in row.scheme_metrics.items()}
    for name, metric in metrics.items():
        series = _lines(results, lambda row: getattr(row.scheme_metrics.get(name), "largest", []))
        entries = _lines(results, lambda row: getattr(row.scheme_metrics.get(name), "at_end", []))
        y, said = f"{name} ({metric.words})", f"Largest entry of {name}, {metric.words}; {BAND}."
        made.append(Plot(f"{name}-largest", f"{name} during training", "training tokens", y, said, series))
        said = f"Each entry of {name}, {metric.words}, at the end of training; {BAND}."
        made.append(Plot(f"{name}-at-end", f"{name} at the end", "index of the entry", y, said, entries))
    return made


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
    table = ["head, % by tokens back", *bins], [*heads, ["uniform", *flat]]
    return Plot(name, title, x, y, said, series, ticks=[str(a) for a, _ in seen.distances], table=table)


def uniform(distances: list[tuple[int, int]]) -> list[float]:
    """The share of each bin if a query weighs all tokens up to itself alike, as a mean over all queries.

    The query with m tokens before it gives each distance up to m a share of 1/(m + 1).
    """
    m = np.arange(distances[-1][1] + 1)
    return [float((np.clip(m - first + 1, 0, last - first + 1) / (m + 1)).mean()) for first, last in distances]


def _lines(results: Results, points_of: Callable[..., list[Point | PairedPoint]], others: bool = False) -> list[Series]:
    """A line for each variant with points; others: in other dashes for its models with other position options too."""
    lines = []
    for colour, variant in enumerate(shown(results)):
        row = results.summary[variant]
        more = {f"{variant} + {name}": other for name, other in row.evaluated_with.items()} if others else {}
        for dash, (label, numbers) in enumerate({variant: row, **more}.items()):
            if points := points_of(numbers):
                edges = [None if at.low is None or at.low == at.high else (at.low, at.high) for at in points]
                lines.append(Series(label, [(at.x, at.mean) for at in points], edges, colour, dash))
    return lines if len(lines) <= MOST_LINES else [line for line in lines if not line.dash]
