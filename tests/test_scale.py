"""The formulas of docs/scale.md, beside published sizes and what two processes do."""

from pathlib import Path

import scale
import scale_check
from test_ranks import Ranks


def test_the_document_has_the_tables_that_the_command_prints():
    document = (Path(__file__).parent.parent / "docs" / "scale.md").read_text(encoding="utf-8")
    lines = [line for line in document.splitlines() if line.startswith("|")]
    assert lines == [line for line in scale.tables().splitlines() if line]


def test_models_have_the_published_numbers_of_parameters():
    """Of Llama 3.2 1B and Llama 2 7B, and of what the formulas are of: blocks, all outside of them, Muon's matrices."""
    counts = {model.name: scale.Count(model.config) for model in scale.MODELS}
    assert (counts["1B"].whole, counts["7B"].whole) == (1_235_814_400, 6_738_415_616)
    for count in counts.values():
        assert count.blocks + count.root == count.whole
        assert count.muon + 2 * count.config.num_hidden_layers * count.config.hidden_size == count.blocks


def test_two_processes_hold_and_send_what_the_formulas_say(tmp_path):
    """To the byte: weights, gradients, moments, collectives, and what a forward pass keeps."""
    ranks = Ranks(tmp_path)
    assert ranks(2, scale_check.check) == [0, 0], ranks.said


def test_a_ring_sends_what_its_parts_add_up_to():
    """Of 3 processes with a part each: two parts go out of each in a gather, four in a sum, two ninths in an exchange."""
    assert scale.sent("all-gather", 9, 3) == scale.sent("reduce-scatter", 9, 3) == 6
    assert scale.sent("all-reduce", 9, 3) == 12 and scale.sent("all-to-all", 9, 3) == 2
