import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from comparison import losses
from comparison.losses import loss_by_context, loss_by_position
from model.config import ModelConfig
from model.transformer import Transformer
from training import evaluation
from training.evaluation import bits_per_byte, evaluate

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
        self.table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
        self.output_weight, self.position = torch.eye(VOCAB), SimpleNamespace(max_length=max_length)

    def hidden_states(self, input_ids):
        return self.table[input_ids]

    def nats(self, tokens):
        """Of each token but the first."""
        log_probs = self.table.double().log_softmax(-1)
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
def test_loss_is_that_of_windows_side_by_side_whatever_the_pass(model, length, tokens_a_pass, monkeypatch):
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", tokens_a_pass)
    stream = tokens(length)
    expected = written_out(model, stream, range(0, length - 1, CONTEXT), CONTEXT, CONTEXT)
    assert evaluate(model, stream, CONTEXT) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tokens_a_pass", [1, 24, 10_000])
def test_unpacked_documents_are_scored_by_themselves(model, tokens_a_pass, monkeypatch):
    """One much longer than the context in pieces, each as if it were the first."""
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", tokens_a_pass)
    end, stream, expected = VOCAB - 1, tokens(90) % (VOCAB - 1), 0.0
    ends = [0, 2, 5, 9, 12, 50, 58, 67, 70, 90]
    stream[ends[:-1]] = end
    for start, after in zip(ends, ends[1:]):
        document = stream[start : after + 1]
        expected += written_out(model, document, range(0, len(document) - 1, CONTEXT), CONTEXT, CONTEXT)
    assert evaluate(model, stream, CONTEXT, end_of_text=end) == pytest.approx(expected, rel=1e-6)
    assert evaluate(Bigram(), stream, CONTEXT, end_of_text=end) == pytest.approx(sum(Bigram().nats(stream)), rel=1e-6)


def test_large_token_ids_are_not_taken_for_negative():
    model = Bigram()
    model.table, model.output_weight = torch.zeros(65_536, 2).index_fill(1, torch.tensor(1), 3.0), torch.eye(2)
    stream = numpy.array([65_535, 1, 1], numpy.uint16)
    assert evaluate(model, stream, 2) == pytest.approx(2 * math.log(1 + math.exp(-3)), rel=1e-6)


def test_bits_per_byte_of_guessing_bytes_is_eight():
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8, rel=1e-12)
    assert bits_per_byte(500 * math.log(256), 1000) == pytest.approx(4, rel=1e-12)  # two bytes a token


class Limited(Bigram):
    """On a device whose memory holds so many sequences at once; notes how many went through."""

    def __init__(self, sequences, error):
        super().__init__()
        self.sequences, self.error, self.passes = sequences, error, []

    def hidden_states(self, input_ids):
        self.passes.append(len(input_ids))
        if len(input_ids) > self.sequences:
            raise self.error
        return super().hidden_states(input_ids)


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize("sequences", [1, 3])
def test_where_memory_ends_passes_shrink_and_all_is_scored_once(sequences):
    stream = tokens(100)  # 12 windows and a rest of 3
    model = Limited(sequences, FULL)
    assert evaluate(model, stream, CONTEXT) == pytest.approx(sum(Bigram().nats(stream)), rel=1e-6)
    assert model.passes == ([12, 6, 3] + [3] * 3 if sequences == 3 else [12, 6, 3] + [1] * 12) + [1]
    for score in (lambda m: loss_by_context(m, stream, CONTEXT, (1, 2)), lambda m: loss_by_position(m, stream, 4, 2)):
        one_by_one, whole = (score(model) for model in (Limited(sequences, FULL), Bigram()))
        assert numpy.array(one_by_one) == pytest.approx(numpy.array(whole), rel=1e-6)


def test_a_sequence_that_no_memory_holds_and_another_error_are_raised():
    for sequences, error in ((0, FULL), (3, RuntimeError("a defect"))):
        with pytest.raises(RuntimeError, match=str(error)):
            evaluate(Limited(sequences, error), tokens(100), CONTEXT)


def test_a_signal_ends_an_evaluation_after_the_pass_under_way(monkeypatch):
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", 2 * CONTEXT)
    signals, passes = [], []

    class Signalled(Bigram):
        def hidden_states(self, input_ids):
            passes.append(len(input_ids))
            signals.extend([15] * (len(passes) == 3))
            return super().hidden_states(input_ids)

    assert evaluate(Signalled(), tokens(100), CONTEXT, signals) is None
    assert passes == [2, 2, 2]


# By context: CONTEXT 8, so blocks of 2


@pytest.mark.parametrize("length", [33, 40, 41, 97, 150, 999])
@pytest.mark.parametrize("tokens_a_pass", [1, 64, 10_000])
def test_the_same_tokens_are_scored_at_every_multiple(length, tokens_a_pass, monkeypatch):
    """Scoring other tokens at 4x than at 1x would compare texts, not contexts."""
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", tokens_a_pass)
    one, two, four = loss_by_context(Bigram(), tokens(length), CONTEXT, (1, 2, 4))
    assert one == pytest.approx(two, rel=1e-6) and one == pytest.approx(four, rel=1e-6)


def test_scored_blocks_lie_side_by_side_where_all_of_them_fit():
    stream = tokens(97)  # targets 31 … 96 are 33 blocks of 2
    expected = sum(Bigram().nats(stream[30:])) / 66
    assert loss_by_context(Bigram(), stream, CONTEXT, (1, 4)) == pytest.approx([expected] * 2, rel=1e-6)


def test_scored_blocks_are_spread_from_the_first_to_the_last_possible(monkeypatch):
    monkeypatch.setattr(losses, "TARGETS", 6)
    stream = tokens(133)
    nats = Bigram().nats(stream)  # nats[i] is that of token i + 1
    expected = sum(nats[30:32] + nats[80:82] + nats[130:132]) / 6
    assert loss_by_context(Bigram(), stream, CONTEXT, (4,)) == pytest.approx([expected], rel=1e-6)


def test_loss_by_context_of_a_real_model_token_by_token(model):
    """Each target after a window of its own, cut so that it has 7 or 8, 15 or 16, 31 or 32 tokens before it."""
    stream, expected = tokens(97), []
    for length in (8, 16, 32):
        nats = []
        for target in range(31, 97):
            before = length - target % 2  # targets come in pairs, the first with one token less
            nats.append(written_out(model, stream, [target - before], before, 1))
        expected.append(sum(nats) / 66)
    assert loss_by_context(model, stream, CONTEXT, (1, 2, 4)) == pytest.approx(expected, rel=1e-6)
    assert len({round(loss, 3) for loss in expected}) == 3


class TellsItsContext(Bigram):
    """Gives every token a loss of as many nats as it has tokens before it in the window."""

    def __init__(self):
        super().__init__()
        self.output_weight = torch.eye(2, dtype=torch.float64)

    def hidden_states(self, input_ids):
        before = torch.arange(1, input_ids.shape[1] + 1)
        # targets are all 0; of two tokens the other is e^before − 1 times as likely
        other = torch.expm1(before.double()).log()
        return torch.stack((torch.zeros_like(other), other), dim=-1).expand(len(input_ids), -1, -1)


@pytest.mark.parametrize("context", [8, 20])
def test_every_scored_token_has_the_context_up_to_a_stride(context):
    """Else a gain from 1x to 2x would be one from fewer tokens at the start of a window."""
    zeros, stride = numpy.zeros(400, numpy.uint16), context // 4
    found = loss_by_context(TellsItsContext(), zeros, context, (1, 2, 4))
    expected = [sum(range(n * context - stride + 1, n * context + 1)) / stride for n in (1, 2, 4)]
    assert found == pytest.approx(expected, rel=1e-6)


def test_no_loss_where_the_scheme_has_no_positions():
    one, two, four = loss_by_context(Bigram(max_length=16), tokens(97), CONTEXT, (1, 2, 4))
    assert one == two and not math.isnan(one) and math.isnan(four)
    assert [one, two] == loss_by_context(Bigram(), tokens(97), CONTEXT, (1, 2, 4))[:2], "the others' tokens"


def test_no_loss_where_the_text_is_shorter_than_the_window():
    lengths = {8: (), 9: (1,), 16: (1,), 17: (1, 2), 32: (1, 2), 33: (1, 2, 4)}
    for length, there in lengths.items():
        losses = loss_by_context(Bigram(), tokens(length), CONTEXT, (1, 2, 4))
        assert [not math.isnan(loss) for loss in losses] == [multiple in there for multiple in (1, 2, 4)], length


# By position: steps of 1, and of 2 at twice the context


def test_loss_by_position_of_a_real_model_window_by_window(model):
    stream = tokens(97)  # three windows of 32
    found = loss_by_position(model, stream, 2 * CONTEXT, 2)
    assert [end for end, _ in found] == list(range(2, 33, 2))
    for end, loss in found:
        one_by_one = sum(written_out(model, stream, [0, 32, 64], n, 1) for n in (end - 1, end))
        assert loss == pytest.approx(one_by_one / 6, rel=1e-5)


def test_the_last_position_of_a_bin_is_the_number_of_tokens_before_it():
    found = loss_by_position(TellsItsContext(), numpy.zeros(400, numpy.uint16), 24, 3)
    assert found == [(end, pytest.approx(end - 1, rel=1e-6)) for end in range(3, 73, 3)]


@pytest.mark.parametrize("context", [1, 3, 44])
def test_the_last_bin_ends_with_the_window_whatever_the_context(context):
    found = loss_by_position(TellsItsContext(), numpy.zeros(400, numpy.uint16), context, 3)
    ends, step = [end for end, _ in found], max(1, context // 8)
    assert ends == sorted({*range(step, 3 * context, step), 3 * context})
    assert found[-1][1] == pytest.approx(sum(range(ends[-2] + 1, ends[-1] + 1)) / (ends[-1] - ends[-2]), rel=1e-6)


def test_windows_by_position_are_spread_from_the_first_to_the_last(monkeypatch):
    monkeypatch.setattr(losses, "POSITION_TOKENS", 24)
    stream = tokens(100)
    nats = Bigram().nats(stream)
    found = dict(loss_by_position(Bigram(), stream, CONTEXT, 1))  # at 0, round(45.5) and 91
    assert found[1] == pytest.approx((nats[0] + nats[46] + nats[91]) / 3, rel=1e-6)
    assert found[8] == pytest.approx((nats[7] + nats[53] + nats[98]) / 3, rel=1e-6)


def test_no_loss_at_positions_that_a_scheme_lacks():
    limited, whole = (loss_by_position(Bigram(limit), tokens(97), 2 * CONTEXT, 2) for limit in (19, None))
    assert limited[:9] == [(end, pytest.approx(loss, rel=1e-6)) for end, loss in whole[:9]]
    assert [end for end, loss in limited if math.isnan(loss)] == [20, 22, 24, 26, 28, 30, 32]


def test_no_loss_by_position_of_a_text_shorter_than_the_window():
    assert all(math.isnan(loss) for _, loss in loss_by_position(Bigram(), tokens(32), CONTEXT, 4))
    assert not any(math.isnan(loss) for _, loss in loss_by_position(Bigram(), tokens(33), CONTEXT, 4))
