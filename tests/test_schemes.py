"""What each scheme adds, against written-out values; what all schemes share is tested over the registry elsewhere."""

import math

import pytest
import torch
import transformers
from pydantic import ValidationError

from base import InputError
from model.attention import AttentionInputs, rotate, waves
from model.cache import Cache
from model.checkpoint import load_checkpoint, save_checkpoint
from model.config import ModelConfig
from model.position import POSITIONS, T5, Alibi, Rope, build_position
from model.position.base import ladder
from model.transformer import Transformer
from settings import one_line
from tiny import draw

SLOPES = {  # Press et al. 2022, and the authors' rule where the heads are no power of two
    1: [0.00390625],
    3: [0.0625, 0.00390625, 0.25],
    4: [0.25, 0.0625, 0.015625, 0.00390625],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    12: [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    + [0.7071067811865476, 0.35355339059327384, 0.17677669529663695, 0.08838834764831849],
}
FIRST_DISTANCE_OF_BUCKET = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def config(position, **changes) -> ModelConfig:
    shape = {"vocab_size": 31, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"num_hidden_layers": 3, "max_position_embeddings": 32}
    return ModelConfig(**shape | {"position": position} | changes)


def model(position, **changes) -> Transformer:
    """A model whose weights are large enough for positions to matter."""
    built = Transformer(config(position, **changes), seed=1)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return built.eval()


def ids(*shape) -> torch.Tensor:
    return torch.randint(31, shape, generator=torch.Generator().manual_seed(0))


def test_a_position_past_the_learned_table_is_an_error_with_both_numbers():
    learned = model({"scheme": "learned", "max_length": 40})
    cache = Cache()
    learned(ids(1, 40), cache)
    with pytest.raises(IndexError, match="position 40 .* the 40 positions"):
        learned(ids(1, 1), cache)
    with pytest.raises(IndexError, match="position 57 .* the 40 positions"):
        learned(ids(1, 2), positions=torch.tensor([[56, 57]]))


def test_learned_positions_start_as_large_as_token_embeddings():
    built = Transformer(config("learned", hidden_size=512, max_position_embeddings=512, vocab_size=512))
    assert built.position.table.weight.std().item() == pytest.approx(built.embed_tokens.weight.std().item(), rel=0.01)


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes(heads):
    assert Alibi.slopes(heads) == pytest.approx(SLOPES[heads], rel=1e-15)


def test_alibi_bias_is_minus_slope_times_distance():
    bias = build_position(config("alibi", num_attention_heads=8, num_key_value_heads=8)).bias(*[torch.arange(4)] * 2)
    assert bias.shape == (8, 4, 4)
    assert bias[0].tril().tolist() == [[0, 0, 0, 0], [-0.5, 0, 0, 0], [-1, -0.5, 0, 0], [-1.5, -1, -0.5, 0]]


def test_t5_buckets_begin_where_t5_has_them():
    first = torch.tensor(FIRST_DISTANCE_OF_BUCKET)
    assert T5.buckets(first, 32, 128).tolist() == list(range(32))
    assert T5.buckets(first[1:] - 1, 32, 128).tolist() == list(range(31))
    assert T5.buckets(torch.tensor([128, 200, 1000, 10**6]), 32, 128).tolist() == [31] * 4


def test_t5_buckets_are_those_of_transformers():
    distance = torch.arange(300)
    theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(-distance, False, 32, 128)
    assert torch.equal(T5.buckets(distance, 32, 128), theirs)


DISTANCES = [0, 1, 2, 5, 16, 127, 128, 1000, 8191]
KERPLE = {  # r_1, r_2, and the bias at these distances, from an independent float64 program
    "log": (
        (1.3, 0.4),
        [0.0, -0.43741390760757687, -0.7641226643727548, -1.4281959752685425, -2.601924000273162]
        + [-5.131607194045069, -5.141607243355171, -7.792149855498541, -10.523247415345763],
    ),
    "power": (
        (0.7, 1.5),
        [0.0, -0.7, -1.9798989873223332, -7.826237921249263, -44.8]
        + [-1001.8521198260748, -1013.7082815090346, -22135.943621178652, -518923.6078815358],
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", KERPLE)
def test_kerple_is_the_reference(kind):
    (r1, r2), expected = KERPLE[kind]
    built = build_position(config({"scheme": "kerple", "kind": kind})).double()
    built.log_r1[1] = math.log(r1)
    built.free_r2[1] = math.log(r2) if kind == "log" else math.log(r2 / (2 - r2))
    bias = built.bias(torch.tensor([8191]), 8191 - torch.tensor(DISTANCES))
    assert bias.shape == (4, 1, 9) and bias[1, 0].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind, last", [("log", (1.75, 0.875)), ("power", (0.875, 1.75))])
def test_kerple_starts_over_the_ranges_of_the_authors(kind, last):
    """Theirs are uniform: r_1 to 2 and r_2 to 1 for the logarithm, r_1 to 1 and r_2 to 2 for the power."""
    built = build_position(config({"scheme": "kerple", "kind": kind}))
    r2 = built.free_r2.exp() if kind == "log" else 2 * built.free_r2.sigmoid()
    for found, largest in zip((built.log_r1.exp(), r2), last):
        assert found.tolist() == pytest.approx([largest * share / 7 for share in (1, 3, 5, 7)], rel=1e-6)


def test_the_power_of_kerple_has_a_gradient_at_distance_zero():
    """By hand, that of 0^r_2 = e^(r_2 log 0) is not a number."""
    built = build_position(config({"scheme": "kerple", "kind": "power"}))
    built.bias(torch.arange(4), torch.arange(4)).tril().sum().backward()
    assert all((parameter.grad != 0).all() and parameter.grad.isfinite().all() for parameter in built.parameters())


FIRE = {  # (m, n): the bias of two heads, with c = 0.1 and L = 64, from an independent float64 program
    (0, 0): [-0.48, -0.1],
    (3, 0): [-0.33449550656097443, -0.20224640079499095],
    (3, 2): [-0.4271419651599347, -0.13714348394166748],
    (63, 0): [0.9589875710334115, -1.9017139296789363],
    (64, 0): [0.97, -1.92],
    (200, 150): [0.2440713958359329, -0.7891944072908132],
    (200, 0): [0.97, -1.92],
    (1000, 999): [-0.45707659004857154, -0.11610834212803083],
    (1000, 0): [0.97, -1.92],
}


@torch.no_grad()
def test_fire_is_the_reference():
    shape = {"num_attention_heads": 2, "max_position_embeddings": 32}
    built = build_position(config({"scheme": "fire", "width": 4}, **shape)).double()
    built.c.fill_(-0.1)  # its absolute value counts, and so does that of the multiplier
    built.multiplier.fill_(-2.0)
    built.hidden.weight.copy_(torch.tensor([[0.9], [-1.2], [0.5], [2.0]]))
    built.hidden.bias.copy_(torch.tensor([0.1, 0.8, -0.3, -1.0]))
    built.heads.weight.copy_(torch.tensor([[0.3, -0.7, 1.1, 0.4], [-0.6, 0.2, 0.9, -1.3]]))
    built.heads.bias.copy_(torch.tensor([0.05, -0.2]))
    for (m, n), expected in FIRE.items():
        bias = built.bias(torch.tensor([m]), torch.tensor([n]))
        assert bias.flatten().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("options", [{"window": 3, "keep_first": 1}, {"window": 3, "keep_first": 1, "rotate": False}])
def test_a_window_and_the_first_token_are_seen(options):
    seen = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1]]
    built, places = build_position(config({"scheme": "window", **options})), torch.arange(5)
    assert built.bias(places, places).tril().exp().tril().tolist() == [seen]
    rotation, rope = built.rotation(places), build_position(config("rope")).rotation(places)
    assert rotation is None if "rotate" in options else all(map(torch.equal, rotation, rope))


def test_what_stands_still_needs_no_pairs():
    odd = {"head_dim": 7, "position": {"scheme": "window", "rotate": False}}
    assert Transformer(config(**odd))(ids(1, 3)).isfinite().all()
    with pytest.raises(ValidationError, match="window rotates pairs: model.head_dim must be even, got 7"):
        config(**odd | {"position": "window"})


@pytest.mark.parametrize("scale_base, positions", [(512, 30595), (1, 60)])
def test_xpos_ends_before_its_keys_overflow(scale_base, positions):
    """Logits would be nan. The last positions have keys of 3e32 and queries of 3e-33."""
    built = model({"scheme": "xpos", "scale_base": scale_base})
    assert built.position.max_length == positions
    last = torch.tensor([[positions - 2, positions - 1]])
    torch.testing.assert_close(built(ids(1, 2), positions=last), built(ids(1, 2)), rtol=0, atol=1e-4)
    with pytest.raises(IndexError, match=f"position {positions} lies past the {positions} positions that xpos has"):
        built(ids(1, 2), positions=last + 1)


def test_xpos_refuses_a_scale_that_ends_within_the_context():
    with pytest.raises(
        ValidationError, match="scale_base 0.3: keys overflow float32 from position 18 on, before .* 32"
    ):
        config({"scheme": "xpos", "scale_base": 0.3})


def test_partial_rotation_turns_what_it_names():
    """neox spreads the ladder over the first channels; p_rope keeps the ladder and stops its slowest pairs."""
    neox, p_rope = (
        build_position(config({"scheme": "rope", "fraction": 0.5, "partial": partial}, head_dim=16)).theta("cpu")[0]
        for partial in ("neox", "p_rope")
    )
    assert torch.equal(neox, ladder(8, 10000.0))
    assert torch.equal(p_rope, torch.cat((ladder(16, 10000.0)[:4], torch.zeros(4))))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_channels_past_the_rotary_dimension_stay(layout):
    x = draw(1, 3, 2, 16, dtype=torch.float32)
    phi = torch.arange(3.0)[:, None] * ladder(8, 10000.0).float()
    turned = rotate(x, waves((phi.cos(), phi.sin())), layout)
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert torch.equal(turned[..., :8], rotate(x[..., :8], waves((phi.cos(), phi.sin())), layout))


def test_the_layout_is_kept_by_a_checkpoint_and_never_read_as_the_other(tmp_path):
    interleaved = model({"scheme": "rope", "layout": "interleaved"})
    save_checkpoint(tmp_path / "c", interleaved, {})
    again = load_checkpoint(tmp_path / "c")
    assert again.config.position.layout == "interleaved"
    assert torch.equal(again(ids(1, 9)), interleaved(ids(1, 9)))
    half = model("rope")
    half.load_state_dict(interleaved.state_dict())
    assert (half(ids(1, 9)) - interleaved(ids(1, 9))).abs().max() > 0.1
    with pytest.raises(ValueError, match="whereabouts"):  # transformers has no Llama of this layout
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c")


@pytest.mark.parametrize(
    "position",
    [
        {"scheme": "rope", "scaling": {"rope_type": "linear", "factor": 2}},
        {"scheme": "rope", "scaling": {"rope_type": "ntk", "factor": 2}},
        {"scheme": "rope", "scaling": {"rope_type": "yarn", "factor": 4}},
        {"scheme": "rope", "scaling": {"rope_type": "llama3", "factor": 4, "original_max_position_embeddings": 16}},
        {"scheme": "rope", "scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16}},
        {"scheme": "rope", "scaling": {"rope_type": "longrope", "factor": 4, "long_factor": [1, 1.5, 3, 4.5]}},
        {
            "scheme": "rope",
            "scaling": {
                "rope_type": "longrope",
                "factor": 2,
                "long_factor": [1, 2, 2, 2],
                "original_max_position_embeddings": 16,
            },
        },
        {"scheme": "rope", "partial": "p_rope", "fraction": 0.5},
        {"scheme": "rope", "partial": "p_rope", "fraction": 0.75, "scaling": {"rope_type": "linear", "factor": 2}},
        {"scheme": "rope", "partial": "p_rope", "fraction": 0.75, "scaling": {"rope_type": "ntk", "factor": 2}},
        {"scheme": "rope", "partial": "p_rope", "fraction": 0.5, "every": 2},
        {"scheme": "rope", "every": [0, 2]},
        {"scheme": "rope", "every": 2, "base": 500.0},
    ],
    ids=str,
)
def test_transformers_computes_the_same_logits(tmp_path, position):
    ours = model(position)
    save_checkpoint(tmp_path / "c", ours, {})
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        difference = (ours(ids(2, 24)) - theirs.eval()(ids(2, 24)).logits).abs().max()
    assert difference < 1e-4 * ours(ids(2, 24)).abs().max()


def test_a_subclass_of_rope_comes_back_and_is_no_llama(tmp_path, monkeypatch):
    """transformers would compute rope; and a scheme may read a tensor where it is built."""

    class Sharp(Rope):
        def __init__(self, config):
            super().__init__(config)
            self.power = torch.tensor([2.0]).item()

        def temperature(self, positions):
            return positions.clamp(min=0).add(2).log()[..., None, :] ** self.power

    monkeypatch.setitem(POSITIONS, "sharp", Sharp)
    save_checkpoint(tmp_path / "c", model("sharp"), {})
    assert torch.equal(load_checkpoint(tmp_path / "c")(ids(1, 9)), model("sharp")(ids(1, 9)))
    with pytest.raises(ValueError, match="whereabouts"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c")


@pytest.mark.parametrize("rope_type", ["linear", "yarn", "llama3"])
def test_a_scaled_llama_saved_by_transformers_is_read_with_its_scaling(tmp_path, rope_type):
    options = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope_type == "llama3" else {}
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=64, initializer_range=0.3, pad_token_id=None,
            rope_parameters={
                "rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0,
                "original_max_position_embeddings": 16, **options,
            },
        )
    ).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        difference = (load_checkpoint(tmp_path)(ids(2, 40)) - theirs(ids(2, 40)).logits).abs().max()
    assert difference < 1e-4


@pytest.mark.parametrize(
    "change", [{"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}]
)
def test_a_scaling_that_is_not_known_is_refused(tmp_path, change):
    import json

    save_checkpoint(tmp_path / "c", model("rope"), {})
    stored = json.loads((tmp_path / "c" / "config.json").read_text())
    del stored["position"]
    (tmp_path / "c" / "config.json").write_text(json.dumps(stored | {"rope_parameters": change}))
    with pytest.raises(InputError, match="config.json: position.scaling"):
        load_checkpoint(tmp_path / "c")


def test_scaling_can_be_given_to_a_model_trained_without_it(tmp_path):
    save_checkpoint(tmp_path / "c", model("rope"), {})
    scaling = {"rope_type": "yarn", "factor": 4.0}
    scaled = load_checkpoint(tmp_path / "c", position_options={"scaling": scaling})
    assert torch.equal(scaled(ids(1, 32)), model({"scheme": "rope", "scaling": scaling})(ids(1, 32)))
    save_checkpoint(tmp_path / "a", model("alibi"), {})
    with pytest.raises(InputError, match="unknown key 'scaling'"):
        load_checkpoint(tmp_path / "a", position_options={"scaling": scaling})


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name, cls in POSITIONS.items() if "every" in cls.Options.model_fields])
def test_layers_left_out_compute_as_without_positions(name):
    """`every` names the first and last of three layers: swapping what the middle one gets must not change it."""
    position = {"scheme": name, **({"window": 4} if name == "window" else {})}
    acting = [model(position | {"every": every}).position for every in (2, [0, 2])]
    assert [[p.acts_in(layer) for layer in range(3)] for p in acting] == [[False, True, False], [True, False, True]]
    some, all_, none = model(position | {"every": [1]}), model(position), model("none")
    for parameter in (*some.position.parameters(), *all_.position.parameters()):
        parameter += 0.1 * draw(*parameter.shape)  # some schemes start as none
    seen = {}
    for name, built in (("some", some), ("all", all_), ("none", none)):
        for layer in range(3):
            record = lambda module, inputs, output, key=(name, layer): seen.__setitem__(key, output)  # noqa: E731
            built.layers[layer].register_forward_hook(record)
        built(ids(1, 12))
    assert torch.equal(seen["some", 0], seen["none", 0])
    assert (seen["some", 1] - seen["none", 1]).abs().max() > 1e-3
    assert (seen["all", 0] - seen["none", 0]).abs().max() > 1e-3


SHORT_YARN = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 1}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"base": 1}, "base"),
        ({"fraction": 0.1}, "fraction"),
        ({"scaling": {"rope_type": "ntk", "factor": 2}, "fraction": 0.25}, "ntk"),
        ({"scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 1}}, "beta_fast"),
        ({"scaling": {**SHORT_YARN, "beta_slow": 1.6}}, "beta_slow 1.6 must be below 1.59155"),
        ({"base": 1.1, "scaling": {**SHORT_YARN, "original_max_position_embeddings": 300}}, "beta_fast 32 above 39.4"),
        ({"scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4}}, "high_freq_factor"),
        ({"scaling": {"rope_type": "linear", "factor": 0.5}}, "factor"),
        ({"scaling": {"rope_type": "cubic", "factor": 2}}, "rope_type"),
        ({"scaling": {"rope_type": "longrope", "factor": 2}}, "long_factor"),
        ({"scaling": {"rope_type": "longrope", "factor": 2, "long_factor": [1, 2]}}, "expected 4 numbers, got 2"),
        ({"scaling": {"rope_type": "longrope", "factor": 2, "long_factor": [1, 2, 0, 4]}}, "long_factor"),
    ],
)
def test_options_without_meaning_are_refused(options, named):
    """Each would end in nan tables, a division by zero, or a ladder or ramp turned round."""
    with pytest.raises(ValidationError) as refused:
        config({"scheme": "rope", **options})
    assert named in one_line(refused.value)


@pytest.mark.parametrize("every", [4, [3], []])
def test_layers_that_are_not_there_are_refused(every):
    with pytest.raises(ValidationError):
        config({"scheme": "rope", "every": every})


def test_theta_of_each_layer_moves_that_layer_alone():
    built = model({"scheme": "learned_theta", "per_layer": True})
    assert built.position.log_theta_drift.shape == (3, 4)
    assert torch.equal(built(ids(1, 9)), model("rope")(ids(1, 9)))
    first = []
    built.layers[0].register_forward_hook(lambda module, inputs, output: first.append(output))
    built(ids(1, 9))
    with torch.no_grad():
        built.position.log_theta_drift[1] = 0.5
    assert not torch.equal(built(ids(1, 9)), model("rope")(ids(1, 9)))
    assert torch.equal(*first)


def test_the_gradient_of_log_theta_is_that_of_finite_differences():
    built = model("learned_theta").double()
    loss = lambda: built(ids(1, 12)).logsumexp(-1).sum()  # noqa: E731
    loss().backward()
    drift, step = built.position.log_theta_drift, 2.0**-10
    for pair in range(len(drift)):
        with torch.no_grad():
            drift[pair] += step
            above = loss()
            drift[pair] -= 2 * step
            below = loss()
            drift[pair] += step
        # the tables are float32, which leaves some 1e-7 / 1e-3 of noise in the difference
        assert drift.grad[pair].item() == pytest.approx((above - below).item() / (2 * step), rel=2e-2, abs=2e-2)


def test_theta_drift_is_reported_for_each_frequency():
    built = model("learned_theta")
    with torch.no_grad():
        built.position.log_theta_drift.copy_(torch.tensor([0.0, -0.25, 0.5, 0.0]))
    assert built.position.metrics() == {"theta_drift": [0.0, 0.25, 0.5, 0.0]}


def test_linear_attention_rotates_in_the_numerator_only():
    """Su et al. 2021, equation 19, written out in float64 for every head and pair of tokens."""
    built = model({"scheme": "rope", "layout": "interleaved"}, attention="linear", num_key_value_heads=4).double()
    attention = built.layers[0].self_attn
    x = draw(1, 7, 32)
    q, k, v = (p(x)[0].view(7, 4, 8).tolist() for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    phi = lambda row: [value + 1 if value > 0 else math.exp(value) for value in row]  # noqa: E731

    def turn(row, position):
        angles = [position * 10000.0 ** (-2 * i / 8) for i in range(4)]
        pairs = [complex(row[2 * i], row[2 * i + 1]) * complex(math.cos(a), math.sin(a)) for i, a in enumerate(angles)]
        return [part for z in pairs for part in (z.real, z.imag)]

    dot = lambda a, b: sum(x * y for x, y in zip(a, b))  # noqa: E731
    rows = []
    for m in range(7):
        for h in range(4):
            weights = [dot(turn(phi(q[m][h]), m), turn(phi(k[n][h]), n)) for n in range(m + 1)]
            normalizer = sum(dot(phi(q[m][h]), phi(k[n][h])) for n in range(m + 1))
            rows += [sum(w * v[n][h][c] for n, w in enumerate(weights)) / normalizer for c in range(8)]
    expected = torch.tensor(rows, dtype=torch.float64).view(7, 32) @ attention.o_proj.weight.T
    turn = built.position.rotation(torch.arange(7))
    got = attention(x, AttentionInputs(0, turns=waves(turn), layout="interleaved"))[0]
    assert (got - expected).abs().max() < 1e-6 * expected.abs().max()  # cos and sin are float32


def test_the_state_of_linear_attention_does_not_grow():
    built, cache = model("rope", attention="linear"), Cache()
    built(ids(1, 5), cache)
    before = [tensor.shape for tensor in cache.layers[0]]
    built(ids(1, 20), cache)
    assert [tensor.shape for tensor in cache.layers[0]] == before == [(1, 4, 8, 8), (1, 4, 1, 8)]


def test_linear_attention_refuses_what_changes_scores(scheme):
    """Any scheme that does, one of a user's too: it would compute what `none` does, without a word."""
    if POSITIONS[scheme].overrides("bias", "temperature", "features", "content_bias"):
        with pytest.raises(ValidationError, match=f"attention 'linear' .* position '{scheme}'"):
            config(scheme, attention="linear")
    else:
        linear, without = (model(name, attention="linear")(ids(1, 9)) for name in (scheme, "none"))
        assert torch.equal(linear, without) == (scheme == "none")


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_content_is_seen_and_kept_in_float32(precision, monkeypatch, scheme):
    """Sums of gates over a long text are lost in bfloat16."""
    seen, cache = [], Cache()
    if not POSITIONS[scheme].overrides("content_bias"):
        return
    built, hook = model(scheme), POSITIONS[scheme].content_bias
    monkeypatch.setattr(POSITIONS[scheme], "content_bias", lambda *args: seen.extend(args) or hook(*args))
    if precision == "bfloat16":
        built.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        built(ids(1, 9), cache)
    floats = [each.dtype for each in seen if torch.is_tensor(each) and each.is_floating_point()]
    assert len(floats) >= 3 * len(built.layers) and {*floats} == {torch.float32}
    keys, values, *kept = cache.layers[0]
    assert {keys.dtype, values.dtype} == {torch.bfloat16} and all(each.dtype == torch.float32 for each in kept)
