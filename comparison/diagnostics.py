"""Exact match, attention by distance and embedding sizes of a trained model."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from torch.overrides import TorchFunctionMode

from comparison.results import Attention, EmbeddingRms
from data.synthetic import TRAINED_LENGTHS, examples
from data.tokenizer import encode
from model.attention import SCORES
from model.transformer import Transformer
from training.evaluation import in_passes

WINDOWS = 32  # for attention by distance


def parts_answers(tokenizer: Tokenizer, task: str) -> bool:
    """Whether a tokenizer parts the prompts of a synthetic task from their answers, or else an answer is no tokens of its
    own: bpe joins letters, and in induction and recall an answer follows one."""
    texts = examples(task, TRAINED_LENGTHS[task], 200, seed=0)
    ids = partial(encode, tokenizer, add_special_tokens=False)
    return all(ids(prompt) + ids(answer) == ids(prompt + answer) for prompt, answer in texts)


@torch.no_grad()
def exact_match(
    model: Transformer,
    tokenizer: Tokenizer,
    end: int,
    task: str,
    lengths: list[int],
    count: int = 200,
    seed: int = 0,
) -> dict[int, float | None]:
    """For each length, the share of `count` examples of a synthetic task that the model answers without a mistake.

    end: the id of end-of-text, which begins each example. An answer counts when each of its tokens, and `end` after it,
    is the argmax given the right tokens before it; this equals greedy decoding and takes one pass. None where the scheme
    has no positions for that length.
    """
    device, shares = model.output_weight.device, {}
    for length in lengths:
        inputs, expected = [], []
        for prompt, answer in examples(task, length, count, seed):
            prompt, answer = (encode(tokenizer, text, add_special_tokens=False) for text in (prompt, answer))
            before, answered = [end, *prompt], [*answer, end]
            inputs.append(torch.tensor(before + answered[:-1]))
            expected.append(torch.tensor([-1] * (len(before) - 1) + answered))
        input_ids = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True).to(device)
        targets = torch.nn.utils.rnn.pad_sequence(expected, batch_first=True, padding_value=-1).to(device)
        if model.position.max_length is not None and input_ids.shape[1] > model.position.max_length:
            shares[length] = None
            continue

        def is_right(first, last):
            wanted = targets[first:last]
            return ((model(input_ids[first:last]).argmax(dim=-1) == wanted) | (wanted < 0)).all(dim=-1)

        right = torch.cat(list(in_passes(count, input_ids.shape[1], is_right)))
        shares[length] = right.sum().item() / count
    return shares


@torch.no_grad()
def attention_by_distance(model: Transformer, tokens: np.ndarray, context: int) -> Attention | None:
    """How far back the heads look, in at most WINDOWS windows of `context` tokens, evenly spread.

    The bins are 0, 1, 2, 3–4, 5–8 … tokens back. None where attention has no softmax, or a score is not finite.
    """
    length = min(context, len(tokens))
    spread = np.linspace(0, len(tokens) - length, min(WINDOWS, len(tokens) // length)).round().astype(int)
    recorder = _Attention(length)
    with recorder:
        for start in spread:
            window = torch.from_numpy(tokens[start : start + length].astype(np.int64))
            model.hidden_states(window[None].to(model.output_weight.device))
    if not recorder.masses:
        return None
    layers = model.config.num_hidden_layers
    mass = torch.stack(recorder.masses).unflatten(0, (-1, layers)).mean(dim=0)
    largest = torch.stack(recorder.largest).unflatten(0, (-1, layers)).amax(dim=0)
    bins = [(before + 1, min(end, length - 1)) for before, end in zip([-1, *recorder.ends], recorder.ends)]
    return Attention(bins, mass.tolist(), largest.tolist()) if mass.isfinite().all() else None


class _Attention(TorchFunctionMode):
    """While active, recomputes the softmax weights of each call of PyTorch's attention and keeps their sums.

    The kernel does not return them, and an argument for them would sit in the hot path of every model.
    """

    def __init__(self, length: int):
        super().__init__()
        self.ends = [0]  # of the bins of distances: 0, 1, 2, 4, 8 …
        while self.ends[-1] < length - 1:
            self.ends.append(2 * self.ends[-1] or 1)
        self.length, self.rows = length, 0  # queries of the layer so far: a call may have some of them
        self.masses, self.largest = [], []  # of each layer: (heads, bins) and (heads,)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self._record(*args, **kwargs)
        return func(*args, **(kwargs or {}))

    def _record(self, q: Tensor, k: Tensor, v: Tensor, attn_mask, is_causal: bool, scale: float, enable_gqa: bool):
        q, k = (x[0].to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))  # (heads, T, d)
        if self.rows == 0:
            self.masses.append(0.0)
            self.largest.append(torch.tensor(-torch.inf))
        k, position = k.repeat_interleave(len(q) // len(k), dim=0), torch.arange(k.shape[1], device=q.device)
        # some queries at a time: the kernel never holds all scores, and neither may this
        for rows in position[: q.shape[1]].split(max(1, SCORES // len(position))):
            seen = attn_mask if attn_mask is None else attn_mask[..., rows, :]
            if is_causal:
                seen = rows[:, None] >= position  # as PyTorch's, from the first of both
            self._record_some(q[:, rows], k, seen, scale, position)

    def _record_some(self, q: Tensor, k: Tensor, attn_mask: Tensor | None, scale: float, position: Tensor):
        scores = q @ k.mT * scale
        if attn_mask is not None:
            added = attn_mask if attn_mask.is_floating_point() else torch.where(attn_mask, 0.0, float("-inf"))
            scores = scores + added.reshape(-1, *scores.shape[1:])
        own = ((scores > -torch.inf).any(dim=0) * position).amax(dim=-1, keepdim=True)  # the last that a query sees
        distance = own - position
        bins = torch.bucketize(distance, torch.tensor(self.ends, device=q.device))  # the future, in bin 0, weighs 0
        mass = scores.new_zeros(len(q), len(self.ends))
        mass.index_add_(1, bins.flatten(), scores.softmax(dim=-1).flatten(1))
        self.masses[-1] = self.masses[-1] + mass.cpu() / self.length
        self.largest[-1] = self.largest[-1].maximum(scores.amax(dim=(1, 2)).cpu())
        self.rows = (self.rows + len(distance)) % self.length


def embedding_rms(model: Transformer) -> EmbeddingRms:
    """Root mean squares of the embeddings, over the trained context: whether one drowns the other."""

    def rms(vectors):
        return vectors.detach().cpu().double().square().mean().sqrt().item()  # squares overflow in float32

    positions = torch.arange(model.config.max_position_embeddings, device=model.output_weight.device)
    added = model.position.embedding(positions)
    return EmbeddingRms(rms(model.embed_tokens.weight), None if added is None else rms(added))
