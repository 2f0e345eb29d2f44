"""Position maths against numbers that an independent float64 program computed."""

import math

import pytest
import torch

from model.attention import rotate, waves
from model.config import ModelConfig
from model.position import build_position
from model.transformer import Transformer

LARGE = [0, 1, 7, 2047, 32_767, 131_071, 1_048_575]

Q = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
K = [0.8, -0.7, 0.6, -0.5, 0.4, -0.3, 0.2, 0.9]
ROTATED_Q = {  # half layout, head_dim 8, base 10,000
    0: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    1: [-3.667052618171343, 1.3910078306750826, 2.9298511679108294, 3.9919980013335]
    + [3.542982514148595, 6.169691824961811, 7.029649502919157, 8.003995999333666],
    7: [-2.5310307392506406, -2.33562174885717, 2.5030530693971094, 3.943902457732379]
    + [4.426497870435313, 5.877488498182313, 7.192685543785555, 8.027803772134225],
    1000: [-3.5720186263693097, 4.762831591233921, 1.2909331889962314, -4.570558654990613]
    + [3.6387749219855174, 4.1611819515065855, -7.5055640362032765, 7.688302386176704],
}
ROTATED_K = {
    7: [0.3403271639871281, -0.34212422492783445, 0.5845420306844611, -0.5062876986001468]
    + [0.8271501807123531, -0.6804050372517303, 0.24147590845317557, 0.8964779786733007],
    1000: [0.11915144481976137, -0.7555329029343063, -0.3946386952679975, -1.027475039261177]
    + [0.8864552629418833, 0.09576028709052598, -0.49422697234891233, 0.06553658287737757],
}
SCORES = {  # (m, n): q_m · k_n in the half layout, in the interleaved layout
    (7, 0): (7.810904347968927, 3.9305941802688693),
    (0, 7): (8.300029880394273, 12.457385241427398),
    (1007, 1000): (7.810904347968942, 3.9305941802688613),
    (5, 5): (8.0, 8.0),
    (1000, 7): (5.4819923571508005, 12.792741771156969),
}


def scheme_of_width(width, **options):
    shape = dict(vocab_size=8, hidden_size=width, num_attention_heads=1, num_hidden_layers=1)
    return build_position(ModelConfig(**shape, position=options))


def rotated(x, position):
    return rotate(
        x.expand(1, 1, -1), waves(scheme_of_width(8, scheme="rope").rotation(torch.tensor([position])))
    ).flatten()


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def tensors_in(found):
    """Those in nested lists and tuples, in order."""
    if isinstance(found, list | tuple):
        return [tensor for each in found for tensor in tensors_in(each)]
    return [] if found is None else [found]


def hooks(position, positions):
    """All that a scheme says of positions alone, as a list of tensors."""
    of_positions = position.embedding, position.rotation, position.key_rotation, position.temperature
    return tensors_in([position.bias(positions, positions), *(hook(positions) for hook in of_positions)])


@pytest.mark.parametrize("name", ["rope", "learned_theta"])
@pytest.mark.parametrize(
    "head_dim, base, expected",
    [
        (8, 1e4, {0: 1.0, 1: 0.1, 2: 0.01, 3: 0.001}),
        (16, 1e4, {0: 1.0, 1: 0.31622776601683794, 2: 0.1, 3: 0.03162277660168379, 7: 0.00031622776601683794}),
        (32, 1e4, {0: 1.0, 1: 0.5623413251903491, 7: 0.01778279410038923, 15: 0.00017782794100389227}),
        (64, 1e4, {0: 1.0, 1: 0.7498942093324559, 16: 0.01, 31: 0.0001333521432163324}),
        (128, 1e4, {0: 1.0, 1: 0.8659643233600653, 15: 0.11547819846894582, 63: 0.00011547819846894582}),
        (128, 5e5, {0: 1.0, 1: 0.8146172338565447, 4: 0.44036660267178046, 63: 2.455140791131609e-06}),
    ],
)
def test_inverse_frequencies_are_the_reference(name, head_dim, base, expected):
    """d is the head's width, small i turns fastest."""
    theta = scheme_of_width(head_dim, scheme=name, base=base).theta("cpu")[0]
    assert theta.shape == (head_dim // 2,)
    assert {i: theta[i].item() for i in expected} == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("vector, reference", [(Q, ROTATED_Q), (K, ROTATED_K)])
def test_rotated_vectors_are_the_reference(vector, reference):
    for position, expected in reference.items():
        # `rotate` puts the two numbers of a pair side by side; the reference has them d / 2 apart.
        in_halves = rotated(tensor(vector), position).view(4, 2).T.flatten()
        torch.testing.assert_close(in_halves, tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("m, n", SCORES)
def test_scores_are_the_reference_with_its_sign(m, n):
    """qᵀR_{m−n}k instead of qᵀR_{n−m}k, which no test with q = k can tell apart; halves mixed up with neighbours."""
    half, interleaved = SCORES[m, n]
    q, k = tensor(Q), tensor(K)
    assert rotated(q, m) @ rotated(k, n) == pytest.approx(half, abs=3e-6)
    # The interleaved reference pairs (2i, 2i+1): put those d / 2 apart, where `rotate` looks for them.
    q, k = (x.view(4, 2).T.flatten() for x in (q, k))
    assert rotated(q, m) @ rotated(k, n) == pytest.approx(interleaved, abs=3e-6)


def test_sinusoids_are_the_reference():
    def wave(width, *positions):
        scheme = scheme_of_width(width, scheme="sinusoidal", rms=0.5**0.5)  # which is the paper's scale
        return scheme.embedding(torch.tensor(positions)).double()

    expected = [-0.9589242746631385, 0.28366218546322625, 0.479425538604203, 0.8775825618903728]
    expected += [0.04997916927067833, 0.9987502603949663, 0.004999979166692708, 0.9999875000260416]
    torch.testing.assert_close(wave(8, 5)[0], tensor(expected), rtol=0, atol=1e-7)
    for s, t, width, dot in [(9, 4, 8, 3.159982507774607), (109, 104, 8, 3.159982507774607)] + [
        (t + 5, t, 64, 23.50397081044963) for t in (0, 5, 100, 1000)
    ]:
        a, b = wave(width, s, t)
        assert a @ b == pytest.approx(dot, abs=2e-6)
    for p, distance in [(44, 5.069554418939864), (710, 7.296668045735773)]:  # a single θ has 0.1 and 0.0003
        a, b = wave(64, 0, p)
        assert (a - b).norm() == pytest.approx(distance, abs=2e-6)


def test_sinusoids_are_as_large_as_the_token_embeddings(tiny_config):
    """At the 0.71 of the paper they drown embeddings of standard deviation 0.02, and rope wins for no good reason."""
    config = tiny_config("sinusoidal", initializer_range=0.02)
    waves = build_position(config).embedding(torch.arange(300))
    torch.testing.assert_close(waves.square().mean(-1).sqrt(), torch.full((300,), 0.02), rtol=1e-5, atol=0)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("name", ["rope", "learned_theta"])
def test_attention_receives_exact_angles_at_large_positions(name, precision, tiny_config):
    """Angles in bfloat16 collide (error 2.0 at position 2,047), in float32 they are off by 0.03 at 1,048,575."""
    model = Transformer(tiny_config(name)).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    received = []
    model.layers[1].self_attn.register_forward_pre_hook(lambda module, args: received.append(args[1].turns.squeeze(-2)))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        model(torch.zeros(1, len(LARGE), dtype=torch.long), positions=torch.tensor([LARGE]))
    for got, function in zip((received[0].real, received[0].imag), (math.cos, math.sin)):
        expected = tensor([[function(p * 10_000 ** (-2 * i / 8)) for i in range(4)] for p in LARGE])
        assert got.dtype == torch.float32
        torch.testing.assert_close(got[0].double(), expected, rtol=0, atol=1e-7)


def test_only_what_a_class_overrides_acts(scheme, tiny_model):
    """Two encodings at once, because one of them is on by default."""
    position, positions = tiny_model(scheme).position, torch.arange(3)
    hooks = {"embedding": 1, "rotation": 1, "key_rotation": 1, "temperature": 1, "bias": 2}
    acting = {name for name, count in hooks.items() if getattr(position, name)(*[positions] * count) is not None}
    assert acting == {name for name in hooks if position.overrides(name)}


def test_metrics_are_those_that_are_named(scheme, tiny_model):
    """One without words is in no report."""
    position = tiny_model(scheme).position
    assert position.metrics().keys() == position.measured.keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_position_parameters_are_float32_or_better(scheme, dtype, tiny_model):
    model = tiny_model(scheme, torch.float32).to(dtype)
    assert model.embed_tokens.weight.dtype == dtype
    expected = torch.promote_types(dtype, torch.float32)
    assert all(parameter.dtype == expected for parameter in model.position.parameters())


def test_rows_with_their_own_positions_get_what_each_alone_would(scheme, tiny_model):
    """As many rows as tokens: here a transposed (B, T) goes unnoticed by shapes."""
    position = tiny_model(scheme).position
    positions = torch.tensor([[0, 1, 2], [-2, -1, 0], [5, 6, 7]])
    for row in range(3):
        for batched, single in zip(hooks(position, positions), hooks(position, positions[row]), strict=True):
            torch.testing.assert_close(batched[row], single, rtol=1e-6, atol=1e-6)


def test_learned_theta_starts_as_rope_and_is_trained(tiny_config, tokens):
    ids = tokens(2, 12)
    learned, fixed = (Transformer(tiny_config(name)) for name in ("learned_theta", "rope"))
    logits = learned(ids)
    assert torch.equal(logits, fixed(ids))
    logits.square().mean().backward()
    assert (learned.position.log_theta_drift.grad != 0).all()


def test_learned_theta_cannot_change_sign(tiny_config):
    """θ itself, 1e-4 for the slowest pair, would be negative after one Adam step of 3e-4."""
    position = build_position(tiny_config("learned_theta"))
    start = position.theta("cpu")[0]
    with torch.no_grad():
        position.log_theta_drift -= 0.5
    torch.testing.assert_close(position.theta("cpu")[0], start * math.exp(-0.5), rtol=1e-12, atol=0)
