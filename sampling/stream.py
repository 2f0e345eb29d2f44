"""From tokens to text, as they come."""

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

UNKNOWN = "\ufffd"  # stands for bytes that are not UTF-8
CONTEXT = 8  # tokens decoded again with those after them: a character has up to four, and the first may lose its space


class TextStream:
    """Gives the text of token after token, as soon as no later token can change it, up to the first stop text.

    It gives what the tokens add to the prompt when all are decoded together: alone, some would lose their first space.
    An unfinished character waits for the next token. Byte tokens, such as <0xE4>, wait for a token of another kind: if
    one byte in a run of them is wrong, decoders with a byte fallback write U+FFFD for each. What may be the beginning
    of a stop text waits until it is one or none. Of several the first to be complete counts, as if the text came
    character by character; so the tokens it comes in make no difference.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], stops: Sequence[str] = ()):
        self.tokenizer, self.stops = tokenizer, stops
        self.special = special_tokens(tokenizer)
        self.ids = list(prompt_ids)
        self.taken = len(tokenizer.decode(self.ids))  # characters of the text of `ids` in the prompt, given or held
        self.held = ""  # U+FFFD that nothing follows yet; dropped at the end of the text
        self.waiting = ""  # may be the beginning of a stop text
        self.stopped = False  # a stop text has come: there is no more text

    def write(self, token: int) -> str:
        """What this token makes readable."""
        name = self.tokenizer.id_to_token(token)
        if name is None or name in self.special:
            return ""
        self.ids.append(token)
        return "" if re.fullmatch("<0x[0-9A-Fa-f]{2}>", name) else self._before_stop(self._new())

    def finish(self) -> str:
        """What still waits, except an unfinished character."""
        text = self._before_stop(self._new())
        text, self.waiting = text if self.stopped else text + self.waiting, ""
        return text

    def _before_stop(self, new):
        if self.stopped:
            return ""
        text = self.waiting + new
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)[1]]
        begun = (n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        readable = len(text) - max(begun, default=0)
        self.waiting = text[readable:]
        return text[:readable]

    def _new(self):
        text = self.tokenizer.decode(self.ids)
        settled = max(self.taken, len(text) - text.endswith(UNKNOWN))
        new = text[self.taken : settled]
        self.taken = settled
        if readable := new.rstrip(UNKNOWN):
            given, self.held = self.held + readable, ""
        else:
            given = ""
        self.held += new[len(readable) :]
        if len(self.ids) > 2 * CONTEXT:
            self.ids = self.ids[-CONTEXT:]
            self.taken += len(self.tokenizer.decode(self.ids)) - len(text)
        return given


def special_tokens(tokenizer: Tokenizer) -> set[str]:
    """The names of the tokens that have no text."""
    return {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
