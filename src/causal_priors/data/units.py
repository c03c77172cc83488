"""A corpus cut into units of work: whole small files in a row, or some row groups of a parquet file.

Units are read in any order, by any process; put together in their order, their documents are the corpus in its order.
Where it is cut decides no byte of what is made of it: only how much can be worked on at a time, and how much is lost
when that is cut short. Only parquet can be cut without being read; a .jsonl file is always one unit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.data.documents import Document, read_file

# Bytes of text of a unit: enough units to keep many processes busy, none so small that starting on it costs more.
_SMALLEST, _LARGEST, _UNITS = 1 << 20, 1 << 26, 64


@dataclass(frozen=True)
class Slice:
    """A corpus file, or the row groups `groups` of it with the number of rows before them.

    documents: how many it holds; None where only reading it can tell. size: bytes of its text, as far as is known.
    """

    name: str
    path: Path
    size: int
    documents: int | None = None
    groups: range | None = None
    rows_before: int = 0

    def holds(self, document: str) -> bool:
        """Whether the file is the one that `document` is named after."""
        return document == self.name or document.rpartition("#")[0] == self.name

    def joined(self, after: "Slice") -> "Slice | None":
        """Return both as one, where `after` holds the row groups that follow in the same file."""
        if not self.groups or not after.groups or self.path != after.path or self.groups.stop != after.groups.start:
            return None
        documents = (self.documents or 0) + (after.documents or 0)
        groups = range(self.groups.start, after.groups.stop)
        return replace(self, size=self.size + after.size, documents=documents, groups=groups)

    def document(self, number: int) -> str:
        """The name of its document `number`, from 0 on."""
        return self.name if self.name.lower().endswith(".txt") else f"{self.name}#{self.rows_before + number + 1}"


Unit = tuple[Slice, ...]


def plan_units(files: Sequence[tuple[str, Path]], column: str) -> list[Unit]:
    """Return the units of the corpus files in order."""
    slices = [part for name, path in files for part in _slices(name, path, column)]
    wanted = min(max(sum(part.size for part in slices) // _UNITS, _SMALLEST), _LARGEST)
    units: list[Unit] = []
    begun: list[Slice] = []
    for part in slices:
        if begun and (joined := begun[-1].joined(part)):
            begun[-1] = joined
        else:
            begun.append(part)
        if unit_size(begun) >= wanted:
            units.append(tuple(begun))
            begun = []
    return [*units, tuple(begun)] if begun else units


def unit_size(unit: Sequence[Slice]) -> int:
    """Return the bytes of text in `unit`, as far as they are known before reading."""
    return sum(part.size for part in unit)


def read_unit(unit: Unit, column: str) -> Iterator[Document]:
    """Yield the documents of `unit` in order. Raises `UserError` as `iter_documents` does."""
    for part in unit:
        yield from read_file(part.name, part.path, column, part.groups, part.rows_before)


def _slices(name: str, path: Path, column: str) -> list[Slice]:
    try:
        if name.lower().endswith(".parquet"):
            return _row_groups(name, path, column)
        return [Slice(name, path, path.stat().st_size, 1 if name.lower().endswith(".txt") else None)]
    except (pa.ArrowException, OSError, ValueError):
        # Whoever reads it says what is wrong with it, when its turn comes.
        return [Slice(name, path, 0)]


def _row_groups(name: str, path: Path, column: str) -> list[Slice]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        metadata = file.metadata
    found, rows = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        sizes = {c.path_in_schema: c.total_uncompressed_size for c in map(group.column, range(group.num_columns))}
        size = sizes.get(column, group.total_byte_size)
        found.append(Slice(name, path, size, group.num_rows, range(number, number + 1), rows))
        rows += group.num_rows
    return found if rows else [Slice(name, path, 0)]
