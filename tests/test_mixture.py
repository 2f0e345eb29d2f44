"""Training, preparing and comparing on several texts at once."""

import json
from pathlib import Path

import pytest
import yaml

import compare
import prepare
import train as program
from base import InputError, find_checkpoint
from data import encoding, hashing, shards
from data.corpus import load_corpus
from model.checkpoint import load_checkpoint
from tiny import TEXT, assert_same_bits, call, config_file, contents, rows, run_config, train_until, whole_and_other
from training.evaluation import evaluate
from training.loop import train


def texts(folder: Path, **weights: float) -> list[str]:
    """Overrides that make the run's text a mixture of files of these names, each with text of its own."""
    for name in weights:
        words = TEXT if name == "words" else f"{name} {TEXT[::-1]}"[:2000]
        (folder / f"{name}.txt").write_text(words, encoding="utf-8")
    sources = [{"source": str(folder / f"{name}.txt"), "weight": weight} for name, weight in weights.items()]
    return ["data.source=null", f"data.sources={json.dumps(sources)}"]


def test_an_evaluation_has_the_loss_of_each_source_and_of_all_text(tmp_path, capsys):
    mixture = texts(tmp_path, words=3, other=1)
    assert call(program, config_file(tmp_path), *mixture, "train.eval_every=3") == 0
    config = run_config(tmp_path, *mixture)
    evaluations = [row for row in rows(config.folder) if "val_loss" in row]
    corpus, model = load_corpus(config.data), load_checkpoint(find_checkpoint(config.folder))
    nats = [evaluate(model, part.val, 16) for part in corpus.parts]
    targets = [len(part.val) - 1 for part in corpus.parts]
    expected = [sum(nats) / sum(targets), nats[0] / targets[0], nats[1] / targets[1]]
    keys = ["val_loss", "val_loss/words", "val_loss/other"]
    assert [row["step"] for row in evaluations] == [3, 6]
    assert [evaluations[-1][key] for key in keys] == expected and len({*expected}) == 3
    assert f"nats per token (words {expected[1]:.4f}, other {expected[2]:.4f}), " in capsys.readouterr().err


def test_a_single_source_has_one_loss_and_the_same_bits_in_either_way(tmp_path):
    whole, other = whole_and_other(tmp_path)
    source = json.dumps([{"source": whole.data.source, "weight": 7}])
    train(run_config(tmp_path, "name=other", "data.source=null", f"data.sources={source}"))
    assert_same_bits(whole, other)


def test_a_run_on_a_mixture_is_resumed_as_the_same_mixture(tmp_path):
    """Its text may have moved, but not its weights, names or order."""
    mixture = texts(tmp_path, words=3, other=1)
    whole, other = whole_and_other(tmp_path, *mixture, "train.checkpoint_every=2")
    train_until(4, other)
    before = contents(other.folder)
    for changed in (texts(tmp_path, words=2, other=1), texts(tmp_path, other=3, words=1)):
        with pytest.raises(InputError, match="cannot resume with another data.sources.0.(weight|name)"):
            train(run_config(tmp_path, "name=other", *changed, "train.checkpoint_every=2"), resume=True)
    (tmp_path / "moved").mkdir()
    for name in ("words.txt", "other.txt"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    assert contents(other.folder) == before
    moved = texts(tmp_path / "moved", words=3, other=1)
    train(run_config(tmp_path, "name=other", *moved, "train.checkpoint_every=2"), resume=True)
    assert_same_bits(whole, other)


def test_a_source_shorter_than_a_context_is_named(tmp_path, capsys):
    mixture = texts(tmp_path, words=3, other=1)
    (tmp_path / "other.txt").write_text("too short", encoding="utf-8")
    assert call(program, config_file(tmp_path), *mixture) == 2
    assert "error: data.source: " in (said := capsys.readouterr().err) and "other.txt has 9 tokens for training" in said


def test_a_prepared_text_is_read_and_tokenized_no_more(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hashing, "_CLOCK", 0)
    mixture = texts(tmp_path, words=3, other=1)
    assert call(prepare, config_file(tmp_path), *mixture) == 0
    assert "words: 3,420 tokens to train on, 381 to validate\nother: 1,801 tokens" in capsys.readouterr().err
    before = contents(tmp_path / "cache")
    for module, name in ((hashing, "_read"), (encoding, "_encoder"), (shards, "_write_stream")):
        monkeypatch.setattr(module, name, None)
    assert call(prepare, config_file(tmp_path), *mixture) == 0
    assert call(program, config_file(tmp_path), *mixture) == 0
    assert contents(tmp_path / "cache") == before


def test_preparing_refuses_bad_input_in_one_line(tmp_path, capsys):
    for arguments, expected in {
        ("none.yaml",): "error: none.yaml: No such file",
        (config_file(tmp_path), "data.source=none.txt"): "error: data.source 'none.txt': no such file",
        (config_file(tmp_path), "data.sources=[{source: a}]"): ": data: expected either source or sources",
        (): "error: the following arguments are required: CONFIG.yaml",
    }.items():
        assert call(prepare, *arguments) == 2
        said = capsys.readouterr().err
        assert expected in said and said.count("\n") == 1


def test_variants_are_compared_on_a_mixture_and_each_text_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "_CLOCK", 0)
    read, counted = hashing._read, []
    monkeypatch.setattr(hashing, "_read", lambda *given: counted.append(given) or read(*given))
    base = yaml.safe_load(config_file(tmp_path, "base").read_text(encoding="utf-8"))
    for override in texts(tmp_path, words=3, other=1):
        key, value = override.split("=", 1)
        base["data"][key.removeprefix("data.")] = yaml.safe_load(value)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    other = [{**source, "weight": 1} for source in base["data"]["sources"]]
    plan = {
        "base": "base.yaml",
        "variants": {"rope": {"model.position": "rope"}, "even": {"data.sources": other}},
        "baseline": "rope",
        "seeds": [0],
        "runs_dir": str(tmp_path / "runs"),
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    assert call(compare, tmp_path / "plan.yaml") == 0
    assert len(counted) == 2
    results = json.loads(next((tmp_path / "runs").rglob("results.json")).read_text(encoding="utf-8"))
    assert results["unit"] == "nats per token" and results["differing"]["even"] == {"data.sources.0.weight": 1.0}
