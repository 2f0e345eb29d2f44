"""Sampling compared with `transformers`: python benchmarks/decode.py [RUN_FOLDER]

The same random weights on both sides, greedy, 64 tokens of prompt and 256 new ones, prefill included on both. Every side
is a process of its own, in the environment as it is, in turn; medians. Ours is generate.py with --stats; `transformers`
runs generate() in float32, eager, once to warm up and once for the time. The read limit is what the memory's measured
speed allows if each new token reads every weight once. Then the prompt's speed against the matrix rate, and 8 samples of
one prompt against one. With a run folder it instead measures what bfloat16 costs a trained model: bits per byte of the
first tokens of its validation text, fed one by one through the cache, so that all of them are decoded.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import ROOT, gemm, in_turn, reading, seconds, side, table

PROMPT, NEW, SAMPLES, LONG = 64, 256, 8, 512
SHAPES = {  # hidden_size, layers, heads, intermediate_size, vocabulary, rounds
    "12M": (384, 6, 6, 1024, 4096, 3),
    "15M": (288, 6, 6, 768, 32000, 2),
    "110M": (768, 12, 12, 2048, 32000, 1),
}


def write_model(name: str, folder: Path) -> int:
    """Writes a checkpoint of random weights without an end-of-text token; returns the number of weights."""
    from data.config import TokenizerConfig
    from data.tokenizer import tokenizer_files, train_tokenizer
    from model.checkpoint import save_checkpoint
    from model.config import ModelConfig
    from model.transformer import Transformer

    hidden_size, layers, heads, intermediate_size, vocab_size, _ = SHAPES[name]
    shape = dict(hidden_size=hidden_size, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=vocab_size)
    model = Transformer(ModelConfig(**shape, intermediate_size=intermediate_size, max_position_embeddings=1024))
    files = tokenizer_files(train_tokenizer(TokenizerConfig(kind="byte"), []))
    endless = json.loads(files["tokenizer_config.json"]) | {"eos_token": None}
    save_checkpoint(folder, model, files | {"tokenizer_config.json": json.dumps(endless)})
    return sum(parameter.numel() for parameter in model.parameters())


def generate_theirs(folder: str) -> float:
    """Tokens/s of generate()."""
    import torch
    from transformers import AutoModelForCausalLM

    llama = AutoModelForCausalLM.from_pretrained(folder)
    ids, options = torch.full((1, PROMPT), 97), dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)

    def once():
        assert llama.generate(ids, attention_mask=torch.ones_like(ids), **options).shape[1] == PROMPT + NEW

    once()
    return NEW / seconds(once)


def generate_ours(folder: str, *more: str, prompt: int = PROMPT, new: int = NEW) -> tuple[float, float]:
    """Seconds of the prefill, and tokens/s including it, as generate.py reports them."""
    command = [sys.executable, ROOT / "generate.py", folder, "--prompt", "a" * prompt, "--max-new-tokens", str(new)]
    command += ["--temperature", "0", "--stats", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, made = (float(n.replace(",", "")) for n in re.findall(r"(?:prefill|decode) ([\d,.]+) tokens/s", done.stderr))
    samples = SAMPLES if "--num-samples" in more else 1
    return prompt / read, new * samples / (prompt / read + (new - 1) * samples / made)


def speeds(name: str, folder: str) -> tuple[list[dict], str]:
    """The table for a shape, and a line about its prompts."""
    weights, rounds = write_model(name, Path(folder)), SHAPES[name][-1]
    eight = ("--num-samples", str(SAMPLES))
    found = in_turn(
        {
            "transformers": lambda: side(__file__, "transformers", folder),
            "whereabouts": lambda: generate_ours(folder)[1],
            "whereabouts, bfloat16": lambda: generate_ours(folder, "--dtype", "bfloat16")[1],
            f"whereabouts, {SAMPLES} samples": lambda: generate_ours(folder, *eight)[1],
            "prompt": lambda: generate_ours(folder, prompt=LONG, new=2)[0],
            "memory": lambda: side(reading.__code__.co_filename, "reading"),
            "matrix rate": lambda: side(gemm.__code__.co_filename, "gemm"),
        },
        rounds,
    )
    prompt, memory, rate = (found.pop(key) for key in ("prompt", "memory", "matrix rate"))
    hidden_size, layers, _, intermediate_size, vocab_size, _ = SHAPES[name]
    inside = layers * hidden_size * (4 * hidden_size + 3 * intermediate_size)
    flop = 2 * LONG * (inside + layers * hidden_size * LONG) + 2 * vocab_size * hidden_size
    rows = []
    for name_of_side, speed in found.items():
        limit = memory / weights / (2 if "bfloat16" in name_of_side else 4)
        samples = SAMPLES if "samples" in name_of_side else 1
        rows.append(
            {
                f"{name}, {weights / 1e6:.1f}M parameters": name_of_side,
                "tokens/s": f"{speed:,.0f}",
                "speed to transformers": f"{speed / found['transformers']:.2f}",
                "time to one sample": f"{samples * found['whereabouts'] / speed:.2f}",
                "of the read limit": "" if samples > 1 else f"{speed / limit:.0%} of {limit:,.0f} tokens/s",
            }
        )
    line = f"{name}: a prompt of {LONG} tokens at {LONG / prompt:,.0f} tokens/s, "
    return rows, line + f"{flop / prompt / rate:.0%} of {rate / 1e9:.0f} GFLOP/s"


def bits_per_byte_decoded(run: Path, dtype, count: int = 4096) -> float:
    """Of the first tokens of the validation text, in windows of the trained context, fed one by one."""
    import torch

    from base import find_checkpoint
    from configs import load_config
    from data.corpus import load_corpus
    from model.cache import Cache
    from model.checkpoint import load_checkpoint
    from model.context import decoding_model
    from training.evaluation import bits_per_byte

    corpus = load_corpus(load_config(run / "config.yaml").data)
    model = load_checkpoint(find_checkpoint(run))
    decoding, context, nats = decoding_model(model, dtype), model.config.max_position_embeddings, 0.0
    ids = torch.from_numpy(corpus.val[: count + 1].astype("int64"))
    rows, targets = ids[:-1].view(-1, context), ids[1:].view(-1, context)
    with torch.inference_mode():
        for row, target in zip(rows, targets):
            cache = Cache()
            for token, following in zip(row, target):
                nats -= decoding(token.view(1, 1), cache)[0, -1].float().log_softmax(-1)[following].item()
    text = corpus.tokenizer.decode(ids[1:].tolist())
    return bits_per_byte(nats, len(text.encode()))


def main() -> None:
    if sys.argv[1:2] == ["transformers"]:
        print(generate_theirs(sys.argv[2]))
    elif len(sys.argv) > 1:
        import torch

        for dtype in (torch.float32, torch.bfloat16):
            decoded = bits_per_byte_decoded(Path(sys.argv[1]), dtype)
            print(f"{sys.argv[1]}, decoded in {dtype}: {decoded:.4f} bits per byte")
    else:
        lines = []
        for name in SHAPES:
            with tempfile.TemporaryDirectory() as folder:
                rows, line = speeds(name, folder)
                print(table(rows) + "\n")
                lines.append(line)
        print(*lines, sep="\n")


if __name__ == "__main__":
    main()
