"""The learning rate as a function of the step."""

import math

from configs import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of step 1 … config.steps; the last is exactly min_learning_rate unless every step is warm-up.

    With position_until, the steps before the scheme is dropped and those after it have a schedule each.
    """
    if config.position_until is not None:
        return learning_rate(*_in_its_part(step, config))
    highest, lowest, warmup = config.learning_rate, config.min_learning_rate, config.warmup
    # 1. warm-up, whose first step is not zero
    if step <= warmup:
        return highest * step / warmup
    # 2. cosine decay over the rest (Loshchilov & Hutter 2017, equation 5)
    if config.schedule == "cosine":
        progress = (step - warmup) / (config.steps - warmup)
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * progress)) / 2
    # 3. stable, then linear decay over the last decay_fraction of all steps, or over all that the warm-up leaves
    decay_steps = max(1, min(round(config.decay_fraction * config.steps), config.steps - warmup))
    return lowest + (highest - lowest) * min(1.0, (config.steps - step) / decay_steps)


def _in_its_part(step: int, config: TrainConfig) -> tuple[int, TrainConfig]:
    """The number of a step within its part, with or without the positional scheme, and the config of that part alone.

    In the second part the warm-up takes the same share of the steps, rounded up to whole ones, and the lowest rate is
    the same share of the highest.
    """
    last = config.position_steps
    if step <= last:
        return step, config.model_copy(update={"position_until": None, "steps": last})
    steps, highest = config.steps - last, config.position_free_learning_rate or config.learning_rate
    part = {"position_until": None, "steps": steps, "warmup_steps": math.ceil(config.warmup * steps / last)}
    part |= {"learning_rate": highest, "min_learning_rate": config.min_learning_rate * (highest / config.learning_rate)}
    return step - last, config.model_copy(update=part)
