"""Decoding in steps of fixed shape, eager here: what a GPU would repeat as a graph."""

import pytest
import torch

from model import steps
from model.config import ModelConfig
from model.context import Context
from model.position import POSITIONS
from model.transformer import Transformer
from tiny import draw

SHAPE = dict(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
WINDOW = 12
CASES = [(scheme, "softmax") for scheme in POSITIONS] + [("rope", "linear"), ("learned", "linear")]


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(steps, "LEAST_ROOM", 8)
    return real


def build(scheme: str | dict, attention: str = "softmax", length: int = 24) -> Transformer:
    """In float64, with weights far from the start."""
    model = Transformer(ModelConfig(**SHAPE, attention=attention, position=scheme, max_position_embeddings=length))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.2 * draw(*parameter.shape, seed=number)
    return model.double()


def answers(model: Transformer, compiled: bool, prompts: list[list[int]], overflow: str, copies=2) -> torch.Tensor:
    """Logits after prompts of tokens, and after each of 18 more."""
    context = Context(model, window=WINDOW, overflow=overflow, compiled=compiled)
    with torch.inference_mode():
        found = [context.read([torch.tensor(each) for each in prompts], copies)]
        for number in range(18):
            ids = (torch.arange(len(found[0])) * 7 + number * 5) % SHAPE["vocab_size"]
            found.append(context.add(ids))
    return torch.stack(found)


@pytest.mark.parametrize(("scheme", "attention"), CASES)
@pytest.mark.parametrize("prompts", [[[3, 1, 4, 1]], [[3, 1, 4, 1, 5], [9, 2]]], ids=["one", "padded"])
def test_steps_of_fixed_shape_decode_as_passes_do(scheme, attention, prompts):
    """Past two rooms, after which the shapes change."""
    plain, fixed = (answers(build(scheme, attention), compiled, prompts, "continue") for compiled in (False, True))
    torch.testing.assert_close(fixed, plain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("overflow", ["window", "roll"])
def test_past_the_window_too(overflow):
    model = build("rope")
    plain, fixed = (answers(model, compiled, [[3, 1, 4, 1]], overflow) for compiled in (False, True))
    torch.testing.assert_close(fixed, plain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_a_prompt_goes_on_from_what_steps_have_read(attention):
    """As in a chat: in memory that steps use again, for this prompt and for another of as many tokens."""
    contexts = [Context(build("rope", attention), compiled=compiled) for compiled in (False, True)]
    first, second = torch.arange(5), torch.arange(13)  # with what is added to the first, 5 … 10
    for prompt in (first, second, first + 3, second):
        plain, fixed = (
            [each.read([prompt]), *(each.add(torch.tensor([5 + n])) for n in range(6))] for each in contexts
        )
        torch.testing.assert_close(fixed, plain, rtol=0, atol=1e-10)
        assert contexts[0].known == contexts[1].known


def test_after_the_last_position_there_is_none():
    context = Context(build("learned", length=10), compiled=True)
    with torch.inference_mode():
        context.read([torch.arange(8)])
        context.add(torch.tensor([1])), context.add(torch.tensor([1]))
        with pytest.raises(IndexError, match="position 10 lies past the 10 positions that learned has"):
            context.add(torch.tensor([1]))


@pytest.mark.parametrize("scheme", ["learned", "transformer_xl", {"scheme": "cope", "npos": 2}])
def test_a_compiler_makes_one_graph_of_a_step(scheme, eager, monkeypatch):
    """And one for each room, also where hooks would like to know how far padded rows reach."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()  # which counts what all tests compile
    prompts = [[3, 1, 4, 1, 5], [9, 2]]
    plain = answers(build(scheme), False, prompts, "continue")
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: eager(function, backend=keep, fullgraph=True, dynamic=False)
    )
    torch.testing.assert_close(answers(build(scheme), True, prompts, "continue"), plain, rtol=0, atol=1e-10)
    assert len(graphs) == 3
