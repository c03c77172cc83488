"""The corpus index: one pass over all documents that checks them, leaves out repeated texts, and splits.

A text that stands twice could be trained on and scored; only its first occurrence in corpus order is kept. Units of the
corpus are read in parallel; of each document its name, size and digest are kept on the disk, and 72 bytes in memory.
"""

import hashlib
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.artifacts import writer_lock
from causal_priors.data.corpus import read_corpus_card
from causal_priors.data.documents import Document, corpus_files
from causal_priors.data.shards import HELDOUT, TRAIN
from causal_priors.data.split import DUPLICATE, LONG, LONG_DOCUMENTS, MOST, SHARE, hold_out, order_of, words_of
from causal_priors.data.units import Unit, plan_units, read_unit, unit_size
from causal_priors.data.workers import spread
from causal_priors.errors import UserError, refuse
from causal_priors.progress import Progress, note
from causal_priors.remedies import rebuild
from causal_priors.tables import SCHEMAS, table_writer

_ROWS = 4096
_LABELS = (TRAIN, HELDOUT, DUPLICATE)
# Less text than this is not worth another process.
_BYTES_A_PROCESS = 1 << 24

Columns = dict[str, list[Any]]


def index_stage(
    folder: str | Path,
    index: str | Path,
    *,
    column: str = "text",
    card: str | Path | None = None,
    allow_packed_blocks: bool = False,
    threads: int = 0,
) -> None:
    """Read the whole corpus in `folder` once, check it, split it, and write the index.

    `card` is the default corpus's card: the documents must be the ones it lists. `threads` (0: one a core) is how many
    processes read at a time, and changes no byte. Raises `UserError` for anything wrong in the corpus, and for one from
    which the rule cannot hold out enough (with `allow_packed_blocks`, long documents are not asked for).
    """
    expected, never = read_corpus_card(card) if card else (None, frozenset())
    files = corpus_files(folder)
    if files.ignored:
        shown = ", ".join(files.ignored[:5]) + (", ..." if len(files.ignored) > 5 else "")
        note(f"{folder}: {len(files.ignored)} files of other kinds are left out: {shown}")
    target = Path(index)
    units = plan_units(files.files, column)
    with writer_lock(target.parent), _drafts_of(target) as drafts:
        try:
            scan = _Scan(units, column, drafts, never, threads)
        except UserError as error:
            if card is None:
                raise
            raise UserError(f"{error}, or {rebuild(card)}") from error
        if expected is not None:
            _check_expected(folder, str(card), scan.rows(), expected)
        labels = scan.labels(folder, need_long=not allow_packed_blocks)
        with table_writer(target, "corpus") as append:
            start = 0
            for rows in _regrouped(scan.rows()):
                end = start + len(rows["document"])
                append({**rows, "split": [_LABELS[label] for label in labels[start:end]]})
                start = end


@contextmanager
def _drafts_of(target: Path) -> Iterator[Path]:
    """Yield the one folder of drafts, so that what a killed call leaves is the next call's to replace."""
    drafts = target.with_name(f".{target.name}.draft")
    shutil.rmtree(drafts, ignore_errors=True)
    try:
        yield drafts
    finally:
        shutil.rmtree(drafts, ignore_errors=True)


class _Scan:
    """One pass over the corpus: rows go to a draft index a unit, what the split needs stays."""

    def __init__(self, units: Sequence[Unit], column: str, drafts: Path, never: frozenset[str], threads: int) -> None:
        self.names, self.texts, self.sizes = bytearray(), bytearray(), array("q")
        self.never: list[int] = []
        self._drafts = [drafts / f"{number}.parquet" for number in range(len(units))]
        total = sum(map(unit_size, units))
        workers = max(1, min(threads or len(os.sched_getaffinity(0)), total // _BYTES_A_PROCESS))

        def work(number: int, report: Callable[[int], None]) -> None:
            _write_draft(self._drafts[number], read_unit(units[number], column))
            report(unit_size(units[number]))

        with (
            Progress(total, "corpus", "byte") as progress,
            closing(spread(work, range(len(units)), workers, progress.update)) as done,
        ):
            for number, _ in done:
                for rows in _read_draft(self._drafts[number]):
                    self._keep(rows, never)

    def _keep(self, rows: Columns, never: frozenset[str]) -> None:
        start = len(self.sizes)
        self.never += [start + i for i, name in enumerate(rows["document"]) if name in never]
        self.names += b"".join(hashlib.sha256(name.encode()).digest() for name in rows["document"])
        self.texts += b"".join(map(bytes.fromhex, rows["sha256"]))
        self.sizes.extend(rows["bytes"])

    def rows(self) -> Iterator[Columns]:
        """Yield the rows of all documents, still without their splits."""
        for draft in self._drafts:
            yield from _read_draft(draft)

    def labels(self, folder: str | Path, *, need_long: bool) -> np.ndarray:
        """Return each document's split as a position in `_LABELS`, or refuse the corpus."""
        texts = np.frombuffer(self.texts, dtype="S32")
        first = _first_of_each(texts)
        labels = np.where(first, _LABELS.index(TRAIN), _LABELS.index(DUPLICATE)).astype(np.int8)
        kept = np.flatnonzero(first)
        if len(kept) < len(texts):
            note(f"{folder}: {len(texts) - len(kept)} documents repeat an earlier text and are left out")
        never = np.searchsorted(kept, [position for position in self.never if first[position]]).tolist()
        sizes = np.frombuffer(self.sizes, dtype=np.int64)[kept]
        names = np.frombuffer(self.names, dtype="S32")[kept]
        chosen = hold_out(names, sizes, never, need_long=need_long)
        _check_split(folder, sizes, chosen, need_long=need_long)
        labels[kept[chosen]] = _LABELS.index(HELDOUT)
        return labels


def _first_of_each(digests: np.ndarray) -> np.ndarray:
    """Return for each of `digests` whether it is the first of its value."""
    order = order_of(digests)
    words_N4 = words_of(digests)
    repeats = np.ones(max(len(order) - 1, 0), dtype=bool)
    for word in range(4):
        ordered = words_N4[order, word]
        repeats &= ordered[1:] == ordered[:-1]
    first = np.ones(len(order), dtype=bool)
    first[order[1:][repeats]] = False
    return first


def _write_draft(draft: Path, documents: Iterable[Document]) -> None:
    """Write the rows of `documents`. A draft is read by this call alone: it needs no digest, and no flush to the disk."""
    schema = SCHEMAS["corpus"]
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(draft, schema) as writer:
            for batch in _batched(documents):
                data = [document.text.encode() for document in batch]
                names = [document.name for document in batch]
                digests = [hashlib.sha256(text).hexdigest() for text in data]
                columns = (names, list(map(len, data)), digests, [""] * len(batch))
                writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema))
    except OSError as error:
        raise refuse(f"cannot be written ({error.strerror or error})", file=draft, remedy="free some space") from error


def _read_draft(draft: Path) -> Iterator[Columns]:
    with pq.ParquetFile(draft, pre_buffer=False) as file:
        for rows in file.iter_batches(_ROWS, use_threads=False):
            yield rows.to_pydict()


def _batched(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if len(batch) == _ROWS or size > 8 << 20:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _regrouped(parts: Iterable[Columns]) -> Iterator[Columns]:
    """Yield the same rows in groups of `_ROWS`, so that the units leave no trace in the index."""
    held: Columns = {}
    for rows in parts:
        held = {name: held.get(name, []) + values for name, values in rows.items()}
        while len(held["document"]) >= _ROWS:
            yield {name: values[:_ROWS] for name, values in held.items()}
            held = {name: values[_ROWS:] for name, values in held.items()}
    if held and held["document"]:
        yield held


def _check_split(folder: str | Path, sizes: np.ndarray, chosen: Sequence[int], *, need_long: bool) -> None:
    held, total = int(sizes[chosen].sum()), int(sizes.sum())
    long = int((sizes[chosen] >= LONG).sum())
    if held < SHARE * total or held > MOST * total or (need_long and long < LONG_DOCUMENTS):
        wanted = f"{SHARE:.0%} of the text" + (
            f" with {LONG_DOCUMENTS} documents of {LONG:,} bytes or more" if need_long else ""
        )
        remedy = "add documents (one a file or row; one above 15% of the corpus is never held out)" + (
            ", or set allow_packed_blocks: true to do without long documents" if need_long else ""
        )
        raise refuse(
            f"is too small or too uneven to hold out {wanted} (found {held:,} of {total:,} bytes in {len(chosen)} "
            f"of {len(sizes)} documents, {long} long ones)",
            file=folder,
            remedy=remedy,
        )


def _check_expected(folder: str | Path, card: str, parts: Iterable[Columns], expected: dict[str, str]) -> None:
    found: dict[str, str] = {}
    for rows in parts:
        found.update(zip(rows["document"], rows["sha256"], strict=True))
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        remedy = rebuild(card)
        raise refuse("is missing, damaged or not of the corpus", file=Path(folder) / wrong[0], remedy=remedy)
