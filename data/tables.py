"""The text column of csv, json, jsonl and parquet files.

Not read by datasets: for a local file it calls the hub, takes the name for a pattern, reads "NA" in a csv as missing,
and guesses a column's type from its first rows.
"""

import csv
import io
import json
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from base import InputError
from data.config import DataConfig
from data.documents import TextFile, open_unpacked, suffix


def read_table(config: DataConfig, path: Path) -> Iterator[str]:
    """The text of each row, "" where a row has none. InputError names the file, and where possible the line or row."""
    try:
        yield from texts(config, path, TABLES[suffix(path)](config, path))
    except InputError:
        raise
    except UnicodeDecodeError:  # it knows the place in a block, not in the file
        for _ in TextFile(path, "strict"):
            pass
    except (OSError, ValueError, EOFError, RecursionError, csv.Error, zlib.error) as error:  # pyarrow's too
        raise InputError(f"{path}: {error}") from None


def texts(config: DataConfig, name: str | Path, values: Iterable) -> Iterator[str]:
    """The values of a text column, "" for None; InputError where one is not text."""
    for number, text in enumerate(values, 1):
        if not isinstance(text, str | None):
            reason = f"expected text in row {number} of {name}, got {text!r:.60}"
            raise InputError(f"data.text_column {config.text_column!r}: {reason}")
        yield text or ""


def check_column(config: DataConfig, name: str | Path, columns: Collection[str]) -> None:
    """InputError unless exactly one of the columns is data.text_column."""
    if [*columns].count(config.text_column) != 1:
        shown = " ".join(", ".join(map(str, columns)).split())
        raise InputError(
            f"data.text_column {config.text_column!r}: expected one such column in {name}, got {shown:.500}"
        )


def _csv_column(config, path):
    csv.field_size_limit(2**31 - 1)  # the default, 128 kB, is less than many documents
    with io.TextIOWrapper(open_unpacked(path), encoding="utf-8-sig", errors=config.errors, newline="") as file:
        rows, line = csv.reader(file, strict=True), 1  # the line on which a row begins: it may span several
        try:
            header = next(filter(None, rows), [])
            check_column(config, path, header)
            place = header.index(config.text_column)
            line = rows.line_num + 1
            for row in rows:
                if len(row) not in (0, len(header)):
                    reason = f"expected {len(header)} cells, as in the header, got {len(row)}"
                    raise InputError(f"{path}, line {line}: {reason}; text with a comma or line break needs quotes")
                yield from row[place : place + 1]  # nothing for a blank line
                line = rows.line_num + 1
        except csv.Error as error:
            reason = f"{error}; a quoted cell ends at its quote, and a quote within it is written twice"
            raise InputError(f"{path}, line {line}: {reason}") from None


def _parquet_column(config, path):
    import pyarrow.parquet  # takes 0.1 s to load

    with pyarrow.parquet.ParquetFile(path) as file:
        check_column(config, path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=1000, columns=[config.text_column]):
            yield from batch.column(0).to_pylist()


def _json_column(config, path):
    columns = {}  # rows may have different keys
    for number, row in enumerate(_json_rows(config, path), 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: expected a JSON object, got {ascii(row)[:40]}")
        columns.update(row)
        yield row.get(config.text_column)
    check_column(config, path, columns)


def _json_rows(config, path):
    with open_unpacked(path) as file:
        is_list = file.read(100).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        file.seek(0)
        if is_list:
            yield from json.loads(file.read().decode("utf-8-sig", config.errors))
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line.decode("utf-8-sig", config.errors))
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{path}, line {number}: {error}") from None
                yield row


TABLES = {".json": _json_column, ".jsonl": _json_column, ".csv": _csv_column, ".parquet": _parquet_column}
