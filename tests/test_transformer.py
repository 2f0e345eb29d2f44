import pytest
import torch
import torch.nn.functional as F

from base import InputError
from model.position import POSITIONS, Position
from model.transformer import Transformer, with_position

BIAS = torch.tensor([1.5, -2.0, 0.25, 3.0])[:, None, None].expand(4, 3, 3)


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights_are_those_of_the_table(tied, tiny_config):
    """No residual scaling, a norm or a tied matrix drawn by another rule."""
    config = tiny_config(
        hidden_size=128, num_hidden_layers=8, vocab_size=300, initializer_range=0.02, tie_word_embeddings=tied,
        attention_bias=True,
    )  # fmt: skip
    residual_ends = 0
    for name, weight in Transformer(config, seed=3).named_parameters():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight)), name
            continue
        if name.endswith(".bias"):
            assert torch.equal(weight, torch.zeros_like(weight)), name
            continue
        ends_residual = name.split(".")[-2] in ("o_proj", "down_proj")
        residual_ends += ends_residual
        # 16 is 2 × 8 layers. The smallest matrix has 8,192 entries: its estimated deviation is within 4 % (5 sigma).
        assert weight.std().item() == pytest.approx(0.02 / 4 if ends_residual else 0.02, rel=0.04), name
        assert abs(weight.mean().item()) < 5 * 0.02 / weight.numel() ** 0.5, name
    assert residual_ends == 16


def test_every_scheme_starts_from_the_same_shared_weights(scheme, tiny_config):
    """A scheme that draws before the others are built gives its model another start: a comparison of seeds."""
    start, reference = (Transformer(tiny_config(name), seed=5).state_dict() for name in (scheme, "none"))
    assert {name for name in start if not name.startswith("position.")} == reference.keys()
    assert all(torch.equal(start[name], tensor) for name, tensor in reference.items())


def test_one_seed_gives_one_start_and_leaves_the_global_random_state(scheme, tiny_config):
    before = torch.get_rng_state()
    a, b, other = (Transformer(tiny_config(scheme), seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["embed_tokens.weight"], other["embed_tokens.weight"])


@torch.no_grad()
def test_every_scheme_but_none_changes_the_logits(scheme, tiny_model, tokens):
    ids = tokens(2, 10)
    logits, without = (tiny_model(name)(ids) for name in (scheme, "none"))
    assert torch.equal(logits, without) == (scheme == "none")


def test_every_scheme_trains(scheme, tiny_config, tokens):
    """Every parameter gets a gradient, the scheme's too, and steps along it lower the loss."""
    model, ids = Transformer(tiny_config(scheme)), tokens(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@torch.no_grad()
def test_no_token_changes_the_logits_before_it(scheme, tiny_model, tokens):
    """Looking one token ahead makes the training loss a lie."""
    model, ids = tiny_model(scheme), tokens(1, 10)
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 48
    before, after = model(ids)[0], model(changed)[0]
    assert torch.equal(before[:6], after[:6])
    assert ((before[6:] - after[6:]).abs().amax(-1) > 1e-6).all()


@torch.no_grad()
def test_left_padded_rows_equal_single_ones(scheme, tiny_model, tokens):
    """Three rows of three lengths; the padding also meets as many tokens as rows, where (B, T) looks like (T, B)."""
    model = tiny_model(scheme)
    for length, pads in [(9, [4, 0, 2]), (3, [1, 0, 2])]:
        ids = tokens(3, length)
        logits = model(ids, positions=torch.arange(length) - torch.tensor(pads)[:, None])
        assert logits.isfinite().all()
        for row, pad in enumerate(pads):
            expected = model(ids[row : row + 1, pad:])[0]
            torch.testing.assert_close(logits[row, pad:], expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_attention_receives_the_bias_as_it_is(tiny_model, tokens, monkeypatch):
    """It is added to scores that were divided by √d, and may not be divided with them."""
    monkeypatch.setitem(POSITIONS, "private", type("Private", (Position,), {"bias": lambda self, q, k: BIAS}))
    model, masks = tiny_model("private"), []
    model.layers[1].self_attn.register_forward_pre_hook(lambda module, args: masks.append(args[1].mask))
    model(tokens(2, 3))
    x = float("-inf")
    assert masks[0].tolist() == [[[[h, x, x], [h, h, x], [h, h, h]] for h in (1.5, -2.0, 0.25, 3.0)]]


@torch.no_grad()
def test_logits_to_keep_are_the_last(tiny_model, tokens):
    model, ids = tiny_model(), tokens(2, 7)
    full = model(ids)
    torch.testing.assert_close(model(ids, logits_to_keep=2), full[:, -2:], rtol=0, atol=1e-12)
    assert full.shape == (2, 7, 48)


@torch.no_grad()
@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_low_precision_stays_close_to_float32(scheme, precision, tiny_model, tokens):
    """And runs at all: a float32 bias or embedding must meet half-precision activations."""
    model, ids = tiny_model(scheme, torch.float32), tokens(2, 10)
    expected = model(ids)
    if precision == "bfloat16":
        model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        logits = model(ids)
    assert (logits - expected).norm() < 0.05 * expected.norm()


def test_other_options_on_the_same_weights_are_as_if_built_with_them(tiny_model, tokens):
    scaling = {"rope_type": "yarn", "factor": 4.0}
    model, ids = tiny_model("rope", max_position_embeddings=8), tokens(2, 30)
    built = tiny_model({"scheme": "rope", "scaling": scaling}, max_position_embeddings=8)
    before, other = model(ids), with_position(model, {"scaling": scaling})
    assert torch.equal(other(ids), built(ids)) and torch.equal(model(ids), before)
    assert not torch.allclose(other(ids), before)
    assert (other.config.position.scaling.factor, model.config.position.scaling) == (4.0, None)


def test_weights_are_shared_but_a_move_of_one_model_moves_no_other(scheme, tiny_model, tokens):
    model, ids = tiny_model(scheme), tokens(2, 9)
    other = with_position(model, {})
    mine, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(mine[name].data_ptr() == theirs[name].data_ptr() for name in mine)
    assert torch.equal(other(ids), model(ids))
    before = model(ids)
    other.float()
    assert torch.equal(model(ids), before) and {p.dtype for p in model.layers.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("rope", {"bas": 5}, "bas.*base"),
        ("rope", {"scaling": {"rope_type": "stretch", "factor": 4}}, "stretch"),
        ("alibi", {"scaling": {"rope_type": "yarn", "factor": 4}}, "scaling"),
        ("learned", {"max_length": 999}, "parameters that this model"),
        ("none", {"scheme": "learned"}, "parameters that this model"),
    ],
)
def test_options_that_the_weights_do_not_fit_are_refused(scheme, options, message, tiny_model):
    with pytest.raises(InputError, match=message):
        with_position(tiny_model(scheme), options)
