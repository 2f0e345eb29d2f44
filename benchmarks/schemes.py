"""What each scheme costs beside rope, by context: python benchmarks/schemes.py [SCHEME …]

A model of 0.9M weights (hidden 128, 4 layers of 4 heads). Training: tokens/s of a step of 8,192 tokens, the median of
up to five, and the largest resident size. Decoding: ms for a token after a filled cache, the median of 15, and the size
of that cache. Each cell of the table has its own process; rope is the first row, and the last one again, as the speed of
a machine drifts. A dash is a cell whose process needs more memory than LIMIT.
"""

import json
import resource
import statistics
import subprocess
import sys

from side_by_side import ROOT, seconds

CONTEXTS = (128, 1024, 4096, 8192)
SHAPE = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
TOKENS = 8192  # in a step
ROUNDS = {128: 5, 1024: 3, 4096: 1, 8192: 1}
LIMIT = 18 * 10**9  # bytes of address space for data


def build(scheme: str, context: int):
    from model.config import ModelConfig
    from model.transformer import Transformer

    return Transformer(ModelConfig(**SHAPE, max_position_embeddings=context, position=scheme))


def training(scheme: str, context: int) -> dict:
    import torch

    from configs import TrainConfig
    from training.optimizer import build_optimizer
    from training.step import optimizer_step

    config = TrainConfig(batch_size=TOKENS // context)
    model = build(scheme, context)
    ids = torch.randint(512, (config.batch_size, context + 1), generator=torch.Generator().manual_seed(0))
    step = model, build_optimizer(model, config), ids[:, :-1], ids[:, 1:], 1e-3, config
    seconds(optimizer_step, *step[:2], ids[:1, :64], ids[:1, 1:65], *step[4:])  # starts the threads
    times = [seconds(optimizer_step, *step) for _ in range(ROUNDS[context])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return {"speed": TOKENS / statistics.median(times), "memory": peak}


def decoding(scheme: str, context: int) -> dict:
    import torch

    from model.cache import Cache

    model, cache = build(scheme, context + 16), Cache()
    ids = torch.randint(512, (1, context), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for part in ids.split(128, dim=1):
            model(part, cache, logits_to_keep=1)
        times = [seconds(model, ids[:, :1], cache) for _ in range(15)]
    size = sum(each[..., : cache.length, :].nbytes for kept in cache.layers.values() for each in kept)
    return {"speed": 1e3 * statistics.median(times), "memory": size / 1e6}


def measured(what: str, scheme: str, context: int) -> dict | None:
    """The numbers of a cell from a process of its own; None where its memory ended."""
    done = subprocess.run(
        [sys.executable, __file__, "--cell", what, scheme, str(context)], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout.split("\n")[-2]) if done.returncode == 0 else None


def cell(numbers: dict | None, rope: dict, what: str) -> str:
    if numbers is None:
        return "—"
    ratio = numbers["speed"] / rope["speed"]
    shown = f"{numbers['speed']:,.0f}" if what == "training" else f"{numbers['speed']:.2f}"
    return f"{shown} ({ratio:.2f}), {numbers['memory']:,.0f} MB"


def main() -> None:
    if sys.argv[1:2] == ["--cell"]:
        what, scheme, context = sys.argv[2:]
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
        print(json.dumps({"training": training, "decoding": decoding}[what](scheme, int(context))))
        return
    from model.position import POSITIONS

    schemes = [*(sys.argv[1:] or [name for name in POSITIONS if name != "rope"]), "rope"]
    for what, unit in (("training", "tokens/s"), ("decoding", "ms a token")):
        print(f"\n{what}: {unit} (to rope), memory\n\n| scheme | {' | '.join(f'{c:,}' for c in CONTEXTS)} |")
        print("| --- |" + " ---: |" * len(CONTEXTS), flush=True)
        ropes = {context: measured(what, "rope", context) for context in CONTEXTS}
        print("| rope | " + " | ".join(cell(ropes[c], ropes[c], what) for c in CONTEXTS) + " |", flush=True)
        for scheme in schemes:
            cells = [cell(measured(what, scheme, context), ropes[context], what) for context in CONTEXTS]
            print(f"| {scheme} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
