"""What moves the weights: the learning rate as a function of the step, and AdamW."""

import math
import sys

import torch
from torch import nn

from configs import TrainConfig
from model.device import autocast
from model.transformer import Transformer
from training.loss import summed_loss
from training.muon import Muon


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of step 1 … config.steps; the last has exactly min_learning_rate, unless all are warm-up."""
    highest, lowest = config.learning_rate, config.min_learning_rate
    # 1. warm-up, whose first step is not zero
    if step <= config.warmup_steps:
        return highest * step / config.warmup_steps
    # 2. cosine decay over all that follows (Loshchilov & Hutter 2017, equation 5)
    if config.schedule == "cosine":
        progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * progress)) / 2
    # 3. stable, then linear decay over the last decay_fraction of all steps, or over what the warm-up leaves of them
    decay_steps = max(1, min(round(config.decay_fraction * config.steps), config.steps - config.warmup_steps))
    return lowest + (highest - lowest) * min(1.0, (config.steps - step) / decay_steps)


def build_optimizer(model: Transformer, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) that decays matrices only: no norm, embedding or position parameter.

    muon moves the matrices of the layers by Muon instead, and the rest as AdamW does.
    """
    position = list(model.position.parameters())
    matrices = [module.weight for module in model.layers.modules() if isinstance(module, nn.Linear)]
    head = [] if model.config.tie_word_embeddings else [model.lm_head.weight]
    taken = {id(parameter) for parameter in position + matrices + head}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    moved_by_muon = {"momentum": config.momentum} if config.optimizer == "muon" else {}
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay, **moved_by_muon},
        {"params": head, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
        {"params": position, "weight_decay": 0.0, "scale": model.position.learning_rate_scale},
    ]
    groups = [group for group in groups if group["params"]]
    return Muon(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict) -> None:
    """Gives the optimizer the moments of a state_dict() it had before; ValueError where they are another model's.

    Whatever else the state says, such as rates, is left as the config has it.
    """
    groups = optimizer.state_dict()["param_groups"]
    try:
        if [group["params"] for group in state["param_groups"]] != [group["params"] for group in groups]:
            raise ValueError("the moments of other parameters")
        optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                shape = parameter.shape
                adamw = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
                shapes = {name: moment.shape for name, moment in optimizer.state[parameter].items()}
                if shapes != ({"momentum": shape} if "momentum" in group else adamw):
                    raise ValueError(f"moments of the shapes {list(map(list, shapes.values()))}")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no optimizer's state: {type(error).__name__}") from error


def optimizer_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    input_ids: torch.Tensor,
    targets: torch.Tensor,
    rate: float,
    config: TrainConfig,
) -> tuple[float, float]:
    """One update from input_ids and targets (batch_size, T).

    Returns the mean loss of the whole batch in nats per token, and the norm of the gradient before clipping.
    Micro-batches add up sums over tokens, not means of unequal parts. Where loss or gradient is not finite, the
    weights stay as they were.
    """
    loss = torch.zeros((), device=input_ids.device)
    for part in zip(input_ids.split(config.micro_batch_size), targets.split(config.micro_batch_size)):
        with autocast(config.dtype, input_ids.device):
            share = summed_loss(model, *part) / targets.numel()
        share.backward()
        loss += share.detach()
    limit = math.inf if config.grad_clip is None else config.grad_clip
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit).item()
    mean = loss.item()
    if math.isfinite(mean) and math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return mean, norm


def compile_where_possible(model: Transformer) -> None:
    """Compiles all but the output layer in place, so that weights keep their names; warns where no compiler works."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=next(model.parameters()).device))
    except Exception as error:  # a missing C++ compiler shows as one of several of torch's internal errors
        print(f"warning: torch.compile does not work here ({type(error).__name__}); eager mode", file=sys.stderr)
    else:
        model.hidden_states = torch.compile(model.hidden_states)  # not forward: the loss goes round it
