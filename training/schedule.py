"""The learning rate as a function of the step."""

import math

from configs import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of step 1 … config.steps; the last is exactly min_learning_rate unless every step is warm-up."""
    highest, lowest = config.learning_rate, config.min_learning_rate
    # 1. warm-up, whose first step is not zero
    if step <= config.warmup_steps:
        return highest * step / config.warmup_steps
    # 2. cosine decay over the rest (Loshchilov & Hutter 2017, equation 5)
    if config.schedule == "cosine":
        progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * progress)) / 2
    # 3. stable, then linear decay over the last decay_fraction of all steps, or over all that the warm-up leaves
    decay_steps = max(1, min(round(config.decay_fraction * config.steps), config.steps - config.warmup_steps))
    return lowest + (highest - lowest) * min(1.0, (config.steps - step) / decay_steps)
