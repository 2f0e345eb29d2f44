"""A run from its config to its folder, resumed in every way, and what ends it from inside."""

import itertools
import json
import os
import re
import shlex
import shutil
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file
from tqdm import std

import generate
import train as program
from base import InputError, find_checkpoint
from comparison import single
from configs import load_config
from data.batches import IGNORED, Batches
from data.corpus import load_corpus
from model.checkpoint import load_checkpoint
from model.position import POSITIONS
from model.transformer import Transformer
from tiny import (
    TEXT,
    Stopped,
    around_step,
    assert_same_bits,
    before_step,
    call,
    config_file,
    contents,
    names,
    rows,
    run_config,
    settings,
    train_until,
    trained,
    trainer_state,
    weights,
    whole_and_other,
    with_loss,
)
from training import loop, rehearsal
from training.evaluation import evaluate
from training.facts import duration, opening
from training.loop import Trainer, train
from training.loss import summed_loss
from training.run import RunFolder
from training.schedule import learning_rate
from training.starting import fit_to_corpus


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


def test_a_config_gives_the_same_bits_again_and_another_seed_others(tmp_path):
    """Also as the run's own config.yaml, loadable as it stands, with the vocabulary's size filled in."""
    one, two, other = (trained(tmp_path, f"name={n}", f"seed={s}") for n, s in (("a", 5), ("b", 5), ("c", 6)))
    again = load_config(one.folder / "config.yaml", ["name=again"])
    assert again.model.vocab_size == 257
    train(again)
    assert weights(one.folder) == weights(two.folder) == weights(again.folder) != weights(other.folder)
    assert rows(one.folder) == rows(two.folder) == rows(again.folder) != rows(other.folder)


def test_logged_losses_are_of_the_whole_batch_and_validation_split(tmp_path):
    """The first from the initial weights, the last from those in the checkpoint; not the last micro-batch's."""
    config = trained(tmp_path, "train.batch_size=7", "train.micro_batch_size=3")
    corpus, model = load_corpus(config.data), initial_model(config)
    input_ids, targets = Batches(corpus.train, 16, 7, config.seed)[0]
    with torch.no_grad():
        expected = F.cross_entropy(model(input_ids).flatten(0, 1), targets.flatten()).item()
    assert rows(config.folder)[0]["train_loss"] == pytest.approx(expected, rel=1e-6)

    nats = evaluate(load_checkpoint(find_checkpoint(config.folder)), corpus.val, 16)
    last = rows(config.folder)[-1]
    assert last["val_loss"] == pytest.approx(nats / (len(corpus.val) - 1), rel=1e-6)
    text_bytes = len(TEXT) - round(len(TEXT) * 0.9)
    assert last["val_bits_per_byte"] == pytest.approx(nats / 0.6931471805599453 / text_bytes, rel=1e-6)


@pytest.fixture
def unpacked(tmp_path):
    """Settings to train on documents of 1 to 31 words, one by one; most are longer than a context, some shorter."""
    lines = [json.dumps({"text": " ".join(TEXT.split()[:length])}) for length in range(1, 32)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return f"data.source={tmp_path / 'lines.jsonl'}", "data.pack=false"


def test_unpacked_losses_and_tokens_are_those_of_real_targets(tmp_path, unpacked):
    config = trained(tmp_path, *unpacked, "train.micro_batch_size=3")
    corpus, model, end = load_corpus(config.data), initial_model(config), 256
    batches = Batches(corpus.train, 16, 4, config.seed, end)
    input_ids, targets = batches[0]
    with torch.no_grad():
        expected = F.cross_entropy(model(input_ids)[targets != IGNORED], targets[targets != IGNORED]).item()
    logged = rows(config.folder)
    assert logged[0]["train_loss"] == pytest.approx(expected, rel=1e-6)
    assert [row["tokens"] for row in logged] == [batches.targets(row["step"]) for row in logged]
    assert (targets == IGNORED).any(), "no padding in this test"
    trained_model = load_checkpoint(find_checkpoint(config.folder))
    nats = evaluate(trained_model, corpus.val, 16, end_of_text=end)
    assert logged[-1]["val_loss"] == pytest.approx(nats / (len(corpus.val) - 1), rel=1e-6)
    assert nats != pytest.approx(evaluate(trained_model, corpus.val, 16), rel=1e-4)


def test_an_unpacked_run_stopped_twice_ends_as_if_never_stopped(tmp_path, unpacked):
    """Over three epochs, whose order comes from no state."""
    whole, stopped = whole_and_other(tmp_path, *unpacked, "train.steps=40", "train.checkpoint_every=4")
    train_until(9, stopped)
    train_until(30, stopped, resume=True)
    train(stopped, resume=True)
    assert_same_bits(stopped, whole)


def test_padding_is_compiled_too(tmp_path, unpacked, monkeypatch):
    """The length differs from batch to batch; without code of the compiler's own, so that only the norm's bits differ."""
    settings = *unpacked, "model.position=alibi", "train.steps=3"
    eager = trained(tmp_path, *settings, "name=eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    compiled = trained(tmp_path, *settings, "name=compiled", "train.compile=true")
    for one, other in zip(rows(compiled.folder), rows(eager.folder), strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_every_scheme_trains_all_its_parameters_and_generates(tmp_path, scheme, capsys):
    config = trained(tmp_path, f"model.position={scheme}", "model.num_key_value_heads=1")
    before = initial_model(config)
    after = load_checkpoint(find_checkpoint(config.folder))
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
    whole, stopped = whole_and_other(tmp_path, *every, f"train.optimizer={optimizer}")
    train_until(5, stopped)
    train_until(8, stopped, resume=True)
    train_until(11, stopped, resume=True)
    assert train(stopped, resume=True) == rows(whole.folder)[-1]
    assert_same_bits(stopped, whole)
    assert trainer_state(stopped.folder)["step"] == 11
    steps = [row["step"] for row in rows(stopped.folder)]
    assert steps == sorted([*range(1, 12), *range(2, 11, 2), 11])


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_run_stopped_at_any_step_ends_as_if_never_stopped(tmp_path, stop):
    """Before its first checkpoint too, and where rows past the last one, one of them half, were written."""
    every = ["train.steps=7", "train.checkpoint_every=2", "train.eval_every=3", "train.log_every=2"]
    whole, stopped = whole_and_other(tmp_path, *every)
    train_until(stop, stopped)
    with (stopped.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "tra')
    train(stopped, resume=True)
    assert_same_bits(stopped, whole)


def test_a_finished_run_may_be_given_more_steps_twice(tmp_path):
    """A constant rate, so that the schedule is the same whatever the number of steps: then the bits are too."""
    flat = ["train.min_learning_rate=0.01", "train.warmup_steps=0"]
    whole = trained(tmp_path, "name=whole", "train.steps=9", *flat)
    for steps in (2, 5, 9):
        longer = run_config(tmp_path, "name=longer", f"train.steps={steps}", *flat)
        assert train(longer, resume=steps > 2)["step"] == steps
        assert load_config(longer.folder / "config.yaml").train.steps == steps, "config.yaml tells what was trained"
    assert weights(longer.folder) == weights(whole.folder)
    assert [row["step"] for row in rows(longer.folder) if "train_loss" in row] == list(range(1, 10))


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path, monkeypatch):
    """Best among those with an evaluation at their step; on a resume too, which finds what a kill left."""
    losses = iter([5.0, 3.0, 4.0, 4.0])  # after steps 2, 4, 6 and 7
    monkeypatch.setattr(loop, "evaluate", lambda *_: next(losses))
    every = ["train.steps=7", "train.eval_every=2", "train.checkpoint_every=1", "train.keep_checkpoints=2"]
    config = trained(tmp_path, *every)
    assert names(config.folder / "checkpoints") == ["step_000004", "step_000006", "step_000007"]
    (config.folder / "checkpoints" / ".step_000009.partial").mkdir()
    train(run_config(tmp_path, *every, "train.keep_checkpoints=1"), resume=True)
    assert names(config.folder / "checkpoints") == ["step_000004", "step_000007"]
    assert find_checkpoint(config.folder).name == "step_000007", "a run folder means its newest checkpoint"


def test_a_run_killed_while_it_saves_goes_on_from_the_checkpoint_before(tmp_path):
    whole, stopped = whole_and_other(tmp_path, "train.checkpoint_every=2")
    replace = os.replace

    def killed(source, target):
        if Path(target).name == "step_000004":
            raise Stopped
        replace(source, target)

    with mock.patch("model.checkpoint.os.replace", killed), pytest.raises(Stopped):
        train(stopped)
    assert trainer_state(stopped.folder)["step"] == 2
    train(stopped, resume=True)
    assert_same_bits(stopped, whole)
    assert names(stopped.folder / "checkpoints") == ["step_000006"]


def test_a_run_is_resumed_only_as_the_same_experiment(tmp_path):
    """What is refused leaves every file as it was; and a finished run has nothing more to do."""
    config = run_config(tmp_path)
    result, before = train(config), contents(config.folder)
    for key, value in [("seed", 1), ("train.learning_rate", 0.02), ("model.hidden_size", 32), ("model.position", "none"),
                       ("data.val_fraction", 0.2), ("data.pack", "false")]:  # fmt: skip
        with pytest.raises(InputError, match=f"cannot resume with another .*{key}"):
            train(run_config(tmp_path, f"{key}={value}"), resume=True)
    with pytest.raises(InputError, match="train.steps.* 6 .* 4$"):
        train(run_config(tmp_path, "train.steps=4"), resume=True)
    Path(config.data.source).write_text(TEXT + " more", encoding="utf-8")
    with pytest.raises(InputError, match="data.source has changed"):
        train(config, resume=True)
    Path(config.data.source).write_text(TEXT, encoding="utf-8")
    assert train(config, resume=True) == result
    assert contents(config.folder) == before


def test_a_run_is_overwritten_only_when_asked(tmp_path, monkeypatch):
    """And refused before the corpus is read, which takes minutes where it is large."""
    config, other = run_config(tmp_path), run_config(tmp_path, "seed=1", "train.steps=4")
    train(config)
    kept = weights(config.folder)
    with monkeypatch.context() as patch, pytest.raises(InputError, match="already holds a run; .*--overwrite"):
        patch.setattr(loop, "load_corpus", lambda _: pytest.fail("read"))
        train(other)
    assert weights(config.folder) == kept
    train(other, overwrite=True)
    assert weights(config.folder) != kept
    assert names(config.folder / "checkpoints") == ["step_000004"]


# What is not finite


def harmed(steps, harm=lambda loss: loss * float("nan")):
    """The loss of these steps, or its gradient, is not finite."""
    stack = ExitStack()
    for number in steps:
        stack.enter_context(with_loss(number, lambda real, *given: harm(real(*given))))
    return stack


def ruined_by_step(number):
    """The loss of a step is finite, and none after its update of the weights."""

    @contextmanager
    def surround(trainer):
        yield
        trainer.model.norm.weight.data[0] = float("nan")

    return around_step(number, surround)


def test_a_loss_that_is_not_finite_ends_the_run_with_one_line(tmp_path, capsys):
    config = run_config(tmp_path, "train.checkpoint_every=2")
    with harmed([5]):
        assert call(program, config_file(tmp_path), "train.checkpoint_every=2") == 2
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert [line for line in lines if "error" in line] == [lines[-1]]
    assert lines[-2].endswith("\n"), "on a line of its own, below the progress bar"
    assert lines[-1].startswith("error: step 5: loss nan, ") and "train.learning_rate" in lines[-1]
    assert lines[-1].endswith("last good checkpoint is " + str(config.folder / "checkpoints" / "step_000004") + "\n")
    assert names(config.folder / "checkpoints") == ["step_000004"]
    assert rows(config.folder)[-1] == {"step": 5, "tokens": 5 * 64, "diverged": lines[-1][7:].split(";")[0]}
    saved = load_file(config.folder / "checkpoints" / "step_000004" / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())


@pytest.mark.parametrize("eval_every, checkpoint_every, good", [(6, 1, 5), (3, 2, 2), (3, 3, None), (None, None, None)])
def test_an_evaluation_that_is_not_finite_ends_the_run_too(tmp_path, eval_every, checkpoint_every, good):
    """The checkpoint before it is set aside: what goes on, and generate.py, take the one that was good."""
    every = [f"train.eval_every={eval_every or 'null'}", f"train.checkpoint_every={checkpoint_every or 'null'}"]
    whole, config = whole_and_other(tmp_path, *every)
    step = eval_every or 6
    place = config.folder / "checkpoints" / f"step_00000{good}" if good else "none yet"
    problem = f"step {step}: validation loss nan at train.learning_rate {learning_rate(step, config.train):.2g}"
    with ruined_by_step(step), pytest.raises(InputError) as caught:
        train(config)
    assert str(caught.value) == f"{problem}; the last good checkpoint is {place}"
    assert rows(config.folder)[-1] == {"step": step, "tokens": 64 * step, "diverged": problem}
    run = RunFolder(config, resume=True)
    assert run.divergence() == problem and not run.is_finished()
    assert run.newest_checkpoint() == (place if good else None)
    train(config, resume=True)
    assert_same_bits(config, whole)
    assert names(config.folder / "checkpoints") == names(whole.folder / "checkpoints")
    assert run.divergence() is None and run.is_finished()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_learning_rate_beyond_float32_ends_the_run_as_one_too_high_does(tmp_path, optimizer):
    with pytest.raises(InputError, match=r"^step 2: loss nan, .* at train.learning_rate 1e\+300; the last good"):
        trained(tmp_path, f"train.optimizer={optimizer}", "train.learning_rate=1e300")


def test_a_checkpoint_of_ruined_weights_is_not_called_good(tmp_path):
    """The loss that shows it is that of the next step, which comes after the save."""
    every = ["train.checkpoint_every=1", "train.keep_checkpoints=3", "train.max_skipped_steps=1"]
    whole, config = whole_and_other(tmp_path, *every)
    with ruined_by_step(3), pytest.raises(InputError, match=r"^step 5: loss nan.* good checkpoint is .*/step_000002$"):
        train(config)
    assert names(config.folder / "checkpoints") == ["step_000002", "step_000003.diverged", "step_000004.diverged"]
    train(config, resume=True)
    assert_same_bits(config, whole)


def test_a_checkpoint_is_not_good_where_part_of_its_evaluation_is_finite(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "evaluate", lambda _, tokens, *__: float("nan") if len(tokens) > 17 else 1.0)
    with pytest.raises(InputError, match="^step 6: validation loss nan .* checkpoint is none yet$"):
        trained(tmp_path)
    assert names(run_config(tmp_path).folder / "checkpoints") == ["step_000006.diverged"]


@pytest.mark.parametrize(
    "harm", [lambda loss: loss * float("nan"), lambda loss: loss + (loss - loss.detach()).abs().sqrt()]
)
def test_a_step_that_is_not_finite_is_skipped_when_the_config_asks(tmp_path, capsys, harm):
    """In the second case the loss is finite and its gradient is not."""
    every = ["train.checkpoint_every=1", "train.keep_checkpoints=9", "train.max_skipped_steps=1", "train.log_every=5"]
    with harmed([4], harm):
        config = trained(tmp_path, *every)
    assert "warning: step 4: loss" in (err := capsys.readouterr().err) and "skipped, 1 of 1 allowed" in err
    states = [torch.load(config.folder / f"checkpoints/step_00000{n}/trainer.pt") for n in (3, 4, 5)]
    bits = [(config.folder / f"checkpoints/step_00000{n}/model.safetensors").read_bytes() for n in (3, 4, 5)]
    assert bits[0] == bits[1] != bits[2]
    assert [state["skipped"] for state in states] == [0, 1, 1]
    torch.testing.assert_close(states[0]["optimizer"]["state"], states[1]["optimizer"]["state"], rtol=0, atol=0)
    skipped = rows(config.folder)[0]
    assert (skipped["step"], skipped["train_loss"], skipped["grad_norm"]) == (4, None, None)
    assert [row["step"] for row in rows(config.folder)] == [4, 5, 6, 6]


def test_a_run_with_skipped_steps_resumes_exactly_and_counts_on(tmp_path):
    every = ["train.checkpoint_every=2", "train.max_skipped_steps=3"]
    with harmed([2, 3, 5]):
        whole, stopped = whole_and_other(tmp_path, *every)
        train_until(4, stopped)
        with pytest.raises(InputError, match=r"^step 5: loss nan.* checkpoint is .*/step_000004$"):
            train(run_config(tmp_path, "name=other", *every, "train.max_skipped_steps=2"), resume=True)
        train(stopped, resume=True)
    assert_same_bits(whole, stopped)


def test_a_run_saved_before_any_step_counted_goes_on(tmp_path):
    """The optimizer has no moments yet."""
    every = ["train.checkpoint_every=2", "train.max_skipped_steps=2"]
    with harmed([1, 2]):
        whole, stopped = whole_and_other(tmp_path, *every)
        train_until(3, stopped)
        train(stopped, resume=True)
    assert_same_bits(whole, stopped)


PARTIAL = [scheme for scheme, kind in POSITIONS.items() if "every" in kind.Options.model_fields]


@pytest.mark.parametrize("scheme", PARTIAL)
def test_what_acts_in_some_layers_trains_all_its_parameters_and_goes_on(tmp_path, scheme):
    """One without a gradient would have no moments to go on with, and DistributedDataParallel would wait for it."""
    position = f"model.position={{scheme: {scheme}, every: [1]}}"
    every = ["train.steps=3", "train.checkpoint_every=1", "model.num_hidden_layers=2", position]
    whole, stopped = whole_and_other(tmp_path, *every)
    train_until(2, stopped)
    train(stopped, resume=True)
    assert_same_bits(whole, stopped)
    config = load_config(whole.folder / "config.yaml").model
    model = Transformer(config)
    summed_loss(model, torch.arange(8)[None], torch.arange(8)[None]).backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


# What does not fit


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), RuntimeError("MPS backend out of "
              "memory"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to …")]
)  # fmt: skip
def test_the_advice_for_a_full_device_keeps_the_batch_and_can_be_followed(tmp_path, error):
    every = ["train.batch_size=7", "train.checkpoint_every=2"]

    def limited(real, model, input_ids, targets):
        if len(input_ids) > 3:
            raise error
        return real(model, input_ids, targets)

    with pytest.raises(InputError) as caught, with_loss(4, limited):
        trained(tmp_path, *every)
    assert str(caught.value) == (
        "train.micro_batch_size: 7 sequences at once need more memory than cpu has; "
        "train.micro_batch_size=3 makes the same batch of 7 in 3 parts"
    )
    assert train(run_config(tmp_path, *every, "train.micro_batch_size=3"), resume=True)["step"] == 6


@pytest.mark.parametrize(
    "raised, expected, message",
    [
        (torch.OutOfMemoryError("out of memory"), InputError, "^model: one sequence .* model.max_position_embeddings$"),
        (RuntimeError("a defect"), RuntimeError, "a defect"),
    ],
)
def test_one_sequence_too_many_needs_another_model_and_a_defect_is_none(tmp_path, raised, expected, message):
    with pytest.raises(expected, match=message), with_loss(1, mock.Mock(side_effect=raised)):
        trained(tmp_path, "train.micro_batch_size=1")


def test_a_model_that_no_memory_holds_is_one_line(tmp_path):
    with pytest.raises(InputError, match="^model: a tensor does not fit into memory"):
        trained(tmp_path, f"model={{hidden_size: {5 * 10**8}, num_attention_heads: 1, num_hidden_layers: 1}}")


# What a checkpoint keeps


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run of each optimizer, called by its name."""
    folder = tmp_path_factory.mktemp("finished")
    for optimizer in ("adamw", "muon"):
        trained(folder, f"train.optimizer={optimizer}", f"name={optimizer}")
    return folder


OTHERS = [{"step": 4}, {"step": -6}, {"step": "six"}, {"step": float("inf")}, {"optimizer": None}, {"optimizer": {}},
          {"optimizer": {"state": {}, "param_groups": []}}, {"optimizer": 3}]  # fmt: skip
MOMENTS = [("adamw", "exp_avg"), ("adamw", "exp_avg_sq"), ("adamw", "step"), ("muon", "momentum")]


@pytest.mark.parametrize(
    "optimizer, moment, change",
    [("muon", None, change) for change in OTHERS]
    + [(*moment, value) for moment in MOMENTS for value in (torch.ones(3), "five", None)],
)
def test_a_state_of_another_run_is_refused(finished, optimizer, moment, change):
    longer = run_config(finished, f"name={optimizer}", f"train.optimizer={optimizer}", "train.steps=7")
    file = find_checkpoint(longer.folder) / "trainer.pt"
    before, state = file.read_bytes(), trainer_state(longer.folder)
    if moment:
        state["optimizer"]["state"][1][moment] = change
    else:
        state |= change
    file.with_name("SHA256SUMS").unlink(missing_ok=True)
    torch.save(state, file)
    with pytest.raises(InputError, match="trainer.pt: not the state of this run"):
        train(longer, resume=True)
    file.write_bytes(before)


def test_a_compiler_that_fails_is_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", mock.Mock(side_effect=RuntimeError("no C++ compiler\nat all")))
    eager, compiled = trained(tmp_path, "name=eager"), trained(tmp_path, "name=compiled", "train.compile=true")
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warning == "warning: torch.compile does not work here (RuntimeError); eager mode"
    assert weights(compiled.folder) == weights(eager.folder)


@pytest.mark.parametrize("given, on_resume, expected", [(None, None, 3), (2, None, 2), (2, 4, 4)])
def test_a_run_keeps_the_number_of_its_threads(tmp_path, monkeypatch, given, on_resume, expected):
    """The last bits depend on it, so a resumed run takes as many as before, whatever this machine or --jobs has."""
    own, used = torch.get_num_threads(), []
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 3)
        trained(tmp_path, "train.steps=2", f"train.threads={given or 'null'}")
    torch.set_num_threads(own)
    again = run_config(tmp_path, "train.steps=3", f"train.threads={on_resume or 'null'}")
    with before_step(3, lambda _: used.append(torch.get_num_threads())):
        train(again, resume=True)
    assert used == [load_config(again.folder / "config.yaml").train.threads] == [expected]
    assert torch.get_num_threads() == own


def test_a_run_does_not_go_on_with_another_tokenizer(tmp_path, capsys):
    """As another version of the library may make of the same text, where the cache is gone; nor is it measured with."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    every = ["data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"]
    config = trained(tmp_path, *every)
    before = contents(config.folder)
    elsewhere = run_config(tmp_path, *every, f"data.cache_dir={tmp_path / 'elsewhere'}", "train.steps=8")
    with (
        mock.patch("data.tokenizer._BPE_TRAINING_CHARACTERS", 300),
        mock.patch("data.encoding._PIECE_CHARACTERS", 100),
    ):
        other = load_corpus(elsewhere.data)
    assert other.tokenizer.get_vocab_size() == 300 and other.hash == load_corpus(config.data).hash
    file = config.folder / "checkpoints" / "step_000006" / "tokenizer.json"
    with pytest.raises(InputError, match=f"^{file}: data.source now gives another tokenizer"):
        train(elsewhere, resume=True)
    assert contents(config.folder) == before
    with pytest.raises(InputError, match="another tokenizer"):
        RunFolder(config, resume=True).check_same_experiment(other)
    load_corpus(elsewhere.data.model_copy(update={"cache_dir": str(tmp_path / "third")}))
    train(run_config(tmp_path, *every, f"data.cache_dir={tmp_path / 'third'}", "train.steps=8"), resume=True)


# The command


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


def test_a_log_file_gets_whole_lines_and_few(tmp_path, monkeypatch, capsys):
    trained(tmp_path, "name=few")
    err = capsys.readouterr().err
    assert "\r" not in err and [line[:22] for line in err.splitlines() if ": step" in line] == [
        "few: step 1 of 6, loss"
    ]
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_LINES", 0)
    trained(tmp_path, "name=more", "train.log_every=2")
    said = [line.split(", ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said[1:] == [f"more: step {step} of 6" for step in (2, 4, 6)]


def test_the_start_says_what_is_to_come_and_warns_of_many_passes(tmp_path, capsys):
    """3,419 bytes and an end-of-text are 3,420 tokens: four passes are 213.75 steps of 64."""
    config = trained(tmp_path, "train.warmup_steps=7", "train.threads=2")
    (line, warm_up, *_) = capsys.readouterr().err.splitlines()[1:]
    parameters = sum(
        tensor.numel() for tensor in load_file(find_checkpoint(config.folder) / "model.safetensors").values()
    )
    said = f"tiny: {parameters:,} parameters on cpu, 2 threads; 6 steps, 384 tokens: 0.11 passes over the text"
    assert line == said
    assert warm_up == "train.warmup_steps 7 is more than the 6 steps there are; the warm-up takes 1"
    assert load_config(config.folder / "config.yaml").train.warmup_steps == 7
    train(run_config(tmp_path, "train.warmup_steps=7", "train.steps=8"), resume=True)
    assert [row["learning_rate"] for row in rows(config.folder) if "learning_rate" in row][6:7] == [0.01]
    corpus = load_corpus(config.data)
    for steps, warned in ((213, False), (214, True)):
        longer = config.model_copy(
            update={"train": config.train.model_copy(update={"steps": steps, "warmup_steps": 0})}
        )
        said = opening(longer, corpus, 1, torch.device("cpu"), 64 * steps)
        assert len(said) == 1 + warned and said[-1].startswith("warning: 4 passes over the text: ") == warned


def test_the_passes_of_a_mixture_are_those_of_its_most_repeated_source(tmp_path):
    parts = [SimpleNamespace(weight=3.0, train=range(100)), SimpleNamespace(weight=1.0, train=range(10))]
    said = opening(run_config(tmp_path), SimpleNamespace(parts=parts), 1, torch.device("cuda"), 400)
    assert said[0].endswith(" 400 tokens: 10 passes over the most repeated source")


def test_the_end_names_the_lowest_loss_and_its_checkpoint_and_generate_takes_it(tmp_path, capsys, monkeypatch):
    """The rate is far too high from the fourth step on."""
    monkeypatch.setattr(loop, "learning_rate", lambda step, _: 0.01 if step < 4 else 10.0)
    arguments = "train.eval_every=3", "train.checkpoint_every=3"
    assert call(program, config_file(tmp_path), *arguments) == 0
    folder, said = tmp_path / "runs" / "tiny", capsys.readouterr().err
    third = next(row["val_loss"] for row in rows(folder) if row["step"] == 3 and "val_loss" in row)
    best = folder / "checkpoints" / "step_000003"
    assert f"lowest {third:.4f} after step 3, {best}" in said
    assert shlex.join(["generate.py", str(folder), "--checkpoint", "best"]) in said
    assert call(program, config_file(tmp_path), arguments[0], "name=few") == 0
    assert f"lowest {third:.4f} after step 3, of which no checkpoint was kept" in capsys.readouterr().err
    texts = []
    for which in ([folder, "--checkpoint", "best"], [best], [folder]):
        assert call(generate, *which, "--max-new-tokens", 8, "--json") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    (folder / "metrics.jsonl").write_text("", encoding="utf-8")
    assert call(generate, folder, "--checkpoint", "best") == 2
    assert "--checkpoint best: " in capsys.readouterr().err


def test_an_evaluation_shows_its_loss_and_leaves_the_time_left(tmp_path, monkeypatch):
    """By a clock on which a step takes a second and an evaluation an hour, as the bar's rate has it."""
    now, rates, real_bar, real_step, real = [1e9], [], loop.tqdm, Trainer.take_step, Trainer.total_nats
    monkeypatch.setattr(std, "time", lambda: now[0])
    monkeypatch.setattr(loop.time, "time", lambda: now[0])
    monkeypatch.setattr(loop, "tqdm", lambda *given, **more: real_bar(*given, **{**more, "disable": False}))

    def passing(seconds, real):
        def timed(trainer, *given):
            now[0] += seconds
            rates.append((trainer.bar.format_dict["rate"], trainer.bar.postfix))
            return real(trainer, *given)

        return timed

    monkeypatch.setattr(Trainer, "take_step", passing(1, real_step))
    monkeypatch.setattr(Trainer, "total_nats", passing(3600, real))
    trained(tmp_path, "train.eval_every=2")
    assert rates[-1][0] == pytest.approx(1) and ", validation loss " in rates[-1][1]


def test_the_printed_config_is_the_same_config_and_explains_each_key(tmp_path, capsys):
    arguments = [
        "model.position={scheme: rope, base: 500}",
        f"wandb.tags=[{'a b ' * 15}, 'ä: #']",
        "data.subset='a: b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b c'",
    ]
    assert call(program, config_file(tmp_path), *arguments, "--print-config") == 0
    (tmp_path / "printed.yaml").write_text(printed := capsys.readouterr().out, encoding="utf-8")
    assert load_config(tmp_path / "printed.yaml") == run_config(tmp_path, *arguments)
    assert "  batch_size: 4  # sequences per step, over all processes\n" in printed
    assert not [line for line in printed.splitlines() if "  # " not in line and "scheme:" not in line]
    assert not (tmp_path / "runs").exists()


def test_a_rehearsal_writes_no_run_and_counts_by_hand(tmp_path, capsys):
    """6,720 parameters: 257 rows of 16 as embedding, 4 x 16 x 16 in attention, 3 x 16 x 32 in the MLP, 3 norms of 16."""
    assert call(program, config_file(tmp_path), "--dry-run", "train.eval_every=4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny: 6,720 parameters on cpu, ") and "6 steps, 384 tokens" in lines[0]
    assert lines[1] == "parameters: embed_tokens 4,112, norms 48, self_attn 1,024, mlp 1,536"
    assert re.fullmatch(r"memory: about [0-9.]+ GiB", lines[2]) and lines[3].endswith("each of the evaluations (2)")
    assert not (tmp_path / "runs").exists()
    config = trained(tmp_path)
    before = contents(config.folder)
    assert call(program, config_file(tmp_path), "--dry-run") == 2
    assert "already holds a run" in capsys.readouterr().err
    assert call(program, config_file(tmp_path), "--dry-run", "--overwrite", "model.max_position_embeddings=4000") == 2
    assert "each needs model.max_position_embeddings + 1 = 4001" in capsys.readouterr().err
    assert call(program, config_file(tmp_path), "--dry-run", "--resume", "model.hidden_size=32") == 2
    assert "cannot resume with another model.hidden_size" in capsys.readouterr().err
    for how in ("--overwrite", "--resume"):
        assert call(program, config_file(tmp_path), "--dry-run", how) == 0 and contents(config.folder) == before


def test_speed_and_time_left_are_those_of_the_steps_since_the_last_row(tmp_path, monkeypatch, capsys):
    """By a clock on which each step of 64 tokens takes 0.5 s, and as long passes between two."""
    ticks = itertools.count(0, 0.5)
    clock = SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=lambda: 1e9, time=lambda: 0.0)
    monkeypatch.setattr(loop, "time", clock)
    config = trained(tmp_path, "train.log_every=2")
    assert [
        row["tokens_per_second"] for row in RunFolder(config, resume=True).metrics() if "train_loss" in row
    ] == 3 * [128.0]
    assert re.findall(r"step (\d) of 6, .* 128 tokens/s, (.*) left", capsys.readouterr().err)[0] == ("2", "2 s")


def test_the_evaluation_has_the_dtype_and_the_memory_of_the_steps(tmp_path, monkeypatch):
    """Of which too little is a line."""
    seen, real = [], loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda *given: seen.append(torch.is_autocast_enabled("cpu")) or real(*given))
    trained(tmp_path, "train.dtype=bfloat16")
    assert seen == [True]
    monkeypatch.setattr(loop, "evaluate", mock.Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(InputError, match="one sequence needs more memory than cpu has"):
        trained(tmp_path, "name=full")


def test_a_rehearsal_of_a_resumption_is_refused_like_it_and_of_what_is_left(tmp_path, capsys):
    """Also where the tokenizer that the run was given is gone, which its checkpoint has."""
    base = trained(tmp_path, "name=base").folder
    values = settings(tmp_path) | {"name": "ft", "model": {}}
    del values["data"]["tokenizer"]
    values["train"] |= {"init_from": str(base), "threads": 2}
    (file := tmp_path / "ft.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert call(program, file) == 0
    shutil.rmtree(base)
    capsys.readouterr()
    assert (
        call(program, file, "--dry-run", "--resume", "train.steps=8", "train.eval_every=1", "train.threads=null") == 0
    )
    found = capsys.readouterr().out
    assert "each of the evaluations (2)" in found and "2 threads" in found
    assert call(program, file, "--dry-run", "--resume", "train.steps=5") == 2
    assert "train.steps: expected at least the 6 that" in capsys.readouterr().err


def test_the_time_of_a_rehearsal_is_that_of_steps_and_evaluations(tmp_path, monkeypatch):
    """By a clock on which the first step, which warms up, takes 9 s, the others about 0.5 s, an evaluation 20 s."""
    ticks = iter([0, 9, 9, 9.25, 10, 10.5, 11, 11.75, 20, 40])
    monkeypatch.setattr(rehearsal, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    config = run_config(tmp_path, "train.steps=100", "train.eval_every=40")
    seconds, lines = rehearsal.rehearse(config, load_corpus(config.data))
    assert seconds == 110
    assert lines[-1] == "time: about 2 min, by 4 steps: 0.5 s a step, and 20 s for each of the evaluations (3)"
    assert [duration(seconds) for seconds in (89, 90, 5399, 5400)] == ["89 s", "2 min", "90 min", "1.5 h"]


def test_a_run_that_is_done_has_a_picture_and_a_page(tmp_path, monkeypatch):
    """Also one that ended after its first step, and without what no picture has room for."""
    monkeypatch.setattr(single, "MOST_POINTS", 3)
    for steps in (1, 6):
        assert call(program, config_file(tmp_path), f"train.steps={steps}", f"name=run{steps}") == 0
        folder = tmp_path / "runs" / f"run{steps}"
        whole = ElementTree.fromstring((folder / "loss.svg").read_text(encoding="utf-8"))
        assert {"training", "validation", "rate"} <= {text.strip() for text in whole.itertext()}
        html, (*_, last) = (folder / "report.html").read_text(encoding="utf-8"), rows(folder)
        assert f"ends at {last['val_loss']:.4f} nats per token" in html and "# optimizer steps" in html
        assert html.count("<svg") == 2 and "http" not in html.replace("http://www.w3.org/2000/svg", "")
    line = single._line(rows(folder), "train_loss", "training", 0)
    assert [tokens for tokens, _ in line.points] == [3 * 64, 6 * 64]
