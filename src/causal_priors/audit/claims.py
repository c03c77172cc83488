"""Which registered runs and tables a study counts on, so that one that is not there was taken away.

Verdicts of the whole study count on all of them, those of one experiment on its own. What no verdict counts on may not have
been made yet: it is missing, and nothing is forged.
"""

from collections.abc import Collection, Sequence

from causal_priors.audit.evidence import EVALUATION, RUN_CARD, Evidence
from causal_priors.audit.findings import Link
from causal_priors.errors import UserError
from causal_priors.prereg.protocol import registered_interventions, registered_runs
from causal_priors.prereg.terms import Protocol
from causal_priors.prereg.verdict_tables import read_verdicts
from causal_priors.scale import Scale

_VERDICTS = "verdicts.json"
_FORMS = (_VERDICTS, "verdicts.parquet", "verdicts.csv", "verdicts.md")


def claimed_files(evidence: Evidence, protocols: Sequence[Protocol], scale: Scale) -> set[str]:
    """Return the files in run folders that verdicts count on, as RUN/FILE."""
    claimed = set()
    for folder, counted in [("", protocols), *((f"experiments/{item.id}/", [item]) for item in protocols)]:
        if not any(evidence.file(f"{folder}{form}").is_file() for form in _FORMS):
            continue
        for run in registered_runs(counted):
            claimed |= {f"{run.name(scale)}/{RUN_CARD}", f"{run.name(scale)}/{EVALUATION}"}
        claimed |= {f"{item.run.name(scale)}/{item.edit}.parquet" for item in registered_interventions(counted)}
        claimed |= _named(evidence, f"{folder}{_VERDICTS}")
    return claimed


def _named(evidence: Evidence, name: str) -> set[str]:
    """The tables that recorded verdicts name, whatever they should."""
    try:
        records = read_verdicts(evidence.file(name))
    except UserError:
        # Said by the link of verdicts.
        return set()
    inputs = [record.get("inputs") for record in records]
    return {file for part in inputs if isinstance(part, dict) for file in part}


def expect_there(
    link: Link, evidence: Evidence, wanted: Collection[str], found: Collection[str], claimed: Collection[str]
) -> None:
    """Record files of runs, RUN/FILE, that are not found: broken where verdicts count on them, else together as missing."""
    unmade = sorted(name for name in wanted if name not in found and name not in claimed)
    for name in sorted(set(wanted) - set(unmade)):
        place = f"runs/{name}"
        link.expect(name in found, evidence.file(place), "is missing", evidence.rebuild(place))
    if unmade:
        problem = f"{len(unmade)} of {len(wanted)} are not there, and no verdict counts on them; first: {unmade[0]}"
        link.absent(evidence.folder, problem, evidence.rebuild(f"runs/{unmade[0]}"))
