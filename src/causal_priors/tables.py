"""The project's parquet kinds: one tidy schema each, with a version, documented here and nowhere else.

`write_table` puts the kind and version into the file's metadata; `read_table` refuses a file of another kind, another
version or with other columns. What is unusual: the metadata also hold the sha256 of the file itself, taken while a
placeholder stood where it stands, so that no reader takes a file with a changed byte. Nothing here imports torch.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.artifacts import atomic_path
from causal_priors.errors import refuse
from causal_priors.remedies import rebuild

if TYPE_CHECKING:
    # pandas takes .4 s to import: only readers of whole tables pay for it.
    import pandas as pd

VERSION = "2"
_SHA256, _PLACEHOLDER = "sha256", b"-" * 64

_text, _i8, _i16, _i32, _i64, _f64 = (
    pa.string(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float64(),
)

SCHEMAS: dict[str, pa.Schema] = {
    # One row per measured quantity of one checkpoint.
    #   stage        "evaluate" (float32), "intervene" (before and after a bias edit) or "control" (of those edits)
    #   dtype        arithmetic of the forward pass: "float32" | "float64" | "bfloat16"
    #   variant      "plain" | "yarn" | "yarn-code" | "cap" | "repair"; in "control" those of control.py
    #   quantity     "loss" (nats per target, mean over the `count` targets of one window and position bin)
    #                "far_mass" (share of attention at distance >= far_window, mean over the last far_window queries,
    #                            all heads and layers, of one window; count = heads x layers x far_window)
    #                "far_mass_head" (the same per layer and head, mean over all windows; block = window = -1)
    #                "exponent" (per layer and head; length = 0)
    #   length       window length n in tokens; the block of 8L + 1 tokens is cut into 8L / n windows
    #   bin          0..3: target positions 1..L, L+1..2L, 2L+1..4L, 4L+1..8L; -1 where it does not apply
    #   block, window, layer, head, far_window: -1 where they do not apply
    "evaluation": pa.schema(
        [
            ("run", _text),
            ("size", _text),
            ("arm", _text),
            ("train_length", _i32),
            ("seed", _i16),
            ("stage", _text),
            ("dtype", _text),
            ("variant", _text),
            ("quantity", _text),
            ("length", _i32),
            ("block", _i32),
            ("window", _i32),
            ("bin", _i8),
            ("far_window", _i32),
            ("layer", _i16),
            ("head", _i16),
            ("value", _f64),
            ("count", _i64),
        ]
    ),
    # One row per training step; loss in nats per target before the step's update, grad_norm before clipping.
    "losses": pa.schema([("step", _i32), ("loss", _f64), ("lr", _f64), ("grad_norm", _f64)]),
    # Positional parameters over training: one row per logged step, layer and head (or plane).
    #   quantity     the key of LogPrior.parameters_report(), e.g. "exponent", "slope"
    "positions": pa.schema([("step", _i32), ("layer", _i16), ("head", _i16), ("quantity", _text), ("value", _f64)]),
    # One row per document of a corpus, in corpus order (file by file, row by row).
    #   bytes, sha256  of the document's cleaned UTF-8 text
    #   split          "train" | "heldout" | "duplicate" (the same text stands earlier; left out)
    "corpus": pa.schema([("document", _text), ("bytes", _i64), ("sha256", _text), ("split", _text)]),
    # One row per document of a tokenised split, in shard order. offset and tokens count tokens; sha256 is that of the
    # document's cleaned UTF-8 text.
    "documents": pa.schema(
        [
            ("document", _text),
            ("split", _text),
            ("shard", _text),
            ("offset", _i64),
            ("tokens", _i64),
            ("sha256", _text),
        ]
    ),
    # One row per quantity that experiment 0006 measured on one model (goat/). `test` and `task` say on what:
    #   test         "copy" (mixtures of copies; task "mixture" | "two-back"), "retrieval" and "retrieval-longer" (task
    #                "passkey" | "needle"), "sink" (task "text", held-out windows)
    #   quantity     copy: "loss", expected nats a target under the process given each context; "regret", the same above
    #                the best predictor's; "prior_key" u(j), "prior_lag" K(d), "prior_total" and "prior_probability" of
    #                the last row, index = j or d
    #                retrieval: "log_probability" of the whole answer in nats, "correct" (1: greedy decoding gives it),
    #                "far_mass" (at distance >= L / 8, last L / 8 queries, of the same windows)
    #                sink: "mass" on key 0, "margin" of key 0 (ln p0 / (1 - p0) + ln(i), i keys beside it),
    #                "prior_margin" the same of the log-prior alone; "bound_slack", smallest distance of p0 in nats to the
    #                ends of what the content's range allows; last L / 8 queries
    #                all: "training_loss" (index = step; mean over the steps since the row before)
    #   length       window length n in tokens; depth: share of the haystack before the item; -1 where it does not apply
    #   layer, head, index: -1 where they do not apply or the value is a mean over them; count: what the mean is over
    "probes": pa.schema(
        [
            ("arm", _text),
            ("seed", _i16),
            ("test", _text),
            ("task", _text),
            ("quantity", _text),
            ("length", _i32),
            ("depth", _f64),
            ("layer", _i16),
            ("head", _i16),
            ("index", _i32),
            ("value", _f64),
            ("count", _i64),
        ]
    ),
    # One row per registered test: the flat form of verdicts.json, whose nested values are JSON text here.
    #   verdict      "holds" | "fails" | "triggered" | "not triggered" | "not evaluated"
    #   threshold    null where a rule has several; `thresholds` has all by name
    #   margin       distance to the holding side, in `unit`; null where not evaluated
    #   n            observed comparisons; chance_level: share of [0, 1], null where nothing is exchangeable
    "verdicts": pa.schema(
        [
            ("test_id", _text),
            ("experiment", _text),
            ("title", _text),
            ("scale", _text),
            ("scale_status", _text),
            ("claim", _text),
            ("rule", _text),
            ("metric", _text),
            ("unit", _text),
            ("threshold", _f64),
            ("thresholds", _text),
            ("verdict", _text),
            ("reason", _text),
            ("margin", _f64),
            ("n", _i32),
            ("chance_level", _f64),
            ("chance_note", _text),
            ("expected_outcome", _text),
            ("source_outcome", _text),
            ("selection", _text),
            ("observed", _text),
            ("beside", _text),
            ("exploratory", _text),
            ("assumptions", _text),
            ("notes", _text),
            ("amendments", _text),
            ("inputs", _text),
            ("seal_digest", _text),
            ("scale_digest", _text),
        ]
    ),
}


def write_table(
    rows: "pd.DataFrame | Mapping[str, Any]", path: str | Path, kind: str, metadata: dict[str, str] | None = None
) -> None:
    """Write a parquet file of `kind`, whole or not at all, with the kind's column order and types.

    `rows` is a data frame, or a mapping from each column's name to its values.
    """
    schema = SCHEMAS[kind]
    if isinstance(rows, Mapping):
        table = pa.Table.from_arrays([_array(rows[field.name], field.type) for field in schema], schema=schema)
    else:
        table = pa.Table.from_pandas(rows[schema.names], schema=schema, preserve_index=False)
    with _writer(path, schema, {"kind": kind, "version": VERSION, **(metadata or {})}) as writer:
        writer.write_table(table.replace_schema_metadata(writer.schema.metadata))


@contextmanager
def _writer(path: str | Path, schema: pa.Schema, stamp: dict[str, str]) -> Iterator[Any]:
    """Yield a parquet writer with the metadata `stamp`; when its file is complete, put the file's sha256 into it."""
    with atomic_path(path) as temporary:
        with pq.ParquetWriter(temporary, schema.with_metadata(stamp), compression="zstd") as writer:
            yield writer
            writer.add_key_value_metadata({_SHA256: _PLACEHOLDER.decode()})
        with pa.memory_map(str(temporary), "r+") as file:
            digest, place = _digest_around(file.read_buffer(), _PLACEHOLDER)
            file.seek(place)
            file.write(digest)


def _digest_around(buffer: pa.Buffer, mark: bytes) -> tuple[bytes, int]:
    """Return the sha256 of a file as it was with the placeholder where its last `mark` stands, and that place."""
    data = memoryview(buffer)
    # The metadata stand at a file's end.
    near = max(0, len(data) - (1 << 20))
    place = near + bytes(data[near:]).rindex(mark)
    digest = hashlib.sha256(data[:place])
    digest.update(_PLACEHOLDER)
    digest.update(data[place + len(mark) :])
    return digest.hexdigest().encode(), place


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Column of `values`, none missing. `pa.array` would import pandas, only to ask whether `values` is its series."""
    if pa.types.is_string(kind):
        texts = [text.encode() for text in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)))
    numbers = np.array(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def read_table(path: str | Path, kind: str, remedy: str = "") -> "pd.DataFrame":
    """Return a parquet file of `kind` as a data frame.

    Raises `UserError` where the file is missing, damaged, of another kind or version, or has other columns.
    """
    with _opened(path, kind, remedy) as file:
        frame: pd.DataFrame = file.read().to_pandas()
    return frame


@contextmanager
def _opened(path: str | Path, kind: str, remedy: str) -> Iterator[Any]:
    """Yield a parquet file of `kind` after checking its digest, kind and columns. Raises `UserError`."""
    remedy = remedy or rebuild(path)
    try:
        # What is checked is what is read.
        with pa.memory_map(str(path)) as source:
            buffer = source.read_buffer()
            with pq.ParquetFile(pa.BufferReader(buffer)) as file:
                _check_digest(file.metadata.metadata or {}, buffer, path, kind, remedy)
                if not file.schema_arrow.equals(SCHEMAS[kind], check_metadata=False):
                    raise refuse(f"has other columns than a table of {kind}", file=path, remedy=remedy)
                yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise refuse(f"cannot be read as parquet ({problem})", file=path, remedy=remedy) from error


def _check_digest(stamp: dict[bytes, bytes], buffer: pa.Buffer, path: str | Path, kind: str, remedy: str) -> None:
    if (stamp.get(b"kind"), stamp.get(b"version")) != (kind.encode(), VERSION.encode()):
        name, version = (stamp.get(key, b"nothing").decode(errors="replace") for key in (b"kind", b"version"))
        raise refuse(f"holds {name} version {version}, not {kind} version {VERSION}", file=path, remedy=remedy)
    found = stamp.get(_SHA256.encode(), b"")
    if not found or found != _digest_around(buffer, found)[0]:
        raise refuse("is damaged (its sha256 is not the one it was written with)", file=path, remedy=remedy)


@contextmanager
def table_writer(path: str | Path, kind: str) -> Iterator[Callable[[Mapping[str, Sequence[Any]]], None]]:
    """Yield a function that appends rows, given as columns, to a parquet file of `kind` that need not fit in memory.

    The file appears at `path` when the block ends without an exception.
    """
    with _writer(path, SCHEMAS[kind], {"kind": kind, "version": VERSION}) as writer:
        schema = writer.schema

        def append(columns: Mapping[str, Sequence[Any]]) -> None:
            arrays = [pa.array(columns[field.name], type=field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield append


def iter_table(path: str | Path, kind: str, remedy: str = "") -> Iterator[dict[str, list[Any]]]:
    """Yield a parquet file of `kind` in order, some thousand rows at a time, as columns of Python values.

    Raises `UserError` as `read_table` does.
    """
    with _opened(path, kind, remedy) as file:
        for batch in file.iter_batches(batch_size=4096):
            yield batch.to_pydict()


def read_metadata(path: str | Path, kind: str, remedy: str = "") -> dict[str, str]:
    """Return the metadata of a parquet file of `kind` as text. Raises `UserError` as `read_table` does."""
    with _opened(path, kind, remedy) as file:
        return {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
