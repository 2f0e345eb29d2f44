"""Matrix products of a model's weights with many rows in training, and with one or a few in decoding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 16  # rows
PARTS = 16  # of the weight's rows at most, for the threads


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b of x (…, in), W (out, in) and b (out,): (…, out).

    With few rows only reading the weight counts, and BLAS does it badly: on a CPU in float32 parts of the weight times
    the rows as columns are up to three times as fast. In half precision, and on a GPU, it is the other way round.
    """
    if x.shape[:-1].numel() > FEW or weight.element_size() < 4 or weight.device.type != "cpu":
        return F.linear(x, weight, bias)
    count, rows = math.gcd(PARTS, weight.shape[0]), weight.shape[0]
    columns = x.flatten(0, -2).mT.expand(count, -1, -1)
    out = torch.bmm(weight.unflatten(0, (count, -1)), columns)
    out = out.flatten(0, 1).mT.contiguous().view(*x.shape[:-1], rows)
    return out if bias is None else out + bias.to(out.dtype)  # which autocast may have made half precision


class Linear(nn.Linear):
    """A projection, without a bias unless asked; what it holds is for `Transformer.init_weights` to fill."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False):
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Leaves the global random state alone."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    """A table of vectors; they are for `Transformer.init_weights` to draw."""

    def reset_parameters(self) -> None:
        """Leaves the global random state alone."""
