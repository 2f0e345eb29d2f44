"""The report as a reader gets it: complete, self-contained, labelled, and readable in a real browser."""

import json
import re
from dataclasses import replace
from random import Random
from unittest import mock
from xml.etree import ElementTree

import pytest

from base import InputError
from browser import BROWSER, check_layout, look
from comparison.drawing import DARK, GREY, LIGHT, Plot, Series, svg_file
from comparison.forest import forest, svg, table
from comparison.page import page as page_around
from comparison.plots import plots, shown, uniform
from comparison.report import html, markdown, write, write_files
from comparison.results import Evaluation, SchemeMetric
from made_up import diverged, results, run, trial

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
    tuning = {variant: [run(9, 3.5), run(9, 9.0, rate=0.1)] for variant in runs}
    return results(runs, "base", notes=("a note <b>",), tuning=tuning)


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
    root, every = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n")), plots(found)
    drawn = root.findall(f".//figure/{SVG}svg")
    names = "exact loss context position difference speed-largest speed-at-end wind-largest gradient attention-0"
    assert [plot.name for plot in every][:10] == names.split() and len(drawn) == len(every)
    for plot, picture in zip(every, drawn):
        title, words = picture.find(f"{SVG}title"), picture.find(f"{SVG}desc")
        assert picture.get("role") == "img"
        assert picture.get("aria-labelledby").split() == [title.get("id"), words.get("id")]
        assert (title.text, words.text) == (plot.title, plot.description)
        text = [element.text for element in picture.iter(f"{SVG}text")]
        assert plot.x in text and plot.y in text
        assert re.search(r"\(.+\)|tokens|index", plot.x) and re.search(r"\(.+\)", plot.y)
    for figure, plot in zip(root.findall(".//figure"), every):
        cells = [cell.text for cell in figure.findall("details//td")]
        assert len(cells) >= sum(len(series.points) for series in plot.series if not plot.table)
        assert "".join(figure.find("figcaption").itertext()) == plot.description.replace("`", "")


def test_what_answers_comes_first_and_the_rest_is_folded(page):
    order = ['<p class="answer">', '<ul class="chips">', '<table class="forest', "<h3>Exact match", "<h3>Loss against",
             '<details class="sure">', "<h2>Losses</h2>", "<h3>Gradient norm", "</details>\n<footer>"]  # fmt: skip
    places = [page.index(each) for each in order]
    assert places == sorted(places) and "2 cores, 1 thread;" in page
    fold = page[places[5] : places[6]]
    assert 2 <= fold.count("<li>") <= 6 and "<code>" in page[places[0] : places[1]]


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
    text = markdown(found, plots(found)[1:2])
    assert text.startswith("# made-up\n\n**Length 4, the longest trained, was learned by 5 of 5 seeds with `base`")
    assert text.index("![Forest plot](forest.svg)") < text.index("## Seeds that") < text.index("](loss.svg)")
    for title in ("Losses", "Loss by context", "Seeds that learned, by length", "Exact match by length", "Cost",
                  "Inside the model", "Learning rates", "What differs"):  # fmt: skip
        rows = text[text.index(f"## {title}\n\n") :].split("\n\n")[1].splitlines()
        assert len({line.count("|") for line in rows}) == 1 and len(rows) > 4
    assert "| far + yarn | 3.000 ± 0.000 | 2.900 ± 0.000 | 2.800 ± 0.000 | ≤ 16 tokens |" in text
    inside = text[text.index("## Inside the model") :].splitlines()
    assert inside[2].endswith("| speed (in knots) | wind (a number) |") and inside[5].endswith("| 0.32 | 7 |")
    assert inside[4].endswith("| — | — |")
    assert "| far | 5 of 5 (48 % to 100 %) | 0 of 5 (0 % to 52 %) | undecided |" in text


def places(found, name):
    """Where the marks of a row are, in percent, the last of each kind, and the texts of the row's cells."""
    rows = ElementTree.fromstring(f"<div>{table(forest(found))}</div>").iter("tr")
    row = next(row for row in rows if [cell.text for cell in row.findall("th")] == [name])
    marks = {element.tag: element.items() for element in row.find("td/svg")}
    return {
        tag: {key: float(text[:-1]) for key, text in items if text.endswith("%")} for tag, items in marks.items()
    }, [cell.text for cell in row.findall("td")[1:]]


def shifted(**shifts):
    return {
        variant: [run(seed, 3.0 + shift + noise) for seed, noise in enumerate((-0.001, 0.0, 0.001))]
        for variant, shift in {"base": 0.0, **shifts}.items()
    }


def test_the_forest_is_sorted_and_to_scale():
    runs = shifted(high=0.3, low=-0.1, other=-0.5)
    runs["wide"] = [run(seed, 3.1 + shift) for seed, shift in enumerate((-0.06, 0.0, 0.06))]
    found = results(runs | {"gone": [diverged(0)]}, "base", apart={"other": "trained on 5 tokens"})
    plot = forest(found)
    assert list(plot.rows) == ["low", "base", "wide", "high", "other", "gone"]
    assert plot.start < -0.5 < 0.3 < plot.end, "no outlier"
    marks, cells = places(found, "wide")
    per_nat = (marks["circle"]["cx"] - places(found, "base")[0]["circle"]["cx"]) / 0.1
    half = 4.302653 * (0.059 / 3**0.5)  # t of 2 degrees of freedom; the baseline takes ± 0.001 away
    assert marks["line"]["x2"] - marks["line"]["x1"] == pytest.approx(2 * half * per_nat, abs=0.1)
    assert marks["rect"]["width"] == pytest.approx(0.04 * per_nat, abs=0.1), "the margin, on both sides"
    assert cells[:2] == ["+0.100", "3.100"] and re.fullmatch(r"undecided; about \d+ new seeds would do", cells[-1])
    assert places(found, "other")[1][-1] == "not compared: trained on 5 tokens"
    assert places(found, "gone")[1] == ["n/a", "n/a", "n/a", "diverged"]
    colours = dict(re.findall(r'row">(.+?)<.*?verdict" style="color: (.+?)"', table(plot)))
    assert colours["wide"] == colours["other"] == colours["gone"] == "var(--grey)"
    assert len({colours["low"], colours["high"], colours["base"], colours["wide"]}) == 4


def test_the_forest_shows_the_change_at_the_longest_context():
    runs = shifted(far=0.1)
    runs["far"] = [replace(one, loss_by_context=[(16, 3.0), (32, 3.25), (64, None)]) for one in runs["far"]]
    found = results(runs, "base")
    assert list(forest(found).columns)[-1] == "change at 2×"
    assert [forest(found).cells(variant)[-1] for variant in ("base", "far")] == ["+0.500", "+0.250"]


def test_an_outlier_leaves_the_others_their_room():
    found = results(shifted(wild=7.0, **{f"v{n}": n / 100 for n in range(5)}), "base")
    assert forest(found).end < 1 and "▸" in svg(forest(found)) and places(found, "wild")[1][0] == "+7.000"


@pytest.mark.parametrize("runs", [{"base": [run(0, 3.0)]}, {"base": [run(0, 3.0)], "n" * 100: [run(0, 2.0)]}])
def test_a_forest_of_single_seeds_has_no_bars(runs):
    found = results(runs, "base")
    assert all(one.low is None for one in forest(found).rows.values())
    ElementTree.fromstring(svg(forest(found)))
    html(found)


def test_the_forest_of_a_task_shows_shares_of_seeds():
    runs = {
        name: [run(seed, 3.0, exact_match=[(4, float(seed < right)), (8, 0.0)]) for seed in range(10)]
        for name, right in (("base", 0), ("all", 10), ("some", 4))
    }
    found = results(runs, "base")
    plot = forest(found)
    assert [(name, one.value, one.said) for name, one in plot.rows.items()] == [
        ("all", 100, "better"), ("some", 40, "undecided"), ("base", 0, "baseline")
    ]  # fmt: skip
    assert (plot.rows["all"].low, plot.rows["all"].high) == (pytest.approx(69.15, abs=0.01), 100)
    assert plot.cells("all") == ["10/10", "0/10", "3.000"] and plot.margin is None


def test_of_many_variants_the_baseline_the_lowest_and_the_two_highest_are_drawn():
    found = results(shifted(**{f"v{n:02}": n / 100 for n in range(29)}), "base", apart={"v00": "trained on 5 tokens"})
    assert shown(found) == ["base", "v01", "v02", "v03", "v04", "v05", "v06", "v27", "v28"]
    page = html(found)
    assert (
        "Drawn below are 9 of 30 variants: <code>base</code>, the best and the 2 worst of those compared with it."
        in page
    )
    few = results(shifted(**{f"v{n:02}": n / 100 for n in range(9)}), "base", apart={f"v0{n}": "why" for n in range(3)})
    assert "Drawn below are 7 of 10 variants: <code>base</code> and those compared with it." in html(few)
    assert page[page.index('<table class="forest') :].split("</table>")[0].count("<tr>") == 32
    assert shown(results(shifted(a=0.1), "base")) == ["base", "a"]


def test_a_file_that_cannot_be_written_is_named_and_leaves_the_one_before_it_whole(tmp_path, monkeypatch):
    """On a full disk, say: no page is cut off in the middle."""
    write_files(tmp_path, {"a.md": "one", "b.html": "two"})
    monkeypatch.setattr("base.flush", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=f"^{tmp_path / 'a.md'}: cannot be written: No space left on device"):
        write_files(tmp_path, {"a.md": "three" * 999, "b.html": "four"})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"a.md": "one", "b.html": "two"}


@pytest.mark.parametrize("is_task", [False, True])
def test_the_verdicts_are_in_the_numbers(is_task, tmp_path):
    """Of a synthetic task they are of the seeds that learned it, whatever the losses say."""
    learned, not_learned = ([(4, share)] for share in (1.0, 0.0))
    runs = {"base": [run(seed, 3.0, exact_match=is_task and learned or None) for seed in range(10)]}
    runs["a"] = [run(seed, 3.0, exact_match=is_task and not_learned or None) for seed in range(10)]
    write(results(runs, "base"), tmp_path)
    verdicts = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["verdicts"]
    assert (verdicts["base"]["kind"], verdicts["a"]["kind"]) == ("baseline", "worse" if is_task else "equal")


def test_how_late_a_variant_is_does_not_depend_on_seeds_of_its_own():
    """It ends 0.5 behind, where the baseline was after 3,500 tokens; of another seed it ends far lower."""

    def lasting(seed, end):
        return run(seed, end, curve=[(2000, end + 2), (3500, end + 0.5), (4000, end)])

    runs = {"base": [lasting(seed, 3 + noise) for seed, noise in enumerate((0, 0.01, 0.02))]}
    runs["a"] = [lasting(seed, 3.5 + noise) for seed, noise in enumerate((0, 0.011, 0.019))] + [lasting(9, 1.0)]
    assert "the end (baseline by 3.5k)" in markdown(results(runs, "base"), [])


def test_the_plot_of_contexts_has_the_cropped_baseline_and_what_a_guess_would_lose():
    runs = shifted(far=0.1)
    (plot,) = [plot for plot in plots(results(runs, "base", vocab_size=300)) if plot.name == "context"]
    assert plot.levels == [(pytest.approx(3.0), "cropped")] and "A uniform guess would lose 5.70." in plot.description
    (plot,) = [plot for plot in plots(results(runs, "base", vocab_size=40)) if plot.name == "context"]
    assert plot.levels[1] == (pytest.approx(3.6888795), "a uniform guess")


def test_a_course_of_one_evaluation_is_no_plot():
    runs = {variant: [replace(one, curve=one.curve[-1:]) for one in some] for variant, some in shifted(far=0.1).items()}
    found = results(runs, "base")
    assert not {"loss", "difference"} & {plot.name for plot in plots(found)}
    assert "| far | 3.1000 ± 0.0010 | +0.1000 ± 0.0000 |" in markdown(found, [])


def test_uniform_attention_by_hand():
    """Queries 0, 1 and 2 give distance 0 a share of 1, 1/2 and 1/3."""
    line = plots(results({"base": [run(0, 3.0)]}, "base"))[-1].series[-1]
    assert line.label == "uniform" and sum(y for _, y in line.points) == pytest.approx(100)
    assert uniform([(0, 0), (1, 2)]) == pytest.approx([(1 + 1 / 2 + 1 / 3) / 3, (1 / 2 + 2 / 3) / 3])
    assert sum(uniform([(0, 0), (1, 1), (2, 2), (3, 4), (5, 6)])) == pytest.approx(1)


def test_labels_at_the_ends_of_lines_do_not_overlap():
    lines = [Series(f"line {n}", [(0, 1.0), (1, 1.0 + n / 1000)], colour=n) for n in range(12)]
    lines += [Series("early", [(0, 5.0), (1, None)], colour=12)]
    drawn = ElementTree.fromstring(svg_file(Plot("p", "title", "x (a)", "y (b)", "words", lines)))
    where = {}
    for group in drawn.iter(f"{SVG}g"):
        for text in group.findall(f"{SVG}text"):
            if text.text and text.text.startswith(("line", "early")):
                numbers = [float(x) for x in re.findall(r"-?[\d.]+", text.get("transform") or "")]
                where[text.text] = (numbers or [float(text.get("x")), float(text.get("y"))])[:2]
    assert len(where) == 13
    heights = sorted(y for name, (_, y) in where.items() if name != "early")
    assert min(b - a for a, b in zip(heights, heights[1:])) > 9, "8 points of letters"
    assert where["early"][0] < where["line 0"][0] - 100, "at its own last point"


def test_a_name_is_no_formula():
    line = Series("a$_$b", [(0, 1.0), (1, 2.0)])
    assert "a$_$b" in svg_file(Plot("p", "title", "x (a)", "y (b)", "words", [line]))


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_a_label_beside_long_ticks_stays_in_the_picture(size):
    line = Series("line", [(0, -1.25 * size), (1, 1.25 * size)])
    drawn = ElementTree.fromstring(svg_file(Plot("p", "title", "x (a)", "y (b)", "words", [line])))
    label = next(text for text in drawn.iter(f"{SVG}text") if text.text == "y (b)")
    baseline = float(re.findall(r"-?[\d.]+", label.get("x") or label.get("transform"))[0])
    assert baseline > 8, "points of letters"


def test_a_bar_stands_only_at_the_end_of_its_line():
    """Where the seeds agree at the end there is none, also if they don't before."""
    points = [(0, 1.0), (1, 1.5), (2, None)]
    lines = [Series(f"line {n}", points, [(0.5, 1.5), (1.0, 2.0) if n else None, None], n) for n in range(3)]
    drawn = ElementTree.fromstring(svg_file(Plot("p", "title", "x (a)", "y (b)", "words", lines)))
    groups = [group for group in drawn.iter(f"{SVG}g") if "LineCollection" in group.get("id", "")]
    assert [len(group.findall(f"{SVG}path")) for group in groups] == [0, 1, 1]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colours", "paper"), [((*LIGHT, GREY[0]), "#ffffff"), ((*DARK, GREY[1]), "#16181c")])
def test_lines_and_labels_stand_out_from_the_page(page, colours, paper):
    """WCAG 2.1, 1.4.3: a contrast of 4.5 to 1, since labels have the colours of their lines."""
    assert f"--paper: {paper}" in page
    for colour in colours:
        bright, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, colour


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize(("width", "height"), [(1300, 900), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page_at_any_width_by_day_and_by_night(page, tmp_path, width, height, dark):
    """Nothing runs over the edge, no label leaves its plot, letters are readable, and colours follow the mode. The
    answer, down to the last row of the forest plot, needs no scrolling."""
    seen = look(page.replace('<details class="sure">', '<details class="sure" open="open">'), tmp_path, width, dark)
    check_layout(seen, width)
    assert len(seen["rects"]) > 9 and 200 < seen["bottom"] <= height
    assert (seen["paper"], seen["ink"]) == (
        ("rgb(22, 24, 28)", "rgb(230, 230, 230)") if dark else ("rgb(255, 255, 255)", "rgb(26, 26, 26)")
    )
    assert seen["label"] == seen["ink"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_many_variants_with_long_names_on_a_phone_and_in_a_file(tmp_path):
    names = {f"variant-{n}-" + "long-" * (n % 4) + "x" * (80 * (n == 3)): n / 100 for n in range(29)}
    found = results(trial(Random(5), names, seeds=3), "base")
    check_layout(look(html(found), tmp_path, 390, dark=False), 390)
    found = replace(found, baseline=max(names))
    for one in (found, replace(found, baseline=list(names)[3])):
        drawn = page_around("forest.svg", f"<figure>{svg(forest(one))}</figure>")
        check_layout(look(drawn, tmp_path, 1300, dark=False), 1300)
