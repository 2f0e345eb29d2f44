"""The options of text and tokenizers, apart from what reads text: checking a config loads none of that."""

from collections import Counter
from fractions import Fraction
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from settings import FrozenConfig, Name

ROUND = 4096  # sequences in which the sources of a mixture have their exact shares


class TokenizerConfig(FrozenConfig):
    """How text becomes tokens."""

    kind: Literal["byte", "char", "bpe"] = "bpe"
    """One token per UTF-8 byte, one per character of the corpus, or byte-level byte-pair encoding."""
    vocab_size: int = Field(4096, ge=257, le=2**20)
    """Size of a bpe vocabulary, including the 256 bytes and end-of-text; byte and char ignore it."""
    folder: str | None = Field(None, min_length=1)
    """Folder whose tokenizer.json is taken as it is, which leaves no matter to kind and vocab_size. Its <|endoftext|>
    parts documents, or else the token that its files name as the end."""


class SourceConfig(FrozenConfig):
    """A text and how it is read."""

    source: str = Field(min_length=1)
    """as data.source"""
    subset: str | None = None
    """Configuration of a Hugging Face data set that has several."""
    split: str = "train"
    """Split of a Hugging Face data set to train on."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face data set; null: its newest. A commit asks the hub only for what is not
    here yet."""
    streaming: bool = False
    """true: of a Hugging Face data set take max_tokens, tokenized as they arrive and never stored as text. Validation has
    at most 4 bytes for each token of val_fraction · max_tokens: the first documents of the set's own split, or else of
    this one, which are then not trained on. A killed preparation reads again what it had read, and skips it."""
    max_tokens: int | None = Field(None, gt=0)
    """Tokens to train on, in whole documents, when streaming."""
    text_column: str = "text"
    """Column that holds the text, in all but text files; rows without text are skipped."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes in local files that are not UTF-8: refuse the file, or replace them with U+FFFD."""

    @model_validator(mode="after")
    def _streams_so_much(self):
        if self.streaming != (self.max_tokens is not None):
            raise ValueError(
                f"streaming {str(self.streaming).lower()}: max_tokens {self.max_tokens}: expected both or none"
            )
        return self


class WeightedConfig(SourceConfig):
    """A text in a mixture."""

    weight: float = Field(1.0, gt=0)
    """share of the sequences, in proportion to the others"""
    name: Name | None = None
    """of the source's loss; null: the last part of `source`, without the endings of a file"""

    @field_validator("name", mode="before")
    @classmethod
    def _fill_in(cls, value, info):
        return PurePath(info.data.get("source", "")).name.split(".")[0] if value is None else value


class DataConfig(SourceConfig):
    """The text that a run trains and is evaluated on, of one source or a mixture."""

    source: Annotated[str, Field(min_length=1)] | None = "python_docs"
    """python_docs, python_source, a txt, json, jsonl, csv or parquet file, a folder or glob of such files, a folder
    written by datasets' save_to_disk, the name of a Hugging Face data set, or synthetic/ and one of copy, reverse,
    k-back, induction, recall, addition or indirect-indexing. Of several files, those called validation, valid, val,
    dev, eval or evaluation are for validation, those called test or testing are left out, and all others are for
    training: by the name of the file or else of a folder (validation.txt, test-00000-of-00002.parquet) or, if any file
    is called train or training, by a word in it (wiki.valid.txt). All but parquet may be compressed with gzip, as in
    txt.gz."""
    sources: tuple[WeightedConfig, ...] = ()
    """A mixture instead of data.source: [{source: …, weight: …}, …], each with its own keys from subset to errors, and
    a name. Sequences are drawn in proportion to the weights, exactly so in every 4,096, and each source has
    its own epochs. One tokenizer serves all: it learns from equally much of each. metrics.jsonl has the validation loss
    of each source as val_loss/NAME."""
    val_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the text held out for validation if the source has no validation split of its own."""
    val_part: Literal["all", "tuning", "reporting"] = "all"
    """Part of the validation text to evaluate on: all of it, or one half, so that what is chosen on `tuning` can be
    reported on `reporting`. Which half a document is in is a hash of it; a single document is cut in the middle."""
    pack: bool = True
    """true: windows over the whole stream, in which documents follow each other. false: each document by itself, from
    position 0, with end-of-text before and after it; shorter ones are padded, which counts nowhere, and one longer
    than the context becomes several windows, each from position 0."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    cache_dir: str = ".cache"
    """Folder for tokenized text."""

    @model_validator(mode="before")
    @classmethod
    def _mixture_has_no_source(cls, values):
        return {"source": None, **values} if isinstance(values, dict) and values.get("sources") else values

    @model_validator(mode="after")
    def _is_one_text_or_several(self):
        if (self.source is None) != bool(self.sources):
            raise ValueError("expected either source or sources")
        defaults = {key: field.default for key, field in SourceConfig.model_fields.items() if key != "source"}
        own = [key for key, default in defaults.items() if getattr(self, key) != default]
        if own and self.sources:
            raise ValueError(f"{own[0]} is set; in a mixture each of sources has its own")
        if twice := [name for name, count in Counter(source.name for source in self.sources).items() if count > 1]:
            raise ValueError(f"sources: two are called {twice[0]!r}; give each its own name")
        if (
            self.tokenizer.kind == "char"
            and not self.tokenizer.folder
            and any(s.streaming for s in (self, *self.sources))
        ):
            raise ValueError("streaming true: tokenizer.kind 'char' reads all text first; expected byte or bpe")
        if 0 in quotas([source.weight for source in self.sources]):
            raise ValueError(f"sources: a weight is too small to be drawn once in {ROUND:,} sequences")
        return self

    def each(self) -> "tuple[DataConfig, ...]":
        """The config of each source of a mixture by itself; of a single source, this one."""
        alone = [source.model_dump(exclude={"weight", "name"}) for source in self.sources]
        return tuple(self.model_copy(update={"sources": (), **source}) for source in alone) or (self,)


def quotas(weights: list[float]) -> list[int]:
    """How many of ROUND sequences each source has: in proportion to the weights, rounded by largest remainders."""
    exact = [Fraction(weight) * ROUND / sum(map(Fraction, weights)) for weight in weights]
    whole = [int(share) for share in exact]
    for n in sorted(range(len(whole)), key=lambda n: whole[n] - exact[n])[: ROUND - sum(whole)]:
        whole[n] += 1
    return whole
