"""Training whose positional scheme is dropped on the way: the model, its optimizer, resumes, and what is refused."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

import generate
from base import InputError, find_checkpoint
from model.checkpoint import load_checkpoint
from model.transformer import Transformer
from tiny import (
    assert_same_bits,
    before_step,
    call,
    contents,
    names,
    rows,
    run_config,
    train_until,
    trained,
    trainer_state,
    whole_and_other,
    with_loss,
)
from training.loop import train
from training.schedule import learning_rate

HALF = ["train.steps=8", "train.position_until=0.5", "train.checkpoint_every=1", "train.keep_checkpoints=9"]
SSMAX = "{scheme: rope, temperature: {kind: ssmax}}"


def shared(state):
    return {name: tensor for name, tensor in state.items() if not name.startswith("position.")}


def step_folder(config, step):
    return config.folder / "checkpoints" / f"step_{step:06d}"


@pytest.mark.parametrize("kind", ["log", "ssmax"])
def test_a_temperature_stays(tiny_model, tokens, kind):
    """With what is trained of it."""
    given = {"temperature": {"kind": kind, **({"length": 4} if kind == "log" else {})}}
    model, none = tiny_model({"scheme": "t5", **given}), tiny_model({"scheme": "none", **given}, seed=3)
    model.drop_position()
    none.load_state_dict(model.state_dict())
    assert model.config == none.config and torch.equal(model(tokens(1, 9)), none(tokens(1, 9)))
    assert ("position.sharpness" in none.state_dict()) == (kind == "ssmax")


def test_the_checkpoint_after_the_change_is_a_model_of_none(tmp_path, tokens, capsys):
    """For sampling, here past what was the table's end, and for transformers. The run's own config stays as it was."""
    config = trained(tmp_path, *HALF, "model.position=learned")
    first, last = (load_checkpoint(step_folder(config, step)) for step in (4, 8))
    assert (first.config.position.scheme, last.config.position.scheme) == ("learned", "none")
    assert last.config == config.trained_model.model_copy(update={"vocab_size": 257})
    none = Transformer(last.config)
    stored = load_file(step_folder(config, 8) / "model.safetensors")
    none.load_state_dict({name.removeprefix("model."): tensor for name, tensor in stored.items()})
    assert torch.equal(last(tokens(2, 9)), none(tokens(2, 9)))
    exported = json.loads((step_folder(config, 8) / "config.json").read_text())
    assert (exported["model_type"], exported["no_rope_layers"]) == ("smollm3", [0])
    capsys.readouterr()
    assert call(generate, config.folder, "--prompt", "the", "--max-new-tokens", 20) == 0
    assert "scheme: learned" in (config.folder / "config.yaml").read_text()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("position", ["learned_theta", SSMAX])
def test_shared_weights_keep_their_moments_over_the_change(tmp_path, optimizer, position):
    """The first step without the scheme begins with weights and moments of the last with it, less the scheme's own."""
    begun = []

    def look(trainer):
        model, optimizer = trainer.model, trainer.optimizer
        begun.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        moments = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
        begun.append([{key: value.clone() for key, value in moment.items()} for moment in moments])
        assert len(optimizer.state) == len(moments) == len(list(model.parameters()))

    every = [*HALF, f"train.optimizer={optimizer}", f"model.position={position}"]
    with before_step(5, look):
        config = trained(tmp_path, *every)
    weights, moments = begun
    stored = load_checkpoint(step_folder(config, 4))
    kept = shared(stored.state_dict())
    if position == SSMAX:
        kept["position.sharpness"] = stored.position.sharpness
    torch.testing.assert_close(weights, kept, rtol=0, atol=0)
    before = torch.load(step_folder(config, 4) / "trainer.pt")["optimizer"]["state"]
    assert len(before) == len(moments) + (position == "learned_theta")
    torch.testing.assert_close(moments, [before[n] for n in range(len(moments))], rtol=0, atol=0)


@pytest.mark.parametrize("position", ["learned_theta", "t5", "fox", SSMAX])
@pytest.mark.parametrize("optimizer, checkpoint_every", [("adamw", 1), ("muon", 2)])
def test_a_run_stopped_around_the_change_ends_as_if_never(tmp_path, position, optimizer, checkpoint_every):
    """Also where it goes on from the checkpoint of the last step with the scheme, at which it is evaluated as well."""
    every = [*HALF, f"model.position={position}", f"train.optimizer={optimizer}", "train.eval_every=2"]
    every += [f"train.checkpoint_every={checkpoint_every}", "train.position_free_learning_rate=0.03"]
    whole, stopped = whole_and_other(tmp_path, *every)
    train_until(4, stopped)
    for step in (5, 6, 8):
        train_until(step, stopped, resume=True)
    train(stopped, resume=True)
    assert_same_bits(stopped, whole)
    rates = [row["learning_rate"] for row in rows(whole.folder) if "learning_rate" in row]
    assert rates == [learning_rate(step, whole.train) for step in range(1, 9)] and max(rates) == rates[5] == 0.03


def test_a_scheme_logs_its_series_up_to_the_change(tmp_path):
    config = trained(tmp_path, *HALF, "model.position=learned_theta")
    steps = [row for row in rows(config.folder) if "train_loss" in row]
    assert ["theta_drift" in row for row in steps] == [True] * 4 + [False] * 4


def test_a_compiled_model_drops_its_scheme_too(tmp_path, monkeypatch):
    """The compiler traces the model again; here without code of its own, so that only the norm's bits differ."""
    eager = trained(tmp_path, *HALF, "name=eager", "model.position=alibi")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    compiled = trained(tmp_path, *HALF, "name=compiled", "model.position=alibi", "train.compile=true")
    for one, other in zip(rows(compiled.folder), rows(eager.folder), strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_more_steps_may_not_put_the_change_off(tmp_path):
    """A scheme that is dropped stays so; what is refused changes nothing."""
    config = trained(tmp_path, *HALF)
    before = contents(config.folder)
    message = (
        "^train.position_until: 0.5 of train.steps 18 drops the scheme after step 9, but at step 8 .* already dropped"
    )
    with pytest.raises(InputError, match=message):
        train(run_config(tmp_path, *HALF, "train.steps=18"), resume=True)
    with pytest.raises(InputError, match="cannot resume with another train.position_until"):
        train(run_config(tmp_path, *HALF, "train.position_until=0.75"), resume=True)
    with pytest.raises(InputError, match="cannot resume with another train.position_free_learning_rate"):
        train(run_config(tmp_path, *HALF, "train.position_free_learning_rate=0.1"), resume=True)
    assert contents(config.folder) == before
    for steps in (10, 16, 16):  # the change would be after steps 5 and 8, those done; and a finished run may be resumed
        assert train(run_config(tmp_path, *HALF, f"train.steps={steps}"), resume=True)["step"] == steps
    assert load_checkpoint(find_checkpoint(config.folder)).config.position.scheme == "none"


def test_more_steps_before_the_change_put_it_off(tmp_path):
    """Fewer may not put it before what is done with the scheme."""
    config = run_config(tmp_path, *HALF)
    train_until(4, config)
    train_until(7, run_config(tmp_path, *HALF, "train.steps=12"), resume=True)
    with pytest.raises(
        InputError, match="steps 10 drops the scheme after step 5, but at step 6 the run .* still has it"
    ):
        train(run_config(tmp_path, *HALF, "train.steps=10"), resume=True)
    train(run_config(tmp_path, *HALF, "train.steps=12"), resume=True)
    schemes = [load_checkpoint(step_folder(config, step)).config.position.scheme for step in (6, 7)]
    assert schemes == ["rope", "none"]


def test_a_run_that_diverges_after_the_change_goes_back_before_it(tmp_path):
    """To a checkpoint of a model with more parameters. The line names the key that sets the rate of this part."""
    every = [*HALF, "train.checkpoint_every=4", "model.position=t5", "train.position_free_learning_rate=0.02"]
    whole, config = whole_and_other(tmp_path, *every)
    message = "^step 6: loss nan.* at train.position_free_learning_rate 0.02; .* good checkpoint is .*/step_000004$"
    with with_loss(6, lambda real, *given: real(*given) * float("nan")), pytest.raises(InputError, match=message):
        train(config)
    assert names(config.folder / "checkpoints") == ["step_000004"]
    train(config, resume=True)
    assert_same_bits(config, whole)
    assert trainer_state(config.folder)["step"] == 8


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("train.position_until=0", "train.position_until: 0: should be greater than 0"),
        ("train.position_until=1", "train.position_until: 1: should be less than 1"),
        ("train.position_until=.nan", "train.position_until: nan"),
        ("train.position_until=late", "train.position_until: 'late'"),
        ("train.position_until=0.05", "train: position_until 0.05 of steps 6 leaves no step with the scheme"),
        ("train.position_until=0.95", "train: position_until 0.95 of steps 6 leaves no step without the scheme"),
        (
            "train.position_until=0.5 model.position=none",
            "train.position_until 0.5: model.position 'none' has no scheme",
        ),
        ("train.position_free_learning_rate=0", "train.position_free_learning_rate: 0: should be greater than 0"),
    ],
)
def test_a_change_that_cannot_be_is_refused_in_one_line(tmp_path, overrides, expected):
    with pytest.raises(InputError) as caught:
        run_config(tmp_path, *overrides.split(" "))
    assert f"tiny.yaml: {expected}" in str(caught.value) and "\n" not in str(caught.value)
