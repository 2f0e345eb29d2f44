"""The learning rate as a function of the step."""

import math

from configs import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of step 1 … config.steps; the last is exactly min_learning_rate unless every step is warm-up.

    Where the positional scheme is dropped on the way, this holds for the steps before; those after it follow the same
    curve, stretched from their number and their peak: its warm-up is rounded up to whole steps.
    """
    before, warmup, highest = config.position_steps, config.warmup_steps, config.learning_rate
    lowest = config.min_learning_rate
    if step <= before:
        return _scheduled(step, before, warmup, highest, lowest, config)
    after, peak = config.steps - before, config.position_free_learning_rate or highest
    return _scheduled(step - before, after, -(-warmup * after // before), peak, lowest * (peak / highest), config)


def _scheduled(step: int, steps: int, warmup: int, highest: float, lowest: float, config: TrainConfig) -> float:
    # 1. warm-up, whose first step is not zero
    if step <= warmup:
        return highest * step / warmup
    # 2. cosine decay over the rest (Loshchilov & Hutter 2017, equation 5)
    if config.schedule == "cosine":
        progress = (step - warmup) / (steps - warmup)
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * progress)) / 2
    # 3. stable, then linear decay over the last decay_fraction of all steps, or over all that the warm-up leaves
    decay_steps = max(1, min(round(config.decay_fraction * steps), steps - warmup))
    return lowest + (highest - lowest) * min(1.0, (steps - step) / decay_steps)
