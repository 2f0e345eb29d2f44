import weakref

import pytest
import torch

from comparison import cost
from comparison.cost import measure_costs
from comparison.results import Ratio
from configs import Config
from model.transformer import Transformer

BATCH, CONTEXT = 4, 8


def config(position, context=CONTEXT, **train) -> Config:
    shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = dict(vocab_size=48, max_position_embeddings=context, position=position, **shape)
    return Config(name="one", model=model, train={"batch_size": BATCH, **train})


PAIR = {"slow": config("alibi"), "base": config("rope")}


@pytest.fixture
def costs_at(monkeypatch):
    """Of PAIR, where time passes only in steps and decoded tokens: (those of a step, of a token) by scheme and round."""

    def measured(seconds):
        now, calls, forward = [0.0], [], Transformer.forward

        def step(model, *_):
            calls.append(model.config.position.scheme)
            now[0] += seconds[calls[-1]][0][calls.count(calls[-1]) - 1]

        def decode(model, ids, cache, **options):
            scheme = model.config.position.scheme
            now[0] += seconds[scheme][1][calls.count(scheme) - 1] if ids.shape[1] == 1 else 1024.0
            return forward(model, ids, cache, **options)

        monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(cost, "optimizer_step", step)
        monkeypatch.setattr(Transformer, "forward", decode)
        found = measure_costs(PAIR, "base")
        assert list(found) == ["slow", "base"] and calls == ["rope", "alibi"] * 8, "in turn"
        return found["slow"], found["base"]

    return measured


def test_a_drift_of_the_machine_is_in_no_ratio(costs_at):
    drift = [64.0, 1.0, 2.0, 8.0, 128.0, 16.0, 4.0, 1.0]  # by round; the first warms up
    slower = [time * factor for time, factor in zip(drift, [50, 1.5, 1.25, 1.5, 1.5, 1.5625, 1.5, 1.375])]
    slow, base = costs_at({"rope": (drift, drift), "alibi": (slower, [2 * time for time in drift])})
    assert (slow.training, slow.decoding) == (Ratio(1.5, 1.25, 1.5625), Ratio(2.0, 2.0, 2.0))
    assert base.training == base.decoding == Ratio(1.0, 1.0, 1.0)
    assert (base.training_tokens_per_second, base.decoding_tokens_per_second) == (BATCH * CONTEXT / 4.0, 1 / 4.0)
    assert (slow.training_tokens_per_second, slow.decoding_tokens_per_second) == (BATCH * CONTEXT / 6.0, 1 / 8.0)


@pytest.mark.parametrize(("spread", "known"), [(6 / 64, True), (7 / 64, False)])
def test_a_ratio_that_scatters_is_not_known(spread, known, costs_at):
    """By the middle half of the rounds, here from 1 − spread / 4 to 1 + 3 spread / 4: a single round says nothing."""
    steady, steps = [1.0] * 8, [9.0, 1.0, 1 - spread, 1 - spread / 2, 1.0, 1 + spread / 2, 1 + spread, 7.0]
    slow, _ = costs_at({"rope": (steady, steady), "alibi": (steps, steady)})
    assert slow.training == (Ratio(1.0, 1 - spread, 7.0) if known else None)
    assert slow.decoding == Ratio(1.0, 1.0, 1.0) and slow.training_tokens_per_second == BATCH * CONTEXT


@pytest.mark.parametrize(("context", "decoded"), [(1, 1), (2, 1), (9, 5), (80, 32)])
def test_steps_are_those_of_the_run_and_tokens_follow_half_of_a_context(context, decoded, monkeypatch):
    steps, passes, forward = [], [], Transformer.forward

    def step(model, optimizer, *batch_and_rest):
        steps.append(batch_and_rest)

    def seen(model, ids, cache, **options):
        passes.append((model.config.position.scheme, ids.shape[1], cache.length))
        return forward(model, ids, cache, **options)

    monkeypatch.setattr(cost, "ROUNDS", 2)
    monkeypatch.setattr(cost, "optimizer_step", step)
    monkeypatch.setattr(Transformer, "forward", seen)
    base = config("learned", context, batch_size=5)
    half, dropped = context // 2, config("learned", context, steps=100, warmup_steps=1, position_until=0.5)
    measure_costs({"base": base, "dropped": dropped}, "base")
    (inputs, targets, _, settings), (others, *_) = steps[:2]
    assert inputs.shape == targets.shape == (5, context) and others.shape == (BATCH, context)
    assert settings == base.train and torch.equal(inputs[:, 1:], targets[:, :-1]) and 0 <= inputs.min()
    assert all(torch.equal(inputs, each[0]) for each in steps[::2]), "made up once"
    of_round = [(half, 0), *((1, length) for length in range(half, half + decoded))]
    assert passes == [(scheme, *each) for scheme in ("learned", "none") for each in of_round] * 3


def test_every_scheme_trains_and_decodes_and_no_weight_moves(scheme, monkeypatch):
    """Or a round would not repeat the one before."""
    made, build = [], cost.build_optimizer
    monkeypatch.setattr(cost, "build_optimizer", lambda model, train: made.append(model) or build(model, train))
    monkeypatch.setattr(cost, "ROUNDS", 2)
    mine = config(scheme)
    measure_costs({"one": mine}, "one")
    for name, weight in Transformer(mine.model, mine.seed).state_dict().items():
        assert torch.equal(weight, made[0].state_dict()[name]), name


def test_a_step_masks_documents_and_recomputes_where_the_run_does(monkeypatch):
    made = []
    monkeypatch.setattr(cost, "ROUNDS", 2)
    monkeypatch.setattr(cost, "optimizer_step", lambda model, *rest: made.append(model))
    measure_costs({"rope": config("rope"), "own": config("rope", document_mask=True, recompute=True)}, "rope")
    (plain, own), masked = made[:2], made[1].config.document_start_token_id
    assert (plain.recompute, plain.config.document_start_token_id) == (False, None)
    assert own.recompute and masked in range(own.config.vocab_size)


def test_large_models_are_not_all_there_at_once(monkeypatch):
    alive, most, build = weakref.WeakSet(), [], cost.build_optimizer

    def counting(model, train):
        alive.add(model)
        most.append(len(alive))
        return build(model, train)

    monkeypatch.setattr(cost, "ROUNDS", 2)
    monkeypatch.setattr(cost, "build_optimizer", counting)
    parameters = sum(weight.numel() for weight in Transformer(config("learned").model).parameters())
    configs = {scheme: config(scheme) for scheme in ("none", "learned", "rope", "alibi", "t5")}
    for fit, expected in ((1, 2), (2, 2), (3, 3), (4, 4), (5, 5), (99, 5)):
        most.clear()
        monkeypatch.setattr(cost, "PARAMETERS", fit * parameters)
        assert list(measure_costs(configs, "rope")) == list(configs)
        assert max(most) == expected
