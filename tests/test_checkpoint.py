"""Checkpoint folders: ours, those of `transformers`, and broken ones."""

import errno
import hashlib
import json
import os
import pickle
import resource
import shutil
import stat
import time

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

from base import InputError, find_checkpoint
from data.config import TokenizerConfig
from data.tokenizer import tokenizer_files, train_tokenizer
from model.checkpoint import load_checkpoint, load_trainer, save_checkpoint
from model.config import ModelConfig
from model.generation import generate
from model.position import build_position
from tiny import contents, draw

FILES = ["SHA256SUMS", "config.json", "model.safetensors"]
HEADS = [(4, 4), (4, 2), (4, 1)]  # query heads, key and value heads


@pytest.fixture
def saved(tiny_model, tmp_path):
    """A checkpoint folder of a float32 model, with a trainer's state."""
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, tiny_model(dtype=torch.float32), {"notes.txt": "é\n"}, {"step": 7})
    return folder


@pytest.fixture
def llama_folder(tmp_path):
    """Makes a folder as `transformers` saves it, biases not zero; returns it and the model."""

    def save(shard_size="1GB", kind="llama", **changes):
        shape = dict(vocab_size=48, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4)
        shape |= dict(num_key_value_heads=2, initializer_range=0.2)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shape, **changes})).eval()
            for name, parameter in model.named_parameters():
                if name.endswith(".bias"):
                    torch.nn.init.normal_(parameter)
        model.save_pretrained(tmp_path / "llama", max_shard_size=shard_size)
        return tmp_path / "llama", model

    return save


@torch.no_grad()
def assert_same_logits(ours, theirs, tokens):
    ids = tokens(2, 40)
    expected = theirs(ids).logits
    assert expected.std() > 0.5  # large enough for a tolerance of 1e-5 to mean something
    torch.testing.assert_close(ours(ids), expected, rtol=0, atol=1e-5)


def edit(file, **changes):
    """Changes keys of a JSON file; None removes one."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_weights(folder, **changes):
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


def refusal(load, *args):
    with pytest.raises(InputError) as caught:
        load(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Round trips


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_model_comes_back_bit_for_bit(scheme, tied, tiny_model, tokens, tmp_path):
    model, ids = tiny_model(scheme, torch.float32, tie_word_embeddings=tied), tokens(2, 9)
    save_checkpoint(tmp_path / "c", model, {})
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.config == model.config
    assert torch.equal(loaded(ids), model(ids))
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_position_parameters_are_loaded_in_float32(scheme, tiny_model, tmp_path):
    model = tiny_model(scheme, torch.float32)
    save_checkpoint(tmp_path / "c", model, {})
    loaded = load_checkpoint(tmp_path / "c").to(torch.bfloat16)
    assert loaded.embed_tokens.weight.dtype == torch.bfloat16
    for got, expected in zip(loaded.position.parameters(), model.position.parameters(), strict=True):
        assert got.dtype == torch.float32 and torch.equal(got, expected)


def test_further_files_and_the_trainer_come_back(saved):
    assert (saved / "notes.txt").read_text(encoding="utf-8") == "é\n"
    assert load_trainer(saved) == {"step": 7}


def test_sums_that_may_not_be_read_are_named(saved, monkeypatch):
    def deny(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.read_text", deny)
    with pytest.raises(InputError, match="SHA256SUMS: cannot be read: Permission denied"):
        load_trainer(saved)


# transformers reads ours


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name, options, theirs_is", [
    ("rope", {}, "LlamaForCausalLM"), ("rope", {"attention_bias": True}, "LlamaForCausalLM"),
    ("rope", {"attention_bias": "qkv"}, "Qwen2ForCausalLM"),
    ("rope", {"qk_norm": True}, "Qwen3ForCausalLM"),
    ("rope", {"qk_norm": True, "attention_bias": True}, "Qwen3ForCausalLM"),
    ("none", {}, "SmolLM3ForCausalLM"), ("none", {"attention_bias": True}, "SmolLM3ForCausalLM"),
])  # fmt: skip
@pytest.mark.parametrize("heads, kv_heads", HEADS)
def test_transformers_opens_our_folder_with_equal_logits(
    name, options, theirs_is, heads, kv_heads, tied, tiny_model, tokens, tmp_path
):
    """Missing weights only warn there: nothing may be missing, unexpected or of another shape."""
    position = {"scheme": "rope", "base": 500.0} if name == "rope" else name
    shape = dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=12, rms_norm_eps=1e-3)
    model = tiny_model(position, torch.float32, tie_word_embeddings=tied, **options, **shape)
    save_checkpoint(tmp_path / "c", model, {})
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not any(info.values()), info
    assert type(theirs).__name__ == theirs_is
    assert_same_logits(model, theirs.eval(), tokens)


def test_transformers_does_not_open_what_it_would_compute_otherwise(scheme, tiny_model, tmp_path):
    """A Llama without the scheme's share gives fluent-looking nonsense. Whether none and rope are right: see above."""
    if scheme in ("none", "rope"):
        return
    save_checkpoint(tmp_path / "c", tiny_model(scheme, torch.float32), {})
    with pytest.raises(ValueError, match="whereabouts"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "c")


@pytest.mark.parametrize("options", [
    {"scheme": "rope", "attention": "linear"},
    {"scheme": "none", "attention": "linear"},
    {"scheme": "none", "qk_norm": True},
    {"scheme": {"scheme": "rope", "every": 2}, "qk_norm": True},
    {"scheme": "none", "attention_bias": "qkv"},
    {"scheme": "rope", "attention_bias": "qkv", "qk_norm": True},
    {"scheme": {"scheme": "rope", "fraction": 0.5}},
    {"scheme": {"scheme": "rope", "fraction": 0.5, "partial": "p_rope", "scaling": {"rope_type": "yarn", "factor": 2}}},
])  # fmt: skip
def test_transformers_does_not_open_other_attention_as_its_own(options, tiny_model, tmp_path):
    save_checkpoint(tmp_path / "c", tiny_model(**options, dtype=torch.float32), {})
    with pytest.raises(ValueError, match="whereabouts"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "c")


def test_token_ids_of_the_text_s_ends_are_written(tiny_model, tmp_path):
    """transformers' defaults are 1 and 2, which are letters or bytes here."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    save_checkpoint(tmp_path / "c", tiny_model(vocab_size=257), tokenizer_files(tokenizer))
    stored = json.loads((tmp_path / "c" / "config.json").read_text())
    assert (stored["bos_token_id"], stored["eos_token_id"]) == (256, 256)


def test_a_padded_batch_in_transformers_gives_each_prompt_its_own_text(tiny_model, tmp_path):
    """Batches need a pad token, and padding on the left where the text goes on at the right."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    model = tiny_model(dtype=torch.float32, vocab_size=257)
    save_checkpoint(tmp_path / "c", model, tokenizer_files(tokenizer))
    prompts = ["a", "It was a dark"]
    alone = []
    for prompt in prompts:
        ids = torch.tensor(tokenizer.encode(prompt).ids)
        alone.append([step.ids.item() for step in generate(model, ids, 8, temperature=0)])
    writer = pipeline("text-generation", str(tmp_path / "c"))
    texts = writer(prompts, batch_size=2, max_new_tokens=8, do_sample=False, return_full_text=False)
    assert [text[0]["generated_text"] for text in texts] == [tokenizer.decode(ids) for ids in alone]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "c")
    batch = theirs(prompts, padding=True, return_tensors="pt")
    assert writer.model.generate(**batch, max_new_tokens=8, do_sample=False)[:, -8:].tolist() == alone


@pytest.mark.parametrize("original, stored", [(None, None), (256, None), (64, 64)])
def test_the_original_length_of_yarn_is_stored_where_it_is_not_the_default(original, stored, tiny_model, tmp_path):
    """Given it in rope_scaling, versions 4.51 to 4.55 of transformers compute with a factor of their own."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
    save_checkpoint(tmp_path / "c", tiny_model({"scheme": "rope", "scaling": scaling}), {})
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert config["rope_scaling"].get("original_max_position_embeddings") == stored
    assert config["rope_parameters"]["original_max_position_embeddings"] == original or 256


@pytest.mark.parametrize("head_dim", [6, 64, 98, 100])
def test_the_share_of_turning_pairs_survives_how_transformers_rounds_it(head_dim):
    """0.58 of 50 pairs are 28.999999999999996 there, of which it takes the whole part."""
    for pairs in range(1, head_dim // 2):
        position = {"scheme": "rope", "partial": "p_rope", "fraction": 2 * pairs / head_dim}
        config = ModelConfig(head_dim=head_dim, position=position)
        share = build_position(config).rope_parameters()["partial_rotary_factor"]
        assert int(share * head_dim // 2) == config.position.turning_pairs(config) == pairs


# We read those of transformers


@pytest.mark.parametrize("kind, options", [
    ("llama", {}), ("llama", {"attention_bias": True}),
    ("qwen2", {}),
    ("qwen3", {}), ("qwen3", {"attention_bias": True}),
    ("mistral", {"sliding_window": None}),
    ("smollm3", {"no_rope_layers": [1, 0]}), ("smollm3", {"no_rope_layer_interval": 1, "attention_bias": True}),
    ("smollm3", {"no_rope_layer_interval": 9}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("heads, kv_heads", HEADS)
def test_a_model_of_transformers_gives_equal_logits(heads, kv_heads, tied, kind, options, llama_folder, tokens):
    shape = dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=12, pad_token_id=None)
    folder, theirs = llama_folder(kind=kind, tie_word_embeddings=tied, rms_norm_eps=1e-3, **shape, **options)
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


@pytest.mark.parametrize("options", [{}, {"factor": 3.0}, {"partial_rotary_factor": 0.7}], ids=str)
def test_a_llama_that_rotates_its_fast_pairs_alone_gives_equal_logits(options, llama_folder, tokens):
    rope = {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.5, **options}
    folder, theirs = llama_folder(rope_parameters=rope)
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


def test_a_sharded_llama_with_another_base_and_width_of_heads(llama_folder, tokens):
    rope = {"rope_type": "default", "rope_theta": 300.0}
    folder, theirs = llama_folder("20KB", rope_parameters=rope, head_dim=12)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


def test_an_older_llama_folder_gives_equal_logits(llama_folder, tokens):
    """Version 4 has rope_theta by itself, once stored the frequencies, and left out what was the default."""
    folder, theirs = llama_folder(rope_parameters={"rope_type": "default", "rope_theta": 300.0})
    theirs.config.rms_norm_eps = 1e-6
    older = dict(rope_parameters=None, rope_theta=300.0, head_dim=None, rms_norm_eps=None, tie_word_embeddings=None)
    edit(folder / "config.json", **older)
    edit_weights(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


LAMBDA = {"short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [1.0, 2.0, 3.0, 4.0]}


@pytest.mark.parametrize("scaling, length", [
    ({"type": "yarn", "factor": 4.0}, 16),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 16),
    ({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 16),
    ({"rope_type": "longrope", "factor": 8.0, **LAMBDA}, 16),
    ({"rope_type": "linear", "factor": 4.0}, 16),
    ({"rope_type": "yarn", "type": "linear", "factor": 4.0}, None),
    ({"type": "linear", "rope_type": "yarn", "factor": 4.0}, None),
    ({"rope_type": "default", "type": "linear", "factor": 4.0}, None),
], ids=str)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_scaling_is_what_transformers_reads_from_the_same_file(scaling, length, llama_folder, tokens):
    """L beside max_position_embeddings is the first one read, as in files of Phi-3, and rope_type before its older name."""
    folder, _ = llama_folder()
    keys = {"max_position_embeddings": 64, "original_max_position_embeddings": length}
    edit(folder / "config.json", rope_parameters=None, rope_theta=500.0, rope_scaling=scaling, **keys)
    assert_same_logits(load_checkpoint(folder), AutoModelForCausalLM.from_pretrained(folder).eval(), tokens)


def test_one_file_of_weights_is_read_where_shards_or_their_index_are_left_over(llama_folder, tokens):
    """As transformers reads it; its save leaves such an index."""
    folder, _ = llama_folder("20KB")
    _, theirs = llama_folder(rope_parameters={"rope_type": "default", "rope_theta": 300.0})
    assert (folder / "model.safetensors.index.json").is_file() and not [*folder.glob("*-of-*")]
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


@pytest.mark.parametrize("kind, left_out", [
    ("smollm3", ["tie_word_embeddings", "rms_norm_eps", "rope_parameters"]), ("qwen3", ["head_dim", "rms_norm_eps"]),
])  # fmt: skip
def test_what_a_file_leaves_out_is_the_default_of_its_type(kind, left_out, llama_folder, tokens):
    """Version 4 does not write a SmolLM3's tie, and its base is not that of a Llama."""
    shape = dict(head_dim=128, tie_word_embeddings=kind == "smollm3", rms_norm_eps=1e-6, pad_token_id=None)
    folder, theirs = llama_folder(kind=kind, num_attention_heads=2, **shape)
    edit(folder / "config.json", **dict.fromkeys(left_out))
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


def test_a_shared_matrix_may_be_stored_under_either_name_or_both(llama_folder, tokens):
    """safetensors' save_model keeps one name of the two, some trainers both."""
    folder, theirs = llama_folder(tie_word_embeddings=True)
    embedding = theirs.model.embed_tokens.weight.detach()
    save_model(theirs, folder / "model.safetensors", metadata={"format": "pt"})
    assert "model.embed_tokens.weight" not in load_file(folder / "model.safetensors")
    for both in (False, True):
        edit_weights(folder, **({"model.embed_tokens.weight": embedding.clone()} if both else {}))
        model = load_checkpoint(folder)
        assert model.config.tie_word_embeddings
        assert_same_logits(model, theirs, tokens)


@pytest.mark.filterwarnings("ignore")
def test_an_output_layer_of_its_own_makes_a_tied_model_untied(llama_folder, tokens):
    """As version 5 of transformers has it."""
    folder, theirs = llama_folder(tie_word_embeddings=True)
    edit_weights(folder, **{"lm_head.weight": 0.2 * draw(48, 32, seed=1, dtype=torch.float32)})
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert not load_checkpoint(folder).config.tie_word_embeddings
    assert_same_logits(load_checkpoint(folder), theirs, tokens)


@pytest.mark.parametrize("prefix", ["", "model.", "_orig_mod.model.", "module.model.", "module._orig_mod."])
def test_weights_saved_from_inside_a_wrapper_are_found(prefix, saved, tokens):
    before = load_checkpoint(saved)
    tensors = load_file(saved / "model.safetensors")
    tensors = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(tensors, saved / "model.safetensors")
    (saved / "SHA256SUMS").unlink()
    assert torch.equal(load_checkpoint(saved)(tokens(1, 9)), before(tokens(1, 9)))


def test_two_tensors_for_one_place_are_refused(saved):
    edit_weights(saved, **{"norm.weight": torch.ones(32)})
    message = refusal(load_checkpoint, saved)
    assert str(saved / "model.safetensors") in message and "norm.weight" in message


# Ours, saved by transformers


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("ours, change", [
    ({}, {}),
    ({}, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    ({}, {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    ({}, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0, **LLAMA3}}),
    ({"fraction": 0.5, "partial": "p_rope"}, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    ({"scaling": {"rope_type": "ntk", "factor": 2.0}}, {}),
    ({"scaling": {"rope_type": "yarn", "factor": 2.0}}, {"max_position_embeddings": 1024}),
    ({"scaling": {"rope_type": "yarn", "factor": 2.0}}, {"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}),
    ({"every": 2}, {}),
    ({"every": 2}, {"no_rope_layers": [1, 0]}),
    ({"every": 2}, {"no_rope_layers": [0, 0]}),
], ids=str)  # fmt: skip
def test_what_was_changed_in_transformers_is_what_counts(ours, change, tiny_model, tokens, tmp_path):
    """Its save hands on our own keys as they were."""
    model = tiny_model({"scheme": "rope", **ours}, torch.float32)
    save_checkpoint(tmp_path / "c", model, {})
    config = AutoConfig.from_pretrained(tmp_path / "c")
    for key, value in change.items():
        setattr(config, key, value)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "c", config=config).eval()
    theirs.save_pretrained(tmp_path / "tuned")
    assert "position" in json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert_same_logits(load_checkpoint(tmp_path / "tuned"), theirs, tokens)
    if change and "max_position_embeddings" not in change:
        assert (theirs(tokens(2, 40)).logits - model(tokens(2, 40))).abs().max() > 1e-3


@pytest.mark.parametrize("changes, words", [
    ({"rope_theta": 50.0}, ["rope_theta", "50.0", "10000.0"]),
    ({"rope_theta": 50.0, "rope_parameters": {"rope_theta": 50.0}}, ["rope_theta", "50.0", "10000.0", "position"]),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_type", "'linear'", "'default'"]),
    ({"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, ["'linear'", "'default' outside"]),
    ({"position": {"scheme": "rope", "base": 50.0}}, ["rope_theta", "50.0", "10000.0", "position"]),
    ({"position": "none"}, ["model_type", "'llama'", "'smollm3'"]),
    ({"qk_norm": True}, ["model_type", "'llama'", "'qwen3'"]),
    ({"model_type": "qwen2"}, ["model_type", "'llama'", "'qwen2'"]),
])  # fmt: skip
def test_a_file_that_says_two_things_is_refused_naming_both(changes, words, saved):
    """By hand, or by version 4 of transformers, which keeps version 5's keys as it keeps ours."""
    edit(saved / "config.json", **changes)
    message = refusal(load_checkpoint, saved)
    assert all(word in message for word in [str(saved / "config.json"), *words]), message


@pytest.mark.parametrize("position, model_type, keys", [
    ({"scheme": "rope"}, "llama", {}),
    ({"scheme": "rope", "scaling": {"rope_type": "yarn", "factor": 2.0}}, "llama",
     {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0,
                       "original_max_position_embeddings": 256}}),
    ({"scheme": "rope", "fraction": 0.5, "partial": "p_rope"}, "whereabouts",
     {"rope_parameters": None, "rope_scaling": None, "rope_theta": None}),
])  # fmt: skip
def test_checkpoints_of_earlier_versions_load(position, model_type, keys, tiny_model, tmp_path):
    """Which had no biases, no sum of the tokenizer, and wrote other keys for transformers."""
    model = tiny_model(position, torch.float32)
    save_checkpoint(tmp_path / "c", model, {"tokenizer.json": "{}"})
    edit(tmp_path / "c" / "config.json", attention_bias=False, model_type=model_type, **keys)
    sums = (tmp_path / "c" / "SHA256SUMS").read_text().splitlines(keepends=True)
    (tmp_path / "c" / "SHA256SUMS").write_text(sums[0])
    (tmp_path / "c" / "tokenizer.json").write_text("{ }")
    assert load_checkpoint(tmp_path / "c").config == model.config


def test_linear_attention_once_called_a_llama_stays_linear(tiny_model, tmp_path):
    model = tiny_model(attention="linear", dtype=torch.float32)
    save_checkpoint(tmp_path / "c", model, {})
    edit(tmp_path / "c" / "config.json", model_type="llama", rope_theta=10000.0)
    assert load_checkpoint(tmp_path / "c").config == model.config


# Broken folders


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_weights_are_refused(saved, keep):
    file = saved / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    assert str(file) in refusal(load_checkpoint, saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_missing_files_are_named(saved, name):
    (saved / name).unlink()
    assert str(saved / name) in refusal(load_checkpoint, saved)


def test_a_missing_shard_is_named(llama_folder):
    folder, _ = llama_folder("20KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    assert str(shard) in refusal(load_checkpoint, folder)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[]", "{"])
def test_a_broken_index_of_shards_is_refused(saved, content):
    (saved / "model.safetensors").rename(saved / "model-00001-of-00001.safetensors")
    (saved / "model.safetensors.index.json").write_text(content)
    assert str(saved) in refusal(load_checkpoint, saved)


def test_a_tensor_of_another_shape_is_refused(saved):
    edit_weights(saved, **{"model.norm.weight": torch.ones(33)})
    message = refusal(load_checkpoint, saved)
    assert all(word in message for word in (str(saved / "model.safetensors"), "model.norm.weight", "[33]", "[32]"))


def test_a_missing_tensor_is_refused(saved):
    edit_weights(saved, **{"model.layers.1.mlp.up_proj.weight": None})
    message = refusal(load_checkpoint, saved)
    assert str(saved) in message and "layers.1.mlp.up_proj.weight" in message


def test_a_tensor_too_many_is_refused(saved):
    """Such as a bias that this model does not have: without it the logits would be wrong."""
    edit_weights(saved, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(32)})
    message = refusal(load_checkpoint, saved)
    assert str(saved / "model.safetensors") in message and "q_proj.bias" in message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"hidden_size": 3'])
def test_a_config_that_is_no_mapping_is_refused(saved, content):
    (saved / "config.json").write_bytes(content)
    assert str(saved / "config.json") in refusal(load_checkpoint, saved)


@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_act", "gelu"),
        ("mlp_bias", True),
        ("use_sliding_window", True),
        ("model_type", "gpt2"),
        ("rope_parameters", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "mscale": 0.7}),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "longrope", "factor": 8.0}),
        ("rope_scaling", "linear"),
        ("num_attention_heads", 5),
        ("hidden_size", "wide"),
        ("vocab_size", None),
        ("num_hidden_layers", None),
        ("model_type", None),
        ("model_type", ["llama"]),
        ("model_type", "mistral"),  # whose window is 4096 tokens unless it says null
        ("model_type", "smollm3"),  # whose no_rope_layers are missing
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", 2),
        ("partial_rotary_factor", 0.5),
        ("partial_rotary_factor", float("nan")),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        ("rope_parameters", {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": float("nan")}),
        ("rope_parameters", {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.01}),
    ],
)
def test_a_llama_that_we_would_compute_otherwise_is_refused(llama_folder, key, value):
    folder, _ = llama_folder()
    edit(folder / "config.json", **{"rope_parameters": None, "rope_theta": 1e4, key: value})
    message = refusal(load_checkpoint, folder)
    assert str(folder / "config.json") in message
    named = {"rope_parameters": ["partial_rotary_factor", "position"], "mistral": ["sliding_window"]}
    named |= {"smollm3": ["no_rope_layers"], "rope_scaling": ["rope_type", "rope_scaling", "long_factor"]}
    expected = named.get(str(value), named.get(key, [key]))
    assert value is None or any(word in message for word in expected), message


def test_an_unknown_scheme_is_refused(saved):
    edit(saved / "config.json", position={"scheme": "ropes"})
    message = refusal(load_checkpoint, saved)
    assert str(saved / "config.json") in message and "'ropes'" in message


@pytest.mark.parametrize("content", [b"", b"no torch file"])
def test_a_broken_trainer_state_is_refused(saved, content):
    (saved / "trainer.pt").write_bytes(content)
    assert str(saved / "trainer.pt") in refusal(load_trainer, saved)


def test_a_run_folder_means_its_newest_complete_checkpoint(saved, tmp_path):
    """By number, not by name: step_1000000 comes after step_999999. A partial folder is none."""
    checkpoints = tmp_path / "run" / "checkpoints"
    for name in ("step_999999", "step_1000000", ".step_2000000.partial"):
        shutil.copytree(saved, checkpoints / name)
    (checkpoints / "step_3000000").mkdir()
    assert find_checkpoint(tmp_path / "run") == checkpoints / "step_1000000"
    assert find_checkpoint(saved) == saved
    assert str(tmp_path / "no") in refusal(find_checkpoint, tmp_path / "no")


def test_a_folder_of_transformers_trainer_means_its_newest_checkpoint(llama_folder, tokens, tmp_path):
    """By number, not by name; and a model saved beside them is what the folder means."""
    folder, theirs = llama_folder()
    for step in (90, 1000, 500):
        shutil.copytree(folder, tmp_path / "out" / f"checkpoint-{step}")
    (tmp_path / "out" / "checkpoint-2000").mkdir()
    shutil.copytree(folder, tmp_path / "out" / "checkpoint-best")
    assert find_checkpoint(tmp_path / "out") == tmp_path / "out" / "checkpoint-1000"
    shutil.copy(folder / "config.json", tmp_path / "out")
    assert find_checkpoint(tmp_path / "out") == tmp_path / "out"


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt"])
def test_a_flipped_bit_in_a_tensor_is_seen(saved, name):
    """It leaves the file as readable as it was."""
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    load = load_checkpoint if name == "model.safetensors" else load_trainer
    assert f"{saved / name}: damaged or changed" in refusal(load, saved)
    (saved / "SHA256SUMS").unlink()  # folders of others have none
    load_checkpoint(saved)


def test_a_tokenizer_that_is_not_the_checkpoint_s_is_refused(tiny_model, tmp_path):
    """Its text would be nonsense, and a run resumed with it would be lost."""
    folder = tmp_path / "c"
    save_checkpoint(folder, tiny_model(dtype=torch.float32), {"tokenizer.json": "{}"})
    (folder / "tokenizer.json").write_text("{ }")
    assert f"{folder / 'tokenizer.json'}: damaged or changed" in refusal(load_checkpoint, folder)
    (folder / "SHA256SUMS").write_text("")
    assert str(folder / "model.safetensors") in refusal(load_checkpoint, folder)


def test_the_sums_are_those_of_sha256sum(saved):
    lines = dict(reversed(line.split("  ")) for line in (saved / "SHA256SUMS").read_text().splitlines())
    assert lines == {
        name: hashlib.sha256((saved / name).read_bytes()).hexdigest() for name in ("model.safetensors", "trainer.pt")
    }


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "config.json"])
def test_code_in_a_pickle_does_not_run(saved, name, tmp_path):
    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    (saved / "SHA256SUMS").unlink()
    plain = pickle.dumps(Attack(), protocol=2)
    for dump in (lambda file: torch.save({"a": Attack()}, file), lambda file: file.write_bytes(plain)):
        dump(saved / name)
        load = load_trainer if name == "trainer.pt" else load_checkpoint
        assert str(saved / name) in refusal(load, saved)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"]
)
@pytest.mark.parametrize("size", [1, 10**9, 10**18, 10**40])
def test_absurd_sizes_are_refused_before_anything_of_that_size_is_made(saved, key, size):
    """A thousand million layers on the meta device take no memory, but days."""
    edit(saved / "config.json", **{key: size})
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert str(saved) in refusal(load_checkpoint, saved)
    assert time.process_time() - begun < 30 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize(
    "position",
    [{"scheme": "learned", "max_length": 10**9}, {"scheme": "learned", "max_length": 10**16},
     {"scheme": "t5", "num_buckets": 10**9, "max_distance": 10**10}, {"scheme": "learned", "max_length": 10**40},
     {"scheme": "rope", "every": 10**12}],
)  # fmt: skip
def test_absurd_tables_of_positions_are_refused(saved, position):
    edit(saved / "config.json", position=position, max_position_embeddings=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert str(saved) in refusal(load_checkpoint, saved)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_tensors_that_are_no_weights_are_refused(saved, dtype):
    edit_weights(saved, **{"model.norm.weight": torch.ones(32).to(dtype)})
    message = refusal(load_checkpoint, saved)
    assert "model.norm.weight" in message and str(dtype) in message


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "config.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(saved, name):
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert name in refusal(load_trainer if name == "trainer.pt" else load_checkpoint, saved)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"])
def test_a_config_that_would_exhaust_the_parser_is_refused(saved, content):
    (saved / "config.json").write_text(content)
    assert str(saved / "config.json") in refusal(load_checkpoint, saved)


def test_a_config_of_gigabytes_is_not_read(saved):
    with (saved / "config.json").open("r+b") as file:
        file.truncate(2**33)  # a hole: it takes no room on the disk
    assert "67,108,864 bytes" in refusal(load_checkpoint, saved)


def test_a_folder_that_only_looks_like_a_checkpoint_of_a_run_is_passed_over(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run" / "checkpoints" / "step_000001")
    shutil.copytree(saved, tmp_path / "run" / "checkpoints" / "step_best")
    assert find_checkpoint(tmp_path / "run").name == "step_000001"


# Saving


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_saving_twice_keeps_the_second_and_leaves_nothing_beside(saved, tiny_model):
    model = tiny_model("none", torch.float32, seed=4)
    save_checkpoint(saved, model, {})
    assert names(saved.parent) == ["checkpoint"] and names(saved) == FILES
    assert torch.equal(load_checkpoint(saved).norm.weight, model.norm.weight)


def test_where_a_system_opens_no_folder_and_flushes_only_what_is_written_a_model_is_saved(
    tiny_model, tmp_path, monkeypatch
):
    """As Windows."""
    fcntl, real, flushed = pytest.importorskip("fcntl"), os.open, []

    def open_file(path, *how, **more):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *how, **more)

    def flush(descriptor):
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        flushed.append(descriptor)

    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", flush)
    save_checkpoint(tmp_path / "model", tiny_model("rope"), {})
    assert len(flushed) == len([*(tmp_path / "model").iterdir()]) and load_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("refused", ["chmod", "fsync"])
def test_where_a_file_system_has_no_modes_or_flushes_no_folders_a_model_is_saved(
    refused, tiny_model, tmp_path, monkeypatch
):
    """As mounted drives of Windows, of which the first has another owner, and shared folders of virtual machines."""
    real, calls = getattr(os, refused), []

    def refuse(place, *arguments, **named):
        calls.append(place)
        if refused == "chmod":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(place))
        if stat.S_ISDIR(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(place)

    monkeypatch.setattr(os, refused, refuse)
    save_checkpoint(tmp_path / "model", tiny_model("rope"), {}, {"step": 1})
    assert calls and load_checkpoint(tmp_path / "model") and load_trainer(tmp_path / "model") == {"step": 1}


def test_a_full_disk_that_shows_when_a_folder_is_flushed_is_told(tiny_model, tmp_path, monkeypatch):
    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InputError, match="model: cannot be written: No space left on device"):
        save_checkpoint(tmp_path / "model", tiny_model("rope"), {})


def test_a_folder_whose_successor_cannot_take_its_name_is_as_it_was(saved, tiny_model, monkeypatch):
    before, replace = contents(saved), os.replace

    def refuse(source, target):
        if str(source).endswith(".partial"):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match="checkpoint: cannot be written: Input/output error"):
        save_checkpoint(saved, tiny_model(dtype=torch.float32), {})
    assert contents(saved) == before and [*saved.parent.iterdir()] == [saved]


def test_what_a_gpu_wrote_is_read_where_there_is_none(tmp_path, tiny_model, monkeypatch):
    """Here a CPU's tensor that says that it lay on a GPU."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
        save_checkpoint(tmp_path / "c", tiny_model("rope"), {}, {"moment": torch.arange(3.0)})
    assert load_trainer(tmp_path / "c")["moment"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("call", ["save_file", "os.fsync", "os.replace"])
def test_a_kill_during_a_save_leaves_no_checkpoint_or_the_old_one(call, tiny_model, tmp_path, monkeypatch):
    """And the next save is not disturbed by what the killed one left."""
    folder, model = tmp_path / "c", tiny_model(dtype=torch.float32)

    def kill(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"model.checkpoint.{call}", kill)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(folder, model, {"old.txt": ""})
    assert not folder.exists() and names(tmp_path) == [".c.partial"]
    save_checkpoint(folder, model, {})
    assert names(tmp_path) == ["c"] and names(folder) == FILES

    with monkeypatch.context() as patch:
        patch.setattr(f"model.checkpoint.{call}", kill)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(folder, tiny_model(seed=1), {})
    assert torch.equal(load_checkpoint(folder).norm.weight, model.norm.weight)


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_others_may_read_the_files_as_the_umask_says(umask, mode, tiny_model, tmp_path):
    """safetensors makes files that only their owner can read."""
    before = os.umask(umask)
    try:
        save_checkpoint(tmp_path / "c", tiny_model(dtype=torch.float32), {"tokenizer.json": "{}"}, {"step": 1})
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "c").iterdir()]
    assert len(files) == 5 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}
