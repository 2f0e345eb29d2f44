"""Trains one model from a YAML config: python train.py CONFIG.yaml [dotted.key=value …] [--resume | --overwrite]"""

import math
import shlex
import sys
import time
from contextlib import contextmanager

from base import ArgumentParser, InputError, input_errors_end_the_program, share_the_cores
from configs import Config, load_config

# torch, datasets and the modules on top of them take seconds to import: the functions that need them import them,
# so that --help and a mistake in a config answer at once.


def train(config: Config, resume: bool = False, overwrite: bool = False) -> dict:
    """Trains to config.train.steps and returns the last evaluation row: step, tokens, val_loss, val_bits_per_byte.

    Writes the run folder. Batch i depends on config.seed and i alone, so a resumed run goes on where it stopped.
    SIGINT or SIGTERM finish the step, write a checkpoint and end the program with status 130 or 143.
    Raises InputError before anything is written where config, corpus and folder do not fit together, and later where
    loss or gradient are not finite, or the disk or the device's memory are full.
    """
    from data.batches import Batches
    from data.corpus import load_corpus
    from model.device import pick_device
    from training.run import RunFolder
    from training.stopping import signals_received

    RunFolder(config, resume, overwrite)  # refuses a taken folder before the corpus is read
    corpus = load_corpus(config.data)
    config = fit_to_corpus(config, corpus)
    run = RunFolder(config, resume, overwrite)
    batches = Batches(corpus.train, config.model.max_position_embeddings, config.train.batch_size, config.seed)
    device = pick_device(config.train.device)
    with run.locked(), signals_received() as signals:
        model, optimizer, trainer = resumed(run, corpus, device) if resume else started(run, corpus, device)
        train_steps(run, corpus, batches, model, optimizer, trainer, signals)
    return [row for row in run.metrics() if "val_loss" in row][-1]


def started(run, corpus, device) -> tuple:
    """The model, the optimizer and the trainer's state of a new run, in a fresh folder."""
    model, optimizer = build(run.config, device)
    run.start(corpus)
    return model, optimizer, {"step": 0, "skipped": 0}


def resumed(run, corpus, device) -> tuple:
    """Those of the run in the folder as it was at its newest checkpoint, or from the start where it has none."""
    from model.checkpoint import TRAINER, load_checkpoint, load_trainer
    from training.optimizer import restore_optimizer

    run.check_same_experiment(corpus.hash)
    checkpoint, trainer = run.newest_checkpoint(), {"step": 0, "skipped": 0}
    model, optimizer = build(run.config, device, checkpoint and load_checkpoint(checkpoint))
    if checkpoint:
        stored = load_trainer(checkpoint)
        try:
            restore_optimizer(optimizer, stored.get("optimizer"))
            trainer = {key: int(stored.get(key, 0)) for key in trainer}
            if run.checkpoint(trainer["step"]) != checkpoint:
                raise ValueError(f"of step {trainer['step']}")
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{checkpoint / TRAINER}: not the state of this run ({error})") from None
    if trainer["step"] > run.config.train.steps:
        raise InputError(
            f"train.steps: {run.config.train.steps} is less than the {trainer['step']} that {run.path} has done"
        )
    run.write_config()
    run.forget_after(trainer["step"])
    run.prune()
    return model, optimizer, trainer


def build(config: Config, device, model=None) -> tuple:
    """The model, new unless given, on the device, and its optimizer."""
    from model.transformer import Transformer
    from training.optimizer import build_optimizer

    try:
        model = (model or Transformer(config.model, config.seed)).to(device)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise InputError(f"model: a tensor of it does not fit into memory ({str(error):.100})") from None
    return model, build_optimizer(model, config.train)


def train_steps(run, corpus, batches, model, optimizer, trainer: dict, signals: list[int]) -> None:
    """Takes the steps that are left, with all that belongs to one; a signal ends them after the step under way.

    trainer: the step that is done, and how many of those before it were skipped.
    """
    from tqdm import tqdm

    from data.tokenizer import tokenizer_files
    from model.checkpoint import save_checkpoint
    from model.device import autocast, to_device
    from training.evaluation import bits_per_byte, evaluate
    from training.optimizer import compile_where_possible, learning_rate, optimizer_step
    from training.tracking import build_tracker

    config, settings, context = run.config, run.config.train, run.config.model.max_position_embeddings
    device = model.output_weight.device
    done, skipped = trainer["step"], trainer["skipped"]
    if settings.compile:
        compile_where_possible(model)
    tracker, busy, busy_steps = build_tracker(config), 0.0, 0
    bar = tqdm(range(done + 1, settings.steps + 1), config.name, settings.steps, initial=done)
    for step in bar:
        begun = time.perf_counter()
        rate = learning_rate(step, settings)
        input_ids, targets = (to_device(ids, device) for ids in batches[step - 1])
        with advice_where_memory_ends(settings, device):
            loss, norm = optimizer_step(model, optimizer, input_ids, targets, rate, settings)
        busy, busy_steps = busy + time.perf_counter() - begun, busy_steps + 1
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if not is_finite:
            skipped += 1
            problem = f"step {step}: loss {loss:.4g}, gradient's norm {norm:.4g} at train.learning_rate {rate:.2g}"
            if skipped > settings.max_skipped_steps:
                raise InputError(f"{problem}; the last good checkpoint is {run.newest_checkpoint() or 'none yet'}")
            tqdm.write(f"warning: {problem}; left out, {skipped} of {settings.max_skipped_steps}", file=sys.stderr)

        rows, tokens = [], step * settings.batch_size * context
        if step % settings.log_every == 0 or step == settings.steps or not is_finite:
            speed = busy_steps * settings.batch_size * context / busy
            losses = {"train_loss": loss, "grad_norm": norm} if is_finite else {"train_loss": None, "grad_norm": None}
            row = {**losses, "learning_rate": rate, "tokens_per_second": speed}
            rows.append(row | model.position.metrics())
            bar.set_postfix_str(f"loss {loss:.3f}, lr {rate:.1e}, {speed:,.0f} tokens/s")
            busy, busy_steps = 0.0, 0
        if is_due(settings.eval_every, step, settings.steps):
            with autocast(settings.dtype, device):
                nats = evaluate(model, corpus.val, context)
            per_byte = bits_per_byte(nats, corpus.val_bytes)
            rows.append({"val_loss": nats / (len(corpus.val) - 1), "val_bits_per_byte": per_byte})
        for row in rows:
            row = {"step": step, "tokens": tokens, **row}
            run.log(row)
            tracker.log(row)
        if is_due(settings.checkpoint_every, step, settings.steps) or signals:
            trainer = {"step": step, "skipped": skipped, "optimizer": optimizer.state_dict()}
            save_checkpoint(run.checkpoint(step), model, tokenizer_files(corpus.tokenizer), trainer)
            run.prune()
        if signals:
            bar.close()
            tracker.finish()
            again = shlex.join(["python", "train.py", str(run.path / "config.yaml"), "--resume"])
            print(f"stopped after step {step} of {settings.steps}; to go on: {again}", file=sys.stderr)
            raise SystemExit(128 + signals[0])
    tracker.finish()


@contextmanager
def advice_where_memory_ends(settings, device):
    """Turns a device's lack of memory into an InputError that says how the same batch fits into less."""
    from model.device import is_out_of_memory

    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    else:
        return
    together = min(settings.micro_batch_size, settings.batch_size)
    if together == 1:
        raise InputError(
            f"model: a single sequence is more than the memory of {device} holds; use a smaller model or a shorter "
            "model.max_position_embeddings"
        )
    fewer = together // 2
    raise InputError(
        f"train.micro_batch_size: {together} sequences at once are more than the memory of {device} holds; "
        f"train.micro_batch_size={fewer} makes the same batch of {settings.batch_size} in "
        f"{-(-settings.batch_size // fewer)} parts"
    )


def is_due(every: int | None, step: int, steps: int) -> bool:
    """Whether something is done after this step: every so many (None: never), and always after the last."""
    return step == steps or (every is not None and step % every == 0)


def fit_to_corpus(config: Config, corpus) -> Config:
    """The config with the vocabulary's size filled in; InputError where a split is shorter than one context."""
    needed, model = config.model.max_position_embeddings + 1, config.model
    if min(len(corpus.train), len(corpus.val)) < needed:
        raise InputError(
            f"data.source: {config.data.source} has {len(corpus.train)} tokens for training and {len(corpus.val)} "
            f"for validation; each needs model.max_position_embeddings + 1 = {needed}"
        )
    vocab_size = corpus.tokenizer.get_vocab_size()
    if model.vocab_size is not None and model.vocab_size < vocab_size:
        raise InputError(f"model.vocab_size: {model.vocab_size} is less than the tokenizer's {vocab_size}")
    return config.model_copy(update={"model": model.model_copy(update={"vocab_size": model.vocab_size or vocab_size})})


def sample(config: Config, max_new_tokens: int = 128) -> str:
    """Text that the finished run continues an empty prompt with, as far as its scheme has positions."""
    import torch

    from data.tokenizer import END_OF_TEXT, load_tokenizer
    from model.checkpoint import find_checkpoint, load_checkpoint
    from model.generation import generate

    folder = find_checkpoint(config.folder)
    model, tokenizer = load_checkpoint(folder), load_tokenizer(folder)
    start = torch.tensor([tokenizer.token_to_id(END_OF_TEXT)])
    count = min(max_new_tokens, model.position.max_length or max_new_tokens)
    return tokenizer.decode([ids.item() for ids in generate(model, start, count, temperature=0.8)])


def main() -> None:
    parser = ArgumentParser(description="Train one model from a YAML config.")
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="take precedence over the file")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="continue the run from its last checkpoint")
    existing.add_argument("--overwrite", action="store_true", help="replace the run that the folder holds")
    share_the_cores()
    with input_errors_end_the_program():
        args = parser.parse_intermixed_args()
        config = load_config(args.config, args.overrides)
        row = train(config, args.resume, args.overwrite)
        print(
            f"\n{config.folder}: validation loss {row['val_loss']:.4f} nats per token, "
            f"{row['val_bits_per_byte']:.4f} bits per byte after {row['tokens']:,} tokens. A sample:\n",
            file=sys.stderr,
        )
        sys.stdout.reconfigure(encoding="utf-8")
        print(sample(config), flush=True)
        print(f'\nMore: python generate.py {shlex.quote(str(config.folder))} --prompt "…"', file=sys.stderr)


if __name__ == "__main__":
    main()
