"""The report of a comparison from its results alone: report.html, report.md, its pictures and results.json."""

import json
import re
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from base import writing
from comparison import forest
from comparison.drawing import Plot, inline_svg, palette, svg_file
from comparison.formats import count
from comparison.plots import FIRST, WORST, plots, shown
from comparison.results import Results
from comparison.tables import Table, tables
from comparison.words import named, rates, sentences

STYLE = """
body { margin: 0 auto; padding: 0 1rem 1rem; max-width: 80rem; overflow-wrap: anywhere;
  font: 1rem/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
:root { --ink: #1a1a1a; --paper: #ffffff; --line: #c8c8c8; --soft: #f3f3f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --line: #454a52; --soft: #22262c; } }
h1 { font-size: 1rem; font-weight: 400; margin: 0.8rem 0 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
.answer { font-size: 1.25rem; font-weight: 600; line-height: 1.35; margin: 0.3rem 0 0.5rem; }
p { margin: 0.5rem 0; }
.chips { display: flex; flex-wrap: wrap; gap: 0.3rem; padding: 0; margin: 0.6rem 0; list-style: none; }
.chips li { background: var(--soft); border-radius: 0.8rem; padding: 0.1rem 0.6rem; font-size: 0.8125rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; min-width: 0; }
figure > svg { width: 100%; height: auto; max-width: 40rem; display: block; }
figcaption, .note, footer { font-size: 0.875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { background: var(--soft); vertical-align: bottom; white-space: normal; overflow-wrap: break-word; min-width: 4.5rem; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--soft); }
.forest { width: 100%; table-layout: fixed; margin: 1rem 0 0; }
.forest th, .forest td { border: 0; white-space: normal; background: none; padding: 0.15rem 0.4rem; min-width: 0; }
.forest th:first-child { position: static; font-weight: 600; width: 18%; padding-left: 0; }
.forest thead th { font-weight: 400; overflow-wrap: anywhere; border-bottom: 1px solid var(--line); }
.forest thead th:nth-child(2) { text-align: center; }
.forest td.bar { position: relative; height: 1.2rem; padding: 0; }
.bar svg { position: absolute; inset: 0; overflow: visible; font-size: 0.75rem; }
.forest thead th:nth-child(n + 3) { width: 5rem; } .forest thead th:last-child { width: 25%; }
.forest th:last-child, .forest td:last-child { text-align: left; padding-left: 1rem; }
@media (max-width: 45rem) {
  .answer { font-size: 1.0625rem; }
  .forest thead, .forest tbody, .forest tfoot { display: block; }
  .forest tr { display: grid; grid-template-columns: minmax(0, 1fr) 4.3rem 3.2rem 3.8rem; }
  .forest.columns-2 tr { grid-template-columns: minmax(0, 1fr) 4.3rem 3.6rem; }
  .forest td:not(.verdict) { white-space: nowrap; } .forest thead th { font-size: 0.75rem; }
  .forest tr > * { padding: 0.05rem 0 0.05rem 0.3rem !important; width: auto !important; }
  .forest tr > :first-child { grid-column: 1 / 2; grid-row: 1; padding-left: 0 !important; }
  .forest tr > :last-child { grid-column: 2 / -1; grid-row: 1; text-align: right !important; }
  .forest tr > :not(:first-child, :last-child) { grid-row: 2; }
  .forest tfoot tr > :first-child, .forest tfoot tr > :last-child { display: none; }
  .forest tbody tr { border-bottom: 1px solid var(--line); }
}
details { margin: 0.3rem 0; font-size: 0.875rem; } summary { cursor: pointer; }
.sure > summary { font-size: 1.2rem; font-weight: 600; margin: 2rem 0 0.5rem; }
ul { padding-left: 1.2rem; } li { margin: 0.3rem 0; } .chips li { margin: 0; }
h3 { font-size: 1rem; margin: 0.5rem 0; }
"""
MOST_ROWS = 24  # of a table under a plot; results.json has all


def write(results: Results, folder: Path, **more: Any) -> str:
    """Writes report.html, report.md, its pictures and results.json, and returns the text of report.md.

    more: further keys of results.json. InputError where the folder can't be written.
    """
    pictures = {f"{plot.name}.svg": plot for plot in plots(results) if plot.name in ("loss", "context")}
    text = markdown(results, {"forest.svg": "Forest plot", **{file: plot.title for file, plot in pictures.items()}})
    numbers = json.dumps({**asdict(results), **more}, indent=1, allow_nan=False)
    files = {"report.html": html(results), "report.md": text, "results.json": numbers}
    files |= {"forest.svg": forest.svg(forest.forest(results))}
    files |= {file: svg_file(plot) for file, plot in pictures.items()}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    return text


def markdown(results: Results, pictures: dict[str, str]) -> str:
    """The report for a README or a pull request; pictures: the files to show and their titles, the first on top."""
    answer, caveat, *rest = sentences(results)
    main, *others = [f"## {table.title}\n\n{table.markdown()}" for table in tables(results)]
    shown = [f"![{title}]({file})" for file, title in pictures.items()]
    parts = [f"# {results.name}", f"**{answer}**", caveat, " · ".join(_chips(results)), *shown[:1], main, *shown[1:]]
    parts += ["## How sure?", "\n".join(f"- {said}" for said in rest)] * bool(rest) + others
    return "\n\n".join([*parts, _made_with(results)]) + "\n"


def html(results: Results) -> str:
    """The whole report as one page that needs no network and no script."""
    answer, caveat, *rest = map(inline, sentences(results))
    drawn = plots(results)
    first, folded = ("".join(_figure(plot) for plot in drawn if (plot.name in FIRST) is top) for top in (True, False))
    chips = "".join(f"<li>{escape(chip)}</li>" for chip in _chips(results))
    some, every = shown(results), results.summary
    lines = "" if len(some) == len(every) else f'<p class="note">{inline(_selection(some, results))}</p>'
    return page(
        results.name,
        f"""<p class="answer">{answer}</p>
<p>{caveat}</p>
<ul class="chips">{chips}</ul>
{forest.table(forest.forest(results))}
{lines}<div class="plots">{first}</div>
<details class="sure"><summary>How sure?</summary>
<ul>{"".join(f"<li>{said}</li>" for said in rest)}</ul>
{"".join(map(table_html, tables(results)))}
<div class="plots">{folded}</div>
</details>
<footer><p>{escape(_made_with(results))}</p></footer>""",
    )


def page(title: str, body: str) -> str:
    """An HTML page that needs nothing else; body: what follows its heading."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{escape(title)}</title>
<style>{palette()}{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
</body>
</html>
"""


def inline(said: str) -> str:
    return re.sub("`(.+?)`", r"<code>\1</code>", escape(said))


def _selection(some: list[str], results: Results) -> str:
    return (
        f"Drawn below are {len(some)} of {len(results.summary)} variants: {named(some[:1])}, the lowest differences to "
        f"it and the {WORST} highest; the tables have all."
    )


def _chips(results: Results) -> list[str]:
    """What was trained: the text, the model, the budget, the seeds, the optimizer, the learning rates."""
    corpus, row = results.corpus, results.summary[results.baseline]
    shape = results.runs[results.baseline][0].config.get("model", {})
    sizes = f", {shape['num_hidden_layers']} layers × {shape['hidden_size']}" if shape else ""
    counts = sorted({len(other.seeds) for other in results.summary.values()})
    tried = sorted({len(rates) for rates in results.sweep.values()})
    how = f"the best of {_range(tried)} tried" if results.tuning else "given"
    return [
        f"{len(results.sweep)} variant{'s' * (len(results.sweep) > 1)}",
        f"text: {corpus['source']}, {count(corpus['train_bytes'])} bytes",
        f"model: {count(row.parameters)} parameters{sizes}, context {results.context}",
        f"{' or '.join(map(count, results.tokens))} tokens a run",
        f"{_range(counts)} seed{'s' * (counts != [1])}",
        results.optimizer,
        f"learning rate {rates(results)}, {how}",
    ]


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _made_with(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    hardware, corpus = results.hardware, results.corpus
    sizes = [f"{hardware[key]} {key[:-1]}{'s' * (hardware[key] != 1)}" for key in ("cores", "threads")]
    return (
        f"Reported with {versions} on {hardware['device']}, {', '.join(sizes)}; corpus {corpus['hash'][:16]}, "
        f"{corpus['train_bytes']:,} bytes to train on and {corpus['val_bytes']:,} to validate. "
        "All numbers, with the config of each run, are in results.json."
    )


def table_html(table: Table) -> str:
    cells = _cells(table.title, table.header, table.rows)
    return f'<h2>{escape(table.title)}</h2>{cells}<p class="note">{escape(table.note)}</p>'


def _cells(label: str, header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _figure(plot: Plot) -> str:
    header, rows = plot.numbers()
    step = 1 if plot.table else -(-len(rows) // MOST_ROWS)
    rows = [[_number(cell) for cell in row] for row in rows[::-1][::step][::-1]]  # the last is always among them
    thinned = f", one row in {step}" if step > 1 else ""
    return (
        f"<figure><h3>{escape(plot.title)}</h3>{inline_svg(plot)}<figcaption>{escape(plot.description)}</figcaption>"
        f"<details><summary>The numbers{thinned}</summary>{_cells(plot.title, header, rows)}</details></figure>\n"
    )


def _number(cell: str | float | None) -> str:
    if cell is None:
        return "n/a"
    return cell if isinstance(cell, str) else f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"
