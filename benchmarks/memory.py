"""How much memory a long context takes: python benchmarks/memory.py [SCHEME …]

Peak resident size over that after a first step of 64 tokens, and seconds, for one sequence and one layer of 4 heads, hidden
size 128. Training is a pass forward and back; of 32,768 tokens only the logits of the last are computed, as in sampling.
Each cell is a process of its own. One number for each pair of tokens, of all heads, would be 67, 1,074 and 17,180 MB.
"""

import json
import resource
import subprocess
import sys

from side_by_side import ROOT, seconds

SHAPE = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
TRAINED, READ = (2048, 8192), 32768  # tokens
OTHERS = {  # beside the schemes: config of the model, and whether layers are computed twice
    "none, linear attention": ({"position": "none", "attention": "linear"}, False),
    "rope, documents of 512": ({"position": "rope", "document_start_token_id": 0}, False),
    "alibi, documents of 512": ({"position": "alibi", "document_start_token_id": 0}, False),
    "rope, 8 layers": ({"position": "rope", "num_hidden_layers": 8}, False),
    "rope, 8 layers, recompute": ({"position": "rope", "num_hidden_layers": 8}, True),
}


def peak() -> float:
    """Largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def cell(name: str, length: int) -> tuple[float, float]:
    """MB and seconds."""
    import torch

    from model.cache import Cache
    from model.config import ModelConfig
    from model.transformer import Transformer
    from training.loss import summed_loss

    changes, recompute = OTHERS.get(name, ({"position": name}, False))
    model = Transformer(ModelConfig(**SHAPE | changes, max_position_embeddings=length))
    model.recompute = recompute
    ids = torch.randint(1, 512, (1, length + 1), generator=torch.Generator().manual_seed(0))
    ids[:, ::512] = 0

    def training(ids):
        summed_loss(model, ids[:, :-1], ids[:, 1:]).backward()

    @torch.inference_mode()
    def reading(ids):
        model(ids[:, :-1], Cache() if "document_start_token_id" not in changes else None, logits_to_keep=1)

    training(ids[:, :65])
    before = peak()
    taken = seconds(reading if length == READ else training, ids)
    return peak() - before, taken


def main() -> None:
    if sys.argv[1:2] == ["--cell"]:
        print(json.dumps(cell(sys.argv[2], int(sys.argv[3]))))
        return
    from model.position import POSITIONS

    for length in (*TRAINED, READ):
        print(f"\n| {'reading' if length == READ else 'training'} {length:,} tokens | MB | s |\n| --- | ---: | ---: |")
        for name in sys.argv[1:] or (*POSITIONS, *OTHERS):
            command = [sys.executable, __file__, "--cell", name, str(length)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
            print("| {} | {:,.0f} | {:,.1f} |".format(name, *json.loads(done.stdout)), flush=True)


if __name__ == "__main__":
    main()
