"""The corpus index: one pass over all documents that checks them, leaves out repeated texts, and splits.

A text that stands twice could be trained on and scored; only its first occurrence in corpus order is kept.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from causal_priors.artifacts import writer_lock
from causal_priors.data.corpus import read_corpus_card
from causal_priors.data.documents import Document, corpus_files, iter_documents
from causal_priors.data.shards import HELDOUT, TRAIN
from causal_priors.data.split import DUPLICATE, LONG, LONG_DOCUMENTS, MOST, SHARE, hold_out
from causal_priors.errors import UserError, refuse
from causal_priors.progress import Progress, note
from causal_priors.remedies import rebuild
from causal_priors.tables import iter_table, table_writer

_ROWS = 4096
_LABELS = (TRAIN, HELDOUT, DUPLICATE)


def index_stage(
    folder: str | Path,
    index: str | Path,
    *,
    column: str = "text",
    card: str | Path | None = None,
    allow_packed_blocks: bool = False,
) -> None:
    """Read the whole corpus in `folder` once, check it, split it, and write the index.

    `card` is the default corpus's card: the documents must be the ones it lists. Raises `UserError` for anything wrong
    in the corpus, and for one from which the rule cannot hold out enough (with `allow_packed_blocks`, long documents
    are not asked for).
    """
    expected, never = read_corpus_card(card) if card else (None, frozenset())
    files = corpus_files(folder)
    if files.ignored:
        shown = ", ".join(files.ignored[:5]) + (", ..." if len(files.ignored) > 5 else "")
        note(f"{folder}: {len(files.ignored)} files of other kinds are left out: {shown}")
    target = Path(index)
    with writer_lock(target.parent), _draft_of(target) as draft:
        try:
            scan = _Scan(folder, column, draft, never)
        except UserError as error:
            if card is None:
                raise
            raise UserError(f"{error}, or {rebuild(card)}") from error
        if expected is not None:
            _check_expected(folder, str(card), draft, expected)
        labels = scan.labels(folder, need_long=not allow_packed_blocks)
        with table_writer(target, "corpus") as append:
            start = 0
            for rows in iter_table(draft, "corpus"):
                end = start + len(rows["document"])
                append({**rows, "split": [_LABELS[label] for label in labels[start:end]]})
                start = end


@contextmanager
def _draft_of(target: Path) -> Iterator[Path]:
    """Yield the one place of the draft, so that what a killed call leaves is the next call's to replace."""
    draft = target.with_name(f".{target.name}.draft")
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


class _Scan:
    """One pass over the corpus: rows go to a draft index, what the split needs stays (72 bytes a document)."""

    def __init__(self, folder: str | Path, column: str, draft: Path, never: frozenset[str]) -> None:
        self.names, self.texts, self.sizes = bytearray(), bytearray(), array("q")
        self.never: list[int] = []
        with table_writer(draft, "corpus") as append, Progress(None, "corpus", "document") as progress:
            for documents in _batched(iter_documents(folder, column)):
                data = [document.text.encode() for document in documents]
                digests = [hashlib.sha256(text) for text in data]
                self.never += [len(self.sizes) + i for i, one in enumerate(documents) if one.name in never]
                self.names += b"".join(hashlib.sha256(document.name.encode()).digest() for document in documents)
                self.texts += b"".join(digest.digest() for digest in digests)
                self.sizes.extend(map(len, data))
                rows = [document.name for document in documents]
                shas = [digest.hexdigest() for digest in digests]
                append({"document": rows, "bytes": list(map(len, data)), "sha256": shas, "split": [""] * len(rows)})
                progress.update(len(rows))

    def labels(self, folder: str | Path, *, need_long: bool) -> np.ndarray:
        """Return each document's split as a position in `_LABELS`, or refuse the corpus."""
        texts = np.frombuffer(self.texts, dtype="V32")
        _, first = np.unique(texts, return_index=True)
        labels = np.full(len(texts), _LABELS.index(DUPLICATE), dtype=np.int8)
        labels[first] = _LABELS.index(TRAIN)
        if len(first) < len(texts):
            note(f"{folder}: {len(texts) - len(first)} documents repeat an earlier text and are left out")
        kept = np.sort(first)
        place = {int(position): i for i, position in enumerate(kept)} if self.never else {}
        never = [place[position] for position in self.never if position in place]
        sizes = np.frombuffer(self.sizes, dtype=np.int64)[kept].tolist()
        names = [bytes(self.names[32 * i : 32 * i + 32]) for i in kept]
        chosen = hold_out(names, sizes, never, need_long=need_long)
        _check_split(folder, sizes, chosen, need_long=need_long)
        labels[kept[chosen]] = _LABELS.index(HELDOUT)
        return labels


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


def _check_split(folder: str | Path, sizes: Sequence[int], chosen: Sequence[int], *, need_long: bool) -> None:
    held, total = sum(sizes[position] for position in chosen), sum(sizes)
    long = sum(sizes[position] >= LONG for position in chosen)
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


def _check_expected(folder: str | Path, card: str, draft: Path, expected: dict[str, str]) -> None:
    found: dict[str, str] = {}
    for rows in iter_table(draft, "corpus"):
        found.update(zip(rows["document"], rows["sha256"], strict=True))
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        remedy = rebuild(card)
        raise refuse("is missing, damaged or not of the corpus", file=Path(folder) / wrong[0], remedy=remedy)
