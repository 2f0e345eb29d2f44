"""What a run over several processes does otherwise, and how one process does it."""

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from model.position import Position
from model.transformer import Transformer
from training.loss import summed_loss
from training.muon import orthogonalize


class Alone:
    """One process, and the seam: what differs where there are several."""

    rank, size = 0, 1
    orthogonalize = staticmethod(orthogonalize)

    def place(self, build: Callable[[], Transformer], device: torch.device) -> Transformer:
        """The model that build() makes, maybe in rank 0 alone, ready to be trained on the device."""
        return build().to(device)

    def compile(self, model: Transformer) -> None:
        """Compiles all but the output layer in place, which keeps the weights' names."""
        model.hidden_states = torch.compile(model.hidden_states)  # not forward, which the loss bypasses

    def without_position(self, model: Transformer) -> Transformer:
        """The model after `Transformer.drop_position`; may be another one, with other parameters."""
        model.drop_position()
        return model

    def whole(self, model: Transformer) -> Transformer:
        """The model with all its weights in rank 0, and maybe on the meta device in others; all must call it."""
        return model

    def whole_position(self, model: Transformer) -> Position:
        """The model's scheme with whole parameters in each process; all must call it."""
        return model.position

    def whole_state(self, state: Any) -> Any:
        """An optimizer's state with whole tensors in rank 0; all must call it."""
        return state

    def own(self, rows: Tensor | numpy.ndarray) -> Tensor | numpy.ndarray:
        """The rows, of a batch or of windows, that this process takes."""
        return rows

    def summed_loss(self, model: Transformer, input_ids: Tensor, targets: Tensor, is_last: bool) -> Tensor:
        """`training.loss.summed_loss` times the number of processes, over which gradients are then averaged.

        is_last: whether the step's gradients are complete after it, and so to be exchanged.
        """
        return summed_loss(model, input_ids, targets)

    def clip_grad_norm(self, model: Transformer, limit: float) -> float:
        """The norm of the gradients of all parameters, before they are scaled down to the limit."""
        return nn.utils.clip_grad_norm_(model.parameters(), limit).item()

    def like(self, parameter: Tensor, whole: Tensor) -> Tensor:
        """The part of a whole tensor, a moment of the parameter, that this process holds."""
        return whole

    def sum(self, number: Tensor) -> Tensor:
        """The sum over all processes of a tensor of one number."""
        return number

    def largest(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        return number

    def from_first(self, value: Any) -> Any:
        """What rank 0 has; it says so to the others, which wait for it."""
        return value


ALONE = Alone()
