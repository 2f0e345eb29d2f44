"""The design of a comparison: its config, and the config and the command of each of its runs."""

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from base import InputError, expanded, reading
from configs import Config, Seed, check_config
from configs.reading import parse_override, read_yaml, set_dotted
from model.config import ModelConfig
from settings import FrozenConfig, Name, one_line

SECTIONS = ("data", "data.tokenizer", "model", "train", "wandb")  # of a training config
TRAIN = Path(__file__).parent.parent / "train.py"


class Condition(FrozenConfig):
    """A setting, as a budget, a text or a size, in which a comparison is made once more, with a report of its own."""

    settings: dict[str, Any] = {}
    """dotted.key: value for all runs, over the comparison's settings"""
    variants: list[Name] = []
    """those to compare; none: all"""


class CompareConfig(FrozenConfig):
    """Which runs a comparison consists of."""

    name: Name
    """the comparison's folder inside runs_dir; by default the name of the config file"""
    runs_dir: str = "runs"
    """where the comparison's folder is made"""
    base: str
    """the training config that all runs share: a path from this file, else from the current folder, else from configs/"""
    settings: dict[str, Any] = {}
    """dotted.key: value for all runs, over the base"""
    variants: dict[Name, dict[str, Any]] = Field(min_length=1)
    """name: {dotted.key: value …} of each variant, over the settings"""
    baseline: str
    """the variant that the others are compared with"""
    seeds: list[Seed] = Field(min_length=1)
    """each variant is trained once with each"""
    extra_seeds: dict[Name, list[Seed]] = {}
    """variant: [seed …] beyond those"""
    learning_rates: list[PositiveFloat] = []
    """rates to choose from for each variant, by the loss on one half of the validation text; the seeds train with the best
    and are reported on the other half. Up to three more are tried where the best is at the edge. None: the config's"""
    tuning_seeds: list[Seed] = []
    """with each of which each of the learning_rates is tried"""
    equivalence_margin: PositiveFloat = 0.02
    """a difference is called equal if it is surely smaller; in the unit of the losses, nats per token or bits per byte"""
    evaluate_with: dict[Name, dict[str, Any]] = {}
    """name: {option: value …}: other position options to evaluate the trained models with, where their scheme has them"""
    conditions: dict[Name, Condition] = {}
    """name: {settings: …, variants: […]}: compares once in each, and then the differences across them"""

    @model_validator(mode="after")
    def _fits_together(self):
        for key, names in {"baseline": [self.baseline], "extra_seeds": self.extra_seeds}.items():
            if unknown := [name for name in names if name not in self.variants]:
                raise ValueError(f"{key}: expected one of {', '.join(self.variants)}, got {unknown[0]!r}")
        lists = {key: getattr(self, key) for key in ("seeds", "learning_rates", "tuning_seeds")}
        lists |= {f"extra_seeds.{variant}": self.seeds + more for variant, more in self.extra_seeds.items()}
        for key, values in lists.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{key}: expected no value twice, got {values}")
        tuned = self.learning_rates or self.tuning_seeds
        if tuned and not (len(self.learning_rates) > 1 and self.tuning_seeds):
            raise ValueError(
                f"learning_rates: expected two or more, and tuning_seeds to choose with, got {self.learning_rates} and "
                f"{self.tuning_seeds}; a single rate is settings.train.learning_rate"
            )
        used = {*self.seeds, *(seed for more in self.extra_seeds.values() for seed in more)}
        if shared := [seed for seed in self.tuning_seeds if seed in used]:
            raise ValueError(f"tuning_seeds: expected other seeds than those reported, got {shared[0]}")
        for name, condition in self.conditions.items():
            if condition.variants and self.baseline not in condition.variants:
                raise ValueError(f"conditions.{name}.variants: expected {self.baseline!r}, the baseline, among them")
            if unknown := [variant for variant in condition.variants if variant not in self.variants]:
                expected = f"expected some of {', '.join(self.variants)}"
                raise ValueError(f"conditions.{name}.variants: {expected}, got {unknown[0]!r}")
            if Path(name).suffix in (".html", ".md", ".json", ".svg"):
                raise ValueError(f"conditions.{name}: expected another name, as that of a file of the report")
        return self

    @property
    def folder(self) -> Path:
        """Where the runs and the report lie."""
        return expanded(self.runs_dir) / self.name

    def seeds_of(self, variant: str) -> list[int]:
        """Those that a variant is reported with."""
        return self.seeds + self.extra_seeds.get(variant, [])

    def within(self, condition: str) -> "CompareConfig":
        """The comparison in one of its conditions."""
        chosen = self.conditions[condition]
        names = chosen.variants or list(self.variants)
        changes = {
            "name": condition,
            "runs_dir": str(self.folder),
            "settings": _then(_dotted(self.settings), _dotted(chosen.settings)),
            "variants": {name: self.variants[name] for name in names},
            "conditions": {},
        }
        return self.model_copy(update=changes)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison. arguments: those of train.py that make it."""

    config: Config
    arguments: list[str]


@dataclass(frozen=True)
class Comparison:
    """A comparison, and the runs that it consists of. path: its file; group: that of its runs at wandb."""

    config: CompareConfig
    path: str
    group: str

    def parts(self) -> dict[str, "Comparison"]:
        """By condition; itself, without a name, where it has none."""
        if not self.config.conditions:
            return {"": self}
        return {name: replace(self, config=self.config.within(name)) for name in self.config.conditions}

    def runs_at_rates(self, variant: str, rates: Iterable[float]) -> list[PlannedRun]:
        """A variant's runs with each of the rates and each of the tuning seeds."""
        return [self._run(variant, seed, rate, "tuning") for rate in rates for seed in self.config.tuning_seeds]

    def runs_at_rate(self, variant: str, rate: float | None) -> list[PlannedRun]:
        """A variant's runs with each of its seeds. rate: the learning rate chosen for it; None: the config's."""
        part = None if rate is None else "reporting"
        return [self._run(variant, seed, rate, part) for seed in self.config.seeds_of(variant)]

    def _run(self, variant, seed, rate, part):
        own = _then(_dotted(self.config.settings), _dotted(self.config.variants[variant]))
        # without the + of 1e+16
        name = f"{variant}{'' if rate is None else f'-lr{rate}'}-seed{seed}".replace("+", "")
        place = {} if rate is None else {"train.learning_rate": rate, "data.val_part": part}
        place |= {"seed": seed, "name": name, "runs_dir": str(self.config.folder)}
        if taken := [key for key in own if key in place]:
            raise InputError(f"{taken[0]}: cannot be set here, each run sets its own {', '.join(place)}")
        places, named = (Path(self.path).parent, Path(), TRAIN.parent / "configs"), expanded(self.config.base)
        with reading():
            base = next((place / named for place in places if (place / named).is_file()), places[0] / named)
        values, own = read_yaml(base), own | place
        for key, value in own.items():
            set_dotted(values, key, value)
        config = check_config(values, f"{base} with variants.{variant}")
        if config.wandb.mode != "disabled" and config.wandb.group is None:
            own["wandb.group"] = self.group
            config = config.model_copy(update={"wandb": config.wandb.model_copy(update={"group": self.group})})
        # JSON is YAML on one line
        overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in own.items()]
        return PlannedRun(config, [str(base), *overrides])


def load_comparison(path: str, overrides: list[str]) -> Comparison:
    """The comparison in a YAML file; InputError where it, or the config of one of its runs, cannot be.

    Overrides whose key is not one of the comparison's go to `settings`, that is to all runs.
    """
    values = read_yaml(path)
    if "variants" not in values and values.keys() & Config.model_fields.keys() - CompareConfig.model_fields.keys():
        raise InputError(f"{path}: a training config, expected a comparison: python train.py {path}")
    for key, value in map(parse_override, overrides):
        _override(values, key if key.split(".")[0] in CompareConfig.model_fields else f"settings.{key}", value)
    config = check_config({"name": Path(path).stem, **values}, path, CompareConfig)
    comparison, models = Comparison(config, path, config.name), []
    _check_settings(config, path)
    for part in comparison.parts().values():
        for variant in part.config.variants:
            runs = part.runs_at_rates(variant, config.learning_rates)
            runs += part.runs_at_rate(variant, next(iter(config.learning_rates), None))
            models.append(runs[0].config.trained_model)
    for name, options in config.evaluate_with.items():
        reasons = [rejection(model, options) for model in models]
        if all(reasons):
            said = "; ".join(dict.fromkeys(reasons))
            raise InputError(f"{path}: evaluate_with.{name}: no variant's scheme accepts it: {said}")
    return comparison


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    """Mappings of whole sections as dotted keys, so that they add to what the base has there.

    In an order to set them, whatever they came in: model.position after model.position.base would undo it. InputError:
    one key is given in two ways.
    """
    found = {}
    for key, value in values.items():
        inner = key in SECTIONS and isinstance(value, dict)
        more = _dotted({f"{key}.{below}": v for below, v in value.items()}) if inner else {key: value}
        if twice := found.keys() & more.keys():
            raise InputError(f"{min(twice)}: expected once in settings or a variant, got it twice")
        found |= more
    return dict(sorted(found.items(), key=lambda item: sum(f"{item[0]}".startswith(f"{key}.") for key in found)))


def _then(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """Both, as `_dotted` gives them; `last` replaces all that lies within a key of its own."""
    return {k: v for k, v in first.items() if not any(f"{k}.".startswith(f"{key}.") for key in last)} | last


def _override(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key of a comparison; of one within the settings or a variant all that follows stays one key."""
    inside = {name: values[name] if isinstance(values.get(name), dict) else {} for name in ("variants", "conditions")}
    places = [(values, "settings", "settings.")]
    places += [(inside["variants"], name, f"variants.{name}.") for name in inside["variants"]]
    places += [(one, "settings", f"conditions.{name}.settings.") for name, one in inside["conditions"].items()]
    for place, name, prefix in sorted(places, key=lambda each: -len(each[2])):  # a name may begin with another one
        if key.startswith(prefix) and isinstance(place, dict) and isinstance(own := place.get(name) or {}, dict):
            place[name] = _then(_dotted(own), _dotted({key.removeprefix(prefix): value}))
            return
    set_dotted(values, key, value)


def _check_settings(config: CompareConfig, path: str) -> None:
    """InputError where a setting reaches no run, since each sets the key, or one that the key lies within, itself."""
    conditions = config.conditions or {"": Condition()}
    later = {
        name: [_dotted(config.variants[variant]) for variant in one.variants or config.variants]
        for name, one in conditions.items()
    }
    of_runs = [_dotted(conditions[name].settings) | own for name, some in later.items() for own in some]
    places = {"settings": (config.settings, of_runs)}
    places |= {f"conditions.{name}.settings": (one.settings, later[name]) for name, one in conditions.items()}
    for place, (settings, runs) in places.items():
        for key in _dotted(settings):
            hiding = [next((own for own in keys if f"{key}.".startswith(f"{own}.")), None) for keys in runs]
            if all(hiding):
                raise InputError(f"{path}: {place}.{key}: reaches no run, every run sets {min(hiding)}")


def rejection(model: ModelConfig, options: dict[str, Any]) -> str | None:
    """Why the model's positional scheme rejects other options; None where it accepts them."""
    try:
        model.with_position(options)
    except ValueError as error:
        return one_line(error) if isinstance(error, ValidationError) else str(error)


def shell(run: PlannedRun, *more: str) -> str:
    """A shell command that makes a run from the current folder; with torchrun where its config has train.parallel."""
    here = os.path.relpath(TRAIN)
    program = ["torchrun", "--standalone", "--nproc-per-node", "auto"] if run.config.train.parallel else ["python"]
    return shlex.join([*program, here if not here.startswith("..") else str(TRAIN), *run.arguments, *more])
