"""The HTML that all pages of a comparison are made of: no network, no script, light and dark, wide and narrow."""

import re
from html import escape

from comparison.drawing import Plot, palette
from comparison.formats import number
from comparison.tables import Table

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
    """A sentence in which names stand in backticks."""
    return re.sub("`(.+?)`", r"<code>\1</code>", escape(said))


def items(said: list[str]) -> str:
    """Sentences in Markdown, each an item of a list."""
    return "".join(f"<li>{inline(each)}</li>" for each in said)


def table_html(table: Table) -> str:
    """The table with its title above and its note below."""
    cells = _cells(table.title, table.header, table.rows)
    return f'<h2>{escape(table.title)}</h2>{cells}<p class="note">{inline(table.note)}</p>'


def figure(plot: Plot) -> str:
    """The plot, what it shows in words, and its numbers, at most MOST_ROWS of them."""
    header, rows = plot.numbers()
    step = 1 if plot.table else -(-len(rows) // MOST_ROWS)
    rows = rows[::-1][::step][::-1]  # the last is always among them
    cells = [[number(cell, ".4g" if isinstance(cell, float) else ",") for cell in row] for row in rows]
    thinned = f", one row in {step}" if step > 1 else ""
    return (
        f"<figure><h3>{escape(plot.title)}</h3>{plot.svg}<figcaption>{inline(plot.description)}</figcaption>"
        f"<details><summary>The numbers{thinned}</summary>{_cells(plot.title, header, cells)}</details></figure>\n"
    )


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
