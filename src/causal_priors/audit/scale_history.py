"""Was the scale written before its results? No seal holds it; the history of its file does, where it has one.

What counts is what the file says: comments may be written later. A scale that was changed after results is not broken by
that alone (whether they were made with it is what their cards say), but nobody can tell why it was changed.
"""

from pathlib import Path

from causal_priors.audit.findings import Report
from causal_priors.audit.git import Commit, Git
from causal_priors.audit.history import RESULTS
from causal_priors.config import make_scale
from causal_priors.errors import UserError
from causal_priors.scale import Scale
from causal_priors.yamlfile import parse_yaml


def check_scale(report: Report, scale: Scale, path: Path) -> None:
    """Add the link of the scale, which lies in the file `path`."""
    link, git = report.link("scale before results (git)"), Git(path)
    if git.problem:
        return link.absent(path, *git.problem)
    touched = git.touched(path)
    if not touched:
        return link.absent(path, "is in no commit: whether it was written before results cannot be told", "commit it")
    if not git.clean(path):
        problem = f"differs from the one in HEAD, written in {touched[-1]}: when it was changed cannot be told"
        return link.absent(path, problem, f"restore it: git checkout -- {path}")
    since = touched[-1]
    for commit in reversed(touched):
        if _digest(git, commit, path) != scale.digest():
            break
        since = commit
    link.checked += 2
    results = git.commits(*(f":(top,glob)**/{scale.name}/**/{name}" for name in RESULTS))
    if early := [commit for commit in results if not git.follows(commit, since)]:
        problem = f"says what it says since {since}, after or beside results in {early[0]}: why cannot be told"
        return link.absent(path, problem, f"see git log -p -- {path}")
    link.notes.append(f"{path.name} says what it says since {since}")
    return None


def _digest(git: Git, commit: Commit, path: Path) -> str | None:
    """Digest of the scale as a commit holds it, None where it holds none that this code can read."""
    content = git.held(commit, path)
    try:
        return make_scale(parse_yaml(content.decode(), path), path).digest() if content else None
    except (UnicodeDecodeError, UserError):
        return None
