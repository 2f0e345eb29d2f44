"""Training batches as a pure function of (seed, index)."""

import numpy
import torch


class Batches:
    """batches[i] -> (input_ids, targets), both int64 of shape (batch_size, context); targets are one token ahead.

    tokens: 1-D array of token ids, context + 1 or more. The sequences are windows of context + 1 tokens. Each epoch starts at a random
    offset, takes a window every context tokens, so that it sees no input twice, and shuffles them; offset and order
    depend on seed and epoch alone. Batches are slices of this endless order of sequences, whatever their size.
    """

    def __init__(self, tokens: numpy.ndarray, context: int, batch_size: int, seed: int):
        self.tokens, self.context, self.batch_size, self.seed = tokens, context, batch_size, seed
        self.windows = max(1, len(tokens) // context - 1)
        self._epoch = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self.batch_size
        starts = [self._start(*divmod(n, self.windows)) for n in range(first, first + self.batch_size)]
        rows = numpy.stack([self.tokens[start : start + self.context + 1] for start in starts])
        sequences = torch.from_numpy(rows.astype(numpy.int64))
        return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()

    def _start(self, epoch, item):
        if epoch != self._epoch:  # kept because its permutation serves many batches
            rng = numpy.random.default_rng([self.seed, epoch])
            self._epoch = epoch
            # Over all tokens that the windows leave, not just one context, or the last ones would never be seen.
            self._offset = rng.integers(len(self.tokens) - self.windows * self.context)
            self._order = rng.permutation(self.windows)
        return int(self._offset + self._order[item] * self.context)
