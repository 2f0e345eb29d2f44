"""Training that starts from a folder of another library: its weights, its tokenizer, and what may be changed."""

import json
import random
import shutil

import pytest
import torch
import torch.nn.functional as F
import yaml
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import generate
from base import InputError, find_checkpoint
from configs import Config, load_config
from data.batches import Batches
from data.corpus import load_corpus
from tiny import WORDS, assert_same_bits, call, killed_before_step, rows, settings
from training.loop import train
from training.starting import fill_in_model

# punctuation takes newlines along, digits come in threes: what the cuts for our own tokenizers would change
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = "!?\n\n" * 4000 + "\n".join(
    " ".join(random.Random(n).choices(WORDS + ["  don't", "1234567", "é,\n\n", "(x).\n"], k=12)) + "!\n"
    for n in range(400)
)
SHAPE = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=16, initializer_range=0.3, attn_implementation="eager",
)  # fmt: skip
KINDS = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}


def make_tokenizer(end):
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<s>", end], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    """Makes a folder as transformers saves it."""

    def make(kind="llama", end="<|endoftext|>", **changes):
        model, config = KINDS[kind]
        torch.manual_seed(0)
        place = tmp_path / "theirs"
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(end), bos_token="<s>", eos_token=end)
        model(config(vocab_size=325, bos_token_id=0, eos_token_id=1, **SHAPE, **changes)).save_pretrained(place)
        tokenizer.save_pretrained(place)
        return place

    return make


@pytest.fixture
def configure(tmp_path):
    """The config of a run that starts from a folder."""

    def configure(place, *overrides, model=None, **train):
        values = settings(tmp_path)
        (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
        del values["data"]["tokenizer"]
        values["model"] = model or {}
        values["train"] |= {"init_from": str(place), "learning_rate": 1e-3, **train}
        file = tmp_path / "tuned.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        return load_config(file, list(overrides))

    return configure


def loss(folder, batch):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        return F.cross_entropy(model(batch[0]).logits.flatten(0, 1), batch[1].flatten()).item()


@pytest.mark.parametrize(("kind", "end"), [("llama", "<|endoftext|>"), ("qwen3", "</s>")])
def test_the_first_loss_is_that_of_transformers_on_the_same_tokens(kind, end, folder, configure):
    place = folder(kind, end)
    config = configure(place)
    train(config)
    corpus = load_corpus(config.data)
    theirs = AutoTokenizer.from_pretrained(place)
    cut = len(TEXT) - round(len(TEXT) * 0.1)
    for text, tokens in ((TEXT[:cut], corpus.train), (TEXT[cut:], corpus.val)):
        assert tokens.tolist() == [theirs.eos_token_id, *theirs(text, add_special_tokens=False).input_ids]
    assert len(TEXT) > 30_000, "several pieces, one of which is cut between lines of punctuation where others would be"
    batches = Batches(corpus.train, 16, config.train.batch_size, config.seed)
    assert rows(config.folder)[0]["train_loss"] == pytest.approx(loss(place, batches[0]), abs=1e-5)


def test_a_checkpoint_has_what_its_folder_had(folder, configure, capsys):
    place = folder()
    told = place / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"eos_token": "<s>", "chat_template": template}))
    config = configure(place)
    train(config)
    found = find_checkpoint(config.folder)
    ours, theirs = (AutoTokenizer.from_pretrained(each) for each in (found, place))
    assert ours(TEXT).input_ids == theirs(TEXT).input_ids and ours.chat_template == theirs.chat_template == template
    model = AutoModelForCausalLM.from_pretrained(found)
    assert model.generation_config.eos_token_id == [1, 0], "the end of a document, and that of a message"
    assert call(generate, found, "--max-new-tokens", 3) == 0
    batch = Batches(load_corpus(config.data).train, 16, 4, 0)[99]
    assert loss(found, batch) < loss(place, batch)
    again = load_config(config.folder / "config.yaml")
    assert again.model.vocab_size == 325 and again.model.hidden_size == 32


def test_a_longer_context_with_yarn_is_three_lines(folder, configure):
    """Its length is that which the folder was trained on, not the new one."""
    place = folder(rope_theta=5000.0)
    longer = {"max_position_embeddings": 64, "position": {"scaling": {"rope_type": "yarn", "factor": 4}}}
    config = configure(place, model=longer)
    train(config)
    found = find_checkpoint(config.folder)
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}
    theirs = AutoModelForCausalLM.from_pretrained(found, attn_implementation="eager")
    assert expected.items() <= theirs.config.rope_parameters.items() and theirs.config.max_position_embeddings == 64
    batches = Batches(load_corpus(config.data).train, 64, config.train.batch_size, config.seed)
    stored = json.loads((place / "config.json").read_text())
    stored |= {"max_position_embeddings": 64, "rope_parameters": expected}
    (place / "config.json").write_text(json.dumps(stored))
    assert rows(config.folder)[0]["train_loss"] == pytest.approx(loss(place, batches[0]), abs=1e-5)


@pytest.mark.parametrize("given", ["its config.yaml", "the same command"])
def test_a_stopped_run_needs_its_folder_no_more(given, folder, configure):
    place, longer = (
        folder(),
        {"max_position_embeddings": 32, "position": {"scaling": {"rope_type": "yarn", "factor": 2}}},
    )
    whole, other = (configure(place, f"name={name}", model=longer, checkpoint_every=2) for name in ("whole", "other"))
    train(whole)
    with killed_before_step(4):
        train(other)
    shutil.rmtree(place)
    with pytest.raises(InputError, match="cannot resume with another model.position.scaling.factor"):
        changed = load_config(other.folder / "config.yaml", ["model.position.scaling.factor=3"])
        train(changed, resume=True)
    train(load_config(other.folder / "config.yaml") if given == "its config.yaml" else other, resume=True)
    assert_same_bits(whole, other)


def test_one_s_own_run_is_a_start_too(folder, configure):
    first = configure(folder(), "name=first")
    train(first)
    second = configure(first.folder, "name=second", steps=1, warmup_steps=0)
    train(second)
    batch = Batches(load_corpus(second.data).train, 16, 4, 0)[0]
    assert rows(second.folder)[0]["train_loss"] == pytest.approx(loss(find_checkpoint(first.folder), batch), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"num_hidden_layers": 3}, "model.num_hidden_layers: 3, but train.init_from '.*theirs' has 2"),
        ({"vocab_size": 400}, "model.vocab_size: 400, but .* has 325"),
        ({"position": "alibi"}, "model.position.scheme: 'alibi', but .* has 'rope'"),
        ({"position": {"fraction": 0.5}}, "model.position.fraction: 0.5, but .* has 1.0"),
    ],
)
def test_a_shape_that_is_not_the_folder_s_is_refused_by_its_key(model, reason, folder, configure):
    config = configure(folder(), model=model)
    with pytest.raises(InputError, match=reason):
        train(config)
    assert not config.folder.exists()


def test_a_tokenizer_beside_the_folder_s_is_refused(configure):
    with pytest.raises(InputError, match="data.tokenizer: train.init_from 'x' has its own"):
        configure("x", "data.tokenizer.kind=byte")
    assert configure("x").data.tokenizer.folder == "x"
    assert Config(name="plain").data.tokenizer.folder is None


def test_a_folder_without_a_model_or_an_end_of_text_is_named(folder, configure):
    with pytest.raises(InputError, match="nowhere: expected a run folder"):
        train(configure("nowhere"))
    with pytest.raises(InputError, match="^train.init_from: ~nobody-known: expected a user with a home folder"):
        fill_in_model(configure("~nobody-known"))
    place = folder(end="</s>")
    for name in ("tokenizer_config.json", "generation_config.json"):
        (place / name).unlink()
    stored = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(stored | {"eos_token_id": None}))
    with pytest.raises(InputError, match="theirs: expected a token to part documents: <.endoftext.> in tokenizer.json"):
        train(configure(place))


def test_another_tokenizer_is_another_corpus(folder, configure):
    """In the same place: what is kept goes by what the tokenizer is."""
    place = folder()
    config = configure(place)
    before = load_corpus(config.data).train.tolist()
    changed = make_tokenizer("<|endoftext|>")
    changed.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    changed.save(str(place / "tokenizer.json"))
    assert load_corpus(config.data).train.tolist() != before
