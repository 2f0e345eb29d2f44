"""Matrix products of a model's weights with many rows in training, and with one or a few in decoding."""

import math
import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
FEW, SEVERAL = 16, 4  # rows
PARTS = 16  # of the weight's rows at most, for the threads


def _maker() -> str:
    """What the system says of the processor's maker."""
    if not (known := Path("/proc/cpuinfo")).is_file():
        return platform.processor()
    with known.open(errors="replace") as file:
        return file.read(1000)  # the first core's; of hundreds the file takes the system a while


# MKL has fast products of few rows for Intel's processors alone; elsewhere it is not the BLAS.
SLOW_ROWS = torch.backends.mkl.is_available() and "AuthenticAMD" in _maker()


def packs(device: torch.device, dtype: torch.dtype, rows: int) -> bool:
    """Whether a product of so many rows with a `pack`ed weight is faster than with a plain one, where both are few.

    In float32 on an AMD, from four rows on, by a third or more; in bfloat16 on a CPU that multiplies in it, always.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:  # which oneDNN may have been told to do without
        return torch.cpu._is_avx512_bf16_supported() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 and SLOW_ROWS and rows >= SEVERAL


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b of x (…, in), W (out, in) and b (out,): (…, out).

    With few rows only reading the weight counts, and on a CPU the library does it badly in two cases. In float32 on an
    AMD, parts of the weight times the rows as columns are up to three times as fast; on an Intel they take twice the
    time. In half precision on an Intel, as which all others count, the weight times one row is up to twice as fast; on
    an AMD nothing was.
    The result has x's dtype where the weights alone are in half precision, in which the product then is. A `pack`ed
    weight is without a gradient.
    """
    if weight.is_mkldnn:
        out = torch.ops.mkldnn._linear_pointwise(x.to(weight.dtype), weight, None, "none", [], "").to(x.dtype)
        return out if bias is None else out + bias
    if x.dtype != weight.dtype and weight.dtype in HALF:
        return linear(x.to(weight.dtype), weight, bias).to(x.dtype)
    (rows, width), count = weight.shape, x.shape[:-1].numel()
    if weight.device.type != "cpu":
        return F.linear(x, weight, bias)
    is_half = weight.dtype in HALF
    if SLOW_ROWS and not is_half and count <= FEW:
        parts, columns = math.gcd(PARTS, rows), x.reshape(count, width).mT
        out = torch.bmm(weight.view(parts, -1, width), columns.expand(parts, width, count))
        out = out.view(rows, count).mT.contiguous()
    elif not SLOW_ROWS and is_half and count == 1:
        out = torch.mv(weight, x.flatten())
    else:
        return F.linear(x, weight, bias)
    out = out.view(*x.shape[:-1], rows)
    return out if bias is None else out + bias.to(out.dtype)  # which autocast may have made half precision


def joined(x: Tensor, *projections: nn.Linear) -> Tensor:
    """All projections of x (…, in), one after the other (…, Σ out), in one product, which is faster than several."""
    if torch.compiler.is_compiling() and not torch.is_grad_enabled() and x.shape[:-1].numel() <= FEW:
        # A compiled step of decoding would copy all weights for it, which takes longer than to read them.
        return torch.cat([each(x) for each in projections], dim=-1)
    weights, biases = [each.weight for each in projections], [each.bias for each in projections]
    weight = weights[0] if weights[0].is_mkldnn else _side_by_side(weights)
    return linear(x, weight, None if biases[0] is None else torch.cat(biases))


def _side_by_side(weights):
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        first, *others = weights
        ends = [each.data_ptr() + each.nbytes for each in weights]
        storages = {each.untyped_storage().data_ptr() for each in weights}
        if [each.data_ptr() for each in others] == ends[:-1] and len(storages) == 1:
            return first.as_strided((sum(map(len, weights)), first.shape[1]), first.stride())
    return torch.cat(weights)


@torch.no_grad()
def lay_side_by_side(*projections: nn.Linear) -> None:
    """Moves the weights into one piece of memory, so that without gradients `joined` need not copy them."""
    weights = [each.weight for each in projections]
    for weight, part in zip(weights, torch.cat(weights).split([*map(len, weights)])):
        weight.data = part


@torch.no_grad()
def pack(dtype: torch.dtype, *projections: nn.Linear) -> None:
    """Replaces the weights (out, in) by one (Σ out, in), in dtype and the layout in which oneDNN reads it with few rows.

    Each projection holds the whole, for `joined`. It can be multiplied, but neither trained nor saved. RuntimeError: in
    bfloat16 on a processor that oneDNN has none for; see `packs`.
    """
    weight = torch.cat([each.weight for each in projections]).to(dtype)
    packed = nn.Parameter(torch.ops.mkldnn._reorder_linear_weight(weight, FEW), requires_grad=False)
    for each in projections:
        each.weight = packed


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
