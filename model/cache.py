"""What attention keeps of the tokens it has seen."""

import torch
from torch import Tensor


class Cache:
    """Keys and values of all layers, so that a token's are computed once; or the sums that linear attention keeps.

    `length` is the single truth of how many tokens were seen: what lies past it is scratch. The Transformer
    advances it once a pass. Setting it back forgets the tokens after it; sums cannot forget some, only all.
    """

    def __init__(self):
        self.length = 0
        self.positions: Tensor | None = None  # (≥ length,), or (batch, ≥ length) where rows have their own
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}  # what a layer's attention keeps, rows of the batch first
        self.summed: dict[int, int] = {}  # how many tokens are in a layer's sums

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores k (rotated) and v of shape (batch, heads, T, head_dim) from `length` on.

        Returns all keys and all values, each (batch, heads, length + T, head_dim), in the dtype of the new ones.
        """
        end, kept = self.length + k.shape[-2], self.layers.get(layer, (k[..., :0, :],))[0]
        if end > kept.shape[-2] or kept.dtype != k.dtype:
            self.layers[layer] = tuple(
                self._grown(old, new, end) for old, new in zip(self.layers.get(layer, (None, None)), (k, v))
            )
        keys, values = self.layers[layer]
        keys[..., self.length : end, :] = k
        values[..., self.length : end, :] = v
        return keys[..., :end, :], values[..., :end, :]

    def sums(self, layer: int, new: int) -> tuple[Tensor, Tensor] | None:
        """The sums of a layer over the tokens seen, to which the caller adds `new` tokens; None: of none.

        ValueError where they are not over `length` tokens, because it was set back.
        """
        if self.length not in (0, seen := self.summed.get(layer, 0)):
            raise ValueError(f"cache.length is {self.length}, but linear attention has summed {seen} tokens for good")
        self.summed[layer] = self.length + new
        return self.layers[layer] if self.length else None

    def _grown(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        # Twice the room each time, so that decoding copies a token a constant number of times.
        grown = new.new_empty(*new.shape[:-2], max(2 * self.length, end), new.shape[-1])
        if old is not None:
            grown[..., : self.length, :] = old[..., : self.length, :]
        return grown

    def key_positions(self, positions: Tensor) -> Tensor:
        """Appends the positions (…, T) of the new tokens; returns those of all keys, (…, length + T)."""
        seen = positions[..., :0] if self.positions is None else self.positions[..., : self.length]
        self.positions = torch.cat((seen.expand(*positions.shape[:-1], -1), positions), dim=-1)
        return self.positions

    def repeat(self, times: int) -> None:
        """Repeats every row of the batch: one prefill serves many samples."""
        self.layers = {
            layer: tuple(kept.repeat_interleave(times, dim=0) for kept in pair) for layer, pair in self.layers.items()
        }
        if self.positions is not None and self.positions.dim() == 2:
            self.positions = self.positions.repeat_interleave(times, dim=0)
