"""Matrix products of a model's weights with many rows in training, and with one or a few in decoding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 16  # rows
PARTS = 16  # of the weight's rows at most, for the threads


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ of x (…, in) and W (out, in): (…, out).

    With few rows only reading the weight counts, and BLAS does it badly: on a CPU in float32 parts of the weight times
    the rows as columns are up to three times as fast. In half precision, and on a GPU, it is the other way round.
    """
    if x.shape[:-1].numel() > FEW or weight.element_size() < 4 or weight.device.type != "cpu":
        return F.linear(x, weight)
    parts = weight.unflatten(0, (math.gcd(PARTS, len(weight)), -1))
    columns = x.flatten(0, -2).mT.expand(len(parts), -1, -1)
    return torch.bmm(parts, columns).flatten(0, 1).mT.contiguous().view(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    """A projection without a bias; its weight is for `Transformer.init_weights` to draw."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Leaves the global random state alone."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class Embedding(nn.Embedding):
    """A table of vectors; they are for `Transformer.init_weights` to draw."""

    def reset_parameters(self) -> None:
        """Leaves the global random state alone."""
