"""What is said about positional encodings, one test per claim; docs/positional-encodings.md is the same as prose.

Each docstring gives the claim, its source, and whether it holds. Numbers written out here come from an independent
float64 program, not from this project. Where a test tells "changes" from "stays", weights are large enough
(`initializer_range` 0.3, logits of order 1) that the two lie orders of magnitude apart: CHANGED and SAME.
"""

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
import yaml
from pydantic import ValidationError
from torch import nn

from model.attention import AttentionInputs, LinearAttention, SoftmaxAttention, rotate, waves
from model.cache import Cache
from model.config import ModelConfig
from model.position import POSITIONS, T5, Alibi, build_position
from model.position.base import ladder, phases
from model.scaling import AnyScaling
from model.temperature import AnyTemperature
from model.transformer import Transformer
from rotary_forms import rotation_matrix, to_half, to_interleaved
from tiny import draw

ROOT = Path(__file__).resolve().parents[1]
FIGURES = runpy.run_path(str(ROOT / "docs" / "figures.py"))  # the functions that the pictures are drawn from
SAME = 1e-4  # differences below are float32 rounding; measured: up to 4e-6 for logits of standard deviation 1.8
CHANGED = 0.1  # differences above count as such; measured: 0.3 to 8
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])


def config(position="rope", *, head_dim=8, **shape):
    """Two layers, four heads, two key heads."""
    defaults = {"vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    defaults |= {"hidden_size": 4 * head_dim, "max_position_embeddings": 2048, "initializer_range": 0.3}
    return ModelConfig(**defaults | shape, position=position)


def transformer(position="rope", **shape):
    return Transformer(config(position, **shape)).eval()


def attention(position="rope", kind=SoftmaxAttention, dtype=torch.float64, **shape):
    """One attention layer with weights of order 1."""
    layer = kind(config(position, **shape)).to(dtype).requires_grad_(False)
    for seed, weight in enumerate(layer.parameters()):
        weight.copy_(draw(*weight.shape, seed=seed) / weight.shape[-1] ** 0.5)
    return layer


def tokens(*shape, seed=0):
    return torch.randint(32, shape, generator=torch.Generator().manual_seed(seed))


def turned(x, position, layout="half", base=10000.0):
    """x (…, d) turned by the product as if it stood at one position."""
    scheme = build_position(config({"scheme": "rope", "base": base}, head_dim=x.shape[-1]))
    return rotate(x.unsqueeze(-2).unsqueeze(-2), waves(scheme.rotation(torch.tensor([position]))), layout)[..., 0, 0, :]


def score(q, k, m, n, layout="half", q_base=10000.0, k_base=10000.0):
    """q at position m against k at position n, before 1/√d."""
    return (turned(q, m, layout, q_base) * turned(k, n, layout, k_base)).sum(-1)


def difference(a, b):
    return (a - b).abs().max().item()


Q = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8.0], dtype=torch.float64)
K = torch.tensor([0.8, -0.7, 0.6, -0.5, 0.4, -0.3, 0.2, 0.9], dtype=torch.float64)


# The rotation


@LAYOUTS
def test_scores_depend_on_the_distance_alone(layout):
    """Claim: the score of a rotated query and key depends on m − n only. Su et al. 2021, equation 16. Holds."""
    expected = {"interleaved": 3.9305941802688693, "half": 7.810904347968927}[layout]
    for m, n in ((7, 0), (1007, 1000), (1_000_007, 1_000_000)):
        assert abs(score(Q, K, m, n, layout).item() - expected) < 1e-5
    assert abs(score(Q, K, 7, 1, layout).item() - expected) > 0.1


def test_between_query_and_key_lies_the_rotation_by_n_minus_m():
    """Claim: the score is qᵀR_{n−m}k. Su et al. 2021, equation 16. Holds; several write-ups print R_{m−n}.

    The wrong sign gives the score at the mirrored distance. With q = k nobody can tell.
    """
    for m, n, expected, mirrored in ((7, 0, 3.9305941802688693, 12.457385241427396), (1000, 7, 12.79274, -5.04249)):
        assert abs(score(Q, K, m, n, "interleaved").item() - expected) < 1e-5
        assert abs((Q @ rotation_matrix(n - m, 8) @ K).item() - expected) < 1e-5
        assert abs((Q @ rotation_matrix(m - n, 8) @ K).item() - mirrored) < 1e-5
    assert abs((Q @ rotation_matrix(7, 8) @ Q - Q @ rotation_matrix(-7, 8) @ Q).item()) < 1e-12


@LAYOUTS
def test_the_norm_is_kept_and_the_mean_is_not(layout):
    """Claim: rotation keeps norm and mean. The norm: holds. The mean: does not."""
    means = {"interleaved": {0: 4.5, 1: 4.2041342930640395, 7: 4.026268562772568, 1000: 0.7475191662157805}}
    for position in (0, 1, 7, 1000):
        x = turned(Q, position, layout)
        assert abs(x.norm().item() - 14.2828568570857) < 1e-6
        if layout in means:
            assert abs(x.mean().item() - means[layout][position]) < 1e-6
    assert abs(turned(Q, 1000, layout).mean().item() - 4.5) > 1


def test_the_transpose_undoes_a_rotation_and_rotations_add_up():
    """Claim: R_mᵀ = R_{−m} and R_a R_b = R_{a+b}. Su et al. 2021, section 3.4. Holds."""
    for a, b in ((3, 4), (1000, -7)):
        assert difference(rotation_matrix(a, 8).T, rotation_matrix(-a, 8)) < 1e-15
        assert difference(rotation_matrix(a, 8) @ rotation_matrix(b, 8), rotation_matrix(a + b, 8)) < 1e-12
        assert difference(turned(turned(Q, a, "interleaved"), b, "interleaved"), turned(Q, a + b, "interleaved")) < 1e-6
        assert difference(turned(turned(Q, a, "interleaved"), -a, "interleaved"), Q) < 1e-6


@LAYOUTS
def test_the_complex_product_is_the_real_formula(layout, monkeypatch):
    """Claim: (x1 cos φ − x2 sin φ, x1 sin φ + x2 cos φ) is z e^{iφ}. Su et al. 2021, equation 13. Holds.

    The product uses the one in eager mode and the other under the compiler.
    """
    x, phi = draw(2, 5, 4, 8), draw(2, 5, 4, seed=1)
    x1, x2 = x.chunk(2, dim=-1) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    cos, sin = phi.cos().unsqueeze(-2), phi.sin().unsqueeze(-2)
    expected = torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
        assert difference(rotate(x, waves((phi.cos(), phi.sin())), layout), expected) < 1e-14


def test_the_dense_block_diagonal_matrix_is_the_fast_path():
    """Claim: rotating pairs is multiplying by the block-diagonal R_m. Su et al. 2021, equations 15 and 34. Holds."""
    for position in (0, 1, 7, 1000, 131_071):
        assert difference(rotation_matrix(position, 8) @ Q, turned(Q, position, "interleaved")) < 1e-6


def test_layouts_are_one_function_under_a_permutation_and_not_otherwise():
    """Claim: the half and the interleaved layout are equivalent. Only with the rows of q_proj and k_proj permuted.

    The same weights read in the other layout are another model: the layout belongs to the checkpoint.
    """
    half = transformer({"scheme": "rope", "layout": "half"})
    interleaved = transformer({"scheme": "rope", "layout": "interleaved"})
    ids = tokens(2, 12)
    with torch.no_grad():
        expected = half(ids)
        assert difference(interleaved(ids), expected) > CHANGED  # equal weights: both are drawn from seed 0
        for layer in interleaved.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                rows = projection.weight.T.unflatten(-1, (-1, 8))  # (hidden_size, heads, head_dim)
                projection.weight.copy_(to_interleaved(rows).flatten(-2).T)
        assert difference(interleaved(ids), expected) < SAME
    assert abs(score(Q, K, 7, 0, "half") - score(Q, K, 7, 0, "interleaved")) > 1


def test_the_phase_must_be_linear_in_the_position():
    """Claim: any phase f(m) that grows would do. It would not: only f(m) = cm makes scores depend on m − n."""

    def spread(f):
        """How far scores at one distance, 5, lie apart over the text."""
        scores = []
        for n in (0, 10, 100):
            x = []
            for vector, position in ((Q, n + 5), (K, n)):
                phi = phases(f(torch.tensor([position], dtype=torch.float64)), ladder(8, 10000.0))
                x.append(rotate(vector[None, None], waves((phi.cos(), phi.sin())), "interleaved"))
            scores.append((x[0] * x[1]).sum().item())
        return max(scores) - min(scores)

    assert spread(lambda m: m) < 1e-12
    assert spread(lambda m: 3 * m) < 1e-12
    assert spread(lambda m: m**2) > 1
    assert spread(lambda m: torch.log1p(m)) > 1


@pytest.mark.parametrize("kind", [SoftmaxAttention, LinearAttention])
def test_values_carry_no_position(kind):
    """Claim: only queries and keys are rotated. Su et al. 2021, equation 16. Holds.

    A token that sees itself alone has weight 1: its value comes out as it went in, at any position.
    """
    layer, scheme, x = attention(kind=kind), build_position(config()), draw(1, 1, 32)
    values = layer.projected(x)[1].repeat_interleave(2, dim=-2)  # two query heads for each key head
    for position in (0, 1, 1000):
        out = layer(x, AttentionInputs(0, turns=waves(scheme.rotation(torch.tensor([position])))))
        assert difference(out, layer.o_proj(values.flatten(-2))) < 1e-6


# Frequencies


def test_small_pair_indices_turn_fastest():
    """Claim: θ_i = base^(−2i/d) falls with i, from 1 radian per token. Su et al. 2021, section 3.2.2. Holds.

    Some articles print it the other way round. d is the width of a head, not that of the model.
    """
    theta = FIGURES["frequencies"](64)
    assert len(theta) == 32 and theta[0] == 1 and (theta.diff() < 0).all()
    for i, expected in ((1, 0.7498942093324559), (8, 0.1), (16, 0.01), (31, 0.0001333521432163324)):
        assert abs(theta[i].item() / expected - 1) < 1e-14
    slowest = {16: 0.00031622776601683794, 32: 0.00017782794100389227}
    for head_dim, expected in slowest.items():  # the width of the model is four times as large
        cos, sin = build_position(config(head_dim=head_dim)).rotation(torch.tensor([1]))
        assert cos.shape == (1, head_dim // 2)
        assert abs(torch.atan2(sin, cos)[0, -1].item() / expected - 1) < 1e-6


@pytest.mark.parametrize(
    "head_dim, base, length, expected",
    [(32, 100, 512, 16), (32, 10000, 64, 5), (32, 10000, 256, 7), (64, 10000, 1024, 18), (64, 1000, 256, 18)],
)
def test_slow_pairs_complete_no_turn_within_the_trained_length(head_dim, base, length, expected):
    """Claim: every pair sees all its angles in training. It does not: pairs with θ_i L < 2π never complete a turn.

    At d = 32, base 10,000 and 256 tokens, 9 of 16 pairs meet angles they have not seen as soon as the text is longer.
    """
    angles = phases(torch.tensor([length]), FIGURES["frequencies"](head_dim, base=base))
    assert int((angles >= 2 * torch.pi).sum()) == expected


def test_a_cut_leaves_the_pairs_that_turn():
    """Claim: only pairs that complete a turn in training should rotate. Chen et al. 2025; arXiv 2603.18017: a config.

    At d = 32 and L = 128: 6 of 16 pairs of base 10,000, or all 8 of half the channels at a base of 20. Other bases at
    which every pair completes a quarter, half or whole turn: 2L/π, L/π, L/2π (Liu et al. 2024), here 81, 41 and 20.
    """
    variants = yaml.safe_load((ROOT / "configs" / "compare_all.yaml").read_text(encoding="utf-8"))["variants"]
    for name, expected in (("hope", 6), ("rope_id", 8)):
        options = {k: v for k, v in variants[name]["model.position"].items() if k != "scheme"}
        theta = FIGURES["frequencies"](32, 128, **options)
        assert len(theta[theta > 0]) == expected and (128 * theta[theta > 0] >= 2 * torch.pi).all()
    assert abs(128 * FIGURES["frequencies"](32)[6].item() / (2 * torch.pi) - 0.64) < 0.01
    assert abs(128 * theta[-1].item() / (2 * torch.pi) - 1.48) < 0.01
    for base, turns in ((81.48733086305042, 0.25), (40.74366543152521, 0.5), (20.371832715762604, 1.0)):
        assert abs(128 / base / (2 * torch.pi) - turns) < 1e-12


@pytest.mark.parametrize("base, expected", [(100.0, 28), (500.0, 103), (1e4, 474), (5e5, 2089)])
def test_the_sum_of_cosines_turns_negative_later_for_larger_bases(base, expected):
    """Claim: the base bounds the context, by where Σ_i cos mθ_i turns negative. Men et al. 2024. The sum does so."""
    sums = phases(torch.arange(3000), FIGURES["frequencies"](32, base=base)).cos().sum(-1)
    assert (sums < 0).nonzero()[0].item() == expected


def test_one_frequency_collides():
    """Claim: one frequency would do. It would not: positions 0 and 710 are 3.4e-4 apart (113 turns and 6e-5 rad).

    With the ladder no two positions below 4,096 are nearer than 1.47. d = 64, vectors of norm √32.
    """

    def distances(theta):
        phi = phases(torch.arange(1, 4096), theta)
        return torch.cat((phi.cos() - 1, phi.sin()), dim=-1).norm(dim=-1)  # from position 0

    single, ladders = distances(torch.ones(32, dtype=torch.float64)), distances(FIGURES["frequencies"](64))
    assert single.argmin() + 1 == 710 and abs(single.min().item() - 0.00034104442679964433) < 1e-12
    assert ladders.argmin() + 1 == 1 and abs(ladders.min().item() - 1.4718480481224778) < 1e-12
    assert abs(ladders[709].item() - 7.296668045735773) < 1e-12


def test_sine_without_cosine_leaks_the_absolute_position():
    """Claim: sines alone would do. They would not: what is left over is cos((s + t)θ), so lag 5 looks ever different.

    With pairs of sine and cosine the dot product at lag 5 is 23.504 everywhere (d = 64).
    """
    theta = FIGURES["frequencies"](64)
    for t, expected in ((0, 0.0), (5, 2.0169538957336215), (100, 8.099990498407333), (1000, 10.713570752471343)):
        early, late = phases(torch.tensor([t, t + 5]), theta)
        assert abs((late.sin() @ early.sin()).item() - expected) < 1e-10
        assert abs((late.sin() @ early.sin() + late.cos() @ early.cos()).item() - 23.50397081044963) < 1e-10


def test_dot_products_of_sinusoids_depend_on_the_distance_alone():
    """Claim: a shift of sinusoidal embeddings is a rotation, so dot products see s − t. Vaswani et al. 2017. Holds.

    But they are added before the projections, and the scores of a layer see both positions.
    """
    model = transformer({"scheme": "sinusoidal", "rms": 0.5**0.5}, hidden_size=8, head_dim=2)
    rows = model.position.embedding(torch.tensor([5, 4, 9, 104, 109]))
    expected = [-0.95892427, 0.28366219, 0.47942554, 0.87758256, 0.04997917, 0.99875026, 0.00499998, 0.99998750]
    assert difference(rows[0], torch.tensor(expected)) < 1e-7
    assert abs((rows[2] @ rows[1]).item() - 3.159982507774607) < 1e-6
    assert abs((rows[4] @ rows[3]).item() - 3.1599825077746067) < 1e-6
    with torch.no_grad():
        projection = model.layers[0].self_attn.q_proj.weight
        near, far = ((projection @ rows[i]) @ rows[j] for i, j in ((2, 1), (4, 3)))
    assert abs(near - far) > CHANGED


def test_printed_sinusoids_drown_the_token_embeddings():
    """Claim: add the sinusoids as printed. Their root mean square is 0.707, that of the tokens 0.02: they drown them.

    The paper multiplies token embeddings by √hidden_size, which mends it only where their standard deviation is
    1/√hidden_size: with 0.02 and a width of 128 they come to 0.23. Here both start equal.
    """

    def rms(x):
        return x.square().mean().sqrt().item()

    positions = torch.arange(128)
    shape = {"hidden_size": 128, "initializer_range": 0.02, "vocab_size": 512}
    printed = transformer({"scheme": "sinusoidal", "rms": 0.5**0.5}, **shape)
    with torch.no_grad():
        token_rms = rms(printed.embed_tokens.weight)
        assert abs(rms(printed.position.embedding(positions)) - 0.7071) < 1e-4
        assert abs(token_rms - 0.02) < 1e-3 and abs(token_rms * 128**0.5 - 0.23) < 0.01
        for scheme in POSITIONS:
            model = transformer(scheme, **shape)
            if (embedding := model.position.embedding(positions)) is not None:
                assert 0.95 < rms(embedding) / token_rms < 1.05, scheme


@pytest.mark.parametrize("head_dim", [32, 128])
def test_the_bound_on_scores_decays_and_not_steadily(head_dim):
    """Claim: scores decay with the distance. Su et al. 2021, section 3.4.3. Only an upper bound does, and unsteadily.

    |score| ≤ max_i |h_{i+1} − h_i| Σ_j |S_j|. At d = 128 the mean of |S_j| falls from 32.5 to 6.54 at 256 tokens, but
    rises at 115 of the 256 steps between, by up to 1.17, and is 7.60 at 5,000 tokens, above the 4.47 at 1,000.
    """
    expected = {
        128: {0: 32.5, 10: 17.95413713708483, 256: 6.54309732297894, 1000: 4.47076103424874, 5000: 7.59609616739412},
        32: {0: 8.5, 10: 4.1511821727247495, 256: 3.2138845802740397, 1000: 2.246174559277774},
    }
    bound = FIGURES["decay_bound"]
    for distance, value in expected[head_dim].items():
        assert abs(bound(torch.tensor([distance]), head_dim).item() - value) < 1e-9
    if head_dim == 128:
        steps = bound(torch.arange(257), head_dim).diff()
        assert (steps > 0).sum() == 115 and steps.argmax() == 99 and abs(steps.max().item() - 1.166769066422022) < 1e-9

    q, k = draw(64, head_dim), draw(64, head_dim, seed=1)
    z_q, z_k = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
    h = F.pad(z_q * z_k.conj(), (0, 1))  # h_{d/2} = 0
    for distance in (0, 1, 10, 256, 5000):
        limit = h.diff(dim=-1).abs().amax(-1) * bound(torch.tensor([distance]), head_dim) * head_dim / 2
        assert (score(q, k, distance, 0, "interleaved").abs() <= limit).all()


def test_the_scores_of_random_vectors_decay_at_no_distance():
    """Claim: far tokens get smaller scores. Not for random q and k: mean 0, standard deviation √d at every distance.

    The score of q = k = 1 does fall, and is below 0 from distance 1,707 on at d = 128.
    """
    q, k = draw(4000, 32), draw(4000, 32, seed=1)
    for distance in (0, 10, 1000, 100_000):
        scores = score(q, k, distance, 0)
        assert abs(scores.mean().item()) < 4 * 32**0.5 / 4000**0.5
        assert abs(scores.std().item() / 32**0.5 - 1) < 0.06
    ones = phases(torch.arange(2000), ladder(128, 10000.0)).cos().sum(-1)
    assert (ones < 0).nonzero()[0].item() == 1707


# Precision


@pytest.mark.parametrize(
    "length, float32_error",
    [
        (2048, 7.007763338051642e-05),
        (32768, 0.0011943938064099408),
        (131072, 0.0044984318917046795),
        (1048576, 0.02513722608849761),
    ],
)
def test_only_float64_angles_keep_long_tables_exact(length, float32_error):
    """Claim: float32 is enough for the tables. For cos and sin, yes; for the angles they come from, no.

    Errors at the last 64 positions, d = 64: 3e-8 from float64 angles at any length; from float32 angles 7e-5 at 2k,
    1.2e-3 at 32k, 4.5e-3 at 128k, 2.5e-2 at 1M, as a float32 number's last digit grows with it.
    """
    errors = FIGURES["table_errors"](length - 1)
    assert errors["float64 angles, cast to float32"].max() < 3e-8  # half a unit in the last place below 1
    assert abs(errors["float32 angles"].max().item() / float32_error - 1) < 0.02
    assert errors["bfloat16 angles"].max() > 1.9


def test_bfloat16_angles_make_positions_collide():
    """Claim: positions may be computed in the model's dtype. Not in bfloat16, with its 8 significant bits.

    The first 2,048 positions are 641 different numbers in bfloat16: up to nine neighbours share their angles. Near
    position 2,047 the error is up to 1.999, where 2 is the largest there can be.
    """
    numbers, shared_by = torch.arange(2048).bfloat16().unique(return_counts=True)
    assert len(numbers) == 641 and shared_by.max() == 9
    assert FIGURES["table_errors"](2047)["bfloat16 angles"].max() > 1.99


def said_in_a_pass(model, positions, **precision):
    """What the hooks of a scheme return while the model runs, as a list of tensors."""
    said, tensors = [], []
    for name in ("embedding", "rotation", "key_rotation", "bias", "temperature"):
        hook = getattr(model.position, name)
        setattr(model.position, name, lambda *args, hook=hook: said.append(hook(*args)) or said[-1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, **precision):
        model(torch.zeros(1, len(positions), dtype=torch.long), positions=positions[None])
    while said:
        each = said.pop()
        said += each if isinstance(each, list | tuple) else []
        tensors += [each] if torch.is_tensor(each) else []
    return tensors


def test_no_dtype_of_model_or_autocast_reaches_the_positions(scheme, tiny_model):
    """Claim: a bfloat16 model has bfloat16 positions. Not here: the hooks give float32, bit for bit the same."""
    models = [tiny_model(scheme, torch.float32) for _ in range(3)]
    positions = torch.tensor([0, 1, 7, 2047, 32_767, 131_071, 1_048_575])
    positions = positions.clamp(max=(models[0].position.max_length or 2**30) - 1)
    expected = said_in_a_pass(models[0], positions, enabled=False)
    under_autocast = said_in_a_pass(models[1], positions)
    in_bfloat16 = said_in_a_pass(models[2].bfloat16(), positions, enabled=False)
    for want, *got in zip(expected, under_autocast, in_bfloat16, strict=True):
        assert want.dtype == torch.float32 and all(torch.equal(want, tensor) for tensor in got)


# Attention and order


def test_unmasked_attention_without_positions_is_permutation_equivariant():
    """Claim: attention without positions does not know the order. Vaswani et al. 2017, section 3.5. Holds unmasked.

    Equivariant, not invariant: the outputs are permuted as the inputs are. A causal mask ends it.
    """
    layer, x, order = attention("none"), draw(1, 6, 32), torch.tensor([3, 0, 5, 1, 4, 2])
    everything = torch.ones(6, 6, dtype=torch.bool)
    results = {}
    for name, mask in (("unmasked", everything), ("causal", None)):
        y, permuted = (layer(z, AttentionInputs(0, mask=mask)) for z in (x, x[:, order]))
        results[name] = difference(permuted, y[:, order]), difference(permuted, y)
    assert results["unmasked"][0] < 1e-12 and results["unmasked"][1] > 0.01
    assert results["causal"][0] > 0.01
    rotation = build_position(config()).rotation(torch.arange(6))  # and with positions it does not hold even unmasked
    y, permuted = (attention()(z, AttentionInputs(0, turns=waves(rotation), mask=everything)) for z in (x, x[:, order]))
    assert difference(permuted, y[:, order]) > 0.01


@pytest.mark.parametrize("attention_kind", ["softmax", "linear"])
def test_a_causal_stack_without_encoding_knows_order_from_layer_two(attention_kind):
    """Claim: without an encoding a decoder cannot know the order. Haviv et al. 2022: a causal one can, from layer two.

    Swap two early tokens: with one layer the last token cannot tell, with two it can.
    """
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 5, 6]])
    for layers in (1, 2, 3):
        model = transformer("none", num_hidden_layers=layers, attention=attention_kind)
        with torch.no_grad():
            one, swapped = model(ids)[:, -1]
        assert (difference(one, swapped) < SAME) if layers == 1 else (difference(one, swapped) > CHANGED)


@pytest.mark.parametrize("scheme", POSITIONS)
def test_only_absolute_schemes_count_equal_tokens(scheme):
    """Claim: relative schemes tell the model where it is. Not among equal tokens, where softmax mixes equal values.

    So a run of one token looks the same everywhere, unless something is added to the embeddings. Holds at any depth.
    """
    model = transformer(scheme)
    with torch.no_grad():
        logits = model(torch.full((1, 8), 3))[0]
    absolute = model.position.embedding(torch.arange(8)) is not None
    assert (difference(logits[:1], logits) > CHANGED) if absolute else (difference(logits[:1], logits) < SAME)


def test_a_shift_by_1000_is_seen_by_absolute_schemes_alone(scheme, tiny_model):
    """Claim: relative schemes do not see a shift of the whole text. Holds: logits stay for none, rope, alibi and t5.

    Those of sinusoidal, learned and fire, past its threshold, change. Each class says which it is.
    """
    options = {"max_length": 2048} if "max_length" in POSITIONS[scheme].Options.model_fields else {}
    model = tiny_model({"scheme": scheme, **options}, max_position_embeddings=16)
    ids, positions = tokens(2, 12), torch.arange(12).expand(2, -1)
    with torch.no_grad():
        change = difference(model(ids, positions=positions + 1000), model(ids, positions=positions))
        assert difference(model(ids, positions=positions), model(ids)) < SAME
    assert (change < SAME) if model.position.shift_invariant else (change > 10 * SAME)


def test_every_scheme_but_none_sees_the_distance(scheme, tiny_model):
    """Claim: each scheme tells near tokens from far ones. Holds already in a single layer, but for none."""
    model = tiny_model(scheme, num_hidden_layers=1)
    with torch.no_grad():
        one, swapped = model(torch.tensor([[1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 5, 6]]))[:, -1]
    acts = model.position.overrides("embedding", "rotation", "bias", "content_bias")  # a temperature is no distance
    assert (difference(one, swapped) > 10 * SAME) if acts else (difference(one, swapped) < SAME)


# Caches


@pytest.mark.parametrize("scheme", POSITIONS)
def test_a_shared_prefix_has_the_same_keys_and_values(scheme):
    """Claim: RoPE makes prefix caching possible. Every causal scheme does: a prefix that starts at 0 sees no tail."""
    model, ids, caches = transformer(scheme), tokens(2, 10), []
    ids[1, :6] = ids[0, :6]
    with torch.no_grad():
        for row in ids:
            model(row[None], cache := Cache())
            caches.append(cache.layers)
    for layer in range(2):
        for n, (one, other) in enumerate(zip(*(cache[layer] for cache in caches))):
            assert difference(one[:, :, :6], other[:, :, :6]) < 1e-6
            assert n > 1 or difference(one[:, :, 6:], other[:, :, 6:]) > CHANGED  # what else is kept may start constant


@LAYOUTS
def test_cached_keys_can_be_turned_on(layout):
    """Claim: cached keys turned by Δ are the keys at p + Δ. Holds: R_Δ R_p = R_{p+Δ}; this is what RoPE adds.

    In the first layer it holds whatever stands before. In the later ones only if all that stands before moves along:
    behind another prefix their keys are others. Cached keys have pairs side by side, in either layout.
    """
    model, chunk, offset = transformer({"scheme": "rope", "layout": layout}), tokens(1, 6), 9
    alone, shifted, behind = Cache(), Cache(), Cache()
    with torch.no_grad():
        model(chunk, alone)
        model(chunk, shifted, positions=torch.arange(6)[None] + offset)
        model(torch.cat((tokens(1, offset, seed=1), chunk), dim=1), behind)
        rotation = model.position.rotation(torch.tensor([offset]))
        for layer in range(2):
            keys, values = alone.layers[layer]
            moved = rotate(keys.transpose(1, 2), waves(rotation), "interleaved").transpose(1, 2)
            assert difference(moved, shifted.layers[layer][0]) < 1e-5
            assert difference(values, shifted.layers[layer][1]) < 1e-5
            assert difference(keys, shifted.layers[layer][0]) > CHANGED
            change = difference(moved, behind.layers[layer][0][:, :, offset:])
            assert (change < 1e-5) if layer == 0 else (change > CHANGED)


def test_is_causal_with_a_filled_cache_attends_to_position_0_alone():
    """Claim: is_causal is right for decoding. It is not: torch aligns the mask top left, so one query sees one key.

    The product gives no is_causal to a single query, and a mask to several that meet a filled cache.
    """
    q, k, v = draw(1, 1, 1, 8), draw(1, 1, 5, 8, seed=1), draw(1, 1, 5, 8, seed=2)
    assert difference(F.scaled_dot_product_attention(q, k, v, is_causal=True), v[:, :, :1]) < 1e-12
    assert difference(F.scaled_dot_product_attention(q, k, v), v[:, :, :1]) > CHANGED

    model, ids = transformer(), tokens(1, 9)
    with torch.no_grad():
        expected, cache = model(ids), Cache()
        chunks = [model(chunk, cache) for chunk in ids.split([4, 1, 3, 1], dim=1)]
    assert difference(torch.cat(chunks, dim=1), expected) < SAME


def test_dynamic_ntk_mixes_bases_in_a_cache():
    """Claim: the base may grow with the sequence. Not with rotated keys in the cache: they were turned by another θ.

    A query by base 40,000 against keys by base 10,000 no longer sees the distance alone. So the product refuses it.
    """
    scores = [score(Q, K, n + 7, n, q_base=40000.0).item() for n in (0, 100, 1000)]
    assert max(scores) - min(scores) > 1
    scores = [score(Q, K, n + 7, n, q_base=40000.0, k_base=40000.0).item() for n in (0, 100, 1000)]
    assert max(scores) - min(scores) < 1e-5
    with pytest.raises(ValidationError, match="dynamic"):
        config({"scheme": "rope", "scaling": {"rope_type": "dynamic", "factor": 4}})


# One scheme each


def test_a_learned_table_ends():
    """Claim: a learned table has no vector past its end. Holds: an error, never the last row again."""
    model = transformer({"scheme": "learned", "max_length": 16}, max_position_embeddings=16)
    with torch.no_grad():
        model(tokens(1, 16), cache := Cache())
        for call in (
            lambda: model(tokens(1, 17)),
            lambda: model(tokens(1, 1), cache),
            lambda: model(tokens(1, 1), positions=torch.tensor([[16]])),
        ):
            with pytest.raises(IndexError, match="position 16 lies past the 16 positions that learned has"):
                call()


def test_log_theta_cannot_change_its_sign():
    """Claim: θ may be trained as it is. It may not: one Adam step at 3e-4 turns the three slowest pairs round.

    The last θ is 1.3e-4 (d = 64). As a drift of log θ, even a step of 1 leaves all θ positive, and the start is bit
    for bit that of rope.
    """
    raw = nn.Parameter(FIGURES["frequencies"](64).float())
    raw.grad = torch.ones_like(raw)
    torch.optim.Adam([raw], lr=3e-4).step()
    assert (raw < 0).sum() == 3 and raw[-1] < 0

    scheme, position = build_position(config("learned_theta", head_dim=64)), torch.tensor([1])
    fixed = build_position(config("rope", head_dim=64))
    long = torch.arange(2048)
    assert all(torch.equal(x, y) for x, y in zip(scheme.rotation(long), fixed.rotation(long), strict=True))
    for rate in (3e-4, 1.0):
        scheme.zero_grad()
        scheme.rotation(position)[1].sum().backward()  # the sine at 1 grows with each θ, so the step makes θ smaller
        torch.optim.Adam(scheme.parameters(), lr=rate).step()
        cos, sin = scheme.rotation(position)
        assert (torch.atan2(sin, cos) > 0).all()
    assert scheme.metrics()["theta_drift"] == pytest.approx([1.0003] * 32, abs=1e-4)
    assert (torch.atan2(sin, cos) < 0.5 * torch.atan2(*reversed(fixed.rotation(position)))).all()


def test_alibi_is_added_after_the_scaling():
    """Claim: the score is q·k/√d − slope·(m − n). Press et al. 2022, section 3. Holds: the slope is not divided by √d.

    Slopes are 2^(−8h/H) for a power of two; for other numbers of heads some of the next power's are put behind.
    """
    slopes = {
        4: [0.25, 0.0625, 0.015625, 0.00390625],
        6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
        12: [2.0**-h for h in range(1, 9)] + [2.0 ** -(h + 0.5) for h in range(0, 4)],
    }
    for heads, expected in slopes.items():
        assert Alibi.slopes(heads) == pytest.approx(expected, rel=1e-15)

    layer, x, positions = attention("alibi"), draw(1, 5, 32), torch.arange(5)
    distance = (positions[:, None] - positions).double()
    bias = build_position(config("alibi")).bias(positions, positions)
    assert difference(bias, -torch.tensor(slopes[4]).double()[:, None, None] * distance) == 0
    qk, v = layer.projected(x)
    q, k, v = (t.transpose(1, 2) for t in (*layer.apart(qk), v))
    scores = q @ k.repeat_interleave(2, dim=1).mT / 8**0.5 + bias
    weights = scores.masked_fill(distance < 0, float("-inf")).softmax(-1)
    expected = layer.o_proj((weights @ v.repeat_interleave(2, dim=1)).transpose(1, 2).flatten(-2))
    mask = bias.double().masked_fill(distance < 0, float("-inf"))
    assert difference(layer(x, AttentionInputs(0, mask=mask)), expected) < 1e-6


def test_t5_distances_share_buckets_that_grow():
    """Claim: 16 single distances, then 16 ranges up to 128, then one bucket. Raffel et al. 2020, section 2.1. Holds."""
    first = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    buckets = T5.buckets(torch.arange(1001), 32, 128)
    assert [buckets.tolist().index(bucket) for bucket in range(32)] == first
    assert (buckets.diff() >= 0).all() and buckets[-1] == 31


def test_the_normalizer_of_linear_attention_stays_unrotated():
    """Claim: rotate queries and keys of linear attention, and done. Su et al. 2021, equation 19: in the numerator only.

    Rotated weights may be negative, and so may their sum; φ = elu + 1 keeps the unrotated sum positive.
    """
    layer, x = attention(kind=LinearAttention, num_key_value_heads=4), 3 * draw(1, 12, 32)
    x[:, 0] *= 10  # a first token with large keys, which the others see turned
    rotation = build_position(config()).rotation(torch.arange(12))
    qk, v = layer.projected(x)
    q, k, v = (t[0].transpose(0, 1) for t in (*layer.apart(qk), v))
    q, k = F.elu(q) + 1, F.elu(k) + 1  # (heads, T, head_dim)
    matrices = torch.stack([rotation_matrix(m, 8) for m in range(12)])
    turned_q, turned_k = (torch.einsum("tij,htj->hti", matrices, to_interleaved(z)) for z in (q, k))
    weights, plain = (turned_q @ turned_k.mT).tril(), (q @ k.mT).tril()
    assert weights.min() < 0 and weights.sum(-1).min() < 0 and (plain.sum(-1) > 0).all()
    expected = (weights @ v) / plain.sum(-1, keepdim=True)
    expected = layer.o_proj(expected.transpose(0, 1).flatten(-2))[None]
    assert difference(layer(x, AttentionInputs(0, turns=waves(rotation))), expected) < 1e-5
    rotated_sum = layer.o_proj(((weights @ v) / weights.sum(-1, keepdim=True)).transpose(0, 1).flatten(-2))[None]
    assert difference(rotated_sum, expected) > CHANGED


def test_keys_of_xpos_overflow_float32():
    """Claim: xPos reaches any length. Sun et al. 2023. Not with rotated keys in a cache: they grow by 3.5^(n/512).

    At 16,384 tokens that is 2.6e17; from n = 36,261 on it is no number of float32. So here the scheme has an end.
    """
    scheme = build_position(config("xpos"))
    for position, finite in ((36_260, True), (36_261, False)):
        cos, sin = scheme.key_rotation(torch.tensor([position]))
        assert (cos.isfinite().all() and sin.isfinite().all()) == finite
    size = torch.hypot(*(wave.double() for wave in scheme.key_rotation(torch.tensor([16_384]))))
    assert abs(size[0, 0].item() / 2.5714460626335715e17 - 1) < 1e-6
    assert scheme.max_length < 36_260


@torch.no_grad()
def test_the_power_of_kerple_at_one_is_alibi():
    """Claim: KERPLE contains ALiBi. Chi et al. 2022, section 4. Holds: −r_1 (m − n) with r_1 the slopes, here trained."""
    kerple, alibi, ids = transformer({"scheme": "kerple", "kind": "power"}), transformer("alibi"), tokens(2, 40)
    kerple.position.log_r1.copy_(torch.tensor(Alibi.slopes(4)).log())
    kerple.position.free_r2.zero_()  # half of 2
    assert difference(kerple(ids), alibi(ids)) < SAME
    kerple.position.free_r2.fill_(-1.0)
    assert difference(kerple(ids), alibi(ids)) > CHANGED


@torch.no_grad()
def test_fire_sees_a_shift_past_its_threshold():
    """Claim: FIRE is a relative scheme. Li et al. 2024. Up to its threshold, which starts at the trained length.

    Past it distances are divided by what grows with the position of the query, so that all lie between 0 and 1.
    """
    position = build_position(config("fire", max_position_embeddings=64))
    for seed, parameter in enumerate(position.parameters()):
        if parameter.numel() > 1:  # not c and the threshold
            parameter.copy_(draw(*parameter.shape, seed=seed))
    here, near, far = (
        position.bias(start + torch.arange(20), start + torch.arange(20)).tril() for start in (0, 44, 600)
    )
    assert difference(near, here) < 1e-5
    assert difference(far, here) > CHANGED


@torch.no_grad()
def test_a_window_that_holds_every_token_is_rope():
    """Claim: a sliding window limits what a model sees. Beltagy et al. 2020: each layer adds w − 1 tokens. Holds.

    One that holds the whole text is rope. Of 2 layers with 4 tokens each the last token is reached by 6 before it, and
    no further; with keep_first by the start as well; with every second layer left out by all.
    """
    ids, other = tokens(1, 20), tokens(1, 20)
    assert difference(transformer({"scheme": "window", "window": 20})(ids), transformer("rope")(ids)) < SAME

    def reach(**options):
        """Which places the last token's logits depend on."""
        model, seen = transformer({"scheme": "window", "window": 4, **options}), []
        for place in range(20):
            changed = ids.clone()
            changed[0, place] = (other[0, place] + 7) % 32
            if difference(model(changed)[0, -1], model(ids)[0, -1]) > 0:
                seen.append(place)
        return seen

    assert reach() == reach(rotate=False) == [*range(13, 20)]
    assert reach(keep_first=1) == [0, *range(13, 20)]
    assert reach(every=[0]) == [*range(20)]


@torch.no_grad()
def test_pope_is_largest_at_distance_zero():
    """Claim: in PoPE the angle says where and nothing else. Gopalakrishnan et al. 2025. Holds: at δ = 0 |score| ≤ score(0).

    Under RoPE the angle between query and key moves the peak: for 87 % of random q and k the score at some distance up
    to 8 is above that at 0.
    """
    scheme, q, k = build_position(config("pope")), draw(500, 1, 1, 8), draw(500, 1, 1, 8, seed=1)
    q_wide, k_wide = scheme.features(0, q, k.expand(-1, -1, 2, -1))
    at = [
        rotate(q_wide, waves(scheme.rotation(torch.tensor([m]))), "interleaved")
        * rotate(k_wide[:, :, :1], waves(scheme.rotation(torch.tensor([0]))), "interleaved")
        for m in range(9)
    ]
    scores = torch.stack([each.sum((1, 2, 3)) for each in at])
    assert (scores[1:].abs() < scores[0]).all()
    rope = torch.stack([score(q[:, 0, 0], k[:, 0, 0], m, 0) for m in range(9)])
    assert abs((rope[1:].amax(0) > rope[0]).double().mean().item() - 0.868) < 1e-9


# Bias from content


def scores_of(position, q, k, x):
    """Scores (B, heads, T, T) of a scheme's first layer, masked, for q (B, heads, T, d), k and x."""
    places = torch.arange(x.shape[1])
    kept = position.kept(0, x)
    shared = position.shared(0, q, k, places, places, *kept)
    bias = position.content_bias(0, x, q, k, places, places, *kept, *shared)
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return (q @ keys.mT / q.shape[-1] ** 0.5 + bias).masked_fill(torch.ones(bias.shape[-2:]).triu(1) > 0, float("-inf"))


def drawn(scheme, **options):
    """A scheme in float64 with parameters of order 1, and q, k and x for it."""
    position = build_position(config({"scheme": scheme, **options})).double()
    with torch.no_grad():
        for seed, parameter in enumerate(position.parameters()):
            parameter.copy_(0.5 * draw(*parameter.shape, seed=seed))
    return position, draw(1, 4, 9, 8, seed=91), draw(1, 2, 9, 8, seed=92), draw(1, 9, 32, seed=93)


@torch.no_grad()
def test_fox_with_constant_gates_is_alibi():
    """Claim: forgetting gates are a data-dependent ALiBi. Lin et al. 2025, section 3. Holds: log f_h = −slope_h gives it.

    With b at 0 the gates start at ½, a slope of 0.69, and half of the weight lies on the token itself where all keys are
    alike; with b at 5 it is on the nearest 104.
    """
    fox, alibi, ids = transformer("fox"), transformer("alibi"), tokens(2, 40)
    slopes = torch.tensor(Alibi.slopes(4))
    for gate, b in zip(fox.position.gates, fox.position.b):
        gate.weight.zero_()
        b.copy_(-slopes - (-torch.expm1(-slopes)).log())  # σ(b) = e^−slope
    assert difference(fox(ids), alibi(ids)) < SAME
    fox.position.b.zero_()
    assert difference(fox(ids), alibi(ids)) > CHANGED
    for start, nearest in ((0.0, 1), (5.0, 104)):
        f = torch.tensor(start, dtype=torch.float64).sigmoid()
        share = (f ** torch.arange(10_000)).cumsum(0) * (1 - f)
        assert int((share < 0.5 - 1e-12).sum()) + 1 == nearest


@torch.no_grad()
def test_transformer_xl_needs_no_bias_but_more_channels():
    """Claim: relative attention needs a (T, T) bias. It does not: Dai et al.'s is a plain product over more channels.

    With (s, c) = W_Rᵀ(q + v): (q + u, c sin mθ − s cos mθ, s sin mθ + c cos mθ) · (k, sin nθ, cos nθ), exactly.
    """
    position, q, k, x = drawn("transformer_xl")
    w, keys = position.projections[0].weight.unflatten(0, (4, 8)), k.repeat_interleave(2, dim=1)
    s, c = ((q + position.v[:, None]) @ w).chunk(2, dim=-1)
    phi = phases(torch.arange(9), ladder(32, 10000.0))
    sin, cos = phi.sin(), phi.cos()
    wide_q = torch.cat((q + position.u[:, None], c * sin - s * cos, s * sin + c * cos), dim=-1)
    wide_k = torch.cat((keys, *(t.expand(1, 4, -1, -1) for t in (sin, cos))), dim=-1)
    wide = F.scaled_dot_product_attention(
        wide_q, wide_k, x[:, None].expand(-1, 4, -1, -1), is_causal=True, scale=8**-0.5
    )
    expected = scores_of(position, q, k, x).softmax(-1) @ x[:, None]
    assert wide_q.shape[-1] == 8 + 32 and difference(wide, expected) < 1e-12
    plain = F.scaled_dot_product_attention(q, keys, x[:, None].expand(-1, 4, -1, -1), is_causal=True)
    assert difference(plain, expected) > CHANGED


@torch.no_grad()
def test_the_two_forms_of_deberta_differ_in_a_decoder():
    """Claim: the third term is looked up at δ(n, m). He et al. 2021, equation 4, as printed; their code has δ(m, n).

    Under a causal mask, where n ≤ m, the printed form reads the lower half of a table of 2κ rows and the second term
    the upper: the two would share one row. Here both read the same κ rows, by m − n.
    """
    kappa, distance = 4, torch.arange(9)[:, None] - torch.arange(9)
    seen = [(sign * distance).clamp(-kappa, kappa - 1)[distance >= 0] + kappa for sign in (1, -1)]
    assert set(seen[0].tolist()) == {4, 5, 6, 7} and set(seen[1].tolist()) == {0, 1, 2, 3, 4}

    position, q, k, x = drawn("deberta", rows=kappa)
    keys = k.repeat_interleave(2, dim=1)
    to_k, to_q = (w[0].weight.unflatten(0, (4, 8)) for w in (position.to_keys, position.to_queries))

    def scores(sign):
        rows = torch.cat((position.table.weight.flip(0), position.table.weight))  # κ more for n after m
        row = [(each * distance).clamp(-kappa, kappa - 1) + kappa for each in (1, sign)]
        content = torch.einsum("bhmd,hde,mne->bhmn", q, to_k, rows[row[0]])
        place = torch.einsum("bhnd,hde,mne->bhmn", keys, to_q, rows[row[1]])
        return (q @ keys.mT + content + place) / 24**0.5

    scaled, _ = position.features(0, q, k)  # by 1/√3
    got, mask = scores_of(position, scaled, k, x), distance >= 0
    assert difference(got[..., mask], scores(1)[..., mask]) < 1e-12
    assert difference(got[..., mask], scores(-1)[..., mask]) > CHANGED


@torch.no_grad()
def test_cope_before_and_after_the_scaling_are_two_functions():
    """Claim: q·e is added to the scores. Golovneva et al. 2024. Their code adds it before 1/√d, other code after it.

    Here as theirs. With the same e the two differ; with √d · e in one place of the two they are one.
    """
    position, q, k, x = drawn("cope", npos=4)
    plain = (q @ k.repeat_interleave(2, dim=1).mT / 8**0.5).masked_fill(torch.ones(9, 9).triu(1) > 0, float("-inf"))
    got, seen = scores_of(position, q, k, x), torch.ones(9, 9).tril() > 0
    gates = torch.where(seen, plain.sigmoid(), 0.0)
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=3)
    e = torch.einsum("bhmd,pd->bhmp", q, position.e[0])
    share = (1 - (counts[..., None] - torch.arange(4)).abs()).clamp(min=0)  # of each row: those beside the count
    added = (share * e[..., None, :]).sum(-1)
    before, after = plain + added / 8**0.5, plain + added
    assert difference(got[..., seen], before[..., seen]) < 1e-12
    assert difference(got[..., seen], after[..., seen]) > CHANGED
    position.e.mul_(8**0.5)
    assert difference(scores_of(position, q, k, x)[..., seen], after[..., seen]) < 1e-12


def test_accumulated_constant_angles_are_rope():
    """Claim: angles that add up token by token contain RoPE. arXiv 2511.17388, 2606.24975. Holds: constant steps are it.

    Steps that depend on the tokens are another function; scores see only what was added between the two.
    """
    q, k = draw(6, 1, 8), draw(6, 1, 8, seed=1)

    def accumulated(steps):
        phi = steps.cumsum(dim=0)
        turned = (rotate(x, waves((phi.cos(), phi.sin())), "interleaved")[:, 0] for x in (q, k))
        return torch.einsum("md,nd->mn", *turned)

    theta, steps = ladder(8, 10000.0).expand(6, -1), draw(6, 4, seed=2)
    rope = torch.tensor([[score(q[m, 0], k[n, 0], m, n, "interleaved").item() for n in range(6)] for m in range(6)])
    assert difference(accumulated(theta), rope) < 1e-5
    assert difference(accumulated(steps), rope) > CHANGED
    early = steps.clone()
    early[:3] += 1  # all that stands before token 3
    assert difference(accumulated(early)[3:, 3:], accumulated(steps)[3:, 3:]) < 1e-12


# Temperature


@torch.no_grad()
@pytest.mark.parametrize("kind, sees", [("ssmax", True), ("log", True), ("floor", True), ("constant", False)])
def test_a_temperature_sees_a_shift(kind, sees):
    """Claim: RoPE with scalable softmax is relative. Nakanishi 2025, equation 3. Not: log n counts from the start.

    So does each temperature that is no constant: a model can tell from it how long the text is, at equal tokens too.
    """
    options = {"log": {"length": 16}, "floor": {"length": 16}, "constant": {"value": 2.0}, "ssmax": {}}[kind]
    model = transformer({"scheme": "rope", "temperature": {"kind": kind, **options}})
    ids, positions = tokens(2, 12), torch.arange(12).expand(2, -1)
    change = difference(model(ids, positions=positions + 1000), model(ids, positions=positions))
    assert (change > 0.01) if sees else (change < SAME)


# Longer than trained


@pytest.mark.parametrize(
    "rope_type, expected",
    [
        ("linear", {0: 0.25, 8: 0.025, 16: 0.0025, 31: 3.33380358040831e-05}),
        ("ntk", {0: 1.0, 8: 0.06992454992116262, 16: 0.004889442681677164, 31: 3.3338035804083106e-05}),
        ("yarn", {0: 1.0, 8: 0.1, 16: 0.005384615384615384, 20: 0.0009730085108210397, 31: 3.33380358040831e-05}),
    ],
)
def test_scaled_frequencies(rope_type, expected):
    """Claim: linear divides every θ by s, ntk changes the base, yarn blends. Chen, bloc97, Peng et al. 2023. Holds."""
    theta = FIGURES["frequencies"](64, scaling={"rope_type": rope_type, "factor": 4})
    for i, value in expected.items():
        assert abs(theta[i].item() / value - 1) < 1e-12


def test_llama3_divides_long_waves_alone():
    """Claim: waves shorter than L/4 keep θ, those longer than L get θ/s, the rest a blend. Llama 3.1, 2024. Holds.

    At d = 128, base 500,000, L = 8,192 and s = 8: 29 pairs keep θ, 6 lie between, 29 get θ/8.
    """
    options = {"base": 500000, "scaling": {"rope_type": "llama3", "factor": 8}}
    theta, plain = FIGURES["frequencies"](128, 8192, **options), FIGURES["frequencies"](128, base=500000)
    ratio = theta / plain
    assert (ratio == 1).sum() == 29 and ((ratio - 1 / 8).abs() < 1e-12).sum() == 29
    assert abs(theta[29].item() / 0.002166570763503359 - 1) < 1e-12
    assert abs(theta[34].item() / 0.0001785078127679964 - 1) < 1e-12


def test_yarn_keeps_fast_pairs_and_slows_the_slow_ones():
    """Claim: high frequencies keep θ, low ones get θ/s. Peng et al. 2023, section 3.2. Holds.

    One library has the ramp the wrong way round. From pair 8 to 21 it is linear in the index (d = 64, L = 2,048),
    and cos and sin are multiplied by 0.1 ln s + 1 = 1.1386 for s = 4.
    """
    scaling = {"rope_type": "yarn", "factor": 4}
    ratio = FIGURES["frequencies"](64, scaling=scaling) / FIGURES["frequencies"](64)
    assert difference(ratio[:9], torch.ones(9)) < 1e-12 and difference(ratio[21:], torch.full((11,), 0.25)) < 1e-12
    assert (ratio[8:22].diff() + 0.75 / 13).abs().max() < 1e-12
    scheme = FIGURES["rotary"](64, scaling=scaling)
    assert abs(scheme.rotation(torch.tensor([0]))[0].min().item() - 1.138629436111989) < 1e-6


def test_partial_rotation_is_two_different_things():
    """Claim: "half of the head is rotated" says what a model does. It does not: neox and p_rope differ.

    GPT-NeoX spreads the whole ladder over the first half of the channels; p-RoPE (Barbero et al. 2024) keeps the
    ladder and stops its slowest pairs. Both turn 16 of 32 pairs, down to 1.8e-4 and to 1.3e-2 radians per token.
    """
    neox, p_rope = ({"fraction": 0.5, "partial": name} for name in ("neox", "p_rope"))
    theta = FIGURES["frequencies"](64, **neox)
    assert len(theta) == 16 and abs(theta[-1].item() / 0.00017782794100389227 - 1) < 1e-12
    theta = FIGURES["frequencies"](64, **p_rope)
    assert len(theta) == 32 and (theta[16:] == 0).all() and abs(theta[15].item() / 0.01333521432163324 - 1) < 1e-12

    ids = tokens(1, 12)
    with torch.no_grad():
        whole, *halves = (transformer({"scheme": "rope", **options})(ids) for options in ({}, neox, p_rope))
    assert difference(halves[0], halves[1]) > CHANGED
    assert all(difference(whole, half) > CHANGED for half in halves)
    x = draw(1, 3, 2, 64)
    rotated = rotate(x, waves(FIGURES["rotary"](64, **neox).rotation(torch.arange(3))))
    assert torch.equal(rotated[..., 32:], x[..., 32:])  # neox leaves the last channels alone
    rotated = rotate(x, waves(FIGURES["rotary"](64, **p_rope).rotation(torch.arange(3))))
    assert torch.equal(to_half(rotated)[..., 16:32], x[..., 16:32])  # p_rope the last pairs, (16, 48) and on


def test_a_dropped_scheme_leaves_a_model_of_none(tiny_model, scheme):
    """Claim: positions can be dropped from a model that was trained with them. Gelberg et al. 2025 (DroPE). Holds.

    The logits are then those of `none` with the same weights, to the bit.
    """
    model, none, ids = tiny_model(scheme, torch.float32), tiny_model("none", torch.float32), tokens(2, 9)
    shared = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("position.")}
    model.drop_position()
    none.load_state_dict(shared)
    assert model.config == none.config and model.position.max_length is None
    assert model.state_dict().keys() == shared.keys()
    assert torch.equal(model(ids), none(ids))


# The prose


def test_the_docs_name_every_claim_and_picture():
    """Code and prose cannot drift apart: same tests, same pictures, each scheme of the registry.

    A picture is under 40 kB. They are compared by name; redraw them with `python docs/figures.py`.
    """
    prose = (ROOT / "docs" / "positional-encodings.md").read_text(encoding="utf-8")
    tests = {name for name in globals() if name.startswith("test_")}
    assert set(re.findall(r"`(test_\w+)`", prose)) == tests
    pictures = {f"figures/{name}.svg" for name in FIGURES["DRAWINGS"]}
    assert set(re.findall(r"\((figures/[^)]+)\)", prose)) == pictures
    assert {f"figures/{path.name}" for path in (ROOT / "docs" / "figures").iterdir()} == pictures
    assert all((ROOT / "docs" / path).stat().st_size < 40_000 for path in pictures)
    for scheme in POSITIONS:
        assert f"`{scheme}`" in prose


def test_the_docs_give_every_option_and_its_default():
    """The YAML blocks of the docs are valid, one for each scheme, with all options at their defaults."""
    prose = (ROOT / "docs" / "positional-encodings.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.+?)```", prose, flags=re.DOTALL)
    shown = {options["scheme"]: options for options in yaml.safe_load_all(block)}
    assert shown.keys() == POSITIONS.keys()
    for scheme, options in shown.items():  # what all have is shown with `none`
        assert shown["none"] | options == POSITIONS[scheme].Options(scheme=scheme).model_dump()


def test_the_docs_give_every_temperature_and_its_options():
    """The same for the kinds of temperature and of scaling."""
    prose = (ROOT / "docs" / "positional-encodings.md").read_text(encoding="utf-8")
    for union, named in ((AnyTemperature, "| `{}` |"), (AnyScaling, "| {} (")):
        for method in get_args(get_args(union)[0]):
            (name,) = get_args(method.model_fields.get("kind", method.model_fields.get("rope_type")).annotation)
            assert named.format(name) in prose
            for option in method.model_fields.keys() - {
                "kind",
                "rope_type",
                "factor",
                "original_max_position_embeddings",
            }:
                assert f"`{option}`" in prose
