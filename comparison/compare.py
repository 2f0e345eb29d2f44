"""What compare.py does: trains the runs of a comparison and reports on them, or reports on runs that are there."""

from pathlib import Path

from base import InputError
from comparison.assemble import gather, write
from comparison.design import CompareConfig
from comparison.existing import group
from comparison.measure import open_run
from comparison.schedule import train_all
from configs import Config
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from training.loop import train
from training.run import RUNTIME_KEYS, RunFolder


def compare(
    comparison: CompareConfig,
    configs: dict[str, list[Config]],
    jobs: int = 1,
    arguments: dict[str, list[str]] | None = None,
) -> str:
    """Trains what is not finished, writes the report, and returns its text.

    Runs that are finished are kept as they are, half-finished ones go on. arguments: those of train.py for each run,
    needed for more than one job. InputError where a run in the folder was made with another config or text.
    """
    every, corpora = [config for runs in configs.values() for config in runs], Corpora()
    for config in every:
        if RunFolder.exists(config):
            run = RunFolder(config, resume=True)
            if keys := ", ".join(run.differing_keys()):
                raise InputError(f"{run.path}: was made with another {keys}; remove it or use another name")
            corpora.of(run)
    corpora.load(every[0])  # before several processes would all tokenize it
    train_all(every, train, jobs, arguments)
    groups = {variant: [open_run(config.folder) for config in runs] for variant, runs in configs.items()}
    options = comparison.evaluate_with
    results = gather(groups, comparison.baseline, options, corpora.of, comparison.name, planned=True)
    return write({**results, "comparison": comparison.model_dump(mode="json")}, comparison.folder)


def report(folders: list[Path], baseline: str | None, out: Path) -> str:
    """Writes a report on finished runs into `out` and returns its text; InputError where they can't be compared."""
    groups = group([open_run(folder) for folder in folders])
    baseline = baseline or next(iter(groups))
    if baseline not in groups:
        raise InputError(f"--baseline: {baseline!r} is none of the variants found, {', '.join(groups)}")
    return write(gather(groups, baseline, {}, Corpora().of, out.name, planned=False), out)


class Corpora:
    """The corpora of runs, each loaded once."""

    def __init__(self):
        self.loaded: list[tuple[DataConfig, Corpus]] = []

    def load(self, config: Config) -> Corpus:
        """The corpus of a config."""
        found = [corpus for data, corpus in self.loaded if data == config.data] or [load_corpus(config.data)]
        self.loaded.append((config.data, found[0]))
        return found[0]

    def of(self, run: RunFolder) -> Corpus:
        """The corpus of a run, which may have been loaded from another place that its text has moved to.

        InputError where the text is no longer the one it was trained on.
        """
        known, text = made_of_text(run.config.data), run.corpus()["hash"]
        moved = [corpus for data, corpus in self.loaded if corpus.hash == text and made_of_text(data) == known]
        corpus = moved[0] if moved else self.load(run.config)
        run.check_same_experiment(corpus)
        return corpus


def made_of_text(data: DataConfig) -> dict:
    """The settings of a corpus that do not say where its text lies."""
    return {key: value for key, value in data if f"data.{key}" not in RUNTIME_KEYS}
