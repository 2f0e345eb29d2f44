"""From the numbers of a comparison to a table and a picture."""

from pathlib import Path


def markdown(summary: dict[str, dict], baseline: str, seeds: list[int], context: int) -> str:
    """The table, one row a variant: means over seeds ± their standard deviation, losses in nats per token."""
    multiples = list(next(iter(summary.values()))["loss_by_context"])
    header = [
        "variant",
        "validation loss",
        "bits per byte",
        f"difference to {baseline}",
        *(f"loss at {multiple} context" for multiple in multiples),
        "extra parameters",
        "training tokens/s",
    ]
    rows = [
        [
            variant,
            _spread(row["val_loss"]),
            _spread(row["val_bits_per_byte"]),
            "—" if variant == baseline else _spread(row["difference"], sign="+"),
            *(_spread(row["loss_by_context"][multiple], digits=3) for multiple in multiples),
            f"{row['position_parameters']:,}",
            f"{row['tokens_per_second']:,.0f}",
        ]
        for variant, row in summary.items()
    ]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    note = (
        f"Mean ± standard deviation over {len(seeds)} seeds ({', '.join(map(str, seeds))}); losses in nats per token; "
        f"differences are paired by seed; 1x is the trained context of {context} tokens, and the same tokens are "
        "scored at every multiple."
    )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + f"\n\n{note}\n"


def _spread(numbers: dict, digits: int = 4, sign: str = "") -> str:
    if numbers["mean"] is None:
        return "n/a"
    spread = "" if numbers["sd"] is None else f" ± {numbers['sd']:.{digits}f}"
    return f"{numbers['mean']:{sign}.{digits}f}{spread}"


def plot_curves(runs: dict[str, list[dict]], file: Path) -> None:
    """Validation loss over training tokens as SVG: a line a variant, the mean over seeds, in the band they span."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "whereabouts"  # the same numbers give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for variant, measured in runs.items():
        tokens = [point[0] for point in measured[0]["curve"]]
        losses = list(zip(*([point[1] for point in run["curve"]] for run in measured)))
        (line,) = axes.plot(tokens, [sum(values) / len(values) for values in losses], marker=".", label=variant)
        axes.fill_between(tokens, [min(v) for v in losses], [max(v) for v in losses], color=line.get_color(), alpha=0.2)
    axes.set_xlabel("training tokens")
    axes.set_ylabel("validation loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
