"""Schemes that add to the scores what the positions alone decide."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from model.linear import Embedding, Linear
from model.position.base import InLayers, distances, ladder, phase_device
from model.position.rotary import Rotary
from settings import Size


class Alibi(InLayers):
    """A penalty that grows with the distance, at a slope of its own for each head. Press et al. 2022, section 3."""

    @staticmethod
    def slopes(num_heads: int) -> list[float]:
        """2^(−8h / H) for H heads, a power of two; else those of the next lower one, then every other of its double."""
        power = 2 ** int(math.log2(num_heads))
        of_power, of_double = ([2 ** (-8 * h / n) for h in range(1, n + 1)] for n in (power, 2 * power))
        return of_power + of_double[0::2][: num_heads - power]

    def bias(self, q_positions, k_positions):
        slopes = torch.tensor(self.slopes(self.config.num_attention_heads), device=q_positions.device)
        return -slopes[:, None, None] * distances(q_positions, k_positions)


class T5(InLayers):
    """A trained bias for each head and bucket of distances, shared by all layers. Raffel et al. 2020, section 2.1.

    Unlike T5 the scores keep their 1/√d.
    """

    class Options(InLayers.Options):
        num_buckets: Annotated[int, Field(ge=4, lt=2**31, multiple_of=2)] = 32
        """half of them for single distances, half for ranges that grow with the distance"""
        max_distance: Size = 128
        """distances from here on share the last bucket"""

        def check(self, config):
            super().check(config)
            if self.max_distance <= self.num_buckets // 2:
                raise ValueError(f"position.max_distance {self.max_distance} is not above half of position.num_buckets")

    def __init__(self, config):
        super().__init__(config)
        self.table = Embedding(self.options.num_buckets, config.num_attention_heads)

    @staticmethod
    def buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        """Bucket of each distance ≥ 0: its own for those below num_buckets / 2, then logarithmic ranges."""
        exact = num_buckets // 2
        far = distance.clamp(min=1).to(phase_device(distance)).double()
        log_ratio = (far / exact).log() / math.log(max_distance / exact)
        ranges = exact + (log_ratio * (num_buckets - exact)).long().to(distance.device)
        return torch.where(distance < exact, distance, ranges.clamp(max=num_buckets - 1))

    def bias(self, q_positions, k_positions):
        distance = (q_positions[..., :, None] - k_positions[..., None, :]).clamp(min=0)  # the future is masked anyway
        return self.table(self.buckets(distance, self.options.num_buckets, self.options.max_distance)).movedim(-1, -3)


class Kerple(InLayers):
    """−r_1 log(1 + r_2 (m − n)), or −r_1 (m − n)^r_2, with r_1, r_2 > 0 trained for each head. Chi et al. 2022, section 4.

    What is trained are logarithms, and for the power, which stays below 2, the logit of r_2 / 2. The heads start evenly
    spread over the ranges that the authors' code draws from: one number up to 1, and the other, r_1 of the logarithm
    or r_2 of the power, up to 2.
    """

    class Options(InLayers.Options):
        kind: Literal["log", "power"] = "log"
        """the logarithmic or the power form; power with r_2 = 1 is alibi with trained slopes"""

    def __init__(self, config):
        super().__init__(config)
        spread = (torch.arange(config.num_attention_heads) + 0.5) / config.num_attention_heads  # within 0 and 1
        is_log = self.options.kind == "log"
        self.log_r1 = nn.Parameter((2 * spread if is_log else spread).log())
        self.free_r2 = nn.Parameter(spread.log() if is_log else spread.logit())

    def bias(self, q_positions, k_positions):
        distance, r1 = distances(q_positions, k_positions).clamp(min=0), self.log_r1.exp()[:, None, None]
        if self.options.kind == "log":
            return -r1 * (self.free_r2.exp()[:, None, None] * distance).log1p()
        return -r1 * distance ** (2 * self.free_r2.sigmoid()[:, None, None])


class Fire(InLayers):
    """An MLP of ψ(m − n) / ψ(max(L, m)), ψ(x) = log(cx + 1), for each head. Li et al. 2024, section 3.

    c and the threshold L are trained, L from the trained context on. Past it a shift of all positions is seen.
    """

    class Options(InLayers.Options):
        width: Size = 32
        """of the MLP's one hidden layer"""

    shift_invariant = False

    def __init__(self, config):
        super().__init__(config)
        self.c, self.multiplier = nn.Parameter(torch.full((1,), 0.1)), nn.Parameter(torch.ones(1))
        self.hidden = Linear(1, self.options.width, bias=True)
        self.heads = Linear(self.options.width, config.num_attention_heads, bias=True)

    def threshold(self) -> Tensor:
        """L, (1,), in tokens."""
        return (self.multiplier * self.config.max_position_embeddings).abs()

    def is_toeplitz(self, positions):  # up to L all are divided by the same; a compiler cannot know
        return not torch.compiler.is_compiling() and bool(positions[-1] <= self.threshold())

    def bias(self, q_positions, k_positions):
        distance = distances(q_positions, k_positions).squeeze(-3).clamp(min=0)
        furthest = q_positions[..., None].maximum(self.threshold())
        ratio = (self.c.abs() * distance).log1p() / (self.c.abs() * furthest).log1p()
        return self.heads(self.hidden(ratio[..., None]).relu()).movedim(-1, -3)


class Window(Rotary):
    """Only the last `window` tokens and the first `keep_first` are seen, in the layers it acts in.

    Beltagy et al. 2020; Xiao et al. 2024 for the first ones. The layers left out see everything, without positions:
    with every fourth or every other one left out this is iRoPE (Llama 4, 2025) or RNoPE-SWA (Yang et al. 2025).
    """

    class Options(Rotary.Options):
        window: Size = 64
        """tokens that are seen, with the token itself"""
        keep_first: Annotated[int, Field(ge=0, lt=2**31)] = 0
        """tokens at the start of the text that are always seen"""
        rotate: bool = True
        """whether queries and keys turn, too"""

        def check(self, config):
            super().check(config) if self.rotate else InLayers.Options.check(self, config)

    def __init__(self, config):
        super().__init__(config)
        self.shift_invariant = not self.options.keep_first

    def theta(self, device):
        return ladder(self.config.head_dim, self.options.base, device), 1.0

    def rotation(self, positions):
        return super().rotation(positions) if self.options.rotate else None

    def bias(self, q_positions, k_positions):
        is_near = distances(q_positions, k_positions) < self.options.window
        is_first = k_positions[..., None, None, :] < self.options.keep_first
        return torch.where(is_near | is_first, 0.0, float("-inf"))
