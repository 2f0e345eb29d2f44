"""What each scheme costs beside rope, by context: python benchmarks/schemes.py [SCHEME …]

A model of 0.9M weights (hidden 128, 4 layers of 4 heads). Training: tokens/s of a step of 8,192 tokens, the median of
up to five, each cell in a process of its own; up to a context of 1,024 it is compared with rope measured just before, as
a machine's speed drifts. Reading: 8,192 tokens in rows of so many, without a gradient, as an evaluation or a prompt is
read, the shortest process time of three; decoding: a token after a filled cache, the median of 20; both of all schemes in
turn. A dash is a cell that needs more memory than LIMIT.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

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


def reading(schemes: list[str]) -> dict:
    """Milliseconds by scheme and context; all in this process, in turn."""
    import torch

    models = {(scheme, context): build(scheme, context) for scheme in schemes for context in CONTEXTS}
    ids = torch.randint(512, (TOKENS,), generator=torch.Generator().manual_seed(0))
    found = {scheme: {context: float("inf") for context in CONTEXTS} for scheme in schemes}
    with torch.inference_mode():
        for _ in range(3):
            for (scheme, context), model in models.items():
                begun = time.process_time()
                model(ids.view(-1, context), logits_to_keep=1)
                found[scheme][context] = min(found[scheme][context], 1e3 * (time.process_time() - begun))
    return found


def decoding(schemes: list[str]) -> dict:
    """By scheme and context; all in this process, in turn, as the times are short."""
    import torch

    from model.cache import Cache

    sides = {}
    ids = torch.randint(512, (1, max(CONTEXTS)), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for scheme in schemes:
            for context in CONTEXTS:
                model, cache = build(scheme, context + 16), Cache()
                model.lay_side_by_side()
                for part in ids[:, :context].split(128, dim=1):
                    model(part, cache, logits_to_keep=1)
                sides[scheme, context] = model, cache, []
        for _ in range(20):
            for (_, context), (model, cache, times) in sides.items():
                times.append(seconds(model, ids[:, :1], cache))
                cache.length = context
    found = {scheme: {} for scheme in schemes}
    for (scheme, context), (_, cache, times) in sides.items():
        size = sum(each[..., :context, :].nbytes for kept in cache.layers.values() for each in kept)
        found[scheme][context] = {"speed": 1e3 * statistics.median(times), "memory": size / 1e6}
    return found


def measured(*cell: str | int) -> dict | None:
    """What this script prints of a cell in a process of its own; None where its memory ended."""
    command = [sys.executable, __file__, "--cell", *map(str, cell)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    return json.loads(done.stdout.split("\n")[-2]) if done.returncode == 0 else None


def row(scheme: str, cells: list[str]) -> None:
    print(f"| {scheme} | {' | '.join(cells)} |", flush=True)


def shown(numbers: dict | None, rope: dict, digits: int) -> str:
    if numbers is None:
        return "—"
    return f"{numbers['speed']:,.{digits}f} ({numbers['speed'] / rope['speed']:.2f}), {numbers['memory']:,.0f} MB"


def main() -> None:
    if sys.argv[1:2] == ["--cell"]:
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
        what, *arguments = sys.argv[2:]
        of_all = {"reading": reading, "decoding": decoding}
        print(json.dumps(of_all[what](arguments) if what in of_all else training(arguments[0], int(arguments[1]))))
        return
    from model.position import POSITIONS

    schemes = sys.argv[1:] or [name for name in POSITIONS if name != "rope"]
    head = f"| scheme | {' | '.join(f'{c:,}' for c in CONTEXTS)} |\n| --- |" + " ---: |" * len(CONTEXTS)
    print(f"training: tokens/s (to rope), largest resident size\n\n{head}", flush=True)
    ropes = {context: measured("training", "rope", context) for context in CONTEXTS}
    row("rope", [shown(ropes[context], ropes[context], 0) for context in CONTEXTS])
    for scheme in schemes:
        cells = []
        for context in CONTEXTS:
            beside = measured("training", "rope", context) if context < 4096 else ropes[context]
            cells.append(shown(measured("training", scheme, context), beside, 0))
        row(scheme, cells)
    print(f"\nreading: ms (to rope)\n\n{head}", flush=True)
    found = measured("reading", "rope", *schemes)
    for scheme, times in found.items():
        row(scheme, [f"{times[str(c)]:,.0f} ({times[str(c)] / found['rope'][str(c)]:.2f})" for c in CONTEXTS])
    print(f"\ndecoding: ms a token (to rope), size of the cache\n\n{head}")
    found = measured("decoding", "rope", *schemes)
    for scheme, numbers in found.items():
        row(scheme, [shown(numbers[str(context)], found["rope"][str(context)], 2) for context in CONTEXTS])


if __name__ == "__main__":
    main()
