"""Trains one model from a YAML config: python train.py CONFIG.yaml [dotted.key=value …] [--resume | --overwrite]

Or on N processes: torchrun --nproc-per-node N train.py CONFIG.yaml train.parallel=ddp
"""

import shlex
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from base import ArgumentParser, input_errors_end_the_program, lasting_imports
from model.threads import share_the_cores
from training.processes import joined


def parse_arguments() -> Namespace:
    epilog = """examples:
  python train.py configs/quickstart.yaml
  python train.py configs/quickstart.yaml name=mine data.source=novel.txt train.steps=200
  python train.py configs/quickstart.yaml name=mine data.source=novel.txt train.steps=400 --resume"""
    look = {"epilog": epilog, "formatter_class": RawDescriptionHelpFormatter}
    parser = ArgumentParser(description="Train one model from a YAML config.", **look)
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="take precedence over the file")
    taken = parser.add_mutually_exclusive_group()
    taken.add_argument("--resume", action="store_true", help="continue the run from its newest checkpoint")
    taken.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--print-config", action="store_true", help="only print the whole config, each key with its meaning"
    )
    rehearsal_help = "only check config and text, and say what the run will take: parameters, passes, memory, time"
    only.add_argument("--dry-run", action="store_true", help=rehearsal_help)
    return parser.parse_intermixed_args()


def main() -> None:
    with input_errors_end_the_program(), joined() as rank:
        args = parse_arguments()
        # Here because these take seconds: --help and a wrong command line are answered at once.
        with lasting_imports():
            from configs import load_config
            from configs.reference import commented
            from model.checkpoint import best_checkpoint
            from sampling.samples import sample
            from training.facts import closing
            from training.loop import train
            from training.rehearsal import rehearsed
            from training.run import RunFolder

        config = load_config(args.config, args.overrides)
        if args.print_config or args.dry_run:
            if not rank:
                sys.stdout.reconfigure(encoding="utf-8")
                print(commented(config) if args.print_config else rehearsed(config, args.resume, args.overwrite))
            return
        train(config, args.resume, args.overwrite)
        if rank:  # of several processes only the first shows the result
            return
        from comparison.single import draw  # and matplotlib, which training does without

        run = RunFolder(config, resume=True)
        draw(run)  # before the sample, which ends the program where nobody reads it
        print(f"\n{closing(run)}. A sample:\n", file=sys.stderr)
        sys.stdout.reconfigure(encoding="utf-8")
        print(sample(config.folder), flush=True)
        command = [str(Path(sys.argv[0]).with_name("generate.py")), str(run.path)]
        command += ["--checkpoint", "best"] * (best_checkpoint(run.path) != run.newest_checkpoint())
        print(f"\nPictures: {run.path / 'report.html'}, loss.svg", file=sys.stderr)
        print(f'More: python {shlex.join(command)} --prompt "…"', file=sys.stderr)


if __name__ == "__main__":
    share_the_cores()
    main()
