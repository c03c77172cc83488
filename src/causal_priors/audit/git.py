"""A repository read as data: what commits hold and in which order they stand, while no program that it names is run.

An audit may look at somebody else's repository. Its config can name programs (filters, signature checkers, differs,
hooks, pagers, transports), and its index and replacement refs can hide a change. So only plumbing that reads objects is
used: no index, no comparison with the work tree, no fetch, no settings but this module's, objects as they were committed.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path

_SECONDS = 60
_CHUNK = 1 << 20
_NOWHERE = os.devnull
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": _NOWHERE,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": _NOWHERE,
    "GIT_NO_LAZY_FETCH": "1",
    # What a git without the variable above would fetch with; a repository's config cannot overrule it.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": _NOWHERE,
    # Parents and dates out of the commits themselves, not out of a file beside them.
    "core.commitGraph": "false",
    "log.showSignature": "false",
    "protocol.allow": "never",
}
_COMMITTED = re.compile(rb"^committer .*> (\d{1,11}) [+-]\d{4}$", re.MULTILINE)


@dataclass(frozen=True)
class Commit:
    """One commit: its id and the day it was made (UTC)."""

    id: str
    day: date

    def __str__(self) -> str:
        return f"{self.id[:7]} of {self.day}"


class Git:
    """Reads the history of the repository that holds `folder`; every question it cannot answer is answered by nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        top = self._text("rev-parse", "--show-toplevel")
        self.root = Path(top) if top else None
        self._commits: dict[str, Commit] = {}

    @cached_property
    def problem(self) -> tuple[str, str] | None:
        """Why no order can be told from this repository, with a remedy; None where it can."""
        if self.root is None or not self._text("rev-parse", "--verify", "--quiet", "HEAD^{commit}"):
            return "is in no git repository with a history: the order cannot be told", ""
        if self._text("rev-parse", "--is-shallow-repository") != "false":
            return "is in a shallow clone: the order cannot be told", "git fetch --unshallow"
        return None

    def name(self, path: Path) -> str | None:
        """Name of a file or folder inside the repository, None where it lies outside."""
        place = path.parent.resolve() / path.name
        inside = self.root is not None and place.is_relative_to(self.root)
        return place.relative_to(self.root).as_posix() if inside and self.root is not None else None

    def commits(self, *pathspecs: str) -> list[Commit]:
        """Commits of the history that touched what the pathspecs match; parents stand before children."""
        found = self._text("rev-list", "--full-history", "--topo-order", "--reverse", "HEAD", "--", *pathspecs) or ""
        return [self._commit(line) for line in found.split()]

    def touched(self, path: Path) -> list[Commit]:
        """Commits that touched a file or folder; parents stand before children."""
        name = self.name(path)
        return self.commits(f":(top,literal){name}") if name is not None else []

    def follows(self, later: Commit, earlier: Commit) -> bool:
        """Is `earlier` an ancestor of `later`, and another commit?"""
        return later != earlier and self._read("merge-base", "--is-ancestor", earlier.id, later.id) is not None

    def first(self, commit: Commit) -> bool:
        """Has the commit no parent?"""
        return b"\nparent " not in (self._read("cat-file", "commit", commit.id) or b"").partition(b"\n\n")[0]

    def held(self, commit: Commit, path: Path) -> bytes | None:
        """Bytes of a file as a commit holds it, None where it does not."""
        return self._read("cat-file", "blob", f"{commit.id}:{self.name(path)}")

    def differing(self, path: Path) -> tuple[int, list[str]]:
        """How many files HEAD holds at `path` (a file or a folder), and which of them are not on the disk byte for byte."""
        wanted = self._blobs(path)
        return len(wanted), [name for name, blob in wanted.items() if _blob_of(self._at(name), len(blob)) != blob]

    def clean(self, path: Path) -> bool:
        """Is the file in HEAD as it is on the disk, byte for byte?"""
        known, differing = self.differing(path)
        return known == 1 and not differing

    def _at(self, name: str) -> Path:
        return (self.root or Path()) / name

    def _blobs(self, path: Path) -> Mapping[str, str]:
        """Object ids by name of the files that HEAD holds at `path`."""
        name = self.name(path)
        # The literal root is the empty name, which a pathspec cannot say.
        chosen = ["--", f":(literal){name}"] if name not in {None, "."} else []
        if name is None:
            return {}
        listed = self._read("ls-tree", "-r", "-z", "--full-tree", "HEAD", *chosen) or b""
        rows = [entry.partition(b"\t") for entry in listed.split(b"\0") if entry]
        return {os.fsdecode(file): what.split()[2].decode() for what, _, file in rows if what.split()[1] == b"blob"}

    def _commit(self, commit: str) -> Commit:
        if commit not in self._commits:
            match = _COMMITTED.search((self._read("cat-file", "commit", commit) or b"").partition(b"\n\n")[0])
            self._commits[commit] = Commit(commit, datetime.fromtimestamp(int(match[1]) if match else 0, UTC).date())
        return self._commits[commit]

    def _text(self, *arguments: str) -> str | None:
        found = self._read(*arguments)
        return None if found is None else os.fsdecode(found).strip()

    def _read(self, *arguments: str) -> bytes | None:
        """Return what a command prints, None where it fails."""
        settings = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
        command = ["git", "-C", str(self.folder), "--no-pager", *settings, *arguments]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_SECONDS, check=False, env={**kept, **_ENVIRONMENT}
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None


def _blob_of(path: Path, length: int) -> str:
    """The object id that git gives to a file's bytes, as hexadecimal of this length; nothing where there is no file."""
    digest = hashlib.sha1(usedforsecurity=False) if length == 40 else hashlib.sha256()
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            digest.update(b"blob %d\0" % size)
            while part := file.read(_CHUNK):
                digest.update(part)
    except OSError:
        return ""
    return digest.hexdigest()
