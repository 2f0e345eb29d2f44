"""The design of a comparison: its config, and the config and the command of each of its runs."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from base import InputError
from configs import Config, Name, Seed, check_config
from configs.reading import parse_override, read_yaml, set_dotted
from model.config import ModelConfig
from settings import FrozenConfig, one_line

SECTIONS = ("data", "data.tokenizer", "model", "train", "wandb")  # of a training config
TRAIN = Path(__file__).parent.parent / "train.py"


class CompareConfig(FrozenConfig):
    """Which runs a comparison consists of."""

    name: Name
    """the comparison's folder inside runs_dir; by default the name of the config file"""
    runs_dir: str = "runs"
    """where the comparison's folder is made"""
    base: str
    """the training config that all runs share, a path relative to this file"""
    settings: dict[str, Any] = {}
    """dotted.key: value for all runs, over the base"""
    variants: dict[Name, dict[str, Any]] = Field(min_length=1)
    """name: {dotted.key: value …} of each variant, over the settings"""
    seeds: list[Seed] = Field(min_length=1)
    """each variant is trained once with each"""
    learning_rates: list[PositiveFloat] = []
    """each variant is trained with each and shown at that of its lowest mean loss; none: the config's"""
    evaluate_with: dict[Name, dict[str, Any]] = {}
    """name: {option: value …}: other position options to evaluate the trained models with, where their scheme has them"""
    baseline: str
    """the variant that the others are compared with"""

    @model_validator(mode="after")
    def _fits_together(self):
        if self.baseline not in self.variants:
            raise ValueError(f"baseline: expected one of {', '.join(self.variants)}, got {self.baseline!r}")
        for key in ("seeds", "learning_rates"):
            if len(set(getattr(self, key))) < len(getattr(self, key)):
                raise ValueError(f"{key}: expected no value twice, got {getattr(self, key)}")
        return self

    @property
    def folder(self) -> Path:
        """Where the runs and the report lie."""
        return Path(self.runs_dir).expanduser() / self.name


def load_comparison(
    path: str, overrides: list[str]
) -> tuple[CompareConfig, dict[str, list[Config]], dict[str, list[str]]]:
    """The comparison in a YAML file, the configs of each variant's runs, and train.py's arguments by a run's name.

    A variant's runs are over learning rates and then seeds. Overrides whose key is not one of the comparison's go to
    `settings`, that is to all runs.
    """
    values = read_yaml(path)
    for key, value in map(parse_override, overrides):
        if key.split(".")[0] in CompareConfig.model_fields:
            set_dotted(values, key, value)
        else:
            values["settings"] = values.get("settings") or {}
            if isinstance(values["settings"], dict):  # anything else is rejected below
                values["settings"][key] = value
    comparison = check_config({"name": Path(path).stem, **values}, path, CompareConfig)
    base, configs, arguments = Path(path).parent / comparison.base, {}, {}
    for variant in comparison.variants:
        configs[variant] = []
        for own in _run_overrides(comparison, variant):
            values = read_yaml(base)
            for key, value in own.items():
                set_dotted(values, key, value)
            configs[variant].append(check_config(values, f"{base} with variants.{variant}"))
            # JSON is YAML on one line
            overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in own.items()]
            arguments[own["name"]] = [str(base), *overrides]
    for name, options in comparison.evaluate_with.items():
        reasons = [rejection(runs[0].trained_model, options) for runs in configs.values()]
        if all(reasons):
            said = "; ".join(dict.fromkeys(reasons))
            raise InputError(f"{path}: evaluate_with.{name}: no variant's scheme accepts it: {said}")
    return comparison, configs, arguments


def _run_overrides(comparison: CompareConfig, variant: str) -> Iterator[dict[str, Any]]:
    """dotted.key: value of each run of a variant, over the base; InputError for a key that each run sets itself."""
    own = _dotted(comparison.settings) | _dotted(comparison.variants[variant])
    for rate in comparison.learning_rates or [None]:
        swept = {} if rate is None else {"train.learning_rate": rate}
        for seed in comparison.seeds:
            name = f"{variant}{'' if rate is None else f'-lr{rate}'}-seed{seed}".replace("+", "")  # as in 1e+16
            place = {**swept, "seed": seed, "name": name, "runs_dir": str(comparison.folder)}
            if taken := [key for key in own if key in place]:
                raise InputError(f"{taken[0]}: cannot be set here, each run sets its own {', '.join(place)}")
            yield {**own, **place}


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    """Mappings of whole sections as dotted keys, so that they add to what the base has there."""
    found = {}
    for key, value in values.items():
        inner = key in SECTIONS and isinstance(value, dict)
        found |= _dotted({f"{key}.{below}": v for below, v in value.items()}) if inner else {key: value}
    return found


def rejection(model: ModelConfig, options: dict[str, Any]) -> str | None:
    """Why the model's positional scheme rejects other options; None where it accepts them."""
    try:
        model.with_position(options)
    except ValueError as error:
        return one_line(error) if isinstance(error, ValidationError) else str(error)


def shell(arguments: list[str]) -> str:
    """A shell command that runs train.py with these arguments from the current folder."""
    here = os.path.relpath(TRAIN)
    return shlex.join(["python", here if not here.startswith("..") else str(TRAIN), *arguments])
