"""How time and memory grow with the context, the vocabulary and the cache: python benchmarks/scaling.py

Training: one step of forward, backward and optimizer; evaluation: one pass over the same number of tokens, equal within a
table. Each row runs in its own process, so that its largest resident size, torch included, is its own; next to it stands
what float32 logits alone would take. Decode: one new token after a filled cache, median of all rounds.
"""

import copy
import multiprocessing
import resource
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor

from side_by_side import seconds

from model.threads import share_the_cores

share_the_cores()  # in every process, like the programs

import torch

from configs import TrainConfig
from model.cache import Cache
from model.config import ModelConfig
from model.transformer import Transformer
from training.evaluation import evaluate
from training.optimizer import build_optimizer
from training.step import optimizer_step

SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
SCHEMES = ("rope", "none", "alibi")
CONTEXTS = [128 * 2**n for n in range(7)]
VOCABULARIES = [256 * 4**n for n in range(5)] + [131_072]
# scheme, context, vocabulary, tokens per batch
BY_CONTEXT = [("rope", context, 4096, 8192) for context in CONTEXTS]
BY_CONTEXT += [(scheme, context, 4096, 8192) for scheme in SCHEMES[1:] for context in CONTEXTS[:5:2]]
BY_VOCABULARY = [("rope", 256, vocabulary, 2048) for vocabulary in VOCABULARIES]
DECODE_ROUNDS = 15


def peak() -> float:
    """Largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def build(scheme: str, vocab_size: int) -> Transformer:
    return Transformer(ModelConfig(vocab_size=vocab_size, position=scheme, **SHAPE))


def batch_row(scheme: str, context: int, vocab_size: int, tokens: int) -> str:
    model, config = build(scheme, vocab_size), TrainConfig(batch_size=tokens // context)
    ids = torch.randint(vocab_size, (tokens + 1,), generator=torch.Generator().manual_seed(0))
    evaluate(model, ids[:65].numpy(), 64)  # starts the threads
    evaluating, after_evaluation = seconds(evaluate, model, ids.numpy(), context), peak()
    batch = ids[:-1].view(-1, context), ids[1:].view(-1, context)
    training = seconds(optimizer_step, model, build_optimizer(model, config), *batch, 1e-3, config)
    return (
        f"{scheme:6}{context:9,}{vocab_size:11,}{tokens / training:12,.0f}{peak():10,.0f}"
        f"{tokens / evaluating:14,.0f}{after_evaluation:10,.0f}{4 * tokens * vocab_size / 1e6:12,.0f}"
    )


@torch.no_grad()
def decode_rows() -> list[str]:
    models = {scheme: build(scheme, 4096) for scheme in SCHEMES}
    ids = torch.randint(4096, (1, max(CONTEXTS)), generator=torch.Generator().manual_seed(0))
    caches = {}
    for scheme, model in models.items():
        cache = Cache()
        model.lay_side_by_side()
        for part in ids.split(CONTEXTS[0], dim=1):
            model(part, cache, logits_to_keep=1)
            if cache.length in CONTEXTS:
                caches[scheme, cache.length] = copy.deepcopy(cache)
    times = {key: [] for key in caches}
    for _ in range(DECODE_ROUNDS):  # interleaved, so that other load slows all of them alike
        for (scheme, context), cache in caches.items():
            times[scheme, context].append(seconds(models[scheme], ids[:, :1], cache))
            cache.length = context
    config = models["rope"].config
    a_token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return [
        f"{context:8,}{a_token * context / 1e6:12.1f}"
        + "".join(f"{1e3 * statistics.median(times[scheme, context]):12.2f}" for scheme in SCHEMES)
        for context in CONTEXTS
    ]


def main() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        for rows in (BY_CONTEXT, BY_VOCABULARY):
            print("                          training     peak    evaluation     peak      logits")
            print("scheme  context vocabulary   tokens/s       MB      tokens/s       MB          MB")
            for line in processes.map(batch_row, *zip(*rows)):
                print(line, flush=True)
            print()
        print("                          decode, ms per token")
        print(" context    cache, MB" + "".join(f"{scheme:>12}" for scheme in SCHEMES))
        print(*processes.submit(decode_rows).result(), sep="\n")


if __name__ == "__main__":
    main()
