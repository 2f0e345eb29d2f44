import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import generate
import train as program
from base import InputError
from configs import load_config
from data.batches import Batches
from data.corpus import load_corpus
from model import checkpoint as checkpoint_module
from model.transformer import Transformer
from tiny import TEXT, Stopped, before_step, call, config_file, killed_before_step, rows, run_config, weights
from training import loop, optimizer
from training import versions as versions_module
from training.evaluation import evaluate
from training.loop import Trainer, fit_to_corpus, sample, train
from training.optimizer import learning_rate
from training.run import RunFolder

ROOT = Path(__file__).parent.parent


def interrupted(config, step, **how):
    """Trains it, to a kill before this step."""
    with killed_before_step(step):
        train(config, **how)


def trainer_state(run):
    return torch.load(max(run.glob("checkpoints/step_*/trainer.pt")), weights_only=True)


def assert_same_bits(one, two):
    """Weights, optimizer state, step, metrics and a sample of two runs."""
    assert rows(one.folder) == rows(two.folder)
    assert weights(one.folder) == weights(two.folder)
    states = [trainer_state(config.folder) for config in (one, two)]
    moments = [state.pop("optimizer") for state in states]
    assert states[0] == states[1] and moments[0]["param_groups"] == moments[1]["param_groups"]
    assert moments[0]["state"].keys() == moments[1]["state"].keys()
    for key, values in moments[0]["state"].items():
        assert all(torch.equal(value, moments[1]["state"][key][name]) for name, value in values.items())
    assert sample(one, 12) == sample(two, 12)


def initial_model(config):
    config = fit_to_corpus(config, load_corpus(config.data))
    return Transformer(config.model, config.seed)


def test_a_run_folder_holds_what_it_should(tmp_path):
    config = run_config(tmp_path, "train.eval_every=4", "train.checkpoint_every=2", "train.log_every=3")
    result = train(config)
    run = tmp_path / "runs" / "tiny"
    names = {path.relative_to(run).as_posix() for path in run.rglob("*")}
    checkpoint = "checkpoints/step_000006"
    files = "config.json model.safetensors tokenizer.json tokenizer_config.json trainer.pt SHA256SUMS".split()
    own = [".lock", "config.yaml", "corpus.json", "versions.json", "metrics.jsonl", "checkpoints"]
    assert names == {*own, checkpoint, *(f"{checkpoint}/{file}" for file in files)}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training, evaluations = [r for r in lines if "train_loss" in r], [r for r in lines if "val_loss" in r]
    keys = ["step", "tokens", "train_loss", "grad_norm", "learning_rate", "tokens_per_second"]
    assert [list(row) for row in training] == [keys] * 2
    assert [list(row) for row in evaluations] == [["step", "tokens", "val_loss", "val_bits_per_byte"]] * 2
    assert [(row["step"], row["tokens"]) for row in training] == [(3, 3 * 4 * 16), (6, 6 * 4 * 16)]
    assert [row["step"] for row in evaluations] == [4, 6]
    assert result == evaluations[-1]
    assert training[-1]["learning_rate"] == 0.001


def test_config_yaml_makes_the_run_again(tmp_path):
    """Loadable as it stands, the vocabulary's size filled in."""
    train(run_config(tmp_path))
    run = tmp_path / "runs" / "tiny"
    again = load_config(run / "config.yaml", ["name=again"])
    assert again.model.vocab_size == 257
    train(again)
    assert weights(again.folder) == weights(run)


def test_the_same_config_gives_the_same_bits_and_another_seed_others(tmp_path):
    one, two, other = (run_config(tmp_path, f"name={n}", f"seed={s}") for n, s in (("a", 5), ("b", 5), ("c", 6)))
    for config in (one, two, other):
        train(config)
    assert weights(one.folder) == weights(two.folder) != weights(other.folder)
    assert rows(one.folder) == rows(two.folder) != rows(other.folder)


def test_logged_losses_are_those_of_the_whole_batch_and_the_whole_validation_split(tmp_path):
    """The first from the initial weights, the last from those in the checkpoint; not the last micro-batch's."""
    config = run_config(tmp_path, "train.batch_size=7", "train.micro_batch_size=3")
    train(config)
    corpus, model = load_corpus(config.data), initial_model(config)
    input_ids, targets = Batches(corpus.train, 16, 7, config.seed)[0]
    with torch.no_grad():
        expected = F.cross_entropy(model(input_ids).flatten(0, 1), targets.flatten()).item()
    assert rows(config.folder)[0]["train_loss"] == pytest.approx(expected, rel=1e-6)

    trained = checkpoint_module.load_checkpoint(config.folder / "checkpoints" / "step_000006")
    nats, last = evaluate(trained, corpus.val, 16), rows(config.folder)[-1]
    assert last["val_loss"] == pytest.approx(nats / (len(corpus.val) - 1), rel=1e-6)
    text_bytes = len(TEXT) - round(len(TEXT) * 0.9)
    assert last["val_bits_per_byte"] == pytest.approx(nats / 0.6931471805599453 / text_bytes, rel=1e-6)


def test_every_scheme_trains_all_its_parameters_and_its_checkpoint_generates(tmp_path, scheme, capsys):
    config = run_config(tmp_path, f"model.position={scheme}", "model.num_key_value_heads=1")
    train(config)
    before = initial_model(config)
    after = checkpoint_module.load_checkpoint(config.folder / "checkpoints" / "step_000006")
    unmoved = [name for name, p in after.named_parameters() if torch.equal(p, before.get_parameter(name))]
    assert not unmoved
    losses = [row["train_loss"] for row in rows(config.folder) if "train_loss" in row]
    assert losses[-1] < losses[0] - 0.1
    capsys.readouterr()
    assert call(generate, config.folder, "--prompt", "the", "--max-new-tokens", 5) == 0
    assert capsys.readouterr().out.endswith("\n")


@pytest.mark.parametrize("schedule, optimizer, micro_batch_size", [("cosine", "adamw", 4), ("wsd", "muon", 3)])
def test_a_run_stopped_thrice_ends_as_if_never_stopped(tmp_path, scheme, schedule, optimizer, micro_batch_size):
    """No batch twice, no row twice, right the second and the third time too."""
    every = ["train.steps=11", "train.checkpoint_every=3", "train.eval_every=2", f"model.position={scheme}"]
    every += [f"train.schedule={schedule}", f"train.micro_batch_size={micro_batch_size}", "train.decay_fraction=0.5"]
    every += [f"train.optimizer={optimizer}"]
    whole, stopped = (run_config(tmp_path, f"name={name}", *every) for name in ("whole", "stopped"))
    train(whole)
    interrupted(stopped, 5)
    interrupted(stopped, 8, resume=True)
    interrupted(stopped, 11, resume=True)
    assert train(stopped, resume=True) == rows(whole.folder)[-1]
    assert_same_bits(stopped, whole)
    assert trainer_state(stopped.folder)["step"] == 11
    steps = [row["step"] for row in rows(stopped.folder)]
    assert steps == sorted([*range(1, 12), *range(2, 11, 2), 11])


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_run_stopped_at_any_step_ends_as_if_never_stopped(tmp_path, stop):
    """Also where rows past the last checkpoint, one of them half, were written before the end."""
    every = ["train.steps=7", "train.checkpoint_every=2", "train.eval_every=3", "train.log_every=2"]
    whole, stopped = (run_config(tmp_path, f"name={name}", *every) for name in ("whole", "stopped"))
    train(whole)
    interrupted(stopped, stop)
    with (stopped.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "tra')
    train(stopped, resume=True)
    assert_same_bits(stopped, whole)


def test_a_resumed_run_may_be_given_more_steps_twice(tmp_path):
    """A constant rate, so that the schedule is the same whatever the number of steps: then the bits are too."""
    flat = ["train.min_learning_rate=0.01", "train.warmup_steps=0"]
    whole = run_config(tmp_path, "name=whole", "train.steps=9", *flat)
    train(whole)
    for steps in (2, 5, 9):
        longer = run_config(tmp_path, "name=longer", f"train.steps={steps}", *flat)
        train(longer, resume=steps > 2)
    assert weights(longer.folder) == weights(whole.folder)
    assert [row["step"] for row in rows(longer.folder) if "train_loss" in row] == list(range(1, 10))


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path, monkeypatch):
    """Best among those with an evaluation at their step; on a resume too, which finds what a kill left."""
    losses = iter([5.0, 3.0, 4.0, 4.0])  # after steps 2, 4, 6 and 7
    monkeypatch.setattr("training.loop.evaluate", lambda *_: next(losses))
    every = ["train.steps=7", "train.eval_every=2", "train.checkpoint_every=1", "train.keep_checkpoints=2"]
    config = run_config(tmp_path, *every)
    train(config)
    kept = sorted(path.name for path in (config.folder / "checkpoints").iterdir())
    assert kept == ["step_000004", "step_000006", "step_000007"]
    (config.folder / "checkpoints" / ".step_000009.partial").mkdir()
    train(run_config(tmp_path, *every, "train.keep_checkpoints=1"), resume=True)
    kept = sorted(path.name for path in (config.folder / "checkpoints").iterdir())
    assert kept == ["step_000004", "step_000007"]
    assert generate_folder(config.folder) == "step_000007", "a run folder means its newest checkpoint"


def generate_folder(run):
    return checkpoint_module.find_checkpoint(run).name


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    whole, stopped = (run_config(tmp_path, f"name={name}") for name in ("whole", "stopped"))
    train(whole)
    interrupted(stopped, 4)
    train(stopped, resume=True)
    assert rows(stopped.folder) == rows(whole.folder)
    assert weights(stopped.folder) == weights(whole.folder)


def test_a_run_killed_while_it_saves_goes_on_from_the_checkpoint_before(tmp_path, monkeypatch):
    every = ["train.checkpoint_every=2"]
    whole, stopped = (run_config(tmp_path, f"name={name}", *every) for name in ("whole", "stopped"))
    train(whole)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        replace = os.replace

        def killed(source, target):
            if Path(target).name == "step_000004":
                raise Stopped
            replace(source, target)

        patch.setattr(checkpoint_module.os, "replace", killed)
        train(stopped)
    assert trainer_state(stopped.folder)["step"] == 2
    train(stopped, resume=True)
    assert rows(stopped.folder) == rows(whole.folder)
    assert weights(stopped.folder) == weights(whole.folder)
    assert [path.name for path in (stopped.folder / "checkpoints").iterdir()] == ["step_000006"]


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    config = run_config(tmp_path)
    result = train(config)
    before = {path: path.read_bytes() for path in config.folder.rglob("*") if path.is_file()}
    assert train(config, resume=True) == result
    assert {path: path.read_bytes() for path in config.folder.rglob("*") if path.is_file()} == before


def test_a_finished_run_can_be_given_more_steps(tmp_path):
    train(run_config(tmp_path))
    longer = run_config(tmp_path, "train.steps=8")
    assert train(longer, resume=True)["step"] == 8
    steps = [row["step"] for row in rows(longer.folder) if "train_loss" in row]
    assert steps == list(range(1, 9))
    assert load_config(longer.folder / "config.yaml").train.steps == 8, "config.yaml tells what was trained"


def test_a_run_cannot_be_given_fewer_steps_than_it_has_done(tmp_path):
    train(run_config(tmp_path))
    with pytest.raises(InputError, match="train.steps.* 4.* 6"):
        train(run_config(tmp_path, "train.steps=4"), resume=True)


@pytest.mark.parametrize(
    "override",
    ["seed=1", "train.learning_rate=0.02", "model.hidden_size=32", "model.position=none", "data.val_fraction=0.2"],
)
def test_another_experiment_is_not_resumed(tmp_path, override):
    train(run_config(tmp_path))
    other = run_config(tmp_path, override)
    before = {path: path.read_bytes() for path in other.folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"cannot resume with another .*{override.split('=')[0]}"):
        train(other, resume=True)
    assert {path: path.read_bytes() for path in other.folder.rglob("*") if path.is_file()} == before


def test_a_run_is_not_resumed_on_another_text(tmp_path):
    config = run_config(tmp_path)
    train(config)
    Path(config.data.source).write_text(TEXT + " more", encoding="utf-8")
    with pytest.raises(InputError, match="data.source has changed"):
        train(config, resume=True)


def test_a_run_is_overwritten_only_when_asked(tmp_path):
    config, other = run_config(tmp_path), run_config(tmp_path, "seed=1", "train.steps=4")
    train(config)
    kept = weights(config.folder)
    with pytest.raises(InputError, match="--overwrite"):
        train(other)
    assert weights(config.folder) == kept
    train(other, overwrite=True)
    assert weights(config.folder) != kept
    assert [path.name for path in (config.folder / "checkpoints").iterdir()] == ["step_000004"]


def test_a_taken_folder_is_refused_before_the_corpus_is_read(tmp_path, monkeypatch):
    """Which takes minutes where it is large."""
    config = run_config(tmp_path)
    train(config)
    monkeypatch.setattr("training.loop.load_corpus", lambda _: pytest.fail("read"))
    with pytest.raises(InputError, match="already holds a run"):
        train(config)


def test_a_loss_that_is_not_finite_ends_the_run_with_one_line_and_keeps_the_checkpoint(tmp_path, capsys, monkeypatch):
    config = run_config(tmp_path, "train.checkpoint_every=2")
    poison(monkeypatch, config, [5])
    assert call(program, config_file(tmp_path), "train.checkpoint_every=2") == 2
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert [line for line in lines if "error" in line] == [lines[-1]]
    assert lines[-2].endswith("\n"), "on a line of its own, below the progress bar"
    assert lines[-1].startswith("error: step 5: loss nan, ") and "train.learning_rate" in lines[-1]
    assert lines[-1].endswith("last good checkpoint is " + str(config.folder / "checkpoints" / "step_000004") + "\n")
    assert [path.name for path in (config.folder / "checkpoints").iterdir()] == ["step_000004"]
    assert rows(config.folder)[-1] == {"step": 5, "tokens": 5 * 64, "diverged": lines[-1][7:].split(";")[0]}
    saved = load_file(config.folder / "checkpoints" / "step_000004" / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())


@contextmanager
def ruined_by_step(number):
    """The loss of a step is finite, and none after its update of the weights."""
    real = Trainer.take_step

    def take_step(trainer):
        taken = real(trainer)
        if trainer.step == number:
            trainer.model.norm.weight.data[0] = float("nan")
        return taken

    with mock.patch.object(Trainer, "take_step", take_step):
        yield


@pytest.mark.parametrize("eval_every, checkpoint_every, good", [(6, 1, 5), (3, 2, 2), (3, 3, None), (None, None, None)])
def test_an_evaluation_that_is_not_finite_ends_the_run_as_a_loss_does(tmp_path, eval_every, checkpoint_every, good):
    """The checkpoint before it is set aside: what goes on, and generate.py, take the one that was good."""
    every = [f"train.eval_every={eval_every or 'null'}", f"train.checkpoint_every={checkpoint_every or 'null'}"]
    whole, config = (run_config(tmp_path, f"name={name}", *every) for name in ("whole", "ruined"))
    train(whole)
    step = eval_every or 6
    place = config.folder / "checkpoints" / f"step_00000{good}" if good else "none yet"
    said = f"step {step}: validation loss nan at train.learning_rate {learning_rate(step, config.train):.2g}"
    with ruined_by_step(step), pytest.raises(InputError) as caught:
        train(config)
    assert str(caught.value) == f"{said}; the last good checkpoint is {place}"
    assert rows(config.folder)[-1] == {"step": step, "tokens": 64 * step, "diverged": said}
    run = RunFolder(config, resume=True)
    assert run.divergence() == said and not run.is_finished() and run.newest_checkpoint() == (place if good else None)
    train(config, resume=True)
    assert_same_bits(config, whole)
    assert names(config.folder / "checkpoints") == names(whole.folder / "checkpoints")
    assert run.divergence() is None and run.is_finished()


def test_a_checkpoint_of_weights_that_were_ruined_already_is_not_called_good(tmp_path):
    """The loss that shows it is that of the next step, which comes after the save."""
    every = ["train.checkpoint_every=1", "train.keep_checkpoints=3", "train.max_skipped_steps=1"]
    whole, config = (run_config(tmp_path, f"name={name}", *every) for name in ("whole", "ruined"))
    train(whole)
    with ruined_by_step(3), pytest.raises(InputError, match=r"^step 5: loss nan.* good checkpoint is .*/step_000002$"):
        train(config)
    assert names(config.folder / "checkpoints") == [
        "step_000002", "step_000003.diverged", "step_000004.diverged"
    ]  # fmt: skip
    train(config, resume=True)
    assert_same_bits(config, whole)


def test_a_checkpoint_is_not_good_where_only_a_part_of_its_evaluation_is_finite(tmp_path, monkeypatch):
    def evaluate(model, tokens, context, signals):
        return float("nan") if len(tokens) > context + 1 else 1.0

    monkeypatch.setattr(loop, "evaluate", evaluate)
    config = run_config(tmp_path)
    with pytest.raises(InputError, match="^step 6: validation loss nan .* checkpoint is none yet$"):
        train(config)
    assert names(config.folder / "checkpoints") == ["step_000006.diverged"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def poison(monkeypatch, config, steps, harm=lambda loss: loss * float("nan")):
    """Makes the loss of these steps' batches, or its gradient, not finite."""
    batches, real = Batches(load_corpus(config.data).train, 16, 4, config.seed), optimizer.summed_loss
    bad = [batches[step - 1][0] for step in steps]

    def poisoned(model, input_ids, targets):
        loss = real(model, input_ids, targets)
        return harm(loss) if any(torch.equal(input_ids, each) for each in bad) else loss

    monkeypatch.setattr(optimizer, "summed_loss", poisoned)


@pytest.mark.parametrize(
    "harm", [lambda loss: loss * float("nan"), lambda loss: loss + (loss - loss.detach()).abs().sqrt()]
)
def test_a_step_that_is_not_finite_is_left_out_when_the_config_asks(tmp_path, monkeypatch, capsys, harm):
    """In the second case the loss is finite and its gradient is not."""
    every = ["train.checkpoint_every=1", "train.keep_checkpoints=9"]
    config = run_config(tmp_path, *every, "train.max_skipped_steps=1", "train.log_every=5")
    poison(monkeypatch, config, [4], harm)
    train(config)
    assert "warning: step 4: loss" in (err := capsys.readouterr().err) and "left out, 1 of 1" in err
    states = [torch.load(config.folder / f"checkpoints/step_00000{n}/trainer.pt") for n in (3, 4, 5)]
    bits = [(config.folder / f"checkpoints/step_00000{n}/model.safetensors").read_bytes() for n in (3, 4, 5)]
    assert bits[0] == bits[1] != bits[2]
    assert [state["skipped"] for state in states] == [0, 1, 1]
    moments = [state["optimizer"]["state"][0] for state in states]
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])
    skipped = rows(config.folder)[0]
    assert (skipped["step"], skipped["train_loss"], skipped["grad_norm"]) == (4, None, None)
    assert [row["step"] for row in rows(config.folder)] == [4, 5, 6, 6]


def test_steps_left_out_before_a_resume_count(tmp_path, monkeypatch):
    config = run_config(tmp_path, "train.checkpoint_every=1", "train.max_skipped_steps=1")
    poison(monkeypatch, config, [2, 5])
    interrupted(config, 4)
    with pytest.raises(InputError, match=r"^step 5: loss nan.* checkpoint is .*/step_000004$"):
        train(config, resume=True)
    train(run_config(tmp_path, "train.checkpoint_every=1", "train.max_skipped_steps=2"), resume=True)


def test_a_run_with_skipped_steps_resumes_exactly(tmp_path, monkeypatch):
    every = ["train.checkpoint_every=2", "train.max_skipped_steps=9"]
    whole, stopped = (run_config(tmp_path, f"name={name}", *every) for name in ("whole", "stopped"))
    poison(monkeypatch, whole, [2, 3, 5])
    train(whole)
    interrupted(stopped, 4)
    train(stopped, resume=True)
    assert_same_bits(whole, stopped)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), RuntimeError("MPS backend out of "
              "memory"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to …")]
)  # fmt: skip
def test_the_advice_for_a_full_device_keeps_the_batch_and_can_be_followed(tmp_path, monkeypatch, error):
    config, real = run_config(tmp_path, "train.batch_size=7", "train.checkpoint_every=2"), optimizer.summed_loss

    def limited(model, input_ids, targets):
        if len(input_ids) > 3:
            raise error
        return real(model, input_ids, targets)

    full = before_step(4, lambda _: monkeypatch.setattr(optimizer, "summed_loss", limited))
    with pytest.raises(InputError) as caught, full:
        train(config)
    assert str(caught.value) == (
        "train.micro_batch_size: 7 sequences at once are more than the memory of cpu holds; "
        "train.micro_batch_size=3 makes the same batch of 7 in 3 parts"
    )
    advised = run_config(tmp_path, "train.batch_size=7", "train.checkpoint_every=2", "train.micro_batch_size=3")
    assert train(advised, resume=True)["step"] == 6


def test_a_single_sequence_that_is_too_much_needs_another_model(tmp_path, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(loop, "optimizer_step", full)
    with pytest.raises(InputError, match="^model: a single sequence .* model.max_position_embeddings$"):
        train(run_config(tmp_path, "train.micro_batch_size=1"))


def test_another_error_of_torch_is_not_taken_for_a_full_device(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(loop, "optimizer_step", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        train(run_config(tmp_path))


@pytest.mark.parametrize("size", [10**9, 10**30])
def test_a_model_that_no_memory_holds_is_one_line(tmp_path, size):
    config = run_config(tmp_path, f"model={{hidden_size: {size}, num_attention_heads: 1, num_hidden_layers: 1}}")
    with pytest.raises(InputError, match="^model: a tensor of it does not fit into memory"):
        train(config)


@pytest.mark.parametrize(
    "change",
    [{"step": 4}, {"step": -6}, {"step": "six"}, {"step": float("inf")}, {"optimizer": None}, {"optimizer": {}},
     {"optimizer": {"state": {}, "param_groups": []}}, {"optimizer": 3}],
)  # fmt: skip
def test_a_trainer_s_state_that_is_another_s_is_refused(tmp_path, change):
    config = run_config(tmp_path)
    train(config)
    replace_trainer(config.folder, {**trainer_state(config.folder), **change})
    with pytest.raises(InputError, match="trainer.pt: not the state of this run"):
        train(run_config(tmp_path, "train.steps=7"), resume=True)


@pytest.mark.parametrize(
    "optimizer, moment", [("adamw", "exp_avg"), ("adamw", "exp_avg_sq"), ("adamw", "step"), ("muon", "momentum")]
)
@pytest.mark.parametrize("value", [torch.ones(3), "five", None])
def test_moments_of_another_shape_are_refused(tmp_path, optimizer, moment, value):
    config = run_config(tmp_path, f"train.optimizer={optimizer}")
    train(config)
    trainer = trainer_state(config.folder)
    trainer["optimizer"]["state"][1][moment] = value
    replace_trainer(config.folder, trainer)
    with pytest.raises(InputError, match="trainer.pt: not the state of this run"):
        train(run_config(tmp_path, f"train.optimizer={optimizer}", "train.steps=7"), resume=True)


def replace_trainer(run, trainer):
    checkpoint = checkpoint_module.find_checkpoint(run)
    torch.save(trainer, checkpoint / "trainer.pt")
    (checkpoint / "SHA256SUMS").unlink()


def test_a_compiler_that_fails_is_a_warning(tmp_path, monkeypatch, capsys):
    eager, compiled = run_config(tmp_path, "name=eager"), run_config(tmp_path, "name=compiled", "train.compile=true")
    train(eager)

    def fails(*_, **__):
        raise RuntimeError("no C++ compiler\nat all")

    monkeypatch.setattr(torch, "compile", fails)
    train(compiled)
    assert "warning: torch.compile does not work here" in capsys.readouterr().err
    assert weights(compiled.folder) == weights(eager.folder)


def test_the_sample_ends_where_the_table_of_positions_does(tmp_path, capsys):
    """A finished run of a learned table, with a context below the sample's length, must not end with an error."""
    assert call(program, config_file(tmp_path), "train.steps=3", "model.position=learned") == 0
    assert 0 < len(capsys.readouterr().out.encode()) <= 16 * 4


def test_the_command_trains_and_shows_a_sample_on_stdout_alone(tmp_path, capsys):
    assert call(program, config_file(tmp_path), "train.steps=3", "--overwrite", "name=other") == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "validation loss" in captured.err
    assert shlex.join(["generate.py", str(tmp_path / "runs" / "other")]) in captured.err
    assert call(program, "--resume", config_file(tmp_path), "name=other", "train.steps=4") == 0
    assert rows(tmp_path / "runs" / "other")[-1]["step"] == 4


def test_without_wandb_it_is_never_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # any import of it fails
    train(run_config(tmp_path))


class FakeWandb:
    """Records what it is asked for; refuses to go online, or to rewind there, if told so."""

    class Error(Exception):
        pass

    Settings = SimpleNamespace
    id, starting_step = "abc123", 0

    def __init__(self, has_login, has_network=True, rewinds=True):
        self.has_login, self.has_network, self.rewinds = has_login, has_network, rewinds
        self.inits, self.logged, self.finished = [], [], []

    def login(self, prompt, verify):
        assert not prompt and not verify, "neither a question nor the network"
        return self.has_login

    def init(self, **settings):
        self.inits.append(settings)
        if not self.has_network and settings["mode"] == "online":
            raise self.Error("no network")
        if not self.rewinds and "resume_from" in settings:
            raise self.Error("cannot\nrewind")
        return self

    def log(self, row, step):
        self.logged.append({**row, "step": step})

    def finish(self, exit_code):
        self.finished.append(exit_code)


def test_wandb_gets_the_rows_of_metrics_and_the_config(tmp_path, monkeypatch):
    wandb = FakeWandb(has_login=True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = run_config(tmp_path, "wandb.mode=online", "wandb.project=p", "wandb.group=g", "wandb.tags=[a, b]")
    train(config)
    lines = (config.folder / "metrics.jsonl").read_text().splitlines()
    assert wandb.logged == [json.loads(line) for line in lines]
    (settings,) = wandb.inits
    asked = {key: settings[key] for key in ("mode", "project", "group", "tags")}
    assert asked == {"mode": "online", "project": "p", "group": "g", "tags": ("a", "b")}
    assert (settings["name"], Path(settings["dir"])) == ("tiny", config.folder)
    assert settings["config"]["model"]["vocab_size"] == 257
    assert wandb.finished == [0]


def test_wandb_gets_each_drift_as_a_number(tmp_path, monkeypatch):
    """Of lists it draws nothing."""
    wandb = FakeWandb(has_login=True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    position = "model.position={scheme: learned_theta, per_layer: true}"
    config = run_config(tmp_path, "wandb.mode=offline", position, "train.steps=3")
    train(config)
    for sent, row in zip(wandb.logged, rows(config.folder), strict=True):
        drifts = {f"theta_drift/0/{i}": value for i, value in enumerate(row.pop("theta_drift", [[]])[0])}
        assert sent.items() >= {**row, **drifts}.items() and "theta_drift" not in sent
    assert len(drifts) == 0 and "theta_drift/0/3" in wandb.logged[0]


def test_a_resumed_run_goes_on_in_its_wandb_run(tmp_path, monkeypatch):
    """From before the step that it goes on after, whose rows are sent once more: none is missing, none comes twice."""
    wandb = FakeWandb(has_login=True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = run_config(tmp_path, "wandb.mode=online", "train.checkpoint_every=2", "train.eval_every=2")
    interrupted(config, 4)
    assert wandb.finished == [1] and not {"id", "resume", "resume_from"} & wandb.inits[0].keys()
    wandb.logged = [row for row in wandb.logged if row["step"] < 2]
    train(config, resume=True)
    assert [settings.get("resume_from") for settings in wandb.inits] == [None, "abc123?_step=1"]
    assert [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in wandb.logged] == rows(config.folder)


def test_where_wandb_cannot_rewind_the_rows_are_added(tmp_path, monkeypatch, capsys):
    wandb = FakeWandb(has_login=True, rewinds=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = run_config(tmp_path, "wandb.mode=online", "train.checkpoint_every=2")
    interrupted(config, 4)
    monkeypatch.setattr(wandb, "starting_step", 4)
    capsys.readouterr(), wandb.logged.clear()
    train(config, resume=True)
    assert (wandb.inits[-1]["id"], wandb.inits[-1]["resume"]) == ("abc123", "allow")
    assert [row["step"] for row in wandb.logged] == [4, 5, 6, 6], "it has steps up to 3, and takes no second one"
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert said == (
        "warning: wandb could not rewind run abc123 online (cannot rewind); next: add to run abc123 online"
    )  # fmt: skip


def test_a_wandb_that_refuses_all_is_a_warning(tmp_path, monkeypatch, capsys):
    wandb = FakeWandb(has_login=True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(wandb, "init", mock.Mock(side_effect=wandb.Error("not today")))
    config = run_config(tmp_path, "wandb.mode=offline")
    assert train(config)["step"] == 6
    assert "could not start a run offline (not today); next: go on without" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("has_login", "has_network", "modes"), [(False, True, ["offline"]), (True, False, ["online", "offline"])]
)
def test_wandb_without_login_or_network_goes_on_offline_with_a_warning(
    tmp_path, monkeypatch, capsys, has_login, has_network, modes
):
    """And asks for no login: wandb's own menu would block a run in a terminal."""
    wandb = FakeWandb(has_login, has_network)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train(run_config(tmp_path, "wandb.mode=online"))
    assert [settings["mode"] for settings in wandb.inits] == modes
    assert all(settings["settings"].init_timeout <= 30 for settings in wandb.inits)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert "offline" in said


def test_the_real_wandb_without_login_or_network_writes_inside_the_run_folder(tmp_path):
    """A process of its own, as a user starts it."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(home), "HTTPS_PROXY": "http://127.0.0.1:9", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "train.py", config_file(tmp_path), "wandb.mode=online", "train.steps=2"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith(("wandb", "warning"))]
    assert said == ["warning: no wandb login found; logging offline"]
    run = tmp_path / "runs" / "tiny"
    (log,) = run.glob("wandb/offline-run-*/*.wandb")
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "tiny.yaml", "runs", "cache", "home"}
    again = subprocess.run(
        [*command, "train.steps=3", "--resume"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.returncode == 0 and "WARNING" not in again.stderr, again.stderr
    logs = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(logs) == 2 and {path.name for path in logs} == {f"run-{(run / 'wandb_id').read_text()}.wandb"}
    assert log in logs


def test_a_log_file_gets_whole_lines_and_few(tmp_path, monkeypatch, capsys):
    config = run_config(tmp_path, "name=few")
    train(config)
    err = capsys.readouterr().err
    assert "\r" not in err and [line[:22] for line in err.splitlines() if "step" in line] == ["few: step 1 of 6, loss"]
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_LINES", 0)
    train(run_config(tmp_path, "name=more", "train.log_every=2"))
    said = [line.split(", ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == [f"more: step {step} of 6" for step in (2, 4, 6)]


def test_a_run_folder_tells_what_made_it(tmp_path, monkeypatch):
    """And what went on with it, from which step."""
    config = run_config(tmp_path)
    train(config)
    file = config.folder / "versions.json"
    first = json.loads(file.read_text())["0"]
    assert first["torch"] == torch.__version__ and first["python"] == sys.version.split()[0]
    train(run_config(tmp_path, "train.steps=7"), resume=True)
    assert json.loads(file.read_text()) == {"0": first}
    newer = {**first, "torch": "9.9"}
    monkeypatch.setattr("training.run.versions", lambda: newer)
    train(run_config(tmp_path, "train.steps=8"), resume=True)
    assert json.loads(file.read_text()) == {"0": first, "7": newer}
    file.unlink()  # as in folders of before
    train(run_config(tmp_path, "train.steps=9"), resume=True)
    assert json.loads(file.read_text()) == {"8": newer}


@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
def test_the_commit_is_that_of_this_checkout_or_none(tmp_path, monkeypatch):
    """Not that of a checkout around it, as where a zip is unpacked inside one, nor of one that the shell names."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(folder, *arguments):
        who = ["-c", "user.name=x", "-c", "user.email=x"]
        done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    outer, inner = tmp_path, tmp_path / "inner"
    inner.mkdir()
    git(outer, "init"), git(outer, "commit", "--allow-empty", "-m", "outer")
    monkeypatch.setattr(versions_module, "ROOT", inner)
    found = versions_module.versions.__wrapped__
    assert "whereabouts" not in found()
    git(inner, "init"), (inner / "file").touch(), git(inner, "add", "file"), git(inner, "commit", "-m", "inner")
    commit = git(inner, "rev-parse", "--short", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
    assert found()["whereabouts"] == commit
    (inner / "file").write_text("changed")
    assert found()["whereabouts"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert "whereabouts" not in found()


def test_a_run_does_not_go_on_with_another_tokenizer(tmp_path, capsys):
    """As another version of the library may make of the same text, where the cache is gone; nor is it measured with."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    every = ["data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"]
    config = run_config(tmp_path, *every)
    train(config)
    before = {path: path.read_bytes() for path in config.folder.rglob("*") if path.is_file()}
    elsewhere = run_config(tmp_path, *every, f"data.cache_dir={tmp_path / 'elsewhere'}", "train.steps=8")
    with (
        mock.patch("data.tokenizer._BPE_TRAINING_CHARACTERS", 300),
        mock.patch("data.encoding._PIECE_CHARACTERS", 100),
    ):
        other = load_corpus(elsewhere.data)
    assert other.tokenizer.get_vocab_size() == 300 and other.hash == load_corpus(config.data).hash
    file = config.folder / "checkpoints" / "step_000006" / "tokenizer.json"
    with pytest.raises(InputError, match=f"^{file}: is not the tokenizer that comes of data.source now"):
        train(elsewhere, resume=True)
    assert {path: path.read_bytes() for path in config.folder.rglob("*") if path.is_file()} == before
    with pytest.raises(InputError, match="is not the tokenizer"):
        RunFolder(config, resume=True).check_same_experiment(other)
    load_corpus(elsewhere.data.model_copy(update={"cache_dir": str(tmp_path / "third")}))
    train(run_config(tmp_path, *every, f"data.cache_dir={tmp_path / 'third'}", "train.steps=8"), resume=True)


@pytest.mark.parametrize("given, on_resume, expected", [(None, None, 3), (2, None, 2), (2, 4, 4)])
def test_a_run_keeps_the_number_of_its_threads(tmp_path, monkeypatch, given, on_resume, expected):
    """The last bits depend on it, so a resumed run takes as many as before, whatever this machine or --jobs has."""
    own, used, real = torch.get_num_threads(), [], loop.optimizer_step
    monkeypatch.setattr(loop, "optimizer_step", lambda *a: used.append(torch.get_num_threads()) or real(*a))
    override = [f"train.threads={given or 'null'}"]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 3)
        train(run_config(tmp_path, "train.steps=2", *override))
    torch.set_num_threads(own)
    again = run_config(tmp_path, "train.steps=3", f"train.threads={on_resume or 'null'}")
    train(again, resume=True)
    assert used[-1] == load_config(again.folder / "config.yaml").train.threads == expected
    assert torch.get_num_threads() == own
