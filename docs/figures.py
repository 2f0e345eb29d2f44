"""Draws the pictures of docs/positional-encodings.md into docs/figures and prints the numbers they show.

    python docs/figures.py

The same libraries give the same bytes. tests/test_claims.py checks the functions that the curves come from.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from model.config import ModelConfig
from model.position import Rope, Sinusoidal, build_position
from model.position.base import ladder, phases

SCALINGS = ("linear", "ntk", "yarn", "llama3")
LENGTHS = (256, 2048, 4096, 32768, 131072, 1048576)  # tokens: the tables are measured on the 64 before each


def rotary(head_dim: int, length: int = 2048, **options) -> Rope:
    """The product's rotary scheme for one head of head_dim, trained on `length` tokens."""
    shape = {"hidden_size": head_dim, "num_attention_heads": 1, "max_position_embeddings": length}
    return build_position(ModelConfig(**shape, position={"scheme": "rope", **options}))


def frequencies(head_dim: int, length: int = 2048, **options) -> Tensor:
    """(pairs,) float64 radians per token."""
    return rotary(head_dim, length, **options).theta(torch.device("cpu"))[0]


def decay_bound(distance: Tensor, head_dim: int, base: float = 10000.0) -> Tensor:
    """Mean over j of |S_j|, S_j = Σ_{i<j} e^{iδθ_i}, for distances δ. Su et al. 2021, section 3.4.3.

    With h_i = q_i conj(k_i) and h_{d/2} = 0, no score is above max_i |h_{i+1} − h_i| times the sum, d/2 times this.
    """
    phi = phases(distance, ladder(head_dim, base))
    return torch.polar(torch.ones_like(phi), phi).cumsum(-1).abs().mean(-1)


def table_errors(last: int, head_dim: int = 64, base: float = 10000.0) -> dict[str, Tensor]:
    """|error| of cos and sin, (2, 64, pairs), at the 64 positions up to `last`, for three ways to make the table."""
    positions = torch.arange(last - 63, last + 1)
    theta = ladder(head_dim, base)
    exact = torch.stack((phases(positions, theta).cos(), phases(positions, theta).sin()))
    tables = {"float64 angles, cast to float32": torch.stack(rotary(head_dim, base=base).rotation(positions))}
    for dtype in (torch.float32, torch.bfloat16):
        angles = (positions.to(dtype)[:, None] * theta.to(dtype)).float()
        tables[f"{str(dtype)[6:]} angles"] = torch.stack((angles.cos(), angles.sin()))
    return {name: (table.double() - exact).abs() for name, table in tables.items()}


def draw_frequencies(figure) -> None:
    left, right = figure.subplots(1, 2)
    sinusoidal = Sinusoidal.Options(scheme="sinusoidal")
    curves = {
        "rope, learned_theta at the start: head_dim 64": frequencies(64),
        "rope, fraction 0.5, neox": frequencies(64, fraction=0.5),
        "rope, fraction 0.5, p_rope": frequencies(64, fraction=0.5, partial="p_rope"),
        "sinusoidal: hidden_size 256": ladder(256, sinusoidal.base),
    }
    for (label, theta), style in zip(curves.items(), ("-", ":", "--", "-.")):
        theta = theta[theta > 0]
        left.semilogy(theta, style, label=label)
        print(f"frequencies: {label}: {len(theta)} pairs turn, θ from {theta[0]:.4g} to {theta[-1]:.4g} rad/token")
    left.set(xlabel="pair index i", ylabel="θ_i (radians per token)", title="Ladders, base 10,000")
    for style, rope_type in zip(("-", "--", "-.", ":"), SCALINGS):
        ratio = frequencies(64, scaling={"rope_type": rope_type, "factor": 4}) / frequencies(64)
        right.plot(ratio, style, label=rope_type)
        kept, divided = int((ratio > 1 - 1e-9).sum()), int((ratio < 0.25 + 1e-9).sum())
        print(f"frequencies: {rope_type}, s = 4: {kept} of 32 pairs keep θ, {divided} get θ/4, the rest lie between")
    right.set(xlabel="pair index i", ylabel="θ_i scaled / θ_i", ylim=(0, 1.05))
    right.set_title("Scaling, s = 4, L = 2,048 tokens")
    for axes in (left, right):
        axes.legend(fontsize=7, frameon=False, loc="upper right")


def draw_decay(figure) -> None:
    left, right = figure.subplots(1, 2)
    distances = torch.logspace(0, 4, 121).round().unique().long()
    for head_dim, style in ((128, "-"), (32, "--")):
        bound = decay_bound(distances, head_dim) / decay_bound(torch.zeros(1), head_dim)
        left.semilogx(distances, bound, style, label=f"bound, head_dim {head_dim}")
        near = decay_bound(torch.arange(257), head_dim)
        rises = int((near.diff() > 0).sum())
        marks = torch.tensor([0, 10, 256, 1000, 5000])
        shown = ", ".join(f"{m}: {value:.2f}" for m, value in zip(marks, decay_bound(marks, head_dim)))
        print(f"decay: head_dim {head_dim}: rises at {rises} of 256 steps, by up to {near.diff().max():.2f}; {shown}")
    ones = phases(distances, ladder(128, 10000.0)).cos().mean(-1)
    left.semilogx(distances, ones, ":", label="score of q = k = 1, head_dim 128")
    left.axhline(0, color="grey", linewidth=0.5)
    left.set(xlabel="distance m − n (tokens)", ylabel="relative to distance 0", title="Long-range decay, base 10,000")
    left.legend(fontsize=7, frameon=False)
    near = decay_bound(torch.arange(129), 128)
    right.plot(near, color="grey", linewidth=1, label="falls to the next token")
    starts = (near.diff() > 0).nonzero().flatten()
    gap = torch.full((len(starts),), torch.nan)  # one line broken where the bound falls
    rises = torch.stack((near[starts], near[starts + 1], gap), dim=-1).flatten()
    right.plot(torch.stack((starts, starts + 1, gap), dim=-1).flatten(), rises, linewidth=2, label="rises")
    right.set(xlabel="distance m − n (tokens)", ylabel="mean |S_j|", title="The same bound, head_dim 128")
    right.legend(fontsize=7, frameon=False)


def draw_precision(figure) -> None:
    axes = figure.subplots()
    errors = {length: table_errors(length - 1) for length in LENGTHS}
    for name, style in zip(errors[LENGTHS[0]], ("o-", "s--", "^:")):
        largest = [errors[length][name].max().item() for length in LENGTHS]
        axes.loglog([length - 1 for length in LENGTHS], largest, style, label=name)
        shown = ", ".join(f"{length - 1}: {error:.2g}" for length, error in zip(LENGTHS, largest))
        print(f"precision: {name}: largest error at {shown}")
    axes.set(xlabel="position (tokens)", ylabel="largest |error| of cos and sin")
    axes.set_title("Tables, head_dim 64, base 10,000")
    axes.legend(frameon=False, loc=(0.5, 0.2))


DRAWINGS = {"frequencies": (draw_frequencies, 9), "decay": (draw_decay, 9), "precision": (draw_precision, 6)}  # inches


def main(folder: Path) -> None:
    """Writes an SVG for each of DRAWINGS."""
    import matplotlib
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for name, (draw, width) in DRAWINGS.items():
        with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "axes.spines.top": False}):
            figure = Figure(figsize=(width, 3.6), layout="constrained")
            draw(figure)
            for axes in figure.axes:
                axes.minorticks_off()  # half of the file
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(ROOT / "docs" / "figures")
