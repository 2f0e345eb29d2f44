"""Muon: matrices move along their orthogonalized momentum."""

import math
from collections.abc import Callable
from inspect import unwrap

import torch
from torch import Tensor

# One (a, b, c) per iteration of X ← aX + b(XXᵀ)X + c(XXᵀ)²X, optimal for singular values down to 1e-3
# (Amsel et al. 2025, "The Polar Express", algorithm 1).
COEFFICIENTS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximates UVᵀ of each matrix U S Vᵀ by matrix products alone; (n, rows, columns) in and out."""
    transposed = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if transposed else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)  # no singular value above 1
    for a, b, c in COEFFICIENTS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if transposed else x


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024) for the groups of matrices that have a `momentum`; AdamW for the others.

    A matrix moves by lr · 0.2 √max(rows, columns) · UVᵀ, whose root mean square is about that of AdamW's steps
    (Liu et al. 2025, section 2.2), so one learning rate and weight decay serve both.
    """

    # As they are inside wrappers that import the compiler, 1.4 s of it, to tell it what it shall leave alone.
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)

    def __init__(self, groups: list[dict], orthogonalize: Callable[[Tensor], Tensor] = orthogonalize, **defaults):
        """orthogonalize: this file's, or the same over several processes."""
        super().__init__(groups, **defaults)
        self.orthogonalize = orthogonalize

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            if "momentum" in group:
                self._step_matrices(group)
        unwrap(torch.optim.AdamW.step)(self)  # skips the matrices, whose gradients are now None

    def __setstate__(self, state: dict) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's expects a step count of every parameter

    def _step_matrices(self, group: dict) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for matrix in group["params"]:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        for matrices in by_shape.values():  # batched, since many small products in turn cost more
            directions = []
            for matrix in matrices:
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                average = state["momentum"]
                average.lerp_(matrix.grad, 1 - group["momentum"])
                directions.append(matrix.grad.lerp(average, group["momentum"]))  # Nesterov
            directions = self.orthogonalize(torch.stack(directions)).unbind()
            # a larger alpha is refused, while this one makes the next loss infinite, which ends the run in words
            step = min(group["lr"] * 0.2 * math.sqrt(max(matrices[0].shape)), torch.finfo(torch.float32).max)
            for matrix, direction in zip(matrices, directions):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=step)
                matrix.grad = None
