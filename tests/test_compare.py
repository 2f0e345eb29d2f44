import io
import json
import math
import re
import shutil
import statistics
import sys
from contextlib import nullcontext
from hashlib import sha256
from xml.etree import ElementTree

import pytest
import torch
import yaml

import compare as program
from base import InputError
from browser import BROWSER, check_layout, look
from comparison import commands
from comparison.commands import compare
from comparison.design import load_comparison
from comparison.inference import Spread
from comparison.results import Point
from comparison.schedule import train_all
from comparison.tables import tables
from comparison.tuning import next_runs, rate_beyond
from made_up import results, run
from model.position import POSITIONS
from tiny import Stopped, before_step, call, config_file, replace_path, rows, weights
from training import loop
from training.loop import Trainer
from training.versions import versions


def comparison_file(folder, **changes):
    """Two variants, two seeds, four steps; the base beside it."""
    config_file(folder, "base")
    path = folder / "cmp.yaml"
    values = {
        "runs_dir": str(folder / "runs"),
        "base": "base.yaml",
        "settings": {"train.steps": 4, "train.eval_every": 2},
        "variants": {"rope": {"model.position": "rope"}, "theta": {"model.position": "learned_theta"}},
        "seeds": [0, 7],
        "baseline": "rope",
    }
    path.write_text(yaml.safe_dump({**values, **changes}, sort_keys=False), encoding="utf-8")
    return path


def run_comparison(folder, *overrides, **changes):
    return compare(load_comparison(str(comparison_file(folder, **changes)), list(overrides)))


def planned(folder, *overrides, **changes):
    """The comparison, and the configs of the reported runs by variant."""
    found = load_comparison(str(comparison_file(folder, **changes)), list(overrides))
    rate = next(iter(found.config.learning_rates), None)
    return found, {v: [run.config for run in found.runs_at_rate(v, rate)] for v in found.config.variants}


def written(folder):
    """results.json, which must be strict JSON."""
    text = (folder / "runs" / "cmp" / "results.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=pytest.fail)


def test_precedence_base_below_settings_below_variant(tmp_path):
    changes = {
        "settings": {"train.steps": 4, "train.batch_size": 3, "model.position.scheme": "rope"},
        "variants": {"a": {}, "b": {"train.batch_size": 2, "model.position.base": 500}},
        "baseline": "a",
    }
    (a, a7), (b, _) = planned(tmp_path, **changes)[1].values()
    assert (a.train.steps, a.train.batch_size, a.train.learning_rate) == (4, 3, 0.01)
    assert (b.train.steps, b.train.batch_size, b.model.position.base) == (4, 2, 500)
    assert (a.seed, a7.seed, a.name, a7.name) == (0, 7, "a-seed0", "a-seed7")
    assert a.folder == tmp_path / "runs" / "cmp" / "a-seed0"


def test_a_section_adds_to_the_base_and_does_not_replace_it(tmp_path):
    """`variants.b.model.position=none` would otherwise silently train b at the default width, beside narrower ones."""
    changes = {"settings": {"train": {"steps": 4}, "data": {"tokenizer": {"vocab_size": 300}}}}
    _, runs = planned(tmp_path, "variants.theta.model.position=none", **changes)
    rope, theta = (runs[variant][0] for variant in ("rope", "theta"))
    assert (theta.model.position.scheme, theta.model.hidden_size) == ("none", rope.model.hidden_size) == ("none", 16)
    assert (theta.train.steps, theta.train.batch_size) == (4, 4)
    assert (theta.data.tokenizer.kind, theta.data.tokenizer.vocab_size) == ("byte", 300)
    assert theta.data.source == str(tmp_path / "text.txt")


def test_command_line_overrides_reach_the_comparison_or_all_its_runs(tmp_path):
    comparison, runs = planned(tmp_path, "seeds=[3]", "train.steps=9", "name=other", "variants.theta={}")
    assert [config.seed for config in runs["rope"]] == [3]
    assert runs["rope"][0].train.steps == 9
    assert comparison.config.folder == tmp_path / "runs" / "other"
    assert runs["theta"][0].model.position.scheme == "rope"


def test_each_learning_rate_has_runs_of_its_own_name(tmp_path):
    """Those of ordinary rates keep it, or finished runs would not be found."""
    rates = [1e-3, 3e-5, 2.0, 1e16, 1e-16, 1.5e22, 1.7976931348623157e308, 5e-324]
    found, _ = planned(tmp_path, learning_rates=rates, tuning_seeds=[9])
    configs = [run.config for run in found.runs_at_rates("rope", rates)]
    names = [config.name for config in configs]
    assert [config.train.learning_rate for config in configs] == rates and len(set(names)) == len(rates)
    assert names[:4] == ["rope-lr0.001-seed9", "rope-lr3e-05-seed9", "rope-lr2.0-seed9", "rope-lr1e16-seed9"]


def test_rates_are_chosen_on_one_half_of_the_text_and_reported_on_the_other(tmp_path):
    found, runs = planned(tmp_path, learning_rates=[1e-3, 1e-2], tuning_seeds=[9], extra_seeds={"theta": [1]})
    tuning = [run.config for run in found.runs_at_rates("rope", [1e-3, 1e-2])]
    assert [(each.seed, each.data.val_part) for each in tuning] == [(9, "tuning")] * 2
    assert {variant: [(each.seed, each.data.val_part) for each in some] for variant, some in runs.items()} == {
        "rope": [(0, "reporting"), (7, "reporting")],
        "theta": [(0, "reporting"), (7, "reporting"), (1, "reporting")],
    }
    assert {each.data.val_part for each in planned(tmp_path)[1]["rope"]} == {"all"}, "where nothing was chosen"


@pytest.mark.parametrize(
    ("rates", "best", "expected"),
    [
        ([1e-3, 2e-3], 1e-3, 5e-4),
        ([1e-3, 2e-3], 2e-3, 4e-3),
        ([1e-3, 2e-3, 8e-3], 2e-3, None),
        ([1e-3, 2e-3, 8e-3], 8e-3, 0.032),
        ([1e-3, 3e-3], 1e-3, 0.000333),
        ([1e-3, 3e-3], None, 0.000333),  # all diverged
        ([0.003, 0.003001], 0.003, None),  # beyond by less than three digits tell
    ],
)
def test_a_best_rate_at_the_edge_asks_for_one_beyond(rates, best, expected):
    assert rate_beyond(rates, best) == expected


def test_a_condition_has_the_comparison_s_settings_and_its_own(tmp_path):
    conditions = {
        "short": {"settings": {"train.steps": 2}},
        "wide": {"settings": {"model": {"hidden_size": 32}}, "variants": ["rope"]},
    }
    found, _ = planned(tmp_path, conditions=conditions)
    short, wide = found.parts().values()
    (one, _), (other, _) = ([run.config for run in part.runs_at_rate("rope", None)] for part in (short, wide))
    assert (one.train.steps, one.model.hidden_size, one.train.eval_every) == (2, 16, 2)
    assert (other.train.steps, other.model.hidden_size, list(wide.config.variants)) == (4, 32, ["rope"])
    assert one.folder == tmp_path / "runs" / "cmp" / "short" / "rope-seed0"


def test_the_runs_of_a_comparison_are_one_group_at_wandb(tmp_path):
    conditions = {"a": {}, "b": {}}
    found, _ = planned(tmp_path, "wandb.mode=offline", conditions=conditions)
    for part in found.parts().values():
        run = part.runs_at_rate("rope", None)[0]
        assert run.config.wandb.group == "cmp" and 'wandb.group="cmp"' in run.arguments
    found, _ = planned(tmp_path, "wandb.mode=offline", "wandb.group=mine")
    assert found.runs_at_rate("rope", None)[0].config.wandb.group == "mine"


WILD = {"train.learning_rate": 1e38, "train.min_learning_rate": 1e38}
ADAMW = {"train.steps": 4, "train.eval_every": 2, "train.optimizer": "adamw"}
# the second is best, at no edge
FEW = {"learning_rates": [1e-3, 0.1, 1e15], "tuning_seeds": [9], "seeds": [0], "settings": {**ADAMW, "train.steps": 2}}
RATES = {"learning_rates": [1e-3, 1e-2], "tuning_seeds": [9]}


@pytest.mark.parametrize(
    ("changes", "overrides", "expected"),
    [
        ({"baseline": "rop"}, [], "baseline: expected one of rope, theta, got 'rop'"),
        ({"seeds": [1, 1]}, [], "seeds: expected no value twice, got"),
        ({"seeds": []}, [], "seeds"),
        ({"variants": {}}, [], "variants"),
        ({"variants": {"../x": {}}, "baseline": "../x"}, [], "variants"),
        ({"sedes": [1]}, [], "'sedes'.*'seeds'"),
        ({"settings": 3}, ["train.steps=4"], "settings.*3"),
        ({"settings": {"train.stps": 3}}, [], "variants.rope.*'stps'.*'steps'"),
        ({"variants": {"rope": {"model.positon": "rope"}}}, [], "variants.rope.*'positon'.*'position'"),
        ({"base": "none.yaml"}, [], "none.yaml: No such file"),
        ({"settings": {"seed": 5}}, [], "seed: cannot be set here"),
        ({}, ["seed=5"], "seed: cannot be set here"),
        ({"variants": {"rope": {"name": "x"}}}, [], "name: cannot be set here"),
        ({"learning_rates": [1e-3, 1e-3]}, [], "learning_rates: expected no value twice"),
        ({"learning_rates": [-1]}, [], "learning_rates.*greater than 0"),
        ({"learning_rates": [1e-3], "tuning_seeds": [9]}, [], "learning_rates: expected two or more.*single rate"),
        (
            {"learning_rates": [1e-3, 1]},
            [],
            "learning_rates: expected two or more, and tuning_seeds .* got .*and \\[\\]",
        ),
        ({"tuning_seeds": [9]}, [], "learning_rates: expected two or more"),
        (RATES, ["train.learning_rate=1"], "train.learning_rate: cannot be set here"),
        (RATES, ["data.val_part=all"], "data.val_part: cannot be set here"),
        ({**RATES, "tuning_seeds": [7]}, [], "tuning_seeds: expected other seeds than those reported, got 7"),
        ({**RATES, "extra_seeds": {"rope": [9]}}, [], "tuning_seeds: expected other seeds than those reported, got 9"),
        ({"extra_seeds": {"rop": [9]}}, [], "extra_seeds: expected one of rope, theta, got 'rop'"),
        ({"extra_seeds": {"rope": [7]}}, [], "extra_seeds.rope: expected no value twice"),
        ({"equivalence_margin": 0}, [], "equivalence_margin"),
        ({"conditions": {"a": {"variants": ["theta"]}}}, [], "conditions.a.variants: expected 'rope', the baseline"),
        ({"conditions": {"a": {"variants": ["rope", "x"]}}}, [], "conditions.a.variants: expected some of .* got 'x'"),
        ({"conditions": {"a": {"settings": {"train.stps": 3}}}}, [], "'stps'.*'steps'"),
        ({"conditions": {"a": {"train.steps": 3}}}, [], "conditions.a.*train.steps"),
        ({"conditions": {"report.html": {}}}, [], "conditions.report.html: expected another name"),
        ({"settings": {"train.steps": 5, "train": {"steps": 6}}}, [], "train.steps: expected once .*, got it twice"),
        ({}, ["model.position.base=9"], "settings.model.position.base: reaches no run, .* sets model.position$"),
        ({}, ["settings.model.position=alibi"], "settings.model.position: reaches no run"),
        (
            {"conditions": {"a": {"settings": {"model": {"position.base": 9}}, "variants": ["rope"]}}},
            [],
            "settings.model.position.base: reaches no run",
        ),
        (
            {"conditions": {"a": {"settings": {"train.steps": 3}}, "b": {"settings": {"train": {"steps": 6}}}}},
            ["train.steps=9"],
            "settings.train.steps: reaches no run, every run sets train.steps$",
        ),
        (
            {"conditions": {"a": {"settings": {"model.position.base": 3}}}},
            [],
            "conditions.a.settings.model.position.base: reaches no run, every run sets model.position$",
        ),
        ({"base": "b" * 300}, [], "b: cannot be read: File name too long"),
        ({"settings": 3}, ["train.steps=3"], "settings.train.steps: expected settings to be a mapping, got 3"),
        ({"variants": [1]}, ["variants.rope.seed=3"], "variants"),
        ({"conditions": {"a": 3}}, ["conditions.a.settings.train.steps=3"], "conditions"),
        ({"evaluate_with": {"far": {"scaling": {"rope_type": "yarm", "factor": 2}}}}, [], "with.far: no .*yarm"),
        ({"evaluate_with": {"far": {"scalling": 1}}}, [], "evaluate_with.far: no .*scalling"),
        ({"evaluate_with": {"per": {"per_layer": True}}}, [], "evaluate_with.per: no .*needs parameters"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_before_any_run(tmp_path, changes, overrides, expected):
    """A seed among the settings would be silently replaced by those of the comparison."""
    with pytest.raises(InputError, match=expected):
        load_comparison(str(comparison_file(tmp_path, **changes)), overrides)


def test_an_override_within_a_variant_or_the_settings_keeps_what_is_there(tmp_path):
    """Whichever way and in whichever order it was written there; a later key replaces what lies within it."""
    variants = {
        "rope": {},
        "rope.b": {"model": {"position": "rope"}},
        "theta": {"model.position.base": 7, "model.position": "learned_theta"},
        "seven": {"model.position.base": 7, "model": {"position": "rope"}, "train": {"batch_size": 2}},
        "plain": {"model.position.base": 7, "model.position": "rope"},
    }
    changes = {"variants": variants, "settings": {"model": {"position.base": 6}}, "conditions": {"a.b": {}}}
    overrides = ["variants.rope.b.model.position.base=500", "variants.theta.model.position.base=300"]
    overrides += ["variants.plain.model.position=rope", "variants.seven.train={warmup_steps: 1}"]
    overrides += ["conditions.a.b.settings.train.steps=9", "settings.train.eval_every=3"]
    found = load_comparison(str(comparison_file(tmp_path, **changes)), overrides).parts()["a.b"]
    configs = {variant: found.runs_at_rate(variant, None)[0].config for variant in variants}
    schemes = {
        variant: (config.model.position.scheme, config.model.position.base) for variant, config in configs.items()
    }
    expected = {"rope": ("rope", 6), "rope.b": ("rope", 500), "theta": ("learned_theta", 300)}
    assert schemes == {**expected, "seven": ("rope", 7), "plain": ("rope", 10000)}
    assert (configs["seven"].train.batch_size, configs["seven"].train.warmup_steps) == (2, 1)
    assert (configs["rope"].train.steps, configs["rope"].train.eval_every) == (9, 3)


def test_summary_by_hand():
    def measured(seed, loss, far):
        return run(seed, loss, loss_by_context=[(16, loss), (64, far)], position_parameters=8)

    runs = {
        "a": [measured(0, 2.0, 3.0), measured(1, 2.5, 3.5), measured(2, 4.5, 5.5)],
        "b": [measured(0, 2.25, 6.0), measured(1, 2.5, None), measured(2, 5.0, 6.0)],
    }
    found = results(runs, "a")
    summary = found.summary
    assert summary["a"].val_loss == Spread(3.0, pytest.approx(math.sqrt(3.5 / 2)))
    assert summary["b"].val_bits_per_byte.mean == pytest.approx((2.25 + 2.5 + 5) / 6)
    # by seed: 0.25, 0, 0.5; the spread between seeds cancels
    difference = summary["b"].difference
    assert (difference.mean, difference.sd, difference.n) == (0.25, pytest.approx(0.25), 3)
    assert difference.p == difference.p_different == pytest.approx(0.22540333, rel=1e-6)  # scipy: stats.ttest_rel
    assert (summary["a"].difference.mean, summary["a"].difference.p_different) == (0, None)
    assert [point.mean for point in summary["a"].loss_by_context] == [3.0, 4.0]
    assert summary["b"].loss_by_context[1] == Point(None, None, 64, None, None)
    assert [(p.x, p.low, p.high) for p in summary["a"].curve] == [(2000, 3.0, 8.0), (4000, 2.0, 4.5)]
    assert summary["b"].difference_curve[0].mean == 0.5
    assert summary["b"].position_parameters == 8
    assert results({"a": runs["a"][:1]}, "a").summary["a"].val_loss == Spread(2.0, None)

    main, by_context, *_ = [table.markdown().splitlines() for table in tables(found)]
    header, _, a, b, *_ = main
    assert header.count("|") == a.count("|") == b.count("|")
    assert "3.0000 ± 1.3229" in a and "| — |" in a
    assert (
        "+0.2500 ± 0.2500 | -0.3710 to +0.8710 | 0.23 | 0.87 | undecided; about 10 new seeds would do | 0, 1, 2 |" in b
    )
    assert "| 3.250 ± 1.521 | n/a |" in by_context[3]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished comparison: its folder, its table, and per run the initial weights and the batches it saw."""
    folder, seen, real = tmp_path_factory.mktemp("done"), [], loop.optimizer_step

    def begin(trainer):
        seen.append({"weights": {n: p.clone() for n, p in trainer.model.state_dict().items()}, "batches": []})

    def watching(model, optimizer, input_ids, targets, *rest):
        seen[-1]["batches"].append(torch.stack((input_ids, targets)))
        return real(model, optimizer, input_ids, targets, *rest)

    with pytest.MonkeyPatch.context() as patch, before_step(1, begin):
        patch.setattr(loop, "optimizer_step", watching)
        table = run_comparison(folder)
    return folder, table, dict(zip([("rope", 0), ("rope", 7), ("theta", 0), ("theta", 7)], seen))


@pytest.fixture
def again(done, tmp_path):
    """A copy of the finished comparison, with the paths in it set right."""
    folder = tmp_path / "again"
    shutil.copytree(done[0], folder)
    for file in folder.rglob("*.yaml"):
        replace_path(file, done[0], folder)
    return folder


def test_a_text_that_has_moved_since_serves_finished_runs_too(again, monkeypatch):
    """Also where a run has yet to be measured."""
    no_training(monkeypatch)
    (again / "text.txt").rename(again / "moved.txt")
    (again / "text.txt").write_text("something else " * 300)
    (again / "runs" / "cmp" / "rope-seed7" / "measurements.json").unlink()
    text = run_comparison(again, f"data.source={again / 'moved.txt'}")
    assert "| rope |" in text


def test_the_best_rate_is_found_beyond_those_given_and_reported_with_other_seeds(tmp_path, monkeypatch):
    """Also the same models with other options, which only rope's take. Two ways further up than the rates given."""
    changes = {"learning_rates": [1e-5, 1e-4], "tuning_seeds": [9], "seeds": [0]}
    changes["evaluate_with"] = {"yarn": {"scaling": {"rope_type": "yarn", "factor": 4}}}
    text = run_comparison(tmp_path, **changes)
    out = tmp_path / "runs" / "cmp"
    numbers = written(tmp_path)
    tried = {row["learning_rate"]: row["mean"] for row in numbers["sweep"]["rope"]}
    assert list(tried)[:4] == [1e-5, 1e-4, 1e-3, 1e-2] and numbers["widened"] == ["rope", "theta"]
    assert all(loss == rows(out / f"rope-lr{rate}-seed9")[-1]["val_loss"] for rate, loss in tried.items())
    (run,), best = numbers["runs"]["rope"], min(tried, key=tried.get)
    assert (run["learning_rate"], run["seed"], run["config"]["data"]["val_part"]) == (best, 0, "reporting")
    assert {run["config"]["data"]["val_part"] for run in numbers["tuning"]["rope"]} == {"tuning"}
    assert numbers["at_edge"] == [v for v, row in numbers["summary"].items() if row["learning_rate"] == max(tried)]
    assert (out / f"rope-lr{best}-seed0" / "measurements.json").exists()
    assert not (out / f"rope-lr{best}-seed9" / "measurements.json").exists()
    assert "rope + yarn" in text and "theta + yarn" not in text
    no_training(monkeypatch)
    assert run_comparison(tmp_path, **changes) == text


def test_the_command_lists_the_runs_that_can_be_made_now(tmp_path, capsys):
    """Those at the best rate once all rates were tried. One that diverged was, and --resume would try it once more."""
    rates = {"learning_rates": [1e-5, 0.01, 1e15], "tuning_seeds": [9], "seeds": [0], "settings": ADAMW}
    path = comparison_file(tmp_path, **rates, variants={"rope": {}})

    def listed():
        assert call(program, path, "--list") == 0
        return [re.search(r"[^_]name=\W*([\w.-]+)", line)[1] for line in capsys.readouterr().out.splitlines()]

    assert listed() == ["rope-lr1e-05-seed9", "rope-lr0.01-seed9", "rope-lr1000000000000000.0-seed9"]
    runs = next_runs(load_comparison(str(path), []))
    train_all(runs[1:], 1)
    assert listed() == ["rope-lr1e-05-seed9"]
    train_all(runs, 1)
    assert listed() == ["rope-lr0.01-seed0"]
    train_all(next_runs(load_comparison(str(path), [])), 1)
    assert listed() == []


def test_a_rate_below_the_lowest_that_the_config_allows_is_not_tried(tmp_path):
    """Or a comparison would end with an error once its rates were tried, and never have a report."""
    settings = {**ADAMW, "train.min_learning_rate": 1.0}
    changes = {"learning_rates": [1.0, 2.0], "tuning_seeds": [9], "seeds": [0], "variants": {"rope": {}}}
    run_comparison(tmp_path, **changes, settings=settings)
    numbers = written(tmp_path)
    assert [row["learning_rate"] for row in numbers["sweep"]["rope"]] == [1, 2]
    assert (numbers["widened"], numbers["at_edge"]) == ([], ["rope"])


def test_rates_chosen_on_another_text_are_not_taken_over(tmp_path, monkeypatch):
    path = comparison_file(tmp_path, **RATES, seeds=[0], variants={"rope": {}})
    (chosen, part), real = ([], load_comparison(str(path), [])), commands.train_all
    monkeypatch.setattr(commands, "train_all", lambda runs, jobs: chosen.append(runs[0]) or real(runs, jobs))
    with pytest.raises(Stopped), before_step(1, lambda trainer: stop_if(trainer.run.config.seed == 0)):
        compare(part)
    assert len(chosen) > 1
    (tmp_path / "text.txt").write_text("something else " * 300, encoding="utf-8")
    no_training(monkeypatch)
    with pytest.raises(InputError, match="rope-lr0.001-seed9: the text of data.source has changed"):
        compare(part)


def stop_if(wanted):
    if wanted:
        raise Stopped


def test_a_text_without_a_half_to_report_on_is_refused_before_any_run(tmp_path, monkeypatch):
    """Of two documents, both are in one half of all; or a half is shorter than the context."""
    no_training(monkeypatch)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("words " * 300, encoding="utf-8")
    halves = {name: sha256(name.encode() * 60).digest()[8] % 2 for name in "abcdefgh"}
    both = [name * 60 for name, half in halves.items() if half == 0][:2]  # for tuning
    short = [both[0], next(name * 9 for name in "abcdefgh" if sha256(name.encode() * 9).digest()[8] % 2)]
    for documents, expected in (
        (both, "'reporting': the validation text has no document"),
        (short, "10 for validation"),
    ):
        for number, text in enumerate(documents):
            (tmp_path / "text" / f"valid-{number}.txt").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=expected):
            run_comparison(tmp_path, f"data.source={tmp_path / 'text'}", **RATES, seeds=[0])


def test_a_task_whose_answers_are_no_tokens_of_their_own_is_refused_before_any_run(tmp_path, monkeypatch):
    no_training(monkeypatch)
    task = ["data.source=synthetic/induction", "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"]
    with pytest.raises(InputError, match="data.tokenizer: of synthetic/induction .* expected kind char or byte"):
        run_comparison(tmp_path, *task, "data.pack=false")


def test_variants_of_several_texts_are_refused_before_any_run(tmp_path, monkeypatch):
    no_training(monkeypatch)
    (tmp_path / "other.txt").write_text("other words " * 300, encoding="utf-8")
    other = {"rope": {}, "other": {"data.source": str(tmp_path / "other.txt")}}
    expected = (
        "^data: expected one text for all variants, got another for rope-seed0 and other-seed0; conditions compare"
    )
    with pytest.raises(InputError, match=expected):
        run_comparison(tmp_path, variants=other)
    with pytest.raises(InputError, match=expected):
        run_comparison(tmp_path, variants={"rope": {}, "other": {"data.val_fraction": 0.2}})


def test_other_options_are_for_the_conditions_that_have_a_scheme_for_them(tmp_path):
    variants = {"none": {"model.position": "none"}, "rope": {}}
    conditions = {"a": {}, "b": {"variants": ["none"]}}
    yarn = {"yarn": {"scaling": {"rope_type": "yarn", "factor": 4}}}
    changes = {"variants": variants, "baseline": "none", "evaluate_with": yarn}
    load_comparison(str(comparison_file(tmp_path, **changes, conditions=conditions)), [])
    with pytest.raises(InputError, match="evaluate_with.yarn: no variant's scheme accepts it: .*scaling"):
        load_comparison(str(comparison_file(tmp_path, **changes, conditions={"b": conditions["b"]})), [])


def test_all_losses_of_other_tokenizers_are_in_bits_per_byte(tmp_path):
    """Also those that chose the rates."""
    variants = {"byte": {}, "char": {"data.tokenizer.kind": "char"}}
    run_comparison(tmp_path, **FEW, variants=variants, baseline="byte")
    numbers = written(tmp_path)
    for variant, (_, row, _) in numbers["sweep"].items():
        tried = numbers["tuning"][variant][1]
        assert tried["val_loss"] == tried["val_bits_per_byte"] == row["mean"]


def test_a_variant_that_no_rate_suits_leaves_the_others_as_fair_as_they_were(tmp_path):
    """What there is of it was evaluated on the other half. The baseline's ends the comparison in one line."""

    def ruin(trainer):
        if trainer.run.config.name.startswith("alibi"):
            trainer.model.norm.weight.data[0] = float("nan")

    changes = {**FEW, "variants": {"rope": {}, "alibi": {"model.position": "alibi"}}}
    with before_step(1, ruin):
        text = run_comparison(tmp_path, **changes)
        numbers = written(tmp_path)
        assert "All variants of a seed start from the same" in text and "alibi" in numbers["at_edge"]
        assert numbers["differing"]["alibi"]["model.position.scheme"] == "alibi"
        assert "data.val_part" not in numbers["differing"]["alibi"]
        with pytest.raises(InputError, match="baseline 'alibi': all its runs diverged, .*; those that did not: rope"):
            run_comparison(tmp_path, "baseline=alibi", **changes)


def test_conditions_have_a_report_each_and_one_across_them(tmp_path):
    run_comparison(tmp_path, seeds=[0], conditions={"two": {"settings": {"train.steps": 2}}, "four": {}})
    out = tmp_path / "runs" / "cmp"
    losses = [rows(out / name / "rope-seed0")[-1]["val_loss"] for name in ("two", "four")]
    for name, loss in zip(("two", "four"), losses):
        numbers = json.loads((out / name / "results.json").read_text(encoding="utf-8"))
        assert numbers["summary"]["rope"]["val_loss"]["mean"] == loss
    assert (out / "report.html").exists() and (out / "report.md").exists() and losses[0] != losses[1]


def test_a_condition_that_cannot_be_reported_leaves_the_others_theirs(tmp_path, capsys):
    """Its baseline diverged: the next one is trained and reported all the same, and the error says which."""
    settings = {**ADAMW, "train.steps": 1, "train.warmup_steps": 0}
    path = comparison_file(tmp_path, seeds=[0], settings=settings, conditions={"wild": {"settings": WILD}, "tame": {}})
    assert call(program, path) == 2
    out = tmp_path / "runs" / "cmp"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {out / 'wild'}: baseline 'rope': all its runs")
    assert (out / "tame" / "report.html").is_file() and not (out / "report.html").exists()


def test_other_budgets_and_contexts_are_not_compared_in_silence(tmp_path):
    variants = {
        "rope": {},
        "longer": {"train.steps": 6},
        "wider": {"model.max_position_embeddings": 32, "train.batch_size": 2},
    }
    run_comparison(tmp_path, variants=variants, seeds=[0, 1, 2])
    found = {name: row["difference"] for name, row in written(tmp_path)["summary"].items()}
    assert found["longer"]["apart"] == "trained on 384 tokens"
    assert found["wider"]["apart"] == "trained with a context of 32 tokens"
    assert found["rope"]["apart"] is None and found["longer"]["p_different"] is None


def test_any_metric_of_a_scheme_is_reported(tmp_path, monkeypatch):
    """A number, two entries, and two for each of two layers, whose means count."""
    logged = {"heat": 2.0, "speeds": [1.0, 3.0], "depths": [[1.0, 5.0], [3.0, 1.0]], "odd": [[]], "nan": math.nan}
    monkeypatch.setattr(POSITIONS["alibi"], "measured", {name: f"{name} of it" for name in logged})
    monkeypatch.setattr(POSITIONS["alibi"], "metrics", lambda _: logged)
    text = run_comparison(tmp_path, variants={"rope": {}, "alibi": {"model.position": "alibi"}}, seeds=[0])
    summary = written(tmp_path)["summary"]
    found = summary["alibi"]["scheme_metrics"]
    at_end = {name: [(point["x"], point["mean"]) for point in metric["at_end"]] for name, metric in found.items()}
    assert at_end == {"heat": [(0, 2)], "speeds": [(0, 1), (1, 3)], "depths": [(0, 2), (1, 3)], "odd": [], "nan": []}
    assert [(point["x"], point["mean"]) for point in found["depths"]["largest"]] == [(n * 64, 3) for n in (1, 2, 3, 4)]
    assert "| speeds (speeds of it) |" in text and summary["rope"]["scheme_metrics"] == {}


def test_a_scheme_that_was_dropped_is_reported_up_to_there(tmp_path):
    """Other options are those of the model that is left, which has a temperature and no frequencies to scale."""
    until = {"train.position_until": 0.5}
    variants = {"rope": {}, "drope": until, "theta": {**until, "model.position": "learned_theta"}}
    yarn = {"yarn": {"scaling": {"rope_type": "yarn", "factor": 4}}}
    others = {"sharper": {"temperature": {"kind": "constant", "value": 1.2}}, **yarn}
    text = run_comparison(tmp_path, variants=variants, evaluate_with=others, seeds=[0])
    assert "All variants of a seed start from the same shared initial weights" in text
    summary = written(tmp_path)["summary"]
    found = {variant: list(row["evaluated_with"]) for variant, row in summary.items()}
    assert found == {"rope": ["sharper", "yarn"], "drope": ["sharper"], "theta": ["sharper"]}
    row = summary["drope"]
    assert row["evaluated_with"]["sharper"]["loss_by_context"] != row["loss_by_context"]
    assert [point["x"] for point in summary["theta"]["scheme_metrics"]["theta_drift"]["largest"]] == [64, 128]
    assert "| theta_drift (" in text and summary["theta"]["position_parameters"] == 0
    with pytest.raises(InputError, match="evaluate_with.yarn: no variant's scheme accepts it: .*scaling"):
        load_comparison(str(comparison_file(tmp_path, variants={"rope": until}, evaluate_with=yarn)), [])


def test_a_rate_that_diverges_is_a_result_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    """It is reported, not used, and not trained again."""
    changes = {"learning_rates": [1e15, 0.01], "tuning_seeds": [9], "seeds": [0], "settings": ADAMW}
    text = run_comparison(tmp_path, **changes)
    out, said = tmp_path / "runs" / "cmp", capsys.readouterr().err
    assert f"{out / 'rope-lr1000000000000000.0-seed9'} has diverged: step 2: loss nan" in said
    numbers = written(tmp_path)
    assert [row["diverged"] for row in numbers["sweep"]["theta"]][-1] == [9]
    assert numbers["diverged"]["theta"][0]["diverged"].startswith("step 2: loss nan, ")
    no_training(monkeypatch)
    assert run_comparison(tmp_path, **changes) == text


def test_a_seed_that_diverges_is_left_out_of_the_means(tmp_path):
    def ruin(trainer):
        if trainer.run.config.name == "theta-seed7":
            trainer.model.norm.weight.data[0] = float("nan")

    with before_step(3, ruin):
        text = run_comparison(tmp_path)
    numbers = written(tmp_path)["summary"]
    assert (numbers["rope"]["seeds"], numbers["theta"]["seeds"]) == ([0, 7], [0])
    last = rows(tmp_path / "runs" / "cmp" / "theta-seed0")[-1]["val_loss"]
    assert numbers["theta"]["val_loss"] == {"mean": last, "sd": None} and numbers["theta"]["difference"]["n"] == 1
    assert columns(text, 8) == ["0, 7", "0 (7 diverged)"] and "judged by the others, which flatters" in text


def test_a_variant_that_diverges_wholly_is_reported(tmp_path, capsys):
    """Also side by side, and from its folders. Its last step ruins it, which only the evaluation shows."""
    variants = {"wild": WILD, "rope": {}}
    settings = {**ADAMW, "train.steps": 1, "train.warmup_steps": 0}
    changes = {"variants": variants, "seeds": [0], "settings": settings, "baseline": "wild"}
    path = comparison_file(tmp_path, **changes)
    assert call(program, path, "--jobs", 2) == 2
    said = capsys.readouterr().err.splitlines()
    why = "step 1: validation loss nan at train.learning_rate 1e+38"
    out = tmp_path / "runs" / "cmp"
    reason = f"all its runs diverged, the first at {why}; those that did not: rope"
    assert said[-1] == f"error: {out}: baseline 'wild': {reason}"
    assert f"{out / 'wild-seed0'} has diverged: {why}; the other runs continue" in said
    assert call(program, path, "--jobs", 2, "baseline=rope") == 0
    text = capsys.readouterr().out
    assert columns(text, 7) == ["baseline", "diverged"]
    assert "Every run diverged with `wild`: there are no numbers." in text
    assert call(program, "--runs", out / "rope-seed0", out / "wild-seed0", "--out", tmp_path / "report") == 0
    assert columns(capsys.readouterr().out, 7) == ["baseline", "diverged"]


def no_training(monkeypatch):
    monkeypatch.setattr(Trainer, "take_step", lambda _: pytest.fail("trained again"))


def columns(table, number):
    """The cells of a column of the first table in a text, without its header."""
    rows = re.search(r"(^\|.*\n)+", table, re.M)[0].splitlines()
    return [row.split("|")[number].strip() for row in rows[2:]]


def test_the_report_has_a_table_the_numbers_and_pictures(done):
    folder, table, _ = done
    out = folder / "runs" / "cmp"
    names = {f"{variant}-seed{seed}" for variant in ("rope", "theta") for seed in (0, 7)}
    files = {"report.html", "report.md", "results.json", "costs.json", "forest.svg", "loss.svg", "context.svg"}
    assert {path.name for path in out.iterdir()} == names | files
    assert (out / "report.md").read_text(encoding="utf-8") == table
    assert columns(table, 1) == ["rope", "theta"]
    for name in ("loss", "context"):
        assert f"]({name}.svg)" in table
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")

    numbers = written(folder)
    for variant, parameters in (("rope", 0), ("theta", 4)):
        last = [rows(out / f"{variant}-seed{seed}")[-1]["val_loss"] for seed in (0, 7)]
        assert numbers["summary"][variant]["val_loss"]["mean"] == pytest.approx(statistics.fmean(last), rel=1e-12)
        assert numbers["summary"][variant]["position_parameters"] == parameters
        assert f"{statistics.fmean(last):.4f} ± {statistics.stdev(last):.4f}" in table
        assert [tokens for tokens, _ in numbers["runs"][variant][0]["curve"]] == [2 * 64, 4 * 64]
        assert numbers["runs"][variant][1]["config"]["seed"] == 7
    assert numbers["corpus"]["train_bytes"] > numbers["corpus"]["val_bytes"] > 0 and numbers["corpus"]["hash"]
    assert numbers["comparison"]["seeds"] == [0, 7] and numbers["optimizer"] and numbers["hardware"]["cores"]
    assert {"python", "torch", "numpy"} <= numbers["versions"].keys()
    assert numbers["runs"]["rope"][0]["versions"] == json.loads((out / "rope-seed0" / "versions.json").read_text())


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_the_report_of_a_real_comparison_on_a_phone(done, tmp_path):
    seen = look((done[0] / "runs" / "cmp" / "report.html").read_text(encoding="utf-8"), tmp_path, 390, dark=False)
    check_layout(seen, 390)
    assert len(seen["rects"]) >= 8


def test_fairness_is_claimed_where_it_holds(done, tmp_path):
    """Variants with other batches don't see the same ones."""
    assert "All variants of a seed start from the same shared initial weights" in done[1]
    other = {"rope": {}, "theta": {"train.batch_size": 2, "model.position": "learned_theta"}}
    text = run_comparison(tmp_path, variants=other, seeds=[0])
    assert "All variants of a seed start" not in text and "The variants differ in more than positions" in text


def test_runs_of_several_versions_of_the_program_are_told(tmp_path, monkeypatch):
    """As where it was updated after some of the runs."""
    first = run_comparison(tmp_path, seeds=[0])
    monkeypatch.setattr("training.run.versions", lambda: {**versions(), "torch": "9.9", "whereabouts": "abcdef0"})
    both = run_comparison(tmp_path, seeds=[0, 7])
    said = "The runs were made with several versions of torch, whereabouts, which results.json has for each"
    assert "several versions" not in first and said in both


def test_variants_start_from_the_same_weights_and_see_the_same_batches(done):
    seen = done[2]
    for seed in (0, 7):
        one, two = seen["rope", seed], seen["theta", seed]
        assert len(one["batches"]) == 4 and all(map(torch.equal, one["batches"], two["batches"]))
        shared = one["weights"].keys() & two["weights"].keys()
        assert two["weights"].keys() - shared == {"position.log_theta_drift"}
        assert all(torch.equal(one["weights"][name], two["weights"][name]) for name in shared)
    assert not torch.equal(seen["rope", 0]["batches"][0], seen["rope", 7]["batches"][0])
    name = "embed_tokens.weight"
    assert not torch.equal(seen["rope", 0]["weights"][name], seen["rope", 7]["weights"][name])


def test_a_second_call_trains_nothing_and_prints_the_same(done, again, monkeypatch, capsys):
    """The report alone is on stdout."""
    no_training(monkeypatch)
    out = again / "runs" / "cmp"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "results.json"}
    assert call(program, again / "cmp.yaml") == 0
    captured = capsys.readouterr()
    assert captured.out == done[1] + "\n" and f"written to {out}" in captured.err
    assert {path: path.read_bytes() for path in before} == before


def test_the_report_is_printed_where_the_system_writes_no_unicode(done, again, monkeypatch):
    """As on Windows into a file."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", out)
    assert call(program, again / "cmp.yaml") == 0
    assert "√" in done[1] and out.buffer.getvalue().decode() == done[1] + "\n"


def test_an_interrupted_comparison_goes_on_where_it_was(done, tmp_path, monkeypatch):
    """Finished runs stay, the half-finished one continues from its checkpoint, the missing one is trained."""

    def kill(trainer):
        if trainer.run.config.name == "theta-seed0":
            raise Stopped

    with before_step(4, kill), pytest.raises(Stopped):
        run_comparison(tmp_path, "train.checkpoint_every=2")
    real, steps = Trainer.take_step, []
    monkeypatch.setattr(Trainer, "take_step", lambda trainer: steps.append(trainer.step) or real(trainer))
    run_comparison(tmp_path, "train.checkpoint_every=2")
    assert len(steps) == 2 + 4
    for name in ("rope-seed0", "rope-seed7", "theta-seed0", "theta-seed7"):
        one, whole = (folder / "runs" / "cmp" / name for folder in (tmp_path, done[0]))
        assert weights(one) == weights(whole) and rows(one) == rows(whole)


@pytest.mark.parametrize("override", ["train.learning_rate=0.02", "train.steps=5", "variants.theta={}"])
def test_runs_made_with_other_settings_are_not_mixed_in(again, monkeypatch, override):
    no_training(monkeypatch)
    with pytest.raises(InputError, match="was made with other values of (train|model).*remove it or use another name"):
        run_comparison(again, override)


def test_another_seed_is_trained_beside_those_that_are_there(again):
    table = run_comparison(again, "seeds=[0, 7, 8]")
    assert columns(table, 8) == ["0, 7, 8"] * 2
    assert (again / "runs" / "cmp" / "theta-seed8" / "config.yaml").exists()


@pytest.mark.parametrize("seeds", [[1], [1, 2]])
def test_a_text_too_short_for_long_contexts_still_gives_a_table(tmp_path, seeds):
    """Without a loss by context, and results.json is JSON: NaN is none."""
    path = comparison_file(tmp_path, seeds=seeds)
    (tmp_path / "text.txt").write_text("a few words " * 40, encoding="utf-8")  # 48 tokens for validation
    table = compare(load_comparison(str(path), []))
    assert "n/a" in table and ("±" in columns(table, 2)[0]) == (len(seeds) > 1)
    assert dict(written(tmp_path)["runs"]["rope"][0]["loss_by_context"])[64] is None


def test_unpacked_data_has_no_losses_by_context(tmp_path):
    """A window across examples is nothing that such a model was trained on."""
    run_comparison(tmp_path, "data.pack=false", seeds=[0])
    (run,) = written(tmp_path)["runs"]["rope"]
    assert (run["loss_by_context"], run["loss_by_position"], run["attention"]) == (None, None, None)


def test_a_report_is_sent_to_wandb_where_its_runs_are(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(commands, "track_report", lambda *what: sent.append(what))
    monkeypatch.setattr(loop, "tracking", lambda *_: nullcontext(lambda _: None))
    run_comparison(tmp_path, "wandb.mode=offline", seeds=[0], conditions={"a": {}})
    out = tmp_path / "runs" / "cmp"
    assert [(folder, config.group) for folder, config, _ in sent] == [(out / "a", "cmp"), (out, "cmp")]
    assert sent[0][2][0].rows
