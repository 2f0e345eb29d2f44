"""Time to a loss on tiny Shakespeare, side by side: python benchmarks/time_to_loss.py TEXT_FILE

Trains configs/shakespeare_char.yaml and, as its peer, a GPT-2 of `transformers` of the same size by nanoGPT's well-known
recipe for CPUs (2,000 steps of 12 × 64 characters, AdamW at 1e-3, cosine to 1e-4, 100 warm-up steps, betas 0.9 and 0.99,
weight decay 0.1, gradients clipped to 1, no dropout), without the recipe's intermediate evaluations. Each side is a
process of its own with three new seeds, in turn; its time runs from the command to the end of the process. Both losses
are over every character of the last tenth, in windows of 64.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import ROOT, seconds, table

SEEDS = (11, 12, 13)
CONTEXT, STEPS, BATCH = 64, 2000, 12


def ours(text: str, seed: int, folder: str) -> dict:
    """Loss and tokens of a run of train.py."""
    command = [sys.executable, ROOT / "train.py", ROOT / "configs" / "shakespeare_char.yaml", f"data.source={text}"]
    command += [f"seed={seed}", f"runs_dir={folder}", f"data.cache_dir={folder}/cache-{seed}", f"name=run-{seed}"]
    subprocess.run(command, check=True, capture_output=True)
    rows = [json.loads(line) for line in (Path(folder) / f"run-{seed}" / "metrics.jsonl").read_text().splitlines()]
    return {"loss": rows[-1]["val_loss"], "tokens": rows[-1]["tokens"]}


def peer(text: str, seed: int, folder: str) -> dict:
    """The same for the recipe, in its own process."""
    done = subprocess.run([sys.executable, __file__, text, str(seed)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def train_peer(text: str, seed: int) -> None:
    """Trains the GPT-2 and prints its loss as JSON."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    characters = Path(text).read_text(encoding="utf-8")
    vocabulary = {character: n for n, character in enumerate(sorted(set(characters)))}
    ids = torch.tensor([vocabulary[character] for character in characters])
    cut = len(ids) - round(len(ids) / 10)
    train, val = ids[:cut], ids[cut:]
    shape = dict(n_layer=4, n_head=4, n_embd=128, n_positions=CONTEXT, vocab_size=len(vocabulary))
    dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(GPT2Config(**shape, **dropout, use_cache=False, bos_token_id=0, eos_token_id=0))
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    kept = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)

    def loss_of(inputs, targets):
        logits = model(inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    for step in range(STEPS):
        progress = (step - 100) / (STEPS - 100)
        rate = 1e-3 * (step + 1) / 101 if step < 100 else 1e-4 + 0.9e-3 * (1 + math.cos(math.pi * progress)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(train) - CONTEXT, (BATCH,))
        windows = torch.stack([train[start : start + CONTEXT + 1] for start in starts])
        loss_of(windows[:, :-1], windows[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    model.eval()
    nats, windows = 0.0, (len(val) - 1) // CONTEXT
    with torch.no_grad():
        for first in range(0, windows, 128):
            last = min(first + 128, windows)
            inputs, targets = (val[n + first * CONTEXT : n + last * CONTEXT].view(-1, CONTEXT) for n in (0, 1))
            nats += loss_of(inputs, targets).item() * targets.numel()
        rest = val[windows * CONTEXT :]
        if len(rest) > 1:
            nats += loss_of(rest[None, :-1], rest[None, 1:]).item() * (len(rest) - 1)
    print(json.dumps({"loss": nats / (len(val) - 1), "tokens": STEPS * BATCH * CONTEXT}))


def main() -> None:
    text = str(Path(sys.argv[1]).resolve())
    if len(sys.argv) == 3:
        return train_peer(text, int(sys.argv[2]))
    results = {"whereabouts": [], "GPT-2 recipe": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            for name, side in (("whereabouts", ours), ("GPT-2 recipe", peer)):
                result = {}
                taken = seconds(lambda: result.update(side(text, seed, folder)))
                results[name].append({**result, "seconds": taken})
                print(f"{name}, seed {seed}: {result['loss']:.3f} nats in {taken:.1f} s", file=sys.stderr)
    rows = []
    for name, runs in results.items():
        losses, times = ([run[key] for run in runs] for key in ("loss", "seconds"))
        rows.append({
            "side": name,
            "tokens": f"{runs[0]['tokens']:,}",
            "loss of each seed": ", ".join(f"{loss:.3f}" for loss in losses),
            "median loss": f"{statistics.median(losses):.3f}",
            "seconds of each": ", ".join(f"{taken:.1f}" for taken in times),
            "median seconds": f"{statistics.median(times):.1f}",
        })  # fmt: skip
    print(table(rows))
    ours_taken, theirs = (statistics.median(run["seconds"] for run in runs) for runs in results.values())
    print(f"\n1/{theirs / ours_taken:.1f} of the recipe's time")


if __name__ == "__main__":
    main()
