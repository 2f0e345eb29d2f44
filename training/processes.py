"""The processes of one run, which torchrun starts: how each joins the others and leaves them."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import timedelta

from base import InputError

STARTED_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR")
STARTED_BY_TORCHRUN += ("MASTER_PORT", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME")
RENDEZVOUS = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_KEPT = []  # as long as the process lives: gloo's destructor waits for a thread that may wait for Python's lock
TIMEOUT = timedelta(minutes=30)  # for what one process does while the others wait, such as a checkpoint


def number_of_processes() -> int:
    """How many torchrun has started; 1 without it. InputError where the environment is not torchrun's."""
    size = os.environ.get("WORLD_SIZE") or "1"
    if not (size.isdecimal() and int(size)):
        raise InputError(f"WORLD_SIZE: expected a number of processes, as torchrun sets it, got {size!r:.60}")
    if missing := [name for name in RENDEZVOUS if int(size) > 1 and not os.environ.get(name)]:
        raise InputError(
            f"WORLD_SIZE {size}: expected {missing[0]} beside it, as torchrun sets it; unset it for one process"
        )
    return int(size)


@contextmanager
def joined() -> Iterator[int]:
    """Inside it `torch.distributed` works, if torchrun has started this process as one of several; yields its rank.

    Only the process of rank 0 has a stderr. Of all that an error ends only the first may tell it, and one whose
    neighbour has gone ends in a line, too; torchrun then ends the rest.
    """
    if number_of_processes() == 1:
        yield 0
        return
    import torch
    from torch import distributed

    if int(os.environ["LOCAL_RANK"]) < torch.cuda.device_count():  # else none is there, or `pick_engine` will complain
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(distributed.rendezvous("env://"))
    distributed.init_process_group(store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere if rank else sys.stderr):
            yield rank
    except (InputError, RuntimeError) as error:
        is_lost = isinstance(error, distributed.DistError) or "gloo" in str(error)
        if not is_lost and not isinstance(error, InputError):
            raise
        if store.add("told", 1) > 1:
            raise SystemExit(2) from None
        if not is_lost:
            raise
        if re.search("timed? ?out", str(error), re.IGNORECASE):
            raise InputError(
                f"waited {TIMEOUT.seconds // 60} minutes for another process of this run; if the first is preparing a "
                "long text, do that beforehand, with prepare.py"
            ) from None
        raise InputError(
            "another process of this run has ended, so this one ends, too; --resume continues it"
        ) from None
    finally:
        _KEPT.append(distributed.group.WORLD)
        distributed.destroy_process_group()
