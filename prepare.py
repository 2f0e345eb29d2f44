"""Prepares the text of a run, so that it then starts at once: python prepare.py CONFIG.yaml [dotted.key=value …]"""

import sys
from argparse import Namespace

from base import ArgumentParser, input_errors_end_the_program, lasting_imports, printable


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description="Tokenize the text of a YAML config. After a kill, the same command goes on.")
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="take precedence over the file")
    return parser.parse_intermixed_args()


def main() -> None:
    with input_errors_end_the_program():
        args = parse_arguments()
        # Here because these take seconds: --help and a wrong command line are answered at once.
        with lasting_imports():
            from configs import load_config
            from data.corpus import load_corpus

        corpus = load_corpus(load_config(args.config, args.overrides).data)
        for part in corpus.parts:
            sizes = f"{len(part.train):,} tokens to train on, {len(part.val):,} to validate"
            print(f"{printable(part.name)}: {sizes}", file=sys.stderr)


if __name__ == "__main__":
    main()
