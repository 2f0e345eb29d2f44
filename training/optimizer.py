"""The optimizer: its parameter groups, and its state from a checkpoint."""

import torch
from torch import nn

from configs import TrainConfig
from model.transformer import Transformer
from training.alone import ALONE, Alone
from training.muon import Muon


def build_optimizer(model: Transformer, config: TrainConfig, engine: Alone = ALONE) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) that decays only matrices: no norm, embedding or position parameter.

    With optimizer: muon, Muon moves the matrices of the layers and AdamW the rest.
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
        {"params": position, "weight_decay": 0.0, "scale": model.position.options.learning_rate_multiplier},
    ]
    groups = [group for group in groups if group["params"]]
    return Muon(groups, engine.orthogonalize, lr=config.learning_rate, betas=config.betas, fused=True)


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict, engine: Alone = ALONE) -> None:
    """Loads the moments of an earlier state_dict(); ValueError if they belong to another model.

    Everything else, such as learning rates, stays as the config says.
    """
    groups = optimizer.state_dict()["param_groups"]
    try:
        if [group["params"] for group in state["param_groups"]] != [group["params"] for group in groups]:
            raise ValueError("the moments of other parameters")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {
            n: {key: engine.like(parameters[n], each) for key, each in own.items()} for n, own in state["state"].items()
        }
        optimizer.load_state_dict({"state": moments, "param_groups": groups})
        for group in optimizer.param_groups if moments else ():  # there are none before the first step that counts
            for parameter in group["params"]:
                shape = parameter.shape
                adamw = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
                shapes = {name: moment.shape for name, moment in optimizer.state[parameter].items()}
                if shapes != ({"momentum": shape} if "momentum" in group else adamw):
                    raise ValueError(f"moments of shapes {list(map(list, shapes.values()))}")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not an optimizer's state: {type(error).__name__}") from error
