"""From finished runs to the results of a comparison."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import torch
from pydantic import TypeAdapter, ValidationError

from base import InputError, replace_text, writing
from comparison.cost import measure_costs
from comparison.design import CompareConfig
from comparison.grouping import differing, in_bits_per_byte, same_tokens
from comparison.measure import REMEDY, Corpora, measure, read_kept, read_run
from comparison.results import Cost, MeasuredRun, RateSpread, Results
from comparison.summary import best_rate, summarize, sweep
from configs import Config
from data.synthetic import TRAINED_LENGTHS, task_of
from settings import one_line
from training.run import RunFolder
from training.versions import versions

SAME_START = "All variants of a seed start from the same shared initial weights and see the same batches."
OTHER_START = "The variants differ in more than positions, and so perhaps in their initial weights and batches."
FOUND = "These runs were found, not planned: they may differ in more than their settings, as in the program's version."
TOKENIZERS_DIFFER = (
    "The tokenizers differ: losses are in bits per byte, and those of single tokens are left out. As many tokens are not as "
    "much text."
)
CPU = Path("/proc/cpuinfo")


def gather(
    groups: dict[str, list[RunFolder]],
    baseline: str,
    folder: Path,
    corpora: Corpora,
    plan: CompareConfig | None,
    tuning: dict[str, list[RunFolder]],
) -> Results:
    """The results of finished runs. groups: the runs of each variant; folder: of the report, where costs are kept; plan:
    the comparison that the runs were made for; tuning: those that chose the learning rates.

    Runs that diverged are listed, and in no mean. InputError where the runs can't be compared, or all runs of the
    baseline diverged.
    """
    start_is_known, plan = plan is not None, plan or CompareConfig.model_construct()  # its defaults
    folders = {str(run.path): run for runs in groups.values() for run in runs}
    tried = {variant: [read_run(run) for run in runs] for variant, runs in tuning.items() if runs}
    logged = {variant: [read_run(run) for run in runs] for variant, runs in groups.items()}
    every = {variant: tried.get(variant, []) + logged[variant] for variant in groups}
    diverged = {variant: some for variant, runs in every.items() if (some := [run for run in runs if run.diverged])}
    good = {variant: some for variant, runs in logged.items() if (some := [run for run in runs if not run.diverged])}
    if baseline not in good:
        said = f"baseline {baseline!r}: all its runs diverged, the first at {diverged[baseline][0].diverged}"
        raise InputError(f"{folder}: {said}; those that did not: {', '.join(good) or 'none'}")
    comparable, one = same_tokens(list(folders.values())), folders[good[baseline][0].folder]
    context, margin, given = one.config.model.max_position_embeddings, plan.equivalence_margin, plan.learning_rates
    runs = {
        variant: [measure(folders[run.folder], run, corpora.of, plan.evaluate_with, context) for run in some]
        for variant, some in good.items()
    }
    first = {variant: (groups[variant] or tuning[variant])[0] for variant in groups}
    apart = differing(first)
    keys = {key for own in apart.values() for key in own}
    alike = all(key.startswith(("model.position.", "train.position_")) or key.endswith("learning_rate") for key in keys)
    notes = [(SAME_START if alike else OTHER_START) if start_is_known else FOUND]
    if others := _other_versions(run for some in runs.values() for run in some):
        notes.append(
            f"The runs were made with several versions of {', '.join(others)}, which results.json has for each: that may be "
            "a part of any difference."
        )
    if not comparable:
        logged, tried, runs = (
            {variant: [in_bits_per_byte(run) for run in some] for variant, some in each.items()}
            for each in (logged, tried, runs)
        )
        notes.append(TOKENIZERS_DIFFER)
    rates = {variant: sweep(tried.get(variant, logged[variant])) for variant in groups}
    return Results(
        name=folder.resolve().name,
        baseline=baseline,
        unit="nats per token" if comparable else "bits per byte",
        context=context,
        vocab_size=one.config.model.vocab_size,
        margin=margin,
        trained_length=TRAINED_LENGTHS.get(task_of(one.corpus()["source"])),
        tokens=sorted({run.tokens for some in runs.values() for run in some}),
        notes=notes,
        corpus=one.corpus(),
        optimizer=", ".join(sorted({run.config.train.optimizer for run in folders.values()})),
        versions={**versions(), "matplotlib": matplotlib.__version__},
        hardware=hardware(),
        differing=apart,
        tuning_seeds=plan.tuning_seeds,
        sweep=rates,
        widened=[variant for variant, rows in rates.items() if given and len(rows) > len(given)],
        at_edge=[v for v, rows in rates.items() if given and best_rate(rows) in (None, *_edges(rows))],
        summary=summarize(runs, baseline, margin, _apart(runs, baseline)),
        runs=runs,
        tuning=tried,
        cost=_costs({variant: first[variant].config for variant in runs}, baseline, folder / "costs.json"),
        diverged=diverged,
    )


def _edges(rows: list[RateSpread]) -> tuple[float, float]:
    return rows[0].learning_rate, rows[-1].learning_rate


def _other_versions(runs: Iterable[MeasuredRun]) -> list[str]:
    """Of what the runs were not all made with the same version."""
    made = [used.items() for run in runs for used in run.versions.values()]
    names = [name for name, _ in {item for used in made for item in used}]
    return sorted(name for name in {*names} if names.count(name) > 1)


def _costs(configs: dict[str, Config], baseline: str, file: Path) -> dict[str, Cost]:
    """What the variants cost beside the baseline: measured once on a machine, so that a second report is the same."""
    settings = {v: config.model_dump(mode="json", include={"model", "train"}) for v, config in configs.items()}
    key = hashlib.sha256(json.dumps([settings, baseline, versions(), hardware()]).encode()).hexdigest()
    kept = read_kept(file)
    if kept.get("key") != key:
        kept = {
            "key": key,
            "costs": {variant: asdict(cost) for variant, cost in measure_costs(configs, baseline).items()},
        }
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, json.dumps(kept))
    try:
        return TypeAdapter(dict[str, Cost]).validate_python(kept.get("costs"))
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}; {REMEDY}") from None


def _apart(runs: dict[str, list[MeasuredRun]], baseline: str) -> dict[str, str]:
    """Why variants cannot be compared with the baseline: another budget, or another context, that losses depend on."""
    tokens = {variant: {run.tokens for run in some} for variant, some in runs.items()}
    contexts = {v: {run.config["model"]["max_position_embeddings"] for run in some} for v, some in runs.items()}
    found = {}
    for words, values in {"trained on {:,} tokens": tokens, "trained with a context of {:,} tokens": contexts}.items():
        others = {variant: own for variant, own in values.items() if own != values[baseline]}
        found |= {variant: " and ".join(map(words.format, sorted(own))) for variant, own in others.items()}
    return found


def hardware() -> dict[str, Any]:
    """The machine that reports: its device, CPU cores and PyTorch's threads."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        models = re.findall(r"model name\s*: (.*)", CPU.read_text()) if CPU.is_file() else []
        device = models[0] if models else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return {"device": device, "cores": os.cpu_count(), "threads": threads, "system": platform.platform()}
