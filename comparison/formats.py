"""How numbers and names are written in tables, plots and sentences."""

from comparison.inference import Paired, Spread


def number(x: float | str | None, form: str = "") -> str:
    """x in a format, or n/a; words stay as they are."""
    return "n/a" if x is None else x if isinstance(x, str) else f"{x:{form}}"


def plus_minus(numbers: Spread, digits: int = 4, sign: str = "") -> str:
    """`2.3100 ± 0.0040`; without the spread of a single value; n/a where there is none."""
    around = "" if numbers.sd is None else f" ± {numbers.sd:.{digits}f}"
    return number(numbers.mean, f"{sign}z.{digits}f") + around


def interval(numbers: Paired) -> str:
    """`+0.0100 to +0.0300`, or n/a."""
    return "n/a" if numbers.low is None else f"{numbers.low:+z.4f} to {numbers.high:+z.4f}"


def p_value(p: float | None) -> str:
    """`0.012`, `< 0.0001`, or n/a."""
    return "< 0.0001" if p is not None and p < 1e-4 else number(p, ".2g")


def count(number: float) -> str:
    """`512`, `81.9k`, `2.46M`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # which three digits show as the next unit's
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def number_of(n: int | str, noun: str) -> str:
    """`1 seed`, `3 to 5 seeds`."""
    return f"{n} {noun}{'s' * (str(n) != '1')}"


def seeds(numbers: list[int]) -> str:
    """`seed 3`, `seeds 0, 1`."""
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def shortened(name: str, most: int) -> str:
    """A name of at most so many letters, without its middle."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"
