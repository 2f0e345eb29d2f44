"""generate.py: what it prints, which files of a checkpoint it heeds, and what it refuses."""

import io
import itertools
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import generate as program
from base import find_checkpoint
from data.tokenizer import load_tokenizer
from model import context, generation
from model.checkpoint import load_checkpoint, save_checkpoint
from model.context import Context
from model.generation import generate
from model.linear import Linear
from sampling import samples
from tiny import NEEDS_ONEDNN, call, trained


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


@NEEDS_ONEDNN
def test_several_samples_are_decoded_with_packed_weights_where_they_are_faster(output, tmp_path, monkeypatch):
    """Which changes no text, and no float32 model is in memory twice."""
    models, plain = [], context.Context
    monkeypatch.setattr(samples, "Context", lambda model, *more: models.append(model) or plain(model, *more))
    texts = []
    for least in (5, 4):
        monkeypatch.setattr(samples, "packs", lambda device, dtype, rows: rows >= least)
        texts.append(output("--prompt", "that the", "--max-new-tokens", 12, "--num-samples", 4).out)
        packed = {module.weight.is_mkldnn for module in models[-1].modules() if isinstance(module, Linear)}
        assert packed == {least == 4}
        file = tmp_path / "prompts.txt"
        file.write_text("that the\n" * 4, encoding="utf-8")
        texts.append(output("--prompts-file", file, "--max-new-tokens", 12, "--seed", 1).out)
        packed = {module.weight.is_mkldnn for module in models[-1].modules() if isinstance(module, Linear)}
        assert packed == {least == 4}
    assert texts[:2] == texts[2:] and len({*texts[0].splitlines()}) > 1
    output("--prompt", "that the", "--max-new-tokens", 2, "--num-samples", 4, "--dtype", "bfloat16")
    assert not models[-1].output_weight.is_mkldnn, "it reads the prompt alone"


def test_compiled_steps_are_offered_on_a_gpu_alone(refusal, run):
    message = refusal(run, "--compile")
    assert message == "error: --compile: expected a CUDA GPU, got cpu\n"


def test_a_run_folder_means_its_newest_checkpoint(output, checkpoint):
    arguments = ["--prompt", "it was", "--max-new-tokens", 9]
    assert output(*arguments) == output(*arguments, folder=checkpoint)


def test_one_seed_gives_one_text_and_temperature_zero_needs_none(output):
    arguments = ["--prompt", "he", "--max-new-tokens", 12, "--seed"]
    one, again, other = (output(*arguments, seed).out for seed in (1, 1, 2))
    assert one == again != other
    assert output(*arguments, 1, "--temperature", 0) == output(*arguments, 2, "--temperature", 0)


def test_samples_are_told_apart_on_a_terminal_alone(output, monkeypatch):
    arguments = "--prompt", "he", "--max-new-tokens", 4, "--num-samples"
    piped = output(*arguments, 3)
    monkeypatch.setattr("_pytest.capture.EncodedFile.isatty", lambda _: True, raising=False)
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True, raising=False)
    shown = output(*arguments, 3)
    assert (shown.out, shown.err) == (piped.out, "--- sample 1\n--- sample 2\n--- sample 3\n") and piped.err == ""
    assert output(*arguments, 1).err == output(*arguments, 3, "--json").err == ""


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


def rows(text):
    """What --json prints, and nothing else."""
    return [json.loads(line) for line in text.splitlines()]


def test_a_row_of_json_is_a_sample(output, checkpoint, byte_checkpoint):
    """Its text is what is printed without --json; its numbers are those of `generate`."""
    tokenizer, model = load_tokenizer(checkpoint), load_checkpoint(checkpoint)
    arguments = ["--prompt", "that", "--max-new-tokens", 8, "--num-samples", 3, "--temperature", 1.3]
    prompt, known = torch.tensor(tokenizer.encode("that").ids), tokenizer.get_vocab().values()
    steps = list(generate(model, prompt, 8, temperature=1.3, num_samples=3, token_ids=known))
    got = output(*arguments, "--json", "--stats")
    assert got.err.startswith("prefill ") and got.err.count("\n") == 1
    assert [list(row) for row in rows(got.out)] == 3 * [["prompt", "text", "ids", "logprobs", "finish_reason"]]
    for n, (row, text) in enumerate(zip(rows(got.out), output(*arguments).out[:-1].split("\n\n"))):
        assert (row["prompt"], row["text"], row["finish_reason"]) == ("that", text, "length")
        assert row["ids"] == [step.ids[n].item() for step in steps]
        assert row["logprobs"] == [step.logprobs[n].item() for step in steps]


def test_the_end_of_a_sample_is_in_its_row(output, checkpoint, tmp_path, monkeypatch):
    """The end token and what made a stop text are drawn, with a probability, and no part of the text."""
    tokenizer = load_tokenizer(checkpoint)
    e, n, o = (tokenizer.token_to_id(letter) for letter in "eno")
    end = tokenizer.token_to_id("<|endoftext|>")
    draws = iter([[n, n, e, n], [o, end, e, o], [e, 0, n, n]])
    monkeypatch.setattr(generation, "sample_token", lambda *_: torch.tensor(next(draws)))
    got = rows(output("--prompt", "th", "--max-new-tokens", 3, "--num-samples", 4, "--json", "--stop", "ee").out)
    assert [(row["text"], row["ids"], row["finish_reason"]) for row in got] == [
        ("noe", [n, o, e], "length"), ("n", [n, end], "eos"), ("", [e, e], "stop"), ("non", [n, o, n], "length"),
    ]  # fmt: skip
    assert all(len(row["logprobs"]) == len(row["ids"]) and max(row["logprobs"]) < 0 for row in got)


def test_a_stop_text_ends_a_sample_before_it(output, prompts):
    """The first token is checked like any other, and the prompt is not; of several texts the first counts."""
    arguments = ["--prompt", "the e", "--max-new-tokens", 14, "--temperature", 1.5, "--num-samples", 3]
    texts = output(*arguments).out[:-1].split("\n\n")
    first, pair = texts[0][0], texts[1][4:6]
    stopped = output(*arguments, "--stop", first, "--stop", pair).out[:-1].split("\n\n")
    assert stopped == [min((text.partition(stop)[0] for stop in (first, pair)), key=len) for text in texts]
    assert stopped[0] == "" and len(set(map(len, stopped))) > 1


def test_the_name_of_a_special_token_may_be_a_stop(output, byte_checkpoint, tmp_path, monkeypatch):
    """It has no text in which it could be found."""
    folder = changed(changed(byte_checkpoint, tmp_path, NOWHERE), tmp_path / "b", {"config.json": {"bos_token_id": 0}})
    for stops, text in ([], "bc\n"), (["--stop", END], "b\n"):
        draws = iter([98, 256, 99])
        monkeypatch.setattr(generation, "sample_token", lambda *_: torch.tensor([next(draws)]))
        assert output("--prompt", "a", "--max-new-tokens", 3, *stops, folder=folder).out == text


PROMPTS = ["that the", "he", "", "it was he that they", "the"]


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "JSONL"])
def test_each_prompt_of_a_file_has_the_samples_that_it_has_alone(output, prompts, tmp_path, suffix, monkeypatch):
    """In batches that are bounded, in the order of the file; with Windows line ends and a byte-order mark."""
    file = tmp_path / f"prompts.{suffix}"
    lines = PROMPTS if suffix == "txt" else [json.dumps({"prompt": prompt, "id": 3}) for prompt in PROMPTS] + [" "]
    file.write_bytes("\r\n".join(["\ufeff" + lines[0], *lines[1:], ""]).encode())
    arguments = ["--max-new-tokens", 9, "--num-samples", 2, "--temperature", 1.2, "--json"]
    monkeypatch.setattr(samples, "BATCH_TOKENS", 2 * 2 * 28)  # two of the longest
    sizes, real = [], Context.read
    monkeypatch.setattr(Context, "read", lambda self, ids, n: sizes.append(len(ids)) or real(self, ids, n))
    together = rows(output("--prompts-file", file, *arguments).out)
    assert sizes == [3, 2] and [row["prompt"] for row in together[::2]] == PROMPTS
    alone = [row for prompt in PROMPTS for row in rows(output("--prompt", prompt, *arguments).out)]
    for one, other in zip(together, alone, strict=True):
        assert one.pop("logprobs") == pytest.approx(other.pop("logprobs"), abs=1e-5) and one == other


def test_too_many_samples_for_the_memory_are_one_line(refusal, run, monkeypatch):
    full = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate …")
    monkeypatch.setattr(Context, "add", mock.Mock(side_effect=full))
    assert "out of memory with 3 samples at once; fewer --num-samples" in refusal(run, "--num-samples", 3)


def test_prompts_of_a_file_pass_the_window_each_for_itself(output, tmp_path):
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    arguments = ["--max-new-tokens", 12, "--overflow", "roll", "--json"]
    alone = "".join(output("--prompt", prompt, *arguments).out for prompt in PROMPTS)
    assert output("--prompts-file", tmp_path / "p.txt", *arguments).out == alone


def test_texts_of_many_prompts_are_set_apart_by_a_blank_line(output, tmp_path):
    (tmp_path / "p.txt").write_text("he\nthe")
    arguments = ["--max-new-tokens", 5, "--num-samples", 2]
    texts = [output("--prompt", prompt, *arguments).out for prompt in ("he", "the")]
    assert output("--prompts-file", tmp_path / "p.txt", *arguments).out == "\n".join(texts)


def test_a_batch_is_that_of_transformers(output, byte_checkpoint, tiny_model, tmp_path):
    """Left padding, greedy tokens and their log-probabilities."""
    model = tiny_model("rope", torch.float32, vocab_size=257, max_position_embeddings=64)
    names = ("tokenizer.json", "tokenizer_config.json")
    save_checkpoint(tmp_path / "c", model, {name: (byte_checkpoint / name).read_text() for name in names})
    lines = ["a", "It was a dark", "", "and stormy night"]
    (tmp_path / "p.txt").write_text("\n".join(lines) + "\n")
    arguments = ["--prompts-file", tmp_path / "p.txt", "--max-new-tokens", 12, "--temperature", 0, "--json"]
    ours = rows(output(*arguments, folder=tmp_path / "c").out)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "c", padding_side="left")
    batch = theirs([line or END for line in lines], padding=True, return_tensors="pt", split_special_tokens=False)
    writer = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    options = dict(max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True)
    made = writer.generate(**batch, **options)
    logprobs = torch.stack(made.logits, dim=1).log_softmax(-1)
    for row, ids, each in zip(ours, made.sequences[:, -12:], logprobs):
        assert row["ids"] == ids[: len(row["ids"])].tolist() and len(row["ids"]) > 1
        got = torch.tensor(row["logprobs"])
        torch.testing.assert_close(got, each.gather(1, ids[:, None])[: len(got), 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("p.txt", b"", "has no line"),
        ("P.JSONL", b"\n\n\n", "has no line"),
        ("p.txt", b"a\n\xff", "is not UTF-8 at byte 2"),
        ("p.jsonl", b'{"prompt": "a"}\n{', "line 2: not JSON"),
        ("p.jsonl", b'{"prompts": "a"}', 'line 1: expected an object with a text as "prompt", got \'{"prompts"'),
        ("p.jsonl", b'["a"]', 'line 1: expected an object with a text as "prompt"'),
        ("p.jsonl", b'{"prompt": 1}', 'line 1: expected an object with a text as "prompt"'),
        ("p.jsonl", b'{"prompt": "\\ud800"}', "line 1: not UTF-8 at character 0"),
        ("p.txt", "the\né".encode(), "prompt 2: the tokenizer has no token for '\\xe9'"),
        (".", b"", "cannot be read: Is a directory"),
    ],
)
def test_a_file_without_prompts_is_refused(refusal, run, tmp_path, name, content, expected):
    if name != ".":
        (tmp_path / name).write_bytes(content)
    message = refusal(run, "--prompts-file", tmp_path / name)
    assert expected in message and message.count("\n") == 1


def test_past_the_window_a_text_goes_on_as_told(output, refusal, run, checkpoint):
    """Without a warning where positions stay in it; an error comes before any text."""
    prompt = load_tokenizer(checkpoint).encode("that the").ids
    arguments = ["--prompt", "that the", "--max-new-tokens", 20, "--temperature", 0, "--overflow"]
    message = refusal(run, *arguments, "error")
    assert "--overflow error: 28 tokens with the prompt, but the window is 16" in message
    for overflow in ("window", "roll"):
        reader = Context(load_checkpoint(checkpoint), window=16, overflow=overflow)
        steps = generate(reader, torch.tensor(prompt), 20, temperature=0)
        text = load_tokenizer(checkpoint).decode([step.ids.item() for step in steps])
        assert output(*arguments, overflow) == (text + "\n", "")
    assert output(*arguments, "continue", "--rope-scaling", "ntk:2").err == ""


def test_what_a_scheme_cannot_do_past_its_window_is_refused_by_name(output, refusal, tmp_path):
    arguments = ["--prompt", "that", "--max-new-tokens", 30]
    for options, kind in (["model.position=learned"], "learned adds"), (["model.attention=linear"], "linear attention"):
        folder = trained(tmp_path, f"name={kind[:6]}", "train.steps=2", *options).folder
        assert f"--overflow roll: {kind}" in refusal(folder, *arguments, "--overflow", "roll")
        assert output(*arguments, "--overflow", "window", folder=folder).err == ""
    expected = "--max-new-tokens: 34 tokens with the prompt, but the model has 16 positions; --overflow window"
    assert expected in refusal(tmp_path / "runs" / "learne", *arguments)


def talk(monkeypatch, *lines):
    """Puts lines into stdin; an exception among them is raised when it is its turn."""
    left = iter(lines)

    def readline():
        line = next(left, b"")
        if isinstance(line, bytes):
            return line
        raise line

    stdin = SimpleNamespace(buffer=SimpleNamespace(readline=readline), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.parametrize("end", [(), (KeyboardInterrupt(),)])
def test_a_line_after_another_is_answered_as_alone(output, monkeypatch, end):
    """Until stdin or the user ends it, quietly; what cannot be answered is said, and goes on."""
    arguments = ["--max-new-tokens", 6, "--temperature", 1.2, "--json"]
    lines = ["that the", "that he", "", "it"]
    alone = [row for line in lines for row in rows(output("--prompt", line, *arguments).out)]
    talk(monkeypatch, b"that the\n", b"that he\r\n", "é\n".encode(), b"\n", b"\xff\n", b"it\n", *end)
    got = output("--interactive", *arguments)
    for one, other in zip(rows(got.out), alone, strict=True):
        assert one.pop("logprobs") == pytest.approx(other.pop("logprobs"), abs=1e-5) and one == other
    assert got.err == "error: the tokenizer has no token for '\\xe9'\nerror: stdin is not UTF-8 at byte 0\n"


def test_answers_have_a_line_each(output, monkeypatch):
    talk(monkeypatch, b"that\n", b"he")
    answers = [output("--prompt", prompt, "--max-new-tokens", 5).out for prompt in ("that", "he")]
    assert output("--interactive", "--max-new-tokens", 5) == ("".join(answers), "")


def test_an_interrupt_within_an_answer_ends_quietly(output, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    talk(monkeypatch, b"that the\n")
    monkeypatch.setattr(generation, "sample_token", interrupted)
    assert output("--interactive", "--max-new-tokens", 2) == ("", "")


def test_a_conversation_is_in_the_template_and_read_once(output, byte_checkpoint, tmp_path, monkeypatch):
    """Each prompt follows the earlier ones and their answers, of which the cache keeps what it has; here in a second."""
    folder = changed(byte_checkpoint, tmp_path, {"config.json": {"max_position_embeddings": 512}})
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
    (folder / "chat_template.jinja").write_text(template)
    read, real, made = [], context.Transformer.forward, iter(b"yes!no.?")

    def watching(model, input_ids, *rest, **options):
        read.extend(input_ids[0].tolist())
        return real(model, input_ids, *rest, **options)

    monkeypatch.setattr(context.Transformer, "forward", watching)
    monkeypatch.setattr(generation, "sample_token", lambda *_: torch.tensor([next(made)]))
    monkeypatch.setattr(samples, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    talk(monkeypatch, b"one\n", b"two\n")
    got = output("--interactive", "--chat", "--max-new-tokens", 4, "--json", "--stats", folder=folder)
    assert [(row["prompt"], row["text"]) for row in rows(got.out)] == [("one", "yes!"), ("two", "no.?")]
    assert bytes(read) == b"u:one\na:yes!\nu:two\na:no."
    assert got.err.startswith("prefill 9.0 tokens/s")  # of u:one, a: and then ! u:two, a:


def test_a_reader_who_leaves_ends_the_program_quietly(run):
    command = [sys.executable, program.__file__, str(run), "--interactive", "--max-new-tokens", "2"]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        process.stdin.write(b"the\n" * 3)
        process.stdin.close()
        assert (process.stderr.read(), process.wait(timeout=600)) == (b"", 0)


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
    expected = output("--prompt", "that the", "--max-new-tokens", 5)
    assert output("--prompt", "-", "--max-new-tokens", 5) == expected
    stdin(b"\xef\xbb\xbfthat the")  # a byte-order mark is none of the text
    assert output("--prompt", "-", "--max-new-tokens", 5) == expected
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
    assert len(output("--prompt", "he", "--max-new-tokens", 5, "--stop", "<pad>", folder=copy).out) > 1
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
