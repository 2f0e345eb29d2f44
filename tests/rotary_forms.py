"""The rotation as articles teach it: readable references for `model.attention.rotate`, never used by the product.

All forms turn pair i of a head at position m by the angle mθ_i, θ_i = BASE^(−2i/d), and give the result in the
layout they were given. Queries and keys are (B, T, heads, d). Angles are computed in float64; the result has the
dtype of the input. Wrong shapes raise ValueError, positions past a table IndexError: in the usual snippets they
broadcast, or slice to nothing, without a word.
"""

import torch
from torch import Tensor

BASE = 10000.0


def ladder(head_dim: int, base: float = BASE) -> Tensor:
    """(d / 2,) float64 θ_i in radians per token."""
    return torch.tensor([base ** (-2 * i / head_dim) for i in range(head_dim // 2)], dtype=torch.float64)


def check_positions(x: Tensor, positions: Tensor) -> None:
    """Refuses positions that are not (B, T), each row counting up by one from its own start.

    For B == T the shape does not betray a transposed tensor; that its rows do not count does.
    """
    if positions.shape != x.shape[:2]:
        raise ValueError(f"positions {tuple(positions.shape)} are not those of x {tuple(x.shape)}")
    if (positions.diff(dim=-1) != 1).any():
        raise ValueError("the positions of a row must count up by one: are they transposed?")


# 1. Interleaved pairs (2i, 2i + 1), per-row positions. Su et al. 2021, equation 34.


def apply_rotary_pos_emb(x: Tensor, positions: Tensor) -> Tensor:
    """Turns x (B, T, heads, d), in interleaved layout, at positions (B, T)."""
    check_positions(x, positions)
    angles = positions[:, :, None, None] * ladder(x.shape[-1])  # (B, T, 1, d / 2): one angle for all heads
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.empty_like(x)
    turned[..., 0::2] = even * cos - odd * sin
    turned[..., 1::2] = even * sin + odd * cos
    return turned


# 2. Half pairs (i, i + d/2) with a table. GPT-NeoX; Hugging Face's Llama.


def rotate_half(x: Tensor) -> Tensor:
    """(x1, x2) → (−x2, x1) for the two halves of the last dimension: each pair turned by a quarter."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def build_rope_cache(head_dim: int, max_seq_len: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each (max_seq_len, head_dim) in float64: row m is position m, channels i and i + d/2 the same.

    Take the rows you need by index, `cos[positions]`: that raises IndexError past the end, which a slice does not.
    """
    angles = torch.arange(max_seq_len, dtype=torch.float64)[:, None] * ladder(head_dim, base)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turns q and k (B, T, heads, d), in half layout, by rows (T, d), or (B, T, d), of the table.

    There must be one row for each token. Neither the whole table (which would start from position 0) nor a single
    row for several tokens (which would broadcast) will do.
    """

    def turn(x: Tensor) -> Tensor:
        for table in (cos, sin):
            if table.shape not in ((x.shape[1], x.shape[3]), (x.shape[0], x.shape[1], x.shape[3])):
                raise ValueError(f"rows {tuple(table.shape)} of the table are not those of x {tuple(x.shape)}")
        # The head dimension must be named: (T, d) against (B, T, heads, d) would fit where T == heads.
        return (x * cos.unsqueeze(-2) + rotate_half(x) * sin.unsqueeze(-2)).to(x.dtype)

    return turn(q), turn(k)


# 3. The complex product, interleaved pairs. Su et al. 2021, equation 13; Meta's Llama.


def rotate_complex(x: Tensor, positions: Tensor) -> Tensor:
    """z_i → z_i e^{imθ_i} for z_i = x_2i + i·x_2i+1 of x (B, T, heads, d), in interleaved layout."""
    check_positions(x, positions)
    angles = positions[:, :, None, None] * ladder(x.shape[-1])
    z = torch.complex(x[..., 0::2].double(), x[..., 1::2].double())
    turned = z * torch.exp(1j * angles)
    return torch.stack((turned.real, turned.imag), dim=-1).flatten(-2).to(x.dtype)


# 4. The dense matrix. Su et al. 2021, equation 15.


def rotation_matrix(position: int, head_dim: int, base: float = BASE) -> Tensor:
    """R_m (d, d) in float64: d/2 blocks ((cos mθ_i, −sin mθ_i), (sin mθ_i, cos mθ_i)) along the diagonal."""
    matrix = torch.zeros(head_dim, head_dim, dtype=torch.float64)
    for i, theta in enumerate(ladder(head_dim, base)):
        cos, sin = torch.cos(position * theta), torch.sin(position * theta)
        matrix[2 * i, 2 * i], matrix[2 * i, 2 * i + 1] = cos, -sin
        matrix[2 * i + 1, 2 * i], matrix[2 * i + 1, 2 * i + 1] = sin, cos
    return matrix


def rotate_dense(x: Tensor, positions: Tensor) -> Tensor:
    """R_m x for each head of x (B, T, heads, d), in interleaved layout."""
    check_positions(x, positions)
    matrices = torch.stack([torch.stack([rotation_matrix(int(m), x.shape[-1]) for m in row]) for row in positions])
    return torch.einsum("btij,bthj->bthi", matrices, x.double()).to(x.dtype)


# Between the layouts.


def to_interleaved(x: Tensor) -> Tensor:
    """(x_0, …, x_{d/2−1}, y_0, …) → (x_0, y_0, x_1, y_1, …) in the last dimension: half layout to interleaved."""
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)


def to_half(x: Tensor) -> Tensor:
    """The inverse of `to_interleaved`."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
