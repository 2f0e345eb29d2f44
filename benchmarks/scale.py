"""What training on many GPUs takes, by formulas: python benchmarks/scale.py

Prints the tables of docs/scale.md: bytes of a GPU's memory, bytes that it sends in a step, and seconds, for three models
on 8, 64 and 512 GPUs. scale_check.py counts the same bytes in two processes.
"""

import functools
import itertools
import math
from dataclasses import dataclass

from side_by_side import table

from model.config import ModelConfig
from model.transformer import Transformer

GB = 1e9
GPUS = (8, 64, 512)
NODE = 8  # GPUs
FLOPS = 989e12 * 0.4  # of an H100 in bfloat16, and the share of its peak that training reaches
FLOAT32_FLOPS = 67e12 * 0.75  # in which Muon multiplies
NVLINK, NIC = 450e9, 50e9  # bytes/s that a GPU sends within a node, and 400 Gb/s between nodes


@dataclass(frozen=True)
class Model:
    """A shape, and how it is trained."""

    name: str
    config: ModelConfig
    batch: int  # sequences of max_position_embeddings tokens in a step
    micro_batch: int  # at most, in a process

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.config.max_position_embeddings

    def parts(self, processes: int) -> tuple[int, int, int]:
        """Sequences of one micro-batch in a process, their tokens, and how many micro-batches a step has."""
        each = self.batch // processes
        rows = min(each, self.micro_batch)
        return rows, rows * self.config.max_position_embeddings, -(-each // rows)


MODELS = [
    Model(
        "124M",
        ModelConfig(
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            vocab_size=50304,
            max_position_embeddings=1024,
        ),
        batch=512,
        micro_batch=16,
    ),
    Model(
        "1B",
        ModelConfig(
            hidden_size=2048,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            intermediate_size=8192,
            vocab_size=128256,
            max_position_embeddings=2048,
        ),
        batch=1024,
        micro_batch=4,
    ),
    Model(
        "7B",
        ModelConfig(
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            intermediate_size=11008,
            vocab_size=32000,
            tie_word_embeddings=False,
            max_position_embeddings=4096,
        ),
        batch=1024,
        micro_batch=1,
    ),
]


# Formulas


@functools.cache
def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of all parameters, by name."""
    return {name: tuple(parameter.shape) for name, parameter in Transformer(config, seed=None).named_parameters()}


class Count:
    """Numbers of a model's parameters on `processes`, each of whose dimensions that is cut is rounded up to a multiple."""

    def __init__(self, config: ModelConfig, processes: int = 1):
        self.config, self.processes, shapes = config, processes, shapes_of(config)
        in_blocks = {name for name in shapes if name.startswith("layers.")}
        self.whole = sum(map(math.prod, shapes.values()))
        self.blocks = sum(self.cut(shapes[name]) for name in in_blocks)
        self.block = self.blocks // config.num_hidden_layers
        self.root = sum(self.cut(shape) for name, shape in shapes.items() if name not in in_blocks)
        self.output = config.vocab_size * config.hidden_size
        self.parameters = len(shapes)
        matrices = [shapes[name] for name in in_blocks if len(shapes[name]) == 2]
        self.matrices = {shape: matrices.count(shape) for shape in sorted(set(matrices))}
        self.muon = sum(count * math.prod(shape) for shape, count in self.matrices.items())
        self.muon_cut = sum(count * self.cut(shape) for shape, count in self.matrices.items())

    def up(self, number: int) -> int:
        """The next multiple of the number of processes."""
        return -(-number // self.processes) * self.processes

    def cut(self, shape: tuple[int, ...]) -> int:
        """Numbers of a tensor whose rows are shared out, with its padding."""
        return self.up(shape[0]) * math.prod(shape[1:])


def held(config: ModelConfig, engine: str, processes: int) -> dict[str, int]:
    """Bytes that a process holds throughout a step: weights and gradients of float32, Muon's momentum, AdamW's two moments."""
    count = Count(config, processes if engine == "fsdp" else 1)
    own, muon = (number // count.processes for number in (count.blocks + count.root, count.muon_cut))
    return {"weights": 4 * own, "gradients": 4 * own, "moments": 4 * muon + 8 * (own - muon)}


def collectives(config: ModelConfig, engine: str, processes: int, micro_batches: int) -> dict[str, int]:
    """Bytes of the whole tensors that a step gathers, reduces and exchanges, in each kind of collective.

    fsdp gathers each block for the forward and again for the backward pass of a micro-batch, and what is outside of the
    blocks once, and scatters the sums of its gradients. ddp sums all gradients in the last micro-batch. Of Muon's
    directions ddp sums what each process has computed, and fsdp exchanges parts of all matrices for whole ones and back.
    """
    if engine == "ddp":
        count = Count(config)
        return {"all-reduce": 4 * (count.whole + count.muon + 1)}  # and the loss
    count = Count(config, processes)
    exchanged = sum(count.up(number) * count.cut(shape) for shape, number in count.matrices.items())
    return {
        "all-gather": 4 * micro_batches * (2 * count.blocks + count.root),
        "reduce-scatter": 4 * micro_batches * (count.blocks + count.root),
        "all-to-all": 2 * 4 * exchanged,
        "all-reduce": 4 * (count.parameters + 1),  # their norms, and the loss
    }


def sent(kind: str, whole: int, processes: int) -> float:
    """Bytes that a process sends in a collective over whole tensors of so many bytes; as many come in."""
    share = {"all-reduce": 2, "all-to-all": 1 / processes}.get(kind, 1)
    return share * whole * (processes - 1) / processes


def activations(config: ModelConfig, tokens: int) -> dict[str, int]:
    """Bytes kept from the forward to the backward pass of a micro-batch, in bfloat16 by autocast, with softmax and rope."""
    width, inside = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    norm = 4 * width + 4  # its input on a GPU; on a CPU the product with 1 / rms
    casts = 2 * 2 * width  # of the norms' outputs
    # Projections, of which the values are a part; queries and keys, before they are turned and after; SDPA's output and
    # the logarithms of its sums.
    attention = 2 * (q + 2 * kv) + (4 + 2) * (q + kv) + 2 * q + 4 * config.num_attention_heads
    block = tokens * (2 * norm + casts + attention + 4 * 2 * inside)
    angles = 4 * config.head_dim * config.max_position_embeddings
    return {
        "block": block,
        "blocks": config.num_hidden_layers * block,
        "recomputed": config.num_hidden_layers * tokens * 4 * width + block,
        "ends": tokens * (norm + 4 * width + 8)  # last norm, the gradient that the loss computes with itself, token ids
        + angles,
    }


def passing(config: ModelConfig, engine: str, processes: int, tokens: int) -> dict[str, int]:
    """Bytes needed besides what is held, in a forward and backward pass and in the step of the optimizer.

    A pass has a copy in bfloat16 of each matrix, which autograd and autocast keep, and the output layer's gradient, which
    the loss computes. With fsdp it also has, whole, all outside of the blocks and two blocks, and the gradients of all
    outside and of one block. A step of Muon has the directions of one shape three times, with fsdp of parts of them, and
    four times the matrices of that shape that fall to this process.
    """
    count, found = Count(config, processes), activations(config, tokens)
    once = found["ends"] + 2 * (count.muon + count.output) + 4 * count.output
    if engine == "fsdp":
        once += 4 * (count.root + 2 * count.block) + 4 * (count.root + count.block)
    shared = processes if engine == "fsdp" else 1
    step = max(
        4 * math.prod(shape) * (3 * number / shared + 4 * -(-number // processes))
        for shape, number in count.matrices.items()
    )
    return {"once": once, "all": once + found["blocks"], "recomputed": once + found["recomputed"], "step": step}


def seconds(model: Model, engine: str, processes: int) -> dict[str, float]:
    """A lower bound for each part of a step: products of the passes, Muon's products, what is sent in passes, by Muon."""
    count, config = Count(model.config, processes), model.config
    width, context = config.num_attention_heads * config.head_dim, config.max_position_embeddings
    flop = 6 * (count.muon + count.output) + 6 * config.num_hidden_layers * width * context
    muon = 0.0
    for shape, number in count.matrices.items():
        short, long = sorted(shape)
        muon += -(-number // processes) * 5 * (4 * short**2 * long + 2 * short**3)
    ring = NVLINK if processes <= NODE else min(NVLINK, NODE * NIC)  # rings of a node share its links to the next
    found = {"exchange": 0.0, "Muon's exchange": 0.0}
    for kind, whole in collectives(config, engine, processes, model.parts(processes)[2]).items():
        of_muon = {"all-reduce": 4 * count.muon * (engine == "ddp"), "all-to-all": whole}.get(kind, 0)
        speed = (NVLINK if processes <= NODE else NIC) if kind == "all-to-all" else ring
        found["exchange"] += sent(kind, whole - of_muon, processes) / ring
        found["Muon's exchange"] += sent(kind, of_muon, processes) / speed
    return {"products": flop * model.tokens / processes / FLOPS, **found, "Muon's products": muon / FLOAT32_FLOPS}


# Tables


def short(number: float) -> str:
    """With three digits, and no more than three of them after the point."""
    return f"{number:,.{min(3, max(0, 2 - math.floor(math.log10(number))))}f}" if number else "0"


def rows(model: Model) -> list[dict[str, str]]:
    """One row for each engine and number of GPUs."""
    found = []
    for engine, processes in itertools.product(("ddp", "fsdp"), GPUS):
        each, tokens, micro_batches = model.parts(processes)
        state = sum(held(model.config, engine, processes).values())
        more = passing(model.config, engine, processes, tokens)
        exchanged = collectives(model.config, engine, processes, micro_batches)
        time = seconds(model, engine, processes)
        memory = {
            "held": state,
            "peak": state + max(more["all"], more["step"]),
            "recomputed": state + max(more["recomputed"], more["step"]),
            "sent a step": sum(sent(kind, whole, processes) for kind, whole in exchanged.items()),
        }
        found.append(
            {f"{model.name}, GPUs": f"{engine}, {processes}", "micro-batches": f"{micro_batches} of {each}"}
            | {name: short(number / GB) for name, number in memory.items()}
            | {name: short(number) for name, number in time.items()}
        )
    return found


def shape(model: Model) -> dict[str, str]:
    """What it is."""
    config = model.config
    heads = f"{config.num_attention_heads}, {config.num_key_value_heads}"
    numbers = {
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads, of keys": heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "tied": "yes" if config.tie_word_embeddings else "no",
        "context": config.max_position_embeddings,
        "parameters": Count(config).whole,
        "moved by Muon": Count(config).muon,
        "tokens a step": model.tokens,
    }
    return {"": model.name} | {key: n if isinstance(n, str) else f"{n:,}" for key, n in numbers.items()}


def checkpoint(model: Model) -> dict[str, str]:
    """What saving and resuming take of a computer's own memory."""
    whole = held(model.config, "ddp", 1)
    weights, moments = whole["weights"], whole["moments"]
    numbers = {
        "checkpoint": weights + moments,
        "saving with fsdp, rank 0": weights + moments,
        f"resuming with fsdp, {NODE} processes": weights + NODE * moments,
        f"resuming with ddp, {NODE} processes": NODE * (weights + moments),
    }
    return {"": model.name} | {key: short(number / GB) for key, number in numbers.items()}


def tables() -> str:
    """The tables of docs/scale.md."""
    each = [[shape(model) for model in MODELS], *map(rows, MODELS), [checkpoint(model) for model in MODELS]]
    return "\n\n".join(map(table, each))


if __name__ == "__main__":
    print(tables())
