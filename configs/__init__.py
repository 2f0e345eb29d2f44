"""Configs: read from YAML, overridden from the command line, checked before anything else happens."""

import re
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from base import InputError
from data.corpus import DataConfig
from model.config import ModelConfig
from settings import FrozenConfig, one_line

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
_MAX_BYTES = 1_000_000  # of a YAML file, and
_MAX_VALUES = 10_000  # values in it with its aliases written out: far more than any config has
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class TrainConfig(FrozenConfig):
    """How a model is trained."""

    steps: PositiveInt = 1000
    """optimizer steps"""
    batch_size: PositiveInt = 16
    """sequences a step, over all processes"""
    micro_batch_size: PositiveInt | None = None
    """sequences that go through the model at once; null: batch_size"""
    optimizer: Literal["adamw", "muon"] = "muon"
    """muon: Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for the rest, at the same learning_rate"""
    learning_rate: PositiveFloat = 1e-3
    """the highest, reached after the warm-up"""
    min_learning_rate: NonNegativeFloat | None = None
    """that of the last step; null: a tenth of learning_rate"""
    warmup_steps: NonNegativeInt = 100
    """steps of linear warm-up; the first has learning_rate / warmup_steps"""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """after the warm-up: cosine decay, or warm-up/stable/decay (Hu et al. 2024) with a linear decay"""
    decay_fraction: Fraction = 0.2
    """share of the steps in which wsd decays"""
    weight_decay: NonNegativeFloat = 0.1
    """of the matrices; norms, embeddings and position parameters have none"""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's decay rates of the gradient's first and second moments"""
    momentum: Fraction = 0.95
    """Muon's decay rate of the gradient's average"""
    grad_clip: PositiveFloat | None = 1.0
    """largest norm of the gradient; null: any"""
    log_every: PositiveInt = 10
    """steps between training rows in metrics.jsonl"""
    eval_every: PositiveInt | None = None
    """steps between evaluations; null: only after the last step"""
    checkpoint_every: PositiveInt | None = None
    """steps between checkpoints; null: only after the last step"""
    keep_checkpoints: PositiveInt = 1
    """newest checkpoints to keep, beside the one of least validation loss, of those with an evaluation at their step"""
    max_skipped_steps: NonNegativeInt = 0
    """steps whose loss or gradient is not finite that may be left out; one more stops the run"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: a GPU where there is one"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of activations, by autocast; weights stay float32. auto: bfloat16 on GPUs that have it, else float32"""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads; null: as many as PyTorch takes, or on --resume as many as before, since the last bits depend on it"""
    compile: bool = False
    """torch.compile the model; falls back to eager mode where no compiler works"""

    @field_validator("micro_batch_size", "min_learning_rate", mode="before")
    @classmethod
    def _value_that_follows(cls, value, info):
        if value is None and info.field_name == "micro_batch_size":
            return info.data.get("batch_size")
        return info.data.get("learning_rate", 0) / 10 if value is None else value

    @model_validator(mode="after")
    def _fits_together(self):
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate {self.min_learning_rate} is above learning_rate {self.learning_rate}")
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} is above steps {self.steps}")
        return self


class WandbConfig(FrozenConfig):
    """Logging to Weights & Biases, beside metrics.jsonl."""

    mode: Literal["disabled", "offline", "online"] = "disabled"
    """online falls back to offline, with a warning, where there is no login or no network"""
    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]+$", max_length=128)] = "whereabouts"
    """project that the run belongs to"""
    group: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """group of runs inside the project"""
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    """labels of the run"""


class Config(FrozenConfig):
    """One training run."""

    name: Name
    """the run's folder inside runs_dir; left out: the name of the config file"""
    seed: Seed = 0
    """of the initial weights and of the order of the data"""
    runs_dir: str = "runs"
    """where run folders are made"""
    data: DataConfig = DataConfig()
    """the corpus"""
    model: ModelConfig = ModelConfig()
    """the model's shape and positional scheme"""
    train: TrainConfig = TrainConfig()
    """the training"""
    wandb: WandbConfig = WandbConfig()
    """optional logging"""

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.runs_dir).expanduser() / self.name


ConfigClass = TypeVar("ConfigClass", bound=FrozenConfig)


def load_config(path: str | Path, overrides: list[str] = (), kind: type[ConfigClass] = Config) -> ConfigClass:
    """The config in a YAML file. Precedence: class defaults < YAML < overrides (`dotted.key=value`, value in YAML).

    Raises InputError with one line that names the file and the key.
    """
    values = read_yaml(path)
    for key, value in map(parse_override, overrides):
        set_dotted(values, key, value)
    return check_config({"name": Path(path).stem, **values}, path, kind)


def parse_override(text: str) -> tuple[str, object]:
    """The dotted key and the value of `dotted.key=value`; the value is YAML and may hold further equals signs."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"{text!r}: an override reads dotted.key=value")
    try:
        return key, _parse_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: what looks like a date and is none
        problem = getattr(error, "problem", None)
        raise InputError(f"{text!r:.80}: the value is not YAML{f': {problem}' if problem else ''}") from None


def check_config(values: dict, source: str | Path, kind: type[ConfigClass] = Config) -> ConfigClass:
    """The config of a mapping; an InputError names `source`."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise InputError(f"{source}: {one_line(error)}") from None
    except TypeError:
        raise InputError(f"{source}: keys must be names, got {str(list(values)):.80}") from None


def read_yaml(path: str | Path) -> dict:
    """The mapping in a YAML file; InputError where there is none, a key is given twice, or it grows without bound."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise InputError(f"{path}: is larger than {_MAX_BYTES:,} bytes, which no config needs")
        content = _parse_yaml(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deep") from None
    except InputError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of keys, got {type(content).__name__}")
    return content


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where PyYAML takes the last, and text that no file can hold.

    Also 010 and 1:30, which are 8 and 90 in YAML 1.1.
    """

    def construct_scalar(self, node):
        value, problem = super().construct_scalar(node), None
        if re.search("[\0\ud800-\udfff]", value):
            problem = f"{value!r:.60} has a character that is not allowed"
        elif node.tag in _NUMBERS and re.match(r"[-+]?0[0-9_]+$|.*:", value):
            base = "base 60" if ":" in value else "octal"
            problem = f"{value:.60} is {base} in YAML; write a decimal without leading zeros, or quote it as text"
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return value

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"key {key.value[:60]!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str):
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if (count := _count(node, {})) > _MAX_VALUES:
            raise ValueError(f"its aliases stand for {count:.0e} values, at most {_MAX_VALUES:,} are allowed")
        return loader.construct_document(node)
    except (KeyError, AttributeError) as error:  # PyYAML's, for !!bool maybe and !!timestamp soon
        raise ValueError("a value is not what its tag says") from error
    finally:
        loader.dispose()


def _count(node: yaml.Node, counted: dict[int, float]) -> float:
    """Values below a node if each alias were written out, infinite where one holds itself."""
    if id(node) not in counted:
        counted[id(node)] = float("inf")  # until it is known: only a node inside itself asks before
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = [each for pair in inner for each in pair]
        counted[id(node)] = 1.0 + sum(_count(each, counted) for each in inner)
    return counted[id(node)]


def set_dotted(values: dict, key: str, value) -> None:
    """Sets `a.b.c` in nested mappings, making those that are missing. InputError where a.b is something else."""
    *parents, last = key.split(".")
    for parent in parents:
        inner = values.get(parent)
        if parent == "position" and isinstance(inner, str):  # short for a mapping
            inner = {"scheme": inner}
        if not isinstance(inner, dict | None):
            raise InputError(f"{key}: {parent} is {inner!r:.60}, not a mapping")
        values[parent] = inner = dict(inner or {})
        values = inner
    values[last] = value
