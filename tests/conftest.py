"""What several test files need: every scheme by name, and tiny models whose weights are large enough to matter."""

from pathlib import Path

import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.position import POSITIONS, Position
from model.transformer import Transformer

torch.set_num_threads(1)  # tensors this small lose more by sharing than by waiting; 20 times where cores are taken


class AddedWave(Position):
    def __init__(self, config):
        super().__init__(config)
        self.direction = nn.Parameter(torch.linspace(-1.0, 1.0, config.hidden_size))

    def embedding(self, positions):
        return positions[..., None].double().sin().float() * self.direction


class OneSpeed(Position):
    def __init__(self, config):
        super().__init__(config)
        self.speeds = nn.Parameter(torch.full((config.head_dim // 2,), 0.7))

    def rotation(self, positions):
        phases = positions[..., None] * self.speeds.double()
        return phases.cos().float(), phases.sin().float()


class Nearness(Position):
    def __init__(self, config):
        super().__init__(config)
        self.slopes = nn.Parameter(torch.linspace(0.1, 0.5, config.num_attention_heads))

    def bias(self, q_positions, k_positions):
        distances = (q_positions[..., :, None] - k_positions[..., None, :]).abs().sqrt()
        return -self.slopes[:, None, None] * distances.unsqueeze(-3)


ROOT = Path(__file__).parent.parent
OURS = {path.stem for folder in (ROOT, ROOT / "tests") for path in folder.glob("*.py")}
OURS |= {path.parent.name for path in ROOT.glob("*/*.py")}


def pytest_configure(config):
    """Warnings that the project's own modules cause are errors; those inside libraries come and go with releases."""
    config.addinivalue_line("filterwarnings", rf"error:::({'|'.join(sorted(OURS))})(\.|$)")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="as much as the claims in docs/reliability.md rest on: hours")


@pytest.fixture
def full(request) -> bool:
    """Whether time is no matter."""
    return request.config.getoption("--full")


THROWAWAY = {"throwaway_embedding": AddedWave, "throwaway_rotation": OneSpeed, "throwaway_bias": Nearness}


@pytest.fixture(params=[*sorted(POSITIONS), *THROWAWAY])
def scheme(request, monkeypatch) -> str:
    """Every registered scheme, and one for each hook that only the tests register: what holds for all must for them."""
    if request.param in THROWAWAY:
        monkeypatch.setitem(POSITIONS, request.param, THROWAWAY[request.param])
    return request.param


@pytest.fixture
def tiny_config():
    def config(scheme="rope", **changes) -> ModelConfig:
        shape = dict(vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        return ModelConfig(**{**shape, "initializer_range": 0.2, "position": scheme, **changes})

    return config


@pytest.fixture
def tiny_model(tiny_config):
    """Makes a model whose position parameters, norms and biases have left their initial values, as after training."""

    def build(scheme="rope", dtype=torch.float64, seed=0, **changes) -> Transformer:
        model = Transformer(tiny_config(scheme, **changes), seed)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.startswith("position.") or name.endswith(".bias"):
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        return model.to(dtype)

    return build


@pytest.fixture
def tokens():
    """Makes random token ids of a shape; the seed tells two of them apart."""

    def draw(*shape, seed=0) -> torch.Tensor:
        return torch.randint(0, 48, shape, generator=torch.Generator().manual_seed(seed))

    return draw
