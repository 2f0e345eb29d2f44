"""generate.py --chat: the folder's template, with its special tokens, as transformers' apply_chat_template has it."""

import json

import pytest
import torch
from transformers import AutoTokenizer

import generate as program
from data.config import TokenizerConfig
from data.tokenizer import load_tokenizer, tokenizer_files, train_tokenizer
from model import generation
from model.checkpoint import save_checkpoint
from sampling.source import Source
from tiny import call

MESSAGES = [
    {"role": "user", "content": "Is 1 < 2?"},
    {"role": "assistant", "content": " Yes. <|im_end|>\n"},
    {"role": "user", "content": "“Why”, é?\n  "},
]
CHATML = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- bos_token + 'system: be brief' + eos_token }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
    {{- '<|im_start|>assistant\n' }}{% generation %}{{ message.content | trim }}{{ '<|im_end|>' }}{% endgeneration %}
    {%- else %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
TEMPLATES = {
    "ChatML": CHATML,
    "blocks that are trimmed": "{% for message in messages %}\n  {% if loop.last %}\n{{ message.content }}\n  {% endif %}\n"
    "{% endfor %}\n{{ bos_token }}{{ pad_token }}{{ no_such_token }}\n",
    "filters and loops": "{% for message in messages %}{% if loop.index == 3 %}{% break %}{% endif %}"
    "{{ message | tojson }}{{ message | tojson(indent=2) }}{% endfor %}{{ strftime_now('%%Y') }}{{ tools is none }}",
    "a namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}"
    "{% endfor %}{% generation %}{% set inner = 1 %}{% endgeneration %}{{ ns.n }}{{ inner is defined }}",
}


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model of bytes and two special tokens more; its post-processor would begin each text with another."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    model = tiny_model("rope", torch.float32, vocab_size=259, max_position_embeddings=512)
    save_checkpoint(tmp_path / "c", model, tokenizer_files(tokenizer))
    (tmp_path / "c" / "SHA256SUMS").unlink()
    stored = json.loads((tmp_path / "c" / "tokenizer.json").read_text())
    begin = {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}
    parts = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    stored["post_processor"] = {
        "type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": {"<|endoftext|>": begin},
    }  # fmt: skip
    (tmp_path / "c" / "tokenizer.json").write_text(json.dumps(stored))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    settings |= {"eos_token": {"content": "<|im_end|>", "special": True, "__type": "AddedToken"}}
    (tmp_path / "c" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path / "c"


def with_template(folder, template, place="chat_template.jinja"):
    if place == "chat_template.jinja":
        (folder / place).write_text(template, encoding="utf-8")
        return folder
    named = [{"name": "tool_use", "template": "none"}, {"name": "default", "template": template}]
    file = folder / "tokenizer_config.json"
    template = named if place == "list" else template
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return folder


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_conversation_is_what_apply_chat_template_makes_of_it(folder, template):
    with_template(folder, template)
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    ids = Source(folder, chat=True).ids(MESSAGES[-1]["content"], MESSAGES[:-1])
    assert ids == expected and len(ids) > 5
    assert template != CHATML or {256, 257, 258} < set(ids)


@pytest.mark.parametrize("place", ["chat_template.jinja", "text", "list"])
def test_a_template_is_found_where_transformers_has_it(folder, place):
    if place == "chat_template.jinja":
        with_template(folder, "which counts less", "text")
    with_template(folder, "{{ bos_token }}{{ messages[0].content }}", place)
    assert Source(folder, chat=True).ids("hey", []) == [256, *b"hey"]


def test_without_chat_special_tokens_are_text(folder):
    """And the post-processor's token begins it."""
    assert Source(with_template(folder, CHATML)).ids("<|im_end|>", []) == [256, *b"<|im_end|>"]


def test_the_answer_ends_with_the_turn(folder, capsys, monkeypatch):
    """At the token that tokenizer_config.json names, which is no part of its text."""
    with_template(folder, CHATML)
    draws = iter([*b"Hi", 258, 97])
    monkeypatch.setattr(generation, "sample_token", lambda *_: torch.tensor([next(draws)]))
    assert call(program, folder, "--chat", "--prompt", "Hello", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["prompt"], row["text"], row["ids"], row["finish_reason"]) == ("Hello", "Hi", [*b"Hi", 258], "eos")


@pytest.mark.parametrize(
    "template, expected",
    [
        ("{{ raise_exception('only one turn') }}", "TemplateError: only one turn"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{% for i in range(10000000) %}x{% endfor %}", "OverflowError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'config.json' %}", "TypeError"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_one_line(folder, template, expected, capsys):
    with_template(folder, template)
    assert call(program, folder, "--chat", "--prompt", "x") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and f"{folder}: the chat template fails: {expected}" in err


@pytest.mark.parametrize("content", [None, b"\xff", 5])
def test_a_folder_without_a_readable_template_is_one_line(folder, content, capsys):
    if content == 5:
        with_template(folder, 5, "text")
    elif content:
        (folder / "chat_template.jinja").write_bytes(content)
    assert call(program, folder, "--chat", "--prompt", "x") == 2
    expected = "chat_template.jinja: not readable" if content == b"\xff" else f"--chat: {folder} has no chat template"
    assert expected in (err := capsys.readouterr().err) and err.count("\n") == 1


def test_special_tokens_are_known_to_both(folder):
    """Or the comparisons above would say little."""
    assert load_tokenizer(folder).token_to_id("<|im_end|>") == AutoTokenizer.from_pretrained(folder).eos_token_id == 258
