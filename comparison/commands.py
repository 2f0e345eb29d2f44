"""What compare.py does: trains the runs of a comparison and reports on them, or reports on finished runs."""

from collections.abc import Iterable
from pathlib import Path

from base import InputError
from comparison.design import Comparison
from comparison.diagnostics import parts_answers
from comparison.gathering import gather
from comparison.grouping import group, open_run
from comparison.measure import Corpora
from comparison.overview import overview
from comparison.report import write, write_files
from comparison.schedule import announce, train_all
from comparison.tables import tables
from comparison.tuning import logged_runs, next_runs, reported_runs, tuning_runs
from data.synthetic import task_of
from training.run import RunFolder
from training.starting import fit_to_corpus
from training.tracking import track_report


def compare(comparison: Comparison, jobs: int = 1) -> str:
    """Trains what is not finished, writes the report, and returns its text.

    Finished runs are kept as they are, half-finished ones continue. InputError where a run in the folder was made with
    other settings or another text; where a condition can't be reported, after the others were.
    """
    corpora, found, config, parts, failed = Corpora(), {}, comparison.config, comparison.parts(), None
    _check_texts(parts.values(), corpora)
    announce(parts.values(), corpora)
    for condition, part in parts.items():
        folders = _trained(part, jobs, corpora)
        try:
            found[condition] = gather(
                folders["reported"], config.baseline, part.config.folder, corpora, part.config, folders["tuning"]
            )
        except InputError as error:
            failed = failed or error
            continue
        text = write(found[condition], part.config.folder, comparison=part.config.model_dump(mode="json"))
        wandb = next_runs(part)[0].config.wandb
        track_report(part.config.folder, wandb, tables(found[condition]))
    if failed:
        raise failed
    if config.conditions:
        page, text, pictures = overview(found)
        write_files(config.folder, {"report.html": page, "report.md": text, **pictures})
        track_report(config.folder, wandb, [])
    return text


def _check_texts(parts: Iterable[Comparison], corpora: Corpora) -> None:
    """Tokenizes each text, which side by side each process would. InputError where one is too short to be reported on,
    variants of a part have several, or a task's answers could not be scored: before the rates are chosen, not after."""
    checked = {}
    for part in parts:
        rate, texts = next(iter(part.config.learning_rates), None), {}
        for config in (part.runs_at_rate(variant, rate)[0].config for variant in part.config.variants):
            if config.data not in checked:
                checked[config.data] = corpus = corpora.load(config.data)
                if (task := task_of(corpus.source)) and not parts_answers(corpus.tokenizer, task):
                    raise InputError(
                        f"data.tokenizer: of {corpus.source} this one joins prompt and answer, which could not be scored; "
                        "expected kind char or byte"
                    )
            fit_to_corpus(config, checked[config.data])
            texts.setdefault((checked[config.data].hash, checked[config.data].val_bytes), config.name)
        if len(texts) > 1:
            raise InputError(
                f"data: expected one text for all variants, got another for {' and '.join(texts.values())}; "
                "conditions compare once on each"
            )


def _trained(comparison: Comparison, jobs: int, corpora: Corpora) -> dict[str, dict[str, list[RunFolder]]]:
    """The runs of one condition by kind and variant: they are trained in turn until none is left to make."""
    plan, folders = comparison.config, {}
    while True:
        runs = next_runs(comparison)
        ended = logged_runs(runs)
        chosen = [run for variant in plan.variants for run in tuning_runs(comparison, variant)]
        used = {run.config.folder: run.config for run in [*chosen, *runs] if RunFolder.exists(run.config)}
        for config in used.values():
            corpora.of(RunFolder(config, resume=True))
        if None not in ended:
            break
        train_all(runs, jobs)
    for kind, runs_of in (("tuning", tuning_runs), ("reported", reported_runs)):
        planned = {variant: runs_of(comparison, variant) for variant in plan.variants}
        folders[kind] = {variant: [open_run(run.config.folder) for run in runs] for variant, runs in planned.items()}
    return folders


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
