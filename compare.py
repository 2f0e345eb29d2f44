"""Trains many variants of one config and compares them: python compare.py CONFIG.yaml [dotted.key=value …]"""

import json
import platform
import sys
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from base import ArgumentParser, FrozenConfig, InputError, input_errors_end_the_program, share_the_cores
from configs import Config, Name, Seed, check_config, parse_override, read_yaml, set_dotted


class CompareConfig(FrozenConfig):
    """Which runs a comparison consists of."""

    name: Name
    """the comparison's folder inside runs_dir; left out: the name of the config file"""
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
    baseline: str
    """the variant that the others are compared with"""

    @model_validator(mode="after")
    def _fits_together(self):
        if self.baseline not in self.variants:
            raise ValueError(f"baseline {self.baseline!r} is not a variant, those are {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {self.seeds} has one twice")
        return self

    @property
    def folder(self) -> Path:
        """Where the runs and the report lie."""
        return Path(self.runs_dir).expanduser() / self.name


def load_comparison(path: str, overrides: list[str]) -> tuple[CompareConfig, dict[str, list[Config]]]:
    """The comparison in a YAML file and the config of each run: a list over seeds for each variant.

    Overrides whose key is not one of the comparison's go to `settings`, that is to all runs.
    """
    values = read_yaml(path)
    for key, value in map(parse_override, overrides):
        if key.split(".")[0] in CompareConfig.model_fields:
            set_dotted(values, key, value)
        else:
            values["settings"] = values.get("settings") or {}
            if isinstance(values["settings"], dict):  # anything else is refused below
                values["settings"][key] = value
    comparison = check_config({"name": Path(path).stem, **values}, path, CompareConfig)
    base = Path(path).parent / comparison.base
    runs = {
        variant: [run_config(comparison, base, variant, own, seed) for seed in comparison.seeds]
        for variant, own in comparison.variants.items()
    }
    return comparison, runs


def run_config(comparison: CompareConfig, base: Path, variant: str, own: dict[str, Any], seed: int) -> Config:
    """The config of one run; an InputError names the variant."""
    values = read_yaml(base)
    place = {"seed": seed, "name": f"{variant}-seed{seed}", "runs_dir": str(comparison.folder)}
    if taken := [key for key in (*comparison.settings, *own) if key in place]:
        raise InputError(f"{taken[0]}: not for all runs; each takes its own from seeds, the variant and the comparison")
    for key, value in {**comparison.settings, **own, **place}.items():
        set_dotted(values, key, value)
    return check_config(values, f"{base} with variants.{variant}")


def compare(comparison: CompareConfig, configs: dict[str, list[Config]]) -> str:
    """Trains what is not finished, writes report.md, results.json and loss.svg, and returns the table.

    Runs that are finished are kept as they are, half-finished ones go on. InputError where one in the folder was
    made with another config.
    """
    import torch

    from comparison.report import markdown, plot_curves
    from comparison.results import measure_run, summarize
    from data.corpus import load_corpus
    from train import train
    from training.run import RunFolder

    every = [config for seeds in configs.values() for config in seeds]
    for config in every:
        if RunFolder.exists(config) and (keys := RunFolder(config, resume=True).differing_keys()):
            raise InputError(f"{config.folder}: was made with another {', '.join(keys)}; remove it or use another name")
    for number, config in enumerate(every, start=1):
        print(f"run {number} of {len(every)}: {config.folder}", file=sys.stderr)
        train(config, resume=RunFolder.exists(config))
    runs = {
        variant: [measure_run(config, load_corpus(config.data).val) for config in seeds]
        for variant, seeds in configs.items()
    }
    summary = summarize(runs, comparison.baseline)
    first = configs[comparison.baseline][0]
    table = markdown(summary, comparison.baseline, comparison.seeds, first.model.max_position_embeddings)
    results = {
        "comparison": comparison.model_dump(mode="json"),
        "corpus": RunFolder(first, resume=True).corpus(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "summary": summary,
        "runs": runs,
    }
    (comparison.folder / "report.md").write_text(f"{table}\n![Validation loss](loss.svg)\n", encoding="utf-8")
    (comparison.folder / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    plot_curves(runs, comparison.folder / "loss.svg")
    return table


def main() -> None:
    parser = ArgumentParser(description="Train many variants of one config and compare them.")
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="for the comparison, or for all runs")
    share_the_cores()
    with input_errors_end_the_program():
        args = parser.parse_args()
        comparison, configs = load_comparison(args.config, args.overrides)
        print(compare(comparison, configs))
        print(f"written to {comparison.folder}: report.md, results.json, loss.svg", file=sys.stderr)


if __name__ == "__main__":
    main()
