import pytest
import torch

from configs import TrainConfig
from tiny import draw
from training.muon import COEFFICIENTS, Muon, orthogonalize
from training.optimizer import build_optimizer
from training.step import optimizer_step


@pytest.mark.parametrize("rows, columns", [(8, 8), (5, 12), (12, 5)])
def test_orthogonalizing_brings_singular_values_to_one_and_keeps_vectors(rows, columns):
    """Held against the decomposition itself, with singular values a thousand times apart."""
    n = min(rows, columns)
    u, v = torch.linalg.qr(draw(2, rows, n))[0], torch.linalg.qr(draw(2, columns, n, seed=1))[0]
    values = torch.logspace(0, -2.3, n, dtype=torch.float64)
    got = orthogonalize(u @ torch.diag(7 * values) @ v.mT)
    in_basis = u.mT @ got @ v
    torch.testing.assert_close(in_basis, torch.diag_embed(in_basis.diagonal(dim1=-2, dim2=-1)), rtol=0, atol=1e-9)
    assert (in_basis.diagonal(dim1=-2, dim2=-1) - 1).abs().max() < 0.13


def test_orthogonalizing_is_the_polynomial_of_the_singular_values():
    x = draw(1, 6, 9)
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    values = values / (1.01 * values.square().sum().sqrt() + 1e-7)
    for a, b, c in COEFFICIENTS:
        values = a * values + b * values**3 + c * values**5
    torch.testing.assert_close(orthogonalize(x), u @ torch.diag_embed(values) @ v, rtol=0, atol=1e-10)


def test_a_gradient_of_zeros_moves_nothing():
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_matrices_move_as_the_formula_says():
    """Momentum, Nesterov's look ahead, decay apart from the gradient, a step as large as AdamW's; two steps of it."""
    wide, tall = (torch.nn.Parameter(draw(*shape)) for shape in [(3, 8), (8, 3)])
    expected, averages = [wide.detach().clone(), tall.detach().clone()], [0.0, 0.0]
    optimizer = Muon([{"params": [wide, tall], "momentum": 0.75, "weight_decay": 0.5}], lr=0.1)
    for step in range(2):
        for n, matrix in enumerate((wide, tall)):
            matrix.grad = draw(*matrix.shape, seed=10 * step + n)
            averages[n] = 0.75 * averages[n] + 0.25 * matrix.grad
            direction = orthogonalize((0.25 * matrix.grad + 0.75 * averages[n])[None])[0]
            expected[n] = expected[n] * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 8**0.5 * direction
        optimizer.step()
    torch.testing.assert_close([wide.detach(), tall.detach()], expected, rtol=0, atol=1e-12)


def test_a_step_is_as_large_as_adamw_s():
    """Or one learning rate would not serve both (Liu et al. 2025 measured 0.2 to 0.4 of the learning rate)."""
    matrix = torch.nn.Parameter(torch.zeros(64, 160, dtype=torch.float64))
    matrix.grad = draw(64, 160)
    Muon([{"params": [matrix], "momentum": 0.9, "weight_decay": 0.0}], lr=1.0).step()
    assert 0.18 < matrix.square().mean().sqrt().item() < 0.22


def test_what_is_no_matrix_of_a_layer_moves_as_in_adamw(scheme, tiny_model, tokens):
    """To the bit: embeddings, the output, norms and position parameters."""

    def moved(optimizer):
        model = tiny_model(scheme, torch.float32, qk_norm=True, tie_word_embeddings=False)
        config = TrainConfig(optimizer=optimizer, weight_decay=0.3)
        optimizer_step(model, build_optimizer(model, config), tokens(4, 8), tokens(4, 8, seed=1), 0.01, config)
        return dict(model.named_parameters())

    adamw, muon = moved("adamw"), moved("muon")
    differing = {name for name in adamw if not torch.equal(adamw[name], muon[name])}
    assert differing == {name for name in adamw if name.endswith("_proj.weight")}


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_of_layers_have_momentum_and_decay_of_the_config(tied, tiny_model):
    model = tiny_model(tie_word_embeddings=tied)
    config = TrainConfig(optimizer="muon", momentum=0.7, weight_decay=0.3, learning_rate=0.02)
    groups = build_optimizer(model, config).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_muon = [group for group in groups if "momentum" in group]
    assert [(group["momentum"], group["weight_decay"], group["lr"]) for group in by_muon] == [(0.7, 0.3, 0.02)]
    assert {names[p] for p in by_muon[0]["params"]} == {
        name for name in names.values() if name.endswith("_proj.weight")
    }
