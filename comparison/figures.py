"""Which plots a report has."""

from dataclasses import replace

from comparison.plots import Plot, Series

MOST_LINES = 16  # of a plot: with more, those of models with other position options are in the tables alone


def figures(results: dict) -> list[Plot]:
    """The plots for which there are numbers, in the order of the page."""
    made = [loss(results), difference(results), by_context(results), by_position(results), by_length(results)]
    made += [drift(results), drift_by_pair(results), gradient(results), *attention(results)]
    return [plot for plot in made if any(y is not None for series in plot.series for _, y in series.points)]


def loss(results: dict) -> Plot:
    """Validation loss over training tokens."""
    series = _lines(results, "curve")
    ends = ", ".join(f"{line.label} {line.points[-1][1]:.3f}" for line in series)
    said, y = f"Mean over seeds, in the band they span. At the end: {ends}.", f"loss ({results['unit']})"
    return Plot("loss", "Validation loss during training", "training tokens", y, said, series)


def difference(results: dict) -> Plot:
    """Paired difference to the baseline over training tokens."""
    baseline = results["baseline"]
    said = (
        f"Mean paired difference to {baseline}, in its pointwise 95 % t-interval where there are seeds enough. "
        f"Above zero a variant is behind {baseline}; where the band holds zero they are not told apart."
    )
    series = [line for line in _lines(results, "difference_curve") if line.label != baseline]
    title, y = f"Difference to {baseline} during training", f"difference ({results['unit']})"
    return Plot("difference", title, "training tokens", y, said, series, zero=True)


def by_context(results: dict) -> Plot:
    """Loss against the context available."""
    series = _lines(results, "loss_by_context")
    said = (
        f"The same tokens scored with 1 to 8 times the trained context of {results['context']} tokens before them; "
        "mean over seeds, in the band they span. A flat or falling line copes with positions that training never had."
    )
    x, y = "available context (tokens)", f"loss ({results['unit']})"
    return Plot("context", "Loss against context length", x, y, said, series, log_x=True)


def by_position(results: dict) -> Plot:
    """Loss by position in the window."""
    series = _lines(results, "loss_by_position")
    said = (
        "Mean loss of the tokens up to each position of windows longer than the trained context: it falls as context "
        f"gathers; to the right of the dotted line are positions never trained. Over {_seed_words(results)}."
    )
    x, y = "position in the window (tokens)", f"loss ({results['unit']})"
    mark = (results["context"], "trained context")
    return Plot("position", "Loss by position in the window", x, y, said, series, log_x=True, mark=mark)


def by_length(results: dict) -> Plot:
    """Exact match by length of a synthetic task."""
    said = "Share of examples answered without a mistake, by length; mean over seeds, in the band they span."
    x, y, series = "length (symbols)", "exact match (share)", _lines(results, "exact_match")
    mark = results["trained_length"] and (results["trained_length"], "longest trained")
    return Plot("exact", "Exact match by length", x, y, said, series, log_x=True, mark=mark)


def drift(results: dict) -> Plot:
    """How far trained θ moved, during training."""
    series = _lines(results, "theta_drift")
    said = "Largest drift |Δ log θ| of all pairs from the fixed ladder; mean over seeds, in the band they span."
    return Plot("drift", "θ drift during training", "training tokens", "|Δ log θ| (natural log)", said, series)


def drift_by_pair(results: dict) -> Plot:
    """How far each trained θ moved."""
    series = _lines(results, "theta_drift_by_pair")
    said = (
        "Drift |Δ log θ| of each pair at the end of training; pair 0 turns fastest. Mean over seeds, in the band "
        "they span."
    )
    return Plot("pairs", "θ drift by pair", "pair index", "|Δ log θ| (natural log)", said, series)


def gradient(results: dict) -> Plot:
    """Gradient norm over training tokens."""
    series = [replace(line, band=None) for line in _lines(results, "grad_norm")]
    said, y = "Norm of the gradient before clipping, mean over seeds.", "norm of the gradient (nats per token)"
    return Plot("gradient", "Gradient norm", "training tokens", y, said, series)


def attention(results: dict) -> list[Plot]:
    """For each variant, how much attention falls on which distance."""
    made = []
    for variant, row in results["summary"].items():
        if row["attention"] is None:
            continue
        bins = [str(a) if a == b else f"{a}–{b}" for a, b in row["attention"]["distances"]]
        layers = row["attention"]["mass"]
        series, heads = [], []
        for layer, mass in enumerate(layers):
            by_bin = [[100 * share for share in shares] for shares in zip(*mass)]
            points = [(x, sum(shares) / len(shares)) for x, shares in enumerate(by_bin)]
            band = [(min(shares), max(shares)) for shares in by_bin]
            series.append(Series(f"layer {layer}", points, band, colour=layer))
            heads += [[f"layer {layer}, head {head}", *(100 * s for s in shares)] for head, shares in enumerate(mass)]
        said = (
            "Share of the attention that falls on tokens so far back: for each layer the mean over its heads, in the "
            "band they span; of the first seed. The table has each head."
        )
        made.append(
            Plot(f"attention-{len(made)}", f"Attention by distance: {variant}", "distance (tokens back)",
                 "share of attention (%)", said, series, ticks=bins, table=(["head, % by tokens back", *bins], heads))
        )  # fmt: skip
    return made


def _lines(results: dict, key: str) -> list[Series]:
    """A line for each variant, and where the key has them in other dashes for its models with other options."""
    lines = []
    for colour, (variant, row) in enumerate(results["summary"].items()):
        others = {f"{variant} + {name}": other for name, other in row["evaluated_with"].items()}
        for dash, (name, numbers) in enumerate({variant: row, **others}.items()):
            points = numbers.get(key) or []
            band = [None if point["low"] is None else (point["low"], point["high"]) for point in points]
            if points:
                lines.append(Series(name, [(point["x"], point["mean"]) for point in points], band, colour, dash))
    return lines if len(lines) <= MOST_LINES else [line for line in lines if not line.dash]


def _seed_words(results: dict) -> str:
    counts = sorted({len(row["seeds"]) for row in results["summary"].values()})
    return f"{' to '.join(map(str, counts))} seed{'s' * (counts != [1])}"
