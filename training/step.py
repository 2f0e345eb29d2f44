"""One step: forward, backward, update."""

import math
from typing import NamedTuple

import torch

from configs import TrainConfig
from data.batches import IGNORED
from model.device import autocast, to_device
from model.transformer import Transformer
from training.alone import ALONE, Alone


class StepResult(NamedTuple):
    """What a step reports."""

    loss: float  # mean over the targets of the whole batch, in nats per token
    grad_norm: float  # before clipping
    learning_rate: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are; if not, the step has left the weights as they were."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def optimizer_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    input_ids: torch.Tensor,
    targets: torch.Tensor,
    rate: float,
    config: TrainConfig,
    engine: Alone = ALONE,
) -> StepResult:
    """Updates the weights once from input_ids and targets (batch_size, T), unless loss or gradient is not finite.

    Each of several processes takes its own rows of them; the result is the same in all.

    Micro-batches accumulate sums over targets, not means, since some may have fewer.
    """
    count = (targets != IGNORED).sum().item()  # before they move to a GPU, for which the program would wait
    input_ids, targets = (to_device(ids, model.output_weight.device) for ids in map(engine.own, (input_ids, targets)))
    loss = torch.zeros((), device=input_ids.device)
    parts = [*zip(input_ids.split(config.micro_batch_size), targets.split(config.micro_batch_size))]
    for number, part in enumerate(parts, 1):
        with autocast(config.dtype, input_ids.device):
            share = engine.summed_loss(model, *part, is_last=number == len(parts)) / count
        share.backward()
        loss += share.detach()
    norm = engine.clip_grad_norm(model, math.inf if config.grad_clip is None else config.grad_clip)
    result = StepResult(engine.sum(loss).item() / engine.size, norm, rate)
    if result.is_finite:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return result
