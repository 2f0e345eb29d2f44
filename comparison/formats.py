"""How numbers are written in tables and sentences."""

from comparison.inference import Paired, Spread


def plus_minus(numbers: Spread, digits: int = 4, sign: str = "") -> str:
    """`2.3100 ± 0.0040`; without the spread of a single value; n/a where there is none."""
    if numbers.mean is None:
        return "n/a"
    around = "" if numbers.sd is None else f" ± {numbers.sd:.{digits}f}"
    return f"{numbers.mean:{sign}z.{digits}f}{around}"


def interval(numbers: Paired, digits: int = 4) -> str:
    """`+0.0100 to +0.0300`, or n/a."""
    return "n/a" if numbers.low is None else f"{numbers.low:+z.{digits}f} to {numbers.high:+z.{digits}f}"


def p_value(p: float) -> str:
    """`0.012`, or `< 0.0001`."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def count(number: float) -> str:
    """`512`, `81.9k`, `2.46M`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def numbered(noun: str, numbers: list[int]) -> str:
    """`seed 3`, `seeds 0, 1`."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
