"""Parts: one unit's ids on the disk, so that a tokenisation that is cut short goes on where it was.

A part is `KEY.train` and `KEY.heldout` (little-endian uint16 ids, each document followed by end-of-text), `KEY.counts`
(int64 [documents, 2]: tokens and characters of each) and `KEY.json`, written last, with size and sha256 of the three.
KEY is a digest of all that decides them: tokenizer, texts and split. So a part needs no other check than that it is
whole, whoever wrote it and wherever the corpus was cut that time.
"""

from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from causal_priors.artifacts import read_json, sha256_file, write_json
from causal_priors.data.documents import Document
from causal_priors.data.shards import DTYPE, FORMAT, HELDOUT, TRAIN
from causal_priors.data.tokenizer import Tokenizer
from causal_priors.errors import UserError, refuse

COUNTS = "counts"
_FILES = (TRAIN, HELDOUT, COUNTS)
_REPORT_BYTES = 1 << 20

Item = tuple[Document, str, str]


def part_file(folder: Path, key: str, name: str) -> Path:
    """Return the path of a part's file called `name`: "train", "heldout" or "counts"."""
    return folder / f"{key}.{name}"


def has_part(folder: Path, key: str) -> bool:
    """Whether the part `key` is there, whole."""
    try:
        files = read_json(folder / f"{key}.json")["files"]
        return all(
            part_file(folder, key, name).stat().st_size == files[name]["bytes"]
            and sha256_file(part_file(folder, key, name)) == files[name]["sha256"]
            for name in _FILES
        )
    except (UserError, OSError, KeyError, TypeError):
        return False


def write_part(
    folder: Path, key: str, items: Iterable[Item], model: Tokenizer, report: Callable[[int, int], None]
) -> None:
    """Tokenise `items` (document, sha256, split) into the part `key`, whole or not at all.

    `report` is told of bytes and tokens that are done. Raises `UserError`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            files = {name: _Hashed(stack.enter_context(open(part_file(folder, key, name), "wb"))) for name in _FILES}
            _write_items(files, items, model, report)
        write_json(
            folder / f"{key}.json", {"format": FORMAT, "files": {n: file.described() for n, file in files.items()}}
        )
    except BaseException as error:
        for name in _FILES:
            part_file(folder, key, name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            remedy = "free some space or make the folder writable; what is finished is kept, the same command goes on"
            raise refuse(f"cannot be written ({error.strerror or error})", file=folder, remedy=remedy) from error
        raise


def _write_items(
    files: dict[str, "_Hashed"], items: Iterable[Item], model: Tokenizer, report: Callable[[int, int], None]
) -> None:
    end = np.array([model.end_of_text], dtype=DTYPE).tobytes()
    size = tokens = 0
    for document, _, split in items:
        ids = model.encode(document.text)
        if int(ids.max()) >= model.end_of_text:
            raise ValueError(f"{document.name}: id {ids.max()} is outside the {model.end_of_text} ids of text")
        files[split].write(ids.astype(DTYPE).tobytes() + end)
        files[COUNTS].write(array("q", [len(ids), len(document.text)]).tobytes())
        size += len(document.text.encode())
        tokens += len(ids)
        if size >= _REPORT_BYTES:
            report(size, tokens)
            size = tokens = 0
    report(size, tokens)


class _Hashed:
    """A file being written, with the sha256 of what is in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha, self._bytes = file, sha256(), 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._bytes += len(data)

    def described(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "sha256": self._sha.hexdigest()}
