"""Time to a loss on tiny Shakespeare, side by side: python benchmarks/time_to_loss.py TEXT_FILE NANOGPT_FOLDER

Trains configs/shakespeare_char.yaml and, as its peer, nanoGPT by the command that its README gives for a computer without
a GPU, in a clone of its repository. Each side is a process of its own, in turn; its time runs from the command to the end
of the process, with all that it does by itself: tokenizing, evaluations, checkpoints, here also a picture and a sample.
Both losses are over every character of the last tenth, in windows of 64; nanoGPT's, which it only estimates, is computed
afterwards from its checkpoint, outside its time.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import ROOT, seconds, table

SEEDS = (11, 12, 13)  # nanoGPT's is fixed in its script
CONTEXT = 64
RECIPE = """config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64
--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0""".split()


def ours(text: Path, seed: int, folder: Path) -> tuple[float, float]:
    """Seconds and loss of a run of train.py."""
    command = [sys.executable, ROOT / "train.py", ROOT / "configs" / "shakespeare_char.yaml", f"data.source={text}"]
    command += [f"seed={seed}", f"runs_dir={folder}", f"data.cache_dir={folder}/cache-{seed}", f"name=run-{seed}"]
    taken = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    rows = [json.loads(line) for line in (folder / f"run-{seed}" / "metrics.jsonl").read_text().splitlines()]
    return taken, rows[-1]["val_loss"]


def theirs(text: Path, nanogpt: Path, folder: Path) -> tuple[float, float]:
    """Seconds of prepare.py and train.py of a copy of nanoGPT's repository, and the loss of its checkpoint."""
    copy = folder / "nanogpt"
    shutil.copytree(nanogpt, copy, dirs_exist_ok=True)
    data = copy / "data" / "shakespeare_char"
    shutil.copy(text, data / "input.txt")  # which it would download

    def train():
        subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
        subprocess.run([sys.executable, "train.py", *RECIPE], cwd=copy, check=True, capture_output=True)

    taken = seconds(train)
    done = subprocess.run([sys.executable, __file__, copy], check=True, capture_output=True, text=True)
    return taken, float(done.stdout.split()[-1])


def loss_of(copy: Path) -> float:
    """Nats per character of nanoGPT's checkpoint, over the whole of its validation text."""
    import numpy
    import torch

    sys.path.insert(0, str(copy))
    from model import GPT, GPTConfig

    saved = torch.load(copy / "out-shakespeare-char" / "ckpt.pt", weights_only=True)
    model = GPT(GPTConfig(**saved["model_args"])).eval()
    model.load_state_dict(saved["model"])
    ids = torch.from_numpy(numpy.fromfile(copy / "data" / "shakespeare_char" / "val.bin", "uint16").astype("int64"))
    nats, end = 0.0, (len(ids) - 1) // CONTEXT * CONTEXT
    inputs, targets = (ids[n : end + n].view(-1, CONTEXT) for n in (0, 1))
    with torch.no_grad():
        for part, following in [*zip(inputs.split(128), targets.split(128)), (ids[None, end:-1], ids[None, end + 1 :])]:
            if part.numel():
                nats += model(part, following)[1].item() * part.numel()
    return nats / (len(ids) - 1)


def main() -> None:
    if len(sys.argv) == 2:
        return print(loss_of(Path(sys.argv[1])))
    text, nanogpt = (Path(argument).resolve() for argument in sys.argv[1:])
    found = {"whereabouts": [], "nanoGPT": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            sides = ours(text, seed, Path(folder)), theirs(text, nanogpt, Path(folder))
            for (name, runs), (taken, loss) in zip(found.items(), sides):
                runs.append((taken, loss))
                print(f"{name}: {loss:.3f} nats in {taken:.1f} s", file=sys.stderr)
    rows = []
    for name, runs in found.items():
        times, losses = zip(*runs)
        rows.append({
            "side": name,
            "losses": ", ".join(f"{loss:.3f}" for loss in losses),
            "median loss": f"{statistics.median(losses):.3f}",
            "seconds": ", ".join(f"{taken:.1f}" for taken in times),
            "median seconds": f"{statistics.median(times):.1f}",
        })  # fmt: skip
    print(table(rows))
    ours_taken, theirs_taken = (statistics.median(taken for taken, _ in runs) for runs in found.values())
    print(f"\n1/{theirs_taken / ours_taken:.1f} of nanoGPT's time")


if __name__ == "__main__":
    main()
