"""What the variants cost in time, measured in turn: a machine's speed drifts by more than they differ."""

import statistics
import sys
import time

import torch

from comparison.results import Cost, Ratio
from configs import Config
from model.cache import Cache
from model.device import pick_device
from model.transformer import Transformer
from training.optimizer import build_optimizer
from training.step import optimizer_step

ROUNDS = 7  # after one that warms up
SCATTER = 0.1  # interquartile range over median, at most: the median of seven is then good to about 4 %
DECODED = 32  # tokens a round
PARAMETERS = 2**26  # at most at once, of all models: with gradients and moments 1 GB


def measure_costs(configs: dict[str, Config], baseline: str) -> dict[str, Cost]:
    """The cost of each variant from its config, with the vocabulary size filled in; on a GPU if there is one.

    Each round measures every variant once, with made-up tokens: a training step of its own batch size and context
    (forward, backward, optimizer; not compiled), by token, and the median of at most DECODED tokens, decoded one by one
    with a cache that holds half of the context before. Models that are too large to be there all at once take turns in
    groups, each with the baseline.
    """
    device, others = pick_device(), [variant for variant in configs if variant != baseline]
    largest = max(_parameters(config) for config in configs.values())
    room = max(1, PARAMETERS // largest - 1)  # beside the baseline
    costs = {}
    for first in range(0, len(others), room) or [0]:
        group = {variant: configs[variant] for variant in (baseline, *others[first : first + room])}
        print(f"measuring the cost of {len(group)} variants", file=sys.stderr)
        costs = _in_turn(group, baseline, device) | costs
    return {variant: costs[variant] for variant in configs}


def _parameters(config: Config) -> int:
    return sum(parameter.numel() for parameter in Transformer(config.model, seed=None).parameters())


def _in_turn(configs: dict[str, Config], baseline: str, device: torch.device) -> dict[str, Cost]:
    sides = {variant: _Side(config, device) for variant, config in configs.items()}
    rounds = [{variant: side.seconds() for variant, side in sides.items()} for _ in range(1 + ROUNDS)]
    costs = {}
    for variant in configs:
        (training, decoding), others = (list(zip(*(each[name] for each in rounds[1:]))) for name in (variant, baseline))
        costs[variant] = Cost(
            training=_ratio(training, others[0]),
            decoding=_ratio(decoding, others[1]),
            training_tokens_per_second=1 / statistics.median(training),
            decoding_tokens_per_second=1 / statistics.median(decoding),
        )
    return costs


def _ratio(ours: tuple[float, ...], baseline: tuple[float, ...]) -> Ratio | None:
    """Of the times in each round; None where it scatters."""
    ratios = [mine / other for mine, other in zip(ours, baseline)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, min(ratios), max(ratios)) if high - low <= SCATTER * median else None


class _Side:
    """One variant, ready to take a step and to decode."""

    def __init__(self, config: Config, device: torch.device):
        self.train, context = config.train, config.model.max_position_embeddings
        shape, generator = (self.train.batch_size, context + 1), torch.Generator().manual_seed(0)
        self.ids = torch.randint(config.model.vocab_size, shape, generator=generator).to(device)
        # Made-up documents, too, are on average as long as the vocabulary is large.
        documents = {"document_start_token_id": 0} if self.train.document_mask else {}
        self.model = Transformer(config.model.model_copy(update=documents), config.seed).to(device)
        self.model.recompute = self.train.recompute
        self.optimizer = build_optimizer(self.model, self.train)
        dropped = self.train.position_until is not None
        self.decoder = Transformer(config.trained_model, config.seed).to(device) if dropped else self.model
        self.decoder.lay_side_by_side()  # as sampling has them

    def seconds(self) -> tuple[float, float]:
        """Per token, of a training step and of decoding."""
        inputs, targets = self.ids[:, :-1], self.ids[:, 1:]
        begun = time.perf_counter()
        optimizer_step(self.model, self.optimizer, inputs, targets, 0.0, self.train)  # at rate 0 no round differs
        trained = self._now() - begun
        half, cache, moments = inputs.shape[1] // 2, Cache(), []
        with torch.inference_mode():
            self.decoder(inputs[:1, :half], cache, logits_to_keep=1)
            moments.append(self._now())
            for token in inputs[:1, half : half + DECODED].split(1, dim=1):
                self.decoder(token, cache)
                moments.append(self._now())
        decoded = statistics.median(after - before for before, after in zip(moments, moments[1:]))
        return trained / targets.numel(), decoded

    def _now(self) -> float:
        """After all that the device was given to do: reading a number waits for it."""
        self.model.norm.weight[0].item()
        return time.perf_counter()
