"""The export for llama.cpp, held against llama.cpp itself."""

import json
import runpy
import string
import sys
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from base import InputError, printable
from data.config import TokenizerConfig
from data.documents import END_OF_TEXT
from data.tokenizer import encode, tokenizer_files, train_tokenizer
from llama_cpp import IS_INSTALLED, LlamaCpp
from model import gguf as program
from model.checkpoint import save_checkpoint
from model.gguf import export
from model.position import POSITIONS
from model.position.base import Position
from tiny import TEXT, call, names

gguf = pytest.importorskip("gguf", reason="the library gguf is not installed")

LETTERS = string.ascii_letters[:43] + "éß€𝒳 "  # with the end of text 49 tokens, of up to four bytes
PROMPT = list(range(5, 25))


def tokenizer(kind="char", text=LETTERS, vocab_size=400):
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=vocab_size), [text])


@pytest.fixture(scope="module")
def llama_cpp():
    if not IS_INSTALLED:
        pytest.skip("xllamacpp, which is llama.cpp, is not installed")
    running = LlamaCpp()
    yield running
    running.close()


@pytest.fixture
def saved(tiny_model, tmp_path):
    """Makes a checkpoint folder with a tokenizer of LETTERS; returns folder and model."""

    def save(position="rope", tokens=None, **changes):
        model = tiny_model(position, torch.float32, **{"vocab_size": 49, **changes})
        tokens = tokens or tokenizer()
        for weight in {model.embed_tokens.weight, model.output_weight}:
            weight.data[tokens.token_to_id(END_OF_TEXT)] = 0.0  # never the likeliest: a text would be over too soon
        save_checkpoint(tmp_path / "c", model, tokenizer_files(tokens))
        return tmp_path / "c", model

    return save


@torch.no_grad()
def check_continuation(llama_cpp, file, model, tolerance, count=30, tokens=49):
    """Greedy tokens after PROMPT, and at each of them the log-probabilities of all."""
    how = dict(temperature=0, n_probs=tokens, return_tokens=True)
    [answer] = llama_cpp(file, ("/completion", dict(prompt=PROMPT, n_predict=count, **how)))
    made = answer["tokens"]
    assert len(made) == len(answer["completion_probabilities"]) == count
    theirs = torch.full((count, tokens), float("nan"))
    for row, step in zip(theirs, answer["completion_probabilities"]):
        for token in step["top_logprobs"]:
            row[token["id"]] = token["logprob"]
    logits = model.double()(torch.tensor([PROMPT + made]))[0, len(PROMPT) - 1 : -1, :tokens]
    ours = logits.log_softmax(dim=-1)
    best = ours.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * tolerance
    assert ours.std() > 0.8 and clear.sum() >= 5
    assert (ours.argmax(dim=-1) == torch.tensor(made))[clear].all()
    torch.testing.assert_close(theirs.double(), ours, rtol=0, atol=tolerance)


def rope(**options):
    return {"scheme": "rope", **options}


def scaled(kind, **options):
    return {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 16, **options}


@pytest.mark.parametrize("position, changes", [
    ("none", {}),
    (rope(), {"num_key_value_heads": 1, "attention_bias": True}),
    (rope(base=500.0), {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    (rope(layout="interleaved"), {"head_dim": 12, "attention_bias": "qkv"}),
    (rope(scaling=scaled("linear")), {}),
    (rope(scaling=scaled("ntk")), {"tie_word_embeddings": False, "vocab_size": 60}),
    (rope(scaling=scaled("yarn")), {"attention_bias": True, "rms_norm_eps": 1e-2}),
    (rope(scaling=scaled("llama3")), {}),
    (rope(scaling=scaled("longrope", long_factor=[1.0, 1.5, 2.0, 4.0])), {"vocab_size": 60}),
    (rope(fraction=0.5), {}),
    (rope(fraction=0.5, layout="interleaved"), {}),
    (rope(fraction=0.5, scaling=scaled("yarn")), {"attention_bias": True}),
    (rope(fraction=0.5, partial="p_rope"), {}),
    (rope(fraction=0.75, partial="p_rope", scaling=scaled("yarn")), {"head_dim": 16}),
    ("learned_theta", {}),
    ("none", {"qk_norm": True}),
    (rope(), {"qk_norm": True, "attention_bias": "qkv"}),
    (rope(layout="interleaved"), {"qk_norm": True, "head_dim": 12}),
    (rope(scaling=scaled("linear")), {"qk_norm": True, "tie_word_embeddings": False}),
    (rope(scaling=scaled("ntk")), {"qk_norm": True}),
    (rope(scaling=scaled("longrope", long_factor=[3.0] * 4)), {"qk_norm": True}),
])  # fmt: skip
def test_llama_cpp_gives_the_same_tokens_and_log_probabilities(position, changes, saved, llama_cpp, tmp_path):
    folder, model = saved(position, **changes)
    export(folder, tmp_path / "m.gguf")
    check_continuation(llama_cpp, tmp_path / "m.gguf", model, 2e-5)


@pytest.mark.parametrize("kind, error, tolerance", [("F16", 2**-11, 0.05), ("Q8_0", 0.5 / 127 + 2**-11, 0.5)])
def test_smaller_types_lose_what_they_must(kind, error, tolerance, saved, llama_cpp, tmp_path):
    """error: of a weight against the largest of its block. llama.cpp rounds also what it multiplies with them."""
    folder, model = saved(rope(layout="interleaved"), hidden_size=64, intermediate_size=72)  # whose rows stay in order
    export(folder, tmp_path / "m.gguf", kind)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    theirs, weights = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2), model.state_dict()
    for name, weight in weights.items():
        tensor = stored.pop(theirs.get_name(f"model.{name}", (".weight",)))
        held = "F32" if weight.dim() == 1 else "F16" if weight.shape[1] % 32 else kind
        assert tensor.tensor_type.name == held, name
        weights[name] = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        blocks = [each.unflatten(-1, (-1, 8 if held == "F16" else 32)) for each in (weight, weights[name])]
        assert ((blocks[0] - blocks[1]).abs() <= error * blocks[0].abs().amax(dim=-1, keepdim=True)).all(), name
    assert not stored
    model.load_state_dict(weights)
    check_continuation(llama_cpp, tmp_path / "m.gguf", model, tolerance)


UNUSUAL = [
    "", " ", "  a", "a\n\n b", "I'll don't WE'RE 's", "x\r\ny\t", "\0\x01\x7f", "é e\u0301", "👩\u200d👩\u200d👧 🏳\ufe0f", "١٢٣ ²½Ⅷ",
    "日本語 한국어", "\ufeffbom", "a\u00a0b\u2003c\u3000\u0085", "   \n   x  ", "\U0010ffff\ue000", "<|endoftext|> 's", TEXT[:300],
]  # fmt: skip


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_llama_cpp_reads_a_text_as_the_same_tokens(kind, saved, llama_cpp, tmp_path):
    tokens = tokenizer(kind, TEXT + "".join(UNUSUAL))
    folder, _ = saved(tokens=tokens, vocab_size=tokens.get_vocab_size() + 3)
    export(folder, tmp_path / "m.gguf")
    ids = [encode(tokens, text) for text in UNUSUAL]
    assert kind != "bpe" or any(max(each) > 257 for each in ids[1:])
    asked = [("/tokenize", dict(content=text, add_special=True, parse_special=False)) for text in UNUSUAL]
    asked += [("/detokenize", dict(tokens=each)) for each in ids]
    answers = llama_cpp(tmp_path / "m.gguf", *asked)
    assert [answer["tokens"] for answer in answers[: len(ids)]] == ids
    assert [answer["content"] for answer in answers[len(ids) :]] == UNUSUAL


def test_letters_without_merges_and_an_added_word_are_the_same_tokens(saved, llama_cpp, tmp_path):
    tokens = tokenizer(text="abc")
    tokens.add_tokens(["bc"])
    folder, _ = saved(tokens=tokens, vocab_size=5)
    export(folder, tmp_path / "m.gguf")
    asked = dict(content="cabca", parse_special=False), dict(content="a<|endoftext|>", parse_special=True)
    found = [answer["tokens"] for answer in llama_cpp(tmp_path / "m.gguf", *(("/tokenize", each) for each in asked))]
    assert found == [encode(tokens, "cabca"), [0, 3]] and found[0] == [2, 0, 4, 0]


# What is refused


def refusal(capsys, *arguments):
    status = call(program, *arguments)
    captured = capsys.readouterr()
    assert status == 2 and captured.out == "" and captured.err.count("\n") == 1, captured
    return captured.err


def test_a_scheme_is_exported_or_refused_by_its_name(scheme, saved, tmp_path, capsys):
    folder, _ = saved(scheme)
    if scheme in ("none", "rope", "learned_theta"):
        assert call(program, folder, tmp_path / "m.gguf") == 0 and names(tmp_path) == ["c", "m.gguf"]
    else:
        assert f"position {scheme!r} with its " in refusal(capsys, folder, tmp_path / "m.gguf")
        assert names(tmp_path) == ["c"]


class Slowing(Position):
    def rotation(self, positions):
        angle = positions[..., None].clamp(min=0).double().sqrt()
        return angle.cos().float(), angle.sin().float()


@pytest.mark.parametrize("position, changes, named", [
    (rope(temperature={"kind": "constant", "value": 2.0}), {}, "position.temperature"),
    (rope(every=2), {}, "position 'rope' with another rotation in some layers"),
    ({"scheme": "learned_theta", "per_layer": True}, {}, "position 'learned_theta' with another rotation in some layers"),
    ("Slowing", {}, "position 'Slowing' with a rotation that is not steady"),
    ("none", {"attention": "linear"}, "attention 'linear'"),
    ("none", {"head_dim": 7}, "head_dim 7"),
    (rope(fraction=0.5), {"qk_norm": True}, "qk_norm with θ of position 'rope'"),
    (rope(scaling=scaled("yarn")), {"qk_norm": True}, "qk_norm with θ of position 'rope'"),
    ("learned_theta", {"qk_norm": True}, "qk_norm with θ of position 'learned_theta'"),
    (rope(), {"qk_norm": True, "attention_bias": True}, "qk_norm with attention_bias true"),
])  # fmt: skip
def test_what_llama_cpp_lacks_is_named_and_a_file_stays(position, changes, named, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(POSITIONS, "Slowing", Slowing)
    folder, _ = saved(position, **changes)
    (tmp_path / "m.gguf").write_text("earlier")
    assert f"c: {named}" in refusal(capsys, folder, tmp_path / "m.gguf")
    assert names(tmp_path) == ["c", "m.gguf"] and (tmp_path / "m.gguf").read_text() == "earlier"


@pytest.mark.parametrize("kind, change, expected", [
    ("bpe", lambda stored: stored.update(normalizer={"type": "NFC"}), "that train.py makes: byte, char, bpe"),
    ("bpe", lambda stored: stored["pre_tokenizer"].update(add_prefix_space=True), "that train.py makes"),
    ("bpe", lambda stored: stored["pre_tokenizer"].update(use_regex=False), "that train.py makes"),
    ("bpe", lambda stored: stored["model"].update(ignore_merges=True), "that train.py makes"),
    ("char", lambda stored: stored["model"]["vocab"].update(ab=40), "that train.py makes"),
    ("bpe", lambda stored: stored["model"]["vocab"].update({"one more": 300}), "token ids from 0 on, below the model's 300"),
    ("bpe", lambda stored: stored["model"].clear(), "not a readable tokenizer.json"),
])  # fmt: skip
def test_another_tokenizer_is_refused(kind, change, expected, saved, tmp_path, capsys):
    folder, _ = saved(tokens=tokenizer(kind, TEXT, 300), vocab_size=300)
    stored = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(stored)
    (folder / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    message = refusal(capsys, folder, tmp_path / "m.gguf")
    assert "tokenizer.json: " in message and expected in message


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_what_transformers_has_opened_and_saved_is_exported_as_before(kind, saved, tmp_path):
    folder, _ = saved(tokens=tokenizer(kind, TEXT, 300), vocab_size=300)
    export(folder, tmp_path / "before.gguf")
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "m")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "tokenizer.json").read_text(encoding="utf-8"))["post_processor"]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["eos_token_id"] = [config["eos_token_id"], 3]  # as instruct models have it
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    export(tmp_path / "m", tmp_path / "m.gguf")
    one, other = (fields(tmp_path / name) for name in ("before.gguf", "m.gguf"))
    assert one.pop("general.name") != other.pop("general.name") and one == other


def fields(file):
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


@pytest.mark.parametrize("folder, out, expected", [
    ("nothing", "m.gguf", "nothing: expected a run folder with a checkpoint"),
    ("c", "nowhere/m.gguf", "nowhere/m.gguf: cannot be written: No such file or directory"),
    ("c", "c", "c: cannot be written: Is a directory"),
])  # fmt: skip
def test_a_wrong_path_is_named_and_nothing_written(folder, out, expected, saved, tmp_path, capsys):
    saved()
    assert expected in refusal(capsys, tmp_path / folder, tmp_path / out)
    assert names(tmp_path) == ["c"]


def test_a_full_disk_leaves_the_earlier_file(saved, tmp_path):
    folder, _ = saved()
    export(folder, tmp_path / "m.gguf", "F16")
    earlier = (tmp_path / "m.gguf").read_bytes()
    full = mock.patch.object(
        gguf.GGUFWriter, "write_tensors_to_file", side_effect=OSError(28, "No space left on device")
    )
    with full, pytest.raises(InputError, match="m.gguf: cannot be written: No space left on device"):
        export(folder, tmp_path / "m.gguf")
    assert names(tmp_path) == ["c", "m.gguf"] and (tmp_path / "m.gguf").read_bytes() == earlier
    export(folder, tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() != earlier


def test_without_the_library_the_program_says_what_to_install(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install gguf" in refusal(capsys, saved()[0], tmp_path / "m.gguf")


def test_the_command_finds_the_library_of_its_own_name(saved, tmp_path, monkeypatch):
    folder, _ = saved()
    out = tmp_path / ("m\udcff.gguf" if sys.platform == "linux" else "m.gguf")  # a name that is not UTF-8
    monkeypatch.setattr(sys, "argv", ["", str(folder), str(out), "--type", "Q8_0"])
    monkeypatch.delitem(sys.modules, "model.gguf")
    runpy.run_module("model.gguf", run_name="__main__")
    stored = gguf.GGUFReader(out)
    assert stored.get_field("general.file_type").contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    assert stored.get_field("general.name").contents() == printable(out.stem)
    assert stored.get_field("tokenizer.ggml.eos_token_id").contents() == 48
    assert stored.get_field("tokenizer.ggml.token_type").contents()[47:] == [
        gguf.TokenType.NORMAL,
        gguf.TokenType.CONTROL,
    ]
    assert "rope_freqs.weight" not in {tensor.name for tensor in stored.tensors}, "not every reader of Llamas knows it"
