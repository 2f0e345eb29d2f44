import io
import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import generate as program
from data.tokenizer import load_tokenizer
from model import generation
from model.checkpoint import load_checkpoint
from model.generation import generate
from tiny import TEXT, call, run_config
from training.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a char tokenizer, context 16: every token is a character of text."""
    config = run_config(tmp_path_factory.mktemp("run"), "data.tokenizer.kind=char", "train.steps=20")
    train(config)
    return config.folder


@pytest.fixture
def output(capsys, run):
    """stdout and stderr of the command on the run."""

    def output(*arguments, folder=run):
        assert call(program, folder, *arguments) == 0
        return capsys.readouterr()

    return output


def test_stdout_has_the_text_and_nothing_else(output, run):
    folder = run / "checkpoints" / "step_000020"
    tokenizer, model = load_tokenizer(folder), load_checkpoint(folder)
    prompt = torch.tensor(tokenizer.encode("that the").ids)
    settings = {"temperature": 0.9, "top_k": 5, "top_p": 0.95, "seed": 3, "vocab_size": tokenizer.get_vocab_size()}
    ids = [step.item() for step in generate(model, prompt, 8, **settings)]
    arguments = "--max-new-tokens 8 --temperature 0.9 --top-k 5 --top-p 0.95 --seed 3".split()
    got = output("--prompt", "that the", *arguments)
    assert len(ids) == 8
    assert got.out == tokenizer.decode(ids) + "\n"
    assert got.err == ""


def test_dtype_is_that_of_the_weights_while_tokens_are_made(output, monkeypatch, capsys, run):
    seen, plain = [], generation.decoder
    monkeypatch.setattr(generation, "decoder", lambda model, dtype: seen.append(dtype) or plain(model, dtype))
    for arguments, dtype in ((["--dtype", "bfloat16"], torch.bfloat16), ([], torch.float32)):
        assert len(output("--prompt", "that the", "--max-new-tokens", 8, *arguments).out) == 9
        assert seen.pop() == dtype
    assert call(program, run, "--dtype", "int4") == 2
    assert "--dtype" in (message := capsys.readouterr().err) and "int4" in message and "bfloat16" in message


def test_a_run_folder_means_its_newest_checkpoint(output, run):
    arguments = ["--prompt", "it was", "--max-new-tokens", 9]
    assert output(*arguments) == output(*arguments, folder=run / "checkpoints" / "step_000020")


def test_the_same_seed_gives_the_same_text(output):
    one, again, other = (output("--prompt", "he", "--max-new-tokens", 12, "--seed", seed).out for seed in (1, 1, 2))
    assert one == again != other


def test_temperature_zero_needs_no_seed(output):
    one, other = (output("--prompt", "he", "--temperature", 0, "--seed", seed).out for seed in (1, 2))
    assert one == other


def test_figures_go_to_stderr(output):
    got = output("--prompt", "he", "--max-new-tokens", 4, "--stats")
    assert got.out == output("--prompt", "he", "--max-new-tokens", 4).out
    assert got.err.startswith("prefill ") and "decode " in got.err and got.err.count("\n") == 1
    assert output("--prompt", "he", "--max-new-tokens", 1, "--stats").err.endswith("decode 0.0 tokens/s\n")


def test_samples_are_set_apart_by_a_blank_line(output):
    """And differ, or one would do."""
    texts = output("--prompt", "he", "--max-new-tokens", 10, "--num-samples", 3, "--temperature", 1.5).out.split("\n\n")
    assert len(set(text.rstrip("\n") for text in texts)) == 3


def test_going_past_the_trained_context_is_one_warning(output):
    within = output("--prompt", "that", "--max-new-tokens", 12, "--temperature", 0)
    assert within.err == ""
    past = output("--prompt", "that", "--max-new-tokens", 13, "--temperature", 0)
    assert past.err == "warning: goes on past the 16 tokens of context that the model was trained on\n"
    assert past.out.startswith(within.out[:-1])


def test_an_empty_prompt_starts_a_new_document(output, run):
    """From the end-of-text token, after which no word begins in its middle."""
    folder = run / "checkpoints" / "step_000020"
    tokenizer, model = load_tokenizer(folder), load_checkpoint(folder)
    start = torch.tensor([tokenizer.token_to_id("<|endoftext|>")])
    ids = [step.item() for step in generate(model, start, 6, temperature=0)]
    assert output("--max-new-tokens", 6, "--temperature", 0).out == tokenizer.decode(ids) + "\n"


def test_end_of_text_ends_the_text(output, monkeypatch):
    """Also as the first token; and its name is not printed."""
    draws = []

    def last_id(logits, *_):
        draws.append(logits.shape[-1] - 1)
        return torch.tensor(draws[-1:])

    monkeypatch.setattr(generation, "sample_token", last_id)
    assert output("--prompt", "he", "--max-new-tokens", 8).out == "\n"
    assert len(draws) == 1


def test_ids_that_pad_the_vocabulary_are_not_drawn(tmp_path, capsys, monkeypatch):
    """They stand for no text."""
    config = run_config(tmp_path, "data.tokenizer.kind=char", "model.vocab_size=300", "train.steps=2")
    train(config)
    real, widths = generation.sample_token, set()

    def watching(logits, *rest):
        widths.add(logits.shape[-1])
        return real(logits, *rest)

    monkeypatch.setattr(generation, "sample_token", watching)
    assert call(program, config.folder, "--prompt", "he", "--max-new-tokens", 3) == 0
    assert widths == {len(set(TEXT)) + 1}


def stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_a_prompt_may_come_from_stdin(output, monkeypatch):
    """Where it may be longer than a command line."""
    stdin(monkeypatch, b"that the")
    from_stdin = output("--prompt", "-", "--max-new-tokens", 5)
    assert from_stdin == output("--prompt", "that the", "--max-new-tokens", 5)


def test_bytes_on_stdin_that_are_not_utf8_are_one_line(capsys, run, monkeypatch):
    stdin(monkeypatch, b"that \xff")
    assert call(program, run, "--prompt", "-") == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: --prompt -: stdin is not UTF-8 at byte 5\n")


@pytest.fixture(scope="module")
def byte_run(tmp_path_factory):
    """A run whose tokens are bytes."""
    config = run_config(tmp_path_factory.mktemp("byte"), "train.steps=2")
    train(config)
    return config.folder


def test_the_name_of_a_special_token_in_a_prompt_is_text(output, byte_run, monkeypatch):
    """Of 13 characters, and none of them ends the text."""
    seen, real = [], generation.prefill
    monkeypatch.setattr(generation, "prefill", lambda model, ids, _: seen.append(ids.tolist()) or real(model, ids, _))
    stdin(monkeypatch, "a<|endoftext|>\0\r\né".encode())
    output("--prompt", "-", "--max-new-tokens", 1, folder=byte_run)
    assert seen == [list("a<|endoftext|>\0\r\né".encode())]


def test_a_long_prompt_is_read_in_parts_of_bounded_size(output, byte_run, monkeypatch, full):
    """8 kB; with --full 1 MB of them, which takes a quarter of an hour."""
    size = 1_000_000 if full else 8_000
    stdin(monkeypatch, b"words of a prompt. " * (size // 19))
    real, parts = generation.Transformer.forward, []

    def watching(model, input_ids, cache, **options):
        parts.append((input_ids.shape[1], cache.length + input_ids.shape[1]))
        return real(model, input_ids, cache, **options)

    monkeypatch.setattr(generation.Transformer, "forward", watching)
    assert output("--prompt", "-", "--max-new-tokens", 2, folder=byte_run).out.endswith("\n")
    assert max(queries * keys for queries, keys in parts) <= 2**24 and max(keys for _, keys in parts) > size * 0.99


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"eos_token_id": "two"}, "eos_token_id is 'two'"),
        ({"eos_token_id": [-1]}, "eos_token_id is [-1]"),
        ({"bos_token_id": 10**9}, "config.json: has a token 1000000000, but the model 257 tokens"),
        ({"eos_token_id": [5, 300]}, "config.json: has a token 300, but the model 257 tokens"),
    ],
)
def test_ids_that_no_token_has_are_refused(capsys, byte_run, tmp_path, change, expected):
    copy = shutil.copytree(byte_run / "checkpoints" / "step_000002", tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    assert call(program, copy) == 2
    assert expected in capsys.readouterr().err


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(capsys, byte_run, run, tmp_path):
    copy = shutil.copytree(run / "checkpoints" / "step_000020", tmp_path / "copy")
    shutil.copy(byte_run / "checkpoints" / "step_000002" / "tokenizer.json", copy)
    (copy / "SHA256SUMS").unlink()
    assert call(program, copy, "--prompt", "the") == 2
    assert "tokenizer.json: has a token 116, but the model " in capsys.readouterr().err


def test_weights_that_went_astray_are_one_line(capsys, byte_run, tmp_path):
    copy = shutil.copytree(byte_run / "checkpoints" / "step_000002", tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, copy / "model.safetensors")
    (copy / "SHA256SUMS").unlink()
    for temperature in (0, 1):
        assert call(program, copy, "--prompt", "the", "--temperature", temperature) == 2
        assert "logits are not finite" in capsys.readouterr().err


def test_help_is_answered_without_loading_torch(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # any import of it fails
    assert call(program, "--help") == 0
    assert "--top-p" in capsys.readouterr().out
