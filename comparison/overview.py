"""How the gaps between variants change over several conditions: budgets, texts, sizes of the model."""

import json
import math
from statistics import fmean

import numpy as np

from comparison.drawing import Plot, Series, svg_file
from comparison.formats import number_of
from comparison.page import inline, items, page, table_html
from comparison.plots import WORST, few
from comparison.results import Results
from comparison.tables import Table
from comparison.verdicts import Finding, findings, learned
from comparison.words import NOISE, by_kind, sentences
from training.run import trained_keys

# what may differ between budgets of one training
BUDGET = ("seed", "train.steps", "train.warmup_steps", "train.learning_rate", "train.min_learning_rate")


def overview(results: dict[str, Results]) -> tuple[str, str, dict[str, str]]:
    """An HTML page, a markdown text and its pictures by file name; results: by the condition's name, of one baseline."""
    answer, plot = _answer(results), gaps(results)
    tables = [table for table in (differences(results), at_equal_time(results)) if table.rows]
    said = {name: sentences(one) for name, one in results.items()}
    caveats = list({some[1] for some in said.values()})
    caveats = caveats if len(caveats) == 1 else [f"{name}: {some[1]}" for name, some in said.items()]
    answers = [f"{name}: {some[0]}" for name, some in said.items()]
    title = f"{number_of(len(results), 'condition')}: {', '.join(results)}"
    figure = f"<figure>{plot.svg}<figcaption>{inline(plot.description)}</figcaption></figure>" if plot else ""
    html = page(
        title,
        f'<p class="answer">{inline(answer)}</p><p>{"<br/>".join(map(inline, caveats))}</p>{figure}'
        f"{''.join(map(table_html, tables))}<h2>Each condition alone</h2><ul>{items(answers)}</ul>",
    )
    parts = [f"# {title}", f"**{answer}**", "\n".join(f"- {one}" for one in caveats)]
    parts += [f"![{plot.title}](gaps.svg)"] if plot else []
    parts += [f"## {table.title}\n\n{table.markdown()}" for table in tables]
    parts += ["## Each condition alone", "\n".join(f"- {one}" for one in answers)]
    return html, "\n\n".join(parts) + "\n", {"gaps.svg": svg_file(plot)} if plot else {}


def gaps(results: dict[str, Results]) -> Plot | None:
    """A line for each variant over the conditions; of many variants the best and the two worst on average. None where
    nothing is compared.

    Where every condition is a synthetic task, of the share of seeds that learned; else of the differences in loss.
    """
    tasks, baseline = all(map(learned, results.values())), _baseline(results)
    found: dict[str, dict[int, Finding]] = {}
    for n, one in enumerate(results.values()):
        for variant, finding in findings(one).items() if tasks or not learned(one) else ():
            if finding.is_compared or tasks and variant == baseline:
                found.setdefault(variant, {})[n] = finding
    if not found:
        return None
    means = {variant: fmean(one.value for one in some.values()) for variant, some in found.items()}
    ranked, nothing, series = sorted(means, key=means.get, reverse=tasks), Finding("", ""), []
    for colour, variant in enumerate(few(ranked)):
        some = [found[variant].get(n, nothing) for n in range(len(results))]
        band = [None if one.low is None else (one.low, one.high) for one in some]
        series.append(Series(variant, [(n, one.value) for n, one in enumerate(some)], band, colour))
    said = f"Mean paired difference in final loss to `{baseline}`, with its 95 % interval; below zero is better."
    title, y, levels = f"Difference to {baseline} by condition", f"difference ({_units(results)})", [(0.0, "")]
    if tasks:
        said = "Share of the seeds that learned the longest trained length, with its exact 95 % interval."
        title, y, levels = "Seeds that learned, by condition", "seeds that learned (%)", []
    if len(series) < len(ranked):
        said += f" Drawn are {len(series)} of {len(ranked)} variants: the best means and the {WORST} worst."
    return Plot("gaps", title, "condition", y, said, series, levels=levels, ticks=list(results))


def differences(results: dict[str, Results]) -> Table:
    """Rows: variants; columns: conditions."""
    found, rows = [findings(one) for one in results.values()], []
    for variant in _variants(results):
        cells = [one.get(variant) for one in found]
        rows.append([variant, *(f"{one.numbers}, {one.said}" if one else "n/a" for one in cells)])
    note = (
        f"The loss of the baseline and the differences to it in {_units(results)}, of a synthetic task the seeds that "
        "learned its longest trained length, with 95 % intervals. Each condition is tested by itself; see its own report."
    )
    return Table(f"Beside {_baseline(results)}", ["variant", *results], rows, note)


def at_equal_time(results: dict[str, Results]) -> Table:
    """What each variant would reach in the time that the baseline takes, where budgets of one text were compared."""
    baseline, budgets = _baseline(results), {}
    for name, one in results.items():
        some = [other for other in results.values() if _text_and_size(other) == _text_and_size(one)]
        # two of one budget differ in their rates alone; of a task that is learned or not, a mean loss says little
        if len({_budget(other) for other in some}) == len(some) > 1 and not learned(one):
            budgets[name] = some
    rows = []
    for variant in _variants({name: results[name] for name in budgets}):
        row = [variant]
        for name, some in budgets.items():
            loss, own = _in_the_same_time(results[name], some, variant), results[name].summary[baseline].val_loss.mean
            row.append("n/a" if loss is None else f"{loss:.3f} ({loss - own:+z.3f})")
        rows.append(row)
    known = any(cell != "n/a" for variant, *cells in rows for cell in cells if variant != baseline)
    note = (
        f"Loss, and difference to `{baseline}`, after as many tokens as a variant trains on while `{baseline}` trains on "
        "the condition's: the mean losses of `{baseline}` and the paired differences to them, interpolated between the "
        "budgets linearly in the logarithm of tokens. "
        "n/a: outside the budgets, not to be compared, or its time scatters or was not measured."
    )
    return Table("At equal time", ["variant", *budgets], rows if known else [], note)


def _text_and_size(one: Results) -> tuple:
    config = trained_keys(one.runs[one.baseline][0].config)
    rest = json.dumps([item for item in config.items() if item[0] not in BUDGET])
    return one.corpus["hash"], one.summary[one.baseline].parameters, one.optimizer, one.context, one.unit, rest


def _budget(one: Results) -> int:
    return one.runs[one.baseline][0].tokens


def _in_the_same_time(one: Results, budgets: list[Results], variant: str) -> float | None:
    costs = [some.cost[variant].training for some in (one, *budgets) if variant in some.cost]
    ratio = 1.0 if variant == one.baseline else next((cost.median for cost in costs if cost), None)
    found = [(some, some.summary[variant].difference) for some in budgets if variant in some.summary]
    losses = sorted(
        (math.log(_budget(some)), some.summary[some.baseline].val_loss.mean + difference.mean)
        for some, difference in found
        if difference.mean is not None and not difference.apart
    )
    if ratio is None or not losses:
        return None
    loss = float(np.interp(math.log(_budget(one) / ratio), *zip(*losses), left=math.nan, right=math.nan))
    return None if math.isnan(loss) else loss


def _units(results: dict[str, Results]) -> str:
    return " or ".join(sorted({one.unit for one in results.values()}))


def _baseline(results: dict[str, Results]) -> str:
    return next(iter(results.values())).baseline


def _variants(results: dict[str, Results]) -> list[str]:
    return list(dict.fromkeys(variant for one in results.values() for variant in one.sweep))


def _answer(results: dict[str, Results]) -> str:
    """Which verdicts hold wherever a variant is compared, and which change."""
    baseline, found = _baseline(results), [findings(one) for one in results.values()]
    words = {
        "better": f"better than `{baseline}` {NOISE} wherever compared",
        "equal": f"equal to `{baseline}` wherever compared",
        "worse": f"worse than `{baseline}` {NOISE} wherever compared",
        "turned": "better under one condition, worse under another",
        "mixed": "not the same everywhere",
        "undecided": "undecided",
        "too few seeds": "too few seeds to tell",
        "diverged": "diverged",
        "none": "never compared",
    }
    verdicts = {}
    for variant in _variants(results):
        own = [one[variant] for one in found if variant in one]
        kinds = {one.kind for one in own if one.is_compared or one.kind == "diverged"}
        several = "turned" if {"better", "worse"} <= kinds else "mixed"
        verdicts[variant] = several if len(kinds) > 1 else next(iter(kinds), "none")
    del verdicts[baseline]
    said = "; ".join(by_kind(verdicts, words)) or f"nothing to compare `{baseline}` with"
    return said[0].upper() + said[1:] + "."
