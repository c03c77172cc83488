"""Were the protocols sealed before any result? Only a history can say; here it is git's, and it is read, never changed.

A seal counts as of the last commit that touched it. Every commit that holds results must come after that one. Results that
are in no commit have no place in the history: of them it says that the seals were there unchanged, and no more. What is
in HEAD is compared byte for byte with the disk. Where one first commit brought seals and results together, as in a
repository made of a release's archive, no order can be told.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from causal_priors.artifacts import read_json
from causal_priors.audit.amendments import check_amendments
from causal_priors.audit.evidence import Evidence
from causal_priors.audit.findings import Link, Report
from causal_priors.audit.git import Commit, Git
from causal_priors.errors import UserError
from causal_priors.prereg import exploratory
from causal_priors.prereg.protocol import protocol_folders
from causal_priors.prereg.seal import SEAL
from causal_priors.report.snapshot import RUNS

# What a result looks like, wherever it lies.
RESULTS = ("verdicts.json", "run.json", RUNS, "evaluation.parquet", "rows-*.parquet", "*.safetensors")


def check_history(report: Report, evidence: Evidence, preregistration: Path) -> None:
    """Add the links of the history: seals before results, and when amendments were written."""
    link = report.link("seals before results (git)")
    folder = preregistration.resolve()
    git = Git(folder)
    if git.problem:
        return link.absent(folder, *git.problem)
    results = git.commits(*(f":(top,glob)**/{name}" for name in RESULTS))
    for path in protocol_folders(folder):
        _seal(link, git, path / SEAL, results)
    for path in exploratory.folders(folder):
        # Sealed when results of the registered study were known; only its own come later.
        _seal(link, git, path / SEAL, git.commits(f":(top,glob)**/experiments/{path.name[:4]}/**"))
    if results:
        link.notes.append(f"the first commit with a result is {results[0]}")
    else:
        link.notes.append("no commit holds a result yet")
    _place(link, git, evidence)
    check_amendments(report, git, folder, results)
    return None


def _seal(link: Link, git: Git, path: Path, results: Sequence[Commit]) -> None:
    touched = git.touched(path)
    if not touched:
        return link.absent(path, "is in no commit: the order cannot be told", "commit the seals before the first run")
    last = touched[-1]
    problem = f"differs from the one in HEAD, sealed in {last}"
    link.expect(git.clean(path), path, problem, f"restore it: git checkout -- {path}")
    early = [commit for commit in results if not git.follows(commit, last)]
    if early == [last] and git.first(last):
        problem = f"stands beside results in the first commit, {last}: the order cannot be told"
        return link.absent(path, problem, "audit in a clone of the repository with its whole history")
    problem = f"was last written in {last}, after or beside results"
    link.expect(not early, path, f"{problem} in {', '.join(str(commit) for commit in early[:3])}")
    link.notes.append(f"{path.parent.name} was sealed in {last}")
    return None


def _place(link: Link, git: Git, evidence: Evidence) -> None:
    """Say what the history knows of the audited results themselves."""
    known, differing = git.differing(evidence.folder.resolve())
    if known:
        if differing:
            link.notes.append(f"{len(differing)} files of {evidence.folder} differ from HEAD")
        return
    committed = (git.root or Path()) / "results" / "reference" / evidence.folder.name / RUNS
    runs = 0
    if not evidence.snapshot and git.clean(committed):
        runs = len(_weights_of(committed) & {json.dumps(card.content["outputs"]) for card in evidence.runs.values()})
    text = (
        f"{runs} of {len(evidence.runs)} runs are committed in {committed.parent}" if runs else "they are in no commit"
    )
    link.notes.append(f"{evidence.folder} is outside the history; {text}")


def _weights_of(path: Path) -> set[str]:
    try:
        cards = read_json(path)
        return {json.dumps(card["outputs"]) for card in cards.values()}
    except (UserError, KeyError, AttributeError, TypeError):
        return set()
