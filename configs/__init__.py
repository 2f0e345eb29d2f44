"""Configs: read from YAML, overridden from the command line, checked before anything else happens."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic import field_validator, model_validator

from base import FrozenConfig, InputError, one_line
from data.corpus import DataConfig
from model.config import ModelConfig

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(FrozenConfig):
    """How a model is trained."""

    steps: PositiveInt = 1000
    """optimizer steps"""
    batch_size: PositiveInt = 16
    """sequences a step, over all processes"""
    micro_batch_size: PositiveInt | None = None
    """sequences that go through the model at once; null: batch_size"""
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
    grad_clip: PositiveFloat | None = 1.0
    """largest norm of the gradient; null: any"""
    log_every: PositiveInt = 10
    """steps between training rows in metrics.jsonl"""
    eval_every: PositiveInt | None = None
    """steps between evaluations; null: only after the last step"""
    checkpoint_every: PositiveInt | None = None
    """steps between checkpoints; null: only after the last step"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: a GPU where there is one"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of activations, by autocast; weights stay float32. auto: bfloat16 on GPUs that have it, else float32"""
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
    project: str = "whereabouts"
    """project that the run belongs to"""
    group: str | None = None
    """group of runs inside the project"""
    tags: tuple[str, ...] = ()
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
        return key, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # ValueError: what looks like a date and is none
        raise InputError(f"{text!r}: the value is not YAML") from None


def check_config(values: dict, source: str | Path, kind: type[ConfigClass] = Config) -> ConfigClass:
    """The config of a mapping; an InputError names `source`."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise InputError(f"{source}: {one_line(error)}") from None
    except TypeError:
        raise InputError(f"{source}: keys must be names, got {list(values)}") from None


def read_yaml(path: str | Path) -> dict:
    """The mapping in a YAML file; InputError where there is none."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: not YAML: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds {type(content).__name__}, a mapping of keys is due")
    return content


def set_dotted(values: dict, key: str, value) -> None:
    """Sets `a.b.c` in nested mappings, making those that are missing."""
    *parents, last = key.split(".")
    for parent in parents:
        inner = values.get(parent)
        if parent == "position" and isinstance(inner, str):  # short for a mapping
            inner = {"scheme": inner}
        values[parent] = inner = dict(inner) if isinstance(inner, dict) else {}
        values = inner
    values[last] = value
