import pytest
from pydantic import ValidationError

from configs import TrainConfig
from model.config import ModelConfig
from model.position import POSITIONS, build_position, position_options
from settings import one_line


def refusal(**options):
    with pytest.raises(ValidationError) as caught:
        ModelConfig(**options)
    message = one_line(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(hidden_size=30, num_attention_heads=4), ["num_attention_heads", "4", "divide", "30"]),
        (dict(num_attention_heads=4, num_key_value_heads=3), ["num_key_value_heads", "3", "divide", "4"]),
        (dict(head_dim=7, position="rope"), ["rope", "head_dim", "even", "7"]),
        (dict(head_dim=7, position="learned_theta"), ["learned_theta", "head_dim", "even", "7"]),
        (dict(hidden_size=33, num_attention_heads=1, position="sinusoidal"), ["sinusoidal", "hidden_size", "33"]),
        (dict(position="ropes"), ["position", "'ropes'", *POSITIONS]),
        (dict(position={"scheme": "rope", "rms": 1}), ["position", "'rms'", "base"]),
        (dict(position={"scheme": "none", "base": 1e4}), ["position", "'base'"]),
        (dict(position={"scheme": "sinusoidal", "bases": 1e4}), ["position", "'bases'", "did you mean 'base'?"]),
        (dict(position={"scheme": "rope", "base": -1}), ["position.base", "-1", "greater than 1"]),
        (dict(position=7), ["position", "7", "scheme"]),
        (dict(position={1: 2}), ["position", "unknown key 1", "base"]),
        (dict(num_hidden_layers=10**32), ["num_hidden_layers", "10000"]),
        (dict(hidden_size=10**30), ["hidden_size", "2147483648"]),
        (dict(hidden_sise=64), ["hidden_sise", "did you mean 'hidden_size'?"]),
        (dict(hidden_size=0), ["hidden_size", "0", "greater than 0"]),
        (dict(rms_norm_eps=float("nan")), ["rms_norm_eps", "nan"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused_in_one_line_that_says_why(options, words):
    message = refusal(**options)
    assert all(word in message for word in words), message


def test_odd_heads_are_refused_only_where_pairs_are_rotated():
    assert ModelConfig(head_dim=7, position="none").head_dim == 7


def test_a_name_is_short_for_a_mapping(scheme):
    by_name, by_mapping = (ModelConfig(position=value) for value in (scheme, {"scheme": scheme}))
    assert by_name == by_mapping
    assert by_name.position == position_options(scheme) and by_name.position.scheme == scheme


def test_a_dumped_config_comes_back_with_the_options_of_its_scheme():
    """A field typed as the base class would drop what the scheme's class adds."""
    config = ModelConfig(position={"scheme": "sinusoidal", "base": 500, "rms": 0.7})
    dumped = config.model_dump(mode="json")
    common = {"temperature": None, "learning_rate_multiplier": 1.0}
    assert dumped["position"] == {"scheme": "sinusoidal", **common, "base": 500.0, "rms": 0.7}
    assert ModelConfig(**dumped) == config


def test_sizes_left_out_follow_from_the_others():
    config = ModelConfig(hidden_size=48, num_attention_heads=6)
    assert (config.head_dim, config.num_key_value_heads, config.intermediate_size) == (8, 6, 128)
    config = ModelConfig(hidden_size=48, num_attention_heads=5, head_dim=4, num_key_value_heads=1, intermediate_size=7)
    assert (config.head_dim, config.num_key_value_heads, config.intermediate_size) == (4, 1, 7)


def test_configs_are_frozen():
    config = ModelConfig()
    for target, key in ((config, "hidden_size"), (config.position, "base"), (TrainConfig(), "steps")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(target, key, 1)


def test_a_registry_line_is_enough_for_a_scheme_without_options(scheme):
    position = build_position(ModelConfig(vocab_size=8, position=scheme))
    assert type(position) is POSITIONS[scheme]


def test_options_without_a_scheme_are_those_of_the_default():
    assert ModelConfig(position={"base": 500}).position == ModelConfig(position="rope").position.model_copy(
        update={"base": 500.0}
    )
