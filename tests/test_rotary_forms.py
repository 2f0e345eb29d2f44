"""The forms of the rotation that articles teach, each against `model.attention.rotate`.

`rotate` gives the two numbers of a pair side by side whatever the layout of its input, that is in interleaved
layout; the half forms below are compared after `to_interleaved`.
"""

import pytest
import torch

from model.attention import rotate, waves
from model.config import ModelConfig
from model.position import build_position
from rotary_forms import (
    BASE,
    apply_rope,
    apply_rotary_pos_emb,
    build_rope_cache,
    ladder,
    rotate_complex,
    rotate_dense,
    rotate_half,
    rotation_matrix,
    to_half,
    to_interleaved,
)
from tiny import draw


def by_table(x, positions):
    cos, sin = build_rope_cache(x.shape[-1], int(positions.max()) + 1, BASE)
    return apply_rope(x, x, cos[positions], sin[positions])[0]


INTERLEAVED = {"interleaved": apply_rotary_pos_emb, "complex": rotate_complex, "dense": rotate_dense}
FORMS = [("interleaved", form) for form in INTERLEAVED.values()] + [("half", by_table)]
SHAPES = {  # (B, T, heads, d)
    "rows": (3, 5, 2, 8),
    "T is H": (2, 4, 4, 8),
    "T is d/2": (2, 4, 2, 8),
    "B is T": (3, 3, 2, 8),
    "T is 1": (3, 1, 2, 8),
    "one pair": (1, 3, 2, 2),
}


def row_positions(batch, length):
    """(B, T): row b starts at 0, 7, 1000 …, so that no two rows and no transposition look alike."""
    return torch.tensor([0, 7, 1000])[:batch, None] + torch.arange(length)


def tables(positions, head_dim, dtype):
    """cos and sin (B, T, d / 2) for `rotate`: the product's own in float32, written out in float64."""
    if dtype == torch.float32:
        config = ModelConfig(vocab_size=8, hidden_size=2 * head_dim, num_attention_heads=2, position="rope")
        return build_position(config).rotation(positions)
    angles = positions[..., None] * ladder(head_dim)
    return angles.cos(), angles.sin()


@pytest.fixture(params=["eager", "compiled"])
def mode(request, monkeypatch):
    """`rotate` has a complex form for eager mode and a real one for the compiler; both must hold."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: request.param == "compiled")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout, form", FORMS, ids=lambda value: getattr(value, "__name__", value))
def test_each_form_equals_rotate(layout, form, shape, dtype, mode):
    """Values and gradients, in both dtypes, for rows with positions of their own and shapes that invite broadcasts."""
    positions, weights = row_positions(*shape[:2]), draw(*shape).flip(0).to(dtype)
    results = []
    for turn in (
        lambda x: rotate(x, waves(tables(positions, shape[-1], dtype)), layout),
        lambda x: to_interleaved(form(x, positions)) if layout == "half" else form(x, positions),
    ):
        x = draw(*shape, dtype=dtype).requires_grad_()
        turned = turn(x)
        (gradient,) = torch.autograd.grad((turned * weights).sum(), x)
        results.append((turned.detach(), gradient))
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    (turned, gradient), (expected, expected_gradient) = results
    assert turned.dtype == expected.dtype == dtype
    assert (turned - expected).abs().max() < tolerance
    assert (gradient - expected_gradient).abs().max() < tolerance


@pytest.mark.parametrize("layout, form", FORMS, ids=lambda value: getattr(value, "__name__", value))
def test_each_form_has_the_published_numbers(layout, form):
    """Vectors turned by an independent float64 program: a mistake that all forms share would show here."""
    x = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8.0], dtype=torch.float64).expand(1, 1, 1, 8)
    expected = {
        "interleaved": [
            -0.5600709430942735, 2.1647911074053985, -0.28234418709729936, 4.992021810851027,
            4.568097917241201, 6.335020238207341, 6.943828958032504, 8.048803600634646,
        ],
        "half": [
            -2.5310307392506406, -2.33562174885717, 2.5030530693971094, 3.943902457732379,
            4.426497870435313, 5.877488498182313, 7.192685543785555, 8.027803772134225,
        ],
    }  # fmt: skip
    difference = form(x, torch.tensor([[7]])).flatten() - torch.tensor(expected[layout], dtype=torch.float64)
    assert difference.abs().max() < 1e-13


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_positions_shared_by_all_rows(layout, mode):
    """rotate takes (T, d/2) tables for every row as well as (B, T, d/2)."""
    x, positions = draw(2, 4, 4, 8), torch.arange(4) + 3
    shared = rotate(x, waves(tables(positions, 8, torch.float64)), layout)
    assert torch.equal(shared, rotate(x, waves(tables(positions.expand(2, 4), 8, torch.float64)), layout))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_compiler_meets_the_real_form(layout):
    """No complex number reaches the compiler, which has no code for them; its result is the eager one."""
    x, positions = draw(2, 4, 2, 8, dtype=torch.float32), row_positions(2, 4)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    def turn(x, rotation):
        return rotate(x, waves(rotation), layout)

    rotation = tables(positions, 8, torch.float32)
    compiled = torch.compile(turn, backend=backend, fullgraph=True)(x, rotation)
    assert len(graphs) == 1 and "complex" not in graphs[0]
    assert (compiled - turn(x, rotation)).abs().max() < 1e-6


def test_half_precision_inputs_are_turned_in_float32(mode):
    """Only the result is rounded: float32 tables cast to bfloat16 would cost another 2^-9."""
    x, positions = draw(2, 4, 2, 8), row_positions(2, 4)
    turned = rotate(x.bfloat16(), waves(tables(positions, 8, torch.float32)))
    expected = to_interleaved(by_table(x.bfloat16().double(), positions))
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, expected.bfloat16())


def test_layout_conversions_are_inverse():
    x = torch.arange(8.0)
    assert to_interleaved(x).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert torch.equal(to_half(to_interleaved(x)), x)
    assert torch.equal(to_interleaved(rotate_half(x)), torch.tensor([-4.0, 0, -5, 1, -6, 2, -7, 3]))


# The traps of the usual snippets. Each test shows the wrong result that nobody notices, then that the form refuses.


def test_trap_table_broadcast_over_heads():
    """cos (T, d/2) against x (B, T, heads, d/2) turns by the head's index where T == heads, and is right for T == 1.

    So a test of decoding, one token at a time, passes.
    """

    def snippet(x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    for length, is_right in ((1, True), (4, False)):
        x, positions = draw(2, length, 4, 8), torch.arange(length)
        wrong_or_right = snippet(x, *tables(positions, 8, torch.float64))
        error = (wrong_or_right - by_table(x, positions.expand(2, length))).abs().max()
        assert (error < 1e-13) if is_right else (error > 1)
    cos, sin = build_rope_cache(8, 4, BASE)
    with pytest.raises(ValueError, match="are not those of x"):  # heads before tokens, as in other code
        apply_rope(x[:, :3].transpose(1, 2), x, cos[:3], sin[:3])


def test_trap_positions_past_the_table():
    """A slice past the end is empty or short, and a single row fits any number of tokens. An index raises."""
    cos, sin = build_rope_cache(8, 16, BASE)
    assert len(cos[16:20]) == 0 and len(cos[15:17]) == 1
    x = draw(1, 2, 1, 8)
    assert (x * cos[15:17]).shape == x.shape  # both tokens at position 15, without an error
    with pytest.raises(ValueError, match="are not those of x"):
        apply_rope(x, x, cos[15:17], sin[15:17])
    with pytest.raises(ValueError, match="are not those of x"):
        apply_rope(x, x, cos, sin)
    with pytest.raises(IndexError):
        cos[torch.tensor([15, 16])]


def test_trap_transposed_positions():
    """positions (T, B) raise, also where B == T hides it from the shapes."""
    for batch, length in ((3, 5), (3, 3)):
        x, positions = draw(batch, length, 2, 8), row_positions(batch, length)
        for form in INTERLEAVED.values():
            with pytest.raises(ValueError, match="positions"):
                form(x, positions.T)
            with pytest.raises(ValueError, match="positions"):
                form(x, positions[:, :1])  # one position for all tokens of a row


def test_matrix_is_a_rotation():
    """Orthogonal with determinant 1, and zero outside its 2 × 2 blocks."""
    matrix = rotation_matrix(7, 8)
    assert (matrix @ matrix.T - torch.eye(8, dtype=torch.float64)).abs().max() < 1e-15
    assert abs(torch.linalg.det(matrix).item() - 1) < 1e-14
    assert matrix[torch.block_diag(*[torch.ones(2, 2)] * 4) == 0].abs().max() == 0
