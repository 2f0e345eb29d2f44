"""The report of a comparison from its results alone: report.html, report.md, its pictures and results.json."""

import json
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from base import writing
from comparison.drawing import Plot, inline_svg, palette, svg_file
from comparison.formats import count
from comparison.plots import plots
from comparison.results import Results
from comparison.tables import Table, tables
from comparison.words import sentences

STYLE = """
body { margin: 0 auto; padding: 1rem; max-width: 76rem; overflow-wrap: anywhere; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
:root { --ink: #1a1a1a; --paper: #ffffff; --line: #c8c8c8; --soft: #f3f3f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --line: #454a52; --soft: #22262c; } }
h1 { font-size: 1.6rem; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; min-width: 0; }
figure svg { width: 100%; height: auto; max-width: 40rem; display: block; }
figcaption, .note, footer { font-size: 0.875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { background: var(--soft); vertical-align: bottom; white-space: normal; min-width: 4.5rem; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--soft); }
details { margin: 0.3rem 0; font-size: 0.875rem; } summary { cursor: pointer; }
ul { padding-left: 1.2rem; } li { margin: 0.3rem 0; } li:first-child { font-weight: 600; }
h3 { font-size: 1rem; margin: 0.5rem 0; }
"""
MOST_ROWS = 24  # of a table under a plot; results.json has all


def write(results: Results, folder: Path, **more: Any) -> str:
    """Writes report.html, report.md, its pictures and results.json, and returns the text of report.md.

    more: further keys of results.json. InputError where the folder can't be written.
    """
    pictures = {f"{plot.name}.svg": plot for plot in plots(results) if plot.name in ("loss", "context")}
    text = markdown(results, {file: plot.title for file, plot in pictures.items()})
    numbers = json.dumps({**asdict(results), **more}, indent=1, allow_nan=False)
    files = {"report.html": html(results), "report.md": text, "results.json": numbers}
    files |= {file: svg_file(plot) for file, plot in pictures.items()}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    return text


def markdown(results: Results, pictures: dict[str, str]) -> str:
    """The report for a README or a pull request; pictures: the files to show and their titles."""
    parts = [f"# {results.name}", _setting(results), "\n".join(f"- {said}" for said in sentences(results))]
    parts += [f"![{title}]({file})" for file, title in pictures.items()]
    parts += [f"## {table.title}\n\n{table.markdown()}" for table in tables(results)]
    return "\n\n".join([*parts, _made_with(results)]) + "\n"


def html(results: Results) -> str:
    """The whole report as one page that needs no network and no script."""
    title, said = escape(results.name), "".join(f"<li>{escape(said)}</li>" for said in sentences(results))
    main, *others = (_table(table) for table in tables(results))
    figures = "".join(map(_figure, plots(results)))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>{palette()}{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>{escape(_setting(results))}</p>
<h2>Summary</h2>
<ul>{said}</ul>
{main}
<h2>Plots</h2>
<div class="plots">{figures}</div>
{"".join(others)}
<footer><p>{escape(_made_with(results))}</p></footer>
</body>
</html>
"""


def _setting(results: Results) -> str:
    corpus = results.corpus
    return (
        f"{len(results.sweep)} variants on {corpus['source']} ({corpus['train_bytes']:,} bytes of text to train "
        f"on, {corpus['val_bytes']:,} to validate), {' or '.join(map(count, results.tokens))} training tokens a "
        f"run, context {results.context} tokens."
    )


def _made_with(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    hardware, corpus = results.hardware, results.corpus
    return (
        f"Reported with {versions} on {hardware['device']}, {hardware['cores']} cores, {hardware['threads']} "
        f"threads; optimizer {results.optimizer}; corpus {corpus['hash'][:16]}. "
        "All numbers, with the config of each run, are in results.json."
    )


def _table(table: Table) -> str:
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
