"""What is known of a run before its first step and after its last, in words."""

from operator import itemgetter

import torch

from configs import Config
from data.corpus import Corpus
from model.checkpoint import best_checkpoint
from training.run import RunFolder

MOST_PASSES = 4  # up to which repeated text is worth about as much as new one (Muennighoff et al. 2023)


def opening(config: Config, corpus: Corpus, parameters: int, device: torch.device, tokens: int) -> list[str]:
    """Lines to print at the start. tokens: the targets of the whole training."""
    train, weights = config.train, sum(part.weight for part in corpus.parts)
    times = max(tokens * part.weight / weights / len(part.train) for part in corpus.parts)
    repeated = f"{times:.2g} passes" if times < 10 else f"{times:,.0f} passes"
    place = f"{device}, {train.threads} thread{'s' * (train.threads > 1)}" if device.type == "cpu" else f"{device}"
    said = [
        f"{config.name}: {parameters:,} parameters on {place}; {train.steps:,} steps, {tokens:,} tokens: "
        f"{repeated} over {'the most repeated source' if len(corpus.parts) > 1 else 'the text'}"
    ]
    if train.warmup != train.warmup_steps:
        said.append(
            f"train.warmup_steps {train.warmup_steps} is more than the {train.position_steps} steps there are; "
            f"the warm-up takes {train.warmup}"
        )
    if times > MOST_PASSES:
        said.append(
            f"warning: {repeated} over the text: beyond {MOST_PASSES} the validation loss may rise while the "
            "training loss falls; train.eval_every shows it, more text or fewer train.steps help"
        )
    return said


def closing(run: RunFolder) -> str:
    """How a finished run ended, and where its validation loss was lowest."""
    rows = [row for row in run.metrics() if "val_loss" in row]
    last, lowest = rows[-1], min(rows, key=itemgetter("val_loss"))
    each = ", ".join(f"{key[9:]} {loss:.4f}" for key, loss in last.items() if key.startswith("val_loss/"))
    kept = run.checkpoint(lowest["step"])
    where = kept if kept == best_checkpoint(run.path) else "of which no checkpoint was kept"
    return (
        f"{run.path}: validation loss {last['val_loss']:.4f} nats per token{f' ({each})' * bool(each)}, "
        f"{last['val_bits_per_byte']:.4f} bits per byte after {last['tokens']:,} tokens; "
        f"lowest {lowest['val_loss']:.4f} after step {lowest['step']}, {where}"
    )


def duration(seconds: float) -> str:
    """In seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
