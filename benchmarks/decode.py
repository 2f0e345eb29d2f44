"""Sampling beside `transformers`: python benchmarks/decode.py [RUN_FOLDER]

The same random weights on both sides, greedy, 64 tokens of prompt and 256 new ones, the prefill counted on both;
medians of rounds that take the sides in turn. `transformers` runs its generate() in float32, eager. The read limit is
what the memory's measured speed allows if each new token reads every weight once. Then prompt processing against the
matrix rate, and 8 samples of one prompt against one. With a run folder instead what bfloat16 costs a trained model: bits
per byte of the first tokens of its validation text, fed one by one through the cache, so that all of them are decoded.
"""

import os
import sys
import tempfile
from pathlib import Path

from side_by_side import GEMM_FLOP, READ_BYTES, gemm, interleaved, reading, table

import torch

from model.cache import Cache
from model.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from model.config import ModelConfig
from model.generation import decoder, generate
from model.transformer import Transformer

PROMPT, NEW, SAMPLES = 64, 256, 8
SHAPES = {  # hidden_size, layers, heads, intermediate_size, vocabulary, rounds
    "12M": (384, 6, 6, 1024, 4096, 3),
    "15M": (288, 6, 6, 768, 32000, 3),
    "110M": (768, 12, 12, 2048, 32000, 1),
}


def theirs(model: Transformer):
    """The model as `transformers` opens it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "c", model, {})
        return AutoModelForCausalLM.from_pretrained(Path(folder) / "c")


def speeds(name: str) -> list[dict]:
    hidden_size, layers, heads, intermediate_size, vocab_size, rounds = SHAPES[name]
    shape = dict(hidden_size=hidden_size, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=vocab_size)
    model = Transformer(ModelConfig(**shape, intermediate_size=intermediate_size, max_position_embeddings=1024))
    llama = theirs(model)
    ids = torch.randint(vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(0))
    options = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)

    def ours(dtype, count=1):
        return lambda: list(generate(model, ids, NEW, temperature=0, num_samples=count, dtype=dtype))

    times = interleaved(
        {
            "transformers": lambda: llama.generate(ids[None], attention_mask=torch.ones(1, PROMPT), **options),
            "whereabouts": ours(torch.float32),
            "whereabouts, bfloat16": ours(torch.bfloat16),
            f"whereabouts, {SAMPLES} samples": ours(torch.float32, SAMPLES),
            "memory": reading(),
        },
        rounds,
    )
    speed = READ_BYTES / times.pop("memory")
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    rows = []
    for side, taken in times.items():
        made = NEW * SAMPLES if "samples" in side else NEW
        limit = speed / (weights / 2 if "bfloat16" in side else weights)
        rows.append({
            f"{name}, {weights / 4e6:.1f}M parameters": side,
            "tokens/s": f"{made / taken:,.0f}",
            "time to transformers'": f"{taken / times['transformers']:.2f}",
            "speed to transformers": f"{made / NEW * times['transformers'] / taken:.2f}",
            "time to one sample": f"{taken / times['whereabouts']:.2f}",
            "of the read limit": "" if made > NEW else f"{NEW / taken / limit:.0%} of {limit:,.0f} tokens/s",
        })  # fmt: skip
    return rows


def prompts(name: str, length: int = 512) -> str:
    """How fast a prompt is read, against the matrix rate."""
    hidden_size, layers, heads, intermediate_size, vocab_size, _ = SHAPES[name]
    shape = dict(hidden_size=hidden_size, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=vocab_size)
    model = Transformer(ModelConfig(**shape, intermediate_size=intermediate_size, max_position_embeddings=1024))
    ids = torch.randint(vocab_size, (1, length), generator=torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def read():
        model(ids, Cache(), logits_to_keep=1)

    times = interleaved({"prompt": read, "matrix rate": gemm()}, 15)
    inside = sum(parameter.numel() for parameter in model.layers.parameters() if parameter.dim() == 2)
    flop = 2 * length * (inside + layers * hidden_size * length) + 2 * vocab_size * hidden_size
    rate = GEMM_FLOP / times["matrix rate"]
    return (
        f"{name}: a prompt of {length} tokens at {length / times['prompt']:,.0f} tokens/s, "
        f"{flop / times['prompt'] / rate:.0%} of {rate / 1e9:.0f} GFLOP/s"
    )


@torch.inference_mode()
def bits_per_byte(run: Path, dtype: torch.dtype, count: int = 4096) -> float:
    """Of the first tokens of the validation text, in windows of the trained context, fed one by one."""
    from configs import load_config
    from data.corpus import load_corpus
    from training.evaluation import bits_per_byte

    corpus = load_corpus(load_config(run / "config.yaml").data)
    model = load_checkpoint(find_checkpoint(run))
    light, context, nats = decoder(model, dtype), model.config.max_position_embeddings, 0.0
    ids = torch.from_numpy(corpus.val[: count + 1].astype("int64"))
    rows, targets = ids[:-1].view(-1, context), ids[1:].view(-1, context)
    for row, target in zip(rows, targets):
        cache = Cache()
        for token, following in zip(row, target):
            nats -= light(token.view(1, 1), cache)[0, -1].float().log_softmax(-1)[following].item()
    text = corpus.tokenizer.decode(ids[1:].tolist())
    return bits_per_byte(nats, len(text.encode()))


def main() -> None:
    for run in sys.argv[1:]:
        for dtype in (torch.float32, torch.bfloat16):
            print(f"{run}, decoded in {dtype}: {bits_per_byte(Path(run), dtype):.4f} bits per byte")
    if len(sys.argv) > 1:
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr)
    for name in SHAPES:
        print(table(speeds(name)) + "\n")
    for name in SHAPES:
        print(prompts(name))


if __name__ == "__main__":
    main()
