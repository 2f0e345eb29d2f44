"""Trains one model from a YAML config: python train.py CONFIG.yaml [dotted.key=value …] [--resume | --overwrite]"""

import math
import sys
import time

from base import ArgumentParser, InputError, input_errors_end_the_program, share_the_cores
from configs import Config, load_config

# torch, datasets and the modules on top of them take seconds to import: the functions that need them import them,
# so that --help and a mistake in a config answer at once.


def train(config: Config, resume: bool = False, overwrite: bool = False) -> dict:
    """Trains to config.train.steps and returns the last evaluation row: step, tokens, val_loss, val_bits_per_byte.

    Writes the run folder. Batch i depends on config.seed and i alone, so a resumed run goes on where it stopped.
    Raises InputError before anything is written where config, corpus and folder do not fit together.
    """
    from tqdm import tqdm

    from data.batches import Batches
    from data.corpus import load_corpus
    from data.tokenizer import tokenizer_files
    from model.checkpoint import load_checkpoint, load_trainer, save_checkpoint
    from model.device import autocast, pick_device
    from model.transformer import Transformer
    from training.evaluation import bits_per_byte, evaluate
    from training.optimizer import build_optimizer, compile_where_possible, learning_rate, optimizer_step
    from training.run import RunFolder
    from training.tracking import build_tracker

    RunFolder(config, resume, overwrite)  # refuses a taken folder before the corpus is read
    corpus = load_corpus(config.data)
    config = fit_to_corpus(config, corpus)
    run, settings, context = RunFolder(config, resume, overwrite), config.train, config.model.max_position_embeddings
    batches = Batches(corpus.train, context, settings.batch_size, config.seed)
    device = pick_device(settings.device)

    done, optimizer_state = 0, None
    if resume:
        run.check_same_experiment(corpus.hash)
        if checkpoint := run.newest_checkpoint():
            model, trainer = load_checkpoint(checkpoint), load_trainer(checkpoint)
            done, optimizer_state = trainer["step"], trainer["optimizer"]
        if done > settings.steps:
            raise InputError(f"train.steps: {settings.steps} is less than the {done} that {run.path} has done")
        run.write_config()
    else:
        run.start(corpus, overwrite)
    if not done:
        model = Transformer(config.model, config.seed)
    model.to(device)
    optimizer = build_optimizer(model, settings)
    if optimizer_state:
        optimizer.load_state_dict(optimizer_state)
    run.forget_after(done)
    if settings.compile:
        compile_where_possible(model)

    tracker, busy, busy_steps = build_tracker(config), 0.0, 0
    bar = tqdm(range(done + 1, settings.steps + 1), config.name, settings.steps, initial=done)
    for step in bar:
        begun = time.perf_counter()
        rate = learning_rate(step, settings)
        input_ids, targets = (ids.to(device) for ids in batches[step - 1])
        loss, norm = optimizer_step(model, optimizer, input_ids, targets, rate, settings)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise InputError(
                f"step {step}: the loss or its gradient is not finite at train.learning_rate {rate:.2g}; "
                f"{run.path} keeps what was saved before"
            )
        busy, busy_steps = busy + time.perf_counter() - begun, busy_steps + 1

        rows, tokens = [], step * settings.batch_size * context
        if step % settings.log_every == 0 or step == settings.steps:
            speed = busy_steps * settings.batch_size * context / busy
            row = {"train_loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens_per_second": speed}
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
        if is_due(settings.checkpoint_every, step, settings.steps):
            trainer = {"step": step, "optimizer": optimizer.state_dict()}
            save_checkpoint(run.checkpoint(step), model, tokenizer_files(corpus.tokenizer), trainer)
            run.keep_only(run.checkpoint(step))
    tracker.finish()
    return [row for row in run.metrics() if "val_loss" in row][-1]


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
    return config.model_copy(
        update={"model": model.model_copy(update={"vocab_size": model.vocab_size or vocab_size})}
    )


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
        print(f'\nMore: python generate.py {config.folder} --prompt "…"', file=sys.stderr)


if __name__ == "__main__":
    main()
