"""How gaps change over conditions: what is in every cell, and the arithmetic of equal time."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from browser import BROWSER, check_layout, look
from comparison.overview import at_equal_time, differences, gaps, overview
from comparison.results import Cost, Ratio
from made_up import diverged, results, run

NOISE = (-0.001, 0.0, 0.001)


def condition(tokens, losses, ratios=None, **changes):
    """Three seeds of each variant, around a final loss; ratios: times of a training step beside the baseline's."""
    cost = {v: Cost(ratio and Ratio(ratio, ratio, ratio), None, 1.0, 1.0) for v, ratio in (ratios or {}).items()}
    runs = {
        v: [run(seed, loss + noise, tokens=tokens) for seed, noise in enumerate(NOISE)] for v, loss in losses.items()
    }
    return results(runs | changes.pop("runs", {}), "base", tokens=[tokens], cost=cost, **changes)


@pytest.fixture
def budgets():
    ratios = {"base": 1.0, "slow": 2.0, "fast": 0.5, "wild": None}
    small = {"base": 4.0, "slow": 3.9, "fast": 4.101, "wild": 4.5}
    large = {"base": 3.0, "slow": 2.5, "fast": 3.005, "none": 3.5}
    return {
        "small": condition(1000, small, ratios),
        "large": condition(4000, large, ratios, runs={"gone": [diverged(0)]}),
    }


def test_a_cell_has_difference_interval_and_verdict_or_says_why_not(budgets):
    rows = {name: cells for name, *cells in differences(budgets).rows}
    assert rows["base"] == ["4.000, baseline", "3.000, baseline"]
    assert rows["none"] == ["n/a", "+0.500 (+0.500 to +0.500), worse"] and rows["gone"] == ["n/a", "n/a, diverged"]
    assert rows["fast"][1] == "+0.005 (+0.005 to +0.005), equal within 0.02"


def test_the_loss_at_equal_time_lies_between_the_budgets_in_log_tokens(budgets):
    """slow trains on 2,000 tokens while base trains on 4,000: half way from 1,000 in the logarithm; fast on 8,000, which
    nobody tried, and on 2,000 while base trains on 1,000."""
    rows = {name: cells for name, *cells in at_equal_time(budgets).rows}
    assert math.log(2) / math.log(4) == 0.5
    assert rows["slow"] == ["n/a", "3.200 (+0.200)"], "3.9 and 2.5 in the middle, beside 3.0"
    assert rows["fast"] == ["3.553 (-0.447)", "n/a"]
    assert rows["wild"] == rows["none"] == rows["gone"] == ["n/a", "n/a"]
    assert rows["base"] == ["4.000 (+0.000)", "3.000 (+0.000)"]


def test_other_texts_and_unknown_costs_have_no_equal_time(budgets):
    other = {**budgets, "large": replace(budgets["large"], corpus={**budgets["large"].corpus, "hash": "other"})}
    assert not at_equal_time(other).rows
    assert not at_equal_time({name: replace(one, cost={}) for name, one in budgets.items()}).rows
    assert "At equal time" not in overview(other)[1] and "At equal time" in overview(budgets)[1]


def test_a_training_that_is_no_other_budget_is_not_interpolated_with(budgets):
    """Only what comes with a budget may differ: here all three lie as far apart in it, and one has another weight decay."""

    def made_with(one, **train):
        runs = {name: [replace(each, config={"train": train}) for each in some] for name, some in one.runs.items()}
        return replace(one, runs=runs)

    given = {"steps": 40, "learning_rate": 0.1, "warmup_steps": 3}
    small = made_with(budgets["small"], weight_decay=0.1, steps=10)
    large = made_with(budgets["large"], weight_decay=0.1, **given)
    other = made_with(condition(4000, {"base": 2.0, "slow": 2.2}), weight_decay=0.0, **given)
    assert at_equal_time({"small": small, "large": large}).rows == at_equal_time(budgets).rows
    rows = {name: cells for name, *cells in at_equal_time({"small": small, "large": large, "other": other}).rows}
    assert rows["slow"] == ["n/a", "3.200 (+0.200)"], "and the third, alone in its kind, has no column"


def test_two_trainings_of_one_budget_are_no_budgets(budgets):
    """They differ in a learning rate, say: between them nothing can be interpolated, and the worse one would win."""
    assert not at_equal_time({**budgets, "again": condition(1000, {"base": 3.9, "slow": 3.8})}).rows


def test_at_equal_time_and_speed_there_is_the_paired_difference(budgets):
    """Not that of the means, which a seed of the variant alone moves."""
    more = [run(9, 4.5, tokens=4000)]
    ratios = {"base": 1.0, "even": 1.0}
    large = condition(4000, {"base": 3.0}, ratios, runs={"even": [run(s, 2.9 + NOISE[s]) for s in range(3)] + more})
    small = condition(1000, {"base": 4.0, "even": 3.8}, ratios)
    rows = {name: cells for name, *cells in at_equal_time({"small": small, "large": large}).rows}
    assert rows["even"] == ["3.800 (-0.200)", "2.900 (-0.100)"]


def test_a_variant_that_diverges_under_one_condition_is_not_better_wherever_compared(budgets):
    lost = condition(4000, {"base": 3.0}, runs={"slow": [diverged(0)], "gone": [diverged(0)]})
    text = overview({"small": budgets["small"], "large": lost})[1]
    assert "not the same everywhere: `slow`" in text and "diverged: `gone`" in text and "Better" not in text


def test_the_answer_says_what_holds_under_every_condition(budgets):
    html, text, files = overview(budgets)
    assert (
        "**Better than `base` beyond the noise wherever compared: `slow`; worse than `base` beyond the noise wherever "
        "compared: `wild` and `none`; not the same everywhere: `fast`; diverged: `gone`.**" in text
    )
    assert text.count("One text") == 0 and "Learning rates were given" in text
    assert "![Difference to base by condition](gaps.svg)" in text and "<h2>At equal time</h2>" in html
    ElementTree.fromstring(files["gaps.svg"])
    ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>\n"))


def test_a_line_is_broken_where_a_variant_is_missing(budgets):
    lines = {line.label: line for line in gaps(budgets).series}
    assert [x for x, _ in lines["none"].points] == [0, 1] and lines["none"].points[0][1] is None
    assert lines["slow"].points[1][1] == pytest.approx(-0.5) and len(lines["slow"].band) == 2
    many = condition(10, {"base": 3.0, **{f"v{n:02}": 3.0 + n / 10 for n in range(20)}})
    assert [line.label for line in gaps({"a": many, "b": many}).series] == [
        "v00", "v01", "v02", "v03", "v04", "v05", "v18", "v19"
    ]  # fmt: skip


def test_tasks_are_compared_by_the_seeds_that_learned():
    def task(**right):
        runs = {v: [run(seed, 3.0, exact_match=[(4, float(seed < n))]) for seed in range(10)] for v, n in right.items()}
        return results(runs, "base")

    both = {"copy": task(base=0, none=10), "recall": task(base=5, none=10)}
    assert [cells for cells in differences(both).rows] == [
        ["base", "0 of 10 (0 % to 31 %), baseline", "5 of 10 (19 % to 81 %), baseline"],
        ["none", "10 of 10 (69 % to 100 %), better", "10 of 10 (69 % to 100 %), better"],
    ]
    budgets = {n: replace(one, runs={"base": [run(0, 3.0, tokens=n)]}) for n, one in zip((10, 20), both.values())}
    assert at_equal_time(budgets).header == ["variant"], "mean losses of a task say little"
    text = condition(10, {"base": 3.0, "none": 4.0})
    assert gaps({**both, "text": text}).series[0].points == [(0, None), (1, None), (2, pytest.approx(1.0))]
    (none, base) = gaps(both).series
    assert base.points == [(0, 0.0), (1, 50.0)] and none.band[0] == (pytest.approx(69.15, abs=0.01), 100.0)


def test_a_variant_that_a_condition_leaves_out_is_judged_by_the_others():
    first, second = condition(1000, {"base": 3.0, "none": 3.1, "one": 2.9}), condition(4000, {"base": 2.0, "none": 2.1})
    text = overview({"first": first, "second": second})[1]
    assert "**Better than `base` beyond the noise wherever compared: `one`; worse than `base` beyond the noise" in text
    assert overview({"first": first})[1].startswith("# 1 condition: first\n")


def test_conditions_without_anything_to_compare_have_no_picture():
    alone = condition(1000, {"base": 3.0})
    html, text, pictures = overview({"a": alone, "b": alone})
    assert pictures == {} and "<svg" not in html and "**Nothing to compare `base` with.**" in text
    apart = condition(1000, {"base": 3.0, "none": 2.0}, apart={"none": "trained on 5 tokens"})
    text = overview({"a": apart, "b": apart})[1]
    assert "**Never compared: `none`.**" in text and "not compared: trained on 5 tokens" in text and "gaps" not in text


def test_other_units_are_named_and_losses_at_another_context_have_no_equal_time(budgets):
    bits = {**budgets, "large": replace(budgets["large"], unit="bits per byte")}
    assert gaps(bits).y == "difference (bits per byte or nats per token)"
    losses, ratios = {"base": 3.0, "wide": 2.0, "slow": 2.5}, {"base": 1.0, "wide": 1.0, "slow": 1.0}
    apart = {"wide": "trained with a context of 64 tokens"}
    both = {str(tokens): condition(tokens, losses, ratios, apart=apart) for tokens in (1000, 4000)}
    rows = {name: cells for name, *cells in at_equal_time(both).rows}
    assert rows["wide"] == ["n/a", "n/a"] and rows["slow"][0] == "2.500 (-0.500)"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_the_overview_on_a_phone(budgets, tmp_path):
    check_layout(look(overview(budgets)[0], tmp_path, 390, dark=False), 390)
