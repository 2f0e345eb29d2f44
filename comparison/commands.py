"""What compare.py does: trains the runs of a comparison and reports on them, or reports on finished runs."""

from pathlib import Path

from base import InputError, writing
from comparison.design import Comparison
from comparison.gathering import gather
from comparison.grouping import group, open_run
from comparison.measure import Corpora
from comparison.overview import overview
from comparison.report import write
from comparison.results import Results
from comparison.schedule import train_all
from comparison.tables import tables
from comparison.tuning import finished, next_runs, reported_runs, tuning_runs
from data.corpus import load_corpus
from training.run import RunFolder
from training.tracking import track_report


def compare(comparison: Comparison, jobs: int = 1) -> str:
    """Trains what is not finished, writes the report, and returns its text.

    Finished runs are kept as they are, half-finished ones continue. InputError where a run in the folder was made with
    other settings or another text.
    """
    corpora, found, config = Corpora(), {}, comparison.config
    for condition, part in comparison.parts().items():
        found[condition] = _compare(part, jobs, corpora)
        text = write(found[condition], part.config.folder, comparison=part.config.model_dump(mode="json"))
        wandb = next_runs(part)[0].config.wandb
        track_report(part.config.folder, wandb, tables(found[condition]))
    if config.conditions:
        page, text, pictures = overview(found)
        with writing(config.folder):
            for name, content in {"report.html": page, "report.md": text, **pictures}.items():
                (config.folder / name).write_text(content, encoding="utf-8")
        track_report(config.folder, wandb, [])
    return text


def _compare(comparison: Comparison, jobs: int, corpora: Corpora) -> Results:
    while True:
        runs = next_runs(comparison)
        ended = finished(runs)
        for run in (RunFolder(each.config, resume=True) for each in runs if RunFolder.exists(each.config)):
            corpora.of(run)
        if None not in ended:
            break
        if jobs > 1:
            load_corpus(runs[0].config.data)  # or each process would tokenize it
        train_all(runs, jobs)
    plan, folders = comparison.config, {}
    for kind, runs_of in (("tuning", tuning_runs), ("reported", reported_runs)):
        planned = {variant: runs_of(comparison, variant) for variant in plan.variants}
        folders[kind] = {variant: [open_run(run.config.folder) for run in runs] for variant, runs in planned.items()}
    return gather(folders["reported"], plan.baseline, plan.folder, corpora, plan, folders["tuning"])


def report(folders: list[Path], baseline: str | None, out: Path) -> str:
    """Writes a report on finished runs into `out` and returns its text; InputError where they can't be compared.

    Runs that chose the learning rates of a comparison are left out.
    """
    runs = [run for run in map(open_run, folders) if run.config.data.val_part != "tuning"]
    if not runs:
        raise InputError(f"--runs: expected runs to report, got only {len(folders)} that chose learning rates")
    groups = group(runs)
    baseline = baseline or next(iter(groups))
    if baseline not in groups:
        raise InputError(f"--baseline: expected one of {', '.join(groups)}, got {baseline!r}")
    return write(gather(groups, baseline, out, Corpora(), None, {}), out)
