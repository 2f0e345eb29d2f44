import cmath

import pytest
import torch

from model.attention import AttentionInputs, SoftmaxAttention, causal_mask, rotate, waves
from model.cache import Cache
from model.config import ModelConfig
from tiny import draw


def written_out_rotation(x, phases):
    """Number by number, from (B, T, heads, d) and (B, T, d / 2); the two of a pair side by side, as `rotate` has it."""
    out = torch.empty_like(x)
    for b, t, head, i in torch.cartesian_prod(*map(torch.arange, (*x.shape[:3], x.shape[3] // 2))).tolist():
        z = complex(x[b, t, head, i], x[b, t, head, i + x.shape[3] // 2]) * cmath.exp(1j * phases[b, t, i].item())
        out[b, t, head, 2 * i], out[b, t, head, 2 * i + 1] = z.real, z.imag
    return out


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("batch, length, heads", [(2, 5, 3), (2, 4, 4), (3, 3, 3), (2, 1, 4)])
def test_rotate_is_the_rotation_written_out(batch, length, heads, per_row, compiling, monkeypatch):
    """In both forms; with as many tokens as heads or rows, where wrong broadcasting goes unnoticed; with one token."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x, phases = draw(batch, length, heads, 6), 3 * draw(batch if per_row else 1, length, 3, seed=1)
    expected = written_out_rotation(x, phases.expand(batch, -1, -1))
    phases = phases if per_row else phases[0]
    torch.testing.assert_close(rotate(x, waves((phases.cos(), phases.sin()))), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("compiling", [False, True])
def test_bfloat16_queries_are_rotated_in_float32_and_rounded_once(compiling, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x, phases = draw(2, 50, 4, 8).bfloat16(), 100 * draw(50, 4, seed=1)
    exact = written_out_rotation(x.double(), phases.expand(2, -1, -1)).bfloat16()
    got = rotate(x, waves((phases.cos().float(), phases.sin().float())))
    assert got.dtype == torch.bfloat16
    assert (got != exact).double().mean() < 0.002  # but for a tie that float32 decides otherwise


def test_causal_mask_with_padding():
    """One row padded by two, one not: keys 0 … 3 after q at the last two places."""
    k_positions = torch.tensor([[-2, -1, 0, 1], [0, 1, 2, 3]])
    x = False
    assert causal_mask(k_positions, k_positions).tolist() == [
        [[1, x, x, x], [1, 1, x, x], [x, x, 1, x], [x, x, 1, 1]],
        [[1, x, x, x], [1, 1, x, x], [1, 1, 1, x], [1, 1, 1, 1]],
    ]
    assert causal_mask(k_positions[:, 2:], k_positions).tolist() == [
        [[x, x, 1, x], [x, x, 1, 1]],
        [[1, 1, 1, x], [1, 1, 1, 1]],
    ]


def attention_of(heads, kv_heads, qk_norm=False):
    shape = dict(vocab_size=8, hidden_size=16, head_dim=6, num_attention_heads=heads, num_key_value_heads=kv_heads)
    config = ModelConfig(**shape, qk_norm=qk_norm, rms_norm_eps=0.1)
    attention = SoftmaxAttention(config).double()
    with torch.no_grad():
        for seed, parameter in enumerate(attention.parameters()):
            parameter.copy_(0.5 * draw(*parameter.shape, seed=seed))
    return attention


def written_out_attention(attention, x, phases, bias, heads, kv_heads):
    """softmax(q kᵀ / √6 + bias) v, query by query, of x (B, T, 16)."""
    q, k, v = (x @ proj.weight.T for proj in (attention.q_proj, attention.k_proj, attention.v_proj))
    q, k, v = (t.unflatten(-1, (-1, 6)) for t in (q, k, v))
    if isinstance(attention.q_norm, torch.nn.RMSNorm):
        q, k = (t / (t.square().sum(-1, True) / 6 + 0.1).sqrt() for t in (q, k))
        q, k = q * attention.q_norm.weight, k * attention.k_norm.weight
    if phases is not None:
        q, k = (written_out_rotation(t, phases.expand(len(x), -1, -1)) for t in (q, k))
    out = torch.zeros(*x.shape[:2], heads, 6, dtype=torch.float64)
    for b, t, head in torch.cartesian_prod(*map(torch.arange, (*x.shape[:2], heads))).tolist():
        group = head // (heads // kv_heads)
        scores = torch.stack([q[b, t, head] @ k[b, s, group] / 6**0.5 + bias[head, t, s] for s in range(t + 1)])
        out[b, t, head] = scores.softmax(0) @ v[b, : t + 1, group]
    return out.flatten(-2) @ attention.o_proj.weight.T


@torch.no_grad()
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_rotation", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 1)])
def test_attention_is_the_formula_written_out(heads, kv_heads, qk_norm, with_rotation, with_bias):
    """Scores without 1/√d, a bias scaled with them, values rotated or normed, norms after the rotation."""
    attention, x = attention_of(heads, kv_heads, qk_norm), draw(2, 4, 16, seed=9)
    phases = 3 * draw(1, 4, 3, seed=8) if with_rotation else None
    bias = with_bias * draw(heads, 4, 4, seed=7)
    rotation = (phases[0].cos(), phases[0].sin()) if with_rotation else None
    mask = bias.masked_fill(torch.ones(4, 4).triu(1) > 0, float("-inf")) if with_bias else None
    expected = written_out_attention(attention, x, phases, bias, heads, kv_heads)
    inputs = AttentionInputs(0, turns=rotation and waves(rotation), mask=mask)
    torch.testing.assert_close(attention(x, inputs), expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_values_are_not_rotated():
    """Equal turns of all queries and keys cancel in the scores; in the values they would show."""
    attention, x = attention_of(4, 2), draw(2, 5, 16)
    turns = [torch.full((5, 3), angle, dtype=torch.float64) for angle in (0.0, 1.0)]
    turns = [(turn.cos(), turn.sin()) for turn in turns]
    outputs = [attention(x, AttentionInputs(0, turns=waves(turn))) for turn in turns]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-13)


@torch.no_grad()
def test_one_query_without_a_mask_sees_the_whole_cache():
    """is_causal aligns the first query with the first key: with it, decoding would see the first token alone."""
    attention, x, cache = attention_of(4, 2), draw(2, 5, 16), Cache()
    full, inputs = attention(x, AttentionInputs(0)), AttentionInputs(0, cache)
    attention(x[:, :4], inputs)
    cache.length = 4
    torch.testing.assert_close(attention(x[:, 4:], inputs), full[:, 4:], rtol=0, atol=1e-13)
