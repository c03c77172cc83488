"""The evaluation tables of a study in a few small files, from which each can be made again byte for byte.

A verdict names its tables by sha256. A snapshot cannot hold a hundred parquet files, each with a header as large as its
numbers; it holds their rows together, and their metadata, in files of below a megabyte. With the version of pyarrow that
wrote them, writing a table again gives the same bytes, so whoever has the snapshot can recompute digests and verdicts.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.artifacts import atomic_path, sha256_file
from causal_priors.errors import refuse
from causal_priors.tables import SCHEMAS, read_metadata, read_table, write_table

FOLDER, LIST = "evaluations", "tables.parquet"
KIND = "evaluation"
# Rows of one file, about .7 MB, and of all: more than a repository should hold are not kept.
PIECE_ROWS, MOST_ROWS = 160_000, 700_000
_LIST_SCHEMA = pa.schema([("run", pa.string()), ("name", pa.string()), ("rows", pa.int64()), ("metadata", pa.string())])
# What the stages put into a table's metadata, in their order, which decides its bytes.
_METADATA = ("status", "card")


@dataclass(frozen=True)
class Kept:
    """One table out of a snapshot: its run, file name and rows, and what its metadata said."""

    run: str
    name: str
    frame: pd.DataFrame
    metadata: dict[str, str]


def keep_tables(files: Sequence[Path], out: Path) -> list[str]:
    """Write the rows and metadata of `files`, tables in run folders, into `out`/evaluations; list the files written.

    Nothing is written where there are none, or where they have more than 700,000 rows. Raises `UserError` for a damaged
    table.
    """
    frames = [read_table(path, KIND) for path in files]
    if not frames or sum(map(len, frames)) > MOST_ROWS:
        return []
    rows = []
    for path, frame in zip(files, frames, strict=True):
        found = read_metadata(path, KIND)
        metadata = json.dumps({key: found.get(key, "") for key in _METADATA})
        rows.append({"run": path.parent.name, "name": path.name, "rows": len(frame), "metadata": metadata})
    written = [LIST]
    _write(pa.Table.from_pylist(rows, schema=_LIST_SCHEMA), out / FOLDER / LIST)
    pieces: list[list[pd.DataFrame]] = [[]]
    for frame in frames:
        if pieces[-1] and sum(map(len, pieces[-1])) + len(frame) > PIECE_ROWS:
            pieces.append([])
        pieces[-1].append(frame)
    for number, piece in enumerate(pieces):
        table = pa.Table.from_pandas(pd.concat(piece), schema=SCHEMAS[KIND], preserve_index=False)
        written.append(_piece(number))
        _write(table.replace_schema_metadata(None), out / FOLDER / written[-1])
    return [f"{FOLDER}/{name}" for name in written]


def kept_tables(folder: Path) -> Iterator[Kept]:
    """Yield the tables that `keep_tables` wrote into the snapshot `folder`, in order; none where it keeps none.

    Raises `UserError` where a file is missing or damaged.
    """
    path = folder / FOLDER
    if not (path / LIST).is_file():
        return
    number, piece, start = 0, _read(path / _piece(0), SCHEMAS[KIND]).to_pandas(), 0
    for row in _read(path / LIST, _LIST_SCHEMA).to_pylist():
        if start == len(piece) and row["rows"]:
            number, start = number + 1, 0
            piece = _read(path / _piece(number), SCHEMAS[KIND]).to_pandas()
        end = start + (row["rows"] or 0)
        if None in row.values() or not start <= end <= len(piece):
            raise refuse("does not fit the rows beside it", file=path / LIST, key="rows", value=row["rows"])
        try:
            found = json.loads(row["metadata"])
            metadata = {key: str(found[key]) for key in _METADATA}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise refuse("is not metadata", file=path / LIST, value=row["metadata"]) from None
        yield Kept(row["run"], row["name"], piece.iloc[start:end].reset_index(drop=True), metadata)
        start = end


def write_again(kept: Kept, path: Path) -> str:
    """Write a kept table to `path` as the stage that made it did; return the sha256 of the file."""
    columns = {name: kept.frame[name].to_numpy() for name in SCHEMAS[KIND].names}
    write_table(columns, path, KIND, kept.metadata)
    return sha256_file(path)


def _piece(number: int) -> str:
    return f"rows-{number}.parquet"


def _write(table: pa.Table, path: Path) -> None:
    texts = [field.name for field in table.schema if field.name != "value"]
    with atomic_path(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=19,
            use_dictionary=texts,
            column_encoding={"value": "BYTE_STREAM_SPLIT"} if "value" in table.schema.names else None,
        )


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema, check_metadata=False):
                raise refuse("has other columns than it should", file=path)
            return file.read()
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise refuse(f"cannot be read as parquet ({problem})", file=path) from error
