"""generate.py: what it prints, which files of a checkpoint it heeds, and what it refuses."""

import io
import itertools
import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import generate as program
from data.tokenizer import load_tokenizer
from model import context, generation
from model.checkpoint import find_checkpoint, load_checkpoint
from model.context import Context
from model.generation import generate
from sampling import samples
from tiny import call, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a char tokenizer, context 16: every token is a character of text."""
    return trained(tmp_path_factory.mktemp("run"), "data.tokenizer.kind=char", "train.steps=20").folder


@pytest.fixture
def checkpoint(run):
    return find_checkpoint(run)


@pytest.fixture(scope="module")
def byte_checkpoint(tmp_path_factory):
    """That of a run whose tokens are bytes."""
    return find_checkpoint(trained(tmp_path_factory.mktemp("byte"), "train.steps=2").folder)


@pytest.fixture
def output(capsys, run):
    """stdout and stderr of the command on the run."""

    def output(*arguments, folder=run):
        assert call(program, folder, *arguments) == 0
        return capsys.readouterr()

    return output


@pytest.fixture
def refusal(capsys):
    """The line that the command ends with."""

    def refusal(folder, *arguments):
        assert call(program, folder, *arguments) == 2
        return capsys.readouterr().err

    return refusal


@pytest.fixture
def prompts(monkeypatch):
    """The ids of each prompt that is read."""
    seen, real = [], Context.read

    def watching(context, prompts, copies):
        seen.extend(prompt.tolist() for prompt in prompts)
        return real(context, prompts, copies)

    monkeypatch.setattr(Context, "read", watching)
    return seen


@pytest.fixture
def stdin(monkeypatch):
    return lambda content: monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def changed(checkpoint, place, files):
    """A copy of a checkpoint with other keys in its JSON files; a key of None is taken out, a file of None removed."""
    copy = shutil.copytree(checkpoint, place / "copy")
    (copy / "SHA256SUMS").unlink(missing_ok=True)  # others' folders have none
    for name, keys in files.items():
        content = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
        (copy / name).unlink(missing_ok=True)
        if keys is not None:
            kept = {key: value for key, value in {**content, **keys}.items() if value is not None}
            (copy / name).write_text(json.dumps(kept))
    return copy


def test_stdout_has_the_text_and_nothing_else(output, checkpoint):
    tokenizer, model = load_tokenizer(checkpoint), load_checkpoint(checkpoint)
    prompt = torch.tensor(tokenizer.encode("that the").ids)
    steps = generate(model, prompt, 8, temperature=0.9, top_k=5, top_p=0.95, seed=3)
    ids = [step.ids.item() for step in steps]
    arguments = "--max-new-tokens 8 --temperature 0.9 --top-k 5 --top-p 0.95 --seed 3".split()
    got = output("--prompt", "that the", *arguments)
    assert len(ids) == 8 and got == (tokenizer.decode(ids) + "\n", "")


def test_dtype_is_that_of_the_weights_while_decoding(output, refusal, monkeypatch, run):
    seen, plain = [], context.decoding_model
    monkeypatch.setattr(context, "decoding_model", lambda model, dtype: seen.append(dtype) or plain(model, dtype))
    for arguments, dtype in ((["--dtype", "bfloat16"], torch.bfloat16), ([], torch.float32)):
        assert len(output("--prompt", "that the", "--max-new-tokens", 8, *arguments).out) == 9
        assert seen.pop() == dtype
    message = refusal(run, "--dtype", "int4")
    assert "--dtype" in message and "int4" in message and "bfloat16" in message


def test_a_run_folder_means_its_newest_checkpoint(output, checkpoint):
    arguments = ["--prompt", "it was", "--max-new-tokens", 9]
    assert output(*arguments) == output(*arguments, folder=checkpoint)


def test_one_seed_gives_one_text_and_temperature_zero_needs_none(output):
    arguments = ["--prompt", "he", "--max-new-tokens", 12, "--seed"]
    one, again, other = (output(*arguments, seed).out for seed in (1, 1, 2))
    assert one == again != other
    assert output(*arguments, 1, "--temperature", 0) == output(*arguments, 2, "--temperature", 0)


def test_figures_go_to_stderr(output):
    got = output("--prompt", "he", "--max-new-tokens", 4, "--stats")
    assert got.out == output("--prompt", "he", "--max-new-tokens", 4).out
    assert got.err.startswith("prefill ") and "decode " in got.err and got.err.count("\n") == 1
    assert output("--prompt", "he", "--max-new-tokens", 1, "--stats").err.endswith("decode 0.0 tokens/s\n")


def test_samples_are_set_apart_by_a_blank_line(output):
    """And differ, or one would do; the first is the one that comes alone."""
    arguments = ["--prompt", "he", "--max-new-tokens", 10, "--temperature", 1.5]
    texts = output(*arguments, "--num-samples", 3).out.split("\n\n")
    assert len(set(text.rstrip("\n") for text in texts)) == 3
    assert texts[0] + "\n" == output(*arguments).out


def test_each_sample_ends_at_its_own_stop_token(output, checkpoint, tmp_path, monkeypatch):
    """Which is no part of the text, special or not. --stats counts the tokens drawn, here in a second a step."""
    e = load_tokenizer(checkpoint).token_to_id("e")
    arguments = ["--prompt", "th", "--max-new-tokens", 14, "--num-samples", 5, "--temperature", 1.5]
    whole = output(*arguments).out[:-1].split("\n\n")
    folder = changed(checkpoint, tmp_path, {"config.json": {"eos_token_id": e}})
    monkeypatch.setattr(samples, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    got = output(*arguments, "--stats", folder=folder)
    texts = [text.partition("e")[0] for text in whole]
    assert got.out == "\n\n".join(texts) + "\n"
    lengths = [len(text) for text in texts]
    assert len(set(lengths)) > 2
    decoded, seconds = sum(min(n, 13) for n in lengths), min(max(lengths), 13)
    assert got.err == f"prefill 2.0 tokens/s, decode {decoded / seconds:.1f} tokens/s\n"


def test_the_first_sample_is_printed_to_its_end_while_others_go_on(byte_checkpoint, capsys, monkeypatch):
    printed, draws = [], iter([[97, 97], [256, 98], [97, 99], [97, 256]])

    def scripted(*_):
        printed.append(capsys.readouterr().out)
        return torch.tensor(next(draws))

    monkeypatch.setattr(generation, "sample_token", scripted)
    assert call(program, byte_checkpoint, "--prompt", "he", "--num-samples", 2) == 0
    assert [*printed, capsys.readouterr().out] == ["", "a", "\n", "", "\nabc\n"]


def test_going_past_the_trained_context_is_one_warning(output):
    within = output("--prompt", "that", "--max-new-tokens", 12, "--temperature", 0)
    assert within.err == ""
    past = output("--prompt", "that", "--max-new-tokens", 13, "--temperature", 0)
    assert past.err == "warning: longer than the 16 tokens of context that the model was trained on\n"
    assert past.out.startswith(within.out[:-1])


def test_an_empty_prompt_starts_a_new_document(output, checkpoint):
    """From the end-of-text token, after which no word begins in its middle."""
    tokenizer, model = load_tokenizer(checkpoint), load_checkpoint(checkpoint)
    start = torch.tensor([tokenizer.token_to_id("<|endoftext|>")])
    ids = [step.ids.item() for step in generate(model, start, 6, temperature=0)]
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


def test_only_ids_that_the_tokenizer_has_are_drawn(tmp_path, output, monkeypatch):
    """Others pad the output layer or fill holes, and stand for no text. The end is drawn wherever it is."""
    config = trained(tmp_path, "data.tokenizer.kind=char", "model.vocab_size=300", "train.steps=2")
    folder = changed(find_checkpoint(config.folder), tmp_path, {"config.json": {"eos_token_id": 299}})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["t"] = 290
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    real, drawable = generation.sample_token, []

    def watching(logits, *rest):
        drawable.append(set(logits.isfinite()[0].nonzero().flatten().tolist()))
        return real(logits, *rest)

    monkeypatch.setattr(generation, "sample_token", watching)
    output("--prompt", "he", "--max-new-tokens", 1, folder=folder)
    vocabulary = load_tokenizer(folder).get_vocab()
    assert drawable == [{*vocabulary.values(), 299}] and vocabulary["t"] == 290


def test_a_prompt_may_come_from_stdin(output, run, stdin, capsys):
    """Where it may be longer than a command line; what is not UTF-8 is one line."""
    stdin(b"that the")
    assert output("--prompt", "-", "--max-new-tokens", 5) == output("--prompt", "that the", "--max-new-tokens", 5)
    stdin(b"that \xff")
    assert call(program, run, "--prompt", "-") == 2
    assert capsys.readouterr() == ("", "error: --prompt -: stdin is not UTF-8 at byte 5\n")


def test_the_name_of_a_special_token_in_a_prompt_is_text(output, byte_checkpoint, stdin, prompts):
    """Of 13 characters, and none of them ends the text."""
    stdin("a<|endoftext|>\0\r\né".encode())
    output("--prompt", "-", "--max-new-tokens", 1, folder=byte_checkpoint)
    assert prompts == [list("a<|endoftext|>\0\r\né".encode())]


def test_a_long_prompt_is_read_in_parts_of_bounded_size(output, byte_checkpoint, stdin, monkeypatch, full):
    """8 kB; with --full 1 MB of them, which takes a quarter of an hour."""
    size = 1_000_000 if full else 8_000
    stdin(b"words of a prompt. " * (size // 19))
    real, parts = context.Transformer.forward, []

    def watching(model, input_ids, cache, **options):
        parts.append((input_ids.shape[1], cache.length + input_ids.shape[1]))
        return real(model, input_ids, cache, **options)

    monkeypatch.setattr(context.Transformer, "forward", watching)
    assert output("--prompt", "-", "--max-new-tokens", 2, folder=byte_checkpoint).out.endswith("\n")
    assert max(queries * keys for queries, keys in parts) <= 2**24 and max(keys for _, keys in parts) > size * 0.99


NOWHERE = {"config.json": {"bos_token_id": None, "eos_token_id": None}, "tokenizer_config.json": None}
END = "<|endoftext|>"


@pytest.mark.parametrize(
    "names",
    [
        {"config.json": {"eos_token_id": 256}},
        {"config.json": {"eos_token_id": 3}, "generation_config.json": {"eos_token_id": [4, 256]}},
        {"generation_config.json": {"eos_token_id": 256}, "tokenizer_config.json": {"eos_token": "a"}},
        {"config.json": {"eos_token_id": [3]}, "tokenizer_config.json": {"eos_token": END}},
        {"tokenizer_config.json": {"eos_token": {"content": END, "special": True}}},
    ],
)
def test_a_stop_token_is_one_that_any_file_names(output, byte_checkpoint, tmp_path, names, monkeypatch):
    folder = changed(changed(byte_checkpoint, tmp_path, NOWHERE), tmp_path / "b", names)
    draws = iter([98, 256])
    monkeypatch.setattr(generation, "sample_token", lambda *_: torch.tensor([next(draws)]))
    assert output("--prompt", "he", "--max-new-tokens", 2, folder=folder).out == "b\n"


@pytest.mark.parametrize(
    "names",
    [
        {"config.json": {"bos_token_id": 256}},
        {"config.json": {"bos_token_id": 3}, "generation_config.json": {"bos_token_id": 256}},
        {"tokenizer_config.json": {"bos_token": END}},
    ],
)
def test_an_empty_prompt_begins_with_the_start_token_of_a_file(output, byte_checkpoint, tmp_path, names, prompts):
    """`transformers` takes that of generation_config.json first, too."""
    folder = changed(changed(byte_checkpoint, tmp_path, NOWHERE), tmp_path / "b", names)
    output("--max-new-tokens", 1, folder=folder)
    assert prompts == [[256]]


NO_TOKENS = {
    "a token id or a list of them": [("config.json", "eos_token_id", "two"), ("config.json", "eos_token_id", [-1]),
                                     ("config.json", "eos_token_id", True),
                                     ("generation_config.json", "bos_token_id", [[1]])],
    "a token in tokenizer.json": [("tokenizer_config.json", "eos_token", "</s>"),
                                  ("tokenizer_config.json", "eos_token", 256),
                                  ("tokenizer_config.json", "bos_token", {"content": ["a"]})],
}  # fmt: skip


@pytest.mark.parametrize(
    "expected, file, key, value", [(expected, *case) for expected, cases in NO_TOKENS.items() for case in cases]
)
def test_what_names_no_token_is_refused(refusal, byte_checkpoint, tmp_path, expected, file, key, value):
    copy = changed(byte_checkpoint, tmp_path, {file: {key: value}})
    assert f"{copy / file}: {key}: expected {expected}, got {value!r}" in refusal(copy)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("key, value, worst", [("bos_token_id", 10**9, 10**9), ("eos_token_id", [5, 300], 300)])
def test_a_token_beyond_the_model_is_refused(refusal, byte_checkpoint, tmp_path, file, key, value, worst):
    copy = changed(byte_checkpoint, tmp_path, {file: {key: value}})
    assert f"{copy / file}: has token id {worst}, but the model has only 257 tokens" in refusal(copy)


@pytest.mark.parametrize("content", ["", "[]", "{", None])
@pytest.mark.parametrize("file", ["generation_config.json", "tokenizer_config.json"])
def test_a_damaged_file_that_may_name_a_token_is_refused(refusal, byte_checkpoint, tmp_path, file, content):
    copy = changed(byte_checkpoint, tmp_path, {file: None})
    (copy / file).mkdir() if content is None else (copy / file).write_text(content)
    assert f"{copy / file}: " in refusal(copy)


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(refusal, byte_checkpoint, checkpoint, tmp_path):
    copy = changed(checkpoint, tmp_path, {})
    shutil.copy(byte_checkpoint / "tokenizer.json", copy)
    assert "tokenizer.json: has token id 255, but the model has only 18 tokens" in refusal(copy, "--prompt", "the")


def test_tokens_added_beyond_the_model_are_not_drawn_and_name_no_end(output, refusal, byte_checkpoint, tmp_path):
    """Such as the padding of many a finetuned model."""
    copy = changed(byte_checkpoint, tmp_path, {})
    tokenizer = load_tokenizer(copy)
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(copy / "tokenizer.json"))
    assert len(output("--prompt", "he", "--max-new-tokens", 5, folder=copy).out) > 1
    copy = changed(copy, tmp_path / "b", {"tokenizer_config.json": {"eos_token": "<pad>"}})
    assert "tokenizer_config.json: has token id 257, but the model" in refusal(copy, "--prompt", "he")


def test_weights_that_went_astray_are_one_line(refusal, byte_checkpoint, tmp_path):
    copy = changed(byte_checkpoint, tmp_path, {})
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, copy / "model.safetensors")
    for temperature in (0, 1):
        assert "logits are not finite" in refusal(copy, "--prompt", "the", "--temperature", temperature)


def test_help_is_answered_without_loading_torch(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # any import of it fails
    assert call(program, "--help") == 0
    assert "--top-p" in capsys.readouterr().out
