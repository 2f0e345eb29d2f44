"""Queries in blocks, linear attention in chunks, layers computed twice: all give what is computed at once."""

import pytest
import torch
import torch.nn.functional as F
from test_documents import PACKED, START, kinds, with_gradients
from test_loss import Sizes

from model import attention
from model.attention import LinearAttention, blocks
from model.cache import Cache
from model.device import without_autocast
from model.inputs import attention_inputs
from tiny import assert_same_bits, draw, run_config, train_until, trained
from training.loop import train

TIGHT = dict(rtol=1e-11, atol=1e-11)


def test_blocks_cover_the_queries_and_bound_the_scores(monkeypatch):
    monkeypatch.setattr(attention, "SCORES", 100)
    assert blocks(20, 10) == [slice(0, 20)]
    found = blocks(20, 33)  # 13 keys lie before the first query
    ends = [0, 5, 9, 12, 15, 18, 20]
    assert found == [slice(*each) for each in zip(ends, ends[1:])]
    assert all(n * end <= 100 < (n + 1) * (end + 1) for n, end in ((e.stop - e.start, 13 + e.stop) for e in found[:-1]))
    assert blocks(2, 1000) == [slice(0, 1), slice(1, 2)]
    with torch.no_grad():
        assert blocks(20, 33, heads=1) == found
        monkeypatch.setattr(attention, "SCORES", 400)
        assert blocks(20, 33, heads=8) == found


def passes(model, ids):
    """Logits and gradients of whole rows, of left-padded ones, and of chunks that meet a filled cache."""
    yield with_gradients(model, model(ids))
    yield with_gradients(model, model(ids, positions=torch.arange(ids.shape[1]) - torch.tensor([[3], [0]])))
    with torch.no_grad():
        cache = Cache()
        yield torch.cat([model(chunk, cache) for chunk in ids.split([9, 14, 1, 5], dim=1)], dim=1)


def test_blocks_equal_the_whole(scheme, tiny_model, tokens, monkeypatch):
    for kind in kinds(scheme):
        model, ids = tiny_model(scheme, attention=kind), tokens(2, 29)
        whole = list(passes(model, ids))
        with monkeypatch.context() as patch:
            patch.setattr(attention, "SCORES", 6 * 29)
            torch.testing.assert_close(list(passes(model, ids)), whole, **TIGHT)


@pytest.mark.parametrize("options", [
    {"scheme": "window", "window": 4, "keep_first": 2},
    {"scheme": "shaw", "clip": 3},
    {"scheme": "deberta", "rows": 4},
    {"scheme": "inkling", "extent": 4},
    {"scheme": "cope", "npos": 3},
    {"scheme": "fox", "every": 2},
    {"scheme": "t5", "every": 2, "temperature": {"kind": "log", "length": 4}},
], ids=str)  # fmt: skip
def test_blocks_that_see_beyond_a_table_equal_the_whole(options, tiny_model, tokens, monkeypatch):
    model, ids = tiny_model(options), tokens(2, 29)
    whole = list(passes(model, ids))
    monkeypatch.setattr(attention, "SCORES", 6 * 29)
    torch.testing.assert_close(list(passes(model, ids)), whole, **TIGHT)
    with torch.no_grad():
        torch.testing.assert_close([model(ids), whole[2]], 2 * [whole[0][0]], **TIGHT)


def test_a_mask_by_distance_is_the_matrix_written_out_and_takes_the_memory_of_a_row():
    last = draw(3, 9)  # of query 8, for 5 queries after 4 keys
    found = attention.Toeplitz(last, 5)(slice(1, 4))
    for i, m in enumerate([7, 6, 5]):
        for n in range(8):
            expected = last[:, 8 - m + n] if n <= m else torch.full((3,), -torch.inf).double()
            assert torch.equal(found[0, :, i, n], expected)
    assert found.shape == (1, 3, 3, 8) and found.untyped_storage().nbytes() == 8 * 3 * (9 + 5)


@torch.no_grad()
@pytest.mark.parametrize("trained", [8, 64])
def test_the_bias_of_a_block_is_a_part_of_the_whole_and_float32_under_autocast(
    trained, scheme, tiny_model, monkeypatch
):
    """Also where the trained length, 8, is past: then that of `fire` is no function of the distance."""
    model = tiny_model(scheme, torch.float32, max_position_embeddings=trained)
    if model.position.max_length == trained == 8:
        pytest.skip("no positions that far out")
    given = (torch.arange(20), None, True, torch.float32)
    whole = attention_inputs(model.position, *given)[1].mask
    monkeypatch.setattr(attention, "SCORES", 4 * 20)
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(torch.device("cpu")):  # as in a model; the blocks are made later
            of_block = attention_inputs(model.position, *given)[1].mask
        if scheme == "fire":
            assert isinstance(of_block, attention.Toeplitz) == (trained == 64)
        assert (of_block is None) == (whole is None)
        if whole is not None:
            got = of_block(slice(4, 8))
            got = got.flip(-2) if isinstance(of_block, attention.Toeplitz) else got
            expected = whole[..., 4:8, -got.shape[-1] - 12 : -12]  # with content of the block's own keys alone
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_blocks_under_autocast_stay_close_to_float32(scheme, tiny_model, tokens, monkeypatch):
    monkeypatch.setattr(attention, "SCORES", 4 * 20)
    model, ids = tiny_model(scheme, torch.float32), tokens(2, 20)
    expected = model(ids).detach()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
    logits.float().square().mean().backward()  # which computes the blocks again
    assert (logits - expected).norm() < 0.05 * expected.norm()


def largest_tensors(model, *inputs):
    """Of a pass forward and back over each, kept or in between."""
    found = []
    for each in inputs:
        with Sizes() as sizes:
            model(each).square().mean().backward()
        found.append(sizes.largest)
    return found


def test_no_tensor_grows_with_the_square_of_the_length(scheme, tiny_model, tokens, monkeypatch):
    inputs = tokens(1, 128), tokens(1, 256)
    for kind in kinds(scheme):
        model = tiny_model(scheme, torch.float32, attention=kind, num_hidden_layers=1, **PACKED)
        assert largest_tensors(model, inputs[1])[0] >= 256**2, "what this test sees where all pairs are there at once"
        with monkeypatch.context() as patch:
            patch.setattr(attention, "SCORES", 16 * 256)
            one, two = largest_tensors(model, *inputs)
        assert two <= 2 * one


def test_chunks_of_linear_attention_are_the_weights_written_out(monkeypatch):
    """φ(q)φ(k)ᵀ over all pairs of a document, rotated in the numerator alone; and the sums that a cache would keep."""
    q, k = ((F.elu(draw(2, 3, 23, 4, seed=seed)) + 1) for seed in (0, 1))
    v, turned_q, turned_k = (draw(2, 3, 23, 4, seed=seed) for seed in (2, 3, 4))
    numbers = torch.tensor([[0] * 4 + [1] * 2 + [2] * 17, [0] * 8 + [1] * 15])
    for documents in (None, numbers):
        is_same = torch.ones(2, 23, 23) if documents is None else documents[:, :, None] == documents[:, None]
        seen = is_same[:, None].tril()
        weights, sums = seen * (turned_q @ turned_k.mT), (seen * (q @ k.mT)).sum(-1, keepdim=True)
        last = seen[..., -1:, :].mT  # the document that goes on
        expected = weights @ v / sums, ((last * turned_k).mT @ v, (last * k).sum(-2, keepdim=True))
        for scores in (attention.SCORES, 5 * 23, 1):
            monkeypatch.setattr(attention, "SCORES", scores)
            got = LinearAttention.scan(blocks(23, 23), None, documents, q, k, v, turned_q, turned_k)
            torch.testing.assert_close(got, expected, **TIGHT)


def test_layers_computed_twice_give_the_same_bits(scheme, tiny_model, tokens):
    """And keep less: the largest tensors are those inside a layer."""
    ids, results, kept = tokens(2, 20), [], []
    for recompute in (False, True):
        model = tiny_model(scheme, torch.float32, **PACKED)
        model.recompute = recompute
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            logits = model(ids)
        results.append(with_gradients(model, logits))
        kept.append(sum(sizes))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert kept[1] < 0.5 * kept[0]


def test_a_run_that_goes_on_with_layers_computed_twice_ends_with_the_same_bits(tmp_path):
    whole = trained(tmp_path, "name=whole", "train.checkpoint_every=2")
    train_until(4, run_config(tmp_path, "name=other", "train.checkpoint_every=2"))
    other = run_config(tmp_path, "name=other", "train.checkpoint_every=2", "train.recompute=true")
    train(other, resume=True)
    assert_same_bits(whole, other)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_compiled_model_is_the_same(kind, tiny_model, tokens, monkeypatch):
    """With documents, blocks and layers computed twice."""
    monkeypatch.setattr(attention, "SCORES", 6 * 20)
    model, ids = tiny_model(attention=kind, **PACKED), tokens(2, 20)
    ids[0, 11] = START
    expected = with_gradients(model, model(ids))
    model.recompute = True
    model.hidden_states = torch.compile(model.hidden_states, backend="eager")
    torch.testing.assert_close(with_gradients(model, model(ids)), expected, **TIGHT)
