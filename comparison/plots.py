"""Which plots a report has."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from comparison.drawing import Plot, Series
from comparison.results import Attention, PairedPoint, Point, Results

MOST_LINES = 16  # of a plot: with more, models with other position options are only in the tables
BAND = "mean over seeds, in the band they span"


def plots(results: Results) -> list[Plot]:
    """The plots for which there are numbers, in the order of the page."""
    made = [_loss(results), _difference(results), _by_context(results), _by_position(results), _by_length(results)]
    made += [*_scheme_metrics(results), _gradient(results)]
    attention = {variant: row.attention for variant, row in results.summary.items() if row.attention}
    made += [_attention(variant, seen, f"attention-{n}") for n, (variant, seen) in enumerate(attention.items())]
    return [plot for plot in made if any(y is not None for series in plot.series for _, y in series.points)]


def _loss(results: Results) -> Plot:
    series = _lines(results, lambda row: row.curve)
    ends = ", ".join(f"{line.label} {line.points[-1][1]:.3f}" for line in series)
    said, y = f"Mean over seeds, in the band they span. At the end: {ends}.", f"loss ({results.unit})"
    return Plot("loss", "Validation loss during training", "training tokens", y, said, series)


def _difference(results: Results) -> Plot:
    baseline = results.baseline
    said = (
        f"Mean paired difference to {baseline}, in its pointwise 95 % t-interval where there are enough seeds. "
        f"Above zero a variant is behind {baseline}; where the band contains zero they are indistinguishable."
    )
    series = [line for line in _lines(results, lambda row: row.difference_curve) if line.label != baseline]
    title, y = f"Difference to {baseline} during training", f"difference ({results.unit})"
    return Plot("difference", title, "training tokens", y, said, series, zero=True)


def _by_context(results: Results) -> Plot:
    series = _lines(results, lambda row: row.loss_by_context, others=True)
    said = (
        f"The same tokens scored with 1 to 8 times the trained context of {results.context} tokens before them; "
        f"{BAND}. A flat or falling line copes with positions that training never had."
    )
    x, y = "available context (tokens)", f"loss ({results.unit})"
    return Plot("context", "Loss against context length", x, y, said, series, log_x=True)


def _by_position(results: Results) -> Plot:
    series = _lines(results, lambda row: row.loss_by_position, others=True)
    counts = sorted({len(row.seeds) for row in results.summary.values()})
    said = (
        "Mean loss of the tokens up to each position of windows longer than the trained context: it falls as context "
        "gathers; to the right of the dotted line are positions never trained. Over "
        f"{' to '.join(map(str, counts))} seed{'s' * (counts != [1])}."
    )
    x, y = "position in the window (tokens)", f"loss ({results.unit})"
    mark = (results.context, "trained context")
    return Plot("position", "Loss by position in the window", x, y, said, series, log_x=True, mark=mark)


def _by_length(results: Results) -> Plot:
    series = _lines(results, lambda row: row.exact_match, others=True)
    said = f"Share of examples answered without a mistake, by length; {BAND}."
    x, y = "length (symbols)", "exact match (share)"
    mark = results.trained_length and (results.trained_length, "longest trained")
    return Plot("exact", "Exact match by length", x, y, said, series, log_x=True, mark=mark)


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
    series = [replace(line, band=None) for line in _lines(results, lambda row: row.grad_norm)]
    said, y = "Norm of the gradient before clipping, mean over seeds.", "norm of the gradient (nats per token)"
    return Plot("gradient", "Gradient norm", "training tokens", y, said, series)


def _attention(variant: str, seen: Attention, name: str) -> Plot:
    bins = [str(a) if a == b else f"{a}–{b}" for a, b in seen.distances]
    series, heads = [], []
    for layer, mass in enumerate(100 * np.array(seen.mass)):  # (heads, bins), in %
        band = list(zip(mass.min(axis=0), mass.max(axis=0)))
        series.append(Series(f"layer {layer}", list(enumerate(mass.mean(axis=0))), band, colour=layer))
        heads += [[f"layer {layer}, head {head}", *shares] for head, shares in enumerate(mass.tolist())]
    said = (
        "Share of the attention on tokens that far back: for each layer the mean over its heads, in the "
        "band they span; of the first seed. The table has each head."
    )
    title, x, y = f"Attention by distance: {variant}", "distance (tokens back)", "share of attention (%)"
    return Plot(name, title, x, y, said, series, ticks=bins, table=(["head, % by tokens back", *bins], heads))


def _lines(results: Results, points_of: Callable[..., list[Point | PairedPoint]], others: bool = False) -> list[Series]:
    """A line for each variant with points; others: in other dashes for its models with other position options too."""
    lines = []
    for colour, (variant, row) in enumerate(results.summary.items()):
        more = {f"{variant} + {name}": other for name, other in row.evaluated_with.items()} if others else {}
        for dash, (label, numbers) in enumerate({variant: row, **more}.items()):
            points = points_of(numbers)
            band = [None if point.low is None else (point.low, point.high) for point in points]
            if points:
                lines.append(Series(label, [(point.x, point.mean) for point in points], band, colour, dash))
    return lines if len(lines) <= MOST_LINES else [line for line in lines if not line.dash]
