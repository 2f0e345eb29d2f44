"""What tells of a run beside its metrics: Weights & Biases, and the versions that made it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from configs import WandbConfig
from tiny import config_file, names, rows, run_config, train_until, trained
from training import versions as versions_module
from training.loop import train
from training.tracking import track_report

ROOT = Path(__file__).parent.parent


def test_without_wandb_it_is_never_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # any import of it fails
    trained(tmp_path)


class FakeWandb:
    """Records what it is asked for; refuses to go online, or to rewind there, if told so."""

    class Error(Exception):
        pass

    Settings = SimpleNamespace
    id, starting_step = "abc123", 0
    has_login = has_network = rewinds = True

    def __init__(self):
        self.inits, self.logged, self.finished = [], [], []

    def login(self, prompt, verify):
        assert not prompt and not verify, "neither a question nor the network"
        return self.has_login

    def init(self, **settings):
        self.inits.append(settings)
        if not self.has_network and settings["mode"] == "online":
            raise self.Error("no network")
        if not self.rewinds and "resume_from" in settings:
            raise self.Error("cannot\nrewind")
        return self

    def Table(self, columns, data):
        return columns, data

    def Html(self, text, inject):
        assert not inject, "it would change the page"
        return text

    def log(self, row, step=None):
        self.logged.append({**row, "step": step})

    def finish(self, exit_code=0):
        self.finished.append(exit_code)


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def warnings(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]


def test_wandb_gets_the_rows_of_metrics_and_the_config(tmp_path, wandb):
    config = trained(tmp_path, "wandb.mode=online", "wandb.project=p", "wandb.group=g", "wandb.tags=[a, b]")
    lines = (config.folder / "metrics.jsonl").read_text().splitlines()
    assert wandb.logged == [json.loads(line) for line in lines]
    (settings,) = wandb.inits
    asked = {key: settings[key] for key in ("mode", "project", "group", "tags")}
    assert asked == {"mode": "online", "project": "p", "group": "g", "tags": ("a", "b")}
    assert (settings["name"], Path(settings["dir"])) == ("tiny", config.folder)
    assert settings["config"]["model"]["vocab_size"] == 257
    assert wandb.finished == [0]


def test_wandb_gets_each_drift_as_a_number(tmp_path, wandb):
    """Of lists it draws nothing."""
    position = "model.position={scheme: learned_theta, per_layer: true}"
    config = trained(tmp_path, "wandb.mode=offline", position, "train.steps=3")
    for sent, row in zip(wandb.logged, rows(config.folder), strict=True):
        drifts = {f"theta_drift/0/{i}": value for i, value in enumerate(row.pop("theta_drift", [[]])[0])}
        assert sent.items() >= {**row, **drifts}.items() and "theta_drift" not in sent
    assert len(drifts) == 0 and "theta_drift/0/3" in wandb.logged[0]


def test_a_resumed_run_goes_on_in_its_wandb_run(tmp_path, wandb):
    """From before the step that it goes on after, whose rows are sent once more: none is missing, none comes twice."""
    config = run_config(tmp_path, "wandb.mode=online", "train.checkpoint_every=2", "train.eval_every=2")
    train_until(4, config)
    assert wandb.finished == [1] and not {"id", "resume", "resume_from"} & wandb.inits[0].keys()
    wandb.logged = [row for row in wandb.logged if row["step"] < 2]
    train(config, resume=True)
    assert [settings.get("resume_from") for settings in wandb.inits] == [None, "abc123?_step=1"]
    assert [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in wandb.logged] == rows(config.folder)


def test_where_wandb_cannot_rewind_the_rows_are_added(tmp_path, wandb, capsys):
    wandb.rewinds = False
    config = run_config(tmp_path, "wandb.mode=online", "train.checkpoint_every=2")
    train_until(4, config)
    wandb.starting_step = 4
    capsys.readouterr(), wandb.logged.clear()
    train(config, resume=True)
    assert (wandb.inits[-1]["id"], wandb.inits[-1]["resume"]) == ("abc123", "allow")
    assert [row["step"] for row in wandb.logged] == [4, 5, 6, 6], "it has steps up to 3, and takes no second one"
    assert warnings(capsys) == [
        "warning: wandb could not rewind run abc123 online (cannot rewind); next: add to run abc123 online"
    ]


def test_a_wandb_that_is_not_installed_is_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)  # any import of it fails
    trained(tmp_path, "wandb.mode=offline")
    train(run_config(tmp_path, "wandb.mode=online", "train.steps=8"), resume=True)
    assert warnings(capsys) == 2 * ["warning: wandb is not installed; going on without it"]


def test_a_damaged_id_is_none_that_wandb_knows(tmp_path, wandb, capsys):
    config = trained(tmp_path, "wandb.mode=offline")
    (config.folder / "wandb_id").write_bytes(b"\xff\xfe")
    train(run_config(tmp_path, "wandb.mode=offline", "train.steps=8"), resume=True)
    assert wandb.finished == [0, 0]


def test_a_wandb_that_refuses_all_is_a_warning(tmp_path, wandb, capsys):
    wandb.init = mock.Mock(side_effect=wandb.Error("not today"))
    assert rows(trained(tmp_path, "wandb.mode=offline").folder)[-1]["step"] == 6
    (warning,) = warnings(capsys)
    assert warning.endswith("could not start a run offline (not today); next: continue without it")


@pytest.mark.parametrize("sent", ["log", "finish"])
def test_a_wandb_that_ends_before_the_run_is_a_warning(tmp_path, wandb, capsys, sent):
    """Its process gets the signals of a job, too; the run stops with a checkpoint, or comes to its end."""
    setattr(wandb, sent, lost := mock.Mock(side_effect=ConnectionResetError("Connection lost")))
    config = trained(tmp_path, "wandb.mode=offline")
    assert rows(config.folder)[-1]["step"] == 6 and names(config.folder / "checkpoints") == ["step_000006"]
    assert warnings(capsys) == ["warning: wandb has ended (ConnectionResetError); going on without it"]
    assert lost.call_count == 1


@pytest.mark.parametrize("missing, modes", [("has_login", ["offline"]), ("has_network", ["online", "offline"])])
def test_wandb_without_login_or_network_goes_on_offline(tmp_path, wandb, capsys, missing, modes):
    """With a warning, and asks for no login: wandb's own menu would block a run in a terminal."""
    setattr(wandb, missing, False)
    trained(tmp_path, "wandb.mode=online")
    assert [settings["mode"] for settings in wandb.inits] == modes
    assert all(settings["settings"].init_timeout <= 30 for settings in wandb.inits)
    (warning,) = warnings(capsys)
    assert "offline" in warning


TABLES = [SimpleNamespace(title="Losses", header=["variant", "loss"], rows=[["rope", "1.0"], ["none", "2.0"]])]


@pytest.fixture
def reported(tmp_path):
    """The folder of a comparison."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("report.html", "loss.svg", "report.md"):
        (folder / name).write_text(f"<p>{name} ±</p>", encoding="utf-8")
    return folder


def test_wandb_gets_tables_page_and_pictures_of_a_comparison_in_its_group(reported, wandb):
    """Once: a report made again goes to the same run."""
    track_report(reported, WandbConfig(), TABLES)
    assert not wandb.inits
    track_report(reported, WandbConfig(mode="online", project="p"), TABLES)
    track_report(reported, WandbConfig(mode="online", group="g"), TABLES)
    asked = [[each.get(key) for key in ("name", "project", "group", "id", "resume")] for each in wandb.inits]
    assert asked == [["mine", "p", "mine", None, None], ["mine", "whereabouts", "g", "abc123", "allow"]]
    pages = {name: f"<p>{name} ±</p>" for name in ("report.html", "loss.svg")}
    table = (["variant", "loss"], [["rope", "1.0"], ["none", "2.0"]])
    assert wandb.logged == [{"Losses": table, **pages, "step": None}] * 2
    assert wandb.finished == [0, 0]


def test_a_report_without_wandb_installed_is_a_warning(reported, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    track_report(reported, WandbConfig(mode="offline"), [])
    assert warnings(capsys) == ["warning: wandb is not installed; going on without it"]


def test_a_report_that_wandb_refuses_is_a_warning(reported, wandb, capsys):
    wandb.init = mock.Mock(side_effect=wandb.Error("not today"))
    track_report(reported, WandbConfig(mode="offline"), TABLES)
    assert warnings(capsys)[0].endswith("could not log the report offline (not today); next: continue without it")


def test_the_real_wandb_offline_takes_a_report(reported, tmp_path):
    """A process of its own: wandb keeps a service alive."""
    code = """
import sys; from pathlib import Path; from types import SimpleNamespace
from configs import WandbConfig; from training.tracking import track_report
table = SimpleNamespace(title="Losses", header=["variant", "loss"], rows=[["rope", "1.0"]])
track_report(Path(sys.argv[1]), WandbConfig(mode="offline"), [table])"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, reported]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    (media,) = reported.glob("wandb/offline-run-*/files/media")
    pages = {path.read_text(encoding="utf-8") for path in media.glob("html/*.html")}
    assert pages == {"<p>report.html ±</p>", "<p>loss.svg ±</p>"}
    (table,) = media.glob("table/*.json")
    assert json.loads(table.read_text())["data"] == [["rope", "1.0"]]


def test_the_real_wandb_offline_writes_inside_the_run_folder(tmp_path):
    """A process of its own, as a user starts it."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(home), "HTTPS_PROXY": "http://127.0.0.1:9", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "train.py", config_file(tmp_path), "wandb.mode=online"]
    process = dict(cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    done = subprocess.run([*command, "train.steps=2"], **process)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith(("wandb", "warning"))]
    assert said == ["warning: no wandb login found; logging offline"]
    run = tmp_path / "runs" / "tiny"
    (log,) = run.glob("wandb/offline-run-*/*.wandb")
    assert names(tmp_path) == ["cache", "home", "runs", "text.txt", "tiny.yaml"]
    again = subprocess.run([*command, "train.steps=3", "--resume"], **process)
    assert again.returncode == 0 and "WARNING" not in again.stderr, again.stderr
    logs = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(logs) == 2 and {path.name for path in logs} == {f"run-{(run / 'wandb_id').read_text()}.wandb"}
    assert log in logs


def test_a_run_folder_tells_what_made_it(tmp_path, monkeypatch):
    """And what went on with it, from which step."""
    config = trained(tmp_path)
    file = config.folder / "versions.json"
    first = json.loads(file.read_text())["0"]
    assert first["torch"] == torch.__version__ and first["python"] == sys.version.split()[0]
    train(run_config(tmp_path, "train.steps=7"), resume=True)
    assert json.loads(file.read_text()) == {"0": first}
    newer = {**first, "torch": "9.9"}
    monkeypatch.setattr("training.run.versions", lambda: newer)
    train(run_config(tmp_path, "train.steps=8"), resume=True)
    assert json.loads(file.read_text()) == {"0": first, "7": newer}
    file.unlink()  # as in folders of before
    train(run_config(tmp_path, "train.steps=9"), resume=True)
    assert json.loads(file.read_text()) == {"8": newer}


@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
def test_the_commit_is_that_of_this_checkout_or_none(tmp_path, monkeypatch):
    """Not that of a checkout around it, as where a zip is unpacked inside one, nor of one that the shell names."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(folder, *arguments):
        who = ["-c", "user.name=x", "-c", "user.email=x"]
        done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    outer, inner = tmp_path, tmp_path / "inner"
    inner.mkdir()
    git(outer, "init"), git(outer, "commit", "--allow-empty", "-m", "outer")
    monkeypatch.setattr(versions_module, "ROOT", inner)
    found = versions_module.versions.__wrapped__
    assert "whereabouts" not in found()
    git(inner, "init"), (inner / "file").touch(), git(inner, "add", "file"), git(inner, "commit", "-m", "inner")
    commit = git(inner, "rev-parse", "--short", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
    assert found()["whereabouts"] == commit
    (inner / "file").write_text("changed")
    assert found()["whereabouts"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert "whereabouts" not in found()
