"""Writes the tables and pictures of docs/study.md from the results in docs/study: python docs/study.py [RUNS]

With RUNS, the folder that compare.py wrote its reports into, their results.json are taken over first, without what no
table needs: the gradient norms, and of the attention all but the first seed's. A block of study.md lies between
<!-- NAME PARTS --> and <!-- end -->; tests/test_study.py holds them to the results.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from comparison.forest import forest, svg
from comparison.formats import plus_minus
from comparison.results import Results
from comparison.tables import few_tokens
from comparison.verdicts import findings

BLOCK = re.compile(r"(<!-- (\w+) ([\w ]+) -->\n).*?(<!-- end -->)", re.S)


def load(part: str) -> Results:
    """The committed results of one part of the study."""
    return TypeAdapter(Results).validate_json((DOCS / "study" / f"{part}.json").read_text(encoding="utf-8"))


def loss(results: Results) -> str:
    """A row a variant: its learning rate, its loss, the difference to the baseline and what follows."""
    header = ["variant", "rate", "seeds", "loss", f"difference to {results.baseline} (95 %)", "verdict", "parameters"]
    rows = []
    for variant, found in findings(results).items():
        if variant not in results.summary:
            rows.append([variant, *["n/a"] * 4, found.said, "n/a", "n/a"])
            continue
        row, cost = results.summary[variant], results.cost.get(variant)
        edge = " (edge)" * (variant in results.at_edge)
        time = f"{cost.training.median:.2f}" if cost and cost.training else "n/a"
        own = [f"{row.learning_rate:g}{edge}", f"{len(row.seeds)}", plus_minus(row.val_loss, 3)]
        compared = ["" if variant == results.baseline else found.numbers, found.said]
        rows.append([variant, *own, *compared, f"{row.parameters:,}", time])
    return markdown([*header, "time of training"], rows)


def length(results: Results) -> str:
    """A row an evaluation: the loss by tokens of context, the change from the trained context to the longest, and with how
    few tokens the loss at the trained context is kept."""
    rows, evaluations = [], {name: row.loss_by_context for name, row in results.evaluations().items()}
    lengths = sorted({point.x for points in evaluations.values() for point in points})
    for name, points in evaluations.items():
        at = {point.x: point for point in points}
        known = [plus_minus(at[x], 3) if x in at else "n/a" for x in lengths]
        here, far = (at[x].mean if x in at else None for x in (results.context, lengths[-1]))
        change = "n/a" if None in (here, far) else f"{far - here:+.3f}"
        rows.append([name, *known, change, few_tokens(points, results.context)])
    return markdown(["variant", *(f"{x:g}" for x in lengths), "change", "effective context"], rows)


def rates(results: Results) -> str:
    """A row a variant: the loss on the tuning half at each learning rate that was tried."""
    tried = sorted({row.learning_rate for rows in results.sweep.values() for row in rows})
    rows = []
    for variant, sweep in results.sweep.items():
        at = {row.learning_rate: "diverged" if row.mean is None else f"{row.mean:.3f}" for row in sweep}
        rows.append([variant, *(at.get(rate, "") for rate in tried)])
    return markdown(["variant", *(f"{rate:g}" for rate in tried)], rows)


def curve(results: Results) -> str:
    """A row an evaluation during training: the loss of the baseline, and the differences to it."""
    summary, baseline = results.summary, results.baseline
    others, rows = [name for name in summary if name != baseline], []
    gaps = {name: {gap.x: gap for gap in summary[name].difference_curve} for name in others}
    for at in summary[baseline].curve:
        found = [gaps[name][at.x] for name in others]
        told = (f"{gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})" for gap in found)
        rows.append([f"{at.x / 1e6:.1f}M", plus_minus(at, 3), *told])
    return markdown(["tokens", baseline, *(f"{name} − {baseline} (95 %)" for name in others)], rows)


def task(results: Results) -> str:
    """A row a variant: the seeds that learned the task, and the share of right answers by length of the string."""
    rows, lengths = [], sorted({at.x for row in results.summary.values() for at in row.exact_match})
    for variant, found in findings(results).items():
        if variant not in results.summary:
            rows.append([variant, "n/a", "n/a", found.said, *["n/a"] * len(lengths)])
            continue
        row = results.summary[variant]
        at = {point.x: plus_minus(point, 2) for point in row.exact_match}
        rows.append(
            [variant, f"{row.learning_rate:g}", found.numbers, found.said, *(at.get(x, "n/a") for x in lengths)]
        )
    return markdown(["variant", "rate", "seeds that learned", "verdict", *(f"{x:g}" for x in lengths)], rows)


def gaps(*parts: Results) -> str:
    """A row a variant that is in several parts, a column a part: the difference to the baseline, bold where decided."""
    found = [{name: one for name, one in findings(part).items() if one.is_compared} for part in parts]
    rows = []
    for variant in dict.fromkeys(name for some in found for name in some):
        ones = [some.get(variant) for some in found]
        if len(ones) - ones.count(None) > 1:
            marks = ["**" if one and one.kind in ("better", "worse", "equal") else "" for one in ones]
            rows.append([variant, *(f"{mark}{one.numbers}{mark}" if one else "" for one, mark in zip(ones, marks))])
    return markdown(["variant", *(part.name for part in parts)], rows)


def picture(results: Results) -> str:
    return f"![Difference to {results.baseline} of each variant](study/{results.name}.svg)"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def pictures(text: str) -> dict[Path, str]:
    """The SVG of each forest plot on the page."""
    parts = [part for _, kind, part, _ in BLOCK.findall(text) if kind == "forest"]
    return {DOCS / "study" / f"{part}.svg": svg(forest(load(part))) for part in parts}


BLOCKS: dict[str, Callable[..., str]] = {
    "loss": loss,
    "length": length,
    "rates": rates,
    "curve": curve,
    "task": task,
    "gaps": gaps,
    "forest": picture,
}


def written(text: str) -> str:
    """The text of study.md with its blocks made anew."""
    return BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]](*map(load, block[3].split())) + "\n" + block[4], text)


def take_over(runs: Path) -> None:
    for file in runs.glob("*/results.json"):
        numbers = json.loads(file.read_text(encoding="utf-8"))
        for row in numbers["summary"].values():
            row["grad_norm"] = []
        for some in [*numbers["runs"].values(), *numbers["tuning"].values()]:
            for run in some:
                run["grad_norm"] = []
                if "attention" in run:
                    run["attention"] = None
        (DOCS / "study" / f"{numbers['name']}.json").write_text(json.dumps(numbers), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        take_over(Path(sys.argv[1]))
    page = DOCS / "study.md"
    text = written(page.read_text(encoding="utf-8"))
    for file, content in {page: text, **pictures(text)}.items():
        file.write_text(content, encoding="utf-8")
