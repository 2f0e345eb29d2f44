"""Whether two processes do what scale.py says of them: python benchmarks/scale_check.py

Counts the bytes of its formulas in two real processes (gloo, on the CPU) and in one, for a small model, and exits
with 1 where any differs. Seconds, and the memory of the optimizer's step, are not checked.
"""

import os
import subprocess
import sys
from collections import Counter

from side_by_side import table
from scale import Count, activations, collectives, held

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from configs import TrainConfig
from model.config import ModelConfig
from model.device import autocast
from model.transformer import Transformer
from training.alone import Alone
from training.optimizer import build_optimizer
from training.processes import joined
from training.ranks import ENGINES
from training.step import optimizer_step

SMALL = ModelConfig(
    hidden_size=20,
    num_hidden_layers=3,
    num_attention_heads=5,
    num_key_value_heads=1,
    intermediate_size=33,
    vocab_size=47,
    tie_word_embeddings=False,
    max_position_embeddings=16,
)  # of odd sizes, which two processes have to pad


class Traffic(TorchDispatchMode):
    """Counts the bytes of whole tensors in collectives, by kind."""

    KINDS = {
        "c10d::allreduce_": "all-reduce",
        "_c10d_functional::all_reduce": "all-reduce",
        "c10d::_allgather_base_": "all-gather",
        "c10d::_reduce_scatter_base_": "reduce-scatter",
        "_c10d_functional::all_gather_into_tensor": "all-to-all",  # in place of one, which gloo lacks; given a part
    }

    def __init__(self, processes: int):
        super().__init__()
        self.processes, self.whole = processes, Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it does with its parts comes next
        name = function.name()
        if name.startswith(("c10d::", "_c10d_functional::")) and "wait" not in name and "_wrap" not in name:
            kind = self.KINDS.get(name, name)
            largest = max(each.nbytes for each in tree_leaves(args) if isinstance(each, torch.Tensor))
            self.whole[kind] += largest * (self.processes if kind == "all-to-all" else 1)
        return function(*args, **(kwargs or {}))


def part(tensor: torch.Tensor) -> int:
    """Bytes of it in this process."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes


def counted(engine: Alone) -> list[tuple[str, int, int]]:
    """Of each thing its bytes by the formula and in a step of this process, which must be rank 0 to have them all."""
    name, size, cpu = type(engine).__name__.lower(), engine.size, torch.device("cpu")
    settings = TrainConfig(batch_size=4 * size, micro_batch_size=2, dtype="bfloat16")
    model = engine.place(lambda: Transformer(SMALL), cpu)
    optimizer, gradients, kept = build_optimizer(model, settings, engine), [], {}
    batch = torch.zeros(settings.batch_size, SMALL.max_position_embeddings + 1, dtype=torch.long)
    rows = batch[:, :-1], batch[:, 1:]
    for _ in range(2):  # ddp settles its buckets
        optimizer_step(model, optimizer, *rows, 1e-3, settings, engine)
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(sum(part(p.grad) for p in model.parameters() if p.grad is not None))
    )
    with Traffic(size) as traffic:
        optimizer_step(model, optimizer, *rows, 1e-3, settings, engine)
    own = {each.untyped_storage().data_ptr() for each in model.parameters() if not isinstance(each, DTensor)}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and not isinstance(tensor, nn.Parameter):
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # which keeps another from taking its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast("bfloat16", cpu):
        loss = engine.summed_loss(model, *(each[:2].clone() for each in rows), is_last=True)
    loss.backward()
    moments = sum(part(each) for own in optimizer.state.values() for key, each in own.items() if key != "step")
    state = {"weights": sum(map(part, model.parameters())), "gradients": gradients[0], "moments": moments}
    count, found = Count(SMALL), activations(SMALL, 2 * SMALL.max_position_embeddings)
    expected = held(SMALL, name, size) | collectives(SMALL, name, size, micro_batches=2)
    expected["kept for backward"] = found["blocks"] + found["ends"] + 2 * count.muon + 4 * count.output
    state |= traffic.whole | {"kept for backward": sum(size for size, _ in kept.values())}
    return [(f"{name}: {key}", expected.get(key, 0), state.get(key, 0)) for key in expected | state]


def check() -> int:
    """In one of several processes: prints in rank 0 what was expected and counted; 1 if any differs."""
    with joined() as rank:
        found = [each for kind in ENGINES.values() for each in counted(kind())]
        if rank:
            return 0
        print(table([{"bytes": what, "formula": f"{one:,}", "counted": f"{two:,}"} for what, one, two in found]))
        wrong = [f"{what}: {two:,} bytes, {one:,} by the formula" for what, one, two in found if one != two]
        print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
        return int(bool(wrong))


def main() -> None:
    if "RANK" in os.environ:
        sys.exit(check())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    sys.exit(subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode)


if __name__ == "__main__":
    main()
