"""Which documents are held out: the rule, which needs no tokenizer, and the reading of a corpus that was split by it.

A tokenizer is trained on the training split, so the split cannot count its tokens. Here a token stands for
`BYTES_PER_TOKEN` bytes of UTF-8. Shares of the corpus are then shares of bytes, and the split is the same for every
tokenizer and scale.

The index (parquet, kind "corpus", made by index.py) has one row per document in corpus order. Later stages read the
corpus again and check each document against it, so a file edited in between is noticed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from causal_priors.artifacts import canonical_json, sha256_bytes
from causal_priors.data.documents import Document, iter_documents
from causal_priors.data.shards import HELDOUT, TRAIN
from causal_priors.errors import UserError, refuse
from causal_priors.remedies import rebuild, rebuild_command
from causal_priors.tables import iter_table

DUPLICATE = "duplicate"

BYTES_PER_TOKEN = 4
LONG = 16_384 * BYTES_PER_TOKEN
LONG_DOCUMENTS = 3
SHARE = 0.05
LARGEST_SHARE = 0.15
# A corpus that reaches its third long document only after half of it is held out is no corpus to train on.
MOST = 0.5


def hold_out(
    names: Sequence[bytes], sizes: Sequence[int], never: Iterable[int] = (), *, need_long: bool = True
) -> list[int]:
    """Return the positions of the documents to hold out (study.md 2), in the order in which they were chosen.

    `names` are the sha256 of the documents' names, `sizes` their bytes, `never` the positions of documents not to
    choose. In the order of `names` documents are taken until they make 5% of all bytes and three of them have 16,384
    tokens (of 4 bytes) or more; those above 15% of the corpus are passed over. With `need_long` False the 5% suffice.
    Fewer than asked for come back where the corpus does not hold them.
    """
    total = sum(sizes)
    passed_over = set(never)
    chosen: list[int] = []
    held = long = 0
    for position in sorted(range(len(names)), key=names.__getitem__):
        if held >= SHARE * total and (long >= LONG_DOCUMENTS or not need_long):
            break
        if position in passed_over or sizes[position] > LARGEST_SHARE * total:
            continue
        chosen.append(position)
        held += sizes[position]
        long += sizes[position] >= LONG
    return chosen


def indexed_documents(
    folder: str | Path, index: str | Path, column: str = "text"
) -> Iterator[tuple[Document, str, str]]:
    """Yield (document, its sha256, its split) for every document of the index but duplicates, in corpus order.

    Raises `UserError` where the corpus is no longer the one that was indexed.
    """
    remedy = f"if the corpus was meant to change: {rebuild_command(index)}"
    rows = _index_rows(index)
    row = None
    for document in _read_again(folder, column, remedy):
        row = next(rows, None)
        if row is None or row[0] != document.name:
            raise refuse("is not where the index has it", file=Path(folder) / document.name, remedy=remedy)
        if sha256_bytes(document.text.encode()) != row[1]:
            raise refuse("changed since the corpus was indexed", file=Path(folder) / document.name, remedy=remedy)
        if row[2] != DUPLICATE:
            yield document, row[1], row[2]
    if (missing := next(rows, None)) is not None:
        raise refuse("went missing since the corpus was indexed", file=Path(folder) / missing[0], remedy=remedy)


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


def _read_again(folder: str | Path, column: str, remedy: str) -> Iterator[Document]:
    """The documents of a corpus that was readable when it was indexed."""
    try:
        yield from iter_documents(folder, column)
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from error


def _index_rows(index: str | Path) -> Iterator[tuple[str, str, str]]:
    for rows in iter_table(index, "corpus", remedy=rebuild(index)):
        yield from zip(rows["document"], rows["sha256"], rows["split"], strict=True)
