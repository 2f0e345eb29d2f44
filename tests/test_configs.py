import json
import re
from operator import attrgetter
from pathlib import Path

import pytest
import yaml

from base import InputError
from comparison.design import load_comparison
from configs import TrainConfig, load_config
from model.position import POSITIONS
from model.transformer import Transformer
from settings import FrozenConfig
from tiny import call

CONFIGS = Path(__file__).parent.parent / "configs"


@pytest.fixture
def load(tmp_path):
    def load(text="{}", *overrides, name="some.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, list(overrides))

    return load


@pytest.mark.parametrize(
    ("text", "overrides", "key", "expected"),
    [
        ("train: {steps: 500, batch_size: 7}", ["train.steps=200"], "train.steps", 200),
        ("train: {steps: 500, batch_size: 7}", ["train.steps=200"], "train.batch_size", 7),
        ("train: {steps: 500, batch_size: 7}", ["train.steps=200"], "train.log_every", TrainConfig().log_every),
        ("{}", ["seed=1", "seed=2"], "seed", 2),
        ("model: {position: rope}", ["model.position.base=5000"], "model.position.base", 5000.0),  # rope is a mapping
        ("{}", [], "name", "some"),  # that of the file
        ("name: other", [], "name", "other"),
        ("train: {learning_rate: 1e-4}", [], "train.learning_rate", 1e-4),  # which YAML 1.1 reads as a string
        ("{}", ["train.learning_rate=3e-4"], "train.learning_rate", 3e-4),
        ("{}", ["data.source=folder/a=b==c.txt"], "data.source", "folder/a=b==c.txt"),
    ],
)
def test_command_line_beats_yaml_beats_defaults(load, text, overrides, key, expected):
    assert attrgetter(key)(load(text, *overrides)) == expected


def test_null_means_what_the_description_says(load):
    config = load("train: {batch_size: 12, learning_rate: 0.5, micro_batch_size: null}", "model.hidden_size=96")
    assert config.train.micro_batch_size == 12
    assert config.train.min_learning_rate == 0.05
    assert (config.model.head_dim, config.model.intermediate_size, config.model.num_key_value_heads) == (24, 256, 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sede: 1", ["'sede'", "'seed'"]),
        ("train: {learning_rat: 1}", ["train", "'learning_rat'", "'learning_rate'"]),
        ("data: {tokenizer: {vocabsize: 300}}", ["data.tokenizer", "'vocabsize'", "'vocab_size'"]),
        ("model: {position: {scheme: rope, bas: 5}}", ["model.position", "'bas'", "'base'"]),
        ("train: {zzz: 1}", ["'zzz'", "steps", "batch_size"]),
        ("train: {1: 1}", ["train", "unknown key 1"]),
        ("1: 1", ["unknown key 1"]),
        ("train: {steps: many}", ["train.steps", "'many'", "integer"]),
        ("train: {steps: 2.5}", ["train.steps", "2.5", "integer"]),
        ("train: {steps: 0}", ["train.steps", "0", "greater than 0"]),
        ("train: {learning_rate: fast}", ["train.learning_rate", "'fast'", "number"]),
        ("train: {schedule: linear}", ["train.schedule", "'linear'", "'cosine'", "'wsd'"]),
        ("train: {betas: [0.9, 1.0]}", ["train.betas.1", "1.0", "less than 1"]),
        ("train: {compile: perhaps}", ["train.compile", "'perhaps'", "boolean"]),
        ("train: {eval_every: true}", ["train.eval_every: True: expected a number, not a truth value"]),
        ("model: {num_hidden_layers: yes}", ["model.num_hidden_layers: True: expected a number"]),
        ("train: {weight_decay: off}", ["train.weight_decay: False: expected a number"]),
        ("train: {betas: [no, 0.9]}", ["train.betas: [False, 0.9]: expected a number"]),
        ("model: {position: {every: true}}", ["model.position.every: True: expected a number"]),
        ("train: 5", ["train", "5", "expected a mapping, as in {steps: 5}"]),
        ("model: {position: rop}", ["model.position", "'rop'", *POSITIONS]),
        ("model: {position: {scheme: none, base: 5}}", ["model.position", "'base'"]),
        (
            "model: {position: {scaling: {factor: 4}}}",
            ["model.position.scaling: ", "with rope_type: linear | ntk | yarn"],
        ),
        (
            "model: {position: {scaling: {rope_type: no, factor: 4}}}",
            ["rope_type: linear | ntk", "longrope, got False"],
        ),
        ("model: {position: {scaling: yarn}}", ["model.position.scaling: 'yarn': expected a mapping with rope_type: "]),
        ("model: {position: {scaling: {rope_type: linear}}}", ["model.position.scaling.factor: Field required"]),
        (
            "model: {position: {temperature: {value: 2}}}",
            ["temperature: ", "with kind: log | ssmax | floor | constant"],
        ),
        ("model: {position: {temperature: {kind: log, length: 1}}}", ["model.position.temperature.length: 1: "]),
        ("model: {position: {every: 0}}", ["model.position.every: 0: should be greater than 0"]),
        ("train: {warmup_steps: 0, learning_rate: 1, min_learning_rate: 2}", ["min_learning_rate 2", "rate 1"]),
        ("wandb: {project: me/tiny}", ["wandb.project", "'me/tiny'", r"[^/\\#?%:]"]),
        ("seed: -1", ["seed", "-1"]),
        (f"seed: {2**64}", ["seed", str(2**64)]),
        ("data: {tokenizer: {vocab_size: 256}}", ["data.tokenizer.vocab_size", "256", "257"]),
        ("data: {tokenizer: {vocab_size: 1048577}}", ["data.tokenizer.vocab_size: 1048577", "equal to 1048576"]),
        ("data: {tokenizer: {folder: ''}}", ["data.tokenizer.folder: ''", "at least 1 character"]),
    ],
)
def test_what_is_refused_is_named_with_its_value_and_what_is_allowed(load, text, expected):
    with pytest.raises(InputError) as caught:
        load(text)
    message = str(caught.value)
    assert "some.yaml" in message and "\n" not in message
    assert not [part for part in expected if part not in message], message


@pytest.mark.parametrize("name", ["../x", "..", ".", ".hidden", "a/b", "/tmp/x", "", "a b", "-x", "x\\\\y", '"x\\n"'])
def test_a_run_cannot_leave_runs_dir(load, name):
    with pytest.raises(InputError, match="name"):
        load("{}", f"name={name}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"- a\n- b", "list"),
        (b"", "NoneType"),
        (b"seed: 1\nname: \xff", "not UTF-8 at byte 14"),
        (b"a: [1", "not YAML"),
        (b"a: 2024-13-01", "not YAML"),
        (b"train: !!bool maybe", "not YAML: a value does not match its type"),
        (b"train: !!python/object/apply:os.getcwd []", "not YAML: .*python/object"),
        (b"seed: 1\ntrain: {}\nseed: 2", "key 'seed' is given twice.*line 3"),
        (b"train: {steps: 5, 'steps': 6}", "key 'steps' is given twice.*line 1"),
        (b'runs_dir: "a\\0b"', "character that is not allowed.*line 1"),
        (b'data: {source: "\\ud800"}', "character that is not allowed.*line 1"),
        (b"train:\n  steps: 010", "010 is octal in YAML; write a decimal without leading zeros.*line 2, column 10"),
        (b"seed: -0_7", "-0_7 is octal in YAML"),
        (b"seed: !!int 010", "010 is octal in YAML"),
        (b"data: {source: 1:30}", "1:30 is base 60 in YAML; .*or quote it as text"),
        (b"train: {learning_rate: 0:00.5}", "0:00.5 is base 60 in YAML"),
        (b"wandb: {tags: [190:20:30]}", "190:20:30 is base 60 in YAML"),
        (b"[" * 100_000, "nested too deeply"),
        (b"#" * 1_000_001, "at most 1,000,000 bytes"),
    ],
)
def test_a_file_that_holds_no_config_is_named(load, text, expected):
    with pytest.raises(InputError, match=f"some.yaml: .*{expected}"):
        load(text)


def bomb(line, first):
    """Each line stands for all of the line before, twice: thirty lines, and a billion values."""
    lines = [f"k0: &k0 {first}", *(f"k{n}: &k{n} " + line.format(f"*k{n - 1}") for n in range(1, 30))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [bomb("[{0}, {0}]", "[x, x]"), bomb("{{a: {0}, b: {0}}}", "{a: x}"), bomb("{{<<: [{0}, {0}]}}", "{a: x}"),
     "wandb: {tags: &a [*a]}", "train: &a {steps: *a}"],
)  # fmt: skip
def test_a_yaml_bomb_is_not_set_off(load, text):
    """Nor is a list that holds itself followed to its end."""
    with pytest.raises(InputError, match="some.yaml: .*at most 10,000 values with aliases"):
        load(text)


def test_aliases_and_merge_keys_work(load):
    config = load("train: &t {steps: 5, warmup_steps: 1}\nwandb: {tags: [&x a, *x]}\ndata: {}", "train.warmup_steps=2")
    assert (config.train.steps, config.train.warmup_steps, config.wandb.tags) == (5, 2, ("a", "a"))
    merged = load("model: {position: &p {base: 500}}\ntrain: {<<: {steps: 5, warmup_steps: 1}, steps: 7}").train
    assert (merged.steps, merged.warmup_steps) == (7, 1), "what stands in the mapping itself goes before what is merged"


NUMBERS = "learning_rate grad_clip weight_decay steps betas".split()


@pytest.mark.parametrize("value", [".nan", "1e999", "1.0e+999", ".inf", "-.inf", ".NaN"])
@pytest.mark.parametrize("key", ["seed", "model.position.base", "data.val_fraction", *(f"train.{n}" for n in NUMBERS)])
def test_numbers_that_are_none_are_refused_by_name(load, key, value):
    *parents, last = key.split(".")
    text = f"{last}: {value}"
    for parent in reversed(parents):
        text = f"{parent}: {{{text}}}"
    named = key.replace(".position.", "(.position)?.*")  # the error of an option names its scheme's mapping
    for arguments in ((text,), ("{}", f"{key}={value}")):
        with pytest.raises(InputError, match=f"some.yaml: {named}"):
            load(*arguments)


@pytest.mark.parametrize(
    ("key", "override"),
    [("rms_norm_eps", "model.rms_norm_eps=1e39"), ("start", "model.position={scheme: fox, start: 1e39}"),
     ("start", "model.position={temperature: {kind: ssmax, start: 1e39}}"),
     ("factor", "model.position={scaling: {rope_type: ntk, factor: 1e39}}"),
     ("base", "model.position.base=1e39"),
     ("scale_base", "model.position={scheme: xpos, scale_base: 1e39}"),
     ("beta_fast", "model.position={scaling: {rope_type: yarn, factor: 2, beta_fast: 1e39}}"),
     ("beta_slow", "model.position={scaling: {rope_type: yarn, factor: 2, beta_slow: 1e-320}}"),
     ("value", "model.position={temperature: {kind: constant, value: 1e39}}"),
     ("long_factor.1", "model.position={scaling: {rope_type: longrope, factor: 2, long_factor: [1, 1e-320]}}")],
)  # fmt: skip
def test_a_number_that_float32_lacks_is_refused_by_name(load, key, override):
    """Before PyTorch refuses it, or a division by it overflows."""
    bound = r"(less than 10{37,38}|greater than 0\.0{36}1)"
    with pytest.raises(InputError, match=f"some.yaml: model.*{key}: '(1e39|1e-320)': should be {bound}$"):
        load("{}", override)


@pytest.mark.parametrize("key", ["train", "data", "model", "wandb", "data.tokenizer"])
def test_a_list_where_a_mapping_belongs_is_refused_by_name(load, key):
    text = f"{key}: [1]" if "." not in key else "data: {tokenizer: [1]}"
    with pytest.raises(InputError, match=f"some.yaml: {key}: .*expected a mapping$"):
        load(text)
    with pytest.raises(InputError, match=f"{key}.x: expected {key.split('.')[-1]} to be a mapping, got .*1"):
        load(text, f"{key}.x=1")


def test_a_long_value_is_cut_in_the_message(load):
    for text in (f"seed: {'x' * 5000}", f"{'k' * 5000}: 1", f"train: {{steps: {'x' * 5000}}}", f"name: {'n' * 101}"):
        with pytest.raises(InputError) as caught:
            load(text)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("every", [10**4 + 1, [10**4]])
def test_absurd_numbers_of_layers_are_not_counted_through(load, every):
    with pytest.raises(InputError, match="position.every"):
        load("{}", f"model={{num_hidden_layers: {10**4}, position: {{scheme: rope, every: {every}}}}}")


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match="none.yaml: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=f"{re.escape(tmp_path.name)}: Is a directory"):
        load_config(tmp_path)


def test_numbers_that_yaml_reads_as_people_do_are_taken(load):
    """And the others as text, in quotes."""
    texts = {"1_000": 1000, "0x10": 16, "+7": 7, "100": 100, "08": 8, "'010'": 10}
    assert {text: load(f"train: {{steps: {text}, warmup_steps: 0}}").train.steps for text in texts} == texts
    config = load("data: {source: '1:30'}\ntrain: {learning_rate: 0.01, weight_decay: 00.5}\nwandb: {tags: ['010']}")
    assert (config.data.source, config.wandb.tags) == ("1:30", ("010",))
    assert (config.train.learning_rate, config.train.weight_decay) == (0.01, 0.5)
    assert load(yaml.safe_dump(config.model_dump(mode="json"))) == config


@pytest.mark.parametrize("value", ["p", "p" * 128, "p" * 129, "a b", "é.-_~!", *(f"a{c}b" for c in "/\\#?%:")])
@pytest.mark.parametrize(("key", "setting"), [("project", "project"), ("tags", "run_tags")])
def test_what_wandb_refuses_is_refused_with_the_config(load, key, setting, value):
    """wandb itself says so, but only once the run's folder is taken."""
    settings = pytest.importorskip("wandb").Settings
    text = json.dumps({"wandb": {key: value if key == "project" else ["a", value]}})
    given = {setting: value if key == "project" else ("a", value)}
    try:
        settings(**given)
    except Exception:  # pydantic's or wandb's own
        with pytest.raises(InputError, match=f"some.yaml: wandb.{key}"):
            load(text)
    else:
        load(text)


def test_wandb_s_names_are_neither_empty_nor_too_long(load):
    assert load(f"wandb: {{group: {'g' * 128}}}").wandb.group == "g" * 128
    for setting in (f"group: {'g' * 129}", "group: ''", "project: ''", "tags: ['']"):
        with pytest.raises(InputError, match=f"some.yaml: wandb.{setting.split(':')[0]}.*: String should (have|match)"):
            load(f"wandb: {{{setting}}}")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("train.steps", "expected an override of the form dotted.key=value$"),
        ("=5", "expected an override of the form dotted.key=value$"),
        ("train.steps=[1", "the value is not YAML: expected"),
        ("name=2024-13-01", "the value is not YAML: a value does not match its type$"),
        ("train.steps=!!int ''", "the value is not YAML: a value does not match its type$"),
        ("data.source=*.txt", r"the value is not YAML: .*; write a text as data.source='\"…\"'$"),
        (
            "data.source=My #1 novel.txt",
            r"the value is not YAML: a comment begins after ' #'; write a text as data.source=",
        ),
        ("data.text_column=!!binary dGV4dA==", "the value is not YAML: expected no binary"),
        ("wandb.tags=!!set {a: , b: }", "the value is not YAML: expected no set"),
        ("name=\0", "the value is not YAML: unacceptable character"),
        (f"name={'[' * 9999}", "the value is not YAML: maximum recursion depth"),
        ("train.steps=010", "the value is not YAML: 010 is octal in YAML"),
        ("seed=1:30", "the value is not YAML: 1:30 is base 60 in YAML"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_override_is_shown(load, override, reason):
    with pytest.raises(InputError, match=f"^{re.escape(repr(override)[:80])}: {reason}"):
        load("{}", override)


def test_every_setting_is_described():
    def all_below(cls):
        return [cls, *(found for below in cls.__subclasses__() for found in all_below(below))]

    ours = [cls for cls in all_below(FrozenConfig) if not cls.__module__.startswith(("test", "conftest"))]
    assert {"Config", "CompareConfig", "Rope.Options", "TokenizerConfig"} <= {cls.__qualname__ for cls in ours}
    fields = {f"{cls.__name__}.{name}": field for cls in ours for name, field in cls.model_fields.items()}
    assert not [name for name, field in fields.items() if not field.description]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_file_loads_and_is_commented(path):
    if "variants" in yaml.safe_load(path.read_text(encoding="utf-8")):
        assert load_comparison(str(path), []).config.name == path.stem
    else:
        assert load_config(path).name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_sizes_in_the_comments_are_those_of_the_models(path):
    """And whoever promises a GPU's figures says whether anyone has seen them."""
    text = path.read_text(encoding="utf-8")
    if said := re.search(r"^model: +# ([\d.]+)M parameters$", text, re.MULTILINE):
        config = load_config(path)
        size = {"char": 66, "bpe": config.data.tokenizer.vocab_size}[config.data.tokenizer.kind]  # tiny Shakespeare's
        model = Transformer(config.model.model_copy(update={"vocab_size": size}), seed=None)
        count, digits = sum(p.numel() for p in model.parameters()) / 1e6, len(said[1].partition(".")[2])
        assert f"{count:.{digits}f}" == said[1]
    assert "GPU" not in text or "estimated" in text or "measured" in text


def test_a_resolved_config_written_as_yaml_is_the_same_config(load, scheme):
    config = load(
        "train: {betas: [0.8, 0.9], grad_clip: null, schedule: wsd}", f"model.position={scheme}", "wandb.tags=[a, b]"
    )
    again = load(yaml.safe_dump(config.model_dump(mode="json")), name="other.yaml")
    assert again == config
    assert type(again.model.position) is type(config.model.position)


def test_the_readme_lists_every_config_key():
    from configs.reference import reference

    assert reference() in (CONFIGS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("program", "load"), [("train", load_config), ("compare", load_comparison)])
def test_the_examples_of_help_can_be_typed(program, load, capsys, monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    assert call(__import__(program), "--help") == 0
    examples = [line.split()[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("  python ")]
    configs = [[word for word in words if word[0] != "-"] for words in examples if words[0] != "--runs"]
    assert len(configs) > 1 and all(load(path, overrides) for path, *overrides in configs)
