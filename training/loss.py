"""Cross-entropy of the next tokens, without the logits of a whole batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from data.batches import IGNORED
from model.transformer import Transformer

LOGITS = 2**24  # at most at once, 64 MB; 8,192 tokens with a vocabulary of 131,072 have 64 times as many


def summed_loss(model: Transformer, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over targets (B, T) but IGNORED ones, from input_ids (B, T); for one backward pass."""
    return _SummedNats.apply(model.hidden_states(input_ids).flatten(0, 1), model.output_weight, targets.flatten())


@torch.no_grad()
def token_losses(model: Transformer, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats (B, n) of each of targets (B, n), the successors of the last n of input_ids (B, T)."""
    hidden = model.hidden_states(input_ids)[:, -targets.shape[1] :].flatten(0, 1)
    parts = _log_probs(hidden, model.output_weight, targets.flatten())
    return torch.cat([F.nll_loss(log_probs, each, reduction="none") for _, log_probs, each in parts]).view_as(targets)


class _SummedNats(torch.autograd.Function):
    """Computes the gradient along with the loss, which saves a second pass over the logits of each part.

    F.linear_cross_entropy does the same, but multiplies in float32 under autocast, sums in a varying order on a GPU,
    and takes three times as long for a large vocabulary and few tokens.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        losses, of_hidden, of_weight = [], [], torch.zeros_like(weight)
        for part, log_probs, each in _log_probs(hidden, weight, targets):
            losses.append(F.nll_loss(log_probs, each, reduction="sum", ignore_index=IGNORED))
            of_logits, real = log_probs.exp_(), each[:, None] != IGNORED
            of_logits[torch.arange(len(each), device=each.device), each.clamp(min=0)] -= 1
            # Times `real` here, where rows are narrow; to select them would make the program wait for a GPU.
            of_hidden.append(of_logits @ weight * real)
            of_weight += of_logits.T @ (part * real)  # not addmm_, which stays float32 under autocast
        ctx.save_for_backward(torch.cat(of_hidden).to(hidden.dtype), of_weight)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple:
        # In place, as the weight's gradient may be hundreds of megabytes; autograd then refuses a second pass.
        return *(gradient.mul_(upstream) for gradient in ctx.saved_tensors), None


def _log_probs(hidden: Tensor, weight: Tensor, targets: Tensor):
    """Splits hidden (N, hidden_size); yields each part, its log-probabilities (n, vocab_size) and its targets."""
    rows = max(1, LOGITS // len(weight))
    for part, each in zip(hidden.split(rows), targets.split(rows)):
        logits = F.linear(part, weight)
        yield part, logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)), each
