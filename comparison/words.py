"""What the results of a comparison say, in sentences."""

from comparison.formats import count, interval, p_value
from comparison.inference import ALPHA, MIN_SEEDS, Difference
from comparison.results import Results, VariantSummary


def sentences(results: Results) -> list[str]:
    """The summary of a comparison: what is beyond the noise, what isn't, and what can't be said."""
    summary, baseline, unit = results.summary, results.baseline, results.unit
    others = {variant: row.difference for variant, row in summary.items() if variant != baseline}
    verdicts = [difference.verdict for difference in others.values()]
    said = [_headline(others, baseline), _baseline(summary[baseline], baseline, unit)]
    said += [_diverged(variant, results) for variant in results.diverged]
    family = sum(difference.p is not None for difference in others.values())
    said += [_difference(variant, difference, baseline, unit, family) for variant, difference in others.items()]
    if "within the noise" in verdicts:
        said.append("Within the noise is no evidence of equality: any difference in the interval fits these runs.")
    if "no claim" in verdicts:
        said.append(f"With fewer than {MIN_SEEDS} seeds the noise is unknown: there is no interval, p-value or claim.")
    said += results.notes + _matches(results) + _courses(results, others) + _far(results)
    said += _scheme_metrics(results) + _rates(results)
    said.append(
        "Seeds vary the initial weights and the order of the data, not the text, the size of the model or the "
        "budget: a difference beyond the noise holds for this setting and says nothing of others."
    )
    return said


def _headline(others: dict[str, Difference], baseline: str) -> str:
    texts = {side: f"Beyond the noise, {side} than {baseline}" for side in ("worse", "better")}
    texts |= {"within the noise": f"Indistinguishable from {baseline}", "no claim": "Too few seeds for a claim"}
    found = {kind: [variant for variant, one in others.items() if one.verdict == kind] for kind in texts}
    said = [f"{texts[kind]}: {', '.join(some)}." for kind, some in found.items() if some]
    return " ".join(said) or "Nothing to compare."


def _baseline(row: VariantSummary, baseline: str, unit: str) -> str:
    n = len(row.seeds)
    noise = "from a single seed" if n == 1 else f"± {row.val_loss.sd:.4f} from seed to seed ({n} seeds)"
    return f"The baseline {baseline} ends at {row.val_loss.mean:.4f} {unit}, {noise}."


def _diverged(variant: str, results: Results) -> str:
    tried, row = results.sweep[variant], results.summary.get(variant)
    lost = {rate.learning_rate: ", ".join(map(str, rate.diverged)) for rate in tried if rate.diverged}
    found = [f"learning rate {rate:g}, seed{'s' * (',' in seeds)} {seeds}" for rate, seeds in lost.items()]
    said = f"{variant} diverged with {' and with '.join(found)}"
    if row is None:
        return f"{said}: in every run, so it has no numbers."
    if row.learning_rate in lost:
        return f"{said}: its means are over the other seeds, which flatters it."
    return f"{said}, which is not used."


def _difference(variant: str, difference: Difference, baseline: str, unit: str, family: int) -> str:
    if difference.mean is None:
        return f"{variant} shares no seed with {baseline}: there is no paired difference."
    side = "above" if difference.mean > 0 else "below"
    size, n = f"{variant} ends {abs(difference.mean):.4f} {unit} {side} {baseline}", difference.n
    if difference.p_holm is None:
        return f"{size} ({n} shared seed{'s' * (n > 1)})."
    p = p_value(difference.p_holm)
    found = (
        f"{size} (95 % interval {interval(difference)}, p {p if p.startswith('<') else f'= {p}'} "
        f"corrected for {family} comparison{'s' * (family > 1)}, {n} seeds)"
    )
    if difference.verdict != "within the noise":
        return f"{found}: beyond the noise."
    if difference.p >= ALPHA:
        return f"{found}: within the noise."
    return f"{found}: the interval excludes zero, but among {family} one may do so by chance, so within the noise."


def _courses(results: Results, others: dict[str, Difference]) -> list[str]:
    """When each variant catches up with the baseline, or how late it is: the end point alone would hide it."""
    said, never, baseline, summary = [], [], results.baseline, results.summary
    for variant, difference in others.items():
        curve = summary[variant].difference_curve
        if difference.p is None or not curve:
            continue
        behind, start = [point.x for point in curve if point.low > 0], f"{variant} is behind {baseline}"
        if not behind:
            never.append(variant)
        elif behind[-1] < curve[-1].x:
            said.append(f"{start} up to {count(behind[-1])} training tokens, and not after that.")
        else:
            base, last = summary[baseline].curve, summary[variant].curve[-1].mean
            as_good = count(next((point.x for point in base if point.mean <= last), base[-1].x))
            end = f"to the end, at {count(curve[-1].x)} training tokens"
            said.append(f"{start} {end}, with a loss that {baseline} had reached by {as_good}.")
    if never:
        said.append(f"Not behind {baseline} at any evaluation: {', '.join(never)}.")
    return said and [*said[:-1], f"{said[-1]} (Behind: the pointwise 95 % interval lies above zero.)"]


def _matches(results: Results) -> list[str]:
    """How many examples of a synthetic task are right at the longest trained length, and far past it."""
    shares = {name: {at.x: at.mean for at in row.exact_match} for name, row in results.evaluations().items()}
    lengths = [length for length in next(iter(shares.values())) if length >= (results.trained_length or 0)]
    if not lengths:
        return []
    ends = [lengths[0], lengths[-1]]
    found = [
        f"{name} {' and '.join('n/a' if share is None else f'{share:.0%}' for share in map(some.get, ends))}"
        for name, some in shares.items()
    ]
    where = f"at length {ends[0]}, the longest trained, and at {ends[1]}"
    return [f"Answered without a mistake {where}: {', '.join(found)}."]


def _far(results: Results) -> list[str]:
    """One sentence on the loss at the longest context that some variant has a number for."""
    changes, context = {}, results.context
    for name, row in results.evaluations().items():
        points = {point.x: point.mean for point in row.loss_by_context}
        start = points.get(context)
        changes[name] = {x: y - start for x, y in points.items() if None not in (y, start) and x > context}
    longest = max((x for change in changes.values() for x in change), default=None)
    if longest is None:
        return []
    found = [f"{v} {change[longest]:+z.3f}" if longest in change else f"{v} n/a" for v, change in changes.items()]
    times = f"{longest / context:g} times the trained context"
    return [f"With {times}, the loss of the same tokens changes by ({results.unit}): {', '.join(found)}."]


def _scheme_metrics(results: Results) -> list[str]:
    return [
        f"{variant} ends with a {name} ({metric.words}) of up to {metric.largest[-1].mean:.2g} (mean over seeds)."
        for variant, row in results.summary.items()
        for name, metric in row.scheme_metrics.items()
        if metric.largest
    ]


def _rates(results: Results) -> list[str]:
    if all(len(rates) == 1 for rates in results.sweep.values()):
        return []
    said = ["Each variant is shown at its best learning rate, chosen on the validation loss that is reported."]
    for variant, row in results.summary.items():
        used, tried = row.learning_rate, [rate.learning_rate for rate in results.sweep[variant]]
        if len(tried) > 1 and used in (min(tried), max(tried)):
            said.append(f"{variant} is best at the edge of the learning rates tried, {used:g}: others may be better.")
    return said
