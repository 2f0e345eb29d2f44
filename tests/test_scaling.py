"""Scaled rotary frequencies against published numbers and against transformers' own functions."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from base import InputError
from model.checkpoint import load_checkpoint, save_checkpoint
from model.config import ModelConfig
from model.position import build_position
from model.position.base import ladder
from model.transformer import with_position

# d = 64, base 10,000, L = 2,048, s = 4, computed in float64 by an independent program
REFERENCE = {
    "linear": {0: 0.25, 1: 0.18747355233311397, 8: 0.025, 16: 0.0025, 31: 3.33380358040831e-05},
    "ntk": {
        0: 1.0,
        1: 0.7170983281048126,
        8: 0.06992454992116262,
        16: 0.004889442681677164,
        31: 3.3338035804083106e-05,
    },
    "yarn": {
        8: 0.1,
        9: 0.0706631081870968,
        16: 0.005384615384615384,
        20: 0.0009730085108210397,
        31: 3.33380358040831e-05,
    },
}
SETTINGS = [  # head_dim, base, factor, original length
    (64, 10000.0, 4.0, 2048),
    (64, 10000.0, 16.0, 4096),
    (128, 500000.0, 8.0, 8192),
    (128, 10000.0, 2.0, 256),
    (32, 10000.0, 4.0, 256),
    (80, 1000000.0, 32.0, 32768),
    (16, 100.0, 3.0, 64),
    (64, 10000.0, 4.0, 5),  # the shortest at which yarn's slow pairs begin with the first one, not before it
    (64, 4.0, 4.0, 3200),  # and about the longest at which some have fewer turns than its fast ones
]


def scaled(head_dim, base, length, **scaling):
    config = ModelConfig(
        vocab_size=8,
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=length,
        position={"scheme": "rope", "base": base, "scaling": scaling},
    )
    return build_position(config).theta("cpu")


@pytest.mark.parametrize("rope_type", REFERENCE)
def test_frequencies_are_those_computed_independently(rope_type):
    theta, _ = scaled(64, 10000.0, 2048, rope_type=rope_type, factor=4)
    for pair, expected in REFERENCE[rope_type].items():
        assert theta[pair].item() == pytest.approx(expected, rel=1e-13)


def test_yarn_keeps_fast_pairs_and_its_factor_multiplies_cos_and_sin():
    """The ramp the wrong way round would slow down the fast pairs and leave the slow ones."""
    theta, factor = scaled(64, 10000.0, 2048, rope_type="yarn", factor=4)
    plain = ladder(64, 10000.0)
    assert torch.equal(theta[:9], plain[:9]) and torch.allclose(theta[21:], plain[21:] / 4, rtol=1e-14)
    assert factor == pytest.approx(1.138629436111989, rel=1e-14)


def test_a_yarn_ramp_that_starts_before_the_first_pair():
    theta, _ = scaled(32, 10000.0, 256, rope_type="yarn", factor=4)
    expected = {
        0: 1.0,
        1: 0.5020904689199546,
        4: 0.05714285714285715,
        6: 0.011293848786315641,
        15: 4.445698525097307e-05,
    }
    assert {pair: theta[pair].item() for pair in expected} == pytest.approx(expected, rel=1e-13)


def test_llama3_blends_six_pairs_between_twenty_nine_of_each_kind():
    theta, factor = scaled(128, 500000.0, 8192, rope_type="llama3", factor=8)
    blend = [0.002166570763503359, 0.0013718935677611381, 0.0008567514129196321]
    blend += [0.0005248461609929547, 0.00031269375038406517, 0.0001785078127679964]
    plain = ladder(128, 500000.0)
    assert torch.equal(theta[:29], plain[:29]) and factor == 1.0
    assert theta[29:35].tolist() == pytest.approx(blend, rel=1e-13)
    assert torch.allclose(theta[35:], plain[35:] / 8, rtol=1e-14)


@pytest.mark.parametrize("head_dim, base, factor, length", SETTINGS)
@pytest.mark.parametrize("rope_type", ["linear", "yarn", "llama3"])
def test_frequencies_are_those_of_transformers(rope_type, head_dim, base, factor, length):
    options = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope_type == "llama3" else {}
    reference = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=length,
        rope_parameters={
            "rope_type": rope_type,
            "rope_theta": base,
            "factor": factor,
            "original_max_position_embeddings": length,
            **options,
        },
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[rope_type](reference, torch.device("cpu"))
    theta, attention_factor = scaled(head_dim, base, length, rope_type=rope_type, factor=factor, **options)
    assert torch.allclose(theta.float(), expected, rtol=2e-6, atol=0)  # transformers computes in float32
    assert attention_factor == pytest.approx(expected_factor, rel=1e-12)


def test_longrope_divides_each_pair_by_its_own_number():
    theta, factor = scaled(4, 10000.0, 128, rope_type="longrope", factor=4, long_factor=[1.0, 1.2])
    assert theta.tolist() == pytest.approx([1.0, 0.008333333333333333], rel=1e-14)
    assert factor == pytest.approx(1.1338934190276817, rel=1e-14)
    same = {"rope_type": "longrope", "factor": 4, "long_factor": [4.0] * 32, "attention_factor": 1.0}
    linear, ours = (scaled(64, 10000.0, 2048, **how) for how in ({"rope_type": "linear", "factor": 4}, same))
    assert torch.equal(linear[0], ours[0]) and ours[1] == 1.0


def longrope_of_transformers(folder, short, long):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=64, initializer_range=0.3, pad_token_id=None,
            rope_parameters=rope | {"short_factor": short, "long_factor": long},
        )
    ).eval()  # fmt: skip
    theirs.save_pretrained(folder)
    return theirs


@torch.no_grad()
def test_a_longrope_llama_is_read_where_its_numbers_are_the_same_at_all_lengths(tmp_path):
    """Others turn short texts otherwise than long ones, also those whose keys are in the cache."""
    long = [1.0, 1.5, 3.0, 5.0]
    theirs, ids = longrope_of_transformers(tmp_path / "same", long, long), torch.arange(30)[None]
    torch.testing.assert_close(load_checkpoint(tmp_path / "same")(ids), theirs(ids).logits, rtol=0, atol=1e-4)
    longrope_of_transformers(tmp_path / "other", [1.0] * 4, long)
    with pytest.raises(InputError, match="short_factor: expected the numbers of long_factor, got .1.0, 1.0"):
        load_checkpoint(tmp_path / "other")


def test_the_original_length_may_differ_from_the_context():
    inside, _ = scaled(64, 10000.0, 8192, rope_type="yarn", factor=4, original_max_position_embeddings=2048)
    assert torch.equal(inside, scaled(64, 10000.0, 2048, rope_type="yarn", factor=4)[0])


def test_ntk_is_another_base():
    theta, _ = scaled(64, 10000.0, 2048, rope_type="ntk", factor=4)
    assert torch.allclose(theta, ladder(64, 10000.0 * 4 ** (64 / 62)), rtol=1e-13)
    assert math.isclose(10000.0 * 4 ** (64 / 62), 41829.36592889948, rel_tol=1e-14)


@pytest.mark.parametrize("rope_type", ["linear", "yarn"])
def test_no_scaling_takes_the_place_of_one_that_was_trained_with(rope_type, tiny_model, tokens, tmp_path):
    """The frequencies would be none that the model has ever seen. Left out it may be."""
    trained = {"scheme": "rope", "scaling": {"rope_type": "llama3", "factor": 8.0}}
    model, ids = tiny_model(trained, torch.float32), tokens(1, 30)
    save_checkpoint(tmp_path / "c", model, {})
    other = {"scaling": {"rope_type": rope_type, "factor": 1.0}}
    for refuses in (lambda: with_position(model, other), lambda: load_checkpoint(tmp_path / "c", other)):
        with pytest.raises(InputError, match="position.scaling: .*'llama3'"):
            refuses()
    assert torch.equal(with_position(model, {"scaling": None})(ids), tiny_model("rope", torch.float32)(ids))
