"""Documents out of a folder of .txt, .jsonl, .jsonl.gz and .parquet files: streamed, checked, in one order.

What is unusual: corpus files are untrusted data. No file is ever held whole except one document of at most `MAX_BYTES`;
what cannot be read for sure as text is refused with the file and row named, never guessed at or dropped. The order is
that of the files' names, whatever the disk says.

A document is a .txt file, named by its path inside the folder, or a row of the other kinds, named `path#row` with the
first row (line) called 1. Cleaning is the same for all: a UTF-8 byte-order mark goes, CR LF and CR become LF.
Files of other kinds and hidden ones are left out; `CorpusFiles.ignored` names the former.
"""

import gzip
import json
import os
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.errors import UserError, refuse

# One document, or one line of JSON. Longer ones are refused, so that a file without line breaks cannot fill the memory.
MAX_BYTES = 32 << 20
# Rows decoded at once. A few bytes of a parquet file may repeat one long text in every row of a batch; as a column of
# type dictionary it stands there once, and each batch costs a copy of it.
_BATCH_ROWS, _DICTIONARY_ROWS = 4, 1024
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


@dataclass(frozen=True)
class Document:
    """One cleaned text and its name."""

    name: str
    text: str


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus in order, with the names documents get, and the names of files of other kinds."""

    files: tuple[tuple[str, Path], ...]
    ignored: tuple[str, ...]


def corpus_files(folder: str | Path) -> CorpusFiles:
    """List the corpus files under `folder`, sorted by name (path inside the folder, `/`, Unicode NFC).

    Raises `UserError` for a missing folder, no file of a known kind, a link out of the folder or to a folder, two names
    that differ only in their Unicode form, and a .jsonl beside its own .jsonl.gz.
    """
    root = Path(folder)
    if not root.is_dir():
        remedy = (
            "name a folder of .txt, .jsonl, .jsonl.gz or .parquet files; `python -m causal_priors fetch` makes one of a "
            "dataset of the Hugging Face hub"
        )
        raise refuse("is not a folder", file=root, remedy=remedy)
    found: dict[str, Path] = {}
    ignored = []
    for path in _walk(root, root.resolve()):
        name = _name(root, path)
        if _kind(name) is None:
            ignored.append(name)
        elif not path.is_file():
            raise refuse("is no regular file", file=path, remedy="remove it")
        elif name in found:
            raise refuse(f"has the same name as {found[name].name!r}", file=path, remedy="rename one of the two")
        else:
            found[name] = path
    for name in found:
        if name.lower().endswith(".jsonl") and f"{name}.gz" in found:
            raise refuse(f"stands beside its compressed form {name}.gz", file=root / name, remedy="keep one of the two")
    if not found:
        seen = f" (only {', '.join(sorted(ignored)[:5])})" if ignored else ""
        remedy = "put .txt, .jsonl, .jsonl.gz or .parquet files there"
        raise refuse(f"holds no corpus files{seen}", file=root, remedy=remedy)
    return CorpusFiles(tuple(sorted(found.items())), tuple(sorted(ignored)))


def iter_documents(folder: str | Path, column: str = "text") -> Iterator[Document]:
    """Yield every document of `folder` in corpus order. `column` is the parquet column or JSON field of the text.

    Raises `UserError` naming the file, and the row where there is one.
    """
    for name, path in corpus_files(folder).files:
        yield from read_file(name, path, column)


def read_file(
    name: str, path: Path, column: str, groups: range | None = None, rows_before: int = 0
) -> Iterator[Document]:
    """Yield the documents of one corpus file, of a parquet file those of the row groups `groups` (None: all).

    `rows_before` counts the rows of the row groups before them. Raises `UserError`.
    """
    reader = _kind(name)
    assert reader is not None
    try:
        if groups is None:
            yield from reader(path, name, column)
        else:
            yield from _read_parquet(path, name, column, groups, rows_before)
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror or error})", file=path) from error


def _walk(folder: Path, root: Path) -> Iterator[Path]:
    folders = [folder]
    while folders:
        here = folders.pop()
        try:
            entries = list(os.scandir(here))
        except OSError as error:
            raise refuse(f"cannot be read ({error.strerror})", file=here) from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_symlink():
                _check_link(path, root)
            if entry.is_dir():
                folders.append(path)
            else:
                yield path


def _check_link(path: Path, root: Path) -> None:
    remedy = "put a copy there instead of the link"
    if not path.exists():
        raise refuse("is a link to nothing", file=path, remedy="remove it")
    if not path.resolve().is_relative_to(root):
        raise refuse("is a link that leads out of the corpus folder", file=path, remedy=remedy)
    if path.is_dir():
        raise refuse("is a link to a folder", file=path, remedy=remedy)


def _name(root: Path, path: Path) -> str:
    name = unicodedata.normalize("NFC", path.relative_to(root).as_posix())
    try:
        name.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path.name)
        raise refuse(f"holds a file whose name is not UTF-8 ({shown!r})", file=root, remedy="rename it") from error
    return name


def _kind(name: str) -> Callable[[Path, str, str], Iterator[Document]] | None:
    lower = name.lower()
    return next((reader for ending, reader in _READERS.items() if lower.endswith(ending)), None)


def _read_text(path: Path, name: str, _: str) -> Iterator[Document]:
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise refuse(f"is longer than {MAX_BYTES >> 20} MiB", file=path, remedy="split it into documents, one a file")
    if data.startswith(_UTF16_MARKS):
        remedy = f"convert it: iconv -f UTF-16 -t UTF-8 {path.name} > new.txt"
        raise refuse("is UTF-16, not UTF-8", file=path, remedy=remedy)
    yield Document(name, _clean(_decode(data, path, None), path, None))


def _read_json_lines(path: Path, name: str, field: str) -> Iterator[Document]:
    if name.lower().endswith(".gz"):
        with gzip.open(path, "rb") as compressed:
            yield from _json_lines(compressed, path, name, field)
    else:
        with open(path, "rb") as plain:
            yield from _json_lines(plain, path, name, field)


def _json_lines(file: BinaryIO | gzip.GzipFile, path: Path, name: str, field: str) -> Iterator[Document]:
    empty = True
    row = 0
    while line := _line(file, path, row + 1):
        row += 1
        if row == 1 and line.startswith(_UTF16_MARKS):
            raise refuse("is UTF-16, not UTF-8", file=path, remedy="convert it with iconv")
        content = _decode(line, path, row).removeprefix("\ufeff" if row == 1 else "")
        # Blank lines hold no document but count as rows, so that a row number is a line number.
        if content.strip():
            empty = False
            yield Document(f"{name}#{row}", _clean(_field(content, path, row, field), path, row))
    if empty:
        raise refuse("is empty", file=path, remedy="remove it or fill it")


def _line(file: BinaryIO | gzip.GzipFile, path: Path, row: int) -> bytes:
    try:
        line = file.readline(MAX_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refuse(f"is damaged ({error})", file=_at(path, row), remedy="fetch or compress it again") from error
    if len(line) > MAX_BYTES:
        remedy = "write one JSON object a line, documents below that size"
        raise refuse(f"is a line longer than {MAX_BYTES >> 20} MiB", file=_at(path, row), remedy=remedy)
    return line


def _field(content: str, path: Path, row: int, field: str) -> str:
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0]
        raise refuse(f"is not JSON ({problem})", file=_at(path, row), remedy="write one JSON object a line") from error
    if not isinstance(value, dict):
        raise refuse(f"is no JSON object but {type(value).__name__}", file=_at(path, row))
    if field not in value:
        names = ", ".join(list(value)[:10]) or "none"
        remedy = f"fields there: {names}; set text_column"
        raise refuse("has no such field", file=_at(path, row), key="text_column", value=field, remedy=remedy)
    text = value[field]
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise refuse(f"is {kind}, not text", file=_at(path, row), key=field, remedy="remove or fill the row")
    return text


def _read_parquet(path: Path, name: str, column: str, groups: range | None = None, row: int = 0) -> Iterator[Document]:
    try:
        # A buffer instead of pre_buffer: pages are read as they are needed, not a whole row group at once.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True) as file:
            kind = _check_column(file, path, column)
            rows = _DICTIONARY_ROWS if pa.types.is_dictionary(kind) else _BATCH_ROWS
            chosen = None if groups is None else list(groups)
            for batch in file.iter_batches(rows, row_groups=chosen, columns=[column], use_threads=False):
                # By its name: of a struct `a`, a column `a.b` brings the field b along.
                for value in batch.column(batch.schema.get_field_index(column)):
                    row += 1
                    yield Document(f"{name}#{row}", _clean(_parquet_text(value, path, row, column), path, row))
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise refuse(f"cannot be read as parquet ({problem})", file=path, remedy="fetch or write it again") from error
    if row == 0:
        raise refuse("is empty (no rows)", file=path, remedy="remove it or fill it")


def _check_column(file: pq.ParquetFile, path: Path, column: str) -> pa.DataType:
    schema = file.schema_arrow
    where = schema.get_all_field_indices(column)
    if not where:
        remedy = f"columns there: {', '.join(schema.names[:10]) or 'none'}; set text_column"
        raise refuse("has no such column", file=path, key="text_column", value=column, remedy=remedy)
    if len(where) > 1:
        raise refuse("stands for several columns", file=path, key="text_column", value=column, remedy="rename one")
    kind = schema.field(where[0]).type
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(stored) or pa.types.is_large_string(stored) or pa.types.is_string_view(stored)):
        raise refuse(f"is of type {kind}, not text", file=path, key=column, remedy="set text_column to a text column")
    return kind


def _parquet_text(value: pa.Scalar, path: Path, row: int, column: str) -> str:
    stored = value.value if isinstance(value, pa.DictionaryScalar) else value
    if not stored.is_valid:
        raise refuse("is null, not text", file=_at(path, row), key=column, remedy="remove or fill the row")
    data = stored.as_buffer()
    if data.size > MAX_BYTES:
        raise refuse(f"is longer than {MAX_BYTES >> 20} MiB", file=_at(path, row), remedy="split it into documents")
    return _decode(data.to_pybytes(), path, row)


def _decode(data: bytes, path: Path, row: int | None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(error, path, row) from error


def _clean(text: str, path: Path, row: int | None) -> str:
    """Return `text` without a mark and with LF line ends; refuse what is no text."""
    if (at := text.find("\0")) >= 0:
        problem = f"holds a NUL at character {at + 1}"
        raise refuse(problem, file=_at(path, row), remedy="is it UTF-16 or binary? convert it to UTF-8 text")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():
        raise refuse("is empty", file=_at(path, row), remedy="remove it or fill it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"holds half of a surrogate pair at character {error.start + 1}"
        raise refuse(problem, file=_at(path, row), remedy="write valid Unicode") from error
    return text


def _not_utf8(error: UnicodeDecodeError, path: Path, row: int | None) -> UserError:
    problem = f"is not UTF-8 ({error.reason} at byte {error.start + 1})"
    return refuse(problem, file=_at(path, row), remedy="convert it to UTF-8, for instance with iconv")


def _at(path: Path, row: int | None) -> str:
    return str(path) if row is None else f"{path}: row {row}"


_READERS: dict[str, Callable[[Path, str, str], Iterator[Document]]] = {
    ".txt": _read_text,
    ".jsonl": _read_json_lines,
    ".jsonl.gz": _read_json_lines,
    ".parquet": _read_parquet,
}
KINDS = tuple(_READERS)
