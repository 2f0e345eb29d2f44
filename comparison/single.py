"""A run by itself: its picture and its page."""

from html import escape

from comparison.drawing import HEIGHT, WIDTH, Plot, Series, svg_style
from comparison.page import figure, inline, page
from comparison.report import write_files
from configs.reference import commented
from training.run import RunFolder

MOST_POINTS = 500  # of a line


def draw(run: RunFolder) -> None:
    """Writes loss.svg and report.html into the folder of a finished run; InputError where that can't be done."""
    rows = run.metrics()
    last = [row for row in rows if "val_loss" in row][-1]
    said = (
        f"`{run.path.name}` ends at {last['val_loss']:.4f} nats per token and {last['val_bits_per_byte']:.4f} bits per "
        f"byte, after {last['tokens']:,} tokens."
    )
    both = [_line(rows, "train_loss", "training", 0), _line(rows, "val_loss", "validation", 1)]
    words = "Loss of the batch of a step, and on the validation text."
    loss = Plot("loss", "Loss during training", "training tokens", "loss (nats per token)", words, both)
    rates, words = [_line(rows, "learning_rate", "rate", 2)], "Learning rate of each logged step."
    rate = Plot("rate", "Learning rate", "training tokens", "learning rate", words, rates)
    body = f"""<p class="answer">{inline(said)}</p>
<div class="plots">{figure(loss)}{figure(rate)}</div>
<details><summary>The config</summary><pre class="scroll">{escape(commented(run.config))}</pre></details>"""
    write_files(run.path, {"loss.svg": _stacked(loss, rate), "report.html": page(run.path.name, body)})


def _line(rows: list[dict], key: str, label: str, colour: int) -> Series:
    points = [(row["tokens"], row[key]) for row in rows if key in row]
    return Series(label, points[::-1][:: 1 + len(points) // MOST_POINTS][::-1], colour=colour)


def _stacked(*plots: Plot) -> str:
    """One picture of several, one below the other."""
    width, height = 72 * WIDTH, 72 * HEIGHT
    inner = [
        plot.svg.replace("<svg ", f'<svg y="{n * height:g}" width="{width:g}" height="{height:g}" ', 1)
        for n, plot in enumerate(plots)
    ]
    size = f'viewBox="0 0 {width:g} {len(plots) * height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{svg_style()}{"".join(inner)}</svg>'
