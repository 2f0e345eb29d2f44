"""From finished runs to a report in a folder."""

import json
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch

from base import InputError
from comparison.existing import differing, in_bits_per_byte, same_tokens
from comparison.figures import figures
from comparison.measure import measure, read_run
from comparison.plots import svg_file
from comparison.report import html, markdown
from comparison.results import best_rate, summarize, sweep
from data.corpus import Corpus
from data.synthetic import TRAINED_LENGTHS, task_of
from training.run import RunFolder
from training.versions import versions

SAME_START = "All variants of a seed start from the same shared initial weights and see the same batches."
OTHER_START = (
    "The variants differ in more than positions, as the table of settings shows: they need not start from the same "
    "weights or see the same batches."
)
FOUND = (
    "These runs were found, not planned: whether they differ in more than the table of settings shows, such as the "
    "version of the program, isn't known here."
)
CONTEXTS_DIFFER = "The trained contexts differ, and with them the context that each loss is scored with"
TOKENIZERS_DIFFER = (
    "The tokenizers differ: losses are compared in bits per byte of the same text only, and those by context and by "
    "position, which are of single tokens, are left out."
)
CPU = Path("/proc/cpuinfo")


def gather(
    groups: dict[str, list[RunFolder]],
    baseline: str,
    evaluate_with: dict[str, dict[str, Any]],
    corpus_of: Callable[[RunFolder], Corpus],
    name: str,
    planned: bool,
) -> dict:
    """All numbers of a comparison. groups: the runs of each variant; planned: whether one config made them.

    Runs that diverged are listed, and in no mean. InputError where the runs can't be compared, or no run of the
    baseline held.
    """
    by_folder = {str(run.path): run for runs in groups.values() for run in runs}
    comparable = same_tokens(list(by_folder.values()))
    logged = {variant: [read_run(run) for run in runs] for variant, runs in groups.items()}
    diverged = {variant: some for variant, runs in logged.items() if (some := [run for run in runs if run["diverged"]])}
    chosen = {variant: best for variant, runs in logged.items() if (best := best_rate(runs))}
    if baseline not in chosen:
        said = f"baseline {baseline!r}: all its runs diverged, the first at {diverged[baseline][0]['diverged']}"
        raise InputError(f"{said}; another that held is {', '.join(chosen) or 'none'}")
    runs = {
        variant: [numbers | measure(by_folder[numbers["folder"]], corpus_of, evaluate_with) for numbers in some]
        for variant, some in chosen.items()
    }
    apart = differing(
        {variant: by_folder[(runs.get(variant) or some)[0]["folder"]] for variant, some in logged.items()}
    )
    keys = {key for own in apart.values() for key in own}
    alike = all(key.startswith("model.position.") or key.endswith("learning_rate") for key in keys)
    notes = [(SAME_START if alike else OTHER_START) if planned else FOUND]
    contexts = sorted({run.config.model.max_position_embeddings for run in by_folder.values()})
    if len(contexts) > 1:
        notes.append(f"{CONTEXTS_DIFFER} ({', '.join(map(str, contexts))} tokens).")
    if not comparable:
        logged, runs = (
            {
                variant: [run if run["diverged"] else in_bits_per_byte(run) for run in some]
                for variant, some in group.items()
            }
            for group in (logged, runs)
        )
        notes.append(TOKENIZERS_DIFFER)
    one = groups[baseline][0]
    return {
        "name": name,
        "baseline": baseline,
        "unit": "nats per token" if comparable else "bits per byte",
        "context": one.config.model.max_position_embeddings,
        "trained_length": TRAINED_LENGTHS.get(task_of(one.corpus()["source"])),
        "tokens": sorted({run["tokens"] for some in runs.values() for run in some}),
        "notes": notes,
        "corpus": one.corpus(),
        "optimizer": ", ".join(sorted({run.config.train.optimizer for run in by_folder.values()})),
        "versions": {**versions(), "matplotlib": matplotlib.__version__},
        "hardware": hardware(),
        "differing": apart,
        "sweep": {variant: sweep(some) for variant, some in logged.items()},
        "summary": summarize(runs, baseline),
        "runs": runs,
        "unused_learning_rates": {variant: runs_not_in(logged[variant], runs[variant]) for variant in runs},
        "diverged": diverged,
    }


def runs_not_in(some: list[dict], others: list[dict]) -> list[dict]:
    """Those of the first that have a folder of their own, and did not diverge."""
    taken = {run["folder"] for run in others}
    return [run for run in some if run["folder"] not in taken and not run["diverged"]]


def write(results: dict, folder: Path) -> str:
    """Writes report.html, report.md, its pictures and results.json, and returns the text of report.md.

    InputError where the folder can't be written.
    """
    pictures = [plot for plot in figures(results) if plot.name in ("loss", "context")]
    text = markdown(results, [(plot.title, f"{plot.name}.svg") for plot in pictures])
    files = {f"{plot.name}.svg": svg_file(plot) for plot in pictures}
    numbers = json.dumps(results, indent=1, allow_nan=False)
    files |= {"report.html": html(results), "report.md": text, "results.json": numbers}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: the report cannot be written there: {error.strerror}") from None
    return text


def hardware() -> dict:
    """The machine that reports: its device, CPU cores and PyTorch's threads."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        models = re.findall(r"model name\s*: (.*)", CPU.read_text()) if CPU.is_file() else []
        device = models[0] if models else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return {"device": device, "cores": os.cpu_count(), "threads": threads, "system": platform.platform()}
