"""The cache changes no logit: all comparisons are with full forward passes in float64."""

from copy import deepcopy

import pytest
import torch

from model import inputs
from model.cache import Cache
from tiny import NEEDS_ONEDNN
from training.loss import summed_loss

pytestmark = pytest.mark.usefixtures("without_gradients")
TIGHT = dict(rtol=0, atol=1e-10)


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("chunks", [[13], [1] * 13, [5, 1, 7], [3, 3, 3, 4], [1, 12], [12, 1]], ids=str)
def test_prefill_chunks_and_decode_are_the_full_forward_pass(scheme, chunks, tiny_model, tokens):
    """Positions that restart at 0, a mask that is_causal aligned with the first key, a bias of the wrong rows."""
    model, ids, cache = tiny_model(scheme), tokens(2, 13), Cache()
    logits = [model(chunk, cache) for chunk in ids.split(chunks, dim=1)]
    assert cache.length == 13
    torch.testing.assert_close(torch.cat(logits, dim=1), model(ids), **TIGHT)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("is_packed", [False, pytest.param(True, marks=NEEDS_ONEDNN)], ids=["joined", "packed"])
def test_a_trained_model_in_float32_decodes_what_float64_does_in_one_pass(
    is_packed, is_tied, scheme, tiny_model, tokens
):
    """With weights joined or packed and rotations computed ahead, as generate.py decodes."""
    model, ids, cache = tiny_model(scheme, tie_word_embeddings=is_tied).float(), tokens(4, 25), Cache()
    model.init_weights(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with torch.enable_grad():
        for _ in range(5):
            loss = summed_loss(model, ids[:, :-1], ids[:, 1:]) / ids[:, 1:].numel()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    exact = deepcopy(model).double()(ids)
    model.pack() if is_packed else model.lay_side_by_side()
    with torch.inference_mode():
        logits = torch.cat([model(chunk, cache) for chunk in ids.split([9, *[1] * 16], dim=1)], dim=1)
    torch.testing.assert_close(logits.double(), exact, rtol=0, atol=1e-5)


def test_setting_the_length_back_forgets(scheme, tiny_model, tokens):
    model, ids, other, cache = tiny_model(scheme), tokens(2, 12), tokens(2, 12, seed=1), Cache()
    model(ids, cache)
    for length in (7, 3, 0):
        cache.length = length
        mixed = torch.cat((ids[:, :length], other[:, length:]), dim=1)
        torch.testing.assert_close(model(mixed[:, length:], cache), model(mixed)[:, length:], **TIGHT)


def test_what_is_computed_ahead_ends_and_starts_anew(scheme, tiny_model, tokens, monkeypatch):
    """Of three tokens at a time: before and after the cache was set back, and up to the last position of `learned`."""
    monkeypatch.setattr(inputs, "AHEAD", 3)
    model, ids, cache = tiny_model(scheme, max_position_embeddings=24), tokens(2, 24), Cache()
    expected, made = model(ids), []
    monkeypatch.setattr(inputs, "look_ahead", lambda *args, real=inputs.look_ahead: made.append(args[1]) or real(*args))
    model(ids[:, :4], cache)
    for length, steps in ((4, 8), (9, 1), (2, 6), (8, 16)):
        cache.length = length
        for t in range(length, length + steps):
            torch.testing.assert_close(model(ids[:, t : t + 1], cache)[:, 0], expected[:, t], **TIGHT)
    assert made == [4, 7, 10, 9, 2, 5, 8, 11, 14, 17, 20, 23]


def test_left_padded_rows_are_decoded_as_single_ones(scheme, tiny_model, tokens):
    """In chunks, with the padding in the cache, and after one row of it was repeated."""
    model, ids, cache = tiny_model(scheme), tokens(3, 9), Cache()
    pads = torch.tensor([4, 0, 2])
    positions = torch.arange(9) - pads[:, None]
    chunks = zip(ids.split([3, 4, 1, 1], dim=1), positions.split([3, 4, 1, 1], dim=1))
    logits = torch.cat([model(chunk, cache, place) for chunk, place in chunks], dim=1)
    for row, pad in enumerate(pads):
        torch.testing.assert_close(logits[row, pad:], model(ids[row : row + 1, pad:])[0], **TIGHT)


def test_the_sums_of_linear_attention_forget_all_tokens_or_none(tiny_model, tokens):
    """With a few of them taken back, the logits would be wrong without a word."""
    model, ids, other, cache = tiny_model(attention="linear"), tokens(2, 9), tokens(2, 9, seed=1), Cache()
    model(ids, cache)
    for length in (8, 10):
        cache.length = length
        with pytest.raises(ValueError, match=f"cache.length is {length}, but linear attention has summed 9 tokens"):
            model(ids[:, :1], cache)
    cache.length = 0
    logits = [model(chunk, cache) for chunk in other.split([4, 5], dim=1)]
    torch.testing.assert_close(torch.cat(logits, dim=1), model(other), **TIGHT)


def test_setting_the_length_back_forgets_the_positions_of_rows(tiny_model, tokens):
    model, ids, cache = tiny_model("rope"), tokens(2, 8), Cache()
    positions = torch.arange(8) - torch.tensor([[2], [0]])
    expected = model(ids, positions=positions)
    model(ids, cache, positions + 1)
    model(ids[:, :3], cache := Cache(), positions[:, :3])
    model(ids[:, 3:], cache, positions[:, 3:] + 5)
    cache.length = 3
    torch.testing.assert_close(model(ids[:, 3:], cache, positions[:, 3:]), expected[:, 3:], **TIGHT)


@pytest.mark.parametrize("with_positions", [False, True])
def test_repeat_lets_one_prefill_serve_many_samples(scheme, with_positions, tiny_model, tokens):
    """Each row next to its copies, for rows with and without positions of their own."""
    model, prompt, rest, cache = tiny_model(scheme), tokens(2, 5), tokens(6, 4, seed=1), Cache()
    positions = torch.arange(9) - torch.tensor([[2], [0]]) if with_positions else None
    model(prompt, cache, None if positions is None else positions[:, :5])
    cache.repeat(3)
    ids = torch.cat((prompt.repeat_interleave(3, dim=0), rest), dim=1)
    positions = None if positions is None else positions.repeat_interleave(3, dim=0)
    logits = model(rest, cache, None if positions is None else positions[:, 5:])
    torch.testing.assert_close(logits, model(ids, positions=positions)[:, 5:], **TIGHT)


def test_decoding_copies_the_cache_a_few_times_only():
    """Room that grows by one token a step makes decoding quadratic."""
    cache, rooms = Cache(), set()
    for step in range(200):
        keys, values = cache.update(0, torch.full((1, 2, 1, 4), step), torch.full((1, 2, 1, 4), -step))
        cache.length += 1
        rooms.add(keys.untyped_storage().data_ptr())
        assert keys[0, 0, :, 0].tolist() == list(range(step + 1)) and torch.equal(values, -keys)
    assert len(rooms) <= 10


def test_the_position_limit_counts_what_the_cache_holds(tiny_model, tokens):
    """A bound that checks the new tokens alone lets a learned table be read past its end."""
    model, ids, cache = tiny_model("none"), tokens(1, 9), Cache()
    model.position.max_length = 8
    model(ids[:, :5], cache)
    with pytest.raises(IndexError, match="position 8 .* 8 positions"):
        model(ids[:, 5:], cache)
    torch.testing.assert_close(model(ids[:, 5:8], cache), model(ids[:, :8])[:, 5:], **TIGHT)  # nothing was taken in
