"""Which documents are held out: the rule, which needs no tokenizer, and the reading of a corpus that was split by it.

A tokenizer is trained on the training split, so the split cannot count its tokens. Here a token stands for
`BYTES_PER_TOKEN` bytes of UTF-8. Shares of the corpus are then shares of bytes, and the split is the same for every
tokenizer and scale.

The index (parquet, kind "corpus", made by index.py) has one row per document in corpus order. Later stages read the
corpus again and check each document against it, so a file edited in between is noticed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.artifacts import canonical_json, sha256_bytes
from causal_priors.data.documents import Document, iter_documents
from causal_priors.data.shards import HELDOUT, TRAIN
from causal_priors.errors import UserError, refuse
from causal_priors.remedies import rebuild, rebuild_command
from causal_priors.tables import iter_table

DUPLICATE = "duplicate"


class Row(NamedTuple):
    """One row of the index. bytes: of UTF-8; split: "train", "heldout" or "duplicate"."""

    document: str
    bytes: int
    sha256: str
    split: str


BYTES_PER_TOKEN = 4
LONG = 16_384 * BYTES_PER_TOKEN
LONG_DOCUMENTS = 3
SHARE = 0.05
LARGEST_SHARE = 0.15
# A corpus that reaches its third long document only after half of it is held out is no corpus to train on.
MOST = 0.5


def hold_out(
    names: Sequence[bytes] | np.ndarray,
    sizes: Sequence[int] | np.ndarray,
    never: Iterable[int] = (),
    *,
    need_long: bool = True,
) -> list[int]:
    """Return the positions of the documents to hold out (study.md 2), in the order in which they were chosen.

    `names` are the sha256 of the documents' names, `sizes` their bytes, `never` the positions of documents not to
    choose. In the order of `names` documents are taken until they make 5% of all bytes and three of them have 16,384
    tokens (of 4 bytes) or more; those above 15% of the corpus are passed over. With `need_long` False the 5% suffice.
    Fewer than asked for come back where the corpus does not hold them.
    """
    total = int(np.sum(sizes, dtype=np.int64))
    passed_over = set(never)
    chosen: list[int] = []
    held = long = 0
    for position in map(int, order_of(names)):
        if held >= SHARE * total and (long >= LONG_DOCUMENTS or not need_long):
            break
        size = int(sizes[position])
        if position in passed_over or size > LARGEST_SHARE * total:
            continue
        chosen.append(position)
        held += size
        long += size >= LONG
    return chosen


def order_of(digests: Sequence[bytes] | np.ndarray) -> np.ndarray:
    """Return the positions of `digests` (equally long, at most 32 bytes) in their order; equal ones keep theirs."""
    words_N4 = words_of(digests)
    return np.lexsort([words_N4[:, word] for word in reversed(range(4))])


def words_of(digests: Sequence[bytes] | np.ndarray) -> np.ndarray:
    """Return `digests` as four numbers each, uint64 [N, 4], whose order is theirs."""
    return np.asarray(digests, dtype="S32").view(">u8").reshape(-1, 4)


def indexed_documents(
    folder: str | Path, index: str | Path, column: str = "text"
) -> Iterator[tuple[Document, str, str]]:
    """Yield (document, its sha256, its split) for every document of the index but duplicates, in corpus order.

    Raises `UserError` where the corpus is no longer the one that was indexed.
    """
    rows = (row for part in iter_table(index, "corpus", remedy=rebuild(index)) for row in part_rows(part))
    yield from matched(iter_documents(folder, column), rows, folder, index)


def matched(
    documents: Iterable[Document], rows: Iterable[Row], folder: str | Path, index: str | Path
) -> Iterator[tuple[Document, str, str]]:
    """Yield (document, its sha256, its split) of `documents` but duplicates; they must be those of the index's `rows`.

    Raises `UserError` where they are not.
    """
    expected = iter(rows)
    for document in _read_again(documents, index):
        row = next(expected, None)
        if row is None or row.document != document.name:
            raise changed("is not where the index has it", folder, document.name, index)
        if sha256_bytes(document.text.encode()) != row.sha256:
            raise changed("changed since the corpus was indexed", folder, document.name, index)
        if row.split != DUPLICATE:
            yield document, row.sha256, row.split
    if (missing := next(expected, None)) is not None:
        raise changed("went missing since the corpus was indexed", folder, missing.document, index)


def changed(problem: str, folder: str | Path, document: str, index: str | Path) -> UserError:
    """The error of a corpus that is not the one that was indexed."""
    return refuse(problem, file=Path(folder) / document, remedy=_if_meant(index))


def _read_again(documents: Iterable[Document], index: str | Path) -> Iterator[Document]:
    """The documents of a corpus that was readable when it was indexed."""
    try:
        yield from documents
    except UserError as error:
        raise UserError(f"{error}; {_if_meant(index)}") from error


def _if_meant(index: str | Path) -> str:
    return f"if the corpus was meant to change: {rebuild_command(index)}"


def part_rows(part: Mapping[str, list[Any]]) -> Iterator[Row]:
    """Yield the rows of some columns of the index."""
    return map(Row, part["document"], part["bytes"], part["sha256"], part["split"])


def index_rows(index: str | Path, first: int, count: int) -> Iterator[Row]:
    """Yield `count` rows of the index from row `first` on, of an index whose digest the caller has checked."""
    try:
        with pq.ParquetFile(index, pre_buffer=False) as file:
            ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)])
            begin, end = np.searchsorted(ends, (first, first + count - 1), side="right") if count else (0, -1)
            skip = first - (ends[begin - 1] if begin else 0)
            for batch in file.iter_batches(4096, row_groups=list(range(begin, end + 1)), use_threads=False):
                yield from part_rows(batch.slice(skip, count).to_pydict())
                count -= max(0, min(count, batch.num_rows - skip))
                skip = max(0, skip - batch.num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise refuse(f"cannot be read as parquet ({error})", file=index, remedy=rebuild(index)) from error


def index_totals(index: str | Path) -> dict[str, int]:
    """Return the bytes of each split in the index. Raises `UserError`."""
    totals = {TRAIN: 0, HELDOUT: 0, DUPLICATE: 0}
    for rows in iter_table(index, "corpus", remedy=rebuild(index)):
        for size, split in zip(rows["bytes"], rows["split"], strict=True):
            if split not in totals or size is None or size < 0:
                raise refuse("is no index of a corpus", file=index, key=split, value=size, remedy=rebuild(index))
            totals[split] += size
    return totals


class CorpusDigest:
    """sha256 over (name, sha256, split) of documents in corpus order: what a tokenizer or shards were made from."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, name: str, sha256: str, split: str) -> None:
        """Add one document."""
        self._sha.update(canonical_json([name, sha256, split]) + b"\n")

    def hexdigest(self) -> str:
        """The digest so far."""
        return self._sha.hexdigest()
