"""From logits to a token, from a prompt to tokens, and from tokens to text that is printed as they come."""

import math
import random
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from model.cache import Cache
from model.context import Context, decoding_model
from model.generation import generate, penalized, probabilities, sample_token
from model.linear import packs
from sampling.stream import TextStream
from tiny import draw


def generators(count):
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def rows(steps):
    """(rows, tokens made) of what `generate` yields."""
    return torch.stack([step.ids for step in steps], dim=1)


@torch.no_grad()
def by_full_passes(model, prompt, steps):
    """Greedy decoding without a cache."""
    for _ in range(steps):
        prompt = torch.cat((prompt, model(prompt[None])[0, -1:].argmax(-1)))
    return prompt[-steps:]


# From logits to a token


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_divides_the_logits(temperature):
    weights = [math.exp(x / temperature) for x in (2.0, -1.0, 0.5)]
    expected = torch.tensor([w / sum(weights) for w in weights])
    got = probabilities(torch.tensor([2.0, -1.0, 0.5]), temperature)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_temperature_zero_and_nearly_zero_take_the_likeliest():
    """A division by zero, or logits that become infinite."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [-5.0, -9.0, -7.0]])
    for temperature in (0, 0.0, 1e-320, 1e-30):
        assert sample_token(logits, generators(2), temperature, top_k=2, top_p=0.5).tolist() == [1, 0]


def test_options_beyond_float32_are_the_nearest_within():
    """A token that may not be drawn is -inf, of which an infinite temperature makes nan; of a top_p of 0 none is left."""
    logits = torch.tensor([1.0, -float("inf"), 2.0])
    assert probabilities(logits, 1e308).tolist() == [0.5, 0.0, 0.5]
    for top_p in (1e-30, 1e-320):
        assert probabilities(logits, 1.0, top_p=top_p, min_p=1e-320).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("top_k, kept", [(1, [0.4, 0, 0, 0]), (3, [0.4, 0.3, 0, 0.2]), (4, None), (99, None)])
def test_top_k_keeps_the_k_likeliest_and_may_exceed_the_vocabulary(top_k, kept):
    """And k of equal ones, where a threshold instead of a rank keeps all that are tied at the k-th place."""
    probs = torch.tensor([0.4, 0.3, 0.1, 0.2])
    kept = torch.tensor(kept or probs.tolist())
    torch.testing.assert_close(probabilities(probs.log(), 1.0, top_k), kept / kept.sum())
    assert (probabilities(torch.zeros(2, 6), 1.0, top_k) > 0).sum(-1).tolist() == 2 * [min(top_k, 6)]


@pytest.mark.parametrize("top_p, kept", [(0.01, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.9, 4), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    """One token too many, one too few, or none at all. The probabilities are exact: 1/2, 1/4, 1/8, 1/8."""
    shuffled = torch.tensor([0.125, 0.5, 0.125, 0.25])
    likeliest = {1: [1], 2: [1, 3], 3: [0, 1, 3], 4: [0, 1, 2, 3]}[kept]
    expected = torch.zeros(4).index_copy(0, torch.tensor(likeliest), shuffled[likeliest])
    torch.testing.assert_close(probabilities(shuffled.log(), 1.0, 0, top_p), expected / expected.sum())


def test_top_p_counts_what_top_k_left():
    """Of 4 : 3 : 2 : 1 the two likeliest are 0.57 and 0.43 of what top_k = 2 keeps: 0.5 is reached by the first."""
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert probabilities(probs.log(), 1.0, 2, 0.5).tolist() == [1, 0, 0, 0]


def test_min_p_keeps_what_is_near_the_likeliest():
    """Exact powers of two, so that the edge is one: a quarter of 1/2 is 1/8."""
    probs = torch.tensor([0.125, 0.5, 0.125, 0.25])
    for min_p, kept in ((0.25, probs), (0.26, torch.tensor([0, 2 / 3, 0, 1 / 3])), (1.0, torch.tensor([0.0, 1, 0, 0]))):
        torch.testing.assert_close(probabilities(probs.log(), 1.0, min_p=min_p), kept)


def test_filters_that_are_off_change_no_bit():
    """Of 3,000 tokens, whose sum of probabilities reaches 1 before the last of them."""
    logits = draw(4, 3000, dtype=torch.float32) * 3
    off = probabilities(logits, 1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert torch.equal(off, (logits - logits.amax(-1, keepdim=True)).softmax(-1)) and (off > 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_penalty_and_filters_are_those_of_transformers_in_its_order(seed):
    """Penalty, temperature, top-k, top-p, min-p: any two of them exchanged keep other tokens for some seed."""
    logits, ids = (
        2 * draw(6, 40, seed=seed, dtype=torch.float32),
        torch.randint(40, (6, 9), generator=torch.Generator().manual_seed(seed)),
    )
    seen = torch.zeros(6, 40, dtype=torch.bool).scatter(1, ids, True)
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.7),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.1),
        ]
    )
    expected = theirs(ids, logits.clone()).softmax(-1)
    got = probabilities(penalized(logits, seen, 1.7), 0.7, top_k=20, top_p=0.9, min_p=0.1)
    assert torch.equal(got > 0, expected > 0) and (got > 0).sum() > 12
    torch.testing.assert_close(got, expected)


def test_a_penalty_never_rewards():
    """Dividing a negative logit would make a token likelier that has been there."""
    logits = torch.tensor([4.0, -4.0, 0.0, 1.0])
    assert penalized(logits, torch.tensor([True, True, True, False]), 2.0).tolist() == [2.0, -8.0, 0.0, 1.0]


def test_frequencies_of_draws_are_the_probabilities():
    """Chi-square of 50 tokens, after temperature and top-k, from generators as `generate` seeds them."""
    weights = torch.linspace(1, 3, 50, dtype=torch.float64)
    counts = sample_token(weights.log().expand(20_000, -1), generators(20_000), 0.5, 45).bincount(minlength=50)
    expected = 20_000 * weights[5:] ** 2 / (weights[5:] ** 2).sum()
    assert counts[:5].sum() == 0
    assert ((counts[5:] - expected) ** 2 / expected).sum() < 88  # 44 degrees of freedom: once in ten thousand seeds


def test_sampling_needs_no_float64():
    """Apple GPUs lack it: a model that trains there must sample there."""
    assert probabilities(torch.zeros(2, 3), 0.8, 2, 0.9).dtype == torch.float32


# From a prompt to tokens


def test_greedy_decoding_is_that_of_full_forward_passes(scheme, tiny_model, tokens):
    model, prompt = tiny_model(scheme), tokens(5)
    expected = by_full_passes(model, prompt, 12)
    assert torch.equal(rows(generate(model, prompt, 12, temperature=0, num_samples=2)), expected.expand(2, -1))


def test_samples_have_the_distribution_of_full_forward_passes(tiny_model):
    """Chi-square over all pairs of first and second tokens; a cache row given to the wrong sample would show."""
    model, prompt, n = tiny_model(vocab_size=5, initializer_range=0.1), torch.tensor([1, 4, 2]), 4000
    made = rows(generate(model, prompt, 2, num_samples=n, temperature=0.8, seed=3))
    chi_square = 0.0
    for first, second in product(range(5), repeat=2):
        with torch.no_grad():
            a, b = (model(torch.tensor([[1, 4, 2, first]]))[0, -2:] / 0.8).softmax(-1)
        expected = n * (a[first] * b[second]).item()
        assert expected > 5
        chi_square += ((made == torch.tensor([first, second])).all(-1).sum().item() - expected) ** 2 / expected
    assert chi_square < 52  # 24 degrees of freedom: once in a thousand seeds


def test_each_sample_draws_its_own_first_token(tiny_model, tokens):
    """One draw after the prefill, copied to all rows, gives samples that all begin alike."""
    (first,) = generate(tiny_model(initializer_range=0.02), tokens(4), 1, num_samples=64)
    assert len(set(first.ids.tolist())) > 20


def test_one_seed_gives_one_text_and_leaves_the_global_random_state(tiny_model, tokens):
    """Of max_new_tokens, where nothing ends it."""
    model, prompt, before = tiny_model(), tokens(4), torch.get_rng_state()
    a, b, other = (rows(generate(model, prompt, 10, num_samples=3, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, other) and a.shape == (3, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sample_is_the_same_among_any_number(tiny_model, tokens):
    """In float64, where no last bit decides; whichever rows have ended before."""
    model, prompt = tiny_model(initializer_range=0.05), tokens(4)
    eight = rows(generate(model, prompt, 12, num_samples=8, seed=5))
    for count in (1, 3):
        assert torch.equal(rows(generate(model, prompt, 12, num_samples=count, seed=5)), eight[:count])
    stops = eight[:4, 3].tolist()  # the first four rows end here at the latest
    ended = torch.isin(eight, torch.tensor(stops)).cumsum(dim=1)
    expected = torch.where(ended.roll(1, dims=1).index_fill(1, torch.tensor([0]), 0) > 0, -1, eight)
    made = rows(generate(model, prompt, 12, num_samples=8, seed=5, stop_ids=stops))
    assert torch.equal(made, expected[:, : made.shape[1]]) and (made[4:] >= 0).any(dim=0).all()


def test_no_two_samples_of_neighbouring_seeds_are_alike(tiny_model, tokens):
    """As with seed + row, where the second sample of one seed is the first of the next."""
    model, prompt = tiny_model(initializer_range=0.02), tokens(4)
    made = [rows(generate(model, prompt, 8, num_samples=12, seed=seed)).tolist() for seed in range(12)]
    assert len({tuple(row) for texts in made for row in texts}) == 144


def that_prefers(model, *favourites):
    """The model, made to go through the favourites in turn, whatever it reads."""
    script = iter(favourites)

    def rewrite(module, args, logits):
        chosen = torch.tensor(next(script)).expand(len(logits))
        return 100.0 * F.one_hot(chosen, logits.shape[-1])[:, None]

    model.register_forward_hook(rewrite)
    return model


@pytest.mark.parametrize("stop", [0, 7])
def test_the_first_token_can_be_the_end(stop, tiny_model, tokens):
    """The end looked for after the second token only, or id 0 taken for no end at all."""
    model = that_prefers(tiny_model(), stop, 1, 1, 1)
    assert rows(generate(model, tokens(3), 4, stop_ids=(stop,))).tolist() == [[stop]]


def test_generation_goes_on_until_the_last_row_has_ended(tiny_model, tokens):
    """A row has no ids after its stop token; one of several stop ids is enough."""
    model = that_prefers(tiny_model(), 5, [5, 0, 5], [9, 9, 5], [5, 5, 9], 5)
    made = rows(generate(model, tokens(3), 5, num_samples=3, stop_ids=(0, 9)))
    assert made.tolist() == [[5, 5, 9, -1], [5, 0, -1, -1], [5, 5, 5, 9]]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_ids_that_no_token_has_are_never_drawn(temperature, tiny_model, tokens):
    """They have no text: decoding them fails, or prints nothing where the model meant something."""
    known = [0, 3, 4, 9, 47]
    made = rows(generate(tiny_model(), tokens(4), 50, num_samples=20, temperature=temperature, token_ids=known))
    assert set(made.flatten().tolist()) <= set(known) and (temperature == 0 or made.max() == 47)


def test_a_stop_token_is_drawn_though_no_text_has_it(tiny_model, tokens):
    model = that_prefers(tiny_model(), 3, 40)
    assert rows(generate(model, tokens(3), 9, stop_ids=[40], token_ids=range(9))).tolist() == [[3, 40]]


@pytest.mark.parametrize("penalize_prompt", [True, False])
def test_the_penalty_counts_each_token_there_has_been(penalize_prompt, tiny_model, tokens):
    """Against the processor of transformers on full passes, in rows of two prompts."""
    model, prompts = tiny_model(), [tokens(6), tokens(9, seed=1)]
    options = dict(temperature=0, repetition_penalty=1.5, penalize_prompt=penalize_prompt)
    made = rows(generate(model, prompts, 12, num_samples=2, **options))
    assert not torch.equal(made[:1], rows(generate(model, prompts[0], 12, temperature=0)))
    for ids, row in zip(prompts, made[::2]):
        processor = RepetitionPenaltyLogitsProcessor(1.5, None if penalize_prompt else len(ids))
        for token in row:
            with torch.no_grad():
                scores = processor(ids[None], model(ids[None])[:, -1])
            assert scores.argmax() == token
            ids = torch.cat((ids, token[None]))


@pytest.mark.parametrize("scheme_and_attention", [("rope", "softmax"), ("alibi", "softmax"), ("none", "linear")])
def test_a_prompt_has_the_same_samples_among_others(scheme_and_attention, tiny_model, tokens):
    """Left padding that leaks, a cache row of another prompt, random numbers that depend on the place in the batch."""
    scheme, attention = scheme_and_attention
    model = tiny_model(scheme, attention=attention, initializer_range=0.05)
    prompts = [tokens(n, seed=n) for n in (5, 1, 12, 5)]
    together = list(generate(model, prompts, 8, num_samples=2, seed=4))
    for number, prompt in enumerate(prompts):
        alone, part = generate(model, prompt, 8, num_samples=2, seed=4), slice(2 * number, 2 * number + 2)
        for step, one in zip(together, alone):
            assert torch.equal(step.ids[part], one.ids)
            torch.testing.assert_close(step.logprobs[part], one.logprobs, rtol=0, atol=1e-10)


def test_log_probabilities_are_the_model_s_own(tiny_model, tokens):
    """At temperature 1, whatever penalty and filters made of them, and with what may not be drawn."""
    model, prompt = tiny_model(), tokens(5)
    options = dict(temperature=0.3, top_k=9, top_p=0.8, min_p=0.05, repetition_penalty=1.4, token_ids=range(40))
    steps = list(generate(model, prompt, 9, num_samples=3, **options))
    made = torch.stack([step.ids for step in steps], dim=1)
    with torch.no_grad():
        logits = model(torch.cat((prompt.expand(3, -1), made), dim=1))[:, 4:-1]
    expected = logits.log_softmax(-1).gather(-1, made[..., None])[..., 0]
    got = torch.stack([step.logprobs for step in steps], dim=1)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


# From tokens to text


def pieces_of(tokenizer, prompt_ids, ids, stops=()):
    """What each token makes readable, and last what still waits."""
    stream = TextStream(tokenizer, prompt_ids, stops)
    return [*(stream.write(token) for token in ids), stream.finish()]


@pytest.fixture(scope="module")
def byte_tokenizer():
    return train_tokenizer(TokenizerConfig(kind="byte"), [])


@pytest.mark.parametrize(
    "text, pieces",
    [
        (" é€😀 z".encode(), [" ", "", "é", "", "", "€", "", "", "", "😀", " ", "z", ""]),
        ("né".encode()[:-1], ["n", "", ""]),  # at the end an unfinished one is left out
    ],
)
def test_streamed_text_has_no_half_characters(byte_tokenizer, text, pieces):
    assert pieces_of(byte_tokenizer, [97], text) == pieces


def test_only_the_unfinished_character_is_held_back():
    tokenizer = Tokenizer(models.BPE({"x": 0, "Ã": 1, "xÃ": 2}, [("x", "Ã")]))  # Ã stands for the byte C3
    tokenizer.decoder = decoders.ByteLevel()
    assert pieces_of(tokenizer, [0], [0, 2]) == ["x", "x", ""]


def fallback_tokenizer(*more):
    """As Llama 2's: characters that are no tokens become tokens of one byte each, here 0 to 255."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "▁a", "é", "你", *more]
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, [], byte_fallback=True))
    spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    return tokenizer


def test_bytes_are_printed_when_no_later_one_can_break_them():
    """One wrong byte in a row makes all of them U+FFFD; special tokens do not end the row."""
    tokenizer, a, face = fallback_tokenizer(), 257, list("😀".encode())
    tokenizer.add_special_tokens(["</s>"])
    end = tokenizer.token_to_id("</s>")
    assert pieces_of(tokenizer, [a], [a, *face, end, a]) == [" a", "", "", "", "", "", "😀 a", ""]
    assert pieces_of(tokenizer, [a], [*face, end, face[0], a])[-3:] == ["", 5 * "\ufffd" + " a", ""]
    assert pieces_of(tokenizer, [a], [a, *face]) == [" a", "", "", "", "", "😀"]
    assert pieces_of(tokenizer, [a], [a, *face[:3]]) == [" a", "", "", "", ""]


def word_tokenizer(decoder):
    words = ["a", "##b", "b</w>", "▁c", "▁", "", ".", "n't", "é", "\ufffd", "<0xC3>", "<0x41>"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}))
    tokenizer.decoder = decoder
    return tokenizer


TOKENIZERS = {
    "bytes": lambda: train_tokenizer(TokenizerConfig(kind="byte"), []),
    "byte fallback": fallback_tokenizer,
    "SentencePiece": lambda: word_tokenizer(decoders.Metaspace()),
    "WordPiece": lambda: word_tokenizer(decoders.WordPiece()),
    "word ends": lambda: word_tokenizer(decoders.BPEDecoder()),
    "no decoder": lambda: word_tokenizer(None),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_streamed_text_is_that_of_decoding_all_at_once(kind):
    """Any ids, as an untrained model draws them: whole and broken characters, special tokens, and ids of no token."""
    tokenizer, rng = TOKENIZERS[kind](), random.Random(0)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = [*tokenizer.get_vocab().values(), 500]
    start, a = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("▁a" if kind == "byte fallback" else "a")
    for count in [*range(60), 400]:
        prompt = [start] + count % 7 * [a] + count % 2 * [0xEC]  # which is no whole character, or no token
        few = rng.choices(ids, k=rng.choice([2, 4, 300]))
        made = rng.choices(few, k=count) + list("é😀".encode())[: rng.randrange(7)]
        text = tokenizer.decode(prompt + made)[len(tokenizer.decode(prompt)) :]
        assert "".join(pieces_of(tokenizer, prompt, made)) == text.rstrip("\ufffd")


@pytest.mark.parametrize("byte", [0x61, 0x80])
@pytest.mark.parametrize("kind", ["bytes", "byte fallback"])
def test_a_long_text_is_decoded_a_bounded_number_of_times(kind, byte):
    tokenizer, sizes = TOKENIZERS[kind](), []
    counted = SimpleNamespace(
        decode=lambda ids: sizes.append(len(ids)) or tokenizer.decode(ids),
        id_to_token=tokenizer.id_to_token,
        get_added_tokens_decoder=tokenizer.get_added_tokens_decoder,
    )
    pieces_of(counted, [97], [byte] * 1000)
    assert sum(sizes) < 20_000


@pytest.mark.parametrize("prompt", ["a", "b a"])
def test_streamed_text_keeps_the_space_of_its_first_word(prompt):
    """Llama's tokenizer writes a space as part of a word, and drops that of the first word it decodes."""
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1}))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert tokenizer.decode([1]) == "b"
    pieces = pieces_of(tokenizer, tokenizer.encode(prompt).ids, [1, 0, 1])
    assert pieces == [" b", " a", " b", ""]


def cut(text, stops):
    """The text before the first stop text to be complete, read character by character."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return text[:start]
    return text


def test_a_stop_text_is_cut_exactly_whatever_tokens_it_comes_in():
    """Across tokens, within one, at once with text after it, one inside another; and no piece of it is given early."""
    words = ["a", "b", "c", "ab", "ba", "bc", "aab", "abcab", "ccc"]
    tokenizer, rng = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)})), random.Random(0)
    tokenizer.decoder = decoders.Fuse()
    stopped = 0
    for _ in range(1500):
        ids = rng.choices(range(len(words)), k=rng.randrange(12))
        stops = ["".join(rng.choices("abc", k=rng.randrange(1, 5))) for _ in range(rng.randrange(4))]
        text, stream, given = "".join(words[n] for n in ids), TextStream(tokenizer, [0], stops), ""
        for n, token in enumerate(ids):
            given += stream.write(token)
            whole = "".join(words[each] for each in ids[: n + 1])
            assert cut(whole, stops).startswith(given) and stream.stopped == (cut(whole, stops) != whole)
            assert given == cut(whole, stops) or any(stop.startswith(whole[len(given) :]) for stop in stops)
        assert given + stream.finish() == cut(text, stops)
        stopped += stream.stopped
    assert 500 < stopped < 1400


def test_a_stop_text_may_come_with_the_last_bytes():
    """They wait for a token of another kind, or for the end."""
    tokenizer, face = fallback_tokenizer(), list("😀".encode())
    assert pieces_of(tokenizer, [257], [257, *face], ["😀"]) == [" a", "", "", "", "", ""]
    assert "".join(pieces_of(tokenizer, [257], [257, *face, 257], ["a😀"])) == " "


# Weights in half precision


def test_a_cpu_reads_the_prompt_in_float32_and_decodes_in_bfloat16(scheme, tiny_model, tokens):
    """A prompt in bfloat16 takes a hundred times as long; the model that was given stays as it is."""
    model, passes = tiny_model(scheme, torch.float32), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    last = model.layers[-1].mlp.down_proj
    last.register_forward_hook(lambda module, args, out: passes.append((out.shape[1], module.weight.dtype)))
    got = rows(generate(Context(model, torch.bfloat16), tokens(5), 4, temperature=0, num_samples=2))
    if packs(torch.device("cpu"), torch.bfloat16, rows=1):
        assert decoding_model(model, torch.bfloat16).embed_tokens.weight is model.embed_tokens.weight
    assert passes == [(5, torch.float32)] + 3 * [(1, torch.bfloat16)]
    assert got.shape == (2, 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_a_long_text_decoded_in_bfloat16_stays_close_to_float64(attention, tiny_model, tokens):
    """Keys cached in float32 meet queries in bfloat16; sums over hundreds of tokens would lose the next one."""
    model, ids = tiny_model("rope", attention=attention), tokens(1, 600)
    expected = model(ids)[0, 500:]
    cache, decoding = Cache(), decoding_model(model.float(), torch.bfloat16)
    for part in ids[:, :500].split(300, dim=1):  # in two parts, after which the cache has room for what follows
        model(part, cache)
    got = torch.cat([decoding(token, cache)[0] for token in ids[:, 500:].split(1, dim=1)])
    assert (got - expected).norm() < 0.02 * expected.norm()
