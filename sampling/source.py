"""What a folder gives to sample from: a model, and the tokens that its texts begin with, end with and consist of."""

from pathlib import Path

from tokenizers import Tokenizer

from base import InputError, find_checkpoint, read_json
from data.tokenizer import encode, load_tokenizer
from model.checkpoint import load_checkpoint
from sampling.chat import chat_text, find_template


class Source:
    """The model and tokenizer of a run, a checkpoint or a Hugging Face folder. InputError: they cannot be used.

    rope_scaling: as in the config's model.position.scaling, for a model trained without it.
    chat: prompts are messages to an instruct model, in the folder's template.
    """

    def __init__(self, folder: Path, rope_scaling: dict | None = None, chat: bool = False):
        self.folder = folder = find_checkpoint(folder)
        self.model = load_checkpoint(folder, position_options=rope_scaling and {"scaling": rope_scaling})
        self.tokenizer, config = load_tokenizer(folder), self.model.config
        # Tokens added to the tokenizer may lie beyond the model; they are never drawn.
        self._check(self.tokenizer.get_vocab(with_added_tokens=False).values())
        self.start, self.stop = (
            named_tokens(folder, self.tokenizer, name, config.vocab_size) for name in ("bos", "eos")
        )
        self.drawn = [token for token in self.tokenizer.get_vocab().values() if token < config.vocab_size]
        self.trained = config.max_position_embeddings
        self.window = int(self.trained * (rope_scaling["factor"] if rope_scaling else 1))
        self.template = find_template(folder) if chat else None
        self.tokenizer.encode_special_tokens = not chat  # those of the template are meant, elsewhere they are text

    def ids(self, prompt: str, earlier: list[dict[str, str]]) -> list[int]:
        """The tokens of a prompt, in a chat after the earlier messages. InputError: there is none, or not in the model."""
        if self.template is None:
            ids = encode(self.tokenizer, prompt)
        else:
            text = chat_text(self.folder, self.template, [*earlier, {"role": "user", "content": prompt}])
            ids = encode(self.tokenizer, text, add_special_tokens=False)
        self._check(ids)
        ids = ids or self.start[:1]
        if not ids:
            raise InputError(f"--prompt: expected at least one token, as no file in {self.folder} names a start token")
        return ids

    def _check(self, ids):
        check_ids(self.folder / "tokenizer.json", [*ids], self.model.config.vocab_size)


def named_tokens(folder: Path, tokenizer: Tokenizer, name: str, vocab_size: int) -> list[int]:
    """Ids of the tokens that begin ("bos") or end ("eos") a text, from every file in the folder that names any.

    InputError, naming the file: not a token, or beyond a model of vocab_size tokens.
    """

    def stored(file, key):
        return (read_json(folder / file) if (folder / file).exists() else {}).get(key)

    found, key = [], f"{name}_token_id"
    for file in ("generation_config.json", "config.json"):
        value = stored(file, key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(each) is int and each >= 0 for each in ids):
            raise InputError(f"{folder / file}: {key}: expected a token id or a list of them, got {value!r:.60}")
        check_ids(folder / file, ids, vocab_size)
        found += ids
    file, key = "tokenizer_config.json", f"{name}_token"
    value = stored(file, key)
    if value is not None:
        text = value.get("content") if isinstance(value, dict) else value
        token = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if token is None:
            raise InputError(f"{folder / file}: {key}: expected a token in tokenizer.json, got {value!r:.60}")
        check_ids(folder / file, [token], vocab_size)
        found.append(token)
    return found


def check_ids(file: Path, ids: list[int], vocab_size: int) -> None:
    """InputError if an id in the file is beyond a model of vocab_size tokens."""
    if max(ids, default=0) >= vocab_size:
        raise InputError(f"{file}: has token id {max(ids)}, but the model has only {vocab_size} tokens")
