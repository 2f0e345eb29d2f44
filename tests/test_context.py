"""What a model has read: prompts in rows, prompts that begin alike, and what becomes of tokens past the window."""

import pytest
import torch

from base import InputError
from model import context
from model.cache import Cache
from model.context import KEPT_FIRST, Context

pytestmark = pytest.mark.usefixtures("without_gradients")
TIGHT = dict(rtol=0, atol=1e-10)
WINDOW = 16


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def passes(monkeypatch):
    """How many tokens each pass of a model was given."""
    seen, real = [], context.Transformer.forward

    def watching(model, input_ids, *rest, **options):
        seen.append(input_ids.shape[1])
        return real(model, input_ids, *rest, **options)

    monkeypatch.setattr(context.Transformer, "forward", watching)
    return seen


def one_by_one(reader, ids, start):
    """Logits (T − start, V) after a prompt of ids (T,) and each token that follows."""
    return torch.cat([reader.read([ids[:start]]), *(reader.add(ids[t : t + 1]) for t in range(start, len(ids)))])


def test_a_window_is_a_pass_over_the_last_tokens(scheme, tiny_model, tokens):
    assert_a_window_is_a_pass(tiny_model(scheme, max_position_embeddings=WINDOW), tokens(22))


def test_a_window_starts_sums_again(tiny_model, tokens):
    assert_a_window_is_a_pass(tiny_model("rope", attention="linear", max_position_embeddings=WINDOW), tokens(22))


def assert_a_window_is_a_pass(model, ids):
    logits = one_by_one(Context(model, window=WINDOW, overflow="window"), ids, 13)
    for row, end in zip(logits, range(13, 23)):
        torch.testing.assert_close(row, model(ids[None, max(0, end - WINDOW) : end])[0, -1], **TIGHT)
    torch.testing.assert_close(Context(model, window=WINDOW, overflow="window").read([ids])[0], logits[-1], **TIGHT)


def rolling(model):
    """Or None, where the scheme cannot: it is refused by name, and only where positions are part of what tokens are."""
    try:
        return Context(model, window=WINDOW, overflow="roll")
    except InputError as error:
        assert f"--overflow roll: {model.config.position.scheme} adds positions" in str(error)
        assert model.position.embedding(torch.arange(3)) is not None
        return None


def test_rolling_in_one_layer_is_a_pass_over_the_tokens_kept(scheme, tiny_model, tokens):
    """There keys and values are those of tokens alone, whatever they have seen: the first four and the last."""
    model, ids = tiny_model(scheme, num_hidden_layers=1, max_position_embeddings=WINDOW), tokens(30)
    if (reader := rolling(model)) is None:
        return
    logits, kept = one_by_one(reader, ids, 12), list(range(11))
    for t in range(11, 30):
        if len(kept) == WINDOW:
            del kept[4 : 4 + WINDOW // 8]
        kept.append(t)
        torch.testing.assert_close(logits[t - 11], model(ids[None, kept])[0, -1], **TIGHT)
    assert kept == [0, 1, 2, 3, *range(18, 30)]
    torch.testing.assert_close(rolling(model).read([ids])[0], logits[-1], **TIGHT)


def test_rolling_in_many_layers_only_forgets(scheme, tiny_model, tokens, monkeypatch):
    assert_rolling_only_forgets(tiny_model(scheme, max_position_embeddings=WINDOW), tokens(30), monkeypatch)


@pytest.mark.parametrize("options", [
    {"scheme": "rope", "every": 2},
    {"scheme": "rope", "layout": "interleaved", "fraction": 0.5},
    {"scheme": "rope", "scaling": {"rope_type": "yarn", "factor": 4}},
    {"scheme": "learned_theta", "per_layer": True},
    {"scheme": "window", "every": 2, "window": 5},
], ids=str)  # fmt: skip
def test_keys_are_turned_where_and_as_they_were(options, tiny_model, tokens, monkeypatch):
    assert_rolling_only_forgets(tiny_model(options, max_position_embeddings=WINDOW), tokens(30), monkeypatch)


def assert_rolling_only_forgets(model, ids, monkeypatch):
    """Of a scheme that sees differences alone: against positions that go on, and keys that nobody turned."""
    monkeypatch.setattr(context, "KEPT_FIRST", 0)
    reader = rolling(model)
    if reader is None or not model.position.shift_invariant:
        return
    cache, count = Cache(), WINDOW // 8
    model(ids[None, :11], cache, positions=torch.arange(11)[None])
    for t, row in enumerate(one_by_one(reader, ids, 12), 11):
        if cache.length == WINDOW:
            for layer, kept in cache.layers.items():
                cache.layers[layer] = tuple(each[..., count:WINDOW, :].clone() for each in kept)
            cache.positions, cache.length = cache.positions[:, count:], WINDOW - count
        expected = model(ids[None, t : t + 1], cache, positions=torch.tensor([[t]]))
        torch.testing.assert_close(row, expected[0, -1], rtol=0, atol=5e-6)  # as angles are cast to float32


def test_what_rolls_stays_at_trained_positions(tiny_model, tokens):
    seen, model = [], tiny_model("rope", max_position_embeddings=WINDOW)
    model.layers[0].self_attn.register_forward_pre_hook(lambda _, args: seen.append(args[1].positions))
    one_by_one(rolling(model), tokens(90), 3)
    assert len(seen) == 88 and torch.cat(seen).max() == WINDOW - 1


def test_sums_cannot_roll(tiny_model, tokens):
    model = tiny_model("rope", attention="linear", max_position_embeddings=WINDOW)
    for length in (3, 50):
        with pytest.raises(InputError, match="--overflow roll: linear attention sums up"):
            Context(model, window=WINDOW, overflow="roll").read([tokens(length)])
    with pytest.raises(InputError, match=f"expected a model of {KEPT_FIRST + 2} tokens of context or more, got 5"):
        Context(tiny_model("rope"), window=5, overflow="roll")


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_prompts_that_begin_alike_are_read_from_where_they_differ(attention, tiny_model, tokens, passes):
    """Also after tokens drawn, when all of it is known, and when less remains; sums start again unless they go on."""
    model, ids, other = tiny_model("rope", attention=attention), tokens(30), tokens(30, seed=1)
    assert ids[20] != other[20]
    prompts = [ids[:12], ids[:25], torch.cat((ids[:20], other[20:])), ids[:20], ids[:20], other]
    expected = [Context(model).read([prompt]) for prompt in prompts]
    passes.clear()
    reader = Context(model)
    for number, (prompt, logits) in enumerate(zip(prompts, expected)):
        torch.testing.assert_close(reader.read([prompt]), logits, **TIGHT)
        if number == 0:
            for token in ids[12:18]:
                reader.add(token[None])
    sums = attention == "linear"
    read = [12, *6 * [1], 7, 30 if sums else 10, 20 if sums else 1, 20 if sums else 1, 30]
    assert passes == read


def test_what_has_changed_since_is_read_again(tiny_model, tokens, passes):
    """Keys that lost their digits, tokens that rolled on, rows of several samples or prompts."""
    model, ids = tiny_model("rope", torch.float32, max_position_embeddings=WINDOW), tokens(12)
    for reader, prompts, copies in [
        (Context(model, torch.bfloat16), [ids], 1),
        (Context(model), [ids], 2),
        (Context(model), [ids, ids[:5]], 1),
        (Context(model, window=WINDOW, overflow="roll"), [ids], 1),
    ]:
        reader.read(prompts, copies)
        for token in tokens(9, seed=2):
            reader.add(token.expand(len(prompts) * copies))
        passes.clear()
        torch.testing.assert_close(reader.read([ids]), Context(model).read([ids]), rtol=0, atol=0)
        assert passes == [12, 12]


def test_a_window_that_moved_on_is_known_as_what_it_holds(tiny_model, tokens, passes):
    model, ids = tiny_model("rope", max_position_embeddings=WINDOW), tokens(30)
    reader = Context(model, window=WINDOW, overflow="window")
    one_by_one(reader, ids, 20)
    for prompt in (ids, tokens(40), ids[14:], ids[:10]):
        torch.testing.assert_close(reader.read([prompt])[0], model(prompt[None, -WINDOW:])[0, -1], **TIGHT)


@pytest.mark.parametrize("copies", [1, 2])
def test_prompts_of_any_length_share_a_batch(scheme, copies, tiny_model, tokens):
    """Each with the logits that it has alone, also token by token."""
    model, prompts = tiny_model(scheme), [tokens(n, seed=n) for n in (3, 9, 1, 9)]
    more = tokens(4 * copies, 3, seed=7)
    reader = Context(model)
    logits = [reader.read(prompts, copies), *(reader.add(column) for column in more.unbind(dim=1))]
    for row, added in enumerate(more):
        alone = model(torch.cat((prompts[row // copies], added))[None])[0, -4:]
        torch.testing.assert_close(torch.stack([each[row] for each in logits]), alone, **TIGHT)


def test_prompts_of_two_lengths_have_no_window_together(tiny_model, tokens):
    reader = Context(tiny_model("rope"), window=WINDOW, overflow="window")
    reader.read([tokens(5), tokens(5)])
    with pytest.raises(ValueError, match="prompts of different lengths"):
        reader.read([tokens(5), tokens(6)])
