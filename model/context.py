"""From tokens to the logits of the next one: what a model has read, and what becomes of it past the window."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from base import InputError
from model.attention import rotate, waves
from model.cache import Cache
from model.linear import Embedding, Linear, packs
from model.position.base import Position, phase_device
from model.steps import CompiledSteps
from model.transformer import Transformer

MAX_SCORES = 2**24  # attention scores per head in one part of a prompt; bounds memory for prompts of any length
KEPT_FIRST = 4  # tokens that a rolling cache keeps: attention rests on the first ones (Xiao et al. 2024)


class Context:
    """The tokens that a model has read, in rows that grow together.

    window: tokens that it was trained to look at. Past it, by `overflow`:
    "continue" reads on at positions that go on.
    "window" reads the last `window` tokens again, from position 0 on, for each new one.
    "roll" forgets the oldest eighth of the window but for the first tokens; those kept move up, and their keys are
    turned to the positions they move to. What they took in of the forgotten ones stays. InputError: not possible with
    this scheme or attention.
    dtype: of the weights while decoding; None: unchanged. On a CPU prompts are read with the model's own dtype: there
    products of many rows are slow in bfloat16, while those of one row only wait for memory.
    compiled: whether tokens are added by `CompiledSteps`.
    """

    def __init__(
        self,
        model: Transformer,
        dtype: torch.dtype | None = None,
        window: int = 0,
        overflow: str = "continue",
        compiled: bool = False,
    ):
        self.decoding = decoding_model(model, dtype)
        self.model = model if model.output_weight.device.type == "cpu" else self.decoding
        self.window, self.overflow = window, overflow
        self.steps = CompiledSteps() if compiled else None
        self.cache, self.rolled = Cache(), False
        self.known = 0  # tokens of the last prompt that were not read again
        self.ids: Tensor | None = None  # (rows, T), what the cache holds, or held before it rolled
        self.pads: Tensor | None = None  # (rows, 1), how many of them are padding; None: none
        if overflow == "roll":
            if model.position.overrides("embedding"):
                scheme = model.config.position.scheme
                raise InputError(f"--overflow roll: {scheme} adds positions to what a token is, so that it cannot move")
            if window < (least := KEPT_FIRST + 2):
                raise InputError(
                    f"--overflow roll: expected a model of {least} tokens of context or more, got {window}"
                )

    def read(self, prompts: list[Tensor], copies: int = 1) -> Tensor:
        """(prompts · copies, V) logits of the token after each prompt (T,), which replace all that was read before.

        Prompts may differ in length where the overflow is "continue". One prompt alone is read from where it differs
        from the one row before it, if the cache can forget the rest; it gives the logits that it gives from scratch.
        """
        longest = max(map(len, prompts))
        ids = torch.stack([F.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
        pads = torch.tensor([[longest - len(prompt)] for prompt in prompts], device=ids.device)
        if (uneven := bool(pads.any())) and self.overflow != "continue":
            raise ValueError(f"prompts of different lengths past a window: overflow {self.overflow!r}")
        if self.overflow == "window":
            ids = ids[:, -self.window :]
        self.known = known = self._known(ids)
        if not known:
            self.cache, self.rolled = Cache(), False
        self.ids, self.pads = ids, pads if uneven else None
        logits = self._after(self.model, ids[:, known:])
        if copies > 1:
            self.cache.repeat(copies)
            self.ids = self.ids.repeat_interleave(copies, dim=0)
            self.pads = self.pads.repeat_interleave(copies, dim=0) if uneven else None
        return logits.repeat_interleave(copies, dim=0)

    def add(self, ids: Tensor) -> Tensor:
        """(rows, V) logits of the token after one more in each row, (rows,)."""
        self.ids = torch.cat((self.ids, ids[:, None]), dim=1)
        if self.overflow == "window" and self.ids.shape[1] > self.window:
            self.ids, self.cache = self.ids[:, -self.window :], Cache()
            return self._after(self.model, self.ids)
        if self.steps is None or self.cache.length == self.model.position.max_length:
            return self._after(self.decoding, ids[:, None])
        if self.overflow == "roll" and self.cache.length == self.window:
            self._roll()
        return self.steps(self.decoding, ids[:, None], self.cache, self.pads)

    def _known(self, ids):
        """How many of a prompt's first tokens the cache holds as reading them would; it forgets the others."""
        if self.ids is None or len(self.ids) > 1 or len(ids) > 1 or self.rolled or self.decoding is not self.model:
            return 0
        count = min(self.cache.length, ids.shape[1] - 1)  # the last is read for its logits
        same = (self.ids[0, :count] == ids[0, :count]).cumprod(dim=0).sum().item()
        self.cache.set_back(same)
        return self.cache.length

    def _after(self, model, ids):
        """The logits after ids (rows, T), which go on from what the cache holds."""
        size = max(1, MAX_SCORES // (len(ids) * (self.cache.length + ids.shape[1])))
        while ids.shape[1]:
            start, room = self.cache.length, size
            if self.overflow == "roll":
                if start == self.window:
                    start = self._roll()
                room = min(size, self.window - start)
            part, ids = ids[:, :room], ids[:, room:]
            positions = None if self.pads is None else torch.arange(start, start + part.shape[1]).to(ids) - self.pads
            logits = model(part, self.cache, positions=positions, logits_to_keep=1)[:, -1]
            if self.overflow == "roll" and self.cache.summed:
                kind = self.model.config.attention
                raise InputError(
                    f"--overflow roll: {kind} attention sums up what it reads, and can forget no part of it"
                )
        return logits

    def _roll(self):
        count = max(1, self.window // 8)
        old = torch.arange(KEPT_FIRST + count, self.window, device=self.ids.device)
        self.cache.forget(KEPT_FIRST, count, turning(self.model.position, old, old - count))
        self.rolled = True
        return self.cache.length


def turning(scheme: Position, old: Tensor, new: Tensor) -> Callable[[int, Tensor], Tensor]:
    """The function (layer, keys) → keys that moves cached keys (B, heads, T, d) from old positions (T,) to new ones."""

    def phasors(positions):
        found = scheme.key_rotation(positions) or scheme.rotation(positions)
        found = found if isinstance(found, list) else [found] * scheme.config.num_hidden_layers
        device = phase_device(positions)
        return [each and torch.complex(*(wave.to(device, torch.float64) for wave in each)) for each in found]

    turns = [after if after is None else after / before for before, after in zip(phasors(old), phasors(new))]

    def turn(layer, keys):
        if turns[layer] is None or not scheme.acts_in(layer):
            return keys
        precise = torch.promote_types(keys.dtype, torch.float32)
        cos, sin = (part.to(keys.device, precise) for part in (turns[layer].real, turns[layer].imag))
        return rotate(keys.transpose(1, 2), waves((cos, sin)), "interleaved").transpose(
            1, 2
        )  # as `rotate` left the pairs

    return turn


@torch.inference_mode(False)  # weights made in this mode could not be trained any more
def decoding_model(model: Transformer, dtype: torch.dtype | None) -> Transformer:
    """The model with weights in dtype, laid side by side: itself, or a copy. In bfloat16 a token reads half the memory.

    On a CPU the matrices alone: what lies between the products is faster in float32, attention three to eight times.
    """
    device = model.output_weight.device
    if dtype in (None, model.output_weight.dtype):
        model.lay_side_by_side()
    elif packs(device, dtype, rows=1):
        model = copy.deepcopy(model, {id(each): each for each in model.parameters()})  # both have what is not packed
        model.pack(dtype)
    else:
        model = copy.deepcopy(model)
        own = {*model.modules()} - {*model.position.modules()}
        matrices = [module for module in own if isinstance(module, (Embedding, Linear))]
        for part in matrices if device.type == "cpu" else [model]:
            part.to(dtype)
        model.lay_side_by_side()
    return model
