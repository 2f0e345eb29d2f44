"""What a run is configured by: read from YAML, overridden on the command line, checked before anything else."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

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

from base import InputError, expanded
from configs.reading import parse_override, read_yaml, set_dotted
from data.config import DataConfig
from model.config import ModelConfig
from settings import FrozenConfig, Name, one_line

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
ConfigClass = TypeVar("ConfigClass", bound=FrozenConfig)


class TrainConfig(FrozenConfig):
    """How a model is trained."""

    init_from: Annotated[str, Field(min_length=1)] | None = None
    """start from the model and the tokenizer of a folder that generate.py reads. Its shape is the model's; only
    max_position_embeddings and the position's base and scaling may be given. null: from new weights"""
    steps: PositiveInt = 1000
    """optimizer steps"""
    batch_size: PositiveInt = 16
    """sequences per step, over all processes"""
    micro_batch_size: PositiveInt | None = None
    """sequences in one forward pass of a process; null: batch_size"""
    optimizer: Literal["adamw", "muon"] = "muon"
    """muon: Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for the rest, at the same learning_rate"""
    learning_rate: PositiveFloat = 1e-3
    """peak, reached after the warm-up"""
    min_learning_rate: NonNegativeFloat | None = None
    """learning rate of the last step; null: a tenth of learning_rate"""
    warmup_steps: NonNegativeInt = 100
    """steps of linear warm-up; the first has learning_rate / warmup_steps. Where there are fewer steps: a tenth of them"""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """after the warm-up: cosine decay, or warm-up/stable/decay (Hu et al. 2024) with a linear decay"""
    decay_fraction: Fraction = 0.2
    """share of the steps over which wsd decays"""
    position_until: Annotated[float, Field(gt=0, lt=1)] | None = None
    """share of the steps after which the positional scheme is dropped, which leaves `none` (DroPE, Gelberg et al. 2025);
    the schedule begins again there. null: never"""
    position_free_learning_rate: PositiveFloat | None = None
    """peak after that; warm-up and lowest rate are in proportion. null: learning_rate"""
    weight_decay: NonNegativeFloat = 0.1
    """for matrices; norms, embeddings and position parameters have none"""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's decay rates of the gradient's first and second moments"""
    momentum: Fraction = 0.95
    """Muon's decay rate of the gradient's average"""
    grad_clip: PositiveFloat | None = 1.0
    """largest gradient norm; null: no clipping"""
    log_every: PositiveInt = 10
    """steps between training rows in metrics.jsonl"""
    eval_every: PositiveInt | None = None
    """steps between evaluations; null: only after the last step"""
    checkpoint_every: PositiveInt | None = None
    """steps between checkpoints; null: only after the last step"""
    keep_checkpoints: PositiveInt = 1
    """newest checkpoints to keep, besides the one of lowest validation loss among those evaluated at their step"""
    max_skipped_steps: NonNegativeInt = 0
    """steps with a non-finite loss or gradient that may be skipped; one more stops the run"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: a GPU if there is one"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of activations, by autocast; weights stay float32. auto: bfloat16 on GPUs that support it, else float32"""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads; null: PyTorch's default, or on --resume the number used before, since the last bits depend on it"""
    parallel: Literal["ddp", "fsdp"] | None = None
    """how processes that torchrun starts train one model: ddp, each with all weights, or fsdp, each with a part of them.
    One process alone ignores it"""
    document_mask: bool = False
    """true: no document of a window sees another, and positions restart in each; false: attention and positions cross"""
    recompute: bool = False
    """keep only the input of each block for the backward pass and compute the rest twice: less memory, more time"""
    compile: bool = False
    """torch.compile the model; falls back to eager mode if no compiler works"""

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
        if self.position_until is not None:
            until, last = f"position_until {self.position_until}", self.position_steps
            if last in (0, self.steps):
                which = "with" if last == 0 else "without"
                raise ValueError(f"{until} of steps {self.steps} leaves no step {which} the scheme")
        return self

    @property
    def position_steps(self) -> int:
        """The last step with the positional scheme."""
        return self.steps if self.position_until is None else round(self.position_until * self.steps)

    @property
    def warmup(self) -> int:
        """The steps of warm-up, of those with the positional scheme: no more than there are."""
        return self.warmup_steps if self.warmup_steps <= self.position_steps else -(-self.position_steps // 10)


class WandbConfig(FrozenConfig):
    """Logging to Weights & Biases, beside metrics.jsonl."""

    mode: Literal["disabled", "offline", "online"] = "disabled"
    """online falls back to offline, with a warning, if there is no login or no network"""
    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]+$", max_length=128)] = "whereabouts"
    """project of the run"""
    group: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """group of runs within the project"""
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    """labels of the run"""


class Config(FrozenConfig):
    """One training run."""

    name: Name
    """the run's folder inside runs_dir; default: the name of the config file"""
    seed: Seed = 0
    """for the initial weights and the order of the data"""
    runs_dir: str = "runs"
    """where run folders are created"""
    data: DataConfig = DataConfig()
    """the corpus"""
    model: ModelConfig = ModelConfig()
    """the model's shape and positional scheme"""
    train: TrainConfig = TrainConfig()
    """the training"""
    wandb: WandbConfig = WandbConfig()
    """optional logging"""

    @model_validator(mode="before")
    @classmethod
    def _takes_the_tokenizer_too(cls, values):
        train, data = (values.get(key, {}) if isinstance(values, dict) else None for key in ("train", "data"))
        folder = train.get("init_from") if isinstance(train, dict) else None
        if not isinstance(folder, str) or not isinstance(data, dict):
            return values
        given = data.get("tokenizer", {"folder": folder})
        if not isinstance(given, dict) or given.get("folder") != folder:
            raise ValueError(f"data.tokenizer: train.init_from {folder!r:.80} has its own; leave this key out")
        return {**values, "data": {**data, "tokenizer": given}}

    @model_validator(mode="after")
    def _fits_together(self):
        until = self.train.position_until
        if until is not None and self.model.position.scheme == "none":
            raise ValueError(f"train.position_until {until}: model.position 'none' has no scheme to drop")
        if self.train.document_mask and not self.data.pack:
            raise ValueError("train.document_mask true: data.pack false already has each document by itself")
        return self

    @property
    def folder(self) -> Path:
        """The run folder."""
        return expanded(self.runs_dir) / self.name

    @property
    def trained_model(self) -> ModelConfig:
        """The model at the end of training: without its scheme where train.position_until drops it."""
        return self.model if self.train.position_until is None else self.model.without_position()


def load_config(path: str | Path, overrides: list[str] = ()) -> Config:
    """The config in a YAML file. Precedence: class defaults < YAML < overrides (`dotted.key=value`, value in YAML).

    InputError: one line that names the file and the key.
    """
    values = read_yaml(path)
    if "variants" in values:
        raise InputError(f"{path}: a comparison, expected a training config: python compare.py {path}")
    for key, value in map(parse_override, overrides):
        set_dotted(values, key, value)
    return check_config({"name": Path(path).stem, **values}, path)


def check_config(values: dict, source: str | Path, kind: type[ConfigClass] = Config) -> ConfigClass:
    """The config of a mapping; an InputError names `source`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{source}: {one_line(error)}") from None
