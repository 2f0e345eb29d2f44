"""How the gaps between variants change over several conditions: budgets, texts, sizes of the model."""

import math
from html import escape
from statistics import fmean

from comparison.drawing import Plot, Series, inline_svg, svg_file
from comparison.forest import verdict
from comparison.formats import interval
from comparison.plots import MOST_VARIANTS, WORST
from comparison.report import inline, page, table_html
from comparison.results import Results
from comparison.tables import Table
from comparison.words import NOISE, learned, learned_verdicts, named, sentences


def overview(results: dict[str, Results]) -> tuple[str, str, dict[str, str]]:
    """An HTML page, a markdown text and its pictures by file name; results: by the condition's name, of one baseline."""
    plot, answer = gaps(results), _answer(results)
    shown = [table for table in (differences(results), at_equal_time(results)) if table.rows]
    said = {name: sentences(one) for name, one in results.items()}
    caveats = list(dict.fromkeys(some[1] for some in said.values()))
    caveats = caveats if len(caveats) == 1 else [f"{name}: {some[1]}" for name, some in said.items()]
    answers = [f"{name}: {some[0]}" for name, some in said.items()]
    title = f"{len(results)} conditions: {', '.join(results)}"
    figure = f"<figure>{inline_svg(plot)}<figcaption>{escape(plot.description)}</figcaption></figure>"
    items, notes = "".join(f"<li>{inline(one)}</li>" for one in answers), "<br/>".join(map(inline, caveats))
    html = page(
        title,
        f'<p class="answer">{inline(answer)}</p><p>{notes}</p>{figure}'
        f"{''.join(map(table_html, shown))}<h2>Each condition alone</h2><ul>{items}</ul>",
    )
    parts = [f"# {title}", f"**{answer}**", "\n".join(f"- {one}" for one in caveats), f"![{plot.title}](gaps.svg)"]
    parts += [f"## {table.title}\n\n{table.markdown()}" for table in shown]
    parts += ["## Each condition alone", "\n".join(f"- {one}" for one in answers)]
    return html, "\n\n".join(parts) + "\n", {"gaps.svg": svg_file(plot)}


def gaps(results: dict[str, Results]) -> Plot:
    """A line for each variant over the conditions; of many variants the lowest means and the two highest.

    Where every condition is a synthetic task, of the share of seeds that learned; else of the differences in loss.
    """
    tasks, first, found = all(map(learned, results.values())), next(iter(results.values())), {}
    for n, one in enumerate(results.values()):
        for variant in one.summary:
            value = _share(one, variant) if tasks else _gap(one, variant)
            if value:
                found.setdefault(variant, {})[n] = value
    ranked = sorted(found, key=lambda variant: fmean(mean for mean, *_ in found[variant].values()))
    lowest = MOST_VARIANTS - 1 - WORST
    some, places = ranked[:lowest] + ranked[lowest:][-WORST:], range(len(results))
    nothing = (None, None, None)
    series = [
        Series(
            variant,
            [(n, found[variant].get(n, nothing)[0]) for n in places],
            [None if found[variant].get(n, nothing)[1] is None else found[variant][n][1:] for n in places],
            colour,
        )
        for colour, variant in enumerate(some)
    ]
    said = f"Mean paired difference in final loss to {first.baseline}, with its 95 % interval; below zero is better."
    title, y, levels = f"Difference to {first.baseline} by condition", f"difference ({first.unit})", [(0.0, "")]
    if tasks:
        said = "Share of the seeds that learned the longest trained length, with its exact 95 % interval."
        title, y, levels = "Seeds that learned, by condition", "seeds that learned (%)", []
    if len(some) < len(ranked):
        said += f" Drawn are {len(some)} of {len(ranked)} variants: the lowest means and the {WORST} highest."
    return Plot("gaps", title, "condition", y, said, series, levels=levels, every_bar=True, ticks=list(results))


def _gap(one: Results, variant: str) -> tuple | None:
    gap = one.summary[variant].difference
    left_out = variant == one.baseline or gap.mean is None or gap.apart or learned(one)
    return None if left_out else (gap.mean, gap.low, gap.high)


def _share(one: Results, variant: str) -> tuple | None:
    at = learned(one).get(variant)
    return at and (100 * at.count / at.n, 100 * at.low, 100 * at.high)


def differences(results: dict[str, Results]) -> Table:
    """Rows: variants; columns: conditions."""

    def cell(one, variant):
        row = one.summary.get(variant)
        if row is None:
            return "diverged" if variant in one.diverged else "n/a"
        numbers, base = row.difference, variant == one.baseline
        if share := learned(one).get(variant):
            said = "baseline" if base else _verdict(one, variant) or "not compared"
            return f"{share.count} of {share.n} seeds, {said}"
        if base:
            return f"baseline: {row.val_loss.mean:.3f}"
        around = "" if numbers.low is None else f" ({interval(numbers, 3)})"
        mean = "n/a" if numbers.mean is None else f"{numbers.mean:+z.3f}"
        return f"{mean}{around} {verdict(numbers, one.margin)}"

    rows = [[variant, *(cell(one, variant) for one in results.values())] for variant in _variants(results)]
    baseline, units = _baseline(results), " or ".join(sorted({one.unit for one in results.values()}))
    note = (
        f"Losses in {units}, with 95 % intervals; of a synthetic task the seeds that learned its longest trained length. "
        "Each condition is tested by itself; see its own report."
    )
    return Table(f"Beside {baseline}", ["variant", *results], rows, note)


def _verdict(one: Results, variant: str) -> str | None:
    if learned(one):
        return learned_verdicts(one).get(variant)
    row = one.summary[variant].difference
    return None if row.apart else row.verdict


def at_equal_time(results: dict[str, Results]) -> Table:
    """What each variant would reach in the time that the baseline takes, where budgets of one text were compared."""
    budgets: dict[tuple, dict[int, Results]] = {}
    for one in results.values():
        if len(one.tokens) == 1:
            budgets.setdefault(_text_and_size(one), {})[one.tokens[0]] = one
    columns = {name: one for name, one in results.items() if len(budgets.get(_text_and_size(one), [])) > 1}
    rows = []
    for variant in _variants(columns):
        row = [variant]
        for one in columns.values():
            loss = _in_the_same_time(one, budgets[_text_and_size(one)], variant)
            gap = None if loss is None else loss - one.summary[one.baseline].val_loss.mean
            row.append("n/a" if loss is None else f"{loss:.3f} ({gap:+z.3f})")
        rows.append(row)
    known = any(cell != "n/a" for row in rows for cell in row[1:] if row[0] != _baseline(results))
    note = (
        f"Loss, and difference to {_baseline(results)}, after as many tokens as a variant trains on while "
        f"{_baseline(results)} trains on the condition's: its mean final losses, interpolated between the budgets "
        "linearly in the logarithm of tokens. n/a: outside the budgets, or its time scatters or was not measured."
    )
    return Table("At equal time", ["variant", *columns], rows if known else [], note)


def _in_the_same_time(one: Results, budgets: dict[int, Results], variant: str) -> float | None:
    costs = [some.cost[variant].training for some in (one, *budgets.values()) if variant in some.cost]
    ratio = 1.0 if variant == one.baseline else next((cost.median for cost in costs if cost), None)
    losses = {n: some.summary[variant].val_loss.mean for n, some in budgets.items() if variant in some.summary}
    if ratio is None or not losses:
        return None
    tokens = one.tokens[0] / ratio
    below, above = (max((n for n in losses if n <= tokens), default=None),
                    min((n for n in losses if n >= tokens), default=None))  # fmt: skip
    if below is None or above is None:
        return None
    part = math.log(tokens / below) / math.log(above / below) if above > below else 0.0
    return losses[below] + part * (losses[above] - losses[below])


def _text_and_size(one: Results) -> tuple:
    return one.corpus["hash"], one.summary[one.baseline].parameters, one.optimizer, one.context, one.unit


def _baseline(results: dict[str, Results]) -> str:
    return next(iter(results.values())).baseline


def _variants(results: dict[str, Results]) -> list[str]:
    return list(dict.fromkeys(variant for one in results.values() for variant in one.sweep))


def _answer(results: dict[str, Results]) -> str:
    """Which verdicts hold under every condition, and which change."""
    baseline, verdicts = _baseline(results), {}
    for variant in _variants(results):
        if variant != baseline:
            found = [_verdict(one, variant) for one in results.values() if variant in one.summary]
            verdicts[variant] = [kind for kind in found if kind]
    n, parts = len(results), []
    for kind in ("better", "equal", "worse"):
        if some := [variant for variant, found in verdicts.items() if found == [kind] * n]:
            how = "equal to" if kind == "equal" else f"{kind} than"
            parts.append(f"{how} `{baseline}` {NOISE * (kind != 'equal')} under every condition: {named(some)}")
    turned = [v for v, found in verdicts.items() if {"better", "worse"} <= {*found}]
    if turned:
        parts.append(f"better under one, worse under another: {named(turned)}")
    left = [v for v, found in verdicts.items() if v not in turned and (len(found) < n or len({*found}) > 1)]
    left += [v for v, found in verdicts.items() if len(found) == n and {*found} <= {"undecided", "too few seeds"}]
    if left:
        parts.append(f"not the same everywhere, or undecided: {named(dict.fromkeys(left))}")
    said = "; ".join(part.replace("  ", " ") for part in parts) or f"nothing to compare `{baseline}` with"
    return said[0].upper() + said[1:] + "."
