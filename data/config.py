"""The options of text and tokenizers, apart from what reads text: checking a config loads none of that."""

from typing import Literal

from pydantic import Field

from settings import FrozenConfig


class TokenizerConfig(FrozenConfig):
    kind: Literal["byte", "char", "bpe"] = "bpe"
    """One token per UTF-8 byte, one per character of the corpus, or byte-level byte-pair encoding."""
    vocab_size: int = Field(4096, ge=257)
    """Size of a bpe vocabulary, including the 256 bytes and end-of-text; byte and char ignore it."""


class DataConfig(FrozenConfig):
    source: str = Field("python_docs", min_length=1)
    """python_docs, python_source, a txt, json, jsonl, csv or parquet file, a folder or glob of such files, a folder
    written by datasets' save_to_disk, the name of a Hugging Face data set, or synthetic/copy, reverse, k-back,
    induction, recall, addition or indirect-indexing. Of several files, those called validation, valid, val, dev, eval or evaluation are
    for validation, those called test or testing are left out, and all others are for training: by the name of the
    file or else of a folder (validation.txt, test-00000-of-00002.parquet) or, if any file is called train or training,
    by a word in it (wiki.valid.txt). All but parquet may be compressed with gzip, as in txt.gz."""
    subset: str | None = None
    """Configuration of a Hugging Face data set that has several."""
    split: str = "train"
    """Split of a Hugging Face data set to train on."""
    text_column: str = "text"
    """Column that holds the text, in all but text files; rows without text are skipped."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes in local files that are not UTF-8: refuse the file, or replace them with U+FFFD."""
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
