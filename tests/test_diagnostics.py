import math
import string

import numpy
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from comparison import diagnostics
from comparison.diagnostics import attention_by_distance, embedding_rms, exact_match, parts_answers
from comparison.results import EmbeddingRms
from data.config import TokenizerConfig
from data.documents import END_OF_TEXT
from data.synthetic import examples
from data.tokenizer import encode, train_tokenizer
from model import attention
from model.config import ModelConfig
from model.generation import generate
from model.transformer import Transformer
from training import evaluation

SLOPES = [0.25, 0.0625, 0.015625, 0.00390625]  # of ALiBi with four heads


@pytest.fixture(scope="module")
def tokenizer():
    """Of single characters, for all tasks."""
    return train_tokenizer(TokenizerConfig(kind="char"), [string.ascii_letters + string.digits + "=+"])


def end_of(tokenizer):
    return tokenizer.token_to_id(END_OF_TEXT)


def stream(length, seed=0):
    return numpy.random.default_rng(seed).integers(48, size=length).astype(numpy.uint16)


# Exact match


def decoded(model, tokenizer, prompt, length):
    """What greedy decoding gives, token by token, up to `length` of them."""
    end = end_of(tokenizer)
    ids = torch.tensor([end, *encode(tokenizer, prompt)])
    return [step.ids.item() for step in generate(model, ids, length, temperature=0.0, stop_ids=(end,))]


class Solver(nn.Module):
    """Answers as a function of the text so far says; counts the tokens it is shown at once."""

    def __init__(self, tokenizer, answer):
        super().__init__()
        self.tokenizer, self.answer, self.passes = tokenizer, answer, []
        self.output_weight, self.position = torch.zeros(1), nn.Module()
        self.position.max_length = None

    def forward(self, input_ids):
        self.passes.append(input_ids.numel())
        logits = torch.zeros(*input_ids.shape, self.tokenizer.get_vocab_size())
        for row, ids in enumerate(input_ids.tolist()):
            text = self.tokenizer.decode(ids[1:], skip_special_tokens=False)
            for place in range(len(ids)):
                logits[row, place, self.tokenizer.token_to_id(self.answer(text[:place]))] = 1.0
        return logits


def copier(text):
    """Copies what stands before the equals sign; a text without one, and one copied whole, ends."""
    letters, equals, made = text.partition("=")
    return letters[len(made)] if equals and len(made) < len(letters) else END_OF_TEXT


def test_who_copies_gets_all_right_and_who_errs_gets_what_is_left(tokenizer):
    assert exact_match(Solver(tokenizer, copier), tokenizer, end_of(tokenizer), "copy", [1, 5, 40], 30) == {
        1: 1.0,
        5: 1.0,
        40: 1.0,
    }

    def stumbles(text):
        """Writes every j as an a."""
        return copier(text).replace("j", "a")

    def never_ends(text):
        return copier(text).replace(END_OF_TEXT, "a")

    without_j = sum("j" not in prompt for prompt, _ in examples("copy", 9, 50, seed=4)) / 50
    assert 0.2 < without_j < 0.6
    assert exact_match(Solver(tokenizer, stumbles), tokenizer, end_of(tokenizer), "copy", [9], 50, seed=4) == {
        9: without_j
    }
    assert exact_match(Solver(tokenizer, never_ends), tokenizer, end_of(tokenizer), "copy", [9], 50, seed=4) == {9: 0.0}


def test_memory_is_bounded_whatever_the_count(tokenizer, monkeypatch):
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", 100)
    solver = Solver(tokenizer, copier)
    assert exact_match(solver, tokenizer, end_of(tokenizer), "copy", [9, 70], 25) == {9: 1.0, 70: 1.0}
    assert max(solver.passes) == 142 and sorted(set(solver.passes))[-2] == 100


def test_an_exact_match_is_what_greedy_decoding_would_have_given(scheme, tokenizer, tiny_model, monkeypatch, full):
    """Of answers of many lengths: what the model itself goes on with, every third with a token changed."""
    count = 60 if full else 20
    model = tiny_model(scheme, vocab_size=tokenizer.get_vocab_size(), initializer_range=0.7)
    end = end_of(tokenizer)
    with torch.no_grad():
        model.output_weight[end] *= 2  # or few answers would end
    made, right = [], 0
    for number, (prompt, _) in enumerate(examples("copy", 5, count, seed=1)):
        said = decoded(model, tokenizer, prompt, 20)
        answer = said[:-1]  # which is followed by end-of-text, or by another token that it doesn't have
        changed = number % 3 == 0 and len(answer) > 0
        if changed:
            answer[number % len(answer)] = (answer[number % len(answer)] + 1) % end
        made.append((prompt, tokenizer.decode(answer)))
        right += said[-1] == end and not changed
    assert 0.05 < right / count < 0.75 and len({len(answer) for _, answer in made}) > 2
    monkeypatch.setattr(diagnostics, "examples", lambda *_: made)
    assert exact_match(model, tokenizer, end_of(tokenizer), "copy", [5], len(made)) == {5: right / len(made)}


def test_what_a_tokenizer_adds_by_itself_is_no_part_of_an_answer(tokenizer):
    """A tokenizer of another model may put a token before each text, and end texts with one of another name."""
    other = Tokenizer.from_str(tokenizer.to_str().replace(END_OF_TEXT, "</s>"))
    end = other.token_to_id("</s>")
    other.post_processor = TemplateProcessing(single="</s> $A", special_tokens=[("</s>", end)])
    solver = Solver(other, lambda text: copier(text).replace(END_OF_TEXT, "</s>"))
    assert exact_match(solver, other, end, "copy", [3], 20) == {3: 1.0}


@pytest.mark.parametrize(
    ("task", "parted"), [("copy", True), ("addition", True), ("induction", False), ("recall", False)]
)
def test_bpe_joins_an_answer_with_the_letter_before_it(tokenizer, task, parted):
    texts = ["".join(each) for length in range(1, 5) for each in examples(task, length, 500, seed=3)]
    bpe = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), texts)
    assert parts_answers(bpe, task) == parted and parts_answers(tokenizer, task)


def test_a_length_past_the_table_is_not_scored(tokenizer, tiny_model):
    """The last answered token is asked for at its position, and end-of-text one later."""
    model = tiny_model("learned", vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=22)
    scores = exact_match(model, tokenizer, end_of(tokenizer), "copy", [9, 10, 11], 5)
    assert scores[9] is not None and scores[10] is not None and scores[11] is None


# Attention by distance


def written_out(model, tokens):
    """Weights (layer, head, query, key) and scores, in float64, score by score, from what each block is given."""
    inputs, length, config = [], len(tokens), model.config
    norms = [block.input_layernorm for block in model.layers]
    hooks = [norm.register_forward_hook(lambda *call: inputs.append(call[2][0])) for norm in norms]
    with torch.no_grad():
        model(torch.from_numpy(tokens.astype(numpy.int64))[None])
    [hook.remove() for hook in hooks]
    scheme, positions = model.position, torch.arange(length)
    d, scores = config.head_dim, torch.full((2, 4, length, length), -math.inf, dtype=torch.float64)
    for layer, (x, block) in enumerate(zip(inputs, model.layers)):
        attention = block.self_attn
        rotation, key_rotation, bias, temperature = (
            found[layer] if isinstance(found, list) else found
            for found in (scheme.rotation(positions), scheme.key_rotation(positions),
                          scheme.bias(positions, positions), scheme.temperature(positions))
        )  # fmt: skip
        q, k = ((x @ p.weight.T).view(length, -1, d).detach() for p in (attention.q_proj, attention.k_proj))
        q, k = (t.detach()[0] for t in scheme.features(layer, q[None], k[None]))
        if temperature is not None:
            q = q * temperature.expand(4, -1).mT[..., None]
        if scheme.overrides("content_bias"):
            seen = x[None], q.transpose(0, 1)[None], k.transpose(0, 1)[None], positions, positions
            kept = scheme.kept(layer, x[None])
            bias = scheme.content_bias(layer, *seen, *kept, *scheme.shared(layer, *seen[1:], *kept))[0]
        if rotation is not None:
            turns = (torch.complex(*(t.double() for t in how))[:, None] for how in (rotation, key_rotation or rotation))
            in_halves = scheme.layout == "half"
            pairs = (t.chunk(2, -1) if in_halves else (t[..., 0::2], t[..., 1::2]) for t in (q, k))
            q, k = (torch.complex(*pair) * z for pair, z in zip(pairs, turns))
        for head in range(4):
            for i in range(length):
                for j in range(i + 1):
                    score = (q[i, head] * k[j, head // 2].conj()).sum().real / math.sqrt(d)
                    added = 0.0 if bias is None else bias.expand(4, -1, -1)[head, i, j].item()
                    scores[layer, head, i, j] = score + added
    return scores.softmax(dim=-1), scores


def test_mass_and_largest_logit_as_written_out(scheme, tiny_model):
    model, tokens = tiny_model(scheme), stream(11)
    found = attention_by_distance(model, tokens, context=11)
    weights, scores = written_out(model, tokens)
    assert found.distances == [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 10)]
    for layer in range(2):
        for head in range(4):
            at = weights[layer, head]
            for (first, last), mass in zip(found.distances, found.mass[layer][head], strict=True):
                near = [at[i, j].item() for i in range(11) for j in range(i + 1) if first <= i - j <= last]
                assert mass == pytest.approx(sum(near) / 11, abs=1e-7)
            assert found.largest_logit[layer][head] == pytest.approx(scores[layer, head].max().item(), rel=1e-6)


def test_a_model_is_what_it_was_and_its_logits_are_not_touched(scheme, tiny_model, tokens):
    model, before = tiny_model(scheme), tiny_model(scheme)
    attention_by_distance(model, stream(30), context=10)
    assert torch.equal(model(tokens(2, 9)), before(tokens(2, 9)))


def test_windows_are_averaged_and_the_largest_logit_is_that_of_all(tiny_model, monkeypatch):
    model, text = tiny_model("rope"), stream(40)
    parts = [attention_by_distance(model, text[start : start + 8], 8) for start in (0, 16, 32)]
    monkeypatch.setattr(diagnostics, "WINDOWS", 3)
    whole = attention_by_distance(model, text, 8)
    for key, join in (("mass", numpy.mean), ("largest_logit", numpy.max)):
        joined = join([getattr(part, key) for part in parts], axis=0)
        assert numpy.allclose(getattr(whole, key), joined, rtol=1e-6, atol=0)


def test_who_does_not_care_looks_everywhere_alike(tiny_model):
    """With queries of zero the weight of query i is 1 / (i + 1) on each distance up to i."""
    model, text = tiny_model("rope"), stream(32)
    with torch.no_grad():
        for block in model.layers:
            block.self_attn.q_proj.weight.zero_()
    found = attention_by_distance(model, text, 16)
    at = [sum(1 / (i + 1) for i in range(distance, 16)) / 16 for distance in range(16)]
    expected = [at[0], at[1], at[2], sum(at[3:5]), sum(at[5:9]), sum(at[9:])]
    assert numpy.allclose(found.mass, expected, rtol=1e-6, atol=0)
    assert found.distances[-1] == (9, 15) and numpy.allclose(found.largest_logit, 0)


def test_equal_keys_under_alibi_are_seen_as_far_as_its_slope_says(tiny_model):
    model, text = tiny_model("alibi"), stream(32)
    with torch.no_grad():
        for block in model.layers:
            block.self_attn.q_proj.weight.zero_()
    found = attention_by_distance(model, text, 16)
    for head, slope in enumerate(SLOPES):
        falls = [math.exp(-slope * distance) for distance in range(16)]
        at_itself = sum(1 / sum(falls[: i + 1]) for i in range(16)) / 16
        assert found.mass[0][head][0] == pytest.approx(at_itself, rel=1e-6)
        assert found.mass[1][head][3] == pytest.approx(
            sum(sum(falls[3 : min(i, 4) + 1]) / sum(falls[: i + 1]) for i in range(3, 16)) / 16, rel=1e-6
        )


@pytest.mark.parametrize("length", [1, 2, 3, 17])
def test_bins_cover_each_distance_once_and_the_mass_adds_up_to_one(length, tiny_model):
    found = attention_by_distance(tiny_model("t5"), stream(2 * length), length)
    covered = [distance for first, last in found.distances for distance in range(first, last + 1)]
    assert covered == list(range(length))
    assert numpy.allclose(numpy.sum(found.mass, axis=-1), 1, rtol=1e-6)
    assert numpy.shape(found.mass) == (2, 4, len(found.distances))


def test_a_layer_that_a_scheme_leaves_out_is_recorded_like_the_others(tiny_model):
    found = attention_by_distance(tiny_model({"scheme": "alibi", "every": 2}), stream(20), 10)
    assert numpy.shape(found.mass)[0] == 2


def test_linear_attention_has_no_softmax_to_look_at(tiny_model):
    assert attention_by_distance(tiny_model("rope", attention="linear"), stream(20), 10) is None


@pytest.mark.parametrize("position", ["none", "rope", "fox", "window", {"scheme": "alibi", "every": 2}], ids=str)
def test_queries_in_blocks_are_recorded_as_if_at_once(position, tiny_model, monkeypatch):
    """Of a layer in one call, too, next to one in several; then too all scores are never there at once."""
    whole = attention_by_distance(tiny_model(position), stream(40), 16)
    monkeypatch.setattr(attention, "SCORES", 5 * 16)
    monkeypatch.setattr(diagnostics, "SCORES", 3 * 16)
    softmax, sizes = Tensor.softmax, []
    monkeypatch.setattr(Tensor, "softmax", lambda x, *a, **k: sizes.append(x[0].numel()) or softmax(x, *a, **k))
    blocks = attention_by_distance(tiny_model(position), stream(40), 16)
    for key in ("mass", "largest_logit"):
        assert numpy.allclose(getattr(whole, key), getattr(blocks, key), rtol=1e-6, atol=0)
    assert sizes and max(sizes) <= 3 * 16


def test_a_low_precision_model_is_looked_at_in_float32(tiny_model):
    found = attention_by_distance(tiny_model("rope", dtype=torch.bfloat16), stream(64), 64)
    assert numpy.allclose(numpy.sum(found.mass, axis=-1), 1, rtol=1e-5)
    largest = torch.tensor(found.largest_logit)
    assert (largest.bfloat16() != largest).all()


# Sizes


@pytest.mark.parametrize(
    ("position", "size"), [("sinusoidal", 0.05), ("learned", 0.05), ({"scheme": "sinusoidal", "rms": 0.7}, 0.7)]
)
def test_an_added_encoding_starts_at_the_size_of_the_embeddings_or_its_own(position, size):
    """Or it drowns them, or they it, and the comparison is one of sizes."""
    shape = dict(vocab_size=500, hidden_size=256, num_hidden_layers=1, num_attention_heads=4, initializer_range=0.05)
    sizes = embedding_rms(Transformer(ModelConfig(**shape, position=position)))
    assert (sizes.tokens, sizes.position) == (pytest.approx(0.05, rel=0.02), pytest.approx(size, rel=0.02))


def test_sizes_by_hand(tiny_config):
    model = Transformer(tiny_config("learned", max_position_embeddings=2))
    with torch.no_grad():
        model.embed_tokens.weight.fill_(3.0)
        model.position.table.weight[0].fill_(1.0)
        model.position.table.weight[1].fill_(-7.0)
    assert embedding_rms(model) == EmbeddingRms(3.0, 5.0)


def test_only_what_is_added_to_the_embeddings_has_a_size(scheme, tiny_model):
    model = tiny_model(scheme)
    assert (embedding_rms(model).position is not None) == model.position.overrides("embedding")
