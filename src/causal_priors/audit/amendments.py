"""When were amendments written? Their dates are their author's word; the commit that first holds one is the history's.

An amendment dated before its first commit by more than a day was dated back; one in no commit, or one that came after
results which its date puts behind it, cannot be told apart from that. A row that an earlier commit holds must stay.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from causal_priors.artifacts import digest_of, read_at_most
from causal_priors.audit.findings import Link, Report
from causal_priors.audit.git import Commit, Git
from causal_priors.errors import UserError
from causal_priors.prereg.ledger import AMENDMENTS
from causal_priors.prereg.protocol import protocol_folders
from causal_priors.yamlfile import MAX_BYTES, parse_yaml

# Clocks, time zones, and an evening's work that is committed past midnight.
_GRACE = timedelta(days=1)
Row = dict[str, Any]


def check_amendments(report: Report, git: Git, preregistration: Path, results: Sequence[Commit]) -> None:
    """Add the link of amendments: what the history says of their dates. results: commits that hold results."""
    link = report.link("amendments in the history (git)")
    for folder in protocol_folders(preregistration):
        path = folder / AMENDMENTS
        rows = _rows(_on_disk(path), path)
        first: dict[str, Commit] = {}
        earlier: dict[str, Row] = {}
        for commit in git.touched(path):
            for row in _rows(git.held(commit, path), path):
                first.setdefault(digest_of(row), commit)
                earlier.setdefault(digest_of(row), row)
        gone = earlier.keys() - {digest_of(row) for row in rows}
        for key in sorted(gone, key=lambda key: str(earlier[key].get("date"))):
            problem = f"no longer holds the amendment of {earlier[key].get('date')} that {first[key]} brought"
            link.expect(False, path, problem, "restore it: amendments are appended, never changed")
        link.checked += not gone
        for row in rows:
            _dated(link, git, path, row, first.get(digest_of(row)), results)


def _dated(link: Link, git: Git, path: Path, row: Row, commit: Commit | None, results: Sequence[Commit]) -> None:
    """Hold one amendment's date to the commit that brought it."""
    what = f"the amendment of {row.get('date')} on {', '.join(map(str, row.get('tests') or ()))}"
    if commit is None:
        return link.absent(path, f"{what} is in no commit: when it was written cannot be told", "commit it")
    try:
        told = date.fromisoformat(str(row.get("date")))
    except ValueError:
        return link.absent(path, f"{what} has no date")
    late = f"{what} first stands in {commit}"
    if not link.expect(told >= commit.day - _GRACE, path, f"{late}: it was dated back"):
        return None
    behind = [result for result in results if told < result.day and git.follows(commit, result)]
    if behind:
        link.absent(path, f"{late}, after results of {behind[0]}: whether it was written before them cannot be told")
    link.notes.append(f"{path.parent.name}: {late}")
    return None


def _on_disk(path: Path) -> bytes | None:
    try:
        return read_at_most(path, MAX_BYTES)
    except UserError:
        return None


def _rows(content: bytes | None, path: Path) -> list[Row]:
    """Amendments in a file's bytes; none where it is not there or is no such file, which the seals' link tells."""
    try:
        data = parse_yaml(content.decode(), path) if content is not None else None
    except (UnicodeDecodeError, UserError):
        return []
    rows = data.get("amendments") if isinstance(data, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
