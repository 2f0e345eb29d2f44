import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.transformer import Transformer
from training import evaluation
from training.evaluation import bits_per_byte, evaluate, loss_by_context

CONTEXT, VOCAB = 8, 29


def tokens(length):
    return numpy.random.default_rng(5).integers(VOCAB, size=length).astype(numpy.uint16)


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, initializer_range=0.5
    )
    return Transformer(config)


class Bigram(nn.Module):
    """Logits that depend on the current token alone, so that no window changes them."""

    def __init__(self, max_length=None):
        super().__init__()
        table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
        self.output_weight, self.position = table, SimpleNamespace(max_length=max_length)

    def forward(self, input_ids, logits_to_keep=0):
        return self.output_weight[input_ids[:, -logits_to_keep:]]

    def nats(self, tokens):
        """Of each token but the first."""
        log_probs = self.output_weight.double().log_softmax(-1)
        return [-log_probs[a, b].item() for a, b in zip(tokens.tolist(), tokens[1:].tolist())]


def written_out(model, tokens, starts, length, scored):
    """Nats of the last `scored` targets of the windows at `starts`, one by one, loss and softmax in float64."""
    total = 0.0
    for start in starts:
        window = torch.from_numpy(tokens[start : start + length + 1].astype(numpy.int64))
        with torch.no_grad():
            logits = model(window[None, :-1])[0].double()
        log_probs = logits - logits.exp().sum(-1, keepdim=True).log()
        targets = window[1:]
        total -= log_probs[range(len(targets)), targets][-scored:].sum().item()
    return total


@pytest.mark.parametrize("length", [2, 3, 8, 9, 10, 16, 17, 18, 100, 121])
def test_every_token_is_scored_once_whatever_the_length(length):
    stream = tokens(length)
    assert evaluate(Bigram(), stream, CONTEXT) == pytest.approx(sum(Bigram().nats(stream)), rel=1e-6)


@pytest.mark.parametrize("length", [5, 9, 64, 65, 103])
@pytest.mark.parametrize("tokens_a_pass", [1, 8, 24, 10_000])
def test_loss_is_that_of_windows_side_by_side_however_many_go_through_at_once(
    model, length, tokens_a_pass, monkeypatch
):
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", tokens_a_pass)
    stream = tokens(length)
    expected = written_out(model, stream, range(0, length - 1, CONTEXT), CONTEXT, CONTEXT)
    assert evaluate(model, stream, CONTEXT) == pytest.approx(expected, rel=1e-6)


def test_large_token_ids_are_not_taken_for_negative():
    model = Bigram()
    model.output_weight = torch.zeros(65_536, 2).index_fill(1, torch.tensor(1), 3.0)
    stream = numpy.array([65_535, 1, 1], numpy.uint16)
    assert evaluate(model, stream, 2) == pytest.approx(2 * math.log(1 + math.exp(-3)), rel=1e-6)


def test_bits_per_byte_of_guessing_bytes_is_eight():
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8, rel=1e-12)
    assert bits_per_byte(500 * math.log(256), 1000) == pytest.approx(4, rel=1e-12)  # two bytes a token


@pytest.mark.parametrize("length", [33, 40, 41, 97, 150, 999])
@pytest.mark.parametrize("tokens_a_pass", [1, 64, 10_000])
def test_the_same_tokens_are_scored_at_every_multiple(length, tokens_a_pass, monkeypatch):
    """Scoring other tokens at 4x than at 1x would compare texts, not contexts."""
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", tokens_a_pass)
    one, two, four = loss_by_context(Bigram(), tokens(length), CONTEXT, (1, 2, 4))
    assert one == pytest.approx(two, rel=1e-6) and one == pytest.approx(four, rel=1e-6)


def test_scored_blocks_lie_side_by_side_where_all_of_them_fit():
    stream = tokens(97)  # 25 … 96 are nine blocks
    expected = sum(Bigram().nats(stream[24:])) / 72
    assert loss_by_context(Bigram(), stream, CONTEXT, (1, 4)) == pytest.approx([expected] * 2, rel=1e-6)


def test_scored_blocks_are_spread_from_the_first_to_the_last_possible(monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_BLOCKS", 3)
    stream = tokens(133)
    nats = Bigram().nats(stream)  # nats[i] is that of token i + 1
    expected = sum(nats[24:32] + nats[74:82] + nats[124:132]) / 24
    assert loss_by_context(Bigram(), stream, CONTEXT, (4,)) == pytest.approx([expected], rel=1e-6)


def test_loss_by_context_of_a_real_model_window_by_window(model):
    stream, ends = tokens(97), range(32, 97, CONTEXT)
    expected = [
        written_out(model, stream, [end - length for end in ends], length, CONTEXT) / 72 for length in (8, 16, 32)
    ]
    assert loss_by_context(model, stream, CONTEXT, (1, 2, 4)) == pytest.approx(expected, rel=1e-6)
    assert expected[0] == pytest.approx(evaluate(model, stream[24:], CONTEXT) / 72, rel=1e-6)
    assert len({round(loss, 3) for loss in expected}) == 3


def test_no_loss_where_the_scheme_has_no_positions():
    one, two, four = loss_by_context(Bigram(max_length=16), tokens(97), CONTEXT, (1, 2, 4))
    assert one == two and not math.isnan(one) and math.isnan(four)


def test_no_loss_where_the_text_is_shorter_than_the_longest_window():
    assert all(map(math.isnan, loss_by_context(Bigram(), tokens(32), CONTEXT, (1, 2, 4))))
    assert not any(map(math.isnan, loss_by_context(Bigram(), tokens(33), CONTEXT, (1, 2, 4))))
