"""What the numbers of a comparison say, in sentences."""

from comparison.statistics import ALPHA, MIN_SEEDS


def verdict(difference: dict) -> str:
    """worse, better, within the noise, or no claim, from what `summarize` says of a difference of losses."""
    if difference["p_holm"] is None:
        return "no claim"
    if difference["p_holm"] >= ALPHA:
        return "within the noise"
    return "worse" if difference["mean"] > 0 else "better"


def sentences(results: dict) -> list[str]:
    """The summary of a comparison's results: what is beyond the noise, what isn't, and what can't be said."""
    summary, baseline, unit = results["summary"], results["baseline"], results["unit"]
    others = {variant: row["difference"] for variant, row in summary.items() if variant != baseline}
    verdicts = [verdict(numbers) for numbers in others.values()]
    said = [_headline(others, baseline), _baseline(summary[baseline], baseline, unit)]
    said += [_diverged(variant, runs, summary) for variant, runs in results["diverged"].items()]
    family = sum(numbers["p"] is not None for numbers in others.values())
    said += [_difference(variant, numbers, baseline, unit, family) for variant, numbers in others.items()]
    if "within the noise" in verdicts:
        said.append(
            "Within the noise is no evidence of being equal: any difference inside the interval fits these runs."
        )
    if "no claim" in verdicts:
        said.append(
            f"With fewer than {MIN_SEEDS} seeds the noise is unknown: no interval and no p-value is given, and no "
            "claim is made about what is better."
        )
    said += results["notes"] + _matches(summary, results["trained_length"]) + _courses(summary, others, baseline)
    said += _far(summary, unit, results["context"]) + _drift(summary) + _rates(results["sweep"], summary)
    said.append(
        "Seeds vary the initial weights and the order of the data, not the text, the size of the model or the "
        "budget: what is beyond the noise here is so for this setting, and says nothing of others."
    )
    return said


def _headline(others, baseline):
    texts = {
        "worse": f"Beyond the noise, worse than {baseline}: ",
        "better": f"Beyond the noise, better than {baseline}: ",
        "within the noise": f"Not told apart from {baseline}: ",
        "no claim": "No claim, for want of seeds: ",
    }
    found = {kind: [variant for variant, numbers in others.items() if verdict(numbers) == kind] for kind in texts}
    said = [f"{texts[kind]}{', '.join(some)}." for kind, some in found.items() if some]
    return " ".join(said) or "Nothing to compare."


def _baseline(row, baseline, unit):
    n, numbers = len(row["seeds"]), row["val_loss"]
    noise = "from a single seed" if n == 1 else f"± {numbers['sd']:.4f} from seed to seed ({n} seeds)"
    return f"The baseline {baseline} ends at {numbers['mean']:.4f} {unit}, {noise}."


def _diverged(variant, runs, summary):
    by_rate = {}
    for run in runs:
        by_rate.setdefault(run["learning_rate"], []).append(str(run["seed"]))
    found = [f"learning rate {rate:g}, seed{'s' * (len(some) > 1)} {', '.join(some)}" for rate, some in by_rate.items()]
    said = f"{variant} diverged with {' and with '.join(found)}"
    if variant not in summary:
        return f"{said}: in every run, so that it has no numbers."
    if summary[variant]["learning_rate"] in by_rate:
        return f"{said}: its means are over the other seeds, which flatters it."
    return f"{said}, which is not used."


def _difference(variant, numbers, baseline, unit, family):
    if numbers["mean"] is None:
        return f"{variant} shares no seed with {baseline}: there is no paired difference."
    side = "above" if numbers["mean"] > 0 else "below"
    size, n = f"{variant} ends {abs(numbers['mean']):.4f} {unit} {side} {baseline}", numbers["n"]
    if numbers["p_holm"] is None:
        return f"{size} ({n} shared seed{'s' * (n > 1)})."
    found = (
        f"{size} (95 % interval {numbers['low']:+z.4f} to {numbers['high']:+z.4f}, p {p_value(numbers['p_holm'])} "
        f"corrected for {family} comparison{'s' * (family > 1)}, {n} seeds)"
    )
    if verdict(numbers) != "within the noise":
        return f"{found}: beyond the noise."
    if numbers["p"] >= ALPHA:
        return f"{found}: within the noise."
    return f"{found}: the interval leaves out zero, but one of {family} easily does by chance, so within the noise."


def p_value(p: float) -> str:
    """`= 0.012`, or `< 0.0001`."""
    return "< 0.0001" if p < 1e-4 else f"= {p:.2g}"


def _courses(summary, others, baseline):
    """When each variant catches up with the baseline, or how late it is: the end point alone would hide it."""
    said, never = [], []
    for variant, numbers in others.items():
        curve = summary[variant]["difference_curve"]
        if numbers["p"] is None or not curve:
            continue
        behind = [point["x"] for point in curve if point["low"] > 0]
        if not behind:
            never.append(variant)
        elif behind[-1] < curve[-1]["x"]:
            last = tokens(behind[-1])
            said.append(f"{variant} is behind {baseline} up to {last} training tokens, and not from there on.")
        else:
            base, last = summary[baseline]["curve"], summary[variant]["curve"][-1]["mean"]
            as_good = next((point["x"] for point in base if point["mean"] <= last), base[-1]["x"])
            said.append(
                f"{variant} is behind {baseline} to the end, at {tokens(curve[-1]['x'])} training tokens, with a "
                f"loss that {baseline} had by {tokens(as_good)}."
            )
    if never:
        said.append(f"At no evaluation behind {baseline}: {', '.join(never)}.")
    return said and [*said[:-1], f"{said[-1]} (Behind: the pointwise 95 % interval lies above zero.)"]


def tokens(count: float) -> str:
    """`512`, `81.9k`, `2.46M`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def _matches(summary, trained):
    """How many examples of a synthetic task are right at the longest trained length, and far past it."""
    shares = {name: {at["x"]: at["mean"] for at in row["exact_match"]} for name, row in rows(summary).items()}
    lengths = [length for length in next(iter(shares.values())) if length >= (trained or 0)]
    if not lengths:
        return []
    ends = [lengths[0], lengths[-1]]
    found = [
        f"{name} {' and '.join('n/a' if share is None else f'{share:.0%}' for share in map(some.get, ends))}"
        for name, some in shares.items()
    ]
    where = f"at length {ends[0]}, the longest trained, and at {ends[1]}"
    return [f"Answered without a mistake {where}: {', '.join(found)}."]


def _far(summary, unit, context):
    """One sentence on the loss at the longest context that some variant has a number for."""
    changes = {}
    for variant, row in rows(summary).items():
        points = {point["x"]: point["mean"] for point in row["loss_by_context"]}
        start = points.get(context)
        changes[variant] = {x: y - start for x, y in points.items() if None not in (y, start) and x > context}
    longest = max((x for change in changes.values() for x in change), default=None)
    if longest is None:
        return []
    found = [f"{v} {change[longest]:+z.3f}" if longest in change else f"{v} n/a" for v, change in changes.items()]
    times = f"{longest / context:g} times the trained context"
    return [f"With {times}, the loss of the same tokens changes by ({unit}): {', '.join(found)}."]


def rows(summary: dict[str, dict]) -> dict[str, dict]:
    """All evaluations by name: each variant's own, and after it those of its models with other position options."""
    found = {}
    for variant, row in summary.items():
        found[variant] = row
        found |= {f"{variant} + {name}": other for name, other in row["evaluated_with"].items()}
    return found


def _drift(summary):
    return [
        f"{variant} moved its θ by up to |Δ log θ| = {row['theta_drift'][-1]['mean']:.2f} (mean over seeds)."
        for variant, row in summary.items()
        if row["theta_drift"]
    ]


def _rates(sweep, summary):
    if all(len(rates) == 1 for rates in sweep.values()):
        return []
    said = ["Each variant is shown at its best learning rate, chosen on the validation loss that is reported."]
    for variant, row in summary.items():
        used, tried = row["learning_rate"], [row["learning_rate"] for row in sweep[variant]]
        if len(tried) > 1 and used in (min(tried), max(tried)):
            said.append(
                f"The best learning rate of {variant}, {used:g}, is at the edge of those tried: others may be better."
            )
    return said
