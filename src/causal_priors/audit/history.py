"""Were the protocols sealed before any result? Only a history can say; here it is git's, and it is read, never changed.

A seal counts as of the last commit that touched it. Every commit that holds results must come after that one. Results that
are in no commit have no place in the history: of them it says that the seals were there unchanged, and no more.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from causal_priors.artifacts import read_json
from causal_priors.audit.evidence import Evidence
from causal_priors.audit.findings import Link, Report
from causal_priors.errors import UserError
from causal_priors.prereg import exploratory
from causal_priors.prereg.protocol import protocol_folders
from causal_priors.prereg.seal import SEAL
from causal_priors.report.snapshot import RUNS

# What a result looks like, wherever it lies.
RESULTS = ("verdicts.json", "run.json", RUNS, "evaluation.parquet", "rows-*.parquet", "*.safetensors")
_SECONDS = 60


class _Git:
    """Reads the history of the repository that holds `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        self.root = Path(self.read("rev-parse", "--show-toplevel") or "/")

    def read(self, *arguments: str) -> str | None:
        """Return what a command prints, None where it fails."""
        # A repository's own config may name programs to run; none is needed to read.
        command = ["git", "-C", str(self.folder), "-c", "core.fsmonitor=false", "--no-pager", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def commits(self, *paths: str) -> list[str]:
        """Commits of the history that touched `paths`, the newest first."""
        return (self.read("log", "--format=%H", "--full-history", "HEAD", "--", *paths) or "").split()

    def follows(self, later: str, earlier: str) -> bool:
        """Is `earlier` an ancestor of `later`, and another commit?"""
        return later != earlier and self.read("merge-base", "--is-ancestor", earlier, later) is not None

    def day(self, commit: str) -> str:
        """A commit in short, with its date."""
        return self.read("log", "-1", "--format=%h of %cs", commit) or commit[:7]

    def clean(self, path: Path) -> bool:
        """Is the file in HEAD as it is on the disk?"""
        known = self.read("ls-files", "--error-unmatch", "--", str(path)) is not None
        return known and self.read("diff", "--quiet", "HEAD", "--", str(path)) is not None


def check_history(report: Report, evidence: Evidence, preregistration: Path) -> None:
    """Add the link of the history: seals before results."""
    link = report.link("seals before results (git)")
    folder = preregistration.resolve()
    git = _Git(folder)
    if git.read("rev-parse", "HEAD") is None:
        return link.absent(folder, "is in no git repository with a history: the order cannot be told")
    if git.read("rev-parse", "--is-shallow-repository") == "true":
        return link.absent(folder, "is in a shallow clone: the order cannot be told", "git fetch --unshallow")
    results = git.commits(*(f":(top,glob)**/{name}" for name in RESULTS))
    for path in protocol_folders(folder):
        _seal(link, git, path / SEAL, results)
    for path in exploratory.folders(folder):
        # Sealed when results of the registered study were known; only its own come later.
        _seal(link, git, path / SEAL, git.commits(f":(top,glob)**/experiments/{path.name[:4]}/**"))
    if results:
        link.notes.append(f"the first commit with a result is {git.day(results[-1])}")
    else:
        link.notes.append("no commit holds a result yet")
    _place(link, git, evidence)
    return None


def _seal(link: Link, git: _Git, path: Path, results: Sequence[str]) -> None:
    touched = git.commits(str(path))
    if not touched:
        return link.absent(path, "is in no commit: the order cannot be told", "commit the seals before the first run")
    problem = f"differs from the one in HEAD, sealed in {git.day(touched[0])}"
    link.expect(git.clean(path), path, problem, f"restore it: git checkout -- {path}")
    early = [commit for commit in results if not git.follows(commit, touched[0])]
    problem = f"was last written in {git.day(touched[0])}, after or beside results"
    link.expect(not early, path, f"{problem} in {', '.join(git.day(commit) for commit in early[:3])}")
    link.notes.append(f"{path.parent.name} was sealed in {git.day(touched[0])}")
    return None


def _place(link: Link, git: _Git, evidence: Evidence) -> None:
    """Say what the history knows of the audited results themselves."""
    folder = evidence.folder.resolve()
    tracked = folder.is_relative_to(git.root) and bool(git.read("ls-files", "--", str(folder)))
    if tracked:
        changed = (git.read("status", "--porcelain", "--", str(folder)) or "").splitlines()
        if changed:
            link.notes.append(f"{len(changed)} files of {evidence.folder} differ from HEAD")
        return
    committed = git.root / "results" / "reference" / evidence.folder.name / RUNS
    known = 0
    if not evidence.snapshot and git.clean(committed):
        known = len(_weights_of(committed) & {json.dumps(card.content["outputs"]) for card in evidence.runs.values()})
    text = (
        f"{known} of {len(evidence.runs)} runs are committed in {committed.parent}"
        if known
        else "they are in no commit"
    )
    link.notes.append(f"{evidence.folder} is outside the history; {text}")


def _weights_of(path: Path) -> set[str]:
    try:
        cards = read_json(path)
        return {json.dumps(card["outputs"]) for card in cards.values()}
    except (UserError, KeyError, AttributeError, TypeError):
        return set()
