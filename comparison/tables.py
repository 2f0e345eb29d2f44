"""The tables of a report, for markdown and HTML alike. Names of variants stand in backticks in their notes."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from comparison.formats import count, interval, p_value, plus_minus, seeds
from comparison.losses import TOLERANCE, effective_context
from comparison.results import Point, Ratio, Results
from comparison.verdicts import findings, in_words, learned, of_losses
from comparison.words import lost_seeds


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the first column names the row. note: what the numbers mean."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str

    def markdown(self) -> str:
        """The table as markdown, with its note below."""
        lines = [self.header, ["---"] + ["---:"] * (len(self.header) - 1), *self.rows]
        lines = [[re.sub(r"[\\`*|]|<(?=\S)", r"\\\g<0>", cell) for cell in cells] for cells in lines]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + f"\n\n{self.note}"


def tables(results: Results) -> list[Table]:
    """The tables for which there are numbers, the main one first."""
    made = [_learned(results)] if learned(results) else []
    made += [_main(results), _context(results), _match(results), _cost(results), _inside(results)]
    made += [_rates(results)] if results.tuning else []
    made += [_diverged(results), _settings(results)]
    return [table for table in made if table.rows and len(table.header) > 1]


def _main(results: Results) -> Table:
    body, baseline = [], results.baseline
    for variant, found in of_losses(results).items():
        if found.kind == "diverged":
            body.append([variant, *["—"] * 5, "diverged", *["—"] * 3])
            continue
        row, numbers = results.summary[variant], results.summary[variant].difference
        tests = [p_value(numbers.p_different), p_value(numbers.p_equal)]
        compared = [plus_minus(numbers, sign="+"), interval(numbers), *tests]
        if variant == baseline:
            compared = ["—"] * 4
        lost = ", ".join(map(str, lost_seeds(results, variant)))
        trained = ", ".join(map(str, row.seeds)) + f" ({lost} diverged)" * bool(lost)
        own = [trained, _behind(results, variant), plus_minus(row.val_bits_per_byte)]
        body.append([variant, plus_minus(row.val_loss), *compared, found.said, *own])
    header = ["variant", f"validation loss ({results.unit})", f"difference to {baseline}", "95 % interval"]
    header += ["p (no difference)", "p (not equal)", "verdict", "seeds", "behind until", "bits per byte"]
    note = (
        "± is the standard deviation from seed to seed. Differences are paired by seed; intervals are 95 % t-intervals "
        "of their mean, not corrected. p (no difference): paired t-test, two-sided; p (not equal): two one-sided tests "
        f"against a difference of {results.margin:g} or more (Schuirmann 1987); both corrected for the number of "
        "variants, together (Holm 1979, Shaffer 1986). Below 0.05 a verdict follows, equality first; undecided: so many new seeds would "
        "decide in four of five trials, were the mean and its noise as seen here, and judged without those already "
        "seen. Behind until: the last evaluation, in "
        f"training tokens, whose 95 % interval lies above zero; to the end: when `{baseline}` was as far."
    )
    return Table("Losses", header, body, note)


def _behind(results: Results, variant: str) -> str:
    """When a variant catches up with the baseline, or how late it is: the end point alone would hide it."""
    row, base = results.summary[variant], results.summary[results.baseline].curve
    curve = [at for at in row.difference_curve if at.low is not None]
    behind = [at.x for at in curve if at.low > 0]
    if variant == results.baseline or len(curve) < 2 or row.difference.apart:
        return "—"
    if not behind:
        return "never"
    if behind[-1] < curve[-1].x:
        return count(behind[-1])
    # of the seeds that both have: others move a mean, but not a paired difference
    as_good = next((at.x for at in base if at.mean <= base[-1].mean + curve[-1].mean), base[-1].x)
    return f"the end (baseline by {count(as_good)})"


def _learned(results: Results) -> Table:
    shares = {(variant, at.x): in_words(at) for variant, row in results.summary.items() for at in row.learned}
    lengths = sorted({x for _, x in shares})
    body = [
        [variant, *(shares.get((variant, x), "n/a") for x in lengths), found.said]
        for variant, found in findings(results).items()
    ]
    note = (
        "Seeds that answer nearly all examples of a length, with the exact 95 % interval of their share (Clopper & "
        "Pearson 1934). Verdicts at the longest trained length: Fisher's exact test (1935), Holm's correction. Means of "
        "losses, below, say little where a seed learns all or nothing."
    )
    return Table("Seeds that learned, by length", ["variant", *map(str, lengths), "verdict"], body, note)


def _match(results: Results) -> Table:
    note = "Share of examples whose whole answer is right, by length, over seeds."
    return _by_length(results, "exact_match", str, "Exact match by length", note)


def _context(results: Results) -> Table:
    note = (
        f"{results.unit}; 1× is the trained context of `{results.baseline}`, {results.context} tokens. The same tokens "
        "are scored in every column, each with nearly that much before it. n/a: the scheme has no positions that far "
        "out, or the text is too short. “a + b”: the same trained models, evaluated with the position options b. "
        f"Effective context: the fewest tokens before it that keep the loss within {TOLERANCE:g} of that at 1× (≤: "
        "fewer were not tried); where they are few, a flat line comes from not looking far."
    )

    def heading(x):
        return f"{x:g} tokens" if x < results.context else f"{x / results.context:g}×"

    table = _by_length(results, "loss_by_context", heading, "Loss by context", note)
    if table.header[1:]:
        table.header.append("effective context")
        for cells, row in zip(table.rows, results.evaluations().values()):
            few = few_tokens(row.loss_by_context, results.context)
            cells.append(few if few == "n/a" else f"{few} tokens")
    return table


def few_tokens(points: Sequence[Point], context: int) -> str:
    """The effective context in words, `11`; `≤ 8` where the shortest that was measured is enough; or `n/a`."""
    reach = effective_context(points, context)
    if reach is None:
        return "n/a"
    return f"{'≤ ' * (reach == min(at.x for at in points))}{reach:.0f}"


def _by_length(results: Results, key: str, heading: Callable[[int], str], title: str, note: str) -> Table:
    """A row for each evaluation, a column for each length x of a series."""
    names = results.evaluations()
    cells = {(name, at.x): plus_minus(at, 3) for name, row in names.items() for at in getattr(row, key)}
    lengths = sorted({x for _, x in cells})
    body = [[name, *(cells.get((name, x), "n/a") for x in lengths)] for name in names]
    return Table(title, ["variant", *map(heading, lengths)], body, note)


def _cost(results: Results) -> Table:
    body = []
    for variant, row in results.summary.items():
        numbers = ["not measured", "not measured", "—", "—"]
        if cost := results.cost.get(variant):
            speeds = cost.training_tokens_per_second, cost.decoding_tokens_per_second
            numbers = [_ratio(cost.training), _ratio(cost.decoding), *(f"{speed:,.0f}" for speed in speeds)]
        body.append([variant, f"{row.parameters:,}", f"{row.position_parameters:,}", *numbers])
    note = (
        f"Times as a multiple of those of `{results.baseline}`, all variants measured in turn on the machine named "
        "below: the median over rounds, and the extremes. Scatters: rounds differ too much to tell. Tokens/s are of "
        "this machine alone."
    )
    header = ["parameters", "of positions", "time of a trained token", "of a decoded token"]
    return Table("Cost", ["variant", *header, "training tokens/s", "decoded tokens/s"], body, note)


def _ratio(ratio: Ratio | None) -> str:
    return "scatters" if ratio is None else f"{ratio.median:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"


def _inside(results: Results) -> Table:
    body, metrics = [], {n: m.words for row in results.summary.values() for n, m in row.scheme_metrics.items()}
    for variant, row in results.summary.items():
        start, end, norms = row.embedding_rms.get("start"), row.embedding_rms["end"], [at.mean for at in row.grad_norm]
        logit = max(map(max, row.attention.largest_logit)) if row.attention else None
        sizes = [*((start.tokens, start.position) if start else (None, None)), end.tokens, end.position, logit]
        sizes += [max(norms), norms[-1]] if norms else [None, None]
        logged = [getattr(row.scheme_metrics.get(name), "largest", []) for name in metrics]
        sizes += [points[-1].mean if points else None for points in logged]
        body.append([variant, *("—" if size is None else f"{size:.3g}" for size in sizes)])
    header = ["tokens at the start", "positions at the start", "tokens at the end", "positions at the end"]
    header += ["largest attention logit", "largest gradient norm", "last gradient norm"]
    header += [f"{name} ({words})" for name, words in metrics.items()]
    note = (
        "Tokens, positions: root mean square of the token embeddings and of what the scheme adds to them, of the "
        "first seed. Logits: after 1/√d and bias, on validation text, of the first seed. Gradient norm: before "
        "clipping, mean over seeds. What a scheme logs of itself: the largest entry at the end, mean over seeds."
    )
    return Table("Inside the model", ["variant", *header], body, note)


def _rates(results: Results) -> Table:
    body, tried = [], sorted({rate.learning_rate for rates in results.sweep.values() for rate in rates})
    for variant, rates in results.sweep.items():
        cells, row = dict.fromkeys(tried, "—"), results.summary.get(variant)
        for one in rates:
            remarks = ["used"] if row and one.learning_rate == row.learning_rate else []
            remarks += [f"{seeds(one.diverged)} diverged"] if one.diverged else []
            cells[one.learning_rate] = plus_minus(one) + f" ({', '.join(remarks)})" * bool(remarks)
        body.append([variant, *cells.values()])
    note = (
        f"Mean validation loss in {results.unit} on the tuning half, with {seeds(results.tuning_seeds)}. All "
        "other tables use the rate of the lowest mean where the fewest seeds diverged."
    )
    return Table("Learning rates", ["variant", *(f"{rate:g}" for rate in tried)], body, note)


def _diverged(results: Results) -> Table:
    lost = [(variant, run) for variant, runs in results.diverged.items() for run in runs]
    body = [[variant, f"{run.learning_rate:g}", str(run.seed), run.diverged] for variant, run in lost]
    note = "What was no longer finite and ended the run. These runs are in no mean."
    return Table("Diverged runs", ["variant", "learning rate", "seed", "what happened"], body, note)


def _settings(results: Results) -> Table:
    keys = list(dict.fromkeys(key for own in results.differing.values() for key in own))
    body = [[variant, *(_setting(own.get(key, "—")) for key in keys)] for variant, own in results.differing.items()]
    return Table("What differs", ["variant", *keys], body, "All config keys in which the variants differ.")


def _setting(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False).strip('"')
