"""What attention keeps of the tokens it has seen."""

from collections.abc import Callable

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
        self.layers: dict[int, tuple[Tensor, ...]] = {}  # what a layer's attention keeps, rows of the batch first
        self.ahead = None  # what the coming positions contribute, see `inputs_of_next`
        self.summed: dict[int, int] = {}  # how many tokens are in a layer's sums

    def update(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Stores keys (rotated), values and what else a layer keeps, each (batch, any, T, any), from `length` on.

        Returns the same of all tokens, each (batch, any, length + T, any), in the dtype of the new ones.
        """
        end, kept = self.length + new[0].shape[-2], self.layers.get(layer)
        if kept is None or end > kept[0].shape[-2] or kept[0].dtype != new[0].dtype or kept[-1].dtype != new[-1].dtype:
            kept = self.layers[layer] = tuple(map(self._grown, kept or [None] * len(new), new))
        for stored, tokens in zip(kept, new, strict=True):
            stored[..., self.length : end, :] = tokens
        return tuple(stored[..., :end, :] for stored in kept)

    def sums(self, layer: int, new: int) -> tuple[Tensor, Tensor] | None:
        """The sums of a layer over the tokens seen, to which the caller adds `new` tokens; None: of none.

        ValueError where they are not over `length` tokens, because it was set back.
        """
        if self.length not in (0, seen := self.summed.get(layer, 0)):
            raise ValueError(f"cache.length is {self.length}, but linear attention has summed {seen} tokens for good")
        self.summed[layer] = self.length + new
        return self.layers[layer] if self.length else None

    def _grown(self, old: Tensor | None, new: Tensor) -> Tensor:
        # Twice the room each time, so that decoding copies a token a constant number of times.
        room = max(2 * self.length, self.length + new.shape[-2])
        grown = new.new_empty(*new.shape[:-2], room, new.shape[-1])
        if old is not None:
            grown[..., : self.length, :] = old[..., : self.length, :]
        return grown

    def key_positions(self, positions: Tensor) -> Tensor:
        """Appends the positions (…, T) of the new tokens; returns those of all keys, (…, length + T)."""
        seen = positions[..., :0] if self.positions is None else self.positions[..., : self.length]
        self.positions = torch.cat((seen.expand(*positions.shape[:-1], -1), positions), dim=-1)
        return self.positions

    def set_back(self, length: int) -> None:
        """Forgets all tokens after the first `length`; or all tokens, where sums cannot forget some."""
        self.length = 0 if self.summed and length < self.length else length

    def forget(self, first: int, count: int, turned: Callable[[int, Tensor], Tensor]) -> None:
        """Forgets `count` tokens after the `first` ones; those after them move up by as many positions.

        turned(layer, keys) gives the keys (batch, heads, T, any) of those that move as they are where they move to.
        """
        kept, self.length = slice(first + count, self.length), self.length - count
        for layer, stored in self.layers.items():
            keys, *others = (each[..., kept, :].clone() for each in stored)
            for each, moved in zip(stored, (turned(layer, keys), *others)):
                each[..., first : self.length, :] = moved

    def repeat(self, times: int) -> None:
        """Repeats every row of the batch: one prefill serves many samples."""
        self.layers = {
            layer: tuple(each.repeat_interleave(times, dim=0) for each in kept) for layer, kept in self.layers.items()
        }
        if self.positions is not None and self.positions.dim() == 2:
            self.positions = self.positions.repeat_interleave(times, dim=0)


class FixedCache(Cache):
    """Of one pass over one more token, all in tensors of fixed shape: with a CUDA graph it can be repeated.

    layers: those of a Cache with room for `room` tokens, to which the pass writes. place: (1,), how many were seen. What is
    not filled yet looks to a scheme like padding on the left, at negative positions, so that the new token is the last.
    """

    def __init__(self, layers: dict[int, tuple[Tensor, ...]], room: int, place: Tensor):
        super().__init__()
        self.length, self.layers, self.place = room - 1, dict(layers), place
        self.to_keys = torch.arange(1 - room, 1, device=place.device)

    def update(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        order = (self.place + self.to_keys) % len(self.to_keys)
        for stored, token in zip(self.layers[layer], new, strict=True):
            stored.index_copy_(-2, self.place, token)
        return tuple(stored.index_select(-2, order) for stored in self.layers[layer])

    def sums(self, layer: int, new: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer]

    def key_positions(self, positions: Tensor) -> Tensor:
        return positions + self.to_keys
