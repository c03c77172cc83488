"""Exploratory protocols: written and sealed before their runs, and kept apart from everything that verdicts read.

They lie one folder deeper (`preregistration/exploratory/NNNN-name/`), where the loader of registered protocols does not
look, have a schema of their own, and a seal that says less: results of the registered study may be known, only models of
this protocol may not exist yet. A change of mind needs another protocol; there are no amendments.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.artifacts import digest_of, own_digest, read_json, write_json
from causal_priors.errors import refuse
from causal_priors.prereg.ledger import check_date
from causal_priors.prereg.protocol import read_data
from causal_priors.prereg.seal import PLAN, PROTOCOL, SEAL, canonical, changed_keys, read_plan

FOLDER = "exploratory"
STATEMENT = "no model of this protocol had been trained; results of earlier experiments were known"
_KEYS = {"statement", "date", "protocol", "sealed", "plan", "digest"}
_RESTORE = "restore it from the repository's history; a change of mind is another protocol"


@dataclass(frozen=True)
class ExploratoryProtocol:
    """One exploratory protocol: its id, folder and data. `seal` is the digest of its seal."""

    id: str
    folder: Path
    data: dict[str, Any]
    seal: str


def folders(preregistration: str | Path) -> list[Path]:
    """Return the folders of exploratory protocols, sorted; none where there are none."""
    return sorted(path for path in (Path(preregistration) / FOLDER).glob("[0-9][0-9][0-9][0-9]-*") if path.is_dir())


def load_exploratory(preregistration: str | Path, protocol: str) -> ExploratoryProtocol:
    """Return the exploratory protocol with this id, after checking its seal. Raises `UserError`."""
    found = [path for path in folders(preregistration) if path.name.startswith(f"{protocol}-")]
    if len(found) != 1:
        where = Path(preregistration) / FOLDER
        raise refuse(f"holds {len(found)} protocols {protocol}", file=where, remedy="it should be one folder")
    return _check_one(found[0])


def check_exploratory(preregistration: str | Path) -> dict[str, str]:
    """Return the seal digest of each exploratory protocol by id, after checking all. Raises `UserError`."""
    return {found.id: found.seal for found in map(_check_one, folders(preregistration))}


def seal_exploratory(preregistration: str | Path, date: str, results: str | Path) -> list[Path]:
    """Seal every unsealed exploratory protocol with `date`, and return the files written.

    Raises `UserError` where there is none to seal, or where `results` holds a model of one: the seal would then say
    what is not true.
    """
    check_date(date, preregistration, "date")
    unsealed = [path for path in folders(preregistration) if not (path / SEAL).exists()]
    if not unsealed:
        raise refuse("holds no exploratory protocol without a seal", file=Path(preregistration) / FOLDER)
    written = []
    for folder in unsealed:
        data = _data(folder)
        if found := sorted(Path(results).glob(f"*/experiments/{data['id']}/arms/*.parquet")):
            remedy = "a seal says that no model existed: seal before the first run"
            raise refuse("was measured before the seal", file=found[0], remedy=remedy)
        content = {
            "statement": STATEMENT,
            "date": date,
            "protocol": data["id"],
            "sealed": canonical(data),
            "plan": digest_of(canonical(read_plan(folder / PLAN))),
        }
        write_json(folder / SEAL, {**content, "digest": digest_of(content)})
        written.append(folder / SEAL)
    return written


def _data(folder: Path) -> dict[str, Any]:
    file = folder / PROTOCOL
    data: dict[str, Any] = read_data(file, "exploratory")
    if data["id"] != folder.name[:4]:
        raise refuse("differs from the folder's name", file=file, key="id", value=data["id"])
    ids = [row["id"] for row in data["predictions"]]
    if repeated := [value for value in ids if ids.count(value) > 1]:
        raise refuse(f"holds {repeated[0]} twice", file=file, key="predictions", remedy="keep one")
    return data


def _check_one(folder: Path) -> ExploratoryProtocol:
    path = folder / SEAL
    if not path.exists():
        raise refuse(
            "is missing: the protocol is not sealed", file=path, remedy="python -m causal_priors seal --exploratory"
        )
    content = read_json(path, remedy=_RESTORE)
    if not isinstance(content, dict) or content.keys() != _KEYS or content["digest"] != own_digest(content):
        raise refuse("does not fit its own digest: the seal was edited", file=path, remedy=_RESTORE)
    data = _data(folder)
    if content["statement"] != STATEMENT or content["protocol"] != data["id"]:
        raise refuse("is the seal of something else", file=path, remedy=_RESTORE)
    check_date(content["date"], path, "date")
    if changes := list(changed_keys(content["sealed"], canonical(data))):
        problem = f"was changed after it was sealed: {', '.join(changes)}"
        raise refuse(problem, file=folder / PROTOCOL, remedy=_RESTORE)
    if content["plan"] != digest_of(canonical(read_plan(folder / PLAN))):
        raise refuse("was changed after it was sealed", file=folder / PLAN, remedy=_RESTORE)
    return ExploratoryProtocol(data["id"], folder, data, content["digest"])
