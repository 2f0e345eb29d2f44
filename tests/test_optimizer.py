"""The learning rate, what the optimizer moves and decays, and one step of it, eager and compiled."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from configs import TrainConfig
from data.batches import IGNORED
from model.position import POSITIONS, Position
from training.evaluation import evaluate
from training.machine import compile_where_possible
from training.optimizer import build_optimizer
from training.schedule import learning_rate
from training.step import optimizer_step

EXACT = {"rel": 1e-12}


def rates(**settings):
    config = TrainConfig(**settings)
    return [learning_rate(step, config) for step in range(1, config.steps + 1)]


@pytest.fixture
def model(tiny_model):
    return tiny_model()


@pytest.fixture
def batch(tokens):
    ids = tokens(7, 9)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_cosine_schedule_by_its_formula():
    got = rates(steps=12, warmup_steps=4, learning_rate=1.0, min_learning_rate=0.1)
    assert got[:4] == [0.25, 0.5, 0.75, 1.0]
    assert got[7] == pytest.approx(0.55, **EXACT)  # half-way
    assert got[5] == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, **EXACT)  # a quarter of the way
    assert got[11] == 0.1
    assert sorted(got[3:], reverse=True) == got[3:]


def test_a_warm_up_longer_than_the_training_takes_a_tenth_of_it():
    """The part without the scheme, too: 10 of 30 steps, whose warm-up is half of the 2 of 20."""
    common = {"warmup_steps": 40, "min_learning_rate": 0, "learning_rate": 1.0}
    assert rates(steps=25, **common) == rates(steps=25, **{**common, "warmup_steps": 3})
    assert rates(steps=1, **common) == [1.0]
    parts = {"steps": 30, "position_until": 2 / 3}
    assert rates(**parts, **common) == rates(**parts, **{**common, "warmup_steps": 2})


def test_wsd_schedule_by_hand():
    got = rates(schedule="wsd", steps=20, warmup_steps=4, decay_fraction=0.25, learning_rate=1.0, min_learning_rate=0.1)
    assert got[:4] == [0.25, 0.5, 0.75, 1.0]
    assert got[4:15] == [1.0] * 11
    assert got[15:] == pytest.approx([0.82, 0.64, 0.46, 0.28, 0.1], **EXACT)
    assert got[-1] == 0.1
    nearest = rates(
        schedule="wsd", steps=11, warmup_steps=1, decay_fraction=0.25, learning_rate=1.0, min_learning_rate=0
    )
    assert nearest[7] == 1.0 > nearest[8], "three steps, the whole number nearest to 2.75"


def test_wsd_without_a_stable_part_decays_from_the_end_of_the_warm_up_on():
    """Else the rate falls off a cliff at the first step after the warm-up."""
    got = rates(schedule="wsd", steps=10, warmup_steps=8, decay_fraction=0.8, learning_rate=1.0, min_learning_rate=0)
    assert got[7:] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 9])
@pytest.mark.parametrize("decay_fraction", [0, 0.2, 0.99])
def test_rates_begin_above_zero_reach_the_highest_and_end_at_the_lowest(schedule, warmup_steps, decay_fraction):
    settings = {"schedule": schedule, "decay_fraction": decay_fraction, "warmup_steps": warmup_steps}
    got = rates(steps=10, learning_rate=0.3, min_learning_rate=0.07, **settings)
    assert got[0] > 0
    assert max(got) <= 0.3
    assert got[-1] == 0.07
    if warmup_steps:
        assert got[warmup_steps - 1] == 0.3


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_shortest_schedules(schedule):
    common = {"schedule": schedule, "learning_rate": 0.4, "min_learning_rate": 0.1}
    assert rates(steps=1, warmup_steps=0, **common) == [0.1]
    assert rates(steps=1, warmup_steps=1, **common) == [0.4]
    assert rates(steps=4, warmup_steps=4, **common) == pytest.approx([0.1, 0.2, 0.3, 0.4], **EXACT)


@pytest.mark.parametrize(("schedule", "second"), [("cosine", [2.0, 1.55, 0.65, 0.2]), ("wsd", [2.0, 2.0, 1.1, 0.2])])
def test_without_the_scheme_the_schedule_begins_again_by_hand(schedule, second):
    """A warm-up of 3 of 12 steps is one of 1 of 4. Without a peak of its own the second part has that of the first."""
    common = {"schedule": schedule, "decay_fraction": 0.5, "warmup_steps": 3, "learning_rate": 1.0}
    common["min_learning_rate"] = 0.1
    got = rates(steps=16, position_until=0.75, position_free_learning_rate=2.0, **common)
    assert got[:12] == rates(steps=12, **common)
    assert got[12:] == pytest.approx(second, **EXACT) and got[15] == 0.2
    assert rates(steps=16, position_until=0.75, **common)[12:] == pytest.approx([x / 2 for x in second], **EXACT)
    assert TrainConfig(steps=1000, position_until=0.875).position_steps == 875
    uneven = rates(steps=11, position_until=0.6, warmup_steps=4, learning_rate=1.0)
    assert uneven[7:10] == pytest.approx([1 / 3, 2 / 3, 1.0], **EXACT), "7 steps, and of 4 others 16/7 as warm-up: 3"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scheme", [*POSITIONS, "throwaway"])
def test_only_matrices_decay(scheme, tied, monkeypatch, tiny_model):
    """Without a gradient AdamW moves what it decays, and nothing else: no norm, bias, embedding, position parameter."""

    class Throwaway(Position):
        def __init__(self, config):
            super().__init__(config)
            self.table, self.mix, self.bare = nn.Embedding(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(3, 3))

    monkeypatch.setitem(POSITIONS, "throwaway", Throwaway)
    model = tiny_model(scheme, tie_word_embeddings=tied, attention_bias=True)
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(model, TrainConfig(learning_rate=0.5, weight_decay=0.25))
    optimizer.step()
    decayed = {name for name, value in model.named_parameters() if torch.all(value == 0.875)}
    kept = {name for name, value in model.named_parameters() if torch.all(value == 1)}
    matrices = {name for name, _ in model.named_parameters() if name.endswith("_proj.weight")}
    assert decayed == matrices | (set() if tied else {"lm_head.weight"})
    assert decayed | kept == dict(model.named_parameters()).keys()


def test_adamw_has_the_rate_and_betas_of_the_config(model, batch):
    config = TrainConfig(optimizer="adamw", betas=(0.5, 0.7), weight_decay=0)
    optimizer, before = build_optimizer(model, config), state(model)
    optimizer_step(model, optimizer, *batch, 0.125, config)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.5, 0.7)}
    # Adam's first step is the rate in the direction of the sign, where the gradient is not tiny
    moved = (model.norm.weight - before["norm.weight"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.125), rtol=1e-3, atol=0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("micro_batch_size", [1, 3, 5, 7, 99])
def test_micro_batches_give_loss_and_gradient_of_the_whole_batch(model, batch, micro_batch_size, padded):
    """Means of micro-batches of unequal size are not the batch's mean, nor is the last one's loss its loss."""
    if padded:  # one micro-batch of 1 has no padding, one nothing else
        batch[1][:, 3:][torch.arange(7) % 2 == 1], batch[1][4] = IGNORED, IGNORED
    loss = F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
    gradients = dict(zip(state(model), torch.autograd.grad(loss, list(model.parameters()))))
    before, config = state(model), TrainConfig(micro_batch_size=micro_batch_size, grad_clip=None)
    got = optimizer_step(model, torch.optim.SGD(model.parameters(), 99.0), *batch, 1.0, config)
    norm = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients.values()))
    assert got == pytest.approx((loss.item(), norm, 1.0), rel=1e-6)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), before[name] - gradients[name], rtol=0, atol=1e-13)


def test_the_gradient_is_clipped_to_the_norm_of_the_config(model, batch):
    def step(grad_clip):
        other = copy.deepcopy(model)
        optimizer_step(other, torch.optim.SGD(other.parameters(), 1.0), *batch, 1.0, TrainConfig(grad_clip=grad_clip))
        return torch.cat([(a - b).flatten().double() for a, b in zip(model.parameters(), other.parameters())]).detach()

    whole, clipped = step(None), step(0.01)
    assert whole.norm() > 0.1
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-4)
    assert F.cosine_similarity(whole, clipped, dim=0).item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(step(1e6), whole, rtol=0, atol=1e-7)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
@pytest.mark.parametrize("grad_clip", [1.0, None])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_step_that_is_not_finite_changes_nothing(model, batch, broken, grad_clip, kind):
    config = TrainConfig(grad_clip=grad_clip, optimizer=kind)
    optimizer = build_optimizer(model, config)
    optimizer_step(model, optimizer, *batch, 1e-3, config)
    if broken == "loss":
        model.norm.weight.data[0] = math.inf
    else:
        model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert not optimizer_step(model, optimizer, *batch, 1e-3, config).is_finite
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_and_evaluation_run_what_was_compiled(model, batch, monkeypatch):
    """They go round forward, and would stay eager if that alone were compiled. Weights keep their names for it."""
    compiled, runs, names = [], [], list(model.state_dict())

    def fake_compile(function):
        compiled.append(function)
        return lambda *args: runs.append(function) or function(*args)

    monkeypatch.setattr(torch, "compile", fake_compile)
    compile_where_possible(model)
    assert len(compiled) == 2 and len(runs) == 1, "the trial, and the model, which has not run"
    assert list(model.state_dict()) == names
    config = TrainConfig(micro_batch_size=4)
    optimizer_step(model, build_optimizer(model, config), *batch, 1e-3, config)
    assert len(runs) == 3, "once for each part of the batch"
    evaluate(model, batch[0][0].numpy(), 7)
    model(batch[0])
    assert len(runs) == 5


@pytest.mark.parametrize("multiplier", [1.0, 10.0])
def test_a_scheme_s_parameters_learn_at_a_multiple_of_the_rate(tiny_model, batch, multiplier):
    """AdamW's first step moves a number by the rate, whatever its gradient; those of unseen distances have none."""
    model = tiny_model(position={"scheme": "t5", "learning_rate_multiplier": multiplier})
    config = TrainConfig(optimizer="adamw", batch_size=7, weight_decay=0.0)
    before = state(model)
    optimizer_step(model, build_optimizer(model, config), *batch, 1e-3, config)
    moved = {name: (value - before[name]).abs().max().item() for name, value in state(model).items()}
    assert moved["position.table.weight"] == pytest.approx(multiplier * 1e-3, rel=1e-3)
    assert moved["layers.0.mlp.down_proj.weight"] == pytest.approx(1e-3, rel=1e-3)
