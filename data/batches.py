"""Training batches as a pure function of (seed, index), and the windows that cover a text."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy
import torch

from data.config import ROUND, quotas

IGNORED = -100  # the target of padding; PyTorch's losses leave it out by default
_LISTED = 2**22  # windows of which an epoch holds the whole order, 8 bytes each
_BLOCK = 2**24  # tokens looked through at once


def windows(tokens: numpy.ndarray, context: int, end_of_text: int | None = None) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Starts and lengths of windows of at most `context` inputs, of which each token but the first is a target once.

    They lie side by side over the whole stream, or, given end_of_text, over each document by itself: from its
    end-of-text to the last token before the next one, which is the last target. Only that reads all tokens.
    """
    documents = numpy.zeros(1, int) if end_of_text is None else _places(tokens, end_of_text)
    sizes = numpy.diff(documents, append=len(tokens) - 1)
    counts = -(-sizes // context)
    before = context * (numpy.arange(counts.sum()) - numpy.repeat(numpy.cumsum(counts) - counts, counts))
    return numpy.repeat(documents, counts) + before, numpy.minimum(numpy.repeat(sizes, counts) - before, context)


def _places(tokens, token):
    blocks = range(0, len(tokens), _BLOCK)
    return numpy.concatenate([start + numpy.flatnonzero(tokens[start : start + _BLOCK] == token) for start in blocks])


class Batches:
    """batches[i] -> (input_ids, targets), both int64 of shape (batch_size, T); targets are one token ahead.

    tokens: 1-D array of token ids, context + 1 or more. Each epoch shuffles the windows; their order depends on seed
    and epoch alone, and batches are slices of this endless order, whatever their size.

    Without end_of_text an epoch starts at a random offset and takes a window every context tokens, so that it sees no
    input twice; T is the context. Otherwise it takes the `windows` of single documents. T is the longest in the batch,
    shorter ones are padded on the right with the first token and the target IGNORED. That needs no mask: attention is
    causal, so what is real never sees the padding.

    With weights, tokens holds an array for each source of a mixture. Of every ROUND sequences a source has its share by
    `quotas`, in an order that depends on the seed and the number of the ROUND; its own sequences are those it would have
    alone.
    """

    def __init__(
        self,
        tokens: numpy.ndarray | Sequence[numpy.ndarray],
        context: int,
        batch_size: int,
        seed: int,
        end_of_text: int | None = None,
        weights: Sequence[float] | None = None,
    ):
        self.batch_size, self.seed = batch_size, seed
        texts = [tokens] if weights is None else tokens
        self._quotas = quotas(weights or [1.0])
        self._sources = [_Windows(text, context, seed, end_of_text) for text in texts]
        self.windows = sum(source.count for source in self._sources)
        self._round = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self.batch_size
        drawn = [self._draw(n) for n in range(first, first + self.batch_size)]
        shape = len(drawn), max(map(len, drawn)) - 1
        input_ids, targets = (
            numpy.full(shape, self._sources[0].tokens[0], numpy.int64),
            numpy.full(shape, IGNORED, numpy.int64),
        )
        for row, window in enumerate(drawn):
            input_ids[row, : len(window) - 1], targets[row, : len(window) - 1] = window[:-1], window[1:]
        return torch.from_numpy(input_ids), torch.from_numpy(targets)

    def targets(self, count: int) -> int:
        """How many targets, without padding, `count` batches have on average: exact after whole epochs, or if packed.

        The same for every seed, so that runs can be compared at equal tokens.
        """
        shares = zip(self._quotas, self._sources)
        return round(sum(count * self.batch_size * q * s.targets / (ROUND * s.count) for q, s in shares))

    def _draw(self, n):
        """The tokens of sequence n."""
        number, place = divmod(n, ROUND)
        if number != self._round:
            rng = numpy.random.default_rng([self.seed, 2**62, number])  # apart from those of epochs
            self._round = number
            self._drawn = rng.permutation(numpy.repeat(numpy.arange(len(self._quotas)), self._quotas))
        source = self._drawn[place]
        before = numpy.count_nonzero(self._drawn[:place] == source)
        return self._sources[source][number * self._quotas[source] + int(before)]


class _Windows:
    """windows[k] -> the tokens, one more than inputs, of the k-th window of one source: each once in an epoch."""

    def __init__(self, tokens, context, seed, end_of_text):
        self.tokens, self.context, self.seed = tokens, context, seed
        if end_of_text is None:
            self._starts = None
            self.count = max(1, len(tokens) // context - 1)
            self.targets = self.count * context
            # Over all tokens that the windows leave, not just one context, or the last ones would never be seen.
            self._offsets = len(tokens) - self.targets
        else:
            self._starts, self._lengths = windows(tokens, context, end_of_text)
            self.count, self.targets = len(self._starts), int(self._lengths.sum())
            self._offsets = 1
        self._epoch = None

    def __getitem__(self, k):
        epoch, item = divmod(k, self.count)
        if epoch != self._epoch:  # kept because its permutation serves many batches
            rng = numpy.random.default_rng([self.seed, epoch])
            self._epoch = epoch
            self._offset = int(rng.integers(self._offsets))
            self._order = rng.permutation(self.count) if self.count <= _LISTED else Feistel(self.count, rng)
        window = int(self._order[item])
        if self._starts is None:
            start, length = self._offset + window * self.context, self.context
        else:
            start, length = int(self._starts[window]), int(self._lengths[window])
        return self.tokens[start : start + length + 1]


class Feistel:
    """order[i] for i in range(count): a permutation that is computed, not held (Luby and Rackoff 1988, four rounds).

    The network permutes the numbers below some 4^n, at most four times count; where it leads to one that is not below
    count, it is followed until it leads to one that is.
    """

    def __init__(self, count: int, rng: numpy.random.Generator):
        self.count, self._bits = count, (count.bit_length() + 1) // 2
        self._keys = [rng.bytes(16) for _ in range(4)]

    def __getitem__(self, i: int) -> int:
        while True:
            left, right = divmod(i, 1 << self._bits)
            for key in self._keys:
                mixed = blake2b(right.to_bytes(8, "little"), digest_size=8, key=key).digest()
                left, right = right, left ^ int.from_bytes(mixed, "little") % (1 << self._bits)
            i = (left << self._bits) + right
            if i < self.count:
                return i
