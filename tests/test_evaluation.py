import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from comparison import losses
from comparison.inference import mean_and_spread
from comparison.losses import effective_context, losses_by_length
from comparison.results import Point
from comparison.tables import few_tokens
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
    one_by_one, whole = (losses_by_length(model, stream, 4) for model in (Limited(sequences, FULL), Bigram()))
    for found, expected in zip(one_by_one, whole):
        assert dict(found) == pytest.approx(dict(expected), rel=1e-6)


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

    assert evaluate(Signalled(), tokens(100), CONTEXT, lambda: max(signals, default=0)) is None
    assert passes == [2, 2, 2]


# By length: with a context of 16 tokens lengths of 1 to 128, and blocks of 4 targets

SIXTEEN = [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("length", [129, 136, 137, 300, 999])
@pytest.mark.parametrize("tokens_a_pass", [1, 64, 10_000])
def test_the_same_tokens_are_scored_with_every_context(length, tokens_a_pass, monkeypatch):
    """Scoring other tokens at 4x than at 1x would compare texts, not contexts."""
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", tokens_a_pass)
    by_context, _ = losses_by_length(Bigram(), tokens(length), 16)
    assert [n for n, _ in by_context] == SIXTEEN
    assert [loss for _, loss in by_context] == pytest.approx([by_context[0][1]] * 8, rel=1e-6)


def test_scored_blocks_lie_side_by_side_where_all_of_them_fit():
    stream = tokens(229)  # targets 125 … 228 are 26 blocks of 4
    by_context, _ = losses_by_length(Bigram(), stream, 16)
    assert dict(by_context)[64] == pytest.approx(sum(Bigram().nats(stream[124:])) / 104, rel=1e-6)


def test_blocks_and_windows_are_spread_from_the_first_to_the_last_possible(monkeypatch):
    monkeypatch.setattr(losses, "TARGETS", 12)
    stream = tokens(229)
    nats = Bigram().nats(stream)  # nats[i] is that of token i + 1
    by_context, by_position = map(dict, losses_by_length(Bigram(), stream, 16))  # windows at 0, 50 and 100
    expected = sum(nats[124:128] + nats[174:178] + nats[224:228]) / 12
    assert [by_context[1], by_context[128]] == pytest.approx([expected] * 2, rel=1e-6)
    assert by_position[2] == pytest.approx(sum(nats[:2] + nats[50:52] + nats[100:102]) / 6, rel=1e-6)
    assert by_position[128] == pytest.approx(sum(nats[96:128] + nats[146:178] + nats[196:228]) / 96, rel=1e-6)


def test_losses_of_a_real_model_token_by_token(model):
    """Targets 125 to 132, each after a window of its own; positions in the windows at 0 and 4."""
    stream = tokens(133)
    by_context, by_position = losses_by_length(model, stream, 16)
    scored = {1: 1, 2: 1, 4: 1, 8: 2, 16: 4, 32: 4, 64: 4, 128: 4}  # of a window
    for (length, loss), last in zip(by_context, scored.values(), strict=True):
        befores = {target: length - last + 1 + (target - 125) % last for target in range(125, 133)}
        nats = [written_out(model, stream, [target - before], before, 1) for target, before in befores.items()]
        assert loss == pytest.approx(sum(nats) / 8, rel=1e-6), length
    assert len({round(loss, 3) for _, loss in by_context}) == 8
    ends = [2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert [end for end, _ in by_position] == ends
    for begin, (end, loss) in zip([0, *ends], by_position):
        one_by_one = sum(written_out(model, stream, [0, 4], n, 1) for n in range(begin + 1, end + 1))
        assert loss == pytest.approx(one_by_one / (2 * (end - begin)), rel=1e-5)


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


@pytest.mark.parametrize(
    ("context", "scored"),  # length: how many targets of a window of that length
    [
        (1, {1: 1, 2: 1, 4: 1, 8: 1}),
        (3, {1: 1, 3: 1, 6: 1, 12: 1, 24: 1}),
        (20, {1: 1, 2: 1, 5: 1, 10: 2, 20: 4, 40: 4, 80: 4, 160: 4}),
        (44, {2: 1, 5: 1, 11: 2, 22: 4, 44: 8, 88: 8, 176: 8, 352: 8}),
    ],
)
def test_every_scored_token_has_the_context_up_to_a_quarter(context, scored):
    """Else a gain from 1x to 2x would be one from fewer tokens at the start of a window."""
    by_context, _ = losses_by_length(TellsItsContext(), numpy.zeros(500, numpy.uint16), context)
    assert all(4 * last <= length for length, last in scored.items() if last > 1)
    assert dict(by_context) == pytest.approx({n: n - (last - 1) / 2 for n, last in scored.items()}, rel=1e-6)


@pytest.mark.parametrize(
    ("context", "ends"),
    [
        (1, [1, 2, 3, 4, 6, 8]),
        (3, [1, 2, 3, 4, 6, 9, 12, 18, 24]),
        (44, [5, 11, 22, 33, 44, 66, 88, 132, 176, 264, 352]),
    ],
)
def test_the_last_position_of_a_bin_is_the_number_of_tokens_before_it(context, ends):
    """One bin ends at the trained context: what lies past it is in no bin with what doesn't."""
    _, by_position = losses_by_length(TellsItsContext(), numpy.zeros(500, numpy.uint16), context)
    assert [end for end, _ in by_position] == ends
    means = [(begin + 1 + end) / 2 for begin, end in zip([0, *ends], ends)]
    assert [loss for _, loss in by_position] == pytest.approx(means, rel=1e-6)


def test_no_loss_where_the_scheme_has_no_positions():
    """And where it has, that of the tokens that the others are scored on."""
    limited, whole = (losses_by_length(Bigram(limit), tokens(200), 16) for limit in (40, None))
    for found, expected in zip(limited, whole):
        known = {n: loss for n, loss in expected if n <= 40}
        assert {n: loss for n, loss in found if loss is not None} == pytest.approx(known, rel=1e-6)
        assert [n for n, _ in found] == [n for n, _ in expected]


def test_no_loss_where_the_text_is_shorter_than_the_window():
    for length, longest in {1: 0, 2: 1, 16: 8, 17: 16, 32: 16, 33: 32, 128: 64, 129: 128}.items():
        by_context, by_position = losses_by_length(Bigram(), tokens(length), 16)
        assert [n for n, loss in by_context if loss is not None] == [n for n in SIXTEEN if n <= longest]
        assert all((loss is not None) == (n <= longest) for n, loss in by_position)
    by_context, _ = losses_by_length(TellsItsContext(), numpy.zeros(12, numpy.uint16), 16)
    assert dict(by_context)[8] == pytest.approx(7.5, rel=1e-6), "of a window of 8 the last two"


def test_a_loss_that_is_not_finite_is_none():
    model = Bigram()
    model.table[3, 5] = math.nan
    by_context, by_position = losses_by_length(model, tokens(300), 16)
    assert {loss for _, loss in by_context} == {None} and None in dict(by_position).values()


# Effective context


def points(losses):
    return [Point(**vars(mean_and_spread([loss])), x=x, low=loss, high=loss) for x, loss in losses.items()]


FALLING = {8: 4.0, 16: 3.5, 32: 3.2, 64: 3.03, 128: 3.0}


def test_the_effective_context_lies_where_the_loss_comes_within_005():
    """On a line in log2 of the length: from 64 (3.03) to 32 (3.2), 3.05 is two 17ths of the way."""
    assert effective_context(points(FALLING), 128) == pytest.approx(64 / 2 ** (2 / 17), rel=1e-12)
    assert effective_context(points({16: 3.5, 48: 3.15, 128: 3.0}), 128) == pytest.approx(128 * (48 / 128) ** (1 / 3))


def test_what_lies_past_the_trained_context_does_not_count():
    assert effective_context(points({**FALLING, 256: 9.0, 512: None}), 128) == effective_context(points(FALLING), 128)
    assert effective_context(points(FALLING), 64) == pytest.approx(64 / 2 ** (5 / 17), rel=1e-12)


def test_who_looks_at_nothing_needs_no_more_than_the_shortest():
    assert effective_context(points({8: 3.04, 64: 2.98, 128: 3.0}), 128) == 8
    assert few_tokens(points({8: 3.04, 64: 2.98, 128: 3.0}), 128) == "≤ 8", "as fewer may do"
    assert few_tokens(points(FALLING), 128) == "59" and few_tokens([], 128) == "n/a"


def test_a_length_that_is_as_good_by_chance_below_one_that_is_not_does_not_count():
    assert effective_context(points({8: 3.0, 64: 3.2, 128: 3.0}), 128) == pytest.approx(128 / 2 ** (1 / 4), rel=1e-12)


def test_the_effective_context_is_unknown_where_a_loss_that_decides_is():
    assert effective_context([], 128) is None
    assert effective_context(points({64: 3.0, 256: 3.0}), 128) is None
    assert effective_context(points({**FALLING, 128: None}), 128) is None
    assert effective_context(points({**FALLING, 64: None}), 128) is None
    assert effective_context(points({**FALLING, 16: None}), 128) is not None
