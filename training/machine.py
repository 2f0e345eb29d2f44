"""What the machine allows a run: threads, a compiler, memory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from base import InputError
from model.device import is_out_of_memory
from model.transformer import Transformer


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Gives PyTorch this number of threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compile_where_possible(model: Transformer) -> None:
    """Compiles all but the output layer in place, which keeps the weights' names; warns if there is no compiler."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=next(model.parameters()).device))
    except Exception as error:  # a missing C++ compiler shows as one of several internal errors of torch
        print(f"warning: torch.compile does not work here ({type(error).__name__}); eager mode", file=sys.stderr)
    else:
        model.hidden_states = torch.compile(model.hidden_states)  # not forward, which the loss bypasses


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
