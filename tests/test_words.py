"""What a comparison says of itself: the answer, and what weakens it most."""

import re
from dataclasses import replace
from math import comb
from random import Random

import pytest

from comparison.formats import count
from comparison.plots import plots
from comparison.results import Cost, Ratio
from comparison.tables import Table, tables
from comparison.verdicts import findings
from comparison.words import caveats, lost_seeds, named, sentences
from made_up import diverged, results, run, trial


def shifted(**shifts):
    """Three seeds of each variant, that far from the baseline's 3 nats, with little noise."""
    return {
        variant: [run(seed, 3.0 + shift + noise) for seed, noise in enumerate((-0.001, 0.0, 0.001))]
        for variant, shift in {"base": 0.0, **shifts}.items()
    }


def test_the_answer_names_the_lowest_loss_and_every_verdict():
    found = results(shifted(none=0.4, far=-0.1, ahead=-0.2, near=0.003), "base")
    assert sentences(found)[0] == (
        "`ahead` has the lowest mean loss, 0.200 nats per token below `base`, beyond the noise; better beyond the noise: "
        "`far`; equal to `base` within 0.02: `near`; worse beyond the noise: `none`."
    )


def test_the_answer_says_what_to_keep_when_nothing_is_better():
    runs = shifted(none=0.4)
    runs["open"] = [run(seed, 3.0 + shift) for seed, shift in enumerate((-0.2, 0.0, 0.1))]
    assert sentences(results(runs, "base"))[0] == (
        "`open` has the lowest mean loss, 0.033 nats per token below `base`, which decides nothing yet; worse beyond "
        "the noise: `none`; nothing is better beyond the noise: keep `base`."
    )
    runs["far"] = shifted(far=-0.03)["far"]
    assert "; better beyond the noise: `far`; worse" in sentences(results(runs, "base"))[0], "it alone is"
    few = results(trial(Random(3), {"none": 5.0}, seeds=2), "base")
    said = sentences(few)
    assert said[0].endswith("; too few seeds to tell: `none`; nothing is better beyond the noise: keep `base`.")
    assert said[1].startswith("With fewer than 3 shared seeds the noise is unknown")
    alone = results({"none": [run(0, 3.0)]}, "none")
    assert sentences(alone)[0] == "`none` ends at 3.0000 nats per token: there is nothing to compare it with."


def test_a_lead_that_rounds_to_nothing_is_not_called_one_of_nothing():
    for lead, by in ((-0.0004, "less than 0.001"), (-0.0006, "0.001")):
        said = sentences(results(shifted(near=lead), "base"))[0]
        assert said.startswith(
            f"`near` has the lowest mean loss, {by} nats per token below `base`, which counts as equal"
        )


def test_what_is_not_compared_is_never_the_answer():
    found = results(shifted(longer=-0.5, near=0.003), "base", apart={"longer": "trained with a context of 64 tokens"})
    said = sentences(found)
    assert said[0].startswith("`base`, at 3.0000 nats per token, has the lowest mean loss of those compared; equal")
    assert any("`longer` (trained with a context of 64 tokens)" in line for line in said[1:])


def test_caveats_come_with_the_strongest_first():
    """Each of these is there at once, and the weaker ones come up as the stronger are taken away."""
    runs = shifted(other=0.1, lost=0.1) | {"gone": [diverged(0)]}
    runs["base"].append(diverged(9))
    runs["lost"] = [*runs["lost"][:2], diverged(2), diverged(7, rate=0.5)]
    found = results(runs, "base", apart={"other": "trained on 5 tokens"})
    order = ["The baseline `base` diverged with seed 9", "With fewer than 3 shared seeds", "Learning rates were given",
             "Seeds diverged with `lost`", "Every run diverged with `gone`", "One text, 4k tokens",
             "Not compared with `base`"]  # fmt: skip
    said = caveats(found)
    assert len(said) == len(order) and all(map(str.startswith, said, order))
    alone = caveats(results(shifted(other=0.1), "base", apart={"other": "trained on 5 tokens"}))
    assert alone[-2].startswith("Not compared with `base`"), "where nothing is"
    assert lost_seeds(found, "lost") == [2], "not the one that diverged at another rate"


def test_a_tuning_seed_that_diverged_is_no_reported_one_that_was_lost():
    runs = shifted(other=0.1)
    found = results(runs, "base", tuning=shifted(other=0.1))
    lost = replace(found, tuning_seeds=[100, 101], diverged={"base": [diverged(101)], "other": [diverged(100)]})
    assert lost_seeds(lost, "base") == lost_seeds(lost, "other") == []
    assert not any("diverged" in line for line in caveats(lost))


def test_rates_that_runs_chose_which_are_not_here_are_not_called_untuned():
    """As the runs of a tuned comparison, reported on by themselves."""
    runs = {name: [replace(each, config={"data": {"val_part": "reporting"}}) for each in some]
            for name, some in shifted(other=0.1).items()}  # fmt: skip
    (said,) = [line for line in caveats(results(runs, "base")) if "earning rate" in line]
    assert said == "Learning rates (0.001) were chosen by runs that are not here: how well, these cannot say."


@pytest.mark.parametrize(
    ("edge", "expected"),
    [
        (["base", "none"], "Every best learning rate is at the edge"),
        (["none"], "Best at the edge of"),
        ([], "One text"),
    ],
)
def test_a_rate_at_the_edge_is_told_in_one_sentence(edge, expected):
    runs = shifted(none=0.1)
    found = results(runs, "base", tuning=runs, at_edge=edge, widened=["base"])
    assert caveats(found)[0].startswith(expected)
    assert sum("edge" in line for line in sentences(found)) == bool(edge)
    (tuned,) = [line for line in sentences(found) if "tuning half" in line]
    assert "with seeds 0, 1, 2" in tuned and tuned.endswith("The range was widened for `base`.")


def test_a_number_that_rounds_to_the_next_unit_is_written_in_it():
    told = {512: "512", 999: "999", 1000: "1k", 81_920: "81.9k", 999_424: "999k", 999_936: "1M", 2_457_600: "2.46M"}
    assert {number: count(number) for number in told} == told


def test_of_many_names_the_first_and_a_count_are_said():
    assert named("a") == "`a`" and named("ab") == "`a` and `b`" and named("abc") == "`a`, `b` and `c`"
    assert named("abcdef") == "`a`, `b`, `c` and 3 more"


def kinds(found):
    return {variant: one.kind for variant, one in findings(found).items()}


def learner(right, of=10):
    return [run(seed, 3.0, exact_match=[(4, 1.0 if seed < right else 0.2), (8, 0.0)]) for seed in range(of)]


def test_of_a_task_the_answer_is_the_share_of_seeds_that_learned():
    """Fisher by hand: of all ways to draw 13 learned ones from 20, those as rare as 10 and 3: p 0.0031; 4 in 10 no."""
    found = results({"base": learner(3), "none": learner(10), "some": learner(4)}, "base")
    assert 2 * comb(10, 3) / comb(20, 13) == pytest.approx(0.0031, abs=1e-4)
    assert kinds(found) == {"none": "better", "some": "undecided", "base": "baseline"}
    assert sentences(found)[0] == (
        "Length 4, the longest trained, was learned by 10 of 10 seeds with `none`; by 3 of 10 with the baseline `base`; "
        "more often than `base` beyond the noise: `none`; undecided: `some`."
    )
    assert kinds(results({"base": learner(10), "none": learner(3)}, "base"))["none"] == "worse"
    apart = results({"base": learner(3), "longer": learner(10)}, "base", apart={"longer": "trained on 5 tokens"})
    assert kinds(apart)["longer"] == "not compared" and "by 3 of 10 seeds with `base`" in sentences(apart)[0]
    nobody = results({"base": learner(0), "none": learner(0)}, "base")
    assert sentences(nobody)[0].startswith("No variant learned length 4")


def test_what_does_not_fit_into_the_positions_of_a_scheme_was_not_learned():
    """Nor do its seeds count at a shorter length."""
    short = [run(seed, 3.0, exact_match=[(2, 1.0), (4, None)]) for seed in range(10)]
    found = results({"base": learner(3), "none": learner(10), "short": short}, "base")
    assert kinds(found) == {"none": "better", "base": "baseline", "short": "not compared"}
    assert "by 10 of 10 seeds with `none`; by 3 of 10" in sentences(found)[0] and "`short` (no positions" in "".join(
        caveats(found)
    )
    assert (
        cells(found, "Seeds that learned, by length", "short")["verdict"] == "not compared: no positions that far out"
    )


def test_a_task_is_not_said_to_tell_nothing_where_one_learned_it_or_seeds_are_few():
    apart = results({"base": learner(0), "longer": learner(2)}, "base", apart={"longer": "trained on 5 tokens"})
    assert sentences(apart)[0] == "Length 4, the longest trained, was learned by 0 of 10 seeds with `base`."
    few = results({"base": learner(1, of=2), "none": learner(2, of=2)}, "base")
    assert "undecided: `none`" in sentences(few)[0] and not any("no interval" in said for said in sentences(few))


def test_the_lowest_mean_is_that_on_shared_seeds():
    """Here the variant is lower by its mean in the table, but only for want of the seed that is hard for both."""
    runs = shifted(other=0.01)
    runs["base"].append(run(3, 3.5))
    found = results(runs, "base")
    assert found.summary["other"].val_loss.mean < found.summary["base"].val_loss.mean
    assert sentences(found)[0].startswith(
        "`base`, at 3.1250 nats per token, has the lowest mean loss on shared seeds; "
    )


def test_the_lowest_mean_is_that_of_those_compared():
    runs = shifted(far=0.1) | {"other": [run(seed, 2.0) for seed in (5, 6, 7)]}
    assert sentences(results(runs, "base"))[0].startswith(
        "`base`, at 3.0000 nats per token, has the lowest mean loss of th"
    )


def test_no_note_is_turned_round_by_a_baseline_called_none():
    runs = shifted(far=0.1)
    found = results({"none": runs["base"], "far": runs["far"]}, "none", tuning=runs)
    said = [table.note for table in tables(found)] + [plot.description for plot in plots(found)] + sentences(found)
    assert sum("`none`" in each for each in said) > 5
    assert not [each for each in said if re.search(r"(?<!`)\bnone\b(?!`)(?! was tuned)", each)]


def test_a_name_cannot_break_a_table_in_markdown():
    lines = Table("t", ["variant", "p"], [["<b>a|b*", "< 0.0001"]], "note").markdown().splitlines()
    assert lines[2] == r"| \<b>a\|b\* | < 0.0001 |"


def test_variants_of_which_no_learning_rate_worked_are_in_the_tables():
    tuning = {"base": [run(9, 3.0), run(9, 3.1, 0.1)], "gone": [diverged(9), diverged(9, 0.1)]}
    found = results(shifted() | {"gone": [diverged(9), diverged(9, 0.1)]}, "base", tuning=tuning, at_edge=["gone"])
    assert cells(found, "Losses", "gone")["verdict"] == "diverged"
    assert cells(found, "Learning rates", "gone")["0.1"] == "n/a (seed 9 diverged)"
    assert sentences(found)[:2] == [
        "`base` ends at 3.0000 nats per token: there is nothing to compare it with.",
        "Every run diverged with `gone`: there are no numbers.",
    ]


def cells(found, title, row):
    (table,) = [table for table in tables(found) if table.title == title]
    return dict(zip(table.header, next(cells for cells in table.rows if cells[0] == row)))


def test_the_table_of_losses_says_until_when_a_variant_is_behind():
    def curve(seed, *losses):
        return [(1000 * step, loss + 0.01 * seed) for step, loss in enumerate(losses, start=1)]

    base = [run(seed, 2.0, curve=curve(seed, 4.0, 3.0, 2.0)) for seed in range(3)]
    late = [run(seed, 2.0, curve=curve(seed, 5.0 + 0.1 * seed, 4.0 + 0.1 * seed, 2.0)) for seed in range(3)]
    slow = [run(seed, 2.9, curve=curve(seed, 5.0, 4.0, 2.9 + 0.001 * seed)) for seed in range(3)]
    late[0].curve.insert(1, (1500, 0.1))  # an evaluation that the others don't have
    vague = [run(seed, 2.0, curve=curve(seed, 4.0 + (1, -1, 0.1)[seed], 3.0, 2.0)) for seed in range(3)]
    found = results({"base": base, "late": late, "slow": slow, "same": base, "vague": vague}, "base")
    until = {variant: cells(found, "Losses", variant)["behind until"] for variant in found.summary}
    assert until == {"base": "—", "late": "2k", "slow": "the end (baseline by 3k)", "same": "never", "vague": "never"}


def test_costs_that_scatter_or_were_not_measured_are_no_numbers():
    cost = {
        "base": Cost(Ratio(1.0, 1.0, 1.0), None, 7000.4, 300.0),
        "far": Cost(Ratio(1.25, 1.2, 1.3), None, 6000.0, 9),
    }
    found = results(shifted(far=0.1, more=0.1), "base", cost=cost)
    assert list(cells(found, "Cost", "far").values())[3:] == ["1.25× (1.20 to 1.30)", "scatters", "6,000", "9"]
    assert list(cells(found, "Cost", "more").values())[3:] == ["not measured", "not measured", "—", "—"]


def test_learning_rates_have_a_column_each():
    runs = shifted(far=0.1)
    tuning = {variant: [run(5, 9.0, 0.1), diverged(6, 0.1), run(5, 3.5)] for variant in runs}
    found = results(runs, "base", tuning=tuning)
    assert cells(found, "Learning rates", "far") == {
        "variant": "far", "0.001": "3.5000 (used)", "0.1": "9.0000 (seed 6 diverged)"
    }  # fmt: skip
