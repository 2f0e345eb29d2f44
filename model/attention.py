"""Rotation of queries and keys, and causal softmax attention with grouped queries."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.cache import Cache
from model.config import ModelConfig


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns pair (x_i, x_{i+d/2}) by its angle: z_i → z_i e^{iφ_i}. Su et al. 2021, equation 13; Llama's half layout.

    x is (…, T, heads, d); cos and sin are (…, T, d / 2). Returns (…, T, heads, d) in x's dtype, the two numbers of
    a pair side by side: scores are sums over channels, so an order that queries and keys share does not matter to
    them, and putting the halves back would cost as much again as the rotation.
    """
    x1, x2 = x.to(torch.promote_types(x.dtype, cos.dtype)).chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # one angle for all heads
    if torch.compiler.is_compiling():  # which has no code generation for complex numbers
        turned = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
    else:  # in eager mode one complex product is more than twice as fast as the four real ones
        turned = torch.view_as_real(torch.complex(x1, x2) * torch.complex(cos, sin))
    return turned.flatten(-2).to(x.dtype)


def causal_mask(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(…, Tq, Tk), True where the query may look, from (…, Tq) and (…, Tk).

    A token sees itself and what lies before it, and no padding (negative positions); padding sees padding, so that
    no row is empty.
    """
    q, k = q_positions.unsqueeze(-1), k_positions.unsqueeze(-2)
    return (k <= q) & ((k >= 0) | (q < 0))


class SoftmaxAttention(nn.Module):
    """softmax(q kᵀ / √d + bias) v over the tokens seen, with grouped key and value heads (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim = config.head_dim
        q_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        mask: Tensor | None,
        cache: Cache | None,
        layer: int,
    ) -> Tensor:
        """(B, T, hidden_size) → (B, T, hidden_size).

        mask: what is allowed (bool) or added to the scores (float), broadcast to (B, heads, T, Tk); None: each
        token sees itself and all before it. It must be given where a filled cache meets more than one token.
        """
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, heads, T, head_dim)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        # is_causal aligns the first query with the first key: right only where no key lies before the queries.
        is_causal = mask is None and q.shape[-2] > 1
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(-2))
