"""Which finished runs belong together, and whether they can be compared."""

import json
import re
from dataclasses import replace
from pathlib import Path

from base import InputError, printable, reading
from comparison.results import MeasuredRun, Run
from configs import load_config
from training.run import RunFolder, trained_keys


@reading()
def open_run(folder: Path) -> RunFolder:
    """The run in a folder, which may have moved; InputError where there is none, or it is not finished."""
    folder = folder.resolve() if folder.name in ("", "..") else folder  # which have no name of their own
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}: is not a run folder: it has no config.yaml")
    place = {"runs_dir": str(folder.parent), "name": folder.name}
    run = RunFolder(load_config(folder / "config.yaml").model_copy(update=place), resume=True)
    if not (run.is_finished() or run.divergence()):
        raise InputError(f"{folder}: is not finished; train.py --resume continues it")
    return run


def settings(run: RunFolder) -> dict:
    """dotted.key: value of what a run trains, without its seed, place and logging."""
    return trained_keys(run.config.model_dump(mode="json", exclude={"seed"}))


def group(runs: list[RunFolder]) -> dict[str, list[RunFolder]]:
    """Variants: the runs on one text that differ only in their seed, named like the first without its seed; where
    another is named so, by its path.

    InputError where a seed occurs twice.
    """
    alike: dict[str, list[RunFolder]] = {}
    for run in runs:
        alike.setdefault(json.dumps([run.corpus()["hash"], settings(run)], sort_keys=True), []).append(run)
    groups: dict[str, list[RunFolder]] = {}
    for same in alike.values():
        seeds = [run.config.seed for run in same]
        if len(set(seeds)) < len(seeds):
            raise InputError(f"{', '.join(str(run.path) for run in same)}: the same settings with the same seed twice")
        path = same[0].path
        name = re.sub(rf"[-_.]?seed[-_.]?{seeds[0]}$", "", path.name) or path.name
        names = (printable(each) for each in (name, str(path.with_name(name)), str(path)))
        groups[next(each for each in names if each not in groups)] = same
    return groups


def differing(variants: dict[str, RunFolder]) -> dict[str, dict]:
    """For each variant, given by one of its runs, the settings in which the variants differ. Not in the part of the
    text that they are evaluated on: of a variant that diverged with every rate, the run is one that was to choose it."""
    found = {variant: settings(run) for variant, run in variants.items()}
    keys = list(dict.fromkeys(key for values in found.values() for key in values))
    first, *others = found.values()
    several = [key for key in keys if any(values.get(key, ...) != first.get(key, ...) for values in others)]
    several = [key for key in several if key != "data.val_part"]
    return {variant: {key: values[key] for key in several if key in values} for variant, values in found.items()}


def same_tokens(runs: list[RunFolder]) -> bool:
    """Whether the losses per token of the runs are losses of the same tokens.

    InputError where not even the text is the same; with other tokenizers bits per byte still compare.
    """
    one = runs[0].corpus()
    for run in runs:
        other = run.corpus()
        for key, texts in {"hash": "texts", "val_bytes": "validation texts"}.items():
            if other[key] != one[key]:
                raise InputError(
                    f"{run.path} and {runs[0].path}: have different {texts} and cannot be compared "
                    f"({other['source']} and {one['source']}; {key} {other[key]} and {one[key]})"
                )
    tokenizers = [[run.config.data.tokenizer, run.corpus()["val_tokens"]] for run in runs]
    return all(tokenizer == tokenizers[0] for tokenizer in tokenizers)


def in_bits_per_byte(run: Run) -> Run:
    """The run with its losses of the whole text in bits per byte, and without the losses of single tokens."""
    if run.diverged:
        return run
    scale = run.val_bits_per_byte / run.val_loss
    changes = {"val_loss": run.val_bits_per_byte, "curve": [(tokens, loss * scale) for tokens, loss in run.curve]}
    if isinstance(run, MeasuredRun):
        changes |= {"loss_by_context": None, "loss_by_position": None, "evaluated_with": {}}
    return replace(run, **changes)
