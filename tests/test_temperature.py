"""Temperatures: factors on the queries, an option of every scheme, switched on in training or afterwards."""

import math

import pytest
import torch
from pydantic import ValidationError

from base import InputError
from comparison.design import rejection
from model.cache import Cache
from model.checkpoint import load_checkpoint, save_checkpoint
from model.position import POSITIONS
from model.transformer import with_position
from settings import one_line

POSITION = [0, 1, 2, 7, 63, 127, 128, 255, 511, 1023, 8191, 8192, 16383, 131071]
FACTORS = {  # at these positions, from an independent float64 program
    "log": (
        {"length": 128},
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0016038936318934, 1.1428571428571428, 1.2857142857142858, 1.4285714285714286]
        + [1.8571428571428572, 1.8571680142123492, 2.0, 2.428571428571429],
    ),
    "ssmax": (
        {"start": 0.43},
        [0.0, 0.2980532876407765, 0.4724032841272872, 0.8941598629223294, 1.7883197258446588, 2.086373013485435]
        + [2.089719333875519, 2.384426301126212, 2.6824795887669883, 2.9805328764077648, 3.874692739330094]
        + [3.8747452263609805, 4.17274602697087, 5.0669058898932],
    ),
    "floor": (
        {},
        [1.0] * 10 + [1.0693147180559945, 1.0693147180559945, 1.109861228866811, 1.2833213344056216],
    ),
    "constant": ({"value": 1.5712}, [1.5712] * 14),  # DroPE's 1 + 0.412 ln 4
}
KINDS = pytest.mark.parametrize("kind", FACTORS)


def option(kind, **changes):
    return {"temperature": {"kind": kind, **FACTORS[kind][0], **changes}}


@KINDS
def test_factors_are_those_of_the_independent_program(kind, tiny_config, tiny_model):
    positions, expected = torch.tensor(POSITION), torch.tensor(FACTORS[kind][1])
    built = tiny_model({"scheme": "none", **option(kind)}).position
    if kind == "ssmax":
        with torch.no_grad():
            built.sharpness.fill_(0.43)
    found = built.temperature(positions)
    for factor in found if isinstance(found, list) else [found]:
        assert factor.dtype == torch.float32 and factor.shape == (4 if kind == "ssmax" else 1, len(POSITION))
        torch.testing.assert_close(factor, expected.expand(len(factor), -1), rtol=1e-6, atol=0)


def test_ssmax_starts_with_a_mean_factor_of_one(tiny_config, tiny_model):
    built = tiny_model({"scheme": "rope", "temperature": {"kind": "ssmax"}}, max_position_embeddings=100)
    mean = sum(math.log(n) for n in range(1, 101)) / 100
    with torch.no_grad():
        built.position.sharpness.fill_(1 / mean)
    assert built.position.temperature(torch.arange(100))[0].mean().item() == pytest.approx(1, rel=1e-6)
    fresh = POSITIONS["rope"](tiny_config({"scheme": "rope", "temperature": {"kind": "ssmax"}}))
    of_256 = sum(math.log(n) for n in range(1, 257)) / 256
    assert fresh.sharpness.flatten().tolist() == pytest.approx([1 / of_256] * 8)


@torch.no_grad()
@KINDS
def test_scores_are_multiplied_and_what_is_added_is_not(kind, tiny_model, tokens):
    """The same as queries so much longer, token by token: alibi's penalty stays what it was."""
    hot, plain = (tiny_model({"scheme": "alibi", **more}) for more in (option(kind), {}))
    plain.load_state_dict(hot.state_dict(), strict=False)
    found, ids, seen = hot.position.temperature(torch.arange(9)), tokens(2, 9), []
    for layer, block in enumerate(plain.layers):
        factor = (found[layer] if isinstance(found, list) else found).expand(4, -1).T
        weights = block.self_attn
        real, both = weights.projected, torch.cat((factor, torch.ones(9, 2)), dim=-1)[..., None]
        weights.projected = lambda x, real=real, both=both: seen.append(1) or (real(x)[0] * both, real(x)[1])
    torch.testing.assert_close(plain(ids), hot(ids), rtol=0, atol=1e-10)
    assert len(seen) == 2


@torch.no_grad()
@KINDS
@pytest.mark.parametrize("name", ["rope", "transformer_xl", "deberta"])
def test_chunks_decoding_and_padding_are_the_full_pass(name, kind, tiny_model, tokens):
    """A query counts its own tokens: no padding, and those in the cache too."""
    changes = {"length": 4} if kind in ("log", "floor") else {}
    model, ids, cache = tiny_model({"scheme": name, **option(kind, **changes)}), tokens(2, 9), Cache()
    positions = torch.arange(9) - torch.tensor([[3], [0]])
    chunks = zip(ids.split([4, 1, 3, 1], dim=1), positions.split([4, 1, 3, 1], dim=1))
    logits = torch.cat([model(chunk, cache, place) for chunk, place in chunks], dim=1)
    for row, pad in enumerate((3, 0)):
        torch.testing.assert_close(logits[row, pad:], model(ids[row : row + 1, pad:])[0], rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["log", "floor", "constant"])
def test_a_trained_model_takes_a_temperature_and_gives_it_back(kind, scheme, tiny_model, tokens):
    """As evaluate_with does: what needs no parameter can be switched on, and is nothing where it says 1."""
    if kind != "log" and scheme not in ("rope", "fox"):
        return  # the path is one
    changes = {"log": {"length": 8}, "floor": {"length": 8}, "constant": {}}[kind]
    if POSITIONS[scheme].overrides("temperature"):
        return  # a scheme with a temperature of its own
    model, ids = tiny_model(scheme), tokens(1, 30)
    other = with_position(model, option(kind, **changes))
    unlike = (other(ids) - model(ids)).abs().amax(dim=-1)[0]
    assert unlike[-1] > 1e-4
    if kind != "constant":
        assert unlike[:7].max() == 0  # of 8 tokens and fewer
    assert torch.equal(with_position(other, {"temperature": None})(ids), model(ids))


def test_one_that_is_trained_is_refused_afterwards_in_one_line(tiny_model):
    model = tiny_model("rope")
    with pytest.raises(InputError, match="^position: .*'ssmax'.* needs parameters that this model does not have$"):
        with_position(model, option("ssmax"))
    with pytest.raises(InputError, match="needs parameters"):  # it would leave a trained number out
        with_position(tiny_model({"scheme": "rope", **option("ssmax")}), {"temperature": None})


def test_a_comparison_knows_what_it_cannot_evaluate_with_before_it_trains(tiny_config):
    """Not after hours, when the first model is measured."""
    assert rejection(tiny_config("rope"), option("ssmax")).endswith("needs parameters that this model does not have")
    assert rejection(tiny_config("rope"), option("log")) is None


@torch.no_grad()
@KINDS
def test_a_checkpoint_keeps_its_temperature(kind, tiny_model, tokens, tmp_path):
    model = tiny_model({"scheme": "rope", **option(kind)}, torch.float32)
    save_checkpoint(tmp_path / "c", model, {})
    assert torch.equal(load_checkpoint(tmp_path / "c")(tokens(1, 30)), model(tokens(1, 30)))


def test_ssmax_trains_a_number_for_each_layer_and_head(tiny_model, tokens):
    model = tiny_model({"scheme": "rope", "every": 2, **option("ssmax")})
    model(tokens(2, 9)).logsumexp(-1).sum().backward()
    grad = model.position.sharpness.grad
    assert grad.shape == (2, 4) and not grad[0].any() and grad[1].all()  # layer 0 is left out


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"kind": "cold"}, "kind"),
        ({"kind": "constant"}, "value"),
        ({"kind": "constant", "value": 0}, "value"),
        ({"kind": "log", "length": 1}, "length"),
        ({"kind": "floor", "lenght": 8}, "lenght"),
        ("log", "temperature"),
    ],
)
def test_options_without_meaning_are_refused(value, named, tiny_config):
    with pytest.raises(ValidationError) as refused:
        tiny_config({"scheme": "rope", "temperature": value})
    assert named in one_line(refused.value) and "\n" not in one_line(refused.value)


def test_linear_attention_has_no_scores_to_sharpen(tiny_config):
    with pytest.raises(ValidationError, match="attention 'linear' has no scores"):
        tiny_config({"scheme": "rope", **option("log")}, attention="linear")
