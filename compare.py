"""Trains variants of one config and compares them: python compare.py CONFIG.yaml [dotted.key=value …]

Or reports on finished runs: python compare.py --runs FOLDER FOLDER … [--baseline NAME] [--out FOLDER]
"""

import signal
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from base import ArgumentParser, InputError, input_errors_end_the_program, lasting_imports
from model.threads import share_the_cores


def parse_arguments() -> Namespace:
    epilog = """examples:
  python compare.py configs/compare.yaml
  python compare.py configs/compare.yaml name=mine data.source=novel.txt seeds=[0,1,2]
  python compare.py --runs runs/one runs/other"""
    look = {"epilog": epilog, "formatter_class": RawDescriptionHelpFormatter}
    said = "Train variants of one config and compare them, or compare finished runs."
    parser = ArgumentParser(description=said, **look)
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="for the comparison or for all runs")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs to train at the same time")
    parser.add_argument("--list", action="store_true", help="only print a train.py command for each run to be made now")
    parser.add_argument("--runs", nargs="+", type=Path, metavar="FOLDER", help="only report on these runs")
    parser.add_argument("--baseline", metavar="NAME", help="with --runs: variant to compare with (default: the first)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="with --runs: report folder (default: runs/report)")
    args = parser.parse_intermixed_args()
    if bool(args.config) == bool(args.runs):
        parser.error("expected either a CONFIG.yaml or --runs with folders")
    if not args.runs and (args.baseline or args.out):
        parser.error("--baseline and --out are only for --runs")
    if args.runs and (args.list or args.jobs != 1):
        parser.error("--list and --jobs are only for a CONFIG.yaml")
    if args.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {args.jobs}")
    return args


def main() -> None:
    with input_errors_end_the_program():
        args = parse_arguments()
        # Here, since it takes seconds: --help and a wrong command line are answered at once.
        with lasting_imports():
            from comparison.commands import compare, report
            from comparison.design import load_comparison, shell
            from comparison.tuning import logged_runs, next_runs
            from training.processes import number_of_processes
            from training.run import RunFolder

        sys.stdout.reconfigure(encoding="utf-8")
        if number_of_processes() > 1:
            raise InputError(
                "compare.py: expected to be started without torchrun; --list names its runs, for schedulers"
            )
        if args.runs:
            out = args.out or Path("runs/report")
            print(report(args.runs, args.baseline, out))
            parts = [out]
        else:
            comparison = load_comparison(args.config, args.overrides)
            out = comparison.config.folder
            if args.list:
                for run in (run for part in comparison.parts().values() for run in next_runs(part)):
                    if logged_runs([run]) == [None]:
                        print(shell(run, *["--resume"] * RunFolder.exists(run.config)))
                return
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that train.py processes are stopped too
            print(compare(comparison, args.jobs))
            parts = [part.config.folder for part in comparison.parts().values()]
        for folder in dict.fromkeys([*parts, out]):
            results = ", results.json" * (folder in parts)  # there is none of all conditions together
            print(f"written to {folder}: report.html, report.md{results}", file=sys.stderr)


if __name__ == "__main__":
    share_the_cores()
    main()
