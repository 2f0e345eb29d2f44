"""Everything worth measuring on a GPU, within ten minutes: python benchmarks/gpu.py

Training at 124M parameters with the product's own step: bfloat16 autocast, fused AdamW or Muon, eager and compiled. Model
FLOPs utilization is relative to the matrix rate measured on the same card: 6 operations per weight of a matrix and token,
and 12 · layers · width · context / 2 for causal attention. Sampling, one text and eight, eager and compiled. Every scheme in float32 beside
float64 on the CPU: logits of a pass, logits over a cache, and the gradient's norm. Training in bfloat16 beside float32, on
the same text and for as long. What every scheme costs beside rope.

A section leaves out what would not fit into its seconds, and says so; so does what fails, and the rest goes on. Without a
GPU all is tiny, only to show that the script works.
"""

import math
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

from side_by_side import seconds, table

import numpy
import torch

from comparison.cost import measure_costs
from configs import Config, TrainConfig
from model.cache import Cache
from model.config import ModelConfig
from model.context import Context
from model.device import pick_device
from model.generation import generate
from model.position import POSITIONS
from model.transformer import Transformer
from training.alone import ALONE
from training.loss import summed_loss
from training.machine import compile_where_possible
from training.optimizer import build_optimizer
from training.step import optimizer_step

DEVICE = pick_device()
if DEVICE.type == "cpu":
    SHAPE = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=512)
    CONTEXT, BATCH, PART, STEPS, SIDE, DTYPE = 64, 4, 2, 3, 512, torch.float32
    SMALL, SMALL_CONTEXT, SMALL_BATCH, PARITY_CONTEXTS, PRECISION = SHAPE, 16, 4, (64,), 1
else:
    SHAPE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, vocab_size=50304)
    CONTEXT, BATCH, PART, STEPS, SIDE, DTYPE = 1024, 64, 32, 10, 8192, torch.bfloat16
    SMALL = dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, vocab_size=8192)
    SMALL_CONTEXT, SMALL_BATCH, PARITY_CONTEXTS, PRECISION = 512, 16, (64, 1536), 60  # 1536: in blocks of queries
PARITY = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128)
SYMBOLS, SUCCESSORS = 64, 4
FOLLOWING = numpy.random.default_rng(0).integers(SYMBOLS, size=(SYMBOLS, SYMBOLS, SUCCESSORS))


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


def section(title: str, budget: float, cells: dict[str, Callable[[], list[dict]]]) -> None:
    """Prints the rows of each cell that fits into the budget in seconds if it takes as long as the longest before it."""
    rows, others, longest, begun = [], [], 0.0, time.perf_counter()
    for name, cell in cells.items():
        started = time.perf_counter()
        if started - begun + longest > budget:
            others.append(f"{name}: no time")
            continue
        try:
            rows += cell()
        except Exception as error:  # of any part, which is worth knowing, but not all other figures
            others.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
        longest = max(longest, time.perf_counter() - started)
    print(f"{title}, {time.perf_counter() - begun:.0f} s of {budget}\n")
    print("\n".join([table(rows) if rows else "", *(f"\nnot measured: {each}" for each in others)]) + "\n", flush=True)


def matrix_rate() -> float:
    """FLOP/s of products of two square matrices."""
    a, b = (torch.rand(SIDE, SIDE, device=DEVICE, dtype=DTYPE) for _ in range(2))
    return 2 * SIDE**3 / median(lambda: a @ b, 20)


def training(optimizer_name: str, compiled: bool, rate: float) -> list[dict]:
    config = TrainConfig(optimizer=optimizer_name, micro_batch_size=PART, batch_size=BATCH)
    model = Transformer(ModelConfig(**SHAPE, max_position_embeddings=CONTEXT)).to(DEVICE)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    layers, width = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
    if compiled:
        compile_where_possible(model)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    optimizer = build_optimizer(model, config)
    ids = torch.randint(SHAPE["vocab_size"], (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = ids[:, :-1].to(DEVICE), ids[:, 1:].to(DEVICE)
    taken = median(lambda: optimizer_step(model, optimizer, inputs, targets, 1e-4, config), STEPS)
    flop = 6 * BATCH * CONTEXT * (matrices + layers * width * CONTEXT)
    memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if DEVICE.type == "cuda" else ""
    row = {
        f"{matrices / 1e6:.0f}M, {BATCH} × {CONTEXT} in parts of {PART}": optimizer_name,
        "compiled": "yes" if compiled else "no",
        "ms a step": f"{1e3 * taken:.1f}",
        "tokens/s": f"{BATCH * CONTEXT / taken:,.0f}",
        "utilization": f"{flop / taken / rate:.1%}",
        "memory": memory,
    }
    return [row]


def sampling(count: int, dtype: torch.dtype, compiled: bool) -> list[dict]:
    model = Transformer(ModelConfig(**SHAPE, max_position_embeddings=CONTEXT)).to(DEVICE)
    context = Context(model, dtype, compiled=compiled)
    prompt, new = torch.zeros(64, dtype=torch.long, device=DEVICE), 4 * STEPS
    taken = median(lambda: list(generate(context, prompt, new, num_samples=count)), 3)
    row = {
        "samples": count,
        "weights": str(dtype),
        "compiled": "yes" if compiled else "no",
        "tokens/s": f"{count * new / taken:,.0f}",
    }
    return [row]


def parity(scheme: str) -> list[dict]:
    """Largest difference from float64 on the CPU, by the largest logit and by the norm, of weights far from the start."""
    row = {"scheme": scheme}
    for context in PARITY_CONTEXTS:
        generator = torch.Generator().manual_seed(0)
        model = Transformer(ModelConfig(**PARITY, max_position_embeddings=context, position=scheme))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        ids = torch.randint(PARITY["vocab_size"], (2, context + 1), generator=generator)
        ours = logits_and_norm(model.to(DEVICE), ids.to(DEVICE))
        exact = logits_and_norm(model.to("cpu", torch.float64), ids)
        for name, one, other in zip(("logits", "decoded", "gradient"), ours, exact):
            difference = (one.cpu().double() - other).abs().max() / other.abs().max()
            row[f"{name}, {context} tokens"] = f"{difference.item():.1e}"
    return [row]


def logits_and_norm(model: Transformer, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits of a pass over ids (B, T + 1) but the last, the same over a cache, and the gradient's norm."""
    inputs, cache = ids[:, :-1], Cache()
    with torch.no_grad():
        logits = model(inputs)
        decoded = [model(part, cache) for part in (inputs[:, :-2], *inputs[:, -2:].split(1, dim=1))]
    model.zero_grad()
    (summed_loss(model, inputs, ids[:, 1:]) / inputs.numel()).backward()
    norm = torch.tensor(ALONE.clip_grad_norm(model, math.inf), dtype=torch.float64)
    return logits, torch.cat(decoded, dim=1), norm


def text(number: int) -> torch.Tensor:
    """(SMALL_BATCH, SMALL_CONTEXT + 1), made up anew for each number: any two tokens have SUCCESSORS, equally likely."""
    random = numpy.random.default_rng(number)
    ids = random.integers(SYMBOLS, size=(SMALL_CONTEXT + 1, SMALL_BATCH))
    choices = random.integers(SUCCESSORS, size=ids.shape)
    for place in range(2, len(ids)):
        ids[place] = FOLLOWING[ids[place - 2], ids[place - 1], choices[place]]
    return torch.from_numpy(ids.T.copy())


def losses(dtype: str) -> list[float]:
    """Of as many steps on `text` as PRECISION seconds allow, and of one before."""
    config = TrainConfig(batch_size=SMALL_BATCH, dtype=dtype)
    model = Transformer(ModelConfig(**SMALL, max_position_embeddings=SMALL_CONTEXT)).to(DEVICE)
    optimizer, found, end = build_optimizer(model, config), [], math.inf
    while time.perf_counter() < end:
        ids = text(len(found))
        found.append(optimizer_step(model, optimizer, ids[:, :-1], ids[:, 1:], 1e-3, config).loss)
        end = time.perf_counter() + PRECISION if len(found) == 1 else end
    return found


def precision() -> list[dict]:
    """Means of the ten steps up to some that both made; no model's loss is below ln SUCCESSORS for long."""
    found = {dtype: losses(dtype) for dtype in ("float32", "bfloat16")}
    last = min(map(len, found.values()))
    marks = sorted({max(1, last * quarter // 4) for quarter in (1, 2, 3, 4)})
    return [
        {
            "activations": dtype,
            "steps/s": f"{(len(each) - 1) / PRECISION:,.1f}",
            **{f"loss at step {mark:,}": f"{statistics.mean(each[max(0, mark - 10) : mark]):.5f}" for mark in marks},
        }
        for dtype, each in found.items()
    ]


def cost(scheme: str) -> list[dict]:
    """Time by token of rope's, measured in turn with it."""
    configs = {
        name: Config(
            name="cost",
            model=dict(SMALL, max_position_embeddings=SMALL_CONTEXT, position=name),
            train=dict(batch_size=SMALL_BATCH),
        )
        for name in ("rope", scheme)
    }
    costs = measure_costs(configs, "rope")
    ours, rope = costs[scheme], costs["rope"]
    row = {
        "scheme": scheme,
        "training": f"{rope.training_tokens_per_second / ours.training_tokens_per_second:.2f}",
        "decoding": f"{rope.decoding_tokens_per_second / ours.decoding_tokens_per_second:.2f}",
        "trained tokens/s": f"{ours.training_tokens_per_second:,.0f}",
        "decoded tokens/s": f"{ours.decoding_tokens_per_second:,.0f}",
    }
    return [row]


def main() -> None:
    torch.set_float32_matmul_precision("highest")  # no TF32, which some containers turn on
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.machine()
    rate = matrix_rate()
    print(f"{name}, torch {torch.__version__}: {rate / 1e12:.2f} TFLOP/s in products of {SIDE} × {SIDE} {DTYPE}\n")
    kinds = [(kind, compiled) for compiled in (False, True) for kind in ("adamw", "muon")]
    section("Training", 200, {f"{kind}, compiled {fast}": partial(training, kind, fast, rate) for kind, fast in kinds})
    sides = [(torch.float32, False), (DTYPE, False), (DTYPE, True)]
    cells = {f"{n} in {each[0]}, compiled {each[1]}": partial(sampling, n, *each) for each in sides for n in (1, 8)}
    section("Sampling", 100, cells)
    section("Difference from float64 on the CPU", 50, {scheme: partial(parity, scheme) for scheme in POSITIONS})
    section("bfloat16 beside float32", 2 * PRECISION + 10, {"training": precision})
    section("Cost beside rope", 90, {scheme: partial(cost, scheme) for scheme in POSITIONS})


if __name__ == "__main__":
    main()
