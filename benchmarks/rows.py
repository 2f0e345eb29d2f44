"""Products of a model's weights with one row or a few: python benchmarks/rows.py

All products of a token of the 12M model of decode.py, each with a weight of its own, in ms: the median of seven rounds in
one process. `linear` is PyTorch's, `in parts` what `model.linear` does on an AMD, `packed` what `model.linear.pack` makes.
"""

import statistics

from side_by_side import seconds

ROWS = (1, 2, 3, 4, 8, 16, 32)
PASSES = 20


def milliseconds(product, weights, rows: int, dtype) -> float:
    """Of a pass over all weights, with float32 going in and coming out."""
    import torch

    inputs = {width: torch.randn(rows, width) for width in {weight.shape[1] for weight in weights}}

    def passes():
        for _ in range(PASSES):
            for weight in weights:
                product(inputs[weight.shape[1]].to(dtype), weight).float()

    passes()
    return 1e3 * statistics.median(seconds(passes) for _ in range(7)) / PASSES


def main() -> None:
    import torch
    from decode import SHAPES

    from model import linear

    hidden, layers, _, inner, vocabulary, _ = SHAPES["12M"]
    shapes = [(3 * hidden, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)] * layers
    shapes += [(vocabulary, hidden)]
    print(f"| | {' | '.join(map(str, ROWS))} |\n| --- |{' ---: |' * len(ROWS)}")
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            plain, packed = [torch.randn(shape).to(dtype) for shape in shapes], []
            for weight in plain:
                linear.pack(dtype, holder := torch.nn.Linear(*weight.shape[::-1], bias=False, dtype=dtype))
                packed.append(holder.weight)
            sides = {"linear": (torch.nn.functional.linear, plain), "packed": (linear.linear, packed)}
            if dtype == torch.float32:
                linear.SLOW_ROWS, sides["in parts"] = True, (linear.linear, plain)
            for name, (product, weights) in sides.items():
                found = [milliseconds(product, weights, rows, dtype) for rows in ROWS]
                print(f"| {str(dtype)[6:]}, {name} | {' | '.join(f'{each:.1f}' for each in found)} |", flush=True)


if __name__ == "__main__":
    main()
