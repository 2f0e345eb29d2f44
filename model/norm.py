"""Root mean square normalization."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """x / √(mean(x²) + ε) · weight over the last dimension. Zhang & Sennrich 2019, equation 4."""

    def __init__(self, size: int, eps: float):
        super().__init__(size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + ε) · weight of x (…, n) and weight (n,), in x's dtype.

    On a CPU PyTorch composes it and its gradient of steps that together take two to three times as long.
    """
    # Autocast made x less than the weight; for two dtypes PyTorch has no fused kernel, and warns.
    if x.element_size() < weight.element_size():
        return rms_norm(x.to(weight.dtype), weight, eps).to(x.dtype)
    if x.device.type != "cpu" or x.element_size() < 4 or torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, eps)
    return _RMSNorm.apply(x, weight, eps) if torch.is_grad_enabled() else x * _scale(x, eps) * weight


def _scale(x, eps):
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(torch.full_like(norm, eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """With n = x · scale, ∂x = scale · (w ∂y − n · mean(n w ∂y)) and ∂w = Σ n ∂y."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = _scale(x, eps)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple:
        normed, scale, weight = ctx.saved_tensors
        product = upstream * normed
        mean = (product @ weight).unsqueeze(-1) / len(weight)
        of_x = torch.addcmul(upstream * weight, normed, mean, value=-1).mul_(scale)
        return of_x, product.flatten(0, -2).sum(0), None
