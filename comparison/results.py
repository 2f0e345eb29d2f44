"""What results.json holds: the numbers of each run, of each variant over its seeds, and of the whole comparison."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from comparison.inference import Difference, Paired, Share, Spread

Pairs = list[tuple[int, float | None]]  # (x, y); y is None where the run has no value


@dataclass(frozen=True)
class Point(Spread):
    """The values at one x over seeds; low and high are the extremes, None as the mean is."""

    x: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairedPoint(Paired):
    """The paired differences at one x."""

    x: float


Curve = TypeVar("Curve", Pairs, list[Point])  # of one run, or over seeds


@dataclass(frozen=True)
class LearnedAt(Share):
    """How many runs answer nearly all examples of a synthetic task of one length."""

    x: int  # length in symbols


@dataclass(frozen=True)
class SchemeMetric(Generic[Curve]):
    """A series that a positional scheme logs, of one or more entries; each is a mean over layers."""

    words: str  # what it is
    largest: Curve  # (training tokens, largest entry)
    at_end: Curve  # (index, entry)


@dataclass(frozen=True)
class Evaluation(Generic[Curve]):
    """What is also measured with other position options. Losses are in nats per token, None of data that isn't packed."""

    loss_by_context: Curve | None  # (tokens of context, also below the trained one; loss)
    loss_by_position: Curve | None  # (last position of a bin, in tokens; loss)
    exact_match: Curve | None  # (length in symbols, share of examples); None without a synthetic task


@dataclass(frozen=True)
class Attention:
    """How far back the heads look, averaged over all queries."""

    distances: list[tuple[int, int]]  # first and last of each bin, in tokens back
    mass: list[list[list[float]]]  # (layers, heads, bins): softmax weight; the bins add up to 1
    largest_logit: list[list[float]]  # (layers, heads): largest score before the softmax, after 1/√d and bias


@dataclass(frozen=True)
class EmbeddingRms:
    """Root mean squares of the token embeddings and of what the scheme adds to them."""

    tokens: float
    position: float | None  # None where the scheme adds nothing


@dataclass(frozen=True)
class Run:
    """A finished run. One that diverged has only these fields."""

    folder: str
    seed: int
    learning_rate: float
    diverged: str | None  # what was no longer finite, and when
    config: dict[str, Any]


@dataclass(frozen=True)
class LoggedRun(Run):
    """What a run logged."""

    tokens: int  # trained on
    val_loss: float  # in the unit of the results
    val_bits_per_byte: float
    curve: Pairs  # (training tokens, val_loss)
    grad_norm: Pairs  # (training tokens, norm before clipping)
    scheme_metrics: dict[str, SchemeMetric[Pairs]]  # by name
    corpus: dict[str, Any]
    versions: dict[str, dict[str, str]]  # by the step after which the run was made with them: libraries, and the commit


@dataclass(frozen=True)
class MeasuredRun(Evaluation[Pairs], LoggedRun):
    """What a run logged, and what was measured of its model."""

    attention: Attention | None  # None without a softmax, with a score that is not finite, of data that isn't packed
    embedding_rms: dict[str, EmbeddingRms]  # at the start, if what training began from is still there, and at the end
    position_parameters: int
    parameters: int
    evaluated_with: dict[str, Evaluation[Pairs]]  # by the name of the other position options


@dataclass(frozen=True)
class RateSpread(Spread):
    """The final loss of a variant's tuning runs at one learning rate, without those that diverged."""

    learning_rate: float
    diverged: list[int]  # seeds


@dataclass(frozen=True)
class VariantSummary(Evaluation[list[Point]]):
    """A variant's numbers at its best learning rate, over the seeds that did not diverge."""

    learning_rate: float
    seeds: list[int]
    val_loss: Spread
    val_bits_per_byte: Spread
    difference: Difference
    curve: list[Point]
    difference_curve: list[PairedPoint]  # of the curve, to the baseline
    difference_by_position: list[PairedPoint]  # of the loss by position, to the baseline on the same tokens
    learned: list[LearnedAt]  # by length; empty without a synthetic task
    grad_norm: list[Point]
    scheme_metrics: dict[str, SchemeMetric[list[Point]]]
    evaluated_with: dict[str, Evaluation[list[Point]]]
    attention: Attention | None  # this and the next are those of the first seed
    embedding_rms: dict[str, EmbeddingRms]
    position_parameters: int
    parameters: int


@dataclass(frozen=True)
class Ratio:
    """A time divided by the baseline's in the same round: the median over rounds, and the extremes."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Cost:
    """What a variant costs beside the baseline, all variants measured in turn. None where the rounds scatter."""

    training: Ratio | None  # per token
    decoding: Ratio | None  # a token
    training_tokens_per_second: float  # medians over rounds, of this machine
    decoding_tokens_per_second: float


@dataclass(frozen=True)
class Results:
    """A whole comparison. Dictionaries are by variant unless said otherwise."""

    name: str
    baseline: str
    unit: str  # of losses: nats per token, or bits per byte
    context: int  # trained, of the baseline, in tokens
    vocab_size: int
    margin: float  # differences within it count as equal, in the unit of losses
    trained_length: int | None  # the longest, of a synthetic task, in symbols
    tokens: list[int]  # trained on: one number where all runs have the same
    notes: list[str]
    corpus: dict[str, Any]
    optimizer: str
    versions: dict[str, str]  # by library
    hardware: dict[str, Any]  # that the report was made on
    differing: dict[str, dict[str, Any]]  # dotted.key: value of the settings that the variants do not share
    tuning_seeds: list[int]  # of the runs that chose the learning rates; none where these were given
    sweep: dict[str, list[RateSpread]]  # by rate, lowest first; one where the rate was given
    widened: list[str]  # variants for which rates were tried beyond those given
    at_edge: list[str]  # variants whose best rate is still the lowest or the highest tried
    summary: dict[str, VariantSummary]
    runs: dict[str, list[MeasuredRun]]
    tuning: dict[str, list[LoggedRun]]  # the runs that chose the learning rates
    cost: dict[str, Cost]
    diverged: dict[str, list[Run]]

    def evaluations(self) -> dict[str, Evaluation[list[Point]]]:
        """All evaluations by name: each variant's own, then those of its models with other position options."""
        found = {}
        for variant, row in self.summary.items():
            found |= {variant: row} | {f"{variant} + {name}": other for name, other in row.evaluated_with.items()}
        return found
