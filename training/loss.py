"""Cross-entropy of the next tokens, without the logits of a whole batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from model.transformer import Transformer

LOGITS = 2**24  # that are there at once, 64 MB; a batch of 8,192 tokens has 60 times as many from 131,072 token ids


def summed_loss(model: Transformer, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the B·T tokens of input_ids and targets (B, T). For one backward pass."""
    return _SummedNats.apply(model.hidden_states(input_ids).flatten(0, 1), model.output_weight, targets.flatten())


@torch.no_grad()
def token_losses(model: Transformer, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Nats (B, n) of targets (B, n), which follow the last n of input_ids (B, T)."""
    hidden = model.hidden_states(input_ids)[:, -targets.shape[1] :].flatten(0, 1)
    parts = _log_probs(hidden, model.output_weight, targets.flatten())
    return torch.cat([F.nll_loss(log_probs, each, reduction="none") for _, log_probs, each in parts]).view_as(targets)


class _SummedNats(torch.autograd.Function):
    """Computes the gradient with the loss, while the logits of a part are there: that costs no second pass over them.

    F.linear_cross_entropy does so too, but multiplies in float32 under autocast, adds up on a GPU in an order that
    changes, and takes three times as long with a large vocabulary and few tokens.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        losses, of_hidden, of_weight = [], [], torch.zeros_like(weight)
        for part, log_probs, each in _log_probs(hidden, weight, targets):
            losses.append(F.nll_loss(log_probs, each, reduction="sum"))
            of_logits = log_probs.exp_()
            of_logits[torch.arange(len(each), device=each.device), each] -= 1
            of_hidden.append(of_logits @ weight)
            of_weight += of_logits.T @ part  # not addmm_, which autocast leaves in float32
        ctx.save_for_backward(torch.cat(of_hidden).to(hidden.dtype), of_weight)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple:
        # In place, as the weight's may be hundreds of megabytes; autograd refuses a second pass over what changed.
        return *(gradient.mul_(upstream) for gradient in ctx.saved_tensors), None


def _log_probs(hidden: Tensor, weight: Tensor, targets: Tensor):
    """Goes over hidden (N, hidden_size) in parts: each part, its log-probabilities (n, vocab_size), its targets."""
    rows = max(1, LOGITS // len(weight))
    for part, each in zip(hidden.split(rows), targets.split(rows)):
        logits = F.linear(part, weight)
        yield part, logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)), each
