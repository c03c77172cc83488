"""Shards: a tokenised corpus as flat files that a training run maps into memory.

`train.bin` and `heldout.bin` are little-endian uint16 ids, each document followed by end-of-text; `documents.parquet`
(kind "documents") says where each document lies; `card.json`, written last, holds sizes and digests of all three and
one of its own. `open_shards` checks all of it before anything is used. Written by tokenise.py.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from causal_priors.artifacts import digest_of, read_json, sha256_file
from causal_priors.errors import UserError, refuse
from causal_priors.remedies import rebuild
from causal_priors.tables import iter_table

TRAIN, HELDOUT = "train", "heldout"
FORMAT = 1
CARD, DOCUMENTS = "card.json", "documents.parquet"
FILES = {TRAIN: "train.bin", HELDOUT: "heldout.bin"}
DTYPE = np.dtype("<u2")


@dataclass(frozen=True)
class Shards:
    """Verified shards: ids of both splits, uint16 [ids of the split], read from the disk as needed, and the card."""

    folder: Path
    train: np.ndarray
    heldout: np.ndarray
    card: dict[str, Any]

    @property
    def end_of_text(self) -> int:
        """Id of end-of-text."""
        return int(self.card["end_of_text"])


@dataclass(frozen=True)
class Span:
    """One document in a split: its name, its first id's place in the split's file, its length in tokens."""

    document: str
    offset: int
    tokens: int


def open_shards(folder: str | Path) -> Shards:
    """Return the shards in `folder` after checking size and sha256 of each file.

    Raises `UserError` naming the file that is missing, damaged or of another making, and the command that rebuilds it.
    """
    path = Path(folder)
    card = _read_card(path)
    for name in (*FILES.values(), DOCUMENTS):
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            raise _damaged(path / name, f"cannot be read ({error.strerror})", path) from error
        if size != card["files"][name]["bytes"]:
            raise _damaged(path / name, f"has {size} bytes, not {card['files'][name]['bytes']}", path)
        if name != DOCUMENTS and (size == 0 or size % DTYPE.itemsize):
            raise _damaged(path / name, f"has {size} bytes, which are no whole ids", path)
        if sha256_file(path / name) != card["files"][name]["sha256"]:
            raise _damaged(path / name, "is damaged (its sha256 differs from the card's)", path)
    train, heldout = (np.memmap(path / FILES[split], dtype=DTYPE, mode="r") for split in (TRAIN, HELDOUT))
    return Shards(path, train, heldout, card)


@lru_cache(maxsize=1)
def opened(folder: Path) -> Shards:
    """`open_shards`, once a process for the folder that is in use."""
    return open_shards(folder)


def spans(folder: str | Path, split: str) -> list[Span]:
    """Return where each document of `split` lies, in the order of the file. Raises `UserError`."""
    path = Path(folder)
    try:
        ids = (path / FILES[split]).stat().st_size // DTYPE.itemsize
    except OSError as error:
        raise _damaged(path / FILES[split], f"cannot be read ({error.strerror})", path) from error
    found = []
    for rows in iter_table(path / DOCUMENTS, "documents", remedy=_remedy(path)):
        for document, of, offset, tokens in zip(
            rows["document"], rows["split"], rows["offset"], rows["tokens"], strict=True
        ):
            if of == split:
                if offset is None or tokens is None or not 0 <= offset <= offset + tokens <= ids:
                    raise _damaged(path / DOCUMENTS, f"has {document} where {FILES[split]} has no ids", path)
                found.append(Span(document, offset, tokens))
    return found


def check_vocabulary(shards: Shards, vocabulary: int) -> None:
    """Refuse shards with more ids than a model of `vocabulary` rows has. Raises `UserError`."""
    if shards.card["ids"] > vocabulary:
        problem = f"is of another scale: it has {shards.card['ids']} ids for a vocabulary of {vocabulary}"
        raise refuse(problem, file=shards.folder / CARD, remedy="name the shards of the run's scale")


def card_digest(card: dict[str, Any]) -> str:
    """sha256 of a card without its own digest."""
    return digest_of({key: value for key, value in card.items() if key != "digest"})


def _read_card(folder: Path) -> dict[str, Any]:
    card = read_json(folder / CARD, remedy=_remedy(folder))
    if not isinstance(card, dict) or card.get("digest") != card_digest(card):
        raise _damaged(folder / CARD, "is damaged (its digest differs)", folder)
    if card.get("format") != FORMAT:
        raise _damaged(folder / CARD, f"is of format {card.get('format')}, not {FORMAT}", folder)
    files = card.get("files")
    described = isinstance(files, dict) and all(
        isinstance(files.get(name), dict) and {"bytes", "sha256"} <= files[name].keys()
        for name in (*FILES.values(), DOCUMENTS)
    )
    if not described or not all(isinstance(card.get(key), int) for key in ("ids", "end_of_text")):
        raise _damaged(folder / CARD, "is not the card of shards", folder)
    return card


def _damaged(file: Path, problem: str, folder: Path) -> UserError:
    return refuse(problem, file=file, remedy=_remedy(folder))


def _remedy(folder: Path) -> str:
    return rebuild(folder / CARD)
