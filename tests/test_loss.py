"""The loss and its gradient in parts are those of all logits, which are never there at once."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from comparison.losses import losses_by_length
from configs import TrainConfig
from data.batches import IGNORED
from training import evaluation, loss
from training.evaluation import evaluate
from training.loss import summed_loss, token_losses
from training.optimizer import build_optimizer
from training.step import optimizer_step

VOCAB, T = 48, 9


@pytest.fixture(
    params=[VOCAB - 1, 5 * VOCAB, 6 * VOCAB, 99 * VOCAB], ids=["too small", "uneven", "even", "all at once"]
)
def parts(request, monkeypatch):
    """How the 2 · 9 tokens of a batch meet the bound on logits."""
    monkeypatch.setattr(loss, "LOGITS", request.param)


@pytest.fixture
def batch(tokens):
    return tokens(2, T), tokens(2, T, seed=1)


def plain_loss(model, input_ids, targets):
    """From all logits, in float64."""
    return F.cross_entropy(model(input_ids).flatten(0, 1).double(), targets.flatten(), reduction="sum")


def gradients(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return {name: each for (name, _), each in zip(model.named_parameters(), found) if each is not None}


def assert_equal_gradients(model, value, expected, **tolerance):
    torch.testing.assert_close(gradients(model, value), gradients(model, expected), **tolerance)


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradient_are_those_of_all_logits_at_once(parts, tied, tiny_model, batch):
    model = tiny_model(tie_word_embeddings=tied)
    value, expected = summed_loss(model, *batch), plain_loss(model, *batch)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
    assert_equal_gradients(model, value / 7, expected / 7, rtol=1e-12, atol=1e-13)


def test_every_scheme_gets_its_gradient(scheme, tiny_model, batch, monkeypatch):
    monkeypatch.setattr(loss, "LOGITS", 5 * VOCAB)
    model = tiny_model(scheme)
    assert_equal_gradients(model, summed_loss(model, *batch), plain_loss(model, *batch), rtol=1e-11, atol=1e-12)


def test_padding_leaves_loss_and_gradient_as_they_are_without_it(scheme, parts, tiny_model, tokens):
    """Of every scheme: causal attention alone keeps it away from what is real."""
    model, lengths = tiny_model(scheme), (5, T, 1)
    input_ids, targets = tokens(3, T), tokens(3, T, seed=1)
    for row, length in enumerate(lengths):
        targets[row, length:] = IGNORED
    apart = sum(plain_loss(model, input_ids[[n], :end], targets[[n], :end]) for n, end in enumerate(lengths))
    value = summed_loss(model, input_ids, targets)
    torch.testing.assert_close(value, apart, rtol=1e-13, atol=0)
    assert_equal_gradients(model, value, apart, rtol=1e-6, atol=1e-8)  # trained angles are float32


def test_a_second_pass_over_the_gradient_is_refused(tiny_model, batch):
    """The first has scaled it in place: a second would get another gradient, silently."""
    value = summed_loss(tiny_model(), *batch) / 7
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("scored", [1, 4, T])
def test_losses_of_the_last_tokens_one_by_one(parts, scored, tiny_model, batch):
    model, (input_ids, targets) = tiny_model(), batch
    log_probs = model(input_ids).log_softmax(-1)
    expected = -log_probs.gather(-1, targets[..., None]).squeeze(-1)[:, -scored:].detach()
    got = token_losses(model, input_ids, targets[:, -scored:])
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=0)
    assert not got.requires_grad


@pytest.mark.parametrize("tied", [True, False])
def test_under_autocast_many_parts_are_no_less_exact_than_all_logits(tied, tiny_model, batch, monkeypatch):
    """Adding the parts' gradients up in bfloat16 would lose most of them."""
    input_ids, targets = (each.repeat(16, 1) for each in batch)
    model, exact = (tiny_model(dtype=dtype, tie_word_embeddings=tied) for dtype in (torch.float32, torch.float64))
    truth = gradients(exact, plain_loss(exact, input_ids, targets))
    monkeypatch.setattr(loss, "LOGITS", VOCAB)
    errors = []
    for function in (summed_loss, plain_loss):
        with torch.autocast("cpu", torch.bfloat16):
            value = function(model, input_ids, targets)
        found = gradients(model, value)
        assert all(gradient.dtype == torch.float32 for gradient in found.values())
        name = "embed_tokens.weight" if tied else "lm_head.weight"
        errors.append(((found[name] - truth[name]).norm() / truth[name].norm()).item())
    assert errors[0] < 1.2 * errors[1] < 0.05


def test_losses_of_a_bfloat16_model_are_not_rounded_to_bfloat16(tiny_model, batch):
    model, (input_ids, targets) = tiny_model(dtype=torch.bfloat16), batch
    expected = F.cross_entropy(model(input_ids).mT.double(), targets, reduction="none").detach()
    torch.testing.assert_close(token_losses(model, input_ids, targets).double(), expected, rtol=1e-5, atol=0)


class Sizes(TorchDispatchMode):
    """Remembers how many elements the largest result of an operation has, in all of the code under it."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.untyped_storage().nbytes() // each.element_size())
        return result


BOUND = 64 * 1024  # a vocabulary of 1,024 and 256 tokens have four times as many logits


@pytest.fixture
def large_vocabulary(tiny_model, monkeypatch):
    monkeypatch.setattr(loss, "LOGITS", BOUND)
    return tiny_model(dtype=torch.float32, vocab_size=1024, intermediate_size=16)  # or gates would be larger


def test_a_training_step_never_holds_all_logits(large_vocabulary, tokens):
    model, config = large_vocabulary, TrainConfig()
    optimizer = build_optimizer(model, config)
    for length in (16, 64):
        with Sizes() as sizes:
            optimizer_step(model, optimizer, tokens(4, length), tokens(4, length, seed=1), 1e-3, config)
        assert sizes.largest == BOUND, "and no less: parts of a few tokens are slow"
    with Sizes() as sizes:
        plain_loss(model, tokens(4, 64), tokens(4, 64))
    assert sizes.largest == 4 * 64 * 1024, "what this test sees where they are there"


@pytest.mark.parametrize("measure", [evaluate, losses_by_length])
def test_no_evaluation_holds_all_logits(measure, large_vocabulary, tokens, monkeypatch):
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", 256)
    stream = tokens(600).numpy()
    with Sizes() as sizes:
        measure(large_vocabulary, stream, 64)
    assert sizes.largest == BOUND
