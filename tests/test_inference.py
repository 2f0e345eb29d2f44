import json
import math
from dataclasses import asdict
from random import Random
from statistics import fmean, stdev

import pytest

from comparison.inference import Spread, holm, mean_and_spread, paired
from comparison.report import html, markdown
from comparison.words import sentences
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


def test_holm_by_hand():
    """0.01 · 4, 0.015 · 3, 0.04 · 2; then 0.03 stays in order, at 0.08 and not at 0.05."""
    assert holm({"a": 0.04, "b": 0.01, "c": 0.05, "d": 0.015}) == pytest.approx(
        {"b": 0.04, "d": 0.045, "a": 0.08, "c": 0.08}
    )
    assert holm({"a": 0.7, "b": 0.9}) == {"a": 1, "b": 1}
    assert holm({}) == {}


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
        wrong += any(row.difference.verdict != "within the noise" for row in summary.values())
        uncorrected += any(row.difference.p < 0.05 for row in summary.values())
    assert wrong / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials) < uncorrected / trials


def test_made_up_results_are_told_in_the_right_words():
    """A large difference to each side, and one far below the noise."""
    runs = trial(Random(2), {"far": 0.4, "near": 0.001, "ahead": -0.2})
    found = results(runs, "base")
    said = sentences(found)
    verdicts = {variant: row.difference.verdict for variant, row in found.summary.items()}
    assert verdicts == {"base": "no claim", "far": "worse", "near": "within the noise", "ahead": "better"}
    assert said[0] == (
        "Beyond the noise, worse than base: far. Beyond the noise, better than base: ahead. "
        "Indistinguishable from base: near."
    )
    far = found.summary["far"].difference
    assert any(
        line.startswith(f"far ends {far.mean:.4f} nats per token above base (95 % interval {far.low:+.4f} to ")
        and line.endswith("corrected for 3 comparisons, 5 seeds): beyond the noise.")
        for line in said
    )
    assert any(line.startswith("near ends 0.0") and line.endswith(": within the noise.") for line in said)
    assert any("no evidence of equality" in line for line in said)
    assert any(line.startswith("far is behind base to the end, at 4k training tokens") for line in said)
    assert "says nothing of others" in said[-1]


def test_a_difference_that_only_its_own_interval_shows_is_not_claimed():
    """p of one in eight below 0.05: the text says why it doesn't count."""
    base = [run(seed, 3.0) for seed in range(5)]
    near = [run(seed, 3.0 + d) for seed, d in enumerate((0.01, 0.02, 0.03, 0.04, 0.0))]  # t 2.83, p 0.047
    found = results({"base": base, "near": near, **{f"same{i}": base for i in range(7)}}, "base")
    numbers = found.summary["near"].difference
    assert numbers.low > 0 and numbers.p < 0.05 < numbers.p_holm
    assert numbers.verdict == "within the noise"
    assert any("excludes zero, but among 8 one may do so by chance" in line for line in sentences(found))


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_summary_of_few_seeds_claims_nothing(seeds):
    said = sentences(results(trial(Random(3), {"far": 5.0}, seeds=seeds), "base"))
    assert said[0] == "Too few seeds for a claim: far."
    assert any(line.startswith("With fewer than 3 seeds the noise is unknown") for line in said)
    assert not any("interval +" in line or "beyond the noise:" in line for line in said)


def test_catching_up_is_reported_with_the_tokens_at_which_it_happens():
    def curve(seed, *losses):
        return [(1000 * step, loss + 0.01 * seed) for step, loss in enumerate(losses, start=1)]

    base = [run(seed, 2.0, curve=curve(seed, 4.0, 3.0, 2.0)) for seed in range(3)]
    late = [run(seed, 2.0, curve=curve(seed, 5.0 + 0.1 * seed, 4.0 + 0.1 * seed, 2.0)) for seed in range(3)]
    late[0].curve.insert(1, (1500, 0.1))  # an evaluation that the others don't have
    said = sentences(results({"base": base, "late": late}, "base"))
    assert any(line.startswith("late is behind base up to 2k training tokens, and not after") for line in said)


def test_a_rate_with_a_diverged_seed_is_used_only_where_all_have_one():
    held, lost = [run(seed, 3.0, 0.01) for seed in range(3)], diverged
    runs = {
        "base": held,
        "spared": [run(0, 2.0, 0.1), run(1, 2.0, 0.1), lost(2, 0.1), *held],
        "thinned": [run(0, 2.0, 0.1), lost(1, 0.1), lost(2, 0.1), lost(0, 0.01), run(1, 4.0, 0.01), run(2, 5.0, 0.01)],
        "gone": [lost(seed, rate) for rate in (0.1, 0.01) for seed in range(3)],
    }
    found = results(runs, "base")
    assert {variant: row.seeds for variant, row in found.summary.items()} == {
        "base": [0, 1, 2], "spared": [0, 1, 2], "thinned": [1, 2]
    }  # fmt: skip
    assert found.summary["thinned"].val_loss.mean == 4.5
    assert found.summary["thinned"].difference.mean == pytest.approx(1.5)
    assert [(row.mean, row.diverged) for row in found.sweep["gone"]] == [(None, [0, 1, 2])] * 2
    said = sentences(found)
    assert "spared diverged with learning rate 0.1, seed 2, which is not used." in said
    assert any(
        line.startswith("thinned diverged with learning rate 0.1, seeds 1, 2 and with learning rate 0.01, seed 0: its")
        for line in said
    )
    assert any(line.startswith("gone diverged with ") and line.endswith("it has no numbers.") for line in said)
    text = markdown(found, {})
    assert "| gone | — | — | — | — | — | diverged | — |" in text
    assert "| thinned | 0.01 | 4.5000 ± 0.7071 | used, seed 0 diverged |" in text
    assert "| no claim | 1, 2 (0 diverged) |" in text
    assert "| thinned | 0.01 | 0 | step 5: loss nan, gradient's norm nan at train.learning_rate 0.01 |" in text
    json.dumps(asdict(found), allow_nan=False)
    html(found)


def test_the_best_learning_rate_is_used_and_one_at_the_edge_is_reported():
    runs = {
        variant: [run(seed, 3 + abs(rate - best) + 0.01 * seed, rate) for rate in (1, 2, 4) for seed in range(3)]
        for variant, best in (("base", 2), ("edge", 4))
    }
    found = results(runs, "base")
    assert [found.summary[variant].learning_rate for variant in runs] == [2, 4]
    assert [row.mean for row in found.sweep["base"]] == pytest.approx([4.01, 3.01, 5.01])
    assert found.summary["edge"].difference.mean == pytest.approx(0)
    edges = [line for line in sentences(found) if "at the edge" in line]
    assert len(edges) == 1 and edges[0].startswith("edge is best at the edge of the learning rates tried, 4:")
