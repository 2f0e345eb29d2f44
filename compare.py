"""Trains many variants of one config and compares them: python compare.py CONFIG.yaml [dotted.key=value …]

Or reports on runs that are there already: python compare.py --runs FOLDER FOLDER … [--baseline NAME] [--out FOLDER]
"""

import signal
import sys
from pathlib import Path

from base import ArgumentParser, InputError, input_errors_end_the_program
from comparison.design import CompareConfig, commands, load_comparison, shell
from configs import Config
from model.threads import share_the_cores


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
    from comparison.assemble import gather, write
    from comparison.measure import open_run
    from comparison.schedule import train_all
    from train import train
    from training.run import RunFolder

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
    from comparison.assemble import gather, write
    from comparison.existing import group
    from comparison.measure import open_run

    groups = group([open_run(folder) for folder in folders])
    baseline = baseline or next(iter(groups))
    if baseline not in groups:
        raise InputError(f"--baseline: {baseline!r} is none of the variants found, {', '.join(groups)}")
    return write(gather(groups, baseline, {}, Corpora().of, out.name, planned=False), out)


class Corpora:
    """The corpora of runs, each loaded once."""

    def __init__(self):
        self.loaded = {}

    def load(self, config: Config):
        """The corpus of a config."""
        from data.corpus import load_corpus

        key = config.data.model_dump_json()
        if key not in self.loaded:
            self.loaded[key] = load_corpus(config.data)
        return self.loaded[key]

    def of(self, run):
        """The corpus of a run; InputError where the text is no longer the one it was trained on."""
        corpus = self.load(run.config)
        run.check_same_experiment(corpus.hash)
        return corpus


def parse_arguments():
    parser = ArgumentParser(description="Train many variants of one config and compare them, or runs that are there.")
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="for the comparison or for all runs")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings side by side")
    parser.add_argument("--list", action="store_true", help="print a train.py command for each run, no more")
    parser.add_argument("--runs", nargs="+", type=Path, metavar="FOLDER", help="report on these runs alone")
    parser.add_argument("--baseline", metavar="NAME", help="with --runs: the variant to compare with, or the first")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="with --runs: the report's folder, or runs/report")
    args = parser.parse_intermixed_args()
    if bool(args.config) == bool(args.runs):
        parser.error("give a CONFIG.yaml, or --runs with folders")
    if not args.runs and (args.baseline or args.out):
        parser.error("--baseline and --out go with --runs")
    if args.runs and (args.list or args.jobs != 1):
        parser.error("--list and --jobs go with a CONFIG.yaml")
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: at least 1")
    return args


def main() -> None:
    with input_errors_end_the_program():
        args = parse_arguments()
        if args.runs:
            out = args.out or Path("runs/report")
            print(report(args.runs, args.baseline, out))
        else:
            comparison, configs = load_comparison(args.config, args.overrides)
            arguments, out = commands(comparison, args.config), comparison.folder
            if args.list:
                for config in (config for runs in configs.values() for config in runs):
                    resume = ["--resume"] * (config.folder / "config.yaml").is_file()
                    print(shell([*arguments[config.name], *resume]))
                return
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that side by side trainings are stopped too
            print(compare(comparison, configs, args.jobs, arguments))
        print(f"written to {out}: report.html, report.md, results.json", file=sys.stderr)


if __name__ == "__main__":
    share_the_cores()
    main()
