import pytest
import torch
import torch.nn.functional as F

from model.linear import FEW, linear


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("out", [1, 7, 32, 48, 66])
@pytest.mark.parametrize("shape", [(1, 1), (FEW, 1), (FEW + 1, 1), (2, 3), (5, 13), (4,)], ids=str)
def test_any_number_of_rows_gives_the_sums_written_out(shape, out):
    """Parts put together in the wrong order, rows that become columns, sizes that no number of parts divides."""
    x, weight, bias = random(*shape, 10), random(out, 10, seed=1), random(out, seed=2)
    expected = (x.unsqueeze(-2) * weight).sum(-1)
    torch.testing.assert_close(linear(x, weight), expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(linear(x, weight, bias), expected + bias, rtol=0, atol=1e-13)


def test_few_rows_have_the_gradients_of_many():
    inputs = [random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate([(3, 1, 10), (32, 10), (32,)])]
    got, expected = (torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (linear, F.linear))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_half_precision_is_left_to_the_library(monkeypatch):
    """Parts of the weight take four times as long there; the bits would not show it."""
    x, weight = random(1, 1, 10, dtype=torch.bfloat16), random(32, 10, seed=1, dtype=torch.bfloat16)
    monkeypatch.setattr(torch, "bmm", None)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("rows", [1, FEW + 1])
def test_autocast_gives_few_rows_the_dtype_of_many(rows):
    x, weight, bias = random(rows, 10).float(), random(32, 10, seed=1).float(), random(32, seed=2).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
