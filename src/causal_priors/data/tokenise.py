"""From documents to shards: in parallel processes, resumable, with the same bytes for any number of them.

The corpus is cut into units (units.py). Processes tokenise them into parts on the disk (parts.py), in any order; here
parts are put together in corpus order as they come, and removed when the shards are complete. A call that was cut short
loses the units that were being worked on: the next one finds the other parts by their digests. Memory holds a document
of each process, not the corpus.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from causal_priors.artifacts import CHUNK, atomic_path, digest_of, sha256_file, write_json, writer_lock
from causal_priors.data.documents import corpus_files
from causal_priors.data.parts import COUNTS, has_part, part_file, write_part
from causal_priors.data.shards import CARD, DOCUMENTS, DTYPE, FILES, FORMAT, HELDOUT, TRAIN, Span, card_digest
from causal_priors.data.split import (
    DUPLICATE,
    CorpusDigest,
    changed,
    index_rows,
    index_totals,
    matched,
    part_rows,
)
from causal_priors.data.tokenizer import Tokenizer, load_tokenizer
from causal_priors.data.units import Unit, plan_units, read_unit
from causal_priors.data.windows import plan_blocks, train_lengths
from causal_priors.data.workers import spread
from causal_priors.errors import refuse
from causal_priors.progress import Progress
from causal_priors.remedies import rebuild
from causal_priors.scale import Scale
from causal_priors.tables import iter_table, table_writer

WORK = "work"
# Rows of documents.parquet are written in groups of about so many characters or documents; see `_Documents`.
_GROUP_CHARACTERS = 1 << 20
_GROUP_DOCUMENTS = 512
_GROUPS_ALIKE = 64
_COLUMNS = ("document", "split", "shard", "offset", "tokens", "sha256")
# Less text than this is not worth another process.
_BYTES_A_PROCESS = 1 << 20


@dataclass(frozen=True)
class Job:
    """A unit with its rows of the index, `rows` from `first` on, its bytes of text and the key of its part."""

    unit: Unit
    first: int
    rows: int
    size: int
    key: str


def shards_stage(
    folder: str | Path,
    index: str | Path,
    tokenizer: str | Path,
    scale: Scale,
    out: str | Path,
    *,
    column: str = "text",
    allow_repeats: bool = False,
    allow_packed_blocks: bool = False,
    threads: int = 0,
) -> None:
    """Tokenise the indexed corpus in `folder` with the tokenizer file `tokenizer` into the folder `out`.

    `threads` (0: one a core) is how many processes work at a time, and changes no byte. Raises `UserError` for a corpus
    that changed since it was indexed, one that training would repeat too often (unless `allow_repeats`), or one with
    too few evaluation blocks for any training length of `scale` (see windows.py).
    """
    model = load_tokenizer(tokenizer)
    if model.vocabulary > scale.vocabulary:
        problem = f"has {model.vocabulary} ids, scale {scale.name} has a vocabulary of {scale.vocabulary}"
        raise refuse(problem, file=tokenizer, remedy=rebuild(tokenizer))
    target = Path(out)
    lengths = train_lengths(scale)
    with writer_lock(target):
        _sweep(target)
        totals = index_totals(index)
        text = totals[TRAIN] + totals[HELDOUT]
        workers = max(1, min(threads or len(os.sched_getaffinity(0)), text // _BYTES_A_PROCESS))
        with Progress(text, "shards", "byte") as progress, ExitStack() as stack:

            def work(job: Job, report: Callable[..., None]) -> None:
                if has_part(target / WORK, job.key):
                    report(job.size, 0, True)
                else:
                    rows = index_rows(index, job.first, job.rows)
                    items = matched(read_unit(job.unit, column), rows, folder, index)
                    write_part(target / WORK, job.key, items, model, report)

            def report(size: int, tokens: int, found: bool = False) -> None:
                if found:
                    progress.found(size)
                else:
                    progress.update(size, tokens=tokens)

            jobs = plan_jobs(folder, index, column, model)
            done = stack.enter_context(closing(spread(work, jobs, workers, report)))
            made = _Shards(target, stack, 8 * lengths[0] + 1)
            for job, _ in done:
                made.add(target / WORK, job, index)
            made.end()
            train, heldout = made.writers[TRAIN], made.writers[HELDOUT]
            _check_repeats(scale, train.ids, folder, allow_repeats=allow_repeats)
            # The longest first, so that a refusal names the block length to meet.
            blocks = {
                length: plan_blocks(heldout.spans, heldout.ids, length, scale, allow_packed_blocks, folder)
                for length in reversed(lengths)
            }
            # A card of earlier shards must not vouch for the files that now take their place.
            (target / CARD).unlink(missing_ok=True)
        card: dict[str, Any] = {
            "format": FORMAT,
            "corpus": made.corpus.hexdigest(),
            "tokenizer": model.digest,
            "ids": model.vocabulary,
            "end_of_text": model.end_of_text,
            "files": {writer.path.name: writer.described() for writer in made.writers.values()}
            | {DOCUMENTS: _describe(target)},
            "splits": {
                split: {"documents": w.documents, "tokens": w.ids - w.documents} for split, w in made.writers.items()
            },
            "blocks": {
                str(length): {"available": plan.available, "wanted": plan.wanted, "packed": plan.packed}
                for length, plan in blocks.items()
            },
        }
        write_json(target / CARD, {**card, "digest": card_digest(card)})
        shutil.rmtree(target / WORK, ignore_errors=True)


def plan_jobs(folder: str | Path, index: str | Path, column: str, model: Tokenizer) -> Iterator[Job]:
    """Yield the units of the corpus with their rows of the index. Raises `UserError` where the two do not match."""
    rows = (row for part in iter_table(index, "corpus", remedy=rebuild(index)) for row in part_rows(part))
    row = next(rows, None)
    first = 0
    for unit in plan_units(corpus_files(folder).files, column):
        digest, count, size = CorpusDigest(), 0, 0
        for part in unit:
            taken = 0
            while row is not None and taken != part.documents and part.holds(row.document):
                if row.split != DUPLICATE:
                    digest.add(row.document, row.sha256, row.split)
                    size += row.bytes
                taken += 1
                row = next(rows, None)
            if taken < (1 if part.documents is None else part.documents):
                raise changed("is not where the index has it", folder, part.document(taken), index)
            count += taken
        key = digest_of({"format": FORMAT, "tokenizer": model.digest, "corpus": digest.hexdigest()})
        yield Job(unit, first, count, size, key)
        first += count
    if row is not None:
        raise changed("went missing since the corpus was indexed", folder, row.document, index)


class _Shards:
    """The files of the shards, while parts are added to them in corpus order."""

    def __init__(self, folder: Path, stack: ExitStack, shortest_block: int) -> None:
        self.writers = {split: _SplitWriter.open(folder, split, stack) for split in FILES}
        self.corpus = CorpusDigest()
        self._rows = _Rows(stack.enter_context(table_writer(folder / DOCUMENTS, "documents")))
        self._shortest_block = shortest_block

    def add(self, work: Path, job: Job, index: str | Path) -> None:
        """Add the part of `job`, which lies in the folder `work`."""
        counts = _counts(part_file(work, job.key, COUNTS))
        kept = (row for row in index_rows(index, job.first, job.rows) if row.split != DUPLICATE)
        for row, (tokens, characters) in zip(kept, counts, strict=True):
            writer = self.writers[row.split]
            self._rows.add((row.document, row.split, writer.path.name, writer.ids, tokens, row.sha256), characters)
            # Of the training split nobody asks, nor of documents that hold no block.
            if row.split == HELDOUT and tokens >= self._shortest_block:
                writer.spans.append(Span(row.document, writer.ids, tokens))
            writer.ids += tokens + 1
            writer.documents += 1
            self.corpus.add(row.document, row.sha256, row.split)
        for split, writer in self.writers.items():
            writer.write(part_file(work, job.key, split))

    def end(self) -> None:
        """Write what is left of the rows."""
        self._rows.flush()


def _counts(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (tokens, characters) of each document of a part."""
    counts_D2 = np.memmap(path, dtype="<i8", mode="r").reshape(-1, 2) if path.stat().st_size else np.empty((0, 2), int)
    for start in range(0, len(counts_D2), _GROUP_DOCUMENTS):
        yield from counts_D2[start : start + _GROUP_DOCUMENTS].tolist()


class _Rows:
    """Rows of documents.parquet on their way, written in groups that depend on the corpus alone.

    The groups grow with their number, so that a table of millions of rows has some thousand of them.
    """

    def __init__(self, append: Callable[[dict[str, list[Any]]], None]) -> None:
        self._append = append
        self._columns: dict[str, list[Any]] = {key: [] for key in _COLUMNS}
        self._rows = self._characters = self._groups = 0

    def add(self, row: tuple[str, str, str, int, int, str], characters: int) -> None:
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._rows += 1
        self._characters += characters
        growth = max(1, self._groups // _GROUPS_ALIKE)
        if self._characters >= growth * _GROUP_CHARACTERS or self._rows >= growth * _GROUP_DOCUMENTS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._append(self._columns)
            self._columns = {key: [] for key in _COLUMNS}
            self._rows = self._characters = 0
            self._groups += 1


@dataclass
class _SplitWriter:
    path: Path
    file: BinaryIO
    ids: int = 0
    documents: int = 0
    # Where held-out documents lie that may hold a block.
    spans: list[Span] = field(default_factory=list)
    sha: Any = field(default_factory=hashlib.sha256)

    @classmethod
    def open(cls, folder: Path, split: str, stack: ExitStack) -> "_SplitWriter":
        path = folder / FILES[split]
        temporary = stack.enter_context(atomic_path(path))
        return cls(path, stack.enter_context(open(temporary, "wb")))

    def write(self, part: Path) -> None:
        with open(part, "rb") as ids:
            while piece := ids.read(CHUNK):
                self.sha.update(piece)
                self.file.write(piece)

    def described(self) -> dict[str, Any]:
        return {"bytes": self.ids * DTYPE.itemsize, "sha256": self.sha.hexdigest()}


def _sweep(folder: Path) -> None:
    """Remove what a killed writer left behind; the caller holds the folder's lock."""
    for name in (*FILES.values(), DOCUMENTS, CARD):
        for temporary in folder.glob(f".{name}.*.tmp"):
            temporary.unlink(missing_ok=True)


def _describe(folder: Path) -> dict[str, Any]:
    path = folder / DOCUMENTS
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _check_repeats(scale: Scale, tokens: int, folder: str | Path, *, allow_repeats: bool) -> None:
    for name, size in scale.sizes.items():
        budget = size.steps * size.tokens_per_step
        repeats = budget / max(tokens, 1)
        if repeats > scale.max_corpus_repeats and not allow_repeats:
            problem = (
                f"is too small for scale {scale.name}: size {name} trains on {budget:,} tokens and would repeat its "
                f"{tokens:,} training tokens {repeats:.1f} times, {scale.max_corpus_repeats:g} at most"
            )
            remedy = "set corpus: to a folder with more text, or allow_repeats: true"
            raise refuse(problem, file=folder, remedy=remedy)
