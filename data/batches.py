"""Training batches as a pure function of (seed, index), and the windows that cover a text."""

import numpy
import torch

IGNORED = -100  # the target of padding; PyTorch's losses leave it out by default


def windows(tokens: numpy.ndarray, context: int, end_of_text: int | None = None) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Starts and lengths of windows of at most `context` inputs, of which each token but the first is a target once.

    They lie side by side over the whole stream, or, given end_of_text, over each document by itself: from its
    end-of-text to the last token before the next one, which is the last target. Only that reads all tokens.
    """
    documents = numpy.zeros(1, int) if end_of_text is None else numpy.flatnonzero(tokens == end_of_text)
    sizes = numpy.diff(documents, append=len(tokens) - 1)
    counts = -(-sizes // context)
    before = context * (numpy.arange(counts.sum()) - numpy.repeat(numpy.cumsum(counts) - counts, counts))
    return numpy.repeat(documents, counts) + before, numpy.minimum(numpy.repeat(sizes, counts) - before, context)


class Batches:
    """batches[i] -> (input_ids, targets), both int64 of shape (batch_size, T); targets are one token ahead.

    tokens: 1-D array of token ids, context + 1 or more. Each epoch shuffles the windows; their order depends on seed
    and epoch alone, and batches are slices of this endless order, whatever their size.

    Without end_of_text an epoch starts at a random offset and takes a window every context tokens, so that it sees no
    input twice; T is the context. Otherwise it takes the `windows` of single documents. T is the longest in the batch,
    shorter ones are padded on the right with the first token and the target IGNORED. That needs no mask: attention is
    causal, so what is real never sees the padding.
    """

    def __init__(self, tokens: numpy.ndarray, context: int, batch_size: int, seed: int, end_of_text: int | None = None):
        self.tokens, self.batch_size, self.seed = tokens, batch_size, seed
        if end_of_text is None:
            self._starts = numpy.arange(max(1, len(tokens) // context - 1)) * context
            self._lengths = numpy.full_like(self._starts, context)
            # Over all tokens that the windows leave, not just one context, or the last ones would never be seen.
            self._offsets = len(tokens) - len(self._starts) * context
        else:
            self._starts, self._lengths = windows(tokens, context, end_of_text)
            self._offsets = 1
        self.windows = len(self._starts)
        self._epoch = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self.batch_size
        drawn = [self._window(*divmod(n, self.windows)) for n in range(first, first + self.batch_size)]
        starts, lengths = numpy.array(drawn).T[..., None]
        column = numpy.arange(lengths.max())
        real = column < lengths
        at = (starts + column) * real
        input_ids, targets = self.tokens[at].astype(numpy.int64), self.tokens[at + 1].astype(numpy.int64)
        return torch.from_numpy(input_ids), torch.from_numpy(numpy.where(real, targets, IGNORED))

    def targets(self, count: int) -> int:
        """How many targets, without padding, `count` batches have on average: exact after whole epochs, or if packed.

        The same for every seed, so that runs can be compared at equal tokens.
        """
        return round(count * self.batch_size * int(self._lengths.sum()) / self.windows)

    def _window(self, epoch, item):
        if epoch != self._epoch:  # kept because its permutation serves many batches
            rng = numpy.random.default_rng([self.seed, epoch])
            self._epoch = epoch
            self._offset = rng.integers(self._offsets)
            self._order = rng.permutation(self.windows)
        return self._offset + self._starts[self._order[item]], self._lengths[self._order[item]]
