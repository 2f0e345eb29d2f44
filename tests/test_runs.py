"""Reports on runs that are there already, whatever made them, and what is kept of a run's numbers."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import compare
from base import InputError
from comparison import commands
from comparison import measure as measuring
from comparison.grouping import group, open_run, same_tokens
from comparison.measure import Corpora, read_run
from configs import check_config, load_config
from tiny import call, config_file, replace_path, settings
from training.loop import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three seeds of two schemes, and one run each with another tokenizer and another text."""
    folder = tmp_path_factory.mktemp("found")
    file = config_file(folder)
    made = {
        f"{scheme}-seed{seed}": [f"model.position={scheme}", f"seed={seed}"]
        for scheme in ("none", "rope")
        for seed in range(3)
    }
    (folder / "other.txt").write_text("another text, and not one of so few words. " * 90, encoding="utf-8")
    made |= {"char": ["data.tokenizer.kind=char"], "other": [f"data.source={folder / 'other.txt'}"]}
    made |= {"half": ["data.val_part=reporting"]}
    for name, overrides in made.items():
        train(load_config(file, [f"name={name}", "train.steps=2", "train.eval_every=1", *overrides]))
    return folder / "runs"


def report(folder, *names, out, baseline=None):
    return commands.report([folder / name for name in names], baseline, out)


def measured(folder, corpus_of, evaluate_with=(), context=16):
    run = open_run(folder)
    return measuring.measure(run, read_run(run), corpus_of, dict(evaluate_with), context)


YARN = {"yarn": {"scaling": {"rope_type": "yarn", "factor": 4}}}
ROPES, NONES = [f"rope-seed{seed}" for seed in range(3)], [f"none-seed{seed}" for seed in range(3)]


def test_runs_that_differ_in_their_seed_alone_are_a_variant(trained, tmp_path):
    text = report(trained, *ROPES, *NONES, out=tmp_path / "out")
    numbers = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    seeds = {variant: row["seeds"] for variant, row in numbers["summary"].items()}
    assert seeds == {"rope": [0, 1, 2], "none": [0, 1, 2]}
    assert numbers["baseline"] == "rope" and numbers["summary"]["none"]["difference"]["n"] == 3
    assert numbers["differing"]["none"] == {"model.position.scheme": "none"}
    assert numbers["differing"]["rope"].keys() >= {"model.position.scheme", "model.position.base"}
    assert "found, not planned" in text
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_command_takes_a_baseline_and_pairs_only_shared_seeds(trained, tmp_path, capsys):
    folders = [trained / name for name in (*ROPES, *NONES[1:])]
    assert call(compare, "--runs", *folders, "--baseline", "none", "--out", tmp_path) == 0
    captured = capsys.readouterr()
    assert "| none |" in captured.out and "written to" in captured.err
    numbers = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["summary"]["rope"]["difference"]
    assert (numbers["n"], numbers["low"], numbers["p_different"]) == (2, None, None)


def test_a_moved_run_is_found_where_it_is_now(trained, tmp_path):
    shutil.copytree(trained / "rope-seed1", tmp_path / "elsewhere")
    run = open_run(tmp_path / "elsewhere")
    assert run.path == tmp_path / "elsewhere" and list(group([run])) == ["elsewhere"]


def test_a_variant_whose_name_is_taken_is_named_by_its_path_without_its_seed(trained, tmp_path):
    for name, scheme in (("rope-seed0", "none-seed0"), ("rope-seed1", "none-seed1")):
        shutil.copytree(trained / scheme, tmp_path / name)
    found = group([open_run(trained / "rope-seed0"), *(open_run(tmp_path / f"rope-seed{n}") for n in range(2))])
    assert {name: len(some) for name, some in found.items()} == {"rope": 1, str(tmp_path / "rope"): 2}


@pytest.mark.parametrize("name", ["a\nb", "a\x1bb"], ids=ascii)
def test_a_folder_s_name_that_cannot_be_printed_is_reported(name, trained, tmp_path):
    shutil.copytree(trained / "rope-seed0", place := tmp_path / name)
    commands.report([place], None, tmp_path / "out")
    ElementTree.fromstring((tmp_path / "out" / "forest.svg").read_text(encoding="utf-8"))
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_run_in_a_folder_that_keeps_nothing_is_reported(trained, tmp_path, monkeypatch, capsys):
    """As where it belongs to somebody else."""
    place, real = shutil.copytree(trained / "rope-seed0", tmp_path / "theirs"), measuring.replace_text
    (place / "measurements.json").unlink(missing_ok=True)

    def refused(file, text):
        if file.parent == place:
            raise PermissionError(13, "Permission denied", str(file))
        real(file, text)

    monkeypatch.setattr(measuring, "replace_text", refused)
    report(tmp_path, "theirs", out=tmp_path / "out")
    said = capsys.readouterr().err
    assert f"warning: {place / 'measurements.json'}: cannot be written: Permission denied; the next report" in said
    assert (tmp_path / "out" / "results.json").is_file() and not (place / "measurements.json").exists()


def test_a_fine_tuned_run_is_reported_when_what_it_began_from_is_gone(trained, tmp_path):
    base = shutil.copytree(trained / "rope-seed0", tmp_path / "base")
    values = settings(trained.parent) | {"name": "ft", "runs_dir": str(tmp_path), "model": {}}
    del values["data"]["tokenizer"]
    values["train"] |= {"init_from": str(base), "steps": 2, "eval_every": 1}
    train(check_config(values, "ft"))
    shutil.rmtree(base)
    report(tmp_path, "ft", out=tmp_path / "out")
    sizes = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["summary"]["ft"]
    assert [*sizes["embedding_rms"]] == ["end"]


def test_the_same_text_at_another_path_is_the_same_text(trained, tmp_path):
    shutil.copytree(trained / "rope-seed1", tmp_path / "rope-seed1")
    moved = str(shutil.copy(trained.parent / "text.txt", tmp_path / "moved.txt"))
    overrides = [f"runs_dir={tmp_path}", "name=rope-seed1", f"data.source={moved}"]
    train(load_config(tmp_path / "rope-seed1" / "config.yaml", overrides), resume=True)
    runs = [open_run(folder / f"rope-seed{seed}") for seed, folder in enumerate((trained, tmp_path))]
    assert [run.config.data.source for run in runs] == [str(trained.parent / "text.txt"), moved]
    assert group(runs) == {"rope": runs}


def test_other_tokenizers_compare_in_bits_per_byte_and_nothing_else(trained, tmp_path):
    text = report(trained, "rope-seed0", "char", out=tmp_path)
    numbers = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert numbers["unit"] == "bits per byte" and "The tokenizers differ" in text and "nats" not in text
    for variant, runs in numbers["runs"].items():
        assert runs[0]["val_loss"] == runs[0]["val_bits_per_byte"] == runs[0]["curve"][-1][1]
        assert numbers["summary"][variant]["loss_by_context"] == []
    assert "Loss by context length" not in text
    assert not same_tokens([open_run(trained / name) for name in ("rope-seed0", "char")])


def edit(folder, key, value=None):
    """Gives the second row of metrics.jsonl another value, or none."""
    first, row, *others = (file := folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(row) | {key: value}
    if value is None:
        del row[key]
    file.write_text("\n".join([first, json.dumps(row), *others, ""]), encoding="utf-8")


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda folder: shutil.rmtree(folder / "checkpoints"), "is not finished; train.py --resume"),
        (lambda folder: (folder / "config.yaml").unlink(), "is not a run folder"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), "metrics.jsonl: missing"),
        (lambda folder: edit(folder, "tokens"), "metrics.jsonl: .*line 2 lacks step or tokens"),
        (lambda folder: edit(folder, "learning_rate", "1e-3"), "metrics.jsonl: .*line 2 .*has no number"),
        (lambda folder: edit(folder, "val_loss", "3.0"), "metrics.jsonl: .*line 2 .*has no number"),
        (lambda folder: (folder / "corpus.json").unlink(), "corpus.json: missing"),
        (lambda folder: next(folder.glob("checkpoints/*/model.safetensors")).unlink(), "model.safetensors: missing"),
        (
            lambda folder: (folder / "versions.json").write_text('{"0": {"torch": 2}}'),
            "versions.json: expected the vers",
        ),
        (lambda folder: (folder / "corpus.json").write_text('{"source": "a"}'), "corpus.json: hash: .*str, got None"),
    ],
)
def test_what_is_no_finished_run_is_named(trained, tmp_path, prepare, expected):
    shutil.copytree(trained / "rope-seed0", tmp_path / "broken")
    prepare(tmp_path / "broken")
    with pytest.raises(InputError, match=f"broken.*{expected}"):
        commands.report([trained / "none-seed0", tmp_path / "broken"], None, tmp_path / "out")


def test_a_run_is_called_like_its_folder_also_from_within(trained, monkeypatch):
    monkeypatch.chdir(trained / "rope-seed0" / "checkpoints")
    assert open_run(Path("..")).path.name == "rope-seed0"
    monkeypatch.chdir("..")
    assert [*group([open_run(Path())])] == ["rope"]


@pytest.mark.parametrize(
    ("names", "baseline", "out", "expected"),
    [
        (["rope-seed0", "other"], None, "out", "other and .*rope-seed0: .* different texts.*other.txt.*text.txt; hash"),
        (["rope-seed0", "rope-seed0"], None, "out", "same seed twice"),
        (
            ["rope-seed0", "half"],
            None,
            "out",
            "half and .*rope-seed0: have different validation texts .*; val_bytes 190",
        ),
        (["rope-seed0"], "ropes", "out", "--baseline: expected one of rope, got 'ropes'"),
        (["rope-seed0"], None, "file", "file.*: cannot be written: "),
        (["rope-seed0"], None, "n" * 300, "nnn.*: cannot be read: File name too long"),
    ],
)
def test_runs_that_make_no_report_are_named(trained, tmp_path, names, baseline, out, expected):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=expected):
        report(trained, *names, out=tmp_path / out, baseline=baseline)
    assert not (tmp_path / "out").exists()


def test_numbers_are_computed_once_and_again_for_other_weights(trained, tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    shutil.copytree(trained / "rope-seed0", folder)
    loaded, real = [], measuring.load_checkpoint
    monkeypatch.setattr(measuring, "load_checkpoint", lambda *given: loaded.append(given) or real(*given))
    corpora = Corpora()
    (folder / "measurements.json").unlink(missing_ok=True)

    first = measured(folder, corpora.of)
    assert len(loaded) == 1
    assert measured(folder, pytest.fail) == first and len(loaded) == 1
    more = measured(folder, corpora.of, YARN)
    assert len(loaded) == 2 and more.evaluated_with["yarn"].loss_by_context != first.loss_by_context
    assert measured(folder, pytest.fail, YARN) == more
    assert measured(trained / "none-seed0", corpora.of, YARN).evaluated_with == {}, "it has no such option"
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(trained / "rope-seed1" / "checkpoints", folder / "checkpoints")
    assert measured(folder, corpora.of).loss_by_context != first.loss_by_context


def without(key):
    """Takes that key out of a JSON file's text, and out of all mappings in it."""
    return lambda text: json.dumps(json.loads(text, object_pairs_hook=lambda all: {k: v for k, v in all if k != key}))


def test_damaged_measurements_are_refused_with_what_helps(trained, tmp_path):
    place = shutil.copytree(trained / "rope-seed0", tmp_path / "rope-seed0")
    report(tmp_path, "rope-seed0", out=place)
    for name, damage, expected in [
        ("costs.json", lambda text: text[: len(text) // 2], "missing, cut short or not JSON .*"),
        ("costs.json", lambda text: "[]", "expected a mapping, got list"),
        ("costs.json", without("costs"), "should be a valid dictionary"),
        ("costs.json", without("decoding"), "rope.decoding: Field required"),
        ("measurements.json", lambda text: text[: len(text) // 2], "missing, cut short or not JSON .*"),
        ("measurements.json", without("attention"), "attention: Field required"),
    ]:
        text = (file := place / name).read_text(encoding="utf-8")
        file.write_text(damage(text), encoding="utf-8")
        with pytest.raises(InputError, match=f"^{file}: {expected}; remove the file, and all is measured again$"):
            report(tmp_path, "rope-seed0", out=place)
        file.write_text(text, encoding="utf-8")


def test_an_entry_without_its_numbers_is_measured_again(trained, tmp_path):
    place = shutil.copytree(trained / "rope-seed0", tmp_path / "rope-seed0")
    first, file = measured(place, Corpora().of), place / "measurements.json"
    file.write_text(without("numbers")(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert measured(place, Corpora().of) == first


def test_losses_are_at_multiples_of_the_context_of_the_comparison(trained, tmp_path):
    """Whatever the run's own, 16: so that one trained at four times the context is in the same table."""
    folder = tmp_path / "kept"
    shutil.copytree(trained / "rope-seed0", folder, ignore=shutil.ignore_patterns("measurements.json"))
    own, other = measured(folder, Corpora().of), measured(folder, Corpora().of, context=4)
    assert [n for n, _ in own.loss_by_context] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [n for n, _ in other.loss_by_context] == [1, 2, 4, 8, 16, 32]
    assert own.loss_by_position[-1][0] == 128 and other.loss_by_position[-1][0] == 32
    assert (own.attention, own.embedding_rms) == (other.attention, other.embedding_rms)
    assert measured(folder, pytest.fail, context=4) == other


def test_a_text_that_has_changed_since_is_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("measurements.json"))
    (tmp_path / "text.txt").write_text("something else " * 300, encoding="utf-8")
    config = tmp_path / "runs" / "rope-seed0" / "config.yaml"
    replace_path(config, trained.parent / "text.txt", tmp_path / "text.txt")
    with pytest.raises(InputError, match="rope-seed0: the text of data.source has changed"):
        commands.report([tmp_path / "runs" / "rope-seed0"], None, tmp_path / "out")
