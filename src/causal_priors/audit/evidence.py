"""The files of a study as an audit reads them: a results folder, or the snapshot of one that the repository keeps.

Both give the same things: run cards with the digest of their files, evaluation tables with their cards, and the cards of
the data. In a snapshot all run cards lie in one file and all evaluation tables in a few; each table is made again, byte
for byte, to know its digest. Checkpoints are only digested: nothing here loads one.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from causal_priors.artifacts import own_digest, read_json, read_signed_json, sha256_bytes, sha256_file
from causal_priors.audit.findings import Link
from causal_priors.errors import UserError, refuse
from causal_priors.remedies import rebuild
from causal_priors.report.kept import FOLDER, kept_tables, write_again
from causal_priors.report.snapshot import CORPUS_CARD, RUNS, default_card
from causal_priors.runs import EDITS
from causal_priors.tables import read_metadata, read_table

RUN_CARD, EVALUATION = "run.json", "evaluation.parquet"
TABLES = (EVALUATION, *(f"{edit}.parquet" for edit in EDITS))


@dataclass(frozen=True)
class RunCard:
    """A run's card: what it says, and the sha256 of its file."""

    file: str
    content: dict[str, Any]
    sha256: str


@dataclass(frozen=True)
class Table:
    """One table of kind "evaluation": rows, metadata, and the sha256 of its file (empty where that cannot be known)."""

    file: str
    run: str
    name: str
    frame: pd.DataFrame
    status: str
    card: dict[str, Any]
    sha256: str


class Evidence:
    """A results folder, `results/{scale}`. Whatever cannot be read becomes a finding of `reading`."""

    snapshot = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reading = Link("files that can be read")

    def file(self, name: str) -> Path:
        """Path of a file of the study by its name in a results folder."""
        return self.folder / name

    def rebuild(self, name: str) -> str:
        """Advice to make a file anew."""
        return rebuild(self.file(name))

    @cached_property
    def runs(self) -> dict[str, RunCard]:
        """Run cards by the name of their folder."""
        found = {}
        for path in sorted(self.folder.glob(f"runs/*/{RUN_CARD}")):
            with self.reading.reading():
                content = read_signed_json(path, rebuild(path))
                found[path.parent.name] = RunCard(str(path), checked_card(content, path), sha256_file(path))
                self.reading.checked += 1
        return found

    @cached_property
    def tables(self) -> list[Table]:
        """Evaluation and intervention tables of all runs."""
        return list(self._read_tables())

    def _read_tables(self) -> Iterator[Table]:
        for path in sorted(path for name in TABLES for path in self.folder.glob(f"runs/*/{name}")):
            with self.reading.reading():
                frame, metadata = read_table(path, "evaluation"), read_metadata(path, "evaluation")
                place = (str(path), path.parent.name, path.name)
                yield Table(*place, frame, *table_card(metadata, path), sha256_file(path))
                self.reading.checked += 1

    def output(self, run: str, name: str) -> Path | None:
        """Path of a file that a run card vouches for, None where a snapshot leaves it out."""
        return self.folder / "runs" / run / name

    @cached_property
    def corpus_card(self) -> Path | None:
        """The card of the default corpus, where the study was made from it (as far as a whole index tells)."""
        try:
            return default_card(self.folder)
        except UserError:
            return None


class Snapshot(Evidence):
    """The snapshot of a study, `results/reference/{scale}`."""

    snapshot = True

    def rebuild(self, name: str) -> str:
        """Advice to get a file of the snapshot back; of a run, the one that holds it together with others."""
        if name.startswith("runs/"):
            name = RUNS if name.endswith(RUN_CARD) else FOLDER
        return f"restore it: git checkout -- {self.file(name)}"

    @cached_property
    def runs(self) -> dict[str, RunCard]:
        """Run cards by run, from the one file that holds them."""
        path, found = self.folder / RUNS, {}
        with self.reading.reading():
            cards = read_json(path, self.rebuild(RUNS))
            for run, content in dict_of(cards, path).items():
                with self.reading.reading():
                    where = f"{path}: {run}"
                    if own_digest(dict_of(content, where)) != content.get("digest"):
                        raise refuse("is damaged (its digest differs)", file=where, remedy=self.rebuild(RUNS))
                    text = json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False) + "\n"
                    found[run] = RunCard(where, checked_card(content, where), sha256_bytes(text.encode()))
                    self.reading.checked += 1
        return found

    def _read_tables(self) -> Iterator[Table]:
        with self.reading.reading(), tempfile.TemporaryDirectory() as temporary:
            for kept in kept_tables(self.folder):
                with self.reading.reading():
                    where = f"{self.folder / FOLDER}: {kept.run}/{kept.name}"
                    status, card = table_card(kept.metadata, where)
                    # Another pyarrow writes the same rows as other bytes.
                    same = dict_of(card.get("versions"), where).get("pyarrow") == pa.__version__
                    sha256 = write_again(kept, Path(temporary) / "table.parquet") if same else ""
                    yield Table(where, kept.run, kept.name, kept.frame, status, card, sha256)
                    self.reading.checked += 1

    def output(self, run: str, name: str) -> Path | None:
        """None: a snapshot holds no checkpoint."""
        return None

    @cached_property
    def corpus_card(self) -> Path | None:
        """The copy of the default corpus's card."""
        path = self.folder / CORPUS_CARD
        return path if path.is_file() else None


def open_evidence(folder: Path) -> Evidence:
    """Return the study in `folder`. Raises `UserError` where there is neither a study nor a snapshot of one."""
    if (folder / "runs").is_dir():
        return Evidence(folder)
    if (folder / RUNS).is_file():
        return Snapshot(folder)
    remedy = "run the pipeline first, or name the folder: --folder results/reference/micro"
    raise refuse("holds neither the runs of a study nor a snapshot of one", file=folder, remedy=remedy)


def dict_of(value: Any, where: str | Path) -> dict[str, Any]:
    """Return `value`, a mapping. Raises `UserError` for anything else."""
    if not isinstance(value, dict):
        raise refuse("is not what it should be: a mapping", file=where)
    return value


def checked_card(content: dict[str, Any], where: str | Path) -> dict[str, Any]:
    """Return the card of a training run. Raises `UserError` where it has another form."""
    for key in ("inputs", "outputs", "parameters", "versions"):
        dict_of(content.get(key), f"{where}: {key}")
    if not all(isinstance(content.get(key), str) for key in ("status", "stage", "code")):
        raise refuse("is not the card of a training run", file=where)
    return content


def table_card(metadata: Mapping[str, str], where: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the status and the card in a table's metadata. Raises `UserError` where there is none."""
    try:
        card = dict_of(json.loads(metadata["card"]), f"{where}: card")
        status = metadata["status"]
    except (KeyError, ValueError, RecursionError):
        raise refuse("has no card in its metadata", file=where) from None
    for key in ("inputs", "parameters"):
        dict_of(card.get(key), f"{where}: card: {key}")
    return status, card
