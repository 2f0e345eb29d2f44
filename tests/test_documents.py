"""Documents that share a window: each is as if it were alone."""

import pytest
import torch
import yaml

from base import InputError, find_checkpoint
from configs import load_config
from data.batches import windows
from data.corpus import load_corpus
from data.documents import END_OF_TEXT
from model import attention
from model.cache import Cache
from model.checkpoint import load_checkpoint
from model.position import POSITIONS
from model.transformer import with_position
from tiny import rows, run_config, settings, train_until, trained
from training.evaluation import evaluate
from training.loop import train

START, LENGTH = 7, 24
BEGINS = {0: [0, 5, 6, 17], 1: [3, 20]}  # by row; what the second has before its first is the rest of a document
PACKED = {"document_start_token_id": START}


@pytest.fixture
def ids(tokens):
    drawn = tokens(2, LENGTH)
    drawn[drawn == START] += 1
    for row, begins in BEGINS.items():
        drawn[row, begins] = START
    return drawn


def kinds(scheme) -> list[str]:
    """The kinds of attention that a scheme works with."""
    needs_scores = POSITIONS[scheme].overrides("bias", "temperature", "features", "content_bias")
    return ["softmax"] if needs_scores else ["softmax", "linear"]


def apart(model, ids):
    """Logits of each document in a pass of its own."""
    found = []
    for row, begins in BEGINS.items():
        ends = [*sorted({0, *begins}), LENGTH]
        found.append(torch.cat([model(ids[[row], start:end]) for start, end in zip(ends, ends[1:])], dim=1))
    return torch.cat(found)


def with_gradients(model, logits):
    gradients = torch.autograd.grad(logits.square().mean(), list(model.parameters()), allow_unused=True)
    return logits.detach(), [gradient for gradient in gradients if gradient is not None]


@pytest.mark.parametrize(
    "dtype, exact, scores",
    [(torch.float64, 1e-11, attention.SCORES), (torch.float64, 1e-11, 5 * LENGTH), (torch.float32, 1e-5, 5 * LENGTH)],
    ids=["at once", "in blocks", "float32"],
)
def test_packed_documents_equal_separate_ones(scheme, dtype, exact, scores, ids, tiny_model, monkeypatch):
    """Logits, and the gradient of every parameter."""
    monkeypatch.setattr(attention, "SCORES", scores)
    for kind in kinds(scheme):
        model, plain = (tiny_model(scheme, dtype, attention=kind, **more) for more in (PACKED, {}))
        packed, expected = with_gradients(model, model(ids)), with_gradients(plain, apart(plain, ids))
        torch.testing.assert_close(packed, expected, rtol=exact, atol=exact)


@torch.no_grad()
def test_a_row_with_a_cache_or_with_positions_of_its_own_is_one_document(tiny_model, ids):
    model, plain = tiny_model(**PACKED), tiny_model()
    assert not torch.allclose(model(ids), plain(ids))
    assert torch.equal(model(ids, Cache()), plain(ids, Cache()))
    places = torch.arange(LENGTH).expand(2, -1)
    assert torch.equal(model(ids, positions=places), plain(ids, positions=places))


@torch.no_grad()
def test_a_learned_table_must_reach_the_end_of_the_longest_document_alone(tiny_model, ids):
    model = tiny_model("learned", max_position_embeddings=17, **PACKED)
    assert model(ids).isfinite().all()
    ids[1, 3] += 1  # now one of 20 tokens
    with pytest.raises(IndexError, match="position 19 lies past the 17"):
        model(ids)


@torch.no_grad()
def test_other_options_and_a_dropped_scheme_leave_documents_apart(tiny_model, ids):
    model = tiny_model(**PACKED)
    scaled = with_position(model, {"scaling": {"rope_type": "linear", "factor": 2}})
    changed = ids.clone()
    changed[:, 1:3] += 1
    model.drop_position()
    for each in (scaled, model):
        assert torch.equal(each(ids)[0, 5:], each(changed)[0, 5:])


@pytest.fixture
def documents(tmp_path):
    """A folder of short ones, as an override."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(chr(97 + number % 26) * (3 + number % 17), encoding="utf-8")
    return f"data.source={folder}"


def test_a_run_and_its_checkpoint_are_evaluated_with_documents_apart(tmp_path, documents):
    """The loss of the last evaluation is that of each window's documents, one by one."""
    config = trained(tmp_path, documents, "train.document_mask=true", "model.position=sinusoidal")
    corpus, model = load_corpus(config.data), load_checkpoint(find_checkpoint(config.folder))
    start = corpus.tokenizer.token_to_id(END_OF_TEXT)
    assert model.config.document_start_token_id == start
    nats = evaluate(model, corpus.val, 16)
    assert nats / (len(corpus.val) - 1) == pytest.approx(rows(config.folder)[-1]["val_loss"], rel=1e-6)
    plain, expected = with_position(model, {}), 0.0
    plain.config = plain.config.model_copy(update={"document_start_token_id": None})
    for first, length in zip(*windows(corpus.val, 16)):
        window = torch.from_numpy(corpus.val[first : first + length + 1].astype(int))
        ends = [*sorted({0, *(window[:-1] == start).nonzero().flatten().tolist()}), int(length)]
        with torch.no_grad():
            logits = torch.cat([plain(window[None, a:b])[0] for a, b in zip(ends, ends[1:])])
        expected -= logits.double().log_softmax(-1)[range(length), window[1:]].sum().item()
    assert nats == pytest.approx(expected, rel=1e-6)


def test_documents_are_kept_apart_after_a_resume_and_cannot_be_joined_there(tmp_path, documents):
    given = documents, "train.document_mask=true", "train.checkpoint_every=2"
    whole = trained(tmp_path, "name=whole", *given)
    train_until(4, other := run_config(tmp_path, "name=other", *given))
    with pytest.raises(InputError, match="cannot resume with another train.document_mask"):
        train(run_config(tmp_path, "name=other", *given, "train.document_mask=false"), resume=True)
    train(other, resume=True)
    assert rows(other.folder) == rows(whole.folder)
    assert rows(trained(tmp_path, "name=joined", documents).folder) != rows(whole.folder)


@pytest.mark.parametrize(
    ("overrides", "apart"),
    [([], False), (["train.document_mask=true"], True), (["model.document_start_token_id=256"], True)],
    ids=["crossing", "masked", "by the token"],
)
def test_a_fine_tuning_keeps_documents_apart_where_its_own_config_says_so(tmp_path, documents, overrides, apart):
    """Not where the run that it starts from did: its config.yaml says what it does."""
    first = trained(tmp_path, "name=first", documents, "train.document_mask=true")
    values = settings(tmp_path)
    del values["data"]["tokenizer"], values["model"]
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    config = load_config(file, [documents, f"train.init_from={first.folder}", *overrides])
    train(config)
    model = load_checkpoint(find_checkpoint(config.folder))
    assert model.config.document_start_token_id == (256 if apart else None)


def test_documents_without_neighbours_need_no_mask(tmp_path):
    with pytest.raises(InputError, match="train.document_mask true: data.pack false already"):
        run_config(tmp_path, "data.pack=false", "train.document_mask=true")
