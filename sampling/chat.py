"""A folder's chat template: from messages to the text that an instruct model was trained on."""

import json
from datetime import datetime
from pathlib import Path

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from base import InputError, read_optional_json

TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what an assistant said, for training; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def find_template(folder: Path) -> str:
    """The template in chat_template.jinja, or else in tokenizer_config.json. InputError: none, or not readable."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: not readable: {error}") from None
    found = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise InputError(
            f"--chat: {folder} has no chat template, neither chat_template.jinja nor in tokenizer_config.json"
        )
    return found


def chat_text(folder: Path, template: str, messages: list[dict[str, str]]) -> str:
    """The messages as the template writes them, up to where the assistant answers, as `apply_chat_template` does it.

    The template is a stranger's program: it runs in a sandbox. InputError: it fails.
    """
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    settings, special = read_optional_json(folder / "tokenizer_config.json"), {}
    for name in TOKENS:
        token = settings.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None:
            special[f"{name}_token"] = token
    given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return sandbox.from_string(template).render(**given, **special)
    except Exception as error:  # the template's own, which may raise anything
        raise InputError(f"{folder}: the chat template fails: {type(error).__name__}: {error}") from None


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # jinja2's own would write < and > for HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message):
    raise TemplateError(message)
