"""Positional schemes, a file a family. Each is one class: what it does, in the hooks of `Position`, and its options."""

from model.position.absolute import Learned, Sinusoidal
from model.position.base import Position
from model.position.biases import T5, Alibi, Fire, Kerple, Window
from model.position.content import CoPE, Deberta, Fox, Inkling, Shaw, TransformerXL
from model.position.rotary import LearnedTheta, PoPE, Rope, XPos

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
    "learned_theta": LearnedTheta,
    "alibi": Alibi,
    "t5": T5,
    "kerple": Kerple,
    "fire": Fire,
    "window": Window,
    "xpos": XPos,
    "pope": PoPE,
    "shaw": Shaw,
    "transformer_xl": TransformerXL,
    "deberta": Deberta,
    "inkling": Inkling,
    "fox": Fox,
    "cope": CoPE,
}


def position_options(value) -> Position.Options:
    """The options of a scheme, from its name or from a mapping {scheme: name, option: value …}; ValueError if none."""
    if isinstance(value, Position.Options):
        return value
    value = {"scheme": value} if isinstance(value, str) else value
    if not isinstance(value, dict) or not isinstance(value.get("scheme", "rope"), str):
        raise ValueError("expected the name of a scheme, or a mapping of its options")
    value = {"scheme": "rope", **value}
    if value["scheme"] not in POSITIONS:
        raise ValueError(f"unknown scheme {value['scheme']!r}, known: {', '.join(POSITIONS)}")
    return POSITIONS[value["scheme"]].Options.model_validate(value)


def build_position(config) -> Position:
    """The module of the scheme that `config.position`, of a ModelConfig, names."""
    return POSITIONS[config.position.scheme](config)
