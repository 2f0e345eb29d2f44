"""The tables of a report, for markdown and HTML alike."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from comparison.formats import interval, p_value, plus_minus
from comparison.results import Results


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
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + f"\n\n{self.note}"


def tables(results: Results) -> list[Table]:
    """The tables for which there are numbers, the main one first."""
    made = [_main(results), _context(results), _match(results), _inside(results), _cost(results)]
    if any(len(rates) > 1 for rates in results.sweep.values()):
        made.append(_rates(results))
    made += [_diverged(results), _settings(results)]
    return [table for table in made if table.rows and len(table.header) > 1]


def _main(results: Results) -> Table:
    body = []
    for variant, row in results.summary.items():
        numbers = row.difference
        p = "n/a" if numbers.p_holm is None else p_value(numbers.p_holm)
        compared = [plus_minus(numbers, sign="+"), interval(numbers), p, numbers.verdict]
        if variant == results.baseline:
            compared = ["—", "—", "—", "baseline"]
        seeds = ", ".join(map(str, row.seeds))
        lost = [rate.diverged for rate in results.sweep[variant] if rate.learning_rate == row.learning_rate]
        lost = "".join(f" ({', '.join(map(str, some))} diverged)" for some in lost if some)
        body.append([variant, plus_minus(row.val_loss), plus_minus(row.val_bits_per_byte), *compared, seeds + lost])
    body += [[variant, *["—"] * 5, "diverged", "—"] for variant in results.diverged if variant not in results.summary]
    header = ["variant", f"validation loss ({results.unit})", "bits per byte", f"difference to {results.baseline}"]
    note = (
        "± is the standard deviation from seed to seed. Differences are paired by seed; intervals are 95 % "
        "t-intervals of their mean, not corrected; p is that of the paired t-test, two-sided, corrected for the number "
        "of variants (Holm 1979)."
    )
    return Table("Validation loss", [*header, "95 % interval", "p (Holm)", "verdict", "seeds"], body, note)


def _context(results: Results) -> Table:
    note = (
        f"{results.unit}; 1× is the trained context of {results.context} tokens. The same tokens are scored in "
        "every column, each with nearly the whole of that context before it. n/a: the scheme has no positions that "
        "far out, or the text is too short. “a + b”: the same trained models, evaluated with the position options b."
    )
    return _by_length(results, "loss_by_context", lambda x: f"{x / results.context:g}×", "Loss by context length", note)


def _match(results: Results) -> Table:
    note = "Share of examples whose whole answer is right, by length, over seeds."
    return _by_length(results, "exact_match", str, "Exact match by length", note)


def _by_length(results: Results, key: str, heading: Callable[[int], str], title: str, note: str) -> Table:
    """A row for each evaluation, a column for each length x of a series."""
    series = {name: {point.x: point for point in getattr(row, key)} for name, row in results.evaluations().items()}
    lengths = sorted({x for points in series.values() for x in points})
    body = [[name, *(plus_minus(at[x], 3) if x in at else "n/a" for x in lengths)] for name, at in series.items()]
    return Table(title, ["variant", *map(heading, lengths)], body, note)


def _cost(results: Results) -> Table:
    body = []
    for variant, row in results.summary.items():
        speeds = [f"{speed:,.0f}" for speed in (row.tokens_per_second, row.decode_tokens_per_second)]
        body.append([variant, f"{row.position_parameters:,} of {row.parameters:,}", *speeds])
    note = "Medians over the runs: training as each run logged it; decoding one sequence on the machine named below."
    return Table("Cost", ["variant", "extra parameters", "training tokens/s", "decode tokens/s"], body, note)


def _inside(results: Results) -> Table:
    body = []
    for variant, row in results.summary.items():
        start, end, norms = row.embedding_rms["start"], row.embedding_rms["end"], [at.mean for at in row.grad_norm]
        logit = max(map(max, row.attention.largest_logit)) if row.attention else None
        sizes = [start.tokens, start.position, end.tokens, end.position, logit]
        sizes += [max(norms), norms[-1]] if norms else [None, None]
        body.append([variant, *("—" if size is None else f"{size:.3g}" for size in sizes)])
    header = ["tokens at the start", "positions at the start", "tokens at the end", "positions at the end"]
    header += ["largest attention logit", "largest gradient norm", "last gradient norm"]
    note = (
        "Tokens, positions: root mean square of the token embeddings and of what the scheme adds to them, of the "
        "first seed. Logits: after 1/√d and bias, on validation text, of the first seed. Gradient norm: before "
        "clipping, mean over seeds."
    )
    return Table("Inside the model", ["variant", *header], body, note)


def _rates(results: Results) -> Table:
    body = []
    for variant, rates in results.sweep.items():
        used = variant in results.summary and results.summary[variant].learning_rate
        for row in rates:
            remarks = ["used"] * (row.learning_rate == used) + [f"seed {seed} diverged" for seed in row.diverged]
            body.append([variant, f"{row.learning_rate:g}", plus_minus(row), ", ".join(remarks)])
    note = "Means over seeds. All other tables use the rate of the lowest mean where the fewest seeds diverged."
    return Table("Learning rates", ["variant", "learning rate", f"validation loss ({results.unit})", ""], body, note)


def _diverged(results: Results) -> Table:
    body = []
    for variant, runs in results.diverged.items():
        body += [[variant, f"{run.learning_rate:g}", str(run.seed), run.diverged] for run in runs]
    note = "What was no longer finite and ended the run. These runs are in no mean."
    return Table("Diverged runs", ["variant", "learning rate", "seed", "what happened"], body, note)


def _settings(results: Results) -> Table:
    keys = list(dict.fromkeys(key for own in results.differing.values() for key in own))
    body = [
        [variant, *(json.dumps(own[key]).strip('"') if key in own else "—" for key in keys)]
        for variant, own in results.differing.items()
    ]
    return Table("What differs", ["variant", *keys], body, "All config keys in which the variants differ.")
