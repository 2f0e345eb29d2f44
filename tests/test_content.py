"""Schemes from content, and those whose sides differ, against an independent float64 program and against loops.

The program has q = sin(1 + 1.3t + 0.7c), k = cos(0.5 + 0.9t − 1.1c) and x = cos(0.3 + 1.1t + 0.6c) for token t and
channel c, of one head, and weights sin(a + 0.8r + 1.7c) / √columns for row r. Where the authors published code, it was
run on the same numbers.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from model.cache import Cache
from model.checkpoint import load_checkpoint, save_checkpoint
from model.huggingface import transformers_keys
from model.inputs import attention_inputs
from model.position import POSITIONS, build_position
from model.transformer import Transformer
from tiny import draw

SCORES = {  # row m: before the softmax, with all that is scaled, for n = 0 … m
    "rope": [
        [0.7153543038626989],
        [0.8993980183480528, 0.1000325527366911],
        [0.7671018241888418, -0.6106688050308099, -0.6444046936124282],
        [0.3571243457469387, -0.3226637789645905, -0.02908244674526148, 0.9811294026009187],
        [-0.4170588742972747, -0.10194403731362925, 0.8277746418973532, 0.9167815559277563, -0.10462920500233966],
    ],
    "xpos": [
        [0.7153543038626989],
        [0.8979658523106396, 0.1000325527366911],
        [0.7643973167002758, -0.6095583889867583, -0.6444046936124282],
        [0.35304953725121796, -0.3214200062767567, -0.02872261330911521, 0.9811294026009187],
        [-0.4161619934423113, -0.10036094190729596, 0.8260112758810606, 0.9156679927390698, -0.10462920500233971],
    ],
    "pope": [
        [1.232416528353249],
        [0.4105589274173588, 0.7848471971976433],
        [-0.126324960296109, 0.1887673300567443, 0.18276925550450418],
        [-0.09527247978589051, 0.11500244003708734, 0.09730324183926031, -0.12903786500168302],
        [0.0642125747579573, 0.2326448920109584, 0.3336436032594152, 0.0841405809019301, 0.0008741125852014253],
    ],
    "shaw": [
        [0.8854867503265353],
        [1.1338427932786888, 0.4628589474668044],
        [-0.14869976060382223, -0.6296077552056003, -0.6204258689074895],
        [-0.9552005156242143, -0.43837817761722264, 0.18131461331413304, 0.6311316229115361],
        [-0.3623302774583358, 0.38339171425704455, 0.780550066615123, 0.39878914693533857, -0.3158560218835107],
    ],
    "transformer_xl": [
        [0.8909971413222185],
        [0.8596381831084566, 0.20727549346398624],
        [-1.0607427804442806, -1.2688178228009055, -0.7408892627021937],
        [-2.442958998085486, -1.4483038049974066, 0.08713312538625351, 0.9398188548493844],
        [-1.5569128690082463, -0.3788357661247673, 0.8261223541758138, 1.056969994763791, 0.07839857663194955],
    ],
    "deberta": [
        [0.8792441412577922],
        [0.7639161578799575, 0.12006981976533092],
        [-0.10923163047806382, -0.6389037988953234, -0.8432447507969114],
        [-0.2011893650114271, 0.021334492736685976, -0.07200810864539729, 0.07172079609535137],
        [0.4223822125814008, 0.7770613470154644, 0.7705425406053158, 0.26926633674313455, -0.039778240853290646],
    ],
    "inkling": [
        [0.8031001624456593],
        [0.8962201399782458, 0.10390306918403582],
        [-0.13850051490207443, -0.8300858182658171, -0.7286392496985296],
        [-1.002191974400434, -0.3721068588024957, 0.27080516877870603, 0.9008419502922523],
        [-0.2851342249548763, 0.46058776676050406, 0.8479616137916589, 0.5995163451438941, -0.09323080284894256],
    ],
    "fox": [
        [0.7153543038626989],
        [0.5752538306812682, 0.10003255273669114],
        [-0.8626592240038002, -1.0392480752399798, -0.6444046936124282],
        [-1.954425370747063, -1.1449686323086516, 0.05816046003818176, 0.9811294026009187],
        [-1.5693430623080848, -0.5309866701612849, 0.185160372305894, 0.27380386801209156, -0.10462920500233974],
    ],
    "cope": [
        [0.8210490173681307],
        [1.1009634018821313, 0.422544169205149],
        [-0.16413158822033125, -0.6588888886338062, -0.6063333563833176],
        [-0.996596545702639, -0.5484945060362958, 0.23813989939965724, 0.7077069654480812],
        [-0.23037385527288012, 0.4395195670105733, 0.7388823903650823, 0.40465372850171577, -0.31284206494411915],
    ],
    "ssmax": [
        [0.0],
        [0.2586769405878746, 0.029815031214270146],
        [-0.11859029388266962, -0.34025289895932803, -0.30441889356954943],
        [-0.5974132256345005, -0.2893320316961476, 0.23770987554984221, 0.5848576880924696],
        [-0.19732950766320323, 0.31875358794591524, 0.593610323041645, 0.4192346001961962, -0.07240950998980024],
    ],
}


def wave(rows, columns, start, down, right, function=torch.sin):
    r, c = torch.arange(rows).double()[:, None], torch.arange(columns).double()
    return function(start + down * r + right * c)


def weight(rows, columns, start):
    return wave(rows, columns, start, 0.8, 1.7) / columns**0.5


def lower(rows):
    return torch.stack([torch.tensor(row + [-math.inf] * (len(rows) - len(row)), dtype=torch.float64) for row in rows])


def weights_of(model, q, k, x):
    """Softmax weights (B, heads, T, T) of a model's first layer, for q and k (B, T, heads, d) in the place of its own."""
    attention, length = model.layers[0].self_attn, x.shape[1]
    values = torch.eye(length, dtype=x.dtype).expand(len(x), k.shape[2], -1, -1).transpose(1, 2)
    attention.projected, attention.o_proj = lambda _: (torch.cat((q, k), dim=2), values), nn.Identity()
    inputs = attention_inputs(model.position, torch.arange(length), None, is_causal=True, dtype=x.dtype)
    return attention(x, inputs[0]).unflatten(-1, (-1, length)).transpose(1, 2)


def set_to(parameter, value):
    value = torch.as_tensor(value, dtype=torch.float64)
    assert parameter.shape == value.shape
    parameter.copy_(value)


CASES = {  # options, and what the parameters are set to
    "rope": ({"layout": "interleaved"}, {}),
    "xpos": ({"layout": "interleaved"}, {}),
    "pope": ({}, {"delta": [[[-0.3, -1.2, 0.0, -2.5]]]}),
    "shaw": ({"clip": 2}, {"tables.0.weight": weight(3, 4, 0.6)}),
    "transformer_xl": (
        {},
        {
            "projections.0.weight": weight(4, 6, 0.3),
            "u": [[0.2, -0.1, 0.4, 0.3]],
            "v": [[-0.5, 0.25, 0.1, 0.6]],
        },
    ),
    "deberta": (
        {"rows": 3},
        {
            "table.weight": weight(3, 6, 1.1),
            "to_keys.0.weight": weight(4, 6, 0.7),
            "to_queries.0.weight": weight(4, 6, 2.2),
        },
    ),
    "inkling": (
        {"d_rel": 2, "extent": 3},
        {"mixers.0.weight": weight(2, 6, 1.9), "banks.0.weight": weight(2, 3, 0.2).T},
    ),
    "fox": ({}, {"gates.0.weight": weight(1, 6, 0.9), "b": [[1.0]]}),
    "cope": ({"npos": 4}, {"e": weight(4, 4, 0.5)[None]}),
    "ssmax": ({"scheme": "none", "temperature": {"kind": "ssmax"}}, {"sharpness": [[0.43]]}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_independent_program(name, tiny_config):
    options, values = CASES[name]
    shape = {"hidden_size": 6, "head_dim": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    position = {"scheme": name, **options}
    model = Transformer(tiny_config(position, **shape, num_key_value_heads=1)).double()
    for parameter, value in values.items():
        set_to(model.position.get_parameter(parameter), value)
    q, k = wave(5, 4, 1.0, 1.3, 0.7), wave(5, 4, 0.5, 0.9, -1.1, torch.cos)
    x = wave(5, 6, 0.3, 1.1, 0.6, torch.cos)
    got = weights_of(model, q[None, :, None], k[None, :, None], x[None])[0, 0]
    exact = name not in ("rope", "xpos", "pope", "ssmax")  # of which cosines or temperatures are float32
    torch.testing.assert_close(got, lower(SCORES[name]).softmax(-1), rtol=0, atol=1e-14 if exact else 1e-7)


# Each formula once more, for one query head, one query and one key, number by number. tau: the temperature.


def dot(a, b):
    return (a * b).sum().item()


def sigmoid(number):
    return 1 / (1 + math.exp(-number))


def shaw(p, x, q, k, m, n, h, tau):
    return tau * dot(q[m, h], k[n, h // 2] + p.tables[0].weight[min(m - n, p.options.clip)]) / math.sqrt(8)


def transformer_xl(p, x, q, k, m, n, h, tau):
    angles = [(m - n) * 10000.0 ** (-2 * i / 32) for i in range(16)]
    r = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)
    projected = p.projections[0].weight[8 * h : 8 * h + 8] @ r
    return (dot(tau * q[m, h] + p.u[h], k[n, h // 2]) + dot(tau * q[m, h] + p.v[h], projected)) / math.sqrt(8)


def deberta(p, x, q, k, m, n, h, tau):
    row, head = p.table.weight[min(m - n, p.options.rows - 1)], slice(8 * h, 8 * h + 8)
    key, query = p.to_keys[0].weight[head] @ row, p.to_queries[0].weight[head] @ row
    return (tau * dot(q[m, h], k[n, h // 2] + key) + dot(k[n, h // 2], query)) / math.sqrt(3 * 8)


def inkling(p, x, q, k, m, n, h, tau):
    score, d_rel = tau * dot(q[m, h], k[n, h // 2]) / math.sqrt(8), p.options.d_rel
    mixed = p.mixers[0].weight[d_rel * h : d_rel * (h + 1)] @ x[m]
    return score + (dot(mixed, p.banks[0].weight[m - n]) if m - n < p.options.extent else 0)


def fox(p, x, q, k, m, n, h, tau):
    gates = [sigmoid(dot(p.gates[0].weight[h], x[place]) + p.b[0, h].item()) for place in range(n + 1, m + 1)]
    return tau * dot(q[m, h], k[n, h // 2]) / math.sqrt(8) + sum(math.log(gate) for gate in gates)


def cope(p, x, q, k, m, n, h, tau):
    count = sum(sigmoid(tau * dot(q[m, h], k[place, h // 2]) / math.sqrt(8)) for place in range(n, m + 1))
    count = min(count, p.options.npos - 1)
    below, above, share = math.floor(count), math.ceil(count), count - math.floor(count)
    e = (1 - share) * p.e[0, below] + share * p.e[0, above]
    return tau * dot(q[m, h], k[n, h // 2] + e) / math.sqrt(8)


def pope(p, x, q, k, m, n, h, tau):
    angles = [(m - n) * 10000.0 ** (-c / 8) - p.delta[0, h // 2, c].item() for c in range(8)]
    sizes = [math.log1p(math.exp(q[m, h, c])) * math.log1p(math.exp(k[n, h // 2, c])) for c in range(8)]
    return tau * sum(size * math.cos(angle) for size, angle in zip(sizes, angles)) / math.sqrt(8)


SMALL = {"shaw": {"clip": 3}, "deberta": {"rows": 4}, "inkling": {"d_rel": 3, "extent": 4}, "cope": {"npos": 3}}


@torch.no_grad()
@pytest.mark.parametrize("temperature", [None, "ssmax"])
@pytest.mark.parametrize("formula", [shaw, transformer_xl, deberta, inkling, fox, cope, pope])
def test_grouped_queries_are_the_formula_head_by_head(formula, temperature, tiny_model):
    """Two key heads for four query heads, a batch of two, and a temperature of each head on top."""
    options = {"scheme": formula.__name__, **SMALL.get(formula.__name__, {})}
    model = tiny_model(options | ({"temperature": {"kind": temperature}} if temperature else {}))
    q, k, x, position = draw(2, 6, 4, 8), draw(2, 6, 2, 8, seed=1), draw(2, 6, 32, seed=2), model.position
    scores = torch.full((2, 4, 6, 6), -math.inf, dtype=torch.float64)
    for row, h, m in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(6)).tolist():
        tau = position.sharpness[0, h].item() * math.log(m + 1) if temperature else 1.0
        for n in range(m + 1):
            scores[row, h, m, n] = formula(position, x[row], q[row], k[row], m, n, h, tau)
    atol = 1e-12 if temperature is None and formula is not pope else 1e-6  # cosines and temperatures are float32
    torch.testing.assert_close(weights_of(model, q, k, x), scores.softmax(-1), rtol=0, atol=atol)


# What holds for every scheme, or for all from content


@torch.no_grad()
def test_two_texts_have_two_biases(scheme, tiny_model):
    """A class attribute that hides a list of modules switches a scheme off without a word."""
    model = tiny_model(scheme)
    if not model.position.overrides("content_bias"):
        return
    x, places = [draw(1, 6, 32, seed=seed) for seed in (0, 1)], [torch.arange(6)] * 2
    q, k = draw(1, 4, 6, 8), draw(1, 2, 6, 8, seed=1)
    found = []
    for seen in ((x[0], q, k), (x[1], q.flip(-1), k)):
        kept = model.position.kept(0, seen[0])
        shared = model.position.shared(0, *seen[1:], *places, *kept)
        found.append(model.position.content_bias(0, *seen, *places, *kept, *shared))
    one, two = found
    assert ((one - two).tril().abs() > 1e-4).double().mean() > 0.1


@torch.no_grad()
def test_the_cache_grows_with_the_tokens_and_not_with_their_pairs(scheme, tiny_model, tokens):
    model, sizes = tiny_model(scheme, max_position_embeddings=128), []
    for length in (32, 64, 128):
        model(tokens(2, length), cache := Cache())
        sizes.append(sum(each.numel() for kept in cache.layers.values() for each in kept))
    assert sizes[1] == 2 * sizes[0] and sizes[2] == 4 * sizes[0]
    allowed = {"pope": 1.5}.get(scheme, 1.25)  # of keys and values alone: PoPE's keys are twice as wide
    assert sizes[0] <= allowed * 2 * 2 * 32 * 2 * 2 * 8  # layers, rows, tokens, keys and values, heads, head_dim


@pytest.mark.parametrize("position", [*POSITIONS, {"scheme": "rope", "temperature": {"kind": "log"}}], ids=str)
def test_what_transformers_cannot_compute_is_not_said_to_be_a_llama(
    position, tiny_config, tiny_model, tokens, tmp_path
):
    """It would open there and be another model. Here it opens again as what it was."""
    config = tiny_config(position)
    exported = transformers_keys(config, build_position(config))
    assert bool(exported) == (position in ("none", "rope"))
    if not exported:
        model = tiny_model(position, torch.float32)
        save_checkpoint(tmp_path / "c", model, {})
        assert '"model_type": "whereabouts"' in (tmp_path / "c" / "config.json").read_text()
        with torch.no_grad():
            assert torch.equal(load_checkpoint(tmp_path / "c")(tokens(1, 9)), model(tokens(1, 9)))


@torch.no_grad()
@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_the_sums_of_gates_keep_what_bfloat16_would_lose(precision, tiny_model):
    """Of 4,000 gates near ½, whose sum is some −2,800: bfloat16 would be off by 8, and the nearest tokens with it."""
    model = tiny_model("fox", torch.float32)
    x = draw(1, 4000, 32).bfloat16()
    exact = tiny_model("fox").position
    log_f = F.logsigmoid(x.double() @ exact.gates[0].weight.T + exact.b[0])[0]
    near = torch.stack([log_f[-distance:].sum(0) if distance else 0 * log_f[0] for distance in range(50)])
    if precision == "bfloat16":
        model.bfloat16()
    attention = model.layers[0].self_attn
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        kept = attention.exactly(model.position.kept, 0, x)
        q, places = x[:, None, -1:].expand(-1, 4, -1, -1), (torch.tensor([3999]), torch.arange(4000))
        shared = attention.exactly(model.position.shared, 0, q, q, *places, *kept)
        bias = attention.exactly(model.position.content_bias, 0, x, q, q, *places, *kept, *shared)
    assert bias.dtype == torch.float32 and bias.min() < -2000
    assert (bias[0, :, 0].flip(-1)[:, :50].T - near).abs().max() < 2e-3


def test_sampling_leaves_a_model_that_can_be_trained(tiny_model, tokens):
    """Transformer-XL keeps its sines; those made in inference mode could take part in no gradient."""
    model = tiny_model("transformer_xl", torch.float32)
    with torch.inference_mode():
        before = model(tokens(1, 9))
    model(tokens(1, 9)).sum().backward()
    assert model.position.projections[0].weight.grad.abs().sum() > 0
    model(tokens(1, 40))  # which needs more of them
    torch.testing.assert_close(model(tokens(1, 9)), before, rtol=0, atol=1e-5)
