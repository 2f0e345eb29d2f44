"""Decoding in steps of fixed shape, which a compiler makes fast: on a GPU each is a CUDA graph."""

import torch
from torch import Tensor

from model.cache import Cache, FixedCache
from model.transformer import Transformer

LEAST_ROOM = 256  # tokens; a step is compiled for each room and number of rows


def step(
    model: Transformer,
    ids: Tensor,
    layers: dict[int, tuple[Tensor, ...]],
    room: int,
    place: Tensor,
    pads: Tensor | None,
) -> Tensor:
    """(rows, V) logits after one more token in each row, (rows, 1); arguments as of `FixedCache` and `Context`."""
    cache = FixedCache(layers, room, place)
    logits = model(ids, cache, place if pads is None else place - pads, logits_to_keep=1)[:, -1]
    for layer, kept in layers.items():
        for stored, new in zip(kept, cache.layers[layer]):
            if new is not stored:  # the sums of linear attention
                stored.copy_(new)
    return logits


class CompiledSteps:
    """Adds tokens to a cache one by one; its layers move to memory that stays the same, as a CUDA graph needs it."""

    def __init__(self):
        self.step = torch.compile(step, mode="reduce-overhead", dynamic=False)
        self.layers: dict[int, tuple[Tensor, ...]] = {}
        self.place = self.positions = None  # (1,), and (room,)

    def __call__(self, model: Transformer, ids: Tensor, cache: Cache, pads: Tensor | None) -> Tensor:
        """(rows, V) logits after one more token in each row, (rows, 1); pads (rows, 1): of those before; None: none.

        The scheme must have a position for it.
        """
        run, layers = self.step, self.layers
        stays = all(kept is layers.get(layer) for layer, kept in cache.layers.items())
        if self.positions is None or cache.length >= len(self.positions) or not stays:
            self._move(cache, ids.device, model.position.max_length)
            run = step  # what a scheme makes once for so many tokens must not be in a graph's memory
        self.place.fill_(cache.length)
        logits = run(model, ids, self.layers, len(self.positions), self.place, pads)
        cache.length += 1
        cache.positions, cache.summed = self.positions, dict.fromkeys(cache.summed, cache.length)
        return logits.clone()  # the next step overwrites it

    @torch.inference_mode(False)  # whose tensors a compiler is not asked to write to
    def _move(self, cache, device, max_length):
        """Copies what the cache holds to tensors with room for more: those it had before, if they have the shape."""
        room = max(LEAST_ROOM, 1 << cache.length.bit_length())
        room = min(room, max_length or room)

        def shape(tensor):
            return (*tensor.shape[:-2], tensor.shape[-2] if cache.summed else room, tensor.shape[-1])

        wanted = [(shape(each), each.dtype) for kept in cache.layers.values() for each in kept]
        if wanted != [(each.shape, each.dtype) for kept in self.layers.values() for each in kept]:
            self.layers = {
                layer: tuple(torch.zeros(shape(each), dtype=each.dtype, device=device) for each in kept)
                for layer, kept in cache.layers.items()
            }
            self.place = torch.zeros(1, dtype=torch.long, device=device)
            for tensor in (self.place, *(each for kept in self.layers.values() for each in kept)):
                torch._dynamo.mark_static_address(tensor)  # or a graph would write to a copy
        for layer, kept in self.layers.items():
            for stored, old in zip(kept, cache.layers[layer]):
                seen = slice(None if cache.summed else cache.length)
                stored[..., seen, :] = old[..., seen, :]
        self.positions, cache.layers = torch.arange(room, device=device), dict(self.layers)
