"""What the machine allows a run: processes, threads, a compiler, memory."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from base import InputError
from configs import TrainConfig
from model import threads
from model.device import is_out_of_memory, pick_device
from model.transformer import Transformer
from training.alone import ALONE, Alone
from training.processes import number_of_processes


def pick_engine(config: TrainConfig) -> Alone:
    """That of train.parallel where torchrun has started several processes. InputError: they do not fit the config."""
    if (size := number_of_processes()) == 1:
        return ALONE
    from training.ranks import ENGINES  # which loads much that one process does not need

    if config.parallel is None:
        raise InputError(f"train.parallel: expected {' or '.join(ENGINES)} with {size} processes, got null")
    if config.batch_size % size:
        raise InputError(f"train.batch_size: expected a multiple of the {size} processes, got {config.batch_size}")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if pick_device(config.device).type == "cuda" and here > gpus:
        raise InputError(
            f"train.device: expected a GPU for each of {here} processes, got {gpus}; train.device=cpu needs none"
        )
    return ENGINES[config.parallel]()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Gives PyTorch this number of threads inside the block."""
    before = torch.get_num_threads(), threads.chosen
    torch.set_num_threads(count)
    threads.chosen = count
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        threads.chosen = before[1]


def compile_where_possible(model: Transformer, engine: Alone = ALONE) -> None:
    """Compiles the model as the engine does it; warns if there is no compiler."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=next(model.parameters()).device))
    except Exception as error:  # a missing C++ compiler shows as one of several internal errors of torch
        print(f"warning: torch.compile does not work here ({type(error).__name__}); eager mode", file=sys.stderr)
    else:
        engine.compile(model)


@contextmanager
def explain_out_of_memory(device: torch.device, sequences: int, batch_size: int) -> Iterator[None]:
    """Turns running out of device memory into an InputError that says how to need less.

    sequences: how many go through the model at once.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        sequences = min(sequences, batch_size)
        if sequences == 1:
            raise InputError(
                f"model: one sequence needs more memory than {device} has; use a smaller model or a shorter "
                "model.max_position_embeddings"
            ) from None
        fewer = sequences // 2
        raise InputError(
            f"train.micro_batch_size: {sequences} sequences at once need more memory than {device} has; "
            f"train.micro_batch_size={fewer} makes the same batch of {batch_size} in {-(-batch_size // fewer)} parts"
        ) from None
