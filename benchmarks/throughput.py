"""Training throughput beside that of peers: python benchmarks/throughput.py

Llama of the same shape in each library, the same fused AdamW, batches drawn beforehand; a step is forward, backward,
clipping and update. Ours takes train.py's own step. Steps of all sides run in turn; medians. The matrix rate is that of
float32 products on this machine between the steps; the share of it counts 6 operations a step for each weight of a
matrix and token, and 12 · layers · width · context for attention, halved for what the causal mask leaves out.
Then what a whole run spends outside its steps.
"""

import json
import sys
import tempfile
import time

from side_by_side import GEMM_FLOP, ROOT, gemm, interleaved, table

import torch
import torch.nn.functional as F

from configs import TrainConfig, load_config
from model.config import ModelConfig
from model.transformer import Transformer
from training.optimizer import build_optimizer, compile_where_possible, optimizer_step

SHAPES = {  # hidden_size, layers, heads, context, batch, vocabulary, rounds
    "0.8M": (128, 4, 4, 64, 12, 66, 30),
    "12M": (384, 6, 6, 256, 16, 4096, 4),
}


def peers(hidden_size, layers, heads, context, vocab_size, intermediate_size) -> dict:
    """Functions from input_ids to logits, and their modules."""
    from litgpt import GPT, Config
    from transformers import LlamaConfig, LlamaForCausalLM
    from x_transformers import Decoder, TransformerWrapper

    def llama():
        return LlamaForCausalLM(
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

    x = TransformerWrapper(
        num_tokens=vocab_size,
        max_seq_len=context,
        tie_embedding=True,
        attn_layers=Decoder(
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
        ),
        use_abs_pos_emb=False,
    )
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
    eager, compiled = llama(), llama()
    compiled.forward = torch.compile(compiled.forward)
    return {
        "transformers": (lambda ids: eager(ids).logits, eager),
        "transformers, compiled": (lambda ids: compiled(ids).logits, compiled),
        "x-transformers": (x, x),
        "litgpt": (lit, lit),
    }


def peer_step(forward, module, ids):
    """A step as `training.optimizer.optimizer_step` takes it."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step():
        loss = F.cross_entropy(forward(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def our_step(model, ids):
    config = TrainConfig(optimizer="adamw")
    optimizer = build_optimizer(model, config)
    return lambda: optimizer_step(model, optimizer, ids[:, :-1], ids[:, 1:], 1e-3, config)


def throughput(name: str) -> list[dict]:
    hidden_size, layers, heads, context, batch, vocab_size, rounds = SHAPES[name]
    shape = dict(hidden_size=hidden_size, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=vocab_size)
    config = ModelConfig(**shape, max_position_embeddings=context)
    ids = torch.randint(vocab_size, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    eager, compiled = Transformer(config), Transformer(config)
    compile_where_possible(compiled)
    sides = {"whereabouts": our_step(eager, ids), "whereabouts, compiled": our_step(compiled, ids)}
    others = peers(hidden_size, layers, heads, context, vocab_size, config.intermediate_size)
    sides |= {side: peer_step(*parts, ids) for side, parts in others.items()}
    parameters = {"whereabouts": eager, "whereabouts, compiled": compiled} | {k: m for k, (_, m) in others.items()}
    times = interleaved(sides | {"matrix rate": gemm()}, rounds)
    matrices = sum(p.numel() for p in eager.parameters() if p.dim() == 2)
    flop = 6 * batch * context * (matrices + layers * hidden_size * context)
    rate = GEMM_FLOP / times.pop("matrix rate")
    return [
        {
            f"{name}, {batch} × {context}": side,
            "parameters": f"{sum(p.numel() for p in parameters[side].parameters()):,}",
            "ms a step": f"{1e3 * taken:.1f}",
            "tokens/s": f"{batch * context / taken:,.0f}",
            "to transformers": f"{times['transformers'] / taken:.2f}",
            "to it compiled": f"{times['transformers, compiled'] / taken:.2f}",
            "of the matrix rate": f"{flop / taken / rate:.0%} of {rate / 1e9:.0f} GFLOP/s",
        }
        for side, taken in times.items()
    ]


def overhead() -> str:
    """Share of a run of the quickstart, with its evaluations and checkpoints, that is not spent in steps."""
    from training.loop import train

    with tempfile.TemporaryDirectory() as folder:
        config = load_config(ROOT / "configs" / "quickstart.yaml", [f"runs_dir={folder}"])
        train(config.model_copy(update={"train": config.train.model_copy(update={"steps": 1})}))  # tokenizes
        begun = time.perf_counter()
        train(config, overwrite=True)
        whole = time.perf_counter() - begun
        rows = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    tokens = config.train.batch_size * config.model.max_position_embeddings * config.train.log_every
    steps = sum(tokens / speed for speed in speeds)
    return (
        f"quickstart: {whole:.1f} s, {steps:.1f} s of them in {config.train.steps} steps; "
        f"evaluation, logging, checkpoints and reading the corpus take {1 - steps / whole:.1%}"
    )


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr)
    for name in SHAPES:
        print(table(throughput(name)) + "\n")
    print(overhead())


if __name__ == "__main__":
    main()
