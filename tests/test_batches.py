import numpy
import pytest
import torch

from data.batches import IGNORED, Batches, windows


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
