import json
import math
from dataclasses import asdict
from random import Random
from statistics import fmean, stdev

import numpy
import pytest
from scipy import stats

from comparison.inference import Paired, Spread, corrected, equality, mean_and_spread, paired, seeds_needed, share
from comparison.report import html, markdown
from comparison.summary import best_rate, sweep
from made_up import diverged, results, run, trial


@pytest.mark.parametrize(
    ("df", "t", "quantile", "p"),  # Abramowitz & Stegun 1964, 26.5.27, with mpmath
    [
        (2, 2.5, 4.302652729749462, 0.12961172022151082),
        (4, 2.5, 2.7764451051977934, 0.06676654481198814),
        (4, 1e3, 2.7764451051977934, 5.99996000021e-12),  # 1 − cdf would round it to multiples of 1e-16
        (9, 2.5, 2.262157162798205, 0.033861827682985735),
        (30, 2.5, 2.0422724563012378, 0.01811564906806669),
    ],
)
def test_interval_and_p_are_those_of_students_t(df, t, quantile, p):
    values = [(-1.5) ** i for i in range(df + 1)]
    mean, error = fmean(values), stdev(values) / math.sqrt(df + 1)
    for sign in (1, -1):
        found = paired({i: sign * (x - mean + t * error) for i, x in enumerate(values)}, dict.fromkeys(range(40), 0.0))
        assert found.p == pytest.approx(p, rel=1e-9)
        assert found.high - found.mean == pytest.approx(quantile * error, rel=1e-9)
        assert found.mean - found.low == pytest.approx(quantile * error, rel=1e-9)


def test_paired_by_hand():
    """Differences 0.1, 0.2, 0.6: mean 0.3, standard deviation √0.07, t 1.964 with two degrees of freedom."""
    found = paired({1: 1.1, 2: 2.2, 3: 3.6, 9: 50.0}, {3: 3.0, 1: 1.0, 2: 2.0, 8: 0.0})
    half = 4.302652729749462 * math.sqrt(0.07 / 3)
    assert found.n == 3
    assert (found.mean, found.sd) == (pytest.approx(0.3), pytest.approx(math.sqrt(0.07)))
    assert (found.low, found.high) == (pytest.approx(0.3 - half), pytest.approx(0.3 + half))
    assert found.p == pytest.approx(0.18849732879931103, rel=1e-9)  # scipy: stats.ttest_rel


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_seeds_claim_no_interval(n):
    found = paired(dict.fromkeys(range(n), 1.5), dict.fromkeys(range(n), 1.0))
    assert (found.low, found.high, found.p) == (None, None, None)
    assert found.mean == (0.5 if n else None) and found.n == n


def test_runs_that_are_the_same_do_not_differ_and_a_constant_shift_does():
    same = {seed: 2.0 + seed for seed in range(4)}
    assert paired(same, same).p == 1
    shifted = paired({seed: loss + 0.5 for seed, loss in same.items()}, same)
    assert (shifted.low, shifted.high, shifted.p) == (0.5, 0.5, 0)


def test_equality_is_two_one_sided_tests():
    """Mean 0.005 of three, error 0.003: t = (0.02 − 0.005) / 0.003 = 5 towards the nearer end; with two degrees of
    freedom p = ½ − 5 / (2 √(2 + 25)) (Abramowitz & Stegun 1964, 26.7.4)."""
    sd = 0.003 * math.sqrt(3)
    values = {0: 0.005 - sd, 1: 0.005, 2: 0.005 + sd}
    for sign in (1, -1):
        pairs = paired({seed: sign * value for seed, value in values.items()}, dict.fromkeys(values, 0.0))
        assert equality(pairs, 0.02) == pytest.approx(0.5 - 5 / (2 * math.sqrt(27)), rel=1e-9)
    assert equality(pairs, 0.001) > 0.5, "outside the margin"
    assert equality(paired({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}), 0.02) is None
    same = dict.fromkeys(range(3), 1.0)
    assert equality(paired(same, same), 0.02) == 0
    assert equality(paired(same, dict.fromkeys(range(3), 0.5)), 0.02) == 1
    assert equality(paired(same, dict.fromkeys(range(3), 0.5)), 0.5) == 1, "at the margin is not within it"


@pytest.mark.parametrize(("d", "n"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_seeds_that_show_a_difference_are_those_of_the_tables(d, n):
    """Paired t-test at 5 % two-sided with power 0.8 (Cohen 1988; G*Power), d = mean / sd; nowhere near the margin."""
    assert seeds_needed(Paired(d, 1.0, 5, None, None, None), 1e-9, 1) == n


@pytest.mark.parametrize("mean", [0.0, 0.005])
def test_with_the_seeds_needed_equality_is_shown_four_times_in_five(mean):
    sd, margin, trials = 0.016, 0.02, 20_000
    n = seeds_needed(Paired(mean, sd, 3, None, None, None), margin, 1)
    drawn = numpy.random.default_rng(0).normal(mean, sd, (trials, n))
    ratio = (margin - abs(drawn.mean(axis=1))) / (drawn.std(axis=1, ddof=1) / math.sqrt(n))
    quantile = stats.t.isf(0.05, n - 1)
    assert 0.79 < (ratio > quantile).mean() < 0.9, n


def test_more_tests_and_more_noise_need_more_seeds_up_to_a_limit():
    def needed(mean, sd, family):
        return seeds_needed(Paired(mean, sd, 3, None, None, None), 0.02, family)

    assert needed(0.005, 0.016, 1) < needed(0.005, 0.016, 20) < needed(0.005, 0.05, 20)
    assert needed(0.02, 0.5, 1) is None, "more than a thousand"


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [(0, 10, 0.0, 0.3084971), (10, 10, 0.6915029, 1.0), (3, 10, 0.0667395, 0.6524529)],
)
def test_the_interval_of_a_share_is_exact(count, n, low, high):
    """1 − 0.025^(1/10) at the ends; in between as in R's binom.test."""
    found = share(count, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_verdicts():
    """Equal comes before better and worse: a difference may be beyond doubt and too small to matter."""

    def verdict(*differences, apart=None):
        runs = {"base": [run(seed, 3.0) for seed in range(len(differences))]}
        runs["other"] = [run(seed, 3.0 + difference) for seed, difference in enumerate(differences)]
        return results(runs, "base", apart=apart).summary["other"].difference

    assert verdict(0.10, 0.11, 0.12).verdict == "worse"
    assert verdict(-0.10, -0.11, -0.12).verdict == "better"
    assert verdict(0.004, 0.005, 0.006).verdict == "equal"
    undecided = verdict(-0.03, 0.0, 0.06)
    assert undecided.verdict == "undecided" and undecided.seeds_needed > 3
    assert verdict(0.1, 0.1).verdict == "too few seeds"
    assert verdict(0.10, 0.11, 0.12, apart={"other": "trained on 5 tokens"}).verdict == "not compared"


def test_those_not_compared_are_in_no_correction():
    runs = {
        name: [run(seed, 3.0 + shift * (1 + seed / 10)) for seed in range(3)]
        for name, shift in {"base": 0.0, "a": 0.1, "b": 0.2}.items()
    }
    both, one = results(runs, "base"), results(runs, "base", apart={"b": "trained on 5 tokens"})
    assert both.summary["a"].difference.p_different == pytest.approx(2 * one.summary["a"].difference.p_different)
    assert one.summary["b"].difference.p_different is None


def test_a_task_is_learned_by_seeds_that_answer_nearly_all():
    shares = [1.0, 0.9, 0.89, 0.1]
    some = [run(seed, 1.0, exact_match=[(4, each), (8, None)]) for seed, each in enumerate(shares)]
    (found,) = results({"a": some}, "a").summary["a"].learned
    assert (found.x, found.count, found.n) == (4, 2, 4)


def test_one_test_a_variant_is_corrected_by_holm():
    """0.01 · 4, 0.015 · 3, 0.04 · 2; then 0.05 stays in order, at 0.08."""
    (found,) = corrected({"a": 0.04, "b": 0.01, "c": 0.05, "d": 0.015})
    assert found == pytest.approx({"b": 0.04, "d": 0.045, "a": 0.08, "c": 0.08})
    assert corrected({"a": 0.7, "b": 0.9}) == [{"a": 1, "b": 1}]
    assert corrected({}, {}) == [{}, {}]


def test_two_tests_a_variant_are_corrected_together():
    """0.001 · 3, 0.002 · 3 and 0.004 · 3; then nothing is left of a: 0.01 · 2 and 0.015 · 2; then nothing of c: 0.9 · 1."""
    different, equal = corrected({"a": 0.001, "b": 0.002, "c": 0.015}, {"a": 0.004, "b": 0.9, "c": 0.01})
    assert different == pytest.approx({"a": 0.003, "b": 0.006, "c": 0.03})
    assert equal == pytest.approx({"a": 0.012, "b": 0.9, "c": 0.02})


def test_neither_a_difference_nor_equality_is_claimed_wrongly_too_often():
    """Three variants are the baseline and three differ by the margin: with a correction for each test on its own, one of
    them at least gets a wrong verdict in 9 of 100 experiments."""
    random, trials, margin, wrong, apart = numpy.random.default_rng(0), 1000, 0.02, 0, 0
    shifts, seeds = {name: margin * (name > "c") for name in "abcdef"}, range(5)
    for _ in range(trials):
        noise = random.normal(0, 0.004, (len(shifts), len(seeds)))
        pairs = {
            name: paired(dict(enumerate(row + shifts[name])), dict.fromkeys(seeds, 0.0))
            for name, row in zip(shifts, noise)
        }
        tests = {n: one.p for n, one in pairs.items()}, {n: equality(one, margin) for n, one in pairs.items()}

        def claims(different, equal):
            return any((equal if shifts[name] else different)[name] < 0.05 for name in shifts)

        wrong += claims(*corrected(*tests))
        apart += claims(*(corrected(test)[0] for test in tests))
    assert wrong / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials) < apart / trials


def test_mean_and_spread_say_none_where_they_know_nothing():
    assert mean_and_spread([2.0]) == Spread(2.0, None)
    assert mean_and_spread([2.0, None]) == mean_and_spread([]) == Spread(None, None)


def test_intervals_hold_the_true_difference_in_95_of_100_experiments():
    """Pairing takes out what a seed shares, ten times the noise; a normal quantile would hold it in 88."""
    random, trials, held, width = Random(0), 2000, 0, 0.0
    for _ in range(trials):
        base, other = ({run.seed: run.val_loss for run in some} for some in trial(random, {"a": 0.1}).values())
        found = paired(other, base)
        held += found.low <= 0.1 <= found.high
        width += (found.high - found.low) / trials
    assert held / trials == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / trials))
    assert width < 0.08


def test_five_schemes_that_do_not_differ_are_rarely_said_to():
    """Without the correction one of five is, in 19 of 100 experiments."""
    random, trials, wrong, uncorrected = Random(1), 200, 0, 0
    for _ in range(trials):
        summary = results(trial(random, dict.fromkeys("abcde", 0.0)), "base").summary
        del summary["base"]
        wrong += any(row.difference.verdict in ("better", "worse") for row in summary.values())
        uncorrected += any(row.difference.p < 0.05 for row in summary.values())
    assert wrong / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials) < uncorrected / trials


def test_five_schemes_at_the_margin_are_rarely_called_equal():
    """Without the correction one of five is, in 19 of 100 experiments, as the noise lets about half through."""
    random, trials, wrong, uncorrected = Random(4), 200, 0, 0
    for _ in range(trials):
        summary = results(trial(random, dict.fromkeys("abcde", 0.02), noise=0.005), "base").summary
        del summary["base"]
        wrong += any(row.difference.verdict == "equal" for row in summary.values())
        uncorrected += any(equality(row.difference, 0.02) < 0.05 for row in summary.values())
    assert wrong / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials) < uncorrected / trials


def test_a_difference_that_only_its_own_interval_shows_is_not_claimed():
    """p of one in eight below 0.05."""
    base = [run(seed, 3.0) for seed in range(5)]
    near = [run(seed, 3.0 + d) for seed, d in enumerate((0.01, 0.02, 0.03, 0.04, 0.0))]  # t 2.83, p 0.047
    found = results({"base": base, "near": near, **{f"same{i}": base for i in range(7)}}, "base")
    numbers = found.summary["near"].difference
    assert numbers.low > 0 and numbers.p < 0.05 < numbers.p_different
    assert numbers.verdict == "undecided"


def test_a_rate_with_a_diverged_seed_is_used_only_where_all_have_one():
    good = [run(seed, 3.0, 0.01) for seed in range(3)]
    spared = sweep([run(0, 2.0, 0.1), run(1, 2.0, 0.1), diverged(2, 0.1), *good])
    assert [(row.learning_rate, row.mean, row.diverged) for row in spared] == [(0.01, 3.0, []), (0.1, 2.0, [2])]
    assert best_rate(spared) == 0.01
    thinned = sweep([run(0, 2.0, 0.1), diverged(1, 0.1), diverged(2, 0.1), diverged(0, 0.01), run(1, 4.0, 0.01)])
    assert best_rate(thinned) == 0.01
    gone = sweep([diverged(seed, rate) for rate in (0.1, 0.01) for seed in range(3)])
    assert [(row.mean, row.diverged) for row in gone] == [(None, [0, 1, 2])] * 2 and best_rate(gone) is None


def test_the_best_learning_rate_is_that_of_the_lowest_mean():
    runs = [run(seed, 3 + abs(rate - 2) + 0.01 * seed, rate) for rate in (4, 1, 2) for seed in range(3)]
    assert [row.mean for row in sweep(runs)] == pytest.approx([4.01, 3.01, 5.01]) and best_rate(sweep(runs)) == 2


def test_what_diverged_is_in_no_mean_and_in_the_report():
    lost = [diverged(1), run(0, 4.0), run(2, 5.0)]
    found = results({"base": [run(seed, 3.0) for seed in range(3)], "thinned": lost, "gone": lost[:1]}, "base")
    assert {variant: row.seeds for variant, row in found.summary.items()} == {"base": [0, 1, 2], "thinned": [0, 2]}
    assert found.summary["thinned"].val_loss.mean == 4.5
    assert found.summary["thinned"].difference.mean == pytest.approx(1.5)
    assert "gone" in markdown(found, []) and "step 5: loss nan" in html(found)
    json.dumps(asdict(found), allow_nan=False)
