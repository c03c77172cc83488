"""From documents to shards: one streaming pass, in parallel, with the same bytes for any number of threads.

Documents are grouped into jobs of about a megabyte; some jobs are under way at a time (tiktoken lets other threads run)
and their results are taken in corpus order. Memory does not grow with the corpus.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from causal_priors.artifacts import atomic_path, sha256_file, write_json, writer_lock
from causal_priors.data.documents import Document
from causal_priors.data.shards import CARD, DOCUMENTS, DTYPE, FILES, FORMAT, HELDOUT, TRAIN, Span, card_digest
from causal_priors.data.split import CorpusDigest, index_totals, indexed_documents
from causal_priors.data.tokenizer import Tokenizer, load_tokenizer
from causal_priors.data.windows import plan_blocks, train_lengths
from causal_priors.errors import refuse
from causal_priors.progress import Progress
from causal_priors.remedies import rebuild
from causal_priors.scale import Scale
from causal_priors.tables import table_writer

_JOB_CHARACTERS = 1 << 20
_JOB_DOCUMENTS = 512

Item = tuple[Document, str, str]


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

    `threads` (0: one a core) changes no byte. Raises `UserError` for a corpus that changed since it was indexed, one
    that training would repeat too often (unless `allow_repeats`), or one with too few evaluation blocks for any
    training length of `scale` (see windows.py).
    """
    model = load_tokenizer(tokenizer)
    if model.vocabulary > scale.vocabulary:
        problem = f"has {model.vocabulary} ids, scale {scale.name} has a vocabulary of {scale.vocabulary}"
        raise refuse(problem, file=tokenizer, remedy=rebuild(tokenizer))
    target = Path(out)
    with writer_lock(target):
        _sweep(target)
        corpus, totals = CorpusDigest(), index_totals(index)
        with Progress(totals[TRAIN] + totals[HELDOUT], "shards", "byte") as progress, ExitStack() as stack:
            writers = {split: _SplitWriter.open(target, split, stack) for split in FILES}
            append = stack.enter_context(table_writer(target / DOCUMENTS, "documents"))
            items = indexed_documents(folder, index, column)
            for job, ids in _in_order(items, lambda job: [model.encode(d.text) for d, _, _ in job], threads):
                append(_write_job(job, ids, writers, model))
                for document, sha256, split in job:
                    corpus.add(document.name, sha256, split)
                    progress.update(len(document.text.encode()))
                progress.update(0, tokens=sum(map(len, ids)))
            _check_repeats(scale, writers[TRAIN].ids, folder, allow_repeats=allow_repeats)
            heldout = writers[HELDOUT]
            # The longest first, so that a refusal names the block length to meet.
            blocks = {
                length: plan_blocks(heldout.spans, heldout.ids, length, scale, allow_packed_blocks, folder)
                for length in reversed(train_lengths(scale))
            }
            # A card of earlier shards must not vouch for the files that now take their place.
            (target / CARD).unlink(missing_ok=True)
        card: dict[str, Any] = {
            "format": FORMAT,
            "corpus": corpus.hexdigest(),
            "tokenizer": model.digest,
            "ids": model.vocabulary,
            "end_of_text": model.end_of_text,
            "files": {writer.path.name: writer.described() for writer in writers.values()}
            | {DOCUMENTS: _describe(target)},
            "splits": {
                split: {"documents": w.documents, "tokens": w.ids - w.documents} for split, w in writers.items()
            },
            "blocks": {
                str(length): {"available": plan.available, "wanted": plan.wanted, "packed": plan.packed}
                for length, plan in blocks.items()
            },
        }
        write_json(target / CARD, {**card, "digest": card_digest(card)})


@dataclass
class _SplitWriter:
    path: Path
    file: BinaryIO
    ids: int = 0
    documents: int = 0
    # Where held-out documents lie; a training split may have millions, and nobody asks.
    spans: list[Span] = field(default_factory=list)
    sha: Any = field(default_factory=hashlib.sha256)

    @classmethod
    def open(cls, folder: Path, split: str, stack: ExitStack) -> "_SplitWriter":
        path = folder / FILES[split]
        temporary = stack.enter_context(atomic_path(path))
        return cls(path, stack.enter_context(open(temporary, "wb")))

    def write(self, ids: np.ndarray) -> None:
        data = ids.astype(DTYPE).tobytes()
        self.sha.update(data)
        self.file.write(data)
        self.ids += len(ids)

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


def _write_job(
    job: list[Item], ids: list[np.ndarray], writers: dict[str, _SplitWriter], model: Tokenizer
) -> dict[str, list[Any]]:
    """Append the job's ids to the splits' files; return the rows of `documents.parquet`."""
    rows: dict[str, list[Any]] = {key: [] for key in ("document", "split", "shard", "offset", "tokens", "sha256")}
    end = np.array([model.end_of_text])
    for (document, sha256, split), part in zip(job, ids, strict=True):
        if int(part.max()) >= model.end_of_text:
            raise ValueError(f"{document.name}: id {part.max()} is outside the {model.end_of_text} ids of text")
        writer = writers[split]
        if split == HELDOUT:
            writer.spans.append(Span(document.name, writer.ids, len(part)))
        for key, value in zip(
            rows, (document.name, split, writer.path.name, writer.ids, len(part), sha256), strict=True
        ):
            rows[key].append(value)
        writer.write(part)
        writer.write(end)
        writer.documents += 1
    return rows


def _in_order(
    items: Iterable[Item], work: Callable[[list[Item]], list[np.ndarray]], threads: int
) -> Iterator[tuple[list[Item], list[np.ndarray]]]:
    """Yield (job, its result) in order, with a bounded number of jobs under way."""
    workers = threads or len(os.sched_getaffinity(0))
    pending: deque[tuple[list[Item], Future[list[np.ndarray]]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for job in _jobs(items):
            pending.append((job, pool.submit(work, job)))
            if len(pending) > 2 * workers:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()


def _jobs(items: Iterable[Item]) -> Iterator[list[Item]]:
    job: list[Item] = []
    size = 0
    for item in items:
        job.append(item)
        size += len(item[0].text)
        if size >= _JOB_CHARACTERS or len(job) == _JOB_DOCUMENTS:
            yield job
            job, size = [], 0
    if job:
        yield job


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
