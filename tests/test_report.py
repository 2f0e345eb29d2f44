"""The report as a reader gets it: complete, self-contained, labelled, and readable in a real browser."""

import re
from dataclasses import replace
from random import Random
from xml.etree import ElementTree

import pytest

from browser import BROWSER, check_layout, look
from comparison.drawing import DARK, LIGHT
from comparison.plots import plots
from comparison.report import html, markdown
from comparison.results import Evaluation, SchemeMetric
from made_up import results, run, trial

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found():
    """A comparison that has everything a report can show."""
    runs = trial(Random(2), {"far": 0.4, "near": 0.001, "learned": 0.1})
    points = {"loss_by_context": [(16, 3.0), (32, 2.9), (64, 2.8)], "loss_by_position": [(8, 3.5), (16, 3.0)]}
    yarn = {"yarn": Evaluation(**points, exact_match=[(4, 0.9), (8, 0.5)])}
    for variant, some in runs.items():
        runs[variant] = [replace(one, exact_match=[(4, 1.0), (8, 0.25)]) for one in some]
    for seed, one in enumerate(runs["far"]):
        speed = SchemeMetric("in knots", [(2000, 0.1), (4000, 0.3 + seed / 100)], [(0, 0.1), (1, 0.3)])
        wind = SchemeMetric("a number", [(2000, 5.0), (4000, 7.0)], [(0, 7.0)])
        runs["far"][seed] = replace(one, scheme_metrics={"speed": speed, "wind": wind}, evaluated_with=yarn)
    runs["near"] += [run(seed, 9.0, rate=0.1) for seed in range(5)]
    return results(runs, "base", notes=("a note <b>",))


@pytest.fixture(scope="module")
def page(found):
    return html(found)


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "a <text>" in "".join(root.itertext()) and "a note <b>" in "".join(root.itertext())
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "link", "img", "image", "iframe", "object", "base", "foreignObject"}
    used = {value for element in root.iter() for name, value in element.items() if "href" in name or "src" in name}
    assert all(value.startswith("#") for value in used)
    assert not re.search(r"@import|url\((?!#)|//", page.replace("http://www.w3.org/2000/svg", ""))


def test_no_two_elements_share_an_id_and_all_that_are_named_exist(page):
    """matplotlib numbers its elements anew in every plot; a clip path of another plot would cut the lines."""
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(set(ids)) == len(ids) > 100
    assert {*re.findall(r'href="#([^"]*)"', page), *re.findall(r"url\(#([^)]*)\)", page)} <= {*ids}


def test_every_plot_has_labels_with_units_and_a_text_alternative(found, page):
    root, shown = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n")), plots(found)
    drawn = root.findall(f".//figure/{SVG}svg")
    names = "loss difference context position exact speed-largest speed-at-end wind-largest gradient attention-0"
    assert [plot.name for plot in shown][:10] == names.split() and len(drawn) == len(shown)
    for plot, svg in zip(shown, drawn):
        title, words = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
        assert svg.get("role") == "img"
        assert svg.get("aria-labelledby").split() == [title.get("id"), words.get("id")]
        assert (title.text, words.text) == (plot.title, plot.description)
        text = [element.text for element in svg.iter(f"{SVG}text")]
        assert plot.x in text and plot.y in text
        assert re.search(r"\(.+\)|tokens|index", plot.x) and re.search(r"\(.+\)", plot.y)
    for figure, plot in zip(root.findall(".//figure"), shown):
        cells = [cell.text for cell in figure.findall("details//td")]
        assert len(cells) >= sum(len(series.points) for series in plot.series if not plot.table)
        assert figure.find("figcaption").text == plot.description


def test_a_variant_has_one_colour_in_all_plots(found):
    colours = {}
    for plot in plots(found):
        for series in plot.series:
            if not plot.ticks:
                colours.setdefault(series.label, set()).add((series.colour, series.dash))
    assert all(len(seen) == 1 for seen in colours.values())
    assert len(set(map(frozenset, colours.values()))) == len(colours) == 5


def test_plots_have_no_colour_that_stays_in_dark_mode(page):
    body = page[page.index("<body>") :]
    assert not re.search(r"#[0-9a-f]{6}\b", body) and "var(--c0)" in body and "currentColor" in body


def test_markdown_has_the_words_and_every_table(found):
    text = markdown(found, {"loss.svg": "Loss"})
    assert text.startswith("# made-up\n") and "- Beyond the noise, worse than base: far, learned." in text
    for title in ("Validation loss", "Loss by context length", "Exact match by length", "Inside the model", "Cost",
                  "Learning rates", "What differs"):  # fmt: skip
        table = text[text.index(f"## {title}\n\n") :].split("\n\n")[1].splitlines()
        assert len({line.count("|") for line in table}) == 1 and len(table) > 4
    assert "| far + yarn | 3.000 ± 0.000 | 2.900 ± 0.000 | 2.800 ± 0.000 |" in text
    assert "- far ends with a speed (in knots) of up to 0.32 (mean over seeds)." in text
    assert "| near | 0.1 | 9.0000 ± 0.0000 |  |" in text
    assert "at length 4, the longest trained, and at 8: base 100% and 25%, far 100% and 25%, far + yarn 90%" in text


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, "#ffffff"), (DARK, "#16181c")])
def test_lines_stand_out_from_the_page(page, colours, paper):
    """WCAG 2.1, 1.4.11: a contrast of 3 to 1 for what is needed to understand a picture."""
    assert f"--paper: {paper}" in page
    for colour in colours:
        bright, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 3, colour


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page_at_any_width_by_day_and_by_night(page, tmp_path, width, dark):
    """Nothing runs over the edge, no label leaves its plot, letters are readable, and colours follow the mode."""
    seen = look(page, tmp_path, width, dark)
    check_layout(seen, width)
    assert len(seen["rects"]) > 9
    assert (seen["paper"], seen["ink"]) == (
        ("rgb(22, 24, 28)", "rgb(230, 230, 230)") if dark else ("rgb(255, 255, 255)", "rgb(26, 26, 26)")
    )
    assert seen["label"] == seen["ink"]
