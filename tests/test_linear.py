import pytest
import torch
import torch.nn.functional as F

from model.linear import FEW, SEVERAL, Linear, joined, lay_side_by_side, linear, pack, packs
from tiny import NEEDS_ONEDNN, draw


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.fixture(params=[False, True], ids=["", "slow_rows"])
def slow_rows(request, monkeypatch):
    """Whatever processor the tests run on."""
    monkeypatch.setattr("model.linear.SLOW_ROWS", request.param)
    return request.param


@pytest.mark.parametrize("out", [1, 7, 32, 48, 66])
@pytest.mark.parametrize("shape", [(1, 1), (FEW, 1), (FEW + 1, 1), (2, 3), (5, 13), (4,)], ids=str)
def test_any_number_of_rows_gives_the_sums_written_out(shape, out, slow_rows):
    """Parts put together in the wrong order, rows that become columns, sizes that no number of parts divides."""
    x, weight, bias = random(*shape, 10), random(out, 10, seed=1), random(out, seed=2)
    expected = (x.unsqueeze(-2) * weight).sum(-1)
    torch.testing.assert_close(linear(x, weight), expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(linear(x, weight, bias), expected + bias, rtol=0, atol=1e-13)


def test_few_rows_have_the_gradients_of_many(slow_rows):
    inputs = [random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate([(3, 1, 10), (32, 10), (32,)])]
    got, expected = (torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (linear, F.linear))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (4,)], ids=str)
def test_half_precision_gives_the_sums_written_out_to_its_rounding(shape, slow_rows):
    """Of numbers that bfloat16 holds, with sums below 256 that it holds too."""
    x, weight, bias = (
        (random(*size, seed=seed) * 2).round() for seed, size in enumerate([(*shape, 10), (32, 10), (32,)])
    )
    got = linear(*(each.bfloat16() for each in (x, weight, bias)))
    assert got.dtype == torch.bfloat16
    assert torch.equal(got.double(), (x.unsqueeze(-2) * weight).sum(-1) + bias)
    assert torch.equal(linear(x.float(), weight.bfloat16()), (x.unsqueeze(-2) * weight).sum(-1).float())


@pytest.mark.parametrize(
    "slow, dtype, rows, called",
    [
        (True, torch.float32, FEW, "bmm"),
        (True, torch.bfloat16, 1, None),
        (False, torch.float32, 1, None),
        (False, torch.bfloat16, 1, "mv"),
        (False, torch.bfloat16, 2, None),
    ],
)
def test_each_processor_has_the_form_that_is_fast_there(slow, dtype, rows, called, monkeypatch):
    """The other takes two to four times as long; the result would not show it."""
    monkeypatch.setattr("model.linear.SLOW_ROWS", slow)
    for name in ("bmm", "mv"):
        monkeypatch.setattr(torch, name, None)
    x, weight = random(rows, 10, dtype=dtype), random(32, 10, seed=1, dtype=dtype)
    if called is None:
        assert torch.equal(linear(x, weight), F.linear(x, weight))
    else:
        with pytest.raises(TypeError, match="not callable"):
            linear(x, weight)


@pytest.mark.parametrize("rows", [1, FEW + 1])
def test_autocast_gives_few_rows_the_dtype_of_many(rows, slow_rows):
    x, weight, bias = random(rows, 10).float(), random(32, 10, seed=1).float(), random(32, seed=2).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16


def projections(*sizes, bias=False, width=5):
    found = [Linear(width, size, bias=bias).double() for size in sizes]
    with torch.no_grad():
        for seed, parameter in enumerate(parameter for each in found for parameter in each.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=seed))
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, FEW + 1])
def test_joined_projections_are_the_single_ones_with_their_gradients(rows, bias, slow_rows):
    """As they are, with the weights laid side by side, and with gradients afterwards."""
    parts, x = projections(4, 2, 6, bias=bias), draw(1, rows, 5, seed=9).requires_grad_()
    inputs = [x, *(parameter for part in parts for parameter in part.parameters())]

    def of(out):
        return [out, *torch.autograd.grad(out.square().sum(), inputs)]

    expected = of(torch.cat([part(x) for part in parts], dim=-1))
    for got in (of(joined(x, *parts)), lay_side_by_side(*parts) or of(joined(x, *parts))):
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(joined(x, *parts), expected[0], rtol=0, atol=1e-13)


def test_weights_side_by_side_are_in_memory_once_and_not_copied_again(monkeypatch):
    parts = projections(4, 2, 6)
    before = [part.weight.detach().clone() for part in parts]
    with torch.no_grad():
        lay_side_by_side(*parts)
        storages = {part.weight.untyped_storage().data_ptr(): part.weight.untyped_storage().nbytes() for part in parts}
        assert [*storages.values()] == [12 * 5 * 8]
        assert all(torch.equal(part.weight, weight) for part, weight in zip(parts, before))
        monkeypatch.setattr(torch, "cat", None)
        expected = draw(1, 5) @ torch.vstack(before).T
        torch.testing.assert_close(joined(draw(1, 5), *parts), expected, rtol=0, atol=1e-13)
        parts[1].weight.zero_()  # a later change is seen
        assert not joined(draw(1, 5), *parts)[:, 4:6].any()


@torch.no_grad()
def test_weights_of_one_tensor_in_another_order_are_not_taken_for_neighbours():
    parts = projections(4, 2, 6)
    lay_side_by_side(*parts)
    for order in ((1, 0, 2), (0, 2)):
        chosen = [parts[n] for n in order]
        expected = torch.cat([part(draw(1, 5)) for part in chosen], dim=-1)
        torch.testing.assert_close(joined(draw(1, 5), *chosen), expected, rtol=0, atol=1e-13)


@NEEDS_ONEDNN
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, FEW + 1])
def test_packed_projections_are_the_single_ones(rows, bias, dtype):
    """Of numbers that both dtypes hold, with sums below 256 that they hold too: nothing is rounded."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("a processor without it")
    parts, x = projections(4, 2, 6, bias=bias), (random(1, rows, 5, seed=9) * 2).round()
    for parameter in (parameter for part in parts for parameter in part.parameters()):
        parameter.copy_((parameter * 2).round())
    expected = torch.cat([part(x) for part in parts], dim=-1).float()
    pack(dtype, *(part.float() for part in parts))
    got = joined(x.float(), *parts)
    assert got.dtype == torch.float32 and torch.equal(got, expected)


@pytest.mark.parametrize(
    "device, dtype, rows, slow, has_bfloat16, expected",
    [
        ("cpu", torch.float32, SEVERAL, True, False, True),
        ("cpu", torch.float32, SEVERAL - 1, True, True, False),
        ("cpu", torch.float32, SEVERAL, False, True, False),
        ("cpu", torch.float64, SEVERAL, True, True, False),
        ("cpu", torch.bfloat16, 1, False, True, True),
        ("cpu", torch.bfloat16, SEVERAL, True, False, False),
        ("cuda", torch.bfloat16, 1, True, True, False),
    ],
)
def test_weights_are_packed_where_that_is_faster(device, dtype, rows, slow, has_bfloat16, expected, monkeypatch):
    monkeypatch.setattr("model.linear.SLOW_ROWS", slow)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_bfloat16, raising=False)
    assert packs(torch.device(device), dtype, rows) == expected
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not packs(torch.device(device), dtype, rows)
