"""Whatever the user gets wrong: one line on stderr that names it, exit status 2, nothing written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import compare
import generate
import prepare
import train
from base import input_errors_end_the_program
from tiny import call, config_file, trained

ROOT = Path(__file__).parent.parent
FULL = Path("/dev/full")
LONG = "x" * 300  # no file system has such a name


def refusal(capsys, program, *arguments):
    """The line that a program ends with."""
    capsys.readouterr()
    status = call(program, *arguments)
    captured = capsys.readouterr()
    # a corpus that is tokenized before it proves too short says so first
    lines = [line for line in captured.err.splitlines() if not line.startswith("tokenized ")]
    assert status == 2
    assert captured.out == ""
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    return lines[0]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("train.lerning_rate=1", "train: unknown key 'lerning_rate', did you mean 'learning_rate'?"),
        ("sede=1", "unknown key 'sede', did you mean 'seed'?"),
        ("steps=7", "unknown key 'steps', did you mean 'train.steps'?"),
        ("position=alibi", "unknown key 'position', did you mean 'model.position'?"),
        ("learnign_rate=1", "unknown key 'learnign_rate', did you mean 'train.learning_rate'?"),
        ("train.lr=1", "train: unknown key 'lr', did you mean 'learning_rate'?"),
        ("model.layers=2", "model: unknown key 'layers', did you mean 'num_hidden_layers'?"),
        ("train.nonsense=1", "train: unknown key 'nonsense', known keys: "),
        ("data=my.txt", "data: 'my.txt': expected a mapping, as in {source: my.txt}"),
        ("model=alibi", "model: 'alibi': expected a mapping, as in {position: alibi}"),
        ("train.steps=many", "train.steps: 'many'"),
        ("train.steps", "'train.steps': expected an override of the form dotted.key=value"),
        ("train.steps=7 --resume --overwrite", "--overwrite: not allowed with argument --resume"),
        ("--resum-it", "--resum-it"),
        ("model.num_attention_heads=3", "num_attention_heads 3 must divide hidden_size 16"),
        ("model.num_key_value_heads=3", "num_key_value_heads 3 must divide num_attention_heads 2"),
        ("model.head_dim=5", "model.head_dim must be even, got 5"),
        ("model.head_dim=5 model.position=learned_theta", "model.head_dim must be even, got 5"),
        ("model.hidden_size=15 model.num_attention_heads=3 model.position=sinusoidal", "even model.hidden_size, got"),
        ("model.position=rotary", "'rotary', known: "),
        ("model.vocab_size=100", "model.vocab_size: expected at least the tokenizer's 257, got 100"),
        ("train.device=mps", "train.device: 'mps'"),
        ("data.source=none.txt", "data.source 'none.txt': no such file"),
        ("data.source=empty.txt", "data.source 'empty.txt': no text"),
        ("data.source=latin.txt", "latin.txt: not UTF-8 at byte 4"),
        ("data.source=short.txt", "short.txt has 17 tokens for training and 3 for validation; each needs"),
        ("data.source=long.txt data.val_fraction=0.77", "long.txt has 10 tokens for training and 31 for"),
        ("model.max_position_embeddings=400", "3420 tokens for training and 381 for validation; each needs"),
        ("data.source=~nobody-known/a.txt", "~nobody-known/a.txt: expected a user with a home folder after ~"),
        ("data.cache_dir=~nobody-known", "~nobody-known: expected a user with a home folder after ~"),
        ("data.tokenizer.folder=~nobody-known", "~nobody-known: expected a user with a home folder after ~"),
        ("runs_dir=~nobody-known", "~nobody-known: expected a user with a home folder after ~"),
        (f"data.source={LONG}", f"{LONG}: cannot be read: File name too long"),
        (f"data.source={LONG}/*.txt", f"{LONG}/*.txt: cannot be read: File name too long"),
        (f"data.tokenizer.folder={LONG}", f"{LONG}/config.json: cannot be read: File name too long"),
        (f"runs_dir={LONG}", f"{LONG}/tiny: cannot be read: File name too long"),
        ("runs_dir=short.txt", "short.txt: expected a folder for runs_dir and name, got a file"),
        ("name=../other", "name: '../other'"),
        ("--resume", "holds no run to resume"),
    ],
)
def test_train(tmp_path, capsys, monkeypatch, overrides, expected):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"word\xe9" * 100)
    (tmp_path / "short.txt").write_text("eighteen bytes her", encoding="utf-8")
    (tmp_path / "long.txt").write_text("x" * 39, encoding="utf-8")
    path, before = config_file(tmp_path), contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, train, path, *overrides.split(" "))
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()


def test_text_of_strangers_in_an_error_cannot_steer_the_terminal(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("\x1b[2Jbody\x07,\u202eother\ntext,text\n", encoding="utf-8")
    line = refusal(capsys, train, config_file(tmp_path), f"data.source={tmp_path / 'a.csv'}")
    assert r"got \x1b[2Jbody\x07, \u202eother" in line and line.isprintable()


def test_the_name_of_a_text_cannot_steer_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("data.shards._SECONDS_BETWEEN_LINES", -1)
    (tmp_path / "\x1b[2Ja.txt").write_text("text " * 100)
    assert call(prepare, config_file(tmp_path), rf'data.source="{tmp_path}/\e[2Ja.txt"') == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2 and all(line.isprintable() and r"/\x1b[2Ja.txt: " in line for line in lines)


def test_a_config_that_is_not_there(tmp_path, capsys):
    assert "none.yaml: No such file" in refusal(capsys, train, tmp_path / "none.yaml")
    assert "none.yaml: No such file" in refusal(capsys, compare, tmp_path / "none.yaml")
    assert "CONFIG.yaml" in refusal(capsys, train)


def test_an_unreachable_hub(tmp_path, capsys, monkeypatch):
    from huggingface_hub import HfApi

    def unreachable(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    line = refusal(capsys, train, config_file(tmp_path), "data.source=some/dataset")
    assert "data.source 'some/dataset'" in line and "no route to host" in line
    assert not (tmp_path / "runs").exists()


def test_compare(tmp_path, capsys):
    config_file(tmp_path, "base")
    path = tmp_path / "cmp.yaml"
    text = "{{base: base.yaml, variants: {{a: {{{}}}}}, seeds: [0], baseline: a, runs_dir: {}}}"
    path.write_text(text.format("model.position: rop", json.dumps(str(tmp_path / "runs"))), encoding="utf-8")
    assert "variants.a" in (line := refusal(capsys, compare, path)) and "'rop'" in line
    assert "'train.steps'" in refusal(capsys, compare, path, "train.steps")
    for override, expected in {
        "base=~nobody-known/x": "~nobody-known/x: expected a user with a home folder after ~",
        "runs_dir=~nobody-known": "~nobody-known: expected a user with a home folder after ~",
        f"runs_dir={LONG}": f"{LONG}/cmp/a-seed0/config.yaml: cannot be read: File name too long",
    }.items():
        assert expected in refusal(capsys, compare, path, "variants={a: {}}", override)
    path.write_text(text.format("data.source: none.txt", json.dumps(str(tmp_path / "runs"))), encoding="utf-8")
    capsys.readouterr()
    assert call(compare, path) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: data.source 'none.txt'")
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a char tokenizer."""
    return trained(tmp_path_factory.mktemp("run"), "data.tokenizer.kind=char", "train.steps=2").folder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--temperature=-0.1", "--temperature: expected a number of 0 or more, got '-0.1'"),
        ("--temperature=nan", "--temperature: expected a number of 0 or more, got 'nan'"),
        ("--temperature=inf", "--temperature: expected a number of 0 or more, got 'inf'"),
        ("--temperature=warm", "--temperature: expected a number of 0 or more, got 'warm'"),
        ("--top-p=0", "--top-p: expected a number in (0, 1], got '0'"),
        ("--top-p=1.01", "--top-p: expected a number in (0, 1], got '1.01'"),
        ("--top-p=nan", "--top-p: expected a number in (0, 1], got 'nan'"),
        ("--top-k=-1", "--top-k: expected a whole number of 0 or more, got '-1'"),
        ("--top-k=2.5", "--top-k: expected a whole number of 0 or more, got '2.5'"),
        ("--min-p=1.01", "--min-p: expected a number in [0, 1], got '1.01'"),
        (
            "--rope-scaling=longrope:4",
            "expected METHOD:FACTOR, such as yarn:4, with linear, ntk, yarn, llama3, got 'longrope:4'",
        ),
        ("--repetition-penalty=0", "--repetition-penalty: expected a number from 1e-30 to 1e30, got '0'"),
        ("--repetition-penalty=1e-45", "--repetition-penalty: expected a number from 1e-30 to 1e30, got '1e-45'"),
        ("--stop=", "--stop: expected a text, got ''"),
        ("--overflow=wrap", "--overflow: invalid choice: 'wrap'"),
        ("--prompts-file=none.txt", "--prompts-file: none.txt cannot be read: No such file"),
        ("--chat", "has no chat template, neither chat_template.jinja nor in tokenizer_config.json"),
        ("--max-new-tokens=0", "--max-new-tokens: expected a whole number of 1 or more, got '0'"),
        ("--num-samples=0", "--num-samples: expected a whole number of 1 or more, got '0'"),
        ("--seed=-1", "--seed: expected a whole number of 0 or more, below 2^63, got '-1'"),
        (f"--seed={2**64}", "--seed"),
        ("--promt=x", "--promt=x"),
        ("--prompt=the\u00e9", r"no token for '\xe9'"),
    ],
)
def test_generate(run, capsys, arguments, expected):
    assert expected in refusal(capsys, generate, run, arguments)


def test_a_folder_that_is_no_run(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "none"):
        assert f"{folder}: expected a run folder" in refusal(capsys, generate, folder, "--prompt", "x")
    for program, arguments in [
        (generate, [LONG]),
        (generate, [LONG, "--checkpoint=best"]),
        (compare, ["--runs", LONG]),
    ]:
        assert f"error: {LONG}/" in (line := refusal(capsys, program, *arguments))
        # Some Pythons find that out while looking for files, others with the first.
        assert "File name too long" in line


def test_an_empty_prompt_where_no_token_can_begin(run, tmp_path, capsys):
    copy = shutil.copytree(run / "checkpoints" / "step_000002", tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "bos_token_id": None}))
    (copy / "tokenizer_config.json").unlink()
    assert "--prompt" in refusal(capsys, generate, copy)
    assert call(generate, copy, "--prompt", "the", "--max-new-tokens", 1) == 0


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("kept", [0, 0.5, None])
def test_a_checkpoint_cut_short_or_without_a_file(run, tmp_path, capsys, name, kept):
    copy = shutil.copytree(run / "checkpoints" / "step_000002", tmp_path / "copy")
    content = (copy / name).read_bytes()
    (copy / name).unlink()
    if kept is not None:
        (copy / name).write_bytes(content[: int(kept * len(content))])
    assert name in refusal(capsys, generate, copy, "--prompt", "the")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "trainer.pt", "config.json", "../../corpus.json", "../../config.yaml"]
)
def test_a_run_with_a_file_cut_short_is_not_resumed(run, tmp_path, capsys, name):
    copy = shutil.copytree(run, tmp_path / "copy")
    file = (copy / "checkpoints" / "step_000002" / name).resolve()
    content = file.read_bytes()
    # half a YAML file may be a whole one, by the lengths of the paths in it: cut within a key, it is none
    file.write_bytes(content[: content.index(b"batch_size") + 5 if name.endswith(".yaml") else len(content) // 2])
    arguments = ["data.tokenizer.kind=char", "train.steps=2", f"runs_dir={tmp_path}", "name=copy"]
    before = contents(copy)
    assert file.name in refusal(capsys, train, run.parent.parent / "tiny.yaml", *arguments, "--resume")
    assert contents(copy) == before


def closed():
    """What Python has in its place then."""


def unread():
    """Its reader has stopped."""
    read, write = os.pipe()
    os.close(read)
    return open(write, "w", buffering=1)


def full():
    if not FULL.exists():
        pytest.skip("the system has no such device")
    return FULL.open("w", buffering=1)


@pytest.mark.parametrize(
    ("stream", "opened"),
    [
        *((name, closed) for name in ("stdin", "stdout", "stderr")),
        ("stdout", unread),
        ("stderr", unread),
        ("stderr", full),
    ],
)
def test_a_program_with_a_closed_or_unread_stream_does_its_work(run, tmp_path, capsys, monkeypatch, stream, opened):
    path, out = config_file(tmp_path), tmp_path / "out"
    for program, arguments, status in [
        (train, [path, "train.steps=2"], 0),
        (generate, [run, "--prompt=-" if stream == "stdin" else "--prompt=the", "--max-new-tokens=1", "--stats"], 0),
        (compare, ["--runs", run, "--out", out], 0),
        (train, [path], 2),
    ]:
        monkeypatch.setattr(sys, stream, opened())
        assert call(program, *arguments) == status
    assert (tmp_path / "runs" / "tiny" / "report.html").is_file() and (out / "report.html").is_file()
    assert "error" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: expected a number of processes, as torchrun sets it, got 'two'"),
        ({"WORLD_SIZE": "0"}, "got '0'"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE 2: expected RANK beside it"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "a"}, "expected MASTER_PORT beside it"),
        ({"WORLD_SIZE": ""}, None),
    ],
)
def test_an_environment_that_is_not_torchrun_s_is_named(tmp_path, capsys, monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if expected is None:
        assert call(train, config_file(tmp_path), "--print-config") == 0
    else:
        assert expected in refusal(capsys, train, config_file(tmp_path), "--print-config")


def test_a_pipe_that_is_not_stdout_does_not_end_a_program_as_if_done():
    """Such as that to a tracker's own process."""
    with pytest.raises(BrokenPipeError), input_errors_end_the_program():
        raise BrokenPipeError


@pytest.mark.skipif(not FULL.exists(), reason="the system has no such device")
def test_a_full_disk_behind_stdout_is_named(run, tmp_path, capsys, monkeypatch):
    for program, arguments in [
        (train, [config_file(tmp_path), "--print-config"]),
        (generate, [run, "--max-new-tokens=1"]),
        (generate, [run, "--max-new-tokens=1", "--json"]),
        (compare, ["--runs", run, "--out", tmp_path / "out"]),
    ]:
        monkeypatch.setattr(sys, "stdout", FULL.open("w"))
        assert call(program, *arguments) == 2
        assert capsys.readouterr().err.endswith("error: stdout: cannot be written: No space left on device\n")


@pytest.mark.parametrize("program", ["prepare.py", "train.py", "generate.py", "compare.py"])
def test_a_program_of_its_own_ends_with_status_2(program, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / program, tmp_path / "none"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_each_command_names_the_other_for_a_config_of_its_kind(tmp_path, capsys):
    shipped = Path(train.__file__).parent / "configs"
    assert call(train, shipped / "compare.yaml") == 2
    assert (
        f"a comparison, expected a training config: python compare.py {shipped / 'compare.yaml'}"
        in capsys.readouterr().err
    )
    assert call(compare, shipped / "quickstart.yaml") == 2
    assert (
        f"a training config, expected a comparison: python train.py {shipped / 'quickstart.yaml'}"
        in capsys.readouterr().err
    )
