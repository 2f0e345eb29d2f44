"""What compare.py does: trains the runs of a comparison and reports on them, or reports on finished runs."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import matplotlib
import torch

from base import InputError
from comparison.design import CompareConfig
from comparison.grouping import differing, group, in_bits_per_byte, open_run, same_tokens
from comparison.measure import Corpora, measure, read_run
from comparison.report import write
from comparison.results import Results
from comparison.schedule import train_all
from comparison.summary import best_rate, summarize, sweep
from configs import Config
from data.corpus import load_corpus
from data.synthetic import TRAINED_LENGTHS, task_of
from training.run import RunFolder
from training.versions import versions

SAME_START = "All variants of a seed start from the same shared initial weights and see the same batches."
OTHER_START = "The variants differ in more than positions, and so perhaps in their initial weights and batches."
FOUND = "These runs were found, not planned: they may differ in more than their settings, as in the program's version."
CONTEXTS_DIFFER = "The trained contexts differ, and with them the context that each loss is scored with"
TOKENIZERS_DIFFER = "The tokenizers differ: losses are in bits per byte, and those of single tokens are left out."
CPU = Path("/proc/cpuinfo")


def compare(
    comparison: CompareConfig, configs: dict[str, list[Config]], arguments: dict[str, list[str]], jobs: int = 1
) -> str:
    """Trains what is not finished, writes the report, and returns its text.

    Finished runs are kept as they are, half-finished ones continue; the arguments are those of `load_comparison`.
    InputError where a run in the folder was made with other settings or another text.
    """
    every, corpora = [config for runs in configs.values() for config in runs], Corpora()
    for config in every:
        if RunFolder.exists(config):
            run = RunFolder(config, resume=True)
            if keys := ", ".join(run.differing_keys()):
                raise InputError(f"{run.path}: was made with other values of {keys}; remove it or use another name")
            corpora.of(run)
    if jobs > 1:
        load_corpus(every[0].data)  # or each process would tokenize it
    train_all(every, jobs, arguments)
    groups = {variant: [open_run(config.folder) for config in runs] for variant, runs in configs.items()}
    results = gather(groups, comparison.baseline, comparison.name, corpora, comparison)
    return write(results, comparison.folder, comparison=comparison.model_dump(mode="json"))


def report(folders: list[Path], baseline: str | None, out: Path) -> str:
    """Writes a report on finished runs into `out` and returns its text; InputError where they can't be compared."""
    groups = group([open_run(folder) for folder in folders])
    baseline = baseline or next(iter(groups))
    if baseline not in groups:
        raise InputError(f"--baseline: expected one of {', '.join(groups)}, got {baseline!r}")
    return write(gather(groups, baseline, out.name, Corpora()), out)


def gather(
    groups: dict[str, list[RunFolder]], baseline: str, name: str, corpora: Corpora, plan: CompareConfig | None = None
) -> Results:
    """The results of finished runs. groups: the runs of each variant; plan: the comparison that they were made for.

    Runs that diverged are listed, and in no mean. InputError where the runs can't be compared, or all runs of the
    baseline diverged.
    """
    folders = {str(run.path): run for runs in groups.values() for run in runs}
    comparable = same_tokens(list(folders.values()))
    logged = {variant: [read_run(run) for run in runs] for variant, runs in groups.items()}
    diverged = {variant: some for variant, runs in logged.items() if (some := [run for run in runs if run.diverged])}
    chosen = {variant: best for variant, runs in logged.items() if (best := best_rate(runs))}
    if baseline not in chosen:
        said = f"baseline {baseline!r}: all its runs diverged, the first at {diverged[baseline][0].diverged}"
        raise InputError(f"{said}; those that did not: {', '.join(chosen) or 'none'}")
    runs = {
        variant: [measure(folders[run.folder], run, corpora.of, plan.evaluate_with if plan else {}) for run in some]
        for variant, some in chosen.items()
    }
    apart = differing({variant: folders[(runs.get(variant) or some)[0].folder] for variant, some in logged.items()})
    keys = {key for own in apart.values() for key in own}
    alike = all(key.startswith(("model.position.", "train.position_")) or key.endswith("learning_rate") for key in keys)
    notes = [(SAME_START if alike else OTHER_START) if plan else FOUND]
    contexts = sorted({run.config.model.max_position_embeddings for run in folders.values()})
    if len(contexts) > 1:
        notes.append(f"{CONTEXTS_DIFFER} ({', '.join(map(str, contexts))} tokens).")
    if not comparable:
        logged = {variant: [in_bits_per_byte(run) for run in some] for variant, some in logged.items()}
        runs = {variant: [in_bits_per_byte(run) for run in some] for variant, some in runs.items()}
        notes.append(TOKENIZERS_DIFFER)
    one = groups[baseline][0]
    return Results(
        name=name,
        baseline=baseline,
        unit="nats per token" if comparable else "bits per byte",
        context=one.config.model.max_position_embeddings,
        trained_length=TRAINED_LENGTHS.get(task_of(one.corpus()["source"])),
        tokens=sorted({run.tokens for some in runs.values() for run in some}),
        notes=notes,
        corpus=one.corpus(),
        optimizer=", ".join(sorted({run.config.train.optimizer for run in folders.values()})),
        versions={**versions(), "matplotlib": matplotlib.__version__},
        hardware=hardware(),
        differing=apart,
        sweep={variant: sweep(some) for variant, some in logged.items()},
        summary=summarize(runs, baseline),
        runs=runs,
        unused_learning_rates={
            variant: [run for run in logged[variant] if not run.diverged and run.learning_rate != some[0].learning_rate]
            for variant, some in runs.items()
        },
        diverged=diverged,
    )


def hardware() -> dict[str, Any]:
    """The machine that reports: its device, CPU cores and PyTorch's threads."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        models = re.findall(r"model name\s*: (.*)", CPU.read_text()) if CPU.is_file() else []
        device = models[0] if models else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return {"device": device, "cores": os.cpu_count(), "threads": threads, "system": platform.platform()}
