"""The report of a comparison from its results alone: report.html, report.md, its pictures and results.json."""

import json
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from base import replace_text, writing
from comparison import forest
from comparison.drawing import Plot, svg_file
from comparison.formats import count, number_of
from comparison.page import figure, inline, items, page, table_html
from comparison.plots import FIRST, WORST, plots, shown
from comparison.results import Results
from comparison.tables import tables
from comparison.verdicts import findings
from comparison.words import are_chosen, rates, sentences


def write(results: Results, folder: Path, **more: Any) -> str:
    """Writes report.html, report.md, its pictures and results.json, and returns the text of report.md.

    more: further keys of results.json. InputError where the folder can't be written.
    """
    drawn = [plot for plot in plots(results) if plot.name in ("loss", "context")]
    text = markdown(results, drawn)
    files = {"report.html": html(results), "report.md": text, "forest.svg": forest.svg(forest.forest(results))}
    files |= {f"{plot.name}.svg": svg_file(plot) for plot in drawn}
    verdicts = {variant: asdict(finding) for variant, finding in findings(results).items()}
    files["results.json"] = json.dumps({**asdict(results), "verdicts": verdicts, **more}, indent=1, allow_nan=False)
    write_files(folder, files)
    return text


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Writes texts by file name, each whole or not at all; InputError where the folder or one of them can't be written."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with writing(folder / name):
            replace_text(folder / name, content)


def markdown(results: Results, drawn: list[Plot]) -> str:
    """The report for a README or a pull request, which shows forest.svg and the file of each plot that is drawn."""
    answer, caveat, *rest = sentences(results)
    main, *others = [f"## {table.title}\n\n{table.markdown()}" for table in tables(results)]
    parts = [f"# {results.name}", f"**{answer}**", caveat, " · ".join(_chips(results))]
    parts += ["![Forest plot](forest.svg)", main, *(f"![{plot.title}]({plot.name}.svg)" for plot in drawn)]
    parts += ["## How sure?", "\n".join(f"- {said}" for said in rest)] * bool(rest) + others
    return "\n\n".join([*parts, _made_with(results)]) + "\n"


def html(results: Results) -> str:
    """The whole report as one page that needs no network and no script."""
    answer, caveat, *rest = sentences(results)
    drawn = plots(results)
    first, folded = ("".join(figure(plot) for plot in drawn if (plot.name in FIRST) is top) for top in (True, False))
    some, every, selection = len(shown(results)), len(results.summary), ""
    if some < every:
        compared = sum(one.is_compared for one in findings(results).values()) + 1
        which = " and those" if some == compared else f", the best and the {WORST} worst of those"
        said = f"Drawn below are {some} of {every} variants: `{results.baseline}`{which} compared with it."
        selection = f'<p class="note">{inline(said)}</p>'
    return page(
        results.name,
        f"""<p class="answer">{inline(answer)}</p>
<p>{inline(caveat)}</p>
<ul class="chips">{items(_chips(results))}</ul>
{forest.table(forest.forest(results))}
{selection}<div class="plots">{first}</div>
<details class="sure"><summary>How sure?</summary>
<ul>{items(rest)}</ul>
{"".join(map(table_html, tables(results)))}
<div class="plots">{folded}</div>
</details>
<footer><p>{escape(_made_with(results))}</p></footer>""",
    )


def _chips(results: Results) -> list[str]:
    """What was trained: the text, the model, the budget, the seeds, the optimizer, the learning rates."""
    corpus, row = results.corpus, results.summary[results.baseline]
    shape = results.runs[results.baseline][0].config.get("model", {})
    sizes = f", {number_of(shape['num_hidden_layers'], 'layer')} × {shape['hidden_size']}" if shape else ""
    tried = _range([len(rates) for rates in results.sweep.values()])
    how = f"the best of {tried} tried" if results.tuning else "chosen before" if are_chosen(results) else "given"
    return [
        number_of(len(results.sweep), "variant"),
        f"text: {corpus['source']}, {count(corpus['train_bytes'])} bytes",
        f"model: {count(row.parameters)} parameters{sizes}, context {results.context}",
        f"{' or '.join(map(count, results.tokens))} tokens a run",
        number_of(_range([len(other.seeds) for other in results.summary.values()]), "seed"),
        results.optimizer,
        f"learning rate {rates(results)}, {how}",
    ]


def _range(numbers: list[int]) -> str:
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def _made_with(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    hardware, corpus = results.hardware, results.corpus
    return (
        f"Reported with {versions} on {hardware['device']}, {number_of(hardware['cores'], 'core')}, "
        f"{number_of(hardware['threads'], 'thread')}; corpus {corpus['hash'][:16]}, "
        f"{corpus['train_bytes']:,} bytes to train on and {corpus['val_bytes']:,} to validate. "
        "All numbers, with the config of each run, are in results.json."
    )
