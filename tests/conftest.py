"""What several test files need: every scheme by name, and tiny models whose weights are large enough to matter."""

import re
import runpy
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.position import POSITIONS
from model.position.base import Position, distances
from model.transformer import Transformer

torch.set_num_threads(1)  # tensors this small lose more by sharing than by waiting; 20 times where cores are taken


class AddedWave(Position):
    shift_invariant = False

    def __init__(self, config):
        super().__init__(config)
        self.direction = nn.Parameter(torch.linspace(-1.0, 1.0, config.hidden_size))

    def embedding(self, positions):
        return positions[..., None].double().sin().float() * self.direction


class TwoSpeeds(Position):
    """Queries shrink where keys grow, at another speed in each layer."""

    def __init__(self, config):
        super().__init__(config)
        self.speeds = nn.Parameter(
            torch.linspace(0.3, 0.9, config.num_hidden_layers)[:, None].repeat(1, config.head_dim // 2)
        )

    def turns(self, positions, sign):
        size = 1.01 ** (sign * positions[..., None].double())
        angles = [positions[..., None] * speeds.double() for speeds in self.speeds]
        return [((size * angle.cos()).float(), (size * angle.sin()).float()) for angle in angles]

    def rotation(self, positions):
        return self.turns(positions, -1)

    def key_rotation(self, positions):
        return self.turns(positions, 1)


class Nearness(Position):
    """Another bias in each layer, and none in the first."""

    def __init__(self, config):
        super().__init__(config)
        self.slopes = nn.Parameter(torch.linspace(0.1, 0.5, config.num_attention_heads))

    def bias(self, q_positions, k_positions):
        root = distances(q_positions, k_positions).abs().sqrt()
        layers = range(1, self.config.num_hidden_layers)
        return [None] * bool(layers) + [-self.slopes[:, None, None] * root * layer for layer in layers or [1]]


class Sharpening(Position):
    shift_invariant = False

    def __init__(self, config):
        super().__init__(config)
        self.strength = nn.Parameter(torch.linspace(0.5, 2.0, config.num_attention_heads))

    def temperature(self, positions):
        return self.strength[:, None] * positions.clamp(min=0).add(2).log()[..., None, :]


ROOT = Path(__file__).parent.parent
OURS = {path.stem for folder in (ROOT, ROOT / "tests") for path in folder.glob("*.py")}
OURS |= {path.parent.name for path in ROOT.glob("*/*.py")}  # with what lies in folders of them, such as model.position


def pytest_configure(config):
    """Warnings that the project's own modules cause are errors; those inside libraries come and go with releases."""
    config.addinivalue_line("filterwarnings", rf"error:::({'|'.join(sorted(OURS))})(\.|$)")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="as much as the claims in docs/reliability.md rest on: hours")


@pytest.fixture
def full(request) -> bool:
    """Whether time is no matter."""
    return request.config.getoption("--full")


def readme_schemes() -> dict[str, type[Position]]:
    """The examples of README, each in a file of its own as it stands, by the name that README gives them."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n### Add a scheme\n")[1].split("\n###")[0]
    found = {}
    with TemporaryDirectory() as folder:  # options are read with their docs, from a file
        for number, code in enumerate(re.findall(r"```python\n(.+?)```", section, flags=re.DOTALL)):
            file = Path(folder) / f"readme_scheme_{number}.py"
            file.write_text(code, encoding="utf-8")
            defined = runpy.run_path(str(file), run_name=file.stem).values()
            found |= {cls.__name__.lower(): cls for cls in defined if getattr(cls, "__module__", None) == file.stem}
    return found


THROWAWAY = {cls.__name__: cls for cls in (AddedWave, TwoSpeeds, Nearness, Sharpening)} | readme_schemes()


@pytest.fixture(params=[*sorted(POSITIONS), *sorted(THROWAWAY)])
def scheme(request, monkeypatch) -> str:
    """Every registered scheme, and one for each hook that only tests and README know: what holds for all must for them."""
    if request.param in THROWAWAY:
        monkeypatch.setitem(POSITIONS, request.param, THROWAWAY[request.param])
    return request.param


@pytest.fixture(autouse=True)
def nothing_ignored():
    """No signal, though nohup, or a script that starts them beside others, has the tests ignore some: a run would, too."""
    handlers = {"SIGHUP": signal.SIG_DFL, "SIGINT": signal.default_int_handler}
    known = {getattr(signal, name): handler for name, handler in handlers.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in known.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
