"""The norm, and the gradient that it has on a CPU, against the formula in float64."""

import pytest
import torch
import torch.nn.functional as F

from model.norm import rms_norm
from tiny import draw

EPS = 0.3  # large enough to matter


def written_out(x, weight):
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + EPS).sqrt() * weight


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("shape", [(1, 7), (3, 7), (2, 5, 3, 7)], ids=str)
def test_values_and_gradients_are_those_of_the_formula(shape, dtype, tolerance):
    x, weight, upstream = draw(*shape), draw(7, seed=1), draw(*shape, seed=2)
    expected = [written_out(x, weight)]
    given = [x.requires_grad_(), weight.requires_grad_()]
    expected += torch.autograd.grad(written_out(*given), given, upstream)
    given = [tensor.detach().to(dtype).requires_grad_() for tensor in given]
    normed = rms_norm(*given, EPS)
    got = [normed, *torch.autograd.grad(normed, given, upstream.to(dtype))]
    with torch.no_grad():
        assert torch.equal(rms_norm(*given, EPS), normed)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance)


def test_zeros_and_large_numbers_have_a_gradient():
    x = torch.tensor([[0.0, 0.0], [1e18, -1e18]], requires_grad=True)
    weight = torch.ones(2, requires_grad=True)
    normed = rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(normed, torch.tensor([[0.0, 0.0], [1.0, -1.0]]), rtol=0, atol=1e-6)
    normed.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1e3, 1e3], [1e-18, 1e-18]]), rtol=1e-6, atol=0)


def test_half_precision_is_rounded_once():
    x, weight = draw(4, 64).bfloat16(), draw(64, seed=1).bfloat16()
    exact = rms_norm(x.double(), torch.ones(64, dtype=torch.float64), 1e-6).bfloat16()
    assert torch.equal(rms_norm(x, torch.ones_like(weight), 1e-6), exact)
    assert torch.equal(rms_norm(x, weight, 1e-6), F.rms_norm(x, (64,), weight, 1e-6))


def test_what_autocast_made_half_is_normed_as_precisely_as_the_weight_is(recwarn):
    """And by a fused kernel, without which PyTorch warns."""
    x, weight = draw(4, 64).bfloat16(), draw(64, seed=1).float()
    normed = rms_norm(x, weight, 1e-6)
    assert normed.dtype == torch.bfloat16 and not recwarn.list
    torch.testing.assert_close(normed, rms_norm(x.double(), weight.double(), 1e-6).bfloat16(), rtol=0, atol=0)
