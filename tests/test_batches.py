import numpy
import pytest
import torch

from data.batches import Batches


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
