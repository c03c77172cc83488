"""Look up an experiment or a test in the sealed register, and the verdicts on it, for the commands that only look."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.artifacts import read_json
from causal_priors.errors import refuse
from causal_priors.prereg.exploratory import folders as exploratory_folders
from causal_priors.prereg.ledger import Amendment, Assumption, load_assumptions
from causal_priors.prereg.seal import PLAN, SEAL, load_sealed
from causal_priors.prereg.terms import Protocol, RegisteredTest
from causal_priors.prereg.verdict_tables import read_verdicts


@dataclass(frozen=True)
class Entry:
    """One sealed experiment. seal: its "date" and "digest". ledger: all assumptions by id."""

    protocol: Protocol
    seal: Mapping[str, str]
    amendments: Sequence[Amendment]
    ledger: Mapping[str, Assumption]


def entries(preregistration: str | Path) -> dict[str, Entry]:
    """Return the sealed experiments by id, after checking every seal. Raises `UserError`."""
    protocols, digests, amendments = load_sealed(preregistration)
    ledger = load_assumptions(preregistration)
    found = {}
    for protocol in protocols:
        seal = {"date": str(read_json(protocol.folder / SEAL)["date"]), "digest": digests[protocol.id]}
        found[protocol.id] = Entry(protocol, seal, amendments[protocol.id], ledger)
    return found


def find_experiment(preregistration: str | Path, name: str) -> Entry:
    """Return the experiment with this id. Raises `UserError` naming those there are."""
    known = entries(preregistration)
    if name not in known:
        for folder in exploratory_folders(preregistration):
            if folder.name.startswith(f"{name}-"):
                raise refuse("is exploratory: it has no registered test", value=name, remedy=f"read {folder / PLAN}")
        raise refuse("is not an experiment", value=name, remedy=f"registered are {', '.join(known)}")
    return known[name]


def find_test(preregistration: str | Path, name: str) -> tuple[Entry, RegisteredTest]:
    """Return the registered test with this id and its experiment. Raises `UserError` naming a close one."""
    known = {test.id: (entry, test) for entry in entries(preregistration).values() for test in entry.protocol.tests}
    if name not in known:
        close = [test for test in known if test.startswith(name)] or difflib.get_close_matches(name, known, n=3)
        raise refuse("is not a registered test", value=name, remedy=f"there are {', '.join(close or known)}")
    return known[name]


def read_records(folder: Path, experiment: str) -> list[dict[str, Any]]:
    """Return the verdict records on `experiment` in a study's folder: the study's, else the experiment's own, or none.

    Raises `UserError` for a damaged file.
    """
    for path in (folder / "verdicts.json", folder / "experiments" / experiment / "verdicts.json"):
        if path.is_file():
            return [record for record in read_verdicts(path) if record["experiment"] == experiment]
    return []
