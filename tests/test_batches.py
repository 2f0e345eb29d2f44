import hashlib
import tracemalloc
from collections import Counter

import numpy
import pytest
import torch

from data import batches as module
from data.batches import IGNORED, Batches, Feistel, windows
from data.config import quotas


def rows(batches, count):
    """The first `count` batches as one list of windows, each context + 1 tokens."""
    out = []
    for i in range(count):
        inputs, targets = batches[i]
        out += [[*a, b[-1]] for a, b in zip(inputs.tolist(), targets.tolist())]
    return out


def test_shapes_dtype_and_targets_one_ahead():
    inputs, targets = Batches(numpy.arange(1000, dtype=numpy.uint16), context=16, batch_size=4, seed=0)[3]
    assert inputs.shape == targets.shape == (4, 16)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert inputs.is_contiguous() and targets.is_contiguous()


def test_a_batch_depends_on_seed_and_index_alone():
    """Resuming asks for batch 7 first; a cached permutation of another epoch must not leak into it."""
    tokens = numpy.arange(100)
    in_order = [Batches(tokens, 9, 4, seed=5)[i] for i in range(12)]
    one = Batches(tokens, 9, 4, seed=5)
    for i in (7, 0, 11, 3, 3, 10, 1):
        assert all(map(torch.equal, one[i], in_order[i]))
    assert not torch.equal(Batches(tokens, 9, 4, seed=6)[0][0], in_order[0][0])


def test_batch_size_does_not_change_the_order_of_sequences():
    tokens = numpy.arange(100)  # 10 windows: the batch of 30 spans three epochs
    by_3, by_5, by_30 = (rows(Batches(tokens, 9, size, seed=1), 30 // size) for size in (3, 5, 30))
    assert by_3 == by_5 == by_30


def test_an_epoch_draws_every_window_once():
    batches = Batches(numpy.arange(1000), context=10, batch_size=1, seed=0)
    assert batches.windows == 99
    for epoch in range(2):
        starts = sorted(int(batches[epoch * 99 + i][0][0, 0]) for i in range(99))
        assert {b - a for a, b in zip(starts, starts[1:])} == {10}


def test_epochs_differ_in_order_and_in_offset():
    windows = rows(Batches(numpy.arange(1000), context=10, batch_size=99, seed=0), 8)
    epochs = [windows[i : i + 99] for i in range(0, 8 * 99, 99)]
    assert len({epoch[0][0] % 10 for epoch in epochs}) > 2
    assert len({tuple(row[0] // 10 for row in epoch) for epoch in epochs}) == 8


@pytest.mark.parametrize("length", range(6, 33))
def test_no_token_of_a_short_corpus_is_out_of_reach(length):
    """At every length around a multiple of the context, windows fit and reach the first and the last token."""
    context = 5
    seen = rows(Batches(numpy.arange(length), context, batch_size=7, seed=0), 60)
    assert all(len(row) == context + 1 and row[-1] - row[0] == context for row in seen)
    assert {token for row in seen for token in row} == set(range(length))


@pytest.mark.parametrize(("dtype", "top"), [(numpy.uint16, 65_535), (numpy.uint32, 128_000)])
def test_large_token_ids_survive(dtype, top):
    inputs, targets = Batches(numpy.full(50, top, dtype), context=8, batch_size=2, seed=0)[0]
    assert inputs.unique().tolist() == targets.unique().tolist() == [top]


def test_reads_a_memory_map_without_changing_it(tmp_path):
    numpy.save(tmp_path / "t.npy", numpy.arange(100, dtype=numpy.uint16))
    inputs, _ = Batches(numpy.load(tmp_path / "t.npy", mmap_mode="r"), 9, 2, seed=0)[0]
    inputs.zero_()
    assert numpy.load(tmp_path / "t.npy").tolist() == list(range(100))


def test_a_batch_far_into_training():
    """Step counts times batch size beyond 32 bits."""
    inputs, targets = Batches(numpy.arange(100), 9, 1024, seed=0)[10**9]
    assert torch.equal(targets, inputs + 1)


def test_a_batch_is_the_same_bits_as_ever():
    """Runs of before would not resume exactly, nor be compared with those of today."""
    inputs, targets = Batches(numpy.arange(50), context=4, batch_size=3, seed=7)[4]
    assert inputs[:, 0].tolist() == [29, 5, 41] and torch.equal(targets, inputs + 1)


# One document a window

END = 9
DOCUMENTS = [[1], [2, 3], [4, 5, 6, 7, 8], [1, 2, 3], [5, 6]]
STREAM = numpy.array([token for document in DOCUMENTS for token in (END, *document)], numpy.uint16)
# With a context of 4: (inputs, targets) of each window. Nothing follows the last document, so its end is no target.
ALONE = [
    ([9, 1], [1, 9]), ([9, 2, 3], [2, 3, 9]), ([9, 4, 5, 6], [4, 5, 6, 7]), ([7, 8], [8, 9]), ([9, 1, 2, 3], [1, 2, 3, 9]),
    ([9, 5], [5, 6]),
]  # fmt: skip


def alone(batches, first, count):
    """The (inputs, targets) of batches without their padding, which must be what it is said to be."""
    out = []
    for i in range(first, first + count):
        inputs, targets = batches[i]
        real = (targets != IGNORED).sum(dim=1).tolist()
        assert max(real) == inputs.shape[1], "padded further than the batch needs"
        for row, wanted, length in zip(inputs.tolist(), targets.tolist(), real):
            assert row[length:] == [END] * (len(row) - length) and wanted[length:] == [IGNORED] * (len(row) - length)
            out.append((row[:length], wanted[:length]))
    return out


def test_unpacked_windows_hold_one_document_and_an_epoch_draws_each_once():
    batches = Batches(STREAM, 4, batch_size=2, seed=0, end_of_text=END)
    epochs = [alone(batches, 3 * epoch, 3) for epoch in range(4)]
    assert all(sorted(epoch) == sorted(ALONE) for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 4, "each in an order of its own"
    assert epochs != [alone(Batches(STREAM, 4, 2, 1, END), 3 * epoch, 3) for epoch in range(4)]


def test_an_unpacked_batch_depends_on_seed_and_index_alone():
    in_order = [alone(Batches(STREAM, 4, 4, 5, END), i, 1) for i in range(12)]
    one = Batches(STREAM, 4, 4, 5, END)
    assert all(alone(one, i, 1) == in_order[i] for i in (7, 0, 11, 3, 3, 10, 1))
    assert alone(Batches(STREAM, 4, 3, 5, END), 0, 16) == alone(one, 0, 12)


@pytest.mark.parametrize("end_of_text", [None, END])
@pytest.mark.parametrize("context", [1, 2, 3, 4, 6, 7, 100])
def test_each_token_but_the_first_is_a_target_of_the_windows_once(context, end_of_text):
    starts, lengths = windows(STREAM, context, end_of_text)
    targets = [at + 1 for start, length in zip(starts, lengths) for at in range(start, start + length)]
    assert targets == list(range(1, len(STREAM))) and lengths.min() >= 1 and lengths.max() <= context
    if end_of_text is not None:
        ends = numpy.flatnonzero(STREAM == END)
        assert {*ends} <= {*starts}, "a document that begins inside a window"


def test_targets_are_counted_without_padding():
    """As a run's tokens: for every batch if packed, else after whole epochs and in proportion between them."""
    packed, unpacked = Batches(STREAM, 4, 4, seed=3), Batches(STREAM, 4, 4, 3, END)
    assert [packed.targets(count) for count in range(20)] == [count * 4 * 4 for count in range(20)]
    assert sum((unpacked[i][1] != IGNORED).sum().item() for i in range(3)) == unpacked.targets(3) == 2 * 17
    assert [unpacked.targets(count) for count in (0, 1, 2)] == [0, round(34 / 3), round(68 / 3)]


# The same as ever


def digests(batches):
    return [hashlib.sha256(part.numpy().tobytes()).hexdigest()[:16] for i in (0, 5, 77, 10**6) for part in batches[i]]


@pytest.mark.parametrize("mixed", [False, True])
def test_one_source_gives_the_bits_of_the_version_before_mixtures(mixed):
    def make(tokens, *how):
        return Batches([tokens], 16, 8, 3, *(how or [None]), [0.3]) if mixed else Batches(tokens, 16, 8, 3, *how)

    assert digests(make(numpy.arange(5000, dtype=numpy.uint16))) == [
        "5d05041b55e14815", "3d2152e0f284308d", "e9c3f653d74f290b", "6d18ea366f6555b2", "cd102fb5a1b663ef",
        "8fa4229eecc0a252", "43d9625fd0935efb", "0e66735378fe2ecf",
    ]  # fmt: skip
    tokens = numpy.random.default_rng(0).integers(0, 40, 5000)
    tokens[0] = 0
    alone = make(tokens, 0)
    assert digests(alone) == [
        "1b422cec99a8b934", "eda61af39c227480", "dc9f724d3ad31a00", "b387975de3162564", "29daf2569b0f0edb",
        "23a97d25880cfae6", "6de3fb685ed3714a", "e9323f0e9769a16c",
    ]  # fmt: skip
    assert (alone.windows, [alone.targets(n) for n in (1, 10, 1000)]) == (377, [106, 1061, 106080])


# Mixtures

MIXED = [numpy.arange(1000), numpy.arange(10_000, 10_300), numpy.arange(20_000, 20_050)]
WEIGHTS = [5, 3.3, 0.7]


def source_of(row):
    return row[0] // 10_000


def test_quotas_round_by_largest_remainders():
    assert quotas([1, 1, 1]) == [1366, 1365, 1365]
    assert quotas([0.7, 0.3]) == [2867, 1229]  # 2867.2 and 1228.8
    assert quotas([5e-324, 1e300]) == [0, 4096] and quotas([0.3]) == [4096]


def test_a_mixture_has_its_quotas_in_every_4096_sequences():
    drawn = rows(Batches(MIXED, 10, 4096, 2, None, WEIGHTS), 2)
    sources = [list(map(source_of, drawn[n : n + 4096])) for n in range(0, len(drawn), 4096)]
    assert [Counter(each) for each in sources] == [dict(enumerate(quotas(WEIGHTS)))] * 2
    assert sources[0] != sources[1]
    for number, each in enumerate(sources):  # as the formula says
        listed = [source for source, quota in enumerate(quotas(WEIGHTS)) for _ in range(quota)]
        assert each == numpy.random.default_rng([2, 2**62, number]).permutation(listed).tolist()


@pytest.mark.parametrize("end_of_text", [None, 0])
def test_each_source_of_a_mixture_is_drawn_as_it_would_be_alone(end_of_text):
    """Without gaps or repetition, so that each of its windows comes once an epoch."""
    texts = [numpy.where(text % 7 == 0, 0, text) for text in MIXED]
    for text in texts:
        text[0] = 0
    mixture, size = Batches(texts, 10, 1, 2, end_of_text, WEIGHTS), 4300  # across 4,096
    drawn = [mixture[i] for i in range(size)]
    sources = [max(ids[0].max(), targets[0].max()).item() // 10_000 for ids, targets in drawn]
    for number, text in enumerate(texts):
        alone = Batches(text, 10, 1, 2, end_of_text)
        mine = [batch for batch, source in zip(drawn, sources) if source == number]
        assert len(mine) > alone.windows
        assert all(all(map(torch.equal, batch, alone[k])) for k, batch in enumerate(mine))


def test_a_mixed_batch_depends_on_seed_and_index_alone():
    one = Batches(MIXED, 10, 8, 5, None, WEIGHTS)
    for i in (600, 0, 511, 512, 3, 3, 699, 1):
        assert all(map(torch.equal, one[i], Batches(MIXED, 10, 8, 5, None, WEIGHTS)[i]))
    assert rows(Batches(MIXED, 10, 3, 5, None, WEIGHTS), 80) == rows(one, 30)
    assert rows(Batches(MIXED, 10, 8, 6, None, WEIGHTS), 1) != rows(one, 1)


def test_targets_of_a_mixture_are_in_proportion_to_its_quotas():
    assert [Batches(MIXED, 10, 4, 5, None, WEIGHTS).targets(n) for n in range(9)] == [n * 40 for n in range(9)]
    two = Batches([STREAM, numpy.array([END, 1, END, 2, END, 3])], 4, 4096, 3, END, [1, 3])
    assert two.targets(7) == round(7 * (1024 * 17 / 6 + 3072 * 5 / 3))


# Large corpora


@pytest.mark.parametrize("count", [1, 2, 3, 17, 2050])
def test_a_feistel_network_permutes(count):
    orders = [Feistel(count, numpy.random.default_rng(seed)) for seed in (0, 1)]
    drawn = [[order[i] for i in range(count)] for order in orders]
    assert sorted(drawn[0]) == sorted(drawn[1]) == list(range(count))
    if count > 10:
        assert drawn[0] != drawn[1] and drawn[0] != sorted(drawn[0])
        steps = [abs(a - b) for a, b in zip(drawn[0], drawn[0][1:])]
        assert abs(numpy.mean(steps) / count - 1 / 3) < (0.03 if count > 1000 else 0.2), "as of a random order"


def test_beyond_so_many_windows_an_epoch_still_draws_each_once(monkeypatch):
    monkeypatch.setattr(module, "_LISTED", 98)
    drawn = rows(Batches(numpy.arange(1000), 10, 99, 0), 3)
    epochs = [[row[0] for row in drawn[n : n + 99]] for n in range(0, 297, 99)]
    for starts in epochs:
        assert {b - a for a, b in zip(sorted(starts), sorted(starts)[1:])} == {10}
    assert len({tuple(start // 10 for start in starts) for starts in epochs}) == 3


class Long:
    """The numbers from 0 on as a memory map far larger than any memory."""

    def __len__(self):
        return 2**40

    def __getitem__(self, at):
        return numpy.arange(at.start, at.stop) if isinstance(at, slice) else at


def test_tokens_beyond_32_bits_are_reached_in_little_memory():
    tracemalloc.start()
    inputs, targets = Batches(Long(), 1024, 64, 0)[10**7]
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert torch.equal(targets, inputs + 1) and inputs[:, 0].unique().numel() == 64
    assert inputs.max() > 2**39 and 0.3 < (inputs[:, 0] > 2**39).double().mean() < 0.7
