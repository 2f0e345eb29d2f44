"""Training throughput compared with peers: python benchmarks/throughput.py [PYTHON_WITH_LITGPT]

A Llama of the same shape in each library, with the same fused AdamW. Every side is a process of its own, in the
environment as it is: ours is train.py, which logs its own speed; a peer's is the loop its users would write, with batches
drawn beforehand, timed after the first steps. Sides take turns; medians of tokens/s. The matrix rate is that of float32
products, measured between them; the share of it counts 6 operations per step for each weight of a matrix and token, and
12 · layers · width · context for attention, halved because of the causal mask.
litgpt needs an environment of its own, whose python is the argument; without it that side is omitted.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable

from side_by_side import gemm, in_turn, seconds, side, start_training, table, trained_speed

SHAPES = {  # hidden_size, layers, heads, context, batch, vocabulary, intermediate_size, steps, rounds
    "0.8M": (128, 4, 4, 64, 12, 66, 352, 200, 3),
    "12M": (384, 6, 6, 256, 16, 4096, 1024, 8, 2),
}
PEERS = ("transformers", "transformers, compiled", "x-transformers")


def build(peer: str, hidden_size, layers, heads, context, vocab_size, intermediate_size) -> tuple:
    """A function from input_ids to logits, and its module."""
    if peer.startswith("transformers"):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        llama = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=hidden_size,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=intermediate_size,
                vocab_size=vocab_size,
                max_position_embeddings=context,
                tie_word_embeddings=True,
                use_cache=False,
            )
        )
        called = torch.compile(llama) if peer.endswith("compiled") else llama
        return (lambda ids: called(ids).logits), llama
    if peer == "x-transformers":
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(
            dim=hidden_size,
            depth=layers,
            heads=heads,
            attn_dim_head=hidden_size // heads,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            attn_flash=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=intermediate_size / hidden_size,
        )
        x = TransformerWrapper(
            num_tokens=vocab_size, max_seq_len=context, tie_embedding=True, attn_layers=layers, use_abs_pos_emb=False
        )
        return x, x
    from litgpt import GPT, Config

    lit = GPT(
        Config(
            block_size=context,
            vocab_size=vocab_size,
            padded_vocab_size=vocab_size,
            n_layer=layers,
            n_head=heads,
            n_embd=hidden_size,
            intermediate_size=intermediate_size,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
    )
    lit.transformer.wte.weight = lit.lm_head.weight
    return lit, lit


def train_peer(peer: str, name: str) -> float:
    """Tokens/s of a plain training loop."""
    import torch
    import torch.nn.functional as F

    hidden_size, layers, heads, context, batch, vocab_size, intermediate_size, steps, _ = SHAPES[name]
    forward, module = build(peer, hidden_size, layers, heads, context, vocab_size, intermediate_size)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batches = torch.randint(vocab_size, (steps, batch, context + 1), generator=torch.Generator().manual_seed(0))

    def step(ids):
        loss = F.cross_entropy(forward(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    taken = [seconds(step, ids) for ids in batches]
    logged = steps // 4
    parts = [sum(taken[first : first + logged]) for first in range(logged, steps, logged)]
    return statistics.median(batch * context * logged / part for part in parts)


def train_ours(name: str, folder: str, *more: str) -> float:
    """Tokens/s of train.py."""
    hidden_size, layers, heads, context, batch, vocab_size, intermediate_size, steps, _ = SHAPES[name]
    model = {
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": context,
        "vocab_size": vocab_size,
        "intermediate_size": intermediate_size,
    }
    settings = [f"model.{key}={value}" for key, value in model.items()]
    settings += [f"train.steps={steps}", f"train.batch_size={batch}", f"train.log_every={steps // 4}"]
    settings += ["train.warmup_steps=1", *more]
    return trained_speed(folder, "speed", start_training(folder, "speed", settings))


def throughput(name: str, folder: str, with_litgpt: str | None) -> list[dict]:
    hidden_size, layers, heads, context, batch, vocab_size, intermediate_size, _, rounds = SHAPES[name]
    sides: dict[str, Callable[[], float]] = {
        "whereabouts": lambda: train_ours(name, folder),
        "whereabouts, compiled": lambda: train_ours(name, folder, "train.compile=true"),
    }
    sides |= {peer: lambda peer=peer: side(__file__, peer, name) for peer in PEERS}
    if with_litgpt:
        sides["litgpt"] = lambda: side(__file__, "litgpt", name, python=with_litgpt)
    found = in_turn(sides | {"matrix rate": lambda: side(gemm.__code__.co_filename, "gemm")}, rounds)
    rate = found.pop("matrix rate")
    matrices = vocab_size * hidden_size + layers * hidden_size * (4 * hidden_size + 3 * intermediate_size)
    flop = 6 * (matrices + layers * hidden_size * context)  # of a token
    return [
        {
            f"{name}, {batch} × {context}, {matrices / 1e6:.1f}M weights": name_of_side,
            "tokens/s": f"{speed:,.0f}",
            "to transformers": f"{speed / found['transformers']:.2f}",
            "to it compiled": f"{speed / found['transformers, compiled']:.2f}",
            "of the matrix rate": f"{flop * speed / rate:.0%} of {rate / 1e9:.0f} GFLOP/s",
        }
        for name_of_side, speed in found.items()
    ]


def main() -> None:
    if len(sys.argv) == 3:
        print(train_peer(*sys.argv[1:]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in SHAPES:
            print(table(throughput(name, folder, *sys.argv[1:] or [None])) + "\n")


if __name__ == "__main__":
    main()
