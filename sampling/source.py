"""What a folder gives to sample from: a model, and the tokens that its texts begin with, end with and consist of."""

from pathlib import Path

from base import InputError, find_checkpoint
from data.tokenizer import check_ids, encode, load_tokenizer, named_tokens
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
        self.window = int(min(self.trained * (rope_scaling["factor"] if rope_scaling else 1), 2**31))
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
