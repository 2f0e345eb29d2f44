"""Everything worth measuring on a GPU, in a few minutes: python benchmarks/gpu.py

Training at 124M parameters with the product's own step: bfloat16 autocast, fused AdamW or Muon, eager and compiled. Model
FLOPs utilization is relative to the matrix rate measured on the same card: 6 operations per weight of a matrix and token,
and 12 · layers · width · context / 2 for causal attention. Then sampling, one text and eight. Without a GPU it runs at a
tiny shape, only to show that the script works.
"""

import platform
import statistics

from side_by_side import seconds, table

import torch

from configs import TrainConfig
from model.config import ModelConfig
from model.context import Context
from model.device import pick_device
from model.generation import generate
from model.transformer import Transformer
from training.machine import compile_where_possible
from training.optimizer import build_optimizer
from training.step import optimizer_step

DEVICE = pick_device()
if DEVICE.type == "cpu":
    SHAPE = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=512)
    CONTEXT, BATCH, PART, STEPS, SIDE, DTYPE = 64, 4, 2, 3, 512, torch.float32
else:
    SHAPE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, vocab_size=50304)
    CONTEXT, BATCH, PART, STEPS, SIDE, DTYPE = 1024, 64, 32, 10, 8192, torch.bfloat16


def wait() -> None:
    """Waits until the device has finished."""
    if DEVICE.type != "cpu":
        getattr(torch, DEVICE.type).synchronize()


def median(call, rounds: int) -> float:
    """Median seconds of a call, after three to warm up."""
    for _ in range(3):
        call()
    wait()
    return statistics.median(seconds(lambda: (call(), wait())) for _ in range(rounds))


def matrix_rate() -> float:
    """FLOP/s of products of two square matrices."""
    a, b = (torch.rand(SIDE, SIDE, device=DEVICE, dtype=DTYPE) for _ in range(2))
    return 2 * SIDE**3 / median(lambda: a @ b, 20)


def training(optimizer_name: str, compiled: bool, rate: float) -> dict:
    config = TrainConfig(optimizer=optimizer_name, micro_batch_size=PART, batch_size=BATCH)
    model = Transformer(ModelConfig(**SHAPE, max_position_embeddings=CONTEXT)).to(DEVICE)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    layers, width = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
    if compiled:
        compile_where_possible(model)
    optimizer = build_optimizer(model, config)
    ids = torch.randint(SHAPE["vocab_size"], (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = ids[:, :-1].to(DEVICE), ids[:, 1:].to(DEVICE)
    taken = median(lambda: optimizer_step(model, optimizer, inputs, targets, 1e-4, config), STEPS)
    flop = 6 * BATCH * CONTEXT * (matrices + layers * width * CONTEXT)
    memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if DEVICE.type == "cuda" else ""
    return {
        f"{matrices / 1e6:.0f}M, {BATCH} × {CONTEXT} in parts of {PART}": optimizer_name,
        "compiled": "yes" if compiled else "no",
        "ms a step": f"{1e3 * taken:.1f}",
        "tokens/s": f"{BATCH * CONTEXT / taken:,.0f}",
        "utilization": f"{flop / taken / rate:.1%}",
        "memory": memory,
    }


def sampling(count: int, dtype: torch.dtype) -> dict:
    model = Transformer(ModelConfig(**SHAPE, max_position_embeddings=CONTEXT)).to(DEVICE)
    prompt, new = torch.zeros(64, dtype=torch.long, device=DEVICE), 4 * STEPS
    taken = median(lambda: list(generate(Context(model, dtype), prompt, new, num_samples=count)), 3)
    return {"samples": count, "weights": str(dtype), "tokens/s": f"{count * new / taken:,.0f}"}


def main() -> None:
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.machine()
    rate = matrix_rate()
    print(f"{name}, torch {torch.__version__}: {rate / 1e12:.2f} TFLOP/s in products of {SIDE} × {SIDE} {DTYPE}\n")
    print(table([training(kind, fast, rate) for kind in ("adamw", "muon") for fast in (False, True)]) + "\n")
    print(table([sampling(count, dtype) for dtype in (torch.float32, DTYPE) for count in (1, 8)]))


if __name__ == "__main__":
    main()
